//! The floor: what a fault served in the faulting thread costs at the very least.
//!
//! The same array, the same random reads, the same share of them faults, but a
//! fault is the bare mechanism and nothing else: SIGBUS, one `UFFDIO_COPY` from
//! where the page lies in mapped, resident memory, return. Nothing is looked up,
//! counted, hashed or remembered; what must leave so that the share of faults stays
//! is dropped between timed stretches. No pager over this mechanism can be faster.
//!
//! Reads in order have a floor of their own: a fault installs a window of pages by one
//! call, and what came first leaves, many pages by one call, within the timed stretch.
//!
//! Random reads and writes are measured once more with the pages that leave within the timed stretch ([`super::bare`]).
//!
//! Written with raw system calls, apart from `farmem-sys`: a floor that shares
//! code with what it is compared with would sink along.

#![allow(unsafe_code)] // userfaultfd by its ABI, a signal handler, and memory that faults.

use farmem_protocol::random::Random;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicI32, AtomicU64, AtomicUsize, Ordering};

use anyhow::{Context, ensure};
use farmem_sys::clock;

use super::array::{Array, WORDS, sampled_word};
use super::faults::{Faults, Meter};
use super::footprint::Footprint;
use super::measure::{self, Phase, Placement, Threads, What};
use super::workload::Outcome;

pub(super) const PAGE: usize = WORDS * 8;
/// Faults between two drops, in which the resident share grows from half of this below `--local` to half of it above:
/// on the average as much is resident as farmem may have, and the share of faults is the same.
const STRETCH: u64 = 2048;
/// Pages that a fault installs when reads are in order, and that leave together: as many as farmem's. More were
/// tried, and win nothing; with 16 a page costs 5 % more.
const WINDOW: usize = 64;
pub(super) const LEAVING: usize = 256;

/// What to do.
#[derive(clap::Args, Debug)]
pub struct Options {
    /// Pages of the array
    #[arg(long)]
    pub(super) pages: usize,
    /// Pages of it that are present
    #[arg(long)]
    pub(super) local: usize,
    /// Random reads
    #[arg(long)]
    pub(super) accesses: usize,
    /// Arrangements of threads
    #[arg(long, value_delimiter = ',')]
    threads: Vec<Threads>,
    /// CPUs of the first and the second thread
    #[arg(long, value_delimiter = ',')]
    cpus: Vec<usize>,
    /// Where every page and word comes from
    #[arg(long)]
    pub(super) seed: u64,
}

/// Measures it.
///
/// # Errors
/// A kernel without userfaultfd or its SIGBUS mode.
pub fn run(options: &Options) -> anyhow::Result<Outcome> {
    clock::calibrate();
    let placement = Placement { cpus: options.cpus.as_slice().try_into().ok() };
    let source = Array::map(options.pages, options.seed).context("mapping the source")?;
    (0..options.pages).for_each(|page| source.fill(page));
    let array = Array::map(options.pages, options.seed).context("mapping the array")?;
    let floor = Floor { options, mechanism: Mechanism::start(&array, &source)?, array, source };
    // A second thread accessing has no floor of its own: the mechanism shares nothing but the kernel's locks.
    let arrangements = options.threads.iter().filter(|&&threads| threads != Threads::Both);
    let mut phases = Vec::new();
    for &threads in arrangements.clone() {
        phases.push(floor.random_read(threads, placement)?);
        phases.push(floor.sequential_read(threads, placement)?);
    }
    for what in [What::PagedRead, What::PagedWrite] {
        for &threads in arrangements.clone() {
            phases.push(floor.paged(what, threads, placement)?);
        }
    }
    Ok(Outcome { phases, totals: Faults::default(), footprint: Footprint::default() })
}

pub(super) struct Floor<'a> {
    pub options: &'a Options,
    pub mechanism: Mechanism,
    pub array: Array,
    /// Where its pages come from.
    pub source: Array,
}

impl Floor<'_> {
    fn random_read(&self, threads: Threads, placement: Placement) -> anyhow::Result<Phase> {
        let pages = self.options.pages;
        let meter = Meter::new(None);
        let before = meter.now();
        let (mut faults, mut asked) = (0, 0);
        // Solo or with a spinner: one thread runs this, and what it counts is handed out through a cell.
        let counted = std::sync::Mutex::new((&mut faults, &mut asked));
        let samples = measure::run(threads, placement, |_, samples, _| {
            let mut draw = Random::new(self.options.seed);
            let mut resident: Vec<u32> = Vec::with_capacity(self.options.local + STRETCH as usize);
            self.mechanism.drop_pages(&self.array, &(0..pages as u32).collect::<Vec<_>>())?;
            let least = self.options.local.saturating_sub(STRETCH as usize / 2);
            while resident.len() < least {
                self.touch(draw.index(pages), &mut resident)?;
            }
            let mut left = self.options.accesses;
            while left > 0 {
                let until = INSTALLED.load(Ordering::Relaxed) + STRETCH;
                let begun = INSTALLED.load(Ordering::Relaxed);
                samples.timed(|samples| {
                    while left > 0 && INSTALLED.load(Ordering::Relaxed) < until {
                        let page = draw.index(pages);
                        let word = sampled_word(self.options.seed, page);
                        let earlier = INSTALLED.load(Ordering::Relaxed);
                        let got = samples.take(|| self.array.read(page, word));
                        ensure!(got == self.array.content(page, word), "page {page} reads wrong");
                        if INSTALLED.load(Ordering::Relaxed) != earlier {
                            resident.push(page as u32);
                        }
                        left -= 1;
                    }
                    Ok(())
                })?;
                *counted.lock().expect("one thread").0 += INSTALLED.load(Ordering::Relaxed) - begun;
                let mut leaving = Vec::new();
                while resident.len() > least {
                    leaving.push(resident.swap_remove(draw.index(resident.len())));
                }
                self.mechanism.drop_pages(&self.array, &leaving)?;
            }
            *counted.lock().expect("one thread").1 += self.options.accesses;
            Ok(())
        })?;
        ensure!(faults > 0 && asked > 0, "no access faulted");
        let mut counts = meter.now().since(&before);
        // The kernel calls these minor; here they are what a fetch is elsewhere.
        counts.major = faults;
        Ok(samples.into_phase(What::RandomRead, threads, counts))
    }

    /// From local memory full of the array's end, as after an earlier pass.
    fn sequential_read(&self, threads: Threads, placement: Placement) -> anyhow::Result<Phase> {
        let (pages, local) = (self.options.pages, self.options.local);
        let meter = Meter::new(None);
        let before = meter.now();
        self.mechanism.drop_range(&self.array, 0..pages)?;
        AT_ONCE.store(WINDOW, Ordering::Relaxed);
        let faults = AtomicU64::new(0);
        let samples = measure::run(threads, placement, |_, samples, _| {
            let read = |page: usize| {
                let word = sampled_word(self.options.seed, page);
                (self.array.read(page, word), self.array.content(page, word))
            };
            for page in pages - local..pages {
                let (got, content) = read(page);
                ensure!(got == content, "page {page} reads wrong");
            }
            // The oldest page that is still there, counted on through the passes.
            let mut oldest = pages - local;
            samples.timed(|samples| {
                for page in 0..pages {
                    let earlier = INSTALLED.load(Ordering::Relaxed);
                    let (got, content) = samples.take(|| read(page));
                    ensure!(got == content, "page {page} reads wrong");
                    if INSTALLED.load(Ordering::Relaxed) == earlier {
                        continue;
                    }
                    faults.fetch_add(1, Ordering::Relaxed);
                    let newest = pages + (page + WINDOW).min(pages);
                    while newest - oldest > local + LEAVING {
                        let from = oldest % pages;
                        let to = (from + LEAVING).min(pages);
                        self.mechanism.drop_range(&self.array, from..to)?;
                        oldest += to - from;
                    }
                }
                Ok(())
            })
        });
        AT_ONCE.store(1, Ordering::Relaxed);
        let mut counts = meter.now().since(&before);
        counts.major = faults.into_inner();
        Ok(samples?.into_phase(What::SequentialRead, threads, counts))
    }

    fn touch(&self, page: usize, resident: &mut Vec<u32>) -> anyhow::Result<()> {
        let earlier = INSTALLED.load(Ordering::Relaxed);
        let word = sampled_word(self.options.seed, page);
        ensure!(self.array.read(page, word) == self.array.content(page, word), "page {page} reads wrong");
        if INSTALLED.load(Ordering::Relaxed) != earlier {
            resident.push(page as u32);
        }
        Ok(())
    }
}

// What the handler needs. A signal handler has no other way to be told.
static DESCRIPTOR: AtomicI32 = AtomicI32::new(-1);
static TARGET: AtomicUsize = AtomicUsize::new(0);
static SOURCE: AtomicUsize = AtomicUsize::new(0);
static END: AtomicUsize = AtomicUsize::new(0);
static AT_ONCE: AtomicUsize = AtomicUsize::new(1);
pub(super) static INSTALLED: AtomicU64 = AtomicU64::new(0);

#[repr(C)]
struct Api {
    api: u64,
    features: u64,
    ioctls: u64,
}
#[repr(C)]
struct Register {
    start: u64,
    len: u64,
    mode: u64,
    ioctls: u64,
}
#[repr(C)]
struct Copy {
    dst: u64,
    src: u64,
    len: u64,
    mode: u64,
    copied: i64,
}
const UFFD_API: u64 = 0xAA;
const UFFDIO_API: u64 = 0xc018_aa3f;
const UFFDIO_REGISTER: u64 = 0xc020_aa00;
const UFFDIO_COPY: u64 = 0xc028_aa03;
const UFFD_USER_MODE_ONLY: i32 = 1;
const UFFD_FEATURE_SIGBUS: u64 = 1 << 7;
const UFFDIO_REGISTER_MODE_MISSING: u64 = 1;
const _: () = assert!(size_of::<Api>() == 0x18 && size_of::<Register>() == 0x20 && size_of::<Copy>() == 0x28);

/// The whole fault path.
unsafe extern "C" fn install(_signal: libc::c_int, info: *mut libc::siginfo_t, _context: *mut libc::c_void) {
    // SAFETY: SA_SIGINFO: the kernel passes a valid siginfo; SIGBUS carries an address.
    let page = unsafe { (*info).si_addr() } as usize & !(PAGE - 1);
    let source = SOURCE.load(Ordering::Relaxed) + page.wrapping_sub(TARGET.load(Ordering::Relaxed));
    let room = END.load(Ordering::Relaxed).wrapping_sub(page);
    let len = (AT_ONCE.load(Ordering::Relaxed) * PAGE).min(room);
    let mut copy = Copy { dst: page as u64, src: source as u64, len: len as u64, mode: 0, copied: 0 };
    // SAFETY: `copy` is live and laid out as the kernel's uffdio_copy. Outside the array the ioctl fails.
    if unsafe { libc::ioctl(DESCRIPTOR.load(Ordering::Relaxed), UFFDIO_COPY as libc::Ioctl, &mut copy) } != 0 {
        // SAFETY: async-signal-safe; a SIGBUS that is not ours has no other end.
        unsafe { libc::_exit(70) };
    }
    INSTALLED.fetch_add(1, Ordering::Relaxed);
}

pub(super) struct Mechanism {
    /// This process, to the kernel.
    pub own: i64,
    /// For pages that leave: where they are read, and where they come in.
    pub pipe: [i32; 2],
}

impl Mechanism {
    fn start(array: &Array, source: &Array) -> anyhow::Result<Mechanism> {
        // SAFETY: no pointers.
        let descriptor =
            unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC | libc::O_NONBLOCK | UFFD_USER_MODE_ONLY) };
        ensure!(descriptor >= 0, "userfaultfd: {}", io::Error::last_os_error());
        DESCRIPTOR.store(descriptor as i32, Ordering::Relaxed);
        TARGET.store(array.address(), Ordering::Relaxed);
        END.store(array.address() + array.pages() * PAGE, Ordering::Relaxed);
        SOURCE.store(source.address(), Ordering::Relaxed);
        let mut api = Api { api: UFFD_API, features: UFFD_FEATURE_SIGBUS, ioctls: 0 };
        let mut pipe = [0; 2];
        // SAFETY: `api` is live and laid out as the kernel's. The handler is async-signal-safe, and zero is a valid sigaction.
        let own = unsafe {
            let agreed = libc::ioctl(descriptor as i32, UFFDIO_API as libc::Ioctl, &mut api) == 0;
            ensure!(agreed, "userfaultfd without SIGBUS mode: {}", io::Error::last_os_error());
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = install as unsafe extern "C" fn(_, _, _) as usize;
            action.sa_flags = libc::SA_SIGINFO;
            libc::sigaction(libc::SIGBUS, &action, std::ptr::null_mut());
            let made = libc::pipe2(pipe.as_mut_ptr(), libc::O_CLOEXEC) == 0
                && libc::fcntl(pipe[1], libc::F_SETPIPE_SZ, LEAVING * PAGE) >= 0;
            ensure!(made, "a pipe for pages that leave: {}", io::Error::last_os_error());
            libc::syscall(libc::SYS_pidfd_open, libc::getpid(), 0)
        };
        let mechanism = Mechanism { own, pipe };
        mechanism.register(array)?;
        Ok(mechanism)
    }

    /// The array's absent pages fault from now on.
    fn register(&self, array: &Array) -> anyhow::Result<()> {
        let (start, len) = (array.address() as u64, (array.pages() * PAGE) as u64);
        let mode = UFFDIO_REGISTER_MODE_MISSING;
        self.ioctl(UFFDIO_REGISTER, &mut Register { start, len, mode, ioctls: 0 }, "registering the array")
    }

    fn ioctl<T>(&self, request: u64, of: &mut T, doing: &str) -> anyhow::Result<()> {
        // SAFETY: `of` is live and laid out as the kernel's (sizes asserted above); its range is the array's own.
        let done = unsafe { libc::ioctl(DESCRIPTOR.load(Ordering::Relaxed), request as libc::Ioctl, of) } == 0;
        ensure!(done, "{doing}: {}", io::Error::last_os_error());
        Ok(())
    }

    pub fn drop_pages(&self, array: &Array, pages: &[u32]) -> anyhow::Result<()> {
        pages.iter().try_for_each(|&page| self.drop_range(array, page as usize..page as usize + 1))
    }

    pub fn drop_range(&self, array: &Array, pages: Range<usize>) -> anyhow::Result<()> {
        let address = array.address() + pages.start * PAGE;
        // SAFETY: pages of the array, which the source still has.
        let dropped = unsafe { libc::madvise(address as *mut libc::c_void, pages.len() * PAGE, libc::MADV_DONTNEED) };
        ensure!(dropped == 0, "dropping pages: {}", io::Error::last_os_error());
        Ok(())
    }
}
