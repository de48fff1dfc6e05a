//! Page traces: which pages a thread touched, in order, in two or three bytes each.
//!
//! ```text
//! header   "farmemPT" version:1 (= 1)
//! record   varint( zigzag(page - the thread's last page) << 3 | again << 2 | kind )   7 bits a byte, low first
//!          `again` clear: followed by varint(thread); set: the thread of the record before
//! ```
//!
//! A record whose `kind` is Touch is an access; the pager, which sees only
//! faults, writes the other kinds. A reader stops at the end of whole
//! records, so a trace cut off by a kill is readable up to there.

use farmem_protocol::addr::PageId;

/// First bytes of a trace.
pub const HEADER: [u8; 9] = *b"farmemPT\x01";

/// First bytes of a trace of sampled pages ([`crate::sample`]). A Touch record in it is no use of a
/// page: its page number is the shift of the rate from there on.
pub const SAMPLED_HEADER: [u8; 9] = *b"farmemPS\x01";

/// Bytes a record takes at most.
pub const RECORD_BYTES: usize = 20;

/// Threads that are told apart; more share names.
const THREADS: usize = 64;

/// The event of a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// The program read or wrote it (instruments see this; the pager does not).
    Touch,
    /// It faulted, and was remote or staged.
    Fault,
    /// It faulted, and was fresh.
    Fresh,
    /// It was unmapped.
    Gone,
}

/// One record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Record {
    /// Which page.
    pub page: PageId,
    /// The event.
    pub kind: Kind,
    /// By whom; small numbers.
    pub thread: u32,
}

/// The values that a record is encoded against; both ends keep the same.
#[derive(Clone)]
struct Past {
    last: [u64; THREADS],
    thread: u32,
}

impl Past {
    fn new() -> Past {
        Past { last: [0; THREADS], thread: 0 }
    }

    fn last(&mut self, thread: u32) -> &mut u64 {
        &mut self.last[thread as usize % THREADS]
    }
}

/// Turns records into bytes.
pub struct Encoder {
    past: Past,
}

impl Encoder {
    /// At the start of a trace, after [`HEADER`].
    #[allow(clippy::new_without_default)]
    pub fn new() -> Encoder {
        Encoder { past: Past::new() }
    }

    /// Writes a record to the front of `to`, and says how many bytes it took.
    pub fn encode(&mut self, record: Record, to: &mut [u8; RECORD_BYTES]) -> usize {
        let last = self.past.last(record.thread);
        // Pages have fewer than 58 bits: the difference keeps its sign after three bits of flags.
        let step = record.page.0.wrapping_sub(*last) as i64;
        *last = record.page.0;
        let again = record.thread == self.past.thread;
        self.past.thread = record.thread;
        let zigzag = (step << 1 ^ step >> 63) as u64;
        let mut n = put(zigzag << 3 | (again as u64) << 2 | record.kind as u64, to, 0);
        if !again {
            n = put(record.thread as u64, to, n);
        }
        n
    }
}

/// Turns bytes into records.
pub struct Decoder {
    past: Past,
}

impl Decoder {
    /// At the start of a trace, after [`HEADER`].
    #[allow(clippy::new_without_default)]
    pub fn new() -> Decoder {
        Decoder { past: Past::new() }
    }

    /// The record at the front of `bytes`, and how many bytes it took. `None`: none is whole.
    pub fn decode(&mut self, bytes: &[u8]) -> Option<(Record, usize)> {
        let (word, n) = get(bytes, 0)?;
        let (thread, n) =
            if word & 4 != 0 { (self.past.thread, n) } else { get(bytes, n).map(|(t, n)| (t as u32, n))? };
        let kind = match word & 3 {
            0 => Kind::Touch,
            1 => Kind::Fault,
            2 => Kind::Fresh,
            _ => Kind::Gone,
        };
        let zigzag = word >> 3;
        let step = (zigzag >> 1) as i64 ^ -((zigzag & 1) as i64);
        self.past.thread = thread;
        let last = self.past.last(thread);
        *last = last.wrapping_add(step as u64);
        Some((Record { page: PageId(*last), kind, thread }, n))
    }
}

fn put(mut value: u64, to: &mut [u8; RECORD_BYTES], mut n: usize) -> usize {
    while value >= 0x80 {
        to[n] = value as u8 | 0x80;
        value >>= 7;
        n += 1;
    }
    to[n] = value as u8;
    n + 1
}

fn get(bytes: &[u8], mut n: usize) -> Option<(u64, usize)> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let byte = *bytes.get(n)?;
        n += 1;
        value |= ((byte & 0x7f) as u64) << shift;
        if byte < 0x80 {
            break;
        }
    }
    Some((value, n))
}
