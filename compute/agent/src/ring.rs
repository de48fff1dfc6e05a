//! One direction of the ring between an application and the agent: one producer,
//! one consumer, in different processes, neither of which believes the other.
//!
//! ```text
//!            head                     tail            positions count up for ever (u32, wrapping);
//!             ▼                        ▼              entry of a position: position mod 512
//!  ┌────┬────┬────┬────┬────┬────┬────┬────┬────┐
//!  │    │    │ e0 │ e1 │ e2 │ e3 │ e4 │    │    │     tail − head entries are in the ring
//!  └────┴────┴────┴────┴────┴────┴────┴────┴────┘
//!             consumer stores head     producer stores tail
//! ```
//!
//! *What is believed.* Each side keeps its own position privately and reads the
//! other's as a claim: it must leave between 0 and 512 entries in the ring, else
//! the other side is broken ([`Broken`]) and the ring is left for good. Entries are
//! claims, too; their meaning is checked by whoever takes them.
//!
//! *Orderings.* An entry is stored before tail (Release), and read after tail
//! (Acquire); head the same way back, so that an entry is not overwritten before
//! it was read.
//!
//! *Sleeping.* Tail is also the futex word on which the consumer sleeps. It says so first, then
//! looks again; the producer stores tail first, then looks whether the consumer sleeps. With a full
//! fence between the two halves on both sides, at least one of them sees the other (Dekker), so
//! that no wake-up is lost and none costs a system call unless somebody sleeps. Only the consumer
//! writes what it says of itself: were the producer to take it back, to spare a second wake-up, it
//! could take back the next sleep's (loom found that one). loom tries all orders: `RUSTFLAGS="--cfg
//! loom" cargo test -p farmem-agent --lib --release ring`.

use std::sync::atomic::Ordering;

#[cfg(loom)]
use loom::sync::atomic::{AtomicU32, AtomicU64, fence};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicU32, AtomicU64, fence};

/// The other side has written what no honest one would.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Broken;

/// The words of one direction.
#[derive(Clone, Copy)]
pub struct Words<'a> {
    /// Where the producer will write next. Stored by the producer.
    pub tail: &'a AtomicU32,
    /// Where the consumer will read next. Stored by the consumer.
    pub head: &'a AtomicU32,
    /// 1: the consumer sleeps on `tail`, or is about to. Stored by the consumer.
    pub sleeping: &'a AtomicU32,
    /// A power of two of entries.
    pub entries: &'a [AtomicU64],
}

impl<'a> Words<'a> {
    fn entry(&self, position: u32) -> &'a AtomicU64 {
        &self.entries[position as usize & (self.entries.len() - 1)]
    }
}

/// The writing end of a ring that was all zero when it began. Every call is given the ring's words.
#[derive(Default)]
pub struct Producer {
    tail: u32,
}

impl Producer {
    /// How many entries there is room for.
    pub fn room(&self, words: Words<'_>) -> Result<usize, Broken> {
        let used = self.tail.wrapping_sub(words.head.load(Ordering::Acquire)) as usize;
        words.entries.len().checked_sub(used).ok_or(Broken)
    }

    /// Adds an entry, which the consumer does not see before [`Producer::publish`]. The caller
    /// knows that there is room.
    pub fn push(&mut self, words: Words<'_>, entry: u64) {
        words.entry(self.tail).store(entry, Ordering::Relaxed);
        self.tail = self.tail.wrapping_add(1);
    }

    /// Shows what was pushed. True: the consumer sleeps, and is to be woken, on `tail`.
    #[must_use]
    pub fn publish(&self, words: Words<'_>) -> bool {
        words.tail.store(self.tail, Ordering::Release);
        fence(Ordering::SeqCst);
        words.sleeping.load(Ordering::Relaxed) == 1
    }
}

/// The reading end of a ring that was all zero when it began.
#[derive(Default)]
pub struct Consumer {
    head: u32,
    /// Tail as last seen, and believed.
    seen: u32,
}

impl Consumer {
    /// The next entry, if there is one. Its place is the producer's again after [`Consumer::done`].
    #[inline]
    pub fn pop(&mut self, words: Words<'_>) -> Result<Option<u64>, Broken> {
        if self.head == self.seen {
            let tail = words.tail.load(Ordering::Acquire);
            if tail.wrapping_sub(self.head) as usize > words.entries.len() {
                return Err(Broken);
            }
            self.seen = tail;
            if self.head == tail {
                return Ok(None);
            }
        }
        let entry = words.entry(self.head).load(Ordering::Relaxed);
        self.head = self.head.wrapping_add(1);
        Ok(Some(entry))
    }

    /// Whether something is to be popped (or the ring is broken, which popping says).
    #[inline]
    pub fn waits(&self, words: Words<'_>) -> bool {
        words.tail.load(Ordering::Acquire) != self.head
    }

    /// Gives the places of all popped entries back.
    #[inline]
    pub fn done(&self, words: Words<'_>) {
        words.head.store(self.head, Ordering::Release);
    }

    /// Says that this side goes to sleep. The value of the futex word to sleep on; `None`:
    /// something has come.
    pub fn drowse(&self, words: Words<'_>) -> Option<u32> {
        words.sleeping.store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let tail = words.tail.load(Ordering::Acquire);
        if tail == self.head {
            return Some(tail);
        }
        self.rouse(words);
        None
    }

    /// Says that it is awake again.
    pub fn rouse(&self, words: Words<'_>) {
        words.sleeping.store(0, Ordering::Relaxed);
    }
}

#[cfg(all(test, loom))]
mod models {
    use super::*;
    use loom::sync::{Arc, Condvar, Mutex};

    /// A ring of two entries, and a futex that promises what the kernel's does and no more: a
    /// wake-up does not fall between the look at the word and the sleep. It has no time limit: a
    /// lost one is a deadlock.
    struct Ring {
        tail: AtomicU32,
        head: AtomicU32,
        sleeping: AtomicU32,
        entries: [AtomicU64; 2],
        queue: Mutex<()>,
        awake: Condvar,
    }

    impl Ring {
        fn new() -> Arc<Ring> {
            let word = || AtomicU32::new(0);
            let entries = [AtomicU64::new(0), AtomicU64::new(0)];
            let (queue, awake) = (Mutex::new(()), Condvar::new());
            Arc::new(Ring { tail: word(), head: word(), sleeping: word(), entries, queue, awake })
        }

        fn words(&self) -> Words<'_> {
            Words { tail: &self.tail, head: &self.head, sleeping: &self.sleeping, entries: &self.entries }
        }

        fn send(&self, producer: &mut Producer, entry: u64) {
            producer.push(self.words(), entry);
            if producer.publish(self.words()) {
                let _queue = self.queue.lock().unwrap();
                self.awake.notify_one();
            }
        }

        fn receive(&self, consumer: &mut Consumer) -> u64 {
            loop {
                if let Some(entry) = consumer.pop(self.words()).unwrap() {
                    consumer.done(self.words());
                    return entry;
                }
                if let Some(tail) = consumer.drowse(self.words()) {
                    let queue = self.queue.lock().unwrap();
                    if self.tail.load(Ordering::Relaxed) == tail {
                        drop(self.awake.wait(queue).unwrap());
                    }
                    consumer.rouse(self.words());
                }
            }
        }
    }

    /// Entries arrive in order, once each, and nobody sleeps for ever.
    #[test]
    fn entries_arrive_and_wake() {
        loom::model(|| {
            let ring = Ring::new();
            let other = Arc::clone(&ring);
            let sender = loom::thread::spawn(move || {
                let mut producer = Producer::default();
                other.send(&mut producer, 11);
                other.send(&mut producer, 12);
            });
            let mut consumer = Consumer::default();
            assert_eq!((ring.receive(&mut consumer), ring.receive(&mut consumer)), (11, 12));
            sender.join().unwrap();
        });
    }

    /// A place is written again only after it was read.
    #[test]
    fn places_are_reused_after_reading() {
        loom::model(|| {
            let ring = Ring::new();
            let other = Arc::clone(&ring);
            let sender = loom::thread::spawn(move || {
                let mut producer = Producer::default();
                for entry in 1..=3 {
                    while producer.room(other.words()).unwrap() == 0 {
                        loom::thread::yield_now();
                    }
                    producer.push(other.words(), entry);
                    let _ = producer.publish(other.words());
                }
            });
            let mut consumer = Consumer::default();
            for due in 1..=3 {
                let entry = loop {
                    match consumer.pop(ring.words()).unwrap() {
                        Some(entry) => break entry,
                        None => loom::thread::yield_now(),
                    }
                };
                consumer.done(ring.words());
                assert_eq!(entry, due);
            }
            sender.join().unwrap();
        });
    }

    /// Both directions of a round trip, as a request and its answer go.
    #[test]
    fn a_round_trip_ends() {
        loom::model(|| {
            let (up, down) = (Ring::new(), Ring::new());
            let (up2, down2) = (Arc::clone(&up), Arc::clone(&down));
            let agent = loom::thread::spawn(move || {
                let (mut requests, mut answers) = (Consumer::default(), Producer::default());
                let request = up2.receive(&mut requests);
                down2.send(&mut answers, request + 1);
            });
            let (mut requests, mut answers) = (Producer::default(), Consumer::default());
            up.send(&mut requests, 40);
            assert_eq!(down.receive(&mut answers), 41);
            agent.join().unwrap();
        });
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    struct Ring {
        words: [AtomicU32; 3],
        entries: [AtomicU64; 8],
    }

    impl Ring {
        fn new() -> Ring {
            Ring { words: Default::default(), entries: Default::default() }
        }

        fn words(&self) -> Words<'_> {
            let [tail, head, sleeping] = &self.words;
            Words { tail, head, sleeping, entries: &self.entries }
        }
    }

    #[test]
    fn it_holds_what_it_holds_and_wraps() {
        let ring = Ring::new();
        for word in &ring.words[..2] {
            word.store(u32::MAX - 3, Ordering::Relaxed);
        }
        let mut producer = Producer { tail: u32::MAX - 3 };
        let mut consumer = Consumer { head: u32::MAX - 3, seen: u32::MAX - 3 };
        for round in 0..5u64 {
            assert_eq!(producer.room(ring.words()), Ok(8));
            (0..8).for_each(|i| producer.push(ring.words(), round * 8 + i));
            assert!(!producer.publish(ring.words()));
            assert_eq!(producer.room(ring.words()), Ok(0));
            (0..8).for_each(|i| assert_eq!(consumer.pop(ring.words()), Ok(Some(round * 8 + i))));
            assert_eq!(consumer.pop(ring.words()), Ok(None));
            consumer.done(ring.words());
        }
    }

    #[test]
    fn positions_that_cannot_be_are_seen() {
        let ring = Ring::new();
        let mut consumer = Consumer::default();
        ring.words[0].store(9, Ordering::Relaxed);
        assert_eq!(consumer.pop(ring.words()), Err(Broken));
        ring.words[0].store(u32::MAX, Ordering::Relaxed);
        assert_eq!(consumer.pop(ring.words()), Err(Broken));
        ring.words[0].store(0, Ordering::Relaxed);
        let producer = Producer::default();
        ring.words[1].store(1, Ordering::Relaxed);
        assert_eq!(producer.room(ring.words()), Err(Broken));
    }

    #[test]
    fn a_sleeper_is_to_be_woken_until_it_says_that_it_is_awake() {
        let ring = Ring::new();
        let (mut producer, consumer) = (Producer::default(), Consumer::default());
        assert_eq!(consumer.drowse(ring.words()), Some(0));
        producer.push(ring.words(), 1);
        assert!(producer.publish(ring.words()));
        producer.push(ring.words(), 2);
        assert!(producer.publish(ring.words()));
        assert_eq!(consumer.drowse(ring.words()), None);
        assert!(!producer.publish(ring.words()));
    }
}
