//! The bare pager: the floor's fault, and as many pages that leave as come in.
//!
//! The floor says what it costs to bring a page in. But local memory is full, and for each page that comes another
//! goes: that is the mechanism's cost too, whoever uses it. Here victims are simply the oldest, nothing is
//! remembered of them, and they leave in the plainest way that loses no write:
//!
//! ```text
//! 256 pages at a time:  written to, nobody else runs:  copy each to its source          one process_madvise for all, one flush
//!                       … a second thread runs:        a reference to each (vmsplice)   the same, and then each is read into its source
//! ```
//!
//! (A call that protects each page, as userfaultfd has it for this, interrupts the second thread at each: 3 to 15 µs a page, where all of the above takes 1.5.)

#![allow(unsafe_code)] // As the floor's.

use farmem_protocol::random::Random;
use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::ensure;

use super::array::{Array, COUNTING, sampled_word};
use super::faults::Meter;
use super::floor::{Floor, INSTALLED, LEAVING, Mechanism, PAGE};
use super::measure::{self, Phase, Placement, Samples, Threads, What};

/// Whether pages that leave were written to, and who might still.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Written {
    No,
    /// The only thread pages out.
    Alone,
    /// Another runs.
    Beside,
}

impl Floor<'_> {
    /// Random reads, or increments, of which as many replace a page as under farmem.
    pub(super) fn paged(&self, what: What, threads: Threads, placement: Placement) -> anyhow::Result<Phase> {
        let (pages, local, seed) = (self.options.pages, self.options.local, self.options.seed);
        let writes = what == What::PagedWrite;
        let written = match (writes, threads) {
            (false, _) => Written::No,
            (true, Threads::Solo) => Written::Alone,
            (true, Threads::Spinner | Threads::Both) => Written::Beside,
        };
        self.mechanism.drop_range(&self.array, 0..pages)?;
        let counted = self.counted();
        let meter = Meter::new(None);
        let before = meter.now();
        let (faults, asked) = (AtomicU64::new(0), AtomicU64::new(0));
        let samples = measure::run(threads, placement, |_, samples, _| {
            let mut draw = Random::new(seed);
            let mut resident: VecDeque<u32> = VecDeque::with_capacity(local + 1);
            let mut leaving: Vec<u32> = Vec::with_capacity(LEAVING);
            let mut access = |samples: Option<&mut Samples>| {
                let page = draw.index(pages);
                let earlier = INSTALLED.load(Ordering::Relaxed);
                let word = if writes { COUNTING[0] } else { sampled_word(seed, page) };
                let touch = || {
                    let old = self.array.read(page, word);
                    if writes {
                        self.array.write(page, word, old.wrapping_add(1));
                    }
                    old
                };
                let got = samples.map_or_else(touch, |samples| samples.take(touch));
                ensure!(writes || got == self.array.content(page, word), "page {page} reads wrong");
                asked.fetch_add(1, Ordering::Relaxed);
                if INSTALLED.load(Ordering::Relaxed) != earlier {
                    resident.push_back(page as u32);
                    if resident.len() > local {
                        leaving.extend(resident.drain(..LEAVING));
                        leaving.sort_unstable();
                        self.mechanism.page_out(&self.array, &self.source, &leaving, written)?;
                        leaving.clear();
                    }
                }
                Ok(resident.len())
            };
            while access(None)? < local {}
            let begun = INSTALLED.load(Ordering::Relaxed);
            samples.timed(|samples| (0..self.options.accesses).try_for_each(|_| access(Some(samples)).map(drop)))?;
            faults.store(INSTALLED.load(Ordering::Relaxed) - begun, Ordering::Relaxed);
            let rest: Vec<u32> = resident.into();
            rest.chunks(LEAVING)
                .try_for_each(|pages| self.mechanism.page_out(&self.array, &self.source, pages, written))
        })?;
        let made = if writes { asked.into_inner() } else { 0 };
        ensure!(self.counted().wrapping_sub(counted) == made, "the bare pager lost writes");
        let mut counts = meter.now().since(&before);
        counts.major = faults.into_inner();
        Ok(samples.into_phase(what, threads, counts))
    }

    /// Writes that have arrived where pages come from.
    fn counted(&self) -> u64 {
        let count = |page| self.source.read(page, COUNTING[0]).wrapping_sub(self.source.content(page, COUNTING[0]));
        (0..self.options.pages).map(count).fold(0, u64::wrapping_add)
    }
}

impl Mechanism {
    /// These pages leave, in ascending order.
    fn page_out(&self, array: &Array, source: &Array, pages: &[u32], written: Written) -> anyhow::Result<()> {
        let at = |base: &Array, page: u32| base.address() + page as usize * PAGE;
        let parts = |base| -> Vec<libc::iovec> {
            let part = |&page: &u32| libc::iovec { iov_base: at(base, page) as *mut libc::c_void, iov_len: PAGE };
            pages.iter().map(part).collect()
        };
        if written == Written::Alone {
            for &page in pages {
                // SAFETY: a page of each array, and nobody else writes to either.
                unsafe {
                    std::ptr::copy_nonoverlapping(at(array, page) as *const u8, at(source, page) as *mut u8, PAGE)
                };
            }
        }
        if written == Written::Beside {
            // SAFETY: pages of the array, which the kernel refers to and does not change.
            let held = unsafe { libc::vmsplice(self.pipe[1], parts(array).as_ptr(), pages.len(), 0) };
            ensure!(held == (pages.len() * PAGE) as isize, "{held} bytes held: {}", io::Error::last_os_error());
        }
        self.leave(array, pages, &parts(array))?;
        if written == Written::Beside {
            // SAFETY: pages of the source, to which nobody else writes.
            let read = unsafe { libc::readv(self.pipe[0], parts(source).as_ptr(), pages.len() as i32) };
            ensure!(read == (pages.len() * PAGE) as isize, "{read} bytes read: {}", io::Error::last_os_error());
        }
        Ok(())
    }

    fn leave(&self, array: &Array, pages: &[u32], parts: &[libc::iovec]) -> anyhow::Result<()> {
        // SAFETY: pages of the array, which the source has as they are.
        let dropped = unsafe {
            libc::syscall(libc::SYS_process_madvise, self.own, parts.as_ptr(), parts.len(), libc::MADV_DONTNEED, 0)
        };
        let error = io::Error::last_os_error();
        // Kernels before 6.13 refuse that advice.
        if dropped == -1 && matches!(error.raw_os_error(), Some(libc::EINVAL | libc::EPERM | libc::ENOSYS)) {
            return self.drop_pages(array, pages);
        }
        ensure!(dropped == (pages.len() * PAGE) as i64, "{dropped} bytes dropped: {error}");
        Ok(())
    }
}
