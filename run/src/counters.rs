//! The counters of a run, in a file that several processes map.
//!
//! `farmem run` creates one [`File`] per run. The runtime in each process of the run claims one
//! [`Process`] slot by writing its pid into it (CAS from 0), and counts there with relaxed atomics.
//! `farmem run` (summary), `farmem top` and `--stats json` read. Readers and writers do not wait
//! for each other: a reader sees counters that are each correct, but not of exactly one moment.
//!
//! A slot outlives its process, so that the summary counts children that have
//! ended; a slot is reused only when none is free, by folding it into the last.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// First word of a counters file: `farmem` and the layout's version.
pub const MAGIC: u64 = u64::from_le_bytes(*b"farmem\x00\x0b");
/// Process slots in a counters file.
pub const PROCESSES: usize = 64;
/// Words of the text of a run's nodes: room for 64 with domains of 40 bytes.
pub const ROSTER_WORDS: usize = 512;
/// Near programs that a counters file names; others are counted together.
pub const NEAR_PROGRAMS: usize = 16;

/// A counters file.
#[repr(C)]
pub struct File {
    /// [`MAGIC`].
    pub magic: AtomicU64,
    /// Pid of `farmem run`.
    pub supervisor: AtomicU32,
    _pad: AtomicU32,
    /// Unix time at which the run began, ns.
    pub started_ns: AtomicU64,
    /// `--local`, bytes.
    pub local_limit: AtomicU64,
    /// Command line of the program, UTF-8, zero padded.
    pub command: [AtomicU64; 32],
    /// Node addresses, comma separated, UTF-8, zero padded.
    pub nodes: [AtomicU64; 16],
    /// Twice the number of changes of the run's nodes. It is odd while `roster` is being written.
    pub roster_changes: AtomicU64,
    /// The nodes since the last change, as addresses that need no resolver with their failure
    /// domains, comma separated.
    pub roster: [AtomicU64; ROSTER_WORDS],
    /// How the run ended when the runtime ended it: the one line that was printed, zero padded.
    pub last_words: [AtomicU64; 64],
    /// Programs of the run that have no far memory.
    pub near: [NearProgram; NEAR_PROGRAMS],
    /// Executions of near programs for which `near` had no room.
    pub near_others: AtomicU64,
    /// One per process of the run.
    pub processes: [Process; PROCESSES],
}

/// Why a program of a run has no far memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Near {
    /// It is linked statically: no loader, so nothing loads the library.
    Static = 1,
    /// Executing it changes its user, group or capabilities: the loader ignores the library.
    Privileged = 2,
    /// It is a 32-bit program, or another processor's.
    Machine = 3,
    /// Another C library's loader loads it.
    Loader = 4,
    /// It runs as another user, and may not open the run's library or its node's socket.
    User = 5,
    /// Something between it and the kernel keeps userfaultfd from it: an emulator, a sandbox.
    Kernel = 6,
}

impl Near {
    /// All of them.
    pub const ALL: [Near; 6] = [Near::Static, Near::Privileged, Near::Machine, Near::Loader, Near::User, Near::Kernel];

    /// As a summary says it.
    pub fn name(self) -> &'static str {
        match self {
            Near::Static => "static",
            Near::Privileged => "set-user-ID",
            Near::Machine => "not x86-64",
            Near::Loader => "not glibc",
            Near::User => "another user",
            Near::Kernel => "no userfaultfd",
        }
    }
}

/// A program that ran near, and how often.
///
/// A writer owns an entry once it has changed `why` from 0 to [`NearProgram::BEING_WRITTEN`]. It
/// then writes the name, and publishes both by a second store to `why` (Release). Entries are never
/// freed.
#[repr(C)]
pub struct NearProgram {
    /// A [`Near`] as a number, 0 where the entry is free.
    pub why: AtomicU32,
    /// How often it was executed.
    pub times: AtomicU32,
    /// Its file's name, UTF-8, zero padded.
    pub name: [AtomicU64; 7],
}

impl NearProgram {
    const BEING_WRITTEN: u32 = u32::MAX;

    /// Counts the program if the entry is its own, or is free and can be taken. Returns whether it
    /// did.
    fn takes(&self, name: &[u64; 7], why: Near) -> bool {
        let free = self.why.compare_exchange(0, Self::BEING_WRITTEN, Ordering::Acquire, Ordering::Acquire);
        match free {
            Ok(_) => {
                self.name.iter().zip(name).for_each(|(to, &word)| to.store(word, Ordering::Relaxed));
                self.why.store(why as u32, Ordering::Release);
            }
            Err(taken) if taken == why as u32 => {
                if self.name.iter().zip(name).any(|(has, &word)| has.load(Ordering::Relaxed) != word) {
                    return false;
                }
            }
            Err(_) => return false,
        }
        self.times.fetch_add(1, Ordering::Relaxed);
        true
    }
}

impl File {
    /// Notes that a program is about to run near. The returned counter takes it back
    /// ([`AtomicU32::fetch_sub`]) if the program does not start. No allocation, no lock: for the
    /// runtime, also between vfork and exec.
    pub fn note_near(&self, name: &[u8], why: Near) -> Option<&AtomicU32> {
        let mut words = [0u64; 7];
        for (word, bytes) in words.iter_mut().zip(name.chunks(8)) {
            let mut le = [0; 8];
            le[..bytes.len()].copy_from_slice(bytes);
            *word = u64::from_le_bytes(le);
        }
        let entry = self.near.iter().find(|entry| entry.takes(&words, why));
        if entry.is_none() {
            self.near_others.fetch_add(1, Ordering::Relaxed);
        }
        entry.map(|entry| &entry.times)
    }
}

/// The counters of one process. All monotonic but those marked *level*.
#[repr(C, align(64))]
pub struct Process {
    /// Pid, 0 when the slot is free. Stays after the process has ended.
    pub pid: AtomicU32,
    /// `1` while faults are served inline, `2` for the handler thread.
    pub mode: AtomicU32,
    /// Served faults, one of six kinds: a first touch of fresh memory. A fault is an access to a
    /// page that is absent or protected, by the program itself or by a system call on its behalf.
    /// All faults are the sum of the six.
    pub first_touch: AtomicU64,
    /// … a page fetched from a node while the program waited.
    pub demand: AtomicU64,
    /// … a page that was still staged on its way out: no fabric operation.
    pub rescued: AtomicU64,
    /// … the first write to a page that had arrived clean.
    pub upgrades: AtomicU64,
    /// … a page that another thread brought in meanwhile.
    pub joined: AtomicU64,
    /// … an address at which the program has mapped nothing: the kernel's answer stands.
    pub unmapped: AtomicU64,
    /// Pages installed ahead of their fault.
    pub prefetched: AtomicU64,
    /// Of these, in windows behind which the program went on: presumed used.
    pub prefetch_used: AtomicU64,
    /// Windows named.
    pub prefetch_windows: AtomicU64,
    /// Pages brought in because the program said that it will use them.
    pub hinted: AtomicU64,
    /// Pages that left because the program told them to.
    pub paged_out: AtomicU64,
    /// Pages that left local memory.
    pub evicted: AtomicU64,
    /// … of which clean: dropped without a transfer.
    pub evicted_clean: AtomicU64,
    /// Eviction batches (one TLB flush each).
    pub evict_batches: AtomicU64,
    /// Pages that were held by reference, and read when their mapping was gone.
    pub held: AtomicU64,
    /// Calls that write-protected dirty pages on their way out, where they could not be held.
    pub protecting_calls: AtomicU64,
    /// Pages that a faulting thread evicted because there was no room.
    pub reclaimed_inline: AtomicU64,
    /// Bytes read from nodes.
    pub bytes_in: AtomicU64,
    /// Bytes written to nodes.
    pub bytes_out: AtomicU64,
    /// Lines found changed on pages that left, where the policy tells lines
    /// ([`farmem_protocol::lines`]).
    pub lines_changed: AtomicU64,
    /// Lines that went to their slots one by one.
    pub lines_sent: AtomicU64,
    /// Pages that went whole: fresh, changed for the most part, or of unknown lines.
    pub pages_whole: AtomicU64,
    /// Pages whose lines a node refused, since they are others than they were taken for: they went
    /// whole after that.
    pub pages_refused: AtomicU64,
    /// Nodes that were lost, while the process went on: it had no page there alone, or their memory
    /// stayed mapped.
    pub nodes_lost: AtomicU64,
    /// Records of lines posted.
    pub records: AtomicU64,
    /// Bytes handed to the network for write-back, with all heads of farmem's; not shm.
    pub wire_out: AtomicU64,
    /// Time that threads of the program spent in the fault path, ns.
    pub wait_ns: AtomicU64,
    /// … of that, in faults on sampled pages and in their eviction (`farmem size`).
    pub sampling_ns: AtomicU64,
    /// System calls guarded: some argument was far.
    pub syscalls_guarded: AtomicU64,
    /// … of which caught by the seccomp filter, the slow way.
    pub syscalls_trapped: AtomicU64,
    /// … of a number that the table does not know.
    pub syscalls_unknown: AtomicU64,
    /// Level: resident far bytes.
    pub local_bytes: AtomicU64,
    /// Peak of `local_bytes`.
    pub local_peak: AtomicU64,
    /// Level: the part of `local_bytes` that the program's far objects hold.
    pub objects_bytes: AtomicU64,
    /// Peak of `objects_bytes`.
    pub objects_peak: AtomicU64,
    /// Level: bytes held in far slots.
    pub far_bytes: AtomicU64,
    /// Peak of `far_bytes`.
    pub far_peak: AtomicU64,
    /// Level: far memory the program has mapped, bytes.
    pub mapped_bytes: AtomicU64,
    /// Level: memory of the runtime itself, bytes.
    pub runtime_bytes: AtomicU64,
    /// Level: far memory that has one copy where two were asked for, in whole slabs, bytes.
    pub single_bytes: AtomicU64,
    /// Level: far memory of which both copies are in one failure domain, in whole slabs, bytes.
    pub together_bytes: AtomicU64,
    /// Bytes that repair has copied.
    pub repaired_bytes: AtomicU64,
    /// Level: 1 while repair copies slower than it could, because fetches take longer.
    pub repair_slowed: AtomicU64,
    /// Latency of demand faults, in ns.
    pub latency: Histogram,
}

/// A histogram of nanoseconds: 4 buckets per power of two, error below 13 %.
#[repr(C)]
pub struct Histogram {
    buckets: [AtomicU64; 160],
}

impl Default for Histogram {
    /// Nothing was counted.
    fn default() -> Histogram {
        Histogram { buckets: std::array::from_fn(|_| AtomicU64::new(0)) }
    }
}

impl Histogram {
    fn bucket_of(ns: u64) -> usize {
        if ns < 4 {
            return ns as usize;
        }
        let exponent = 63 - ns.leading_zeros();
        let quarter = (ns >> (exponent - 2)) & 3;
        (((exponent - 1) * 4) as usize + quarter as usize).min(159)
    }

    /// The smallest value that falls into a bucket.
    pub fn bucket_floor(bucket: usize) -> u64 {
        if bucket < 4 {
            return bucket as u64;
        }
        let exponent = bucket as u64 / 4 + 1;
        (4 + bucket as u64 % 4) << (exponent - 2)
    }

    /// Counts one value.
    #[inline]
    pub fn record(&self, ns: u64) {
        self.buckets[Self::bucket_of(ns)].fetch_add(1, Ordering::Relaxed);
    }

    /// The counts, for readers that add up several processes or subtract samples.
    pub fn snapshot(&self) -> [u64; 160] {
        std::array::from_fn(|i| self.buckets[i].load(Ordering::Relaxed))
    }
}

/// The value below which `share` (0–1) of a snapshot's counts lie; 0 when empty.
pub fn percentile(counts: &[u64; 160], share: f64) -> u64 {
    let total: u64 = counts.iter().sum();
    let mut left = (total as f64 * share).ceil() as u64;
    for (bucket, &n) in counts.iter().enumerate() {
        if n >= left && n > 0 {
            return Histogram::bucket_floor(bucket);
        }
        left = left.saturating_sub(n);
    }
    0
}

/// Writes text into a zero-padded field, cutting it at the field's end.
pub fn put_text(field: &[AtomicU64], text: &str) {
    let mut bytes = text.as_bytes().chunks(8);
    for word in field {
        let mut le = [0; 8];
        if let Some(chunk) = bytes.next() {
            le[..chunk.len()].copy_from_slice(chunk);
        }
        word.store(u64::from_le_bytes(le), Ordering::Relaxed);
    }
}

/// Reads what [`put_text`] wrote.
pub fn get_text(field: &[AtomicU64]) -> String {
    let bytes: Vec<u8> =
        field.iter().flat_map(|w| w.load(Ordering::Relaxed).to_le_bytes()).take_while(|&b| b != 0).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

impl File {
    /// The nodes after the last change, and the change's number. `None` if that change was `seen`,
    /// or one is being written.
    pub fn roster(&self, seen: u64) -> Option<(u64, String)> {
        let change = self.roster_changes.load(Ordering::Acquire);
        if change == seen || !change.is_multiple_of(2) {
            return None;
        }
        let nodes = get_text(&self.roster);
        std::sync::atomic::fence(Ordering::Acquire);
        (self.roster_changes.load(Ordering::Relaxed) == change).then_some((change, nodes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_falls_into_the_bucket_whose_floor_is_below_it() {
        for ns in [0, 1, 3, 4, 5, 7, 8, 1000, 5_000, 123_456_789] {
            let bucket = Histogram::bucket_of(ns);
            assert!(Histogram::bucket_floor(bucket) <= ns, "{ns}");
            assert!(ns < Histogram::bucket_floor(bucket + 1), "{ns}");
        }
    }

    #[test]
    fn near_programs_are_noted_once_each() {
        let entry = || NearProgram { why: AtomicU32::new(0), times: AtomicU32::new(0), name: Default::default() };
        let entries: [NearProgram; 3] = std::array::from_fn(|_| entry());
        let words = |name: &str| {
            let field: [AtomicU64; 7] = Default::default();
            put_text(&field, name);
            field.map(AtomicU64::into_inner)
        };
        let note = |name: &str, why| entries.iter().position(|entry| entry.takes(&words(name), why));
        assert_eq!(note("busybox", Near::Static), Some(0));
        assert_eq!(note("sudo", Near::Privileged), Some(1));
        assert_eq!(note("busybox", Near::Static), Some(0));
        assert_eq!(note("busybox", Near::User), Some(2), "the same name for another reason");
        assert_eq!(note("hello", Near::Static), None, "no room is left");
        assert_eq!(entries.each_ref().map(|entry| entry.times.load(Ordering::Relaxed)), [2, 1, 1]);
        assert_eq!(get_text(&entries[1].name), "sudo");
    }

    #[test]
    fn text_survives_its_field() {
        let field: [AtomicU64; 4] = Default::default();
        put_text(&field, "redis-server --port 0");
        assert_eq!(get_text(&field), "redis-server --port 0");
    }
}
