//! A host that forks, and the process that it has forked.

use super::Host;
use crate::judge::{Broken, Judge};
use farmem_control::api::Terms;
use farmem_pool::{Lane, Protect};
use farmem_sys::lines::{Hasher, Unit};

impl Host {
    /// Forks: the child has all pages as they are.
    pub fn fork(&self, number: usize, judge: &mut Judge) -> Result<Host, Broken> {
        let forked = self.pool.fork_in_place();
        let pool = forked.map_err(|lost| Broken(format!("host {}: a fork finds a loss: {lost}", self.number)))?;
        self.pages.iter().for_each(|page| judge.inherited(self.number, number, page.number));
        Ok(Host {
            number,
            family: self.family,
            pool,
            protect: self.protect,
            writes: Lane::new(),
            reads: Lane::new(),
            landing: super::bytes(0),
            copied: vec![0; super::CHUNK as usize * super::PAGE_BYTES],
            pages: self.pages.clone(),
            next_page: self.next_page,
            filling: None,
            late_fills: Vec::new(),
            joined: self.joined.clone(),
            held: Vec::new(),
            terms: Terms::default(),
            mistake: self.mistake,
            hasher: Hasher::new(&super::SEED, Unit::best()),
            seals: false,
            sender: None,
            failed: false,
            distrusted: Vec::new(),
            told: 0,
            lost_to_lies: 0,
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
