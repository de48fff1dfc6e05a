//! How an operation talks to the one that carries out its verbs.
//!
//! An operation is an `async` function without I/O, clock or thread. It hands a batch of
//! [`Verb`]s to [`Io::verbs`] and is suspended until the batch is answered. A [`Task`] is one
//! such function under way. Its holder, the *driver*, moves it on:
//!
//! ```text
//!     loop {
//!         if let Some(outcome) = task.step() { break outcome }
//!         for (id, ask) in task.asks() { carry out; task.answer(id, answers) }
//!     }
//! ```
//!
//! The driver of production posts the verbs to queue pairs. The driver of the tests executes them
//! on a vector, in every order. Both run the same functions.
//!
//! * Verbs of one batch on one node take effect in their order, but a READ may see the effect of a
//!   verb behind it.
//! * Dropping a task half-way is a crash of its front end, as far as the words are concerned.

use farmem::Payload;
use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

/// One verb on the store's memory. Addresses are [`crate::layout::At`]s.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Verb {
    /// READ of `len` bytes. Each aligned word of it is read atomically, all of it is not.
    Read {
        /// The first byte.
        at: u64,
        /// Bytes.
        len: u32,
    },
    /// WRITE. Nothing else can see these bytes yet, or only one word changes.
    Write {
        /// The first byte.
        at: u64,
        /// The bytes.
        bytes: Rc<Vec<u8>>,
    },
    /// WRITE of bytes that are shared or lent, and that nobody copies. Nothing else can see these
    /// yet.
    WriteFrom {
        /// The first byte.
        at: u64,
        /// The bytes.
        bytes: Payload,
    },
    /// CAS of one aligned word.
    Cas {
        /// Which.
        at: u64,
        /// What it is expected to be.
        old: u64,
        /// What it shall be.
        new: u64,
    },
    /// Takes a piece of the node's memory, a power of two from 4 KiB to 2 MiB.
    Alloc {
        /// Of which node.
        node: u8,
        /// Bytes.
        bytes: u32,
    },
    /// Takes the piece at this very place, which is free.
    Claim {
        /// Its first byte.
        at: u64,
        /// Bytes.
        bytes: u32,
    },
    /// Gives a piece back.
    Free {
        /// Its first byte.
        at: u64,
    },
    /// Lists the node's pieces.
    Pieces {
        /// Of which node.
        node: u8,
    },
    /// Ends this front end: it cannot know whether others go on with this node.
    Doubt {
        /// Which node.
        node: u8,
    },
    /// Takes all rights at the node from the front end of this tag.
    Expel {
        /// Which node.
        node: u8,
        /// By which the front end is told from others.
        tag: u32,
    },
}

impl Verb {
    /// Whether it is a WRITE.
    pub fn is_write(&self) -> bool {
        matches!(self, Verb::Write { .. } | Verb::WriteFrom { .. })
    }
}

/// The result of a verb.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Answer {
    /// A READ's bytes.
    Bytes(Vec<u8>),
    /// What a CAS found.
    Word(u64),
    /// Where an ALLOC's piece begins.
    Place(u64),
    /// Carried out.
    Done,
    /// The node has no such piece left.
    Full,
    /// The first byte and the length of each piece.
    Pieces(Vec<(u64, u32)>),
    /// Whether the front end was expelled: no verb of its takes effect any more.
    Expelled(bool),
    /// The node's process has ended, for certain, and its memory with it.
    Lost,
    /// The connection broke: a CAS may have taken effect, may do so later, or never. The same CAS,
    /// given again, settles which.
    Unknown,
}

/// What a task waits for.
#[derive(Debug)]
pub enum Ask {
    /// The answers to these verbs.
    Verbs(Vec<Verb>),
    /// That a few milliseconds pass.
    Pause(u32),
}

/// Carries out verbs that need no wait.
pub trait AtOnce: std::fmt::Debug {
    /// One answer for each; `None`: they are to be asked for.
    fn carry_out(&self, verbs: &[Verb]) -> Option<Vec<Answer>>;
}

/// Batches that one step of a task has carried out at once, at most: then others have their turn.
const AT_ONCE: u32 = 64;

#[derive(Default)]
struct Mail {
    /// For batches that need no wait.
    at_once: Option<Rc<dyn AtOnce>>,
    /// Those of this step.
    carried: u32,
    next: u32,
    asks: Vec<(u32, Ask)>,
    answers: Vec<(u32, Vec<Answer>)>,
}

/// An operation's way to its driver.
#[derive(Clone, Default)]
pub struct Io(Rc<RefCell<Mail>>);

impl std::fmt::Debug for Io {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Io")
    }
}

/// A batch that was handed over.
struct Asked {
    io: Io,
    ask: Option<Ask>,
    id: u32,
}

impl Io {
    /// Carries out the verbs in one batch; one answer for each.
    pub async fn verbs(&self, verbs: Vec<Verb>) -> Vec<Answer> {
        Asked { io: self.clone(), ask: Some(Ask::Verbs(verbs)), id: 0 }.await
    }

    /// Carries out one verb.
    pub async fn verb(&self, verb: Verb) -> Answer {
        self.verbs(vec![verb]).await.pop().unwrap_or(Answer::Unknown)
    }

    /// READ of `len` bytes.
    pub async fn read(&self, at: u64, len: u32) -> Vec<u8> {
        match self.verb(Verb::Read { at, len }).await {
            Answer::Bytes(bytes) => bytes,
            _ => Vec::new(),
        }
    }

    /// Lets a few milliseconds pass.
    pub async fn pause(&self, ms: u32) {
        Asked { io: self.clone(), ask: Some(Ask::Pause(ms)), id: 0 }.await;
    }
}

impl Future for Asked {
    type Output = Vec<Answer>;

    fn poll(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Vec<Answer>> {
        let this = &mut *self;
        let mut mail = this.io.0.borrow_mut();
        if let Some(ask) = this.ask.take() {
            if let Ask::Verbs(verbs) = &ask
                && mail.carried < AT_ONCE
                && let Some(answers) = mail.at_once.as_ref().and_then(|at_once| at_once.carry_out(verbs))
            {
                mail.carried += 1;
                return Poll::Ready(answers);
            }
            this.id = mail.next;
            mail.next += 1;
            mail.asks.push((this.id, ask));
            return Poll::Pending;
        }
        match mail.answers.iter().position(|(id, _)| *id == this.id) {
            Some(place) => Poll::Ready(mail.answers.swap_remove(place).1),
            None => Poll::Pending,
        }
    }
}

/// An operation under way.
pub struct Task<T> {
    future: Pin<Box<dyn Future<Output = T>>>,
    io: Io,
}

impl<T> std::fmt::Debug for Task<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Task")
    }
}

impl<T> Task<T> {
    /// Begins the operation that `start` makes.
    pub fn new<F: Future<Output = T> + 'static>(start: impl FnOnce(Io) -> F) -> Task<T> {
        Task::with(None, start)
    }

    /// [`Task::new`] whose verbs are carried out at once where they need no wait.
    pub fn with<F: Future<Output = T> + 'static>(
        at_once: Option<Rc<dyn AtOnce>>,
        start: impl FnOnce(Io) -> F,
    ) -> Task<T> {
        let io = Io(Rc::new(RefCell::new(Mail { at_once, ..Mail::default() })));
        Task { future: Box::pin(start(io.clone())), io }
    }

    /// Moves it on as far as it goes without a further answer; its outcome when it has ended.
    pub fn step(&mut self) -> Option<T> {
        self.io.0.borrow_mut().carried = 0;
        match self.future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(outcome) => Some(outcome),
            Poll::Pending => None,
        }
    }

    /// What it asks for since this was last called.
    pub fn asks(&mut self) -> Vec<(u32, Ask)> {
        std::mem::take(&mut self.io.0.borrow_mut().asks)
    }

    /// Answers an ask: one answer for each verb, none for a pause.
    pub fn answer(&mut self, id: u32, answers: Vec<Answer>) {
        self.io.0.borrow_mut().answers.push((id, answers));
    }
}

/// Runs operations side by side, so that their batches travel together.
pub async fn join<T>(operations: Vec<Pin<Box<dyn Future<Output = T> + '_>>>) -> Vec<T> {
    Joined { ended: operations.iter().map(|_| None).collect(), operations }.await
}

struct Joined<'a, T> {
    operations: Vec<Pin<Box<dyn Future<Output = T> + 'a>>>,
    ended: Vec<Option<T>>,
}

impl<T> Unpin for Joined<'_, T> {}

impl<T> Future for Joined<'_, T> {
    type Output = Vec<T>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Vec<T>> {
        let Joined { operations, ended } = &mut *self;
        for (operation, ended) in operations.iter_mut().zip(ended.iter_mut()) {
            if ended.is_none()
                && let Poll::Ready(outcome) = operation.as_mut().poll(context)
            {
                *ended = Some(outcome);
            }
        }
        if ended.iter().all(Option::is_some) {
            Poll::Ready(ended.iter_mut().filter_map(Option::take).collect())
        } else {
            Poll::Pending
        }
    }
}
