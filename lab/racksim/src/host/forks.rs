//! A host that forks, and the process that it has forked.

use super::Host;
use crate::judge::{Broken, Judge};
use farmem_pool::Protect;

impl Host {
    /// Forks: the child has all pages as they are.
    pub fn fork(&self, number: usize, judge: &mut Judge) -> Result<Host, Broken> {
        let forked = self.pool.fork_in_place();
        let pool = forked.map_err(|lost| Broken(format!("host {}: a fork finds a loss: {lost}", self.number)))?;
        self.pages.iter().for_each(|page| judge.inherited(self.number, number, page.number));
        Ok(Host {
            family: self.family,
            pages: self.pages.clone(),
            next_page: self.next_page,
            joined: self.joined.clone(),
            under_way: self.under_way,
            ..Host::with(number, pool, self.protect, self.mistake)
        })
    }

    /// Whether it can fork: it shares nothing already, has no file, and its pages are
    /// not sealed.
    pub fn may_fork(&self) -> bool {
        self.protect != Protect::Disk && !self.seals && !self.pool.shares()
    }

    /// The process ends at once, with all that it holds.
    pub fn end(self, judge: &mut Judge) {
        self.pages.iter().for_each(|page| judge.dropped(self.number, page.number));
        self.pool.end_in_place();
    }
}
