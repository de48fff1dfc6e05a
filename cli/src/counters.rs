//! Reading and making counters files without mapping them.
//!
//! The runtime maps the file and counts in it; here it is read whole, once a
//! sample: a copy cannot be cut short under the reader (a mapping of a truncated
//! file is a SIGBUS), and needs no unsafe. Words are copied whole, so that each
//! counter is right; together they are nearly of one moment.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::mem::{offset_of, size_of};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::AtomicU64;

use farmem_protocol::wire::text::printable;
use farmem_run::counters::{self, MAGIC, NEAR_PROGRAMS, NearProgram, PROCESSES, ROSTER_WORDS, percentile};
use serde::Serialize;

/// Declares the plain form of [`counters::Process`]: its counters, by their own names.
macro_rules! plain_counters {
    ($(#[doc = $doc:literal] $field:ident,)*) => {
        /// The counters of one process, or of several added up. Names as in [`counters::Process`].
        #[derive(Clone, Copy, Default, Serialize)]
        pub struct Counts { $(#[doc = $doc] pub $field: u64,)* }

        impl Counts {
            fn read(words: &Words<'_>, process: usize) -> Self {
                Counts { $($field: words.at(process + offset_of!(counters::Process, $field)),)* }
            }

            /// Adds another process's counters to these.
            pub fn add(&mut self, other: &Counts) { $(self.$field += other.$field;)* }

            /// The counts since an earlier sample. Levels go both ways; a fall is shown as zero.
            pub fn since(&self, earlier: &Counts) -> Counts {
                Counts { $($field: self.$field.saturating_sub(earlier.$field),)* }
            }
        }
    };
}

plain_counters! {
    /// First touches.
    first_touch,
    /// Pages fetched while the program waited.
    demand,
    /// Faults on pages that were still on their way out.
    rescued,
    /// First writes to clean pages.
    upgrades,
    /// Faults on pages that another thread brought in meanwhile.
    joined,
    /// Faults at addresses where nothing is mapped.
    unmapped,
    /// Pages installed ahead.
    prefetched,
    /// Of these, pages presumed used: the program went on behind their window.
    prefetch_used,
    /// Windows of pages to fetch ahead.
    prefetch_windows,
    /// Pages brought in by hints.
    hinted,
    /// Pages sent away by hints.
    paged_out,
    /// Pages that left.
    evicted,
    /// … clean.
    evicted_clean,
    /// Batches of eviction.
    evict_batches,
    /// Pages held by reference on their way out.
    held,
    /// Calls that protected dirty pages.
    protecting_calls,
    /// Pages evicted by faulting threads.
    reclaimed_inline,
    /// Bytes from nodes.
    bytes_in,
    /// Bytes to nodes.
    bytes_out,
    /// Lines found changed.
    lines_changed,
    /// Lines written back by themselves.
    lines_sent,
    /// Pages written back whole.
    pages_whole,
    /// … because a node refused their lines.
    pages_refused,
    /// Nodes lost without an end.
    nodes_lost,
    /// Records of lines sent to nodes.
    records,
    /// Bytes on the wire for write-back.
    wire_out,
    /// Time in the fault path, ns.
    wait_ns,
    /// … on sampled pages.
    sampling_ns,
    /// Guarded calls.
    syscalls_guarded,
    /// … by the filter.
    syscalls_trapped,
    /// … unknown.
    syscalls_unknown,
    /// Resident far bytes now.
    local_bytes,
    /// … at most.
    local_peak,
    /// … of far objects.
    objects_bytes,
    /// … at most.
    objects_peak,
    /// Bytes in far slots now.
    far_bytes,
    /// … at most.
    far_peak,
    /// Far memory mapped now.
    mapped_bytes,
    /// The runtime's own memory now.
    runtime_bytes,
    /// Far memory with one copy where two were asked for, now.
    single_bytes,
    /// Far memory of which both copies are in one failure domain, now.
    together_bytes,
    /// Bytes copied by repair.
    repaired_bytes,
    /// Processes whose repair is slowed down, now.
    repair_slowed,
}

impl Counts {
    /// All faults served: of every kind that is counted.
    pub fn faults(&self) -> u64 {
        self.first_touch + self.demand + self.rescued + self.upgrades + self.joined + self.unmapped
    }

    /// Far pages that the program came back to: fetched, rescued, or there ahead of it.
    pub fn returns(&self) -> u64 {
        self.demand + self.rescued + self.prefetch_used
    }

    /// … of which it waited for no node.
    pub fn hits(&self) -> u64 {
        self.rescued + self.prefetch_used
    }

    /// Of the pages fetched ahead, the share presumed used, 0–1. The use of a local page cannot be
    /// seen, but that the program went on behind a window can. `None`: none was fetched ahead.
    pub fn prefetch_accuracy(&self) -> Option<f64> {
        (self.prefetched > 0).then(|| self.prefetch_used as f64 / self.prefetched as f64)
    }

    /// Of the fetches that there would have been without prefetch, the share that it spared, 0–1.
    pub fn prefetch_coverage(&self) -> Option<f64> {
        let fetches = self.demand + self.prefetch_used;
        (fetches > 0).then(|| self.prefetch_used as f64 / fetches as f64)
    }
}

/// One process of a run.
pub struct Process {
    /// Its pid; it may have ended.
    pub pid: u32,
    /// Whether its pager has started. It has not if the runtime ended the process before `main`.
    pub started: bool,
    /// Whether its faults go to a handler thread.
    pub by_thread: bool,
    /// Its counts.
    pub counts: Counts,
    /// Latencies of its demand faults.
    pub latency: [u64; 160],
}

/// A program of a run that had no far memory.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Near {
    /// Its file's name.
    pub program: String,
    /// Why: [`counters::Near::name`].
    pub why: &'static str,
    /// How often it was executed.
    pub times: u32,
}

/// A run at one moment.
pub struct Sample {
    /// Pid of its supervisor.
    pub supervisor: u32,
    /// Unix time of its start, ns.
    pub started_ns: u64,
    /// `--local`, bytes.
    pub local_limit: u64,
    /// The program's command line, perhaps cut.
    pub command: String,
    /// Node addresses.
    pub nodes: String,
    /// The line with which the runtime ended a process; empty if it did not.
    pub last_words: String,
    /// Its programs without far memory.
    pub near: Vec<Near>,
    /// Executions of programs without far memory that found no room in `near`.
    pub near_others: u64,
    /// Every process that the runtime was ever in.
    pub processes: Vec<Process>,
}

impl Sample {
    /// Reads a counters file.
    pub fn read(path: &Path) -> io::Result<Sample> {
        let file = OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path)?;
        if !file.metadata()?.is_file() {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let mut bytes = vec![0; size_of::<counters::File>()];
        file.read_exact_at(&mut bytes, 0)?;
        let words = Words(&bytes);
        if words.at(offset_of!(counters::File, magic)) != MAGIC {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let processes = (0..PROCESSES)
            .map(|i| offset_of!(counters::File, processes) + i * size_of::<counters::Process>())
            .filter(|&at| words.half(at + offset_of!(counters::Process, pid)) != 0)
            .map(|at| Process {
                pid: words.half(at + offset_of!(counters::Process, pid)),
                started: words.half(at + offset_of!(counters::Process, mode)) != 0,
                by_thread: words.half(at + offset_of!(counters::Process, mode)) == 2,
                counts: Counts::read(&words, at),
                latency: std::array::from_fn(|i| words.at(at + offset_of!(counters::Process, latency) + i * 8)),
            })
            .collect();
        let near = (0..NEAR_PROGRAMS)
            .map(|i| offset_of!(counters::File, near) + i * size_of::<NearProgram>())
            .filter_map(|at| words.near(at))
            .collect();
        Ok(Sample {
            supervisor: words.half(offset_of!(counters::File, supervisor)),
            started_ns: words.at(offset_of!(counters::File, started_ns)),
            local_limit: words.at(offset_of!(counters::File, local_limit)),
            command: words.text(offset_of!(counters::File, command), 32),
            nodes: words.text(offset_of!(counters::File, nodes), 16),
            last_words: words.text(offset_of!(counters::File, last_words), 64),
            near,
            near_others: words.at(offset_of!(counters::File, near_others)),
            processes,
        })
    }

    /// All processes' counters, added up. A sum of peaks is not the run's peak: see [`Peaks`].
    pub fn total(&self) -> Counts {
        let mut total = Counts::default();
        self.processes.iter().for_each(|process| total.add(&process.counts));
        total
    }

    /// All processes' demand latencies.
    pub fn latency(&self) -> [u64; 160] {
        std::array::from_fn(|i| self.processes.iter().map(|process| process.latency[i]).sum())
    }
}

/// The most memory that a run held at once.
#[derive(Clone, Copy, Default, Serialize)]
pub struct Peaks {
    /// Resident far bytes of the process that had most: `--local` limits each.
    pub local: u64,
    /// Bytes in far slots, all processes together.
    pub far: u64,
    /// The runtime's own memory in the process where it took most.
    pub runtime: u64,
}

impl Peaks {
    /// Takes a sample into account.
    ///
    /// Processes keep their own peaks, which need not fall together: their sum is too much for
    /// processes that followed each other, their greatest too little for those side by side. The
    /// sum of levels, sampled, corrects the latter.
    pub fn note(&mut self, sample: &Sample) {
        let greatest = |of: fn(&Counts) -> u64| sample.processes.iter().map(|p| of(&p.counts)).max().unwrap_or(0);
        self.local = self.local.max(greatest(|c| c.local_peak));
        self.runtime = self.runtime.max(greatest(|c| c.runtime_bytes));
        self.far = self.far.max(sample.total().far_bytes).max(greatest(|c| c.far_peak));
    }
}

/// Latency of demand faults: points of the distribution, ns.
#[derive(Clone, Copy, Serialize)]
pub struct Latency {
    /// Half were faster.
    pub p50: u64,
    /// Nine of ten were faster.
    pub p90: u64,
    /// 99 of 100 were faster.
    pub p99: u64,
    /// 999 of 1000 were faster.
    pub p999: u64,
}

impl Latency {
    /// From counts as [`Sample::latency`] gives them.
    pub fn of(histogram: &[u64; 160]) -> Self {
        let at = |share| percentile(histogram, share);
        Latency { p50: at(0.5), p90: at(0.9), p99: at(0.99), p999: at(0.999) }
    }
}

/// The facts of a run at its beginning.
pub struct Beginning<'a> {
    /// Pid of the supervisor.
    pub supervisor: u32,
    /// Unix time, ns.
    pub started_ns: u64,
    /// `--local`, bytes.
    pub local_limit: u64,
    /// The program's command line.
    pub command: &'a str,
    /// Node addresses, comma separated.
    pub nodes: &'a str,
}

/// Makes a counters file for a run. Fails if it exists.
pub fn create(path: &Path, beginning: &Beginning<'_>) -> io::Result<()> {
    let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(path)?;
    file.set_len(size_of::<counters::File>() as u64)?;
    let put = |at: usize, bytes: &[u8]| file.write_all_at(bytes, at as u64);
    put(offset_of!(counters::File, supervisor), &beginning.supervisor.to_le_bytes())?;
    put(offset_of!(counters::File, started_ns), &beginning.started_ns.to_le_bytes())?;
    put(offset_of!(counters::File, local_limit), &beginning.local_limit.to_le_bytes())?;
    put(offset_of!(counters::File, command), fitted(beginning.command, 32))?;
    put(offset_of!(counters::File, nodes), fitted(beginning.nodes, 16))?;
    // The magic last: a reader takes the file for a run only from here on.
    put(offset_of!(counters::File, magic), &MAGIC.to_le_bytes())
}

/// Hands a run over to another supervisor.
pub fn hand_over(path: &Path, supervisor: u32) -> io::Result<()> {
    let file: File = fs::OpenOptions::new().write(true).open(path)?;
    file.write_all_at(&supervisor.to_le_bytes(), offset_of!(counters::File, supervisor) as u64)
}

/// Tells the processes of a run its nodes from now on.
///
/// # Errors
/// The file cannot be mapped, or the list is too long for it.
pub fn tell_roster(path: &Path, nodes: &str) -> io::Result<()> {
    let file = fs::OpenOptions::new().read(true).write(true).open(path)?;
    if nodes.len() > size_of::<[AtomicU64; ROSTER_WORDS]>() {
        return Err(io::Error::other("the list is longer than 4096 bytes"));
    }
    // Processes that look meanwhile find an odd number. The only writer is the run's supervisor.
    let mut word = [0; 8];
    file.read_exact_at(&mut word, offset_of!(counters::File, roster_changes) as u64)?;
    let before = u64::from_le_bytes(word);
    let change = |now: u64| file.write_all_at(&now.to_le_bytes(), offset_of!(counters::File, roster_changes) as u64);
    change(before + 1)?;
    let mut text = [0; size_of::<[AtomicU64; ROSTER_WORDS]>()];
    text[..nodes.len()].copy_from_slice(nodes.as_bytes());
    file.write_all_at(&text, offset_of!(counters::File, roster) as u64)?;
    change(before + 2)
}

/// As much of a text as a field of `words` words holds, cut between characters.
fn fitted(text: &str, words: usize) -> &[u8] {
    &text.as_bytes()[..text.floor_char_boundary(words * size_of::<AtomicU64>())]
}

/// The bytes of a file, read at the offsets of its layout.
struct Words<'a>(&'a [u8]);

impl Words<'_> {
    fn at(&self, offset: usize) -> u64 {
        u64::from_le_bytes(self.0[offset..offset + 8].try_into().expect("eight bytes"))
    }

    fn half(&self, offset: usize) -> u32 {
        u32::from_le_bytes(self.0[offset..offset + 4].try_into().expect("four bytes"))
    }

    fn near(&self, at: usize) -> Option<Near> {
        let why = self.half(at + offset_of!(NearProgram, why));
        let why = counters::Near::ALL.into_iter().find(|&near| near as u32 == why)?.name();
        let times = self.half(at + offset_of!(NearProgram, times));
        (times > 0).then(|| Near { program: self.text(at + offset_of!(NearProgram, name), 7), why, times })
    }

    fn text(&self, offset: usize, words: usize) -> String {
        let field = &self.0[offset..offset + words * 8];
        let end = field.iter().position(|&b| b == 0).unwrap_or(field.len());
        // A hostile command line must not draw on the terminal of whoever looks at it.
        printable(&String::from_utf8_lossy(&field[..end]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_reads_as_it_was_begun() {
        let path = std::env::temp_dir().join(format!("farmem-counters-{}", std::process::id()));
        let long = "ü".repeat(200);
        let beginning =
            Beginning { supervisor: 7, started_ns: 8, local_limit: 9, command: &long, nodes: "unix:/tmp/a\u{1b}[2J" };
        create(&path, &beginning).unwrap();
        assert!(create(&path, &beginning).is_err());
        let sample = Sample::read(&path).unwrap();
        assert_eq!((sample.supervisor, sample.started_ns, sample.local_limit), (7, 8, 9));
        assert_eq!(sample.command, "ü".repeat(128));
        assert_eq!(sample.nodes, "unix:/tmp/a?[2J");
        assert!(sample.processes.is_empty());

        let pid = offset_of!(counters::File, processes) + size_of::<counters::Process>();
        let file = OpenOptions::new().write(true).open(&path).unwrap();
        file.write_all_at(&42u32.to_le_bytes(), pid as u64).unwrap();
        file.write_all_at(&5u64.to_le_bytes(), (pid + offset_of!(counters::Process, demand)) as u64).unwrap();
        hand_over(&path, 11).unwrap();
        let sample = Sample::read(&path).unwrap();
        assert_eq!((sample.supervisor, sample.processes[0].pid, sample.total().demand), (11, 42, 5));

        fs::write(&path, b"short").unwrap();
        assert!(Sample::read(&path).is_err());
        fs::remove_file(&path).unwrap();
    }
}
