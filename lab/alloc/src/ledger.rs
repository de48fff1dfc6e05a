//! Who holds what, kept apart from every allocator: the judge of all of them.
//!
//! One entry for each 4 KiB of the pool. From the moment in which an allocator
//! gives a client a run of chunks until the client gives it back, nobody else may
//! be given a byte of it. The ledger notices at once when somebody is.
//!
//! After every phase, and in tests after every verb that changes a word, the
//! ledger is compared with the words of the node, which an allocator reads to it
//! chunk by chunk as [`Standing`]:
//!
//! | the ledger says | the words may say |
//! |---|---|
//! | held by a client | held (by that client or its host, where the words name one). Never free |
//! | held by nobody, operations in progress | anything |
//! | held by nobody, all at rest | free, or reserved by somebody who is named. Else it is lost |

use std::cell::RefCell;

/// 4 KiB.
pub const CHUNK: u64 = 4096;

/// A run of chunks that a client was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Grant {
    /// The first.
    pub chunk: u32,
    /// How many: 1 << order.
    pub order: u8,
    /// What the allocator wants to see again when it is given back: a key, a table's entry.
    pub token: u32,
}

impl Grant {
    /// Its chunks.
    pub fn chunks(&self) -> std::ops::Range<u32> {
        self.chunk..self.chunk + (1 << self.order)
    }
}

/// What the words say of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Anybody may take it.
    Free,
    /// The same, but the key of who had it before still works.
    Exposed,
    /// It is given to a client; of which host, where the words say so.
    Held(Option<u32>),
    /// No client has it and it is no client's to take; somebody who is named will make it free again.
    Reserved(Kept),
    /// Nobody has it and nobody will ever get it.
    Lost,
}

/// Why what nobody holds is not free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kept {
    /// Granted to a client that has not taken it yet.
    Ahead,
    /// Free in a block of a host, of which clients hold other chunks.
    Part,
    /// In a block of a host of which nobody holds anything.
    Empty,
    /// Given back, or on its way: to be drained and zeroed.
    Cleaning,
}

/// What is wrong. The first thing, in words.
pub type Fault = String;

/// The entries.
#[derive(Debug)]
pub struct Ledger {
    holders: RefCell<Vec<u32>>,
    held: RefCell<u64>,
}

impl Ledger {
    /// For a pool of so many chunks.
    pub fn new(chunks: u32) -> Ledger {
        Ledger { holders: RefCell::new(vec![0; chunks as usize]), held: RefCell::new(0) }
    }

    /// Bytes that clients hold.
    pub fn held(&self) -> u64 {
        *self.held.borrow() * CHUNK
    }

    /// Chunks of the pool.
    pub fn chunks(&self) -> u32 {
        self.holders.borrow().len() as u32
    }

    /// Client `client` was given a run.
    ///
    /// # Errors
    /// Somebody holds a part of it, or it is not in the pool.
    pub fn grant(&self, client: u32, grant: Grant) -> Result<(), Fault> {
        let mut holders = self.holders.borrow_mut();
        for chunk in grant.chunks() {
            match holders.get_mut(chunk as usize) {
                Some(holder) if *holder == 0 => *holder = client + 1,
                Some(holder) => {
                    return Err(format!(
                        "chunk {chunk} is given to client {client} while client {} holds it",
                        *holder - 1
                    ));
                }
                None => return Err(format!("chunk {chunk}, given to client {client}, is not in the pool")),
            }
        }
        *self.held.borrow_mut() += 1 << grant.order;
        Ok(())
    }

    /// Client `client` gives a run back: from now on it may be anybody's.
    ///
    /// # Errors
    /// It is not the client's.
    pub fn release(&self, client: u32, grant: Grant) -> Result<(), Fault> {
        let mut holders = self.holders.borrow_mut();
        for chunk in grant.chunks() {
            match holders.get_mut(chunk as usize) {
                Some(holder) if *holder == client + 1 => *holder = 0,
                _ => return Err(format!("client {client} gives back chunk {chunk}, which is not its own")),
            }
        }
        *self.held.borrow_mut() -= 1 << grant.order;
        Ok(())
    }

    /// Compares with the words. `host_of` is a client's host; `at_rest` says that no operation is in progress.
    ///
    /// # Errors
    /// What a client holds is free or another's by the words; what nobody holds is lost.
    pub fn compare(
        &self,
        standing: impl Fn(u32) -> Standing,
        host_of: impl Fn(u32) -> u32,
        at_rest: bool,
    ) -> Result<Census, Fault> {
        let mut census = Census::default();
        for (chunk, &holder) in self.holders.borrow().iter().enumerate() {
            let stands = standing(chunk as u32);
            match (holder, stands) {
                (1.., Standing::Held(None)) => census.held += 1,
                (1.., Standing::Held(Some(host))) if host == host_of(holder - 1) => census.held += 1,
                (1.., _) => {
                    return Err(format!("client {} holds chunk {chunk}; by the words it is {stands:?}", holder - 1));
                }
                (0, Standing::Free) => census.free += 1,
                (0, Standing::Exposed) => {
                    census.free += 1;
                    census.exposed += 1;
                }
                (0, Standing::Reserved(why)) => {
                    census.reserved += 1;
                    census.kept[why as usize] += 1;
                }
                (0, _) if at_rest => {
                    return Err(format!("chunk {chunk} is lost: nobody holds it, and by the words it is {stands:?}"));
                }
                (0, _) => {
                    census.reserved += 1;
                    census.kept[Kept::Cleaning as usize] += 1;
                }
            }
        }
        Ok(census)
    }
}

/// A recount, in chunks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Census {
    /// Clients'.
    pub held: u64,
    /// Anybody's.
    pub free: u64,
    /// Nobody's now,
    pub reserved: u64,
    /// and why, in the order of [`Kept`].
    pub kept: [u64; 4],
    /// Anybody's, though an old key still reaches them: counted with the free.
    pub exposed: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(chunk: u32, order: u8) -> Grant {
        Grant { chunk, order, token: 0 }
    }

    #[test]
    fn a_byte_with_two_owners_is_seen_at_once() {
        let ledger = Ledger::new(8);
        ledger.grant(0, run(0, 2)).unwrap();
        assert!(ledger.grant(1, run(3, 0)).unwrap_err().contains("client 0 holds it"));
        assert!(ledger.grant(1, run(8, 0)).unwrap_err().contains("not in the pool"));
        assert!(ledger.release(1, run(0, 2)).unwrap_err().contains("not its own"));
        assert_eq!(ledger.held(), 4 * CHUNK);
        ledger.release(0, run(0, 2)).unwrap();
        assert!(ledger.release(0, run(0, 2)).is_err(), "given back twice");
        ledger.grant(1, run(3, 0)).unwrap();
    }

    #[test]
    fn what_the_words_say_is_held_against_it() {
        let ledger = Ledger::new(4);
        ledger.grant(5, run(0, 1)).unwrap();
        let compare =
            |stands: [Standing; 4], rest| ledger.compare(|chunk| stands[chunk as usize], |client| client / 4, rest);
        use Standing::*;
        let census = compare([Held(None), Held(Some(1)), Free, Reserved(Kept::Part)], true).unwrap();
        assert_eq!(census, Census { held: 2, free: 1, reserved: 1, kept: [0, 1, 0, 0], exposed: 0 });
        assert!(compare([Free, Held(None), Free, Free], false).unwrap_err().contains("client 5 holds chunk 0"));
        assert!(compare([Held(Some(0)), Held(None), Free, Free], false).is_err(), "another host's");
        assert!(compare([Held(None), Held(None), Held(None), Free], true).unwrap_err().contains("lost"));
        let census = compare([Held(None), Held(None), Held(None), Reserved(Kept::Empty)], false);
        let census = census.expect("somebody may be in the middle of it");
        assert_eq!((census.reserved, census.kept), (2, [0, 0, 1, 1]), "what is on its way is counted too");
        assert!(compare([Held(None), Held(None), Lost, Free], true).is_err());
    }
}
