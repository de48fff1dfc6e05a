//! The store within a program: no redis client, no hop.
//!
//! ```no_run
//! use farmem_kv::Store;
//!
//! # fn main() -> Result<(), farmem_kv::Failed> {
//! let mut store = Store::open("sessions", &["a:7411", "b:7411"])?;
//! store.put(b"greeting", b"hello")?;
//! assert_eq!(store.get(b"greeting")?.as_deref(), Some(&b"hello"[..]));
//! # Ok(())
//! # }
//! ```
//!
//! The program is one front end of the store, beside others and beside `farmem kv`. All share its
//! keys and values, and give the same guarantees. The calls also do a front end's housekeeping:
//! make one, or call [`Store::tend`], twice a second. A program that makes no call for 5 s is shut
//! out by the others. Its next call joins the store again.

use crate::drive::{Direct, Drive};
use crate::keyspace::{self, Change};
use crate::object::{Object, Type, Value};
use crate::serve::background::Background;
use crate::serve::open::{self, Clients, Config, Failed, Opened, random, wall_ms};
use crate::serve::schedule::Schedule;
use crate::shard::Trouble;
use crate::task::{Answer, Ask, AtOnce, Io, Task};
use farmem::Transport;
use std::cell::RefCell;
use std::future::Future;
use std::ops::Deref;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// Bytes of the near cache, if the program does not say otherwise.
const LOCAL: u64 = 64 << 20;
/// Between looks at what is to be done beside commands, at most.
const TEND: Duration = Duration::from_millis(50);
/// How long answers of nodes are waited for at a time.
const WAIT: Duration = Duration::from_millis(100);
/// The same while a pause is under way.
const PAUSE: Duration = Duration::from_micros(200);

/// A key's value: refers to the near cache's bytes, which never change.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Bytes(pub(crate) Object);

impl Bytes {
    /// When the key ends, in milliseconds since 1970, if it does.
    pub fn expiry(&self) -> Option<u64> {
        self.0.expiry()
    }
}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.0.value()
    }
}

impl AsRef<[u8]> for Bytes {
    fn as_ref(&self) -> &[u8] {
        self.0.value()
    }
}

/// A store, as one front end of it. See the module.
#[derive(Debug)]
pub struct Store {
    config: Config,
    drive: Rc<RefCell<Drive>>,
    at_once: Rc<dyn AtOnce>,
    pub(crate) inner: Rc<keyspace::Keyspace>,
    background: Background,
    /// The number of the next batch of verbs. No two calls use one: the first may have left some under way.
    batches: u64,
    /// From which its clock counts.
    start: Instant,
    tended: Instant,
}

impl Config {
    /// The usual settings of a store within a program.
    pub fn of(name: &str, nodes: &[&str]) -> Config {
        Config {
            name: name.to_owned(),
            nodes: nodes.iter().map(|&node| node.to_owned()).collect(),
            mirror: false,
            spares: Vec::new(),
            transport: Transport::Auto,
            trust: farmem::Trust::default(),
            grace: Duration::from_secs(5),
            listen: Vec::new(),
            local: LOCAL,
            maxmemory: None,
            clients: Clients::default(),
            metrics: None,
        }
    }
}

impl Store {
    /// Opens the store of this name at these nodes, or makes it, and joins it.
    ///
    /// # Errors
    /// As `farmem kv`: the nodes cannot be reached, or hold something else of this name.
    pub fn open(name: &str, nodes: &[&str]) -> Result<Store, Failed> {
        Store::open_as(&Config::of(name, nodes))
    }

    /// [`Store::open`] with other settings than the usual ones.
    ///
    /// # Errors
    /// As there.
    pub fn open_as(config: &Config) -> Result<Store, Failed> {
        Store::with(config, open::join(config, true)?)
    }

    fn with(config: &Config, (drive, shards): Opened) -> Result<Store, Failed> {
        let (start, now_ms) = (Instant::now(), wall_ms());
        let inner =
            Rc::new(keyspace::Keyspace::new(&config.name, shards, config.maxmemory.is_some(), now_ms, random()?));
        inner.set_now_ms(now_ms);
        let background = Background::new(config, drive.run(), &inner, start);
        let drive = Rc::new(RefCell::new(drive));
        let at_once = Rc::new(Direct(Rc::clone(&drive)));
        let (config, tended) = (config.clone(), start);
        let mut opened = Store { config, drive, at_once, inner, background, batches: 0, start, tended };
        opened.look(start)?;
        Ok(opened)
    }

    /// A string key's value; `None`: there is no such key.
    ///
    /// # Errors
    /// A node is lost, or the key's value is no string.
    pub fn get(&mut self, key: &[u8]) -> Result<Option<Bytes>, Failed> {
        if let Some(near) = self.get_at_once(key)? {
            return Ok(Some(near));
        }
        let key = key.to_vec();
        let found = self.run(|store, io| async move {
            match store.get(&io, &key).await? {
                Some(found) => Ok(Some(Box::pin(store.entire(&io, found)).await?)),
                None => Ok(None),
            }
        })?;
        match found {
            Some(object) if object.kind() != Type::String => Err(Failed::WrongType),
            found => Ok(found.map(Bytes)),
        }
    }

    /// A string key's value, if it is known without asking a node. `None`: it may be there all the
    /// same, and [`Store::get`] tells.
    ///
    /// # Errors
    /// A node is lost.
    #[inline]
    pub fn get_at_once(&mut self, key: &[u8]) -> Result<Option<Bytes>, Failed> {
        self.tend()?;
        Ok(self.inner.near(key).filter(|object| object.kind() == Type::String).map(Bytes))
    }

    /// Stores a string, in place of any value that the key has.
    ///
    /// # Errors
    /// A node is lost, or there is no memory left.
    pub fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), Failed> {
        self.put_until(key, value, None)
    }

    /// [`Store::put`] of a value that ends at `expiry`, in milliseconds since 1970.
    ///
    /// # Errors
    /// As there.
    pub fn put_until(&mut self, key: &[u8], value: &[u8], expiry: Option<u64>) -> Result<(), Failed> {
        if expiry.is_none() && self.put_at_once(key, value)? {
            return Ok(());
        }
        self.tend()?;
        let (key, value) = (key.to_vec(), Value { kind: Type::String, expiry, bytes: value.to_vec() });
        self.run(|store, io| async move { store.put(&io, &key, &value).await })
    }

    /// Stores a string that does not end, if that waits for nothing; whether it was stored.
    /// Otherwise [`Store::put`] stores it.
    ///
    /// # Errors
    /// A node is lost, or this front end was shut out: whether it was stored is then not known.
    pub fn put_at_once(&mut self, key: &[u8], value: &[u8]) -> Result<bool, Failed> {
        self.tend()?;
        if self.background.is_stale(self.tended) {
            return Ok(false);
        }
        let stored = self.inner.put_at_once(&mut *self.drive.borrow_mut(), key, value);
        stored.or_else(|lost| {
            self.or_joined_anew(Err(lost.into()))?;
            Err(Failed::Refused(Trouble::ShutOut))
        })
    }

    /// Stores a string if there is no such key; whether it was stored. For blocks that are written
    /// once.
    ///
    /// # Errors
    /// As [`Store::put`].
    pub fn put_if_absent(&mut self, key: &[u8], value: &[u8]) -> Result<bool, Failed> {
        self.tend()?;
        let (key, value) = (key.to_vec(), Value::string(value));
        self.run(|store, io| async move {
            let change = |there: Option<&Object>| -> Result<Change<bool>, Trouble> {
                Ok(if there.is_some() { Change::Keep(false) } else { Change::Put(value.clone(), true) })
            };
            store.update(&io, &key, change).await
        })
    }

    /// Takes a key out, of whatever type; whether it was there.
    ///
    /// # Errors
    /// A node is lost.
    pub fn remove(&mut self, key: &[u8]) -> Result<bool, Failed> {
        self.tend()?;
        let key = key.to_vec();
        self.run(|store, io| async move { store.remove(&io, &key).await })
    }

    /// Whether there is such a key.
    ///
    /// # Errors
    /// A node is lost.
    pub fn contains(&mut self, key: &[u8]) -> Result<bool, Failed> {
        self.tend()?;
        let key = key.to_vec();
        self.run(|store, io| async move { Ok(store.find(&io, &key).await?.is_some()) })
    }

    /// Does what a front end does beside commands, if it is due. Cheap if it is not.
    ///
    /// # Errors
    /// A node is lost.
    #[inline]
    pub fn tend(&mut self) -> Result<(), Failed> {
        let now = Instant::now();
        if self.look_at_clocks(now) { self.look(now) } else { Ok(()) }
    }

    /// Has the store know the time. Whether there may be something to do beside commands.
    #[inline]
    fn look_at_clocks(&mut self, now: Instant) -> bool {
        self.inner.set_clock_ms(now.duration_since(self.start).as_millis() as u64);
        let due = now.duration_since(self.tended) >= TEND;
        if due {
            self.tended = now;
            self.inner.set_now_ms(wall_ms());
        }
        due
    }

    /// Leaves the store. Other front ends may take over this one's memory at once.
    ///
    /// # Errors
    /// A node is lost.
    pub fn close(self) -> Result<(), Failed> {
        for shard in self.inner.shards.clone() {
            open::alone(&mut self.drive.borrow_mut(), |io| async move { shard.members.leave(&io).await })?;
        }
        Ok(())
    }

    #[cold]
    fn look(&mut self, now: Instant) -> Result<(), Failed> {
        let stale = self.background.is_stale(now);
        let ended = self.advance(stale);
        self.or_joined_anew(ended)
    }

    /// Moves the background on. `wait`: until this front end has shown that it is alive.
    fn advance(&mut self, wait: bool) -> Result<(), Failed> {
        loop {
            let now = Instant::now();
            self.background.begin(now, &self.drive);
            let mut ended = Vec::new();
            self.background.tasks.step(&self.drive, &mut ended)?;
            for (_, ended) in ended {
                self.background.ended(ended, Instant::now()).map_err(|_: Trouble| Failed::ShutOut)?;
            }
            let (mut answers, limit) = (Vec::new(), if wait { WAIT } else { Duration::ZERO });
            self.drive.borrow_mut().advance(limit, &mut answers)?;
            let told = !answers.is_empty();
            self.background.tasks.take(&mut answers);
            if !(told || wait && self.background.is_stale(Instant::now())) {
                return Ok(());
            }
        }
    }

    /// Carries out an operation, and meanwhile what is due beside it.
    pub(crate) fn run<T: 'static, F: Future<Output = Result<T, Trouble>> + 'static>(
        &mut self,
        operation: impl FnOnce(Rc<keyspace::Keyspace>, Io) -> F,
    ) -> Result<T, Failed> {
        let store = Rc::clone(&self.inner);
        let outcome = self.carry_out(Task::with(Some(Rc::clone(&self.at_once)), |io| operation(store, io)));
        match outcome {
            Ok(outcome) => outcome.map_err(Failed::Refused),
            Err(failed) => {
                // Whether it took effect is not known, so it is not repeated.
                self.or_joined_anew(Err(failed))?;
                Err(Failed::Refused(Trouble::ShutOut))
            }
        }
    }

    fn carry_out<T>(&mut self, mut task: Task<T>) -> Result<T, Failed> {
        let mut pauses: Vec<(Instant, u32)> = Vec::new();
        let first = self.batches;
        loop {
            if let Some(outcome) = task.step() {
                return Ok(outcome);
            }
            for (id, ask) in task.asks() {
                self.batches = first + u64::from(id) + 1;
                match ask {
                    Ask::Verbs(verbs) => self.drive.borrow_mut().post(first + u64::from(id), verbs)?,
                    Ask::Pause(ms) => pauses.push((Instant::now() + Duration::from_millis(u64::from(ms)), id)),
                }
            }
            let answers = self.wait(if pauses.is_empty() { WAIT } else { PAUSE })?;
            // Others are of a call that ended before them.
            let own = answers.into_iter().filter(|&(id, _)| id >= first);
            own.for_each(|(id, answers)| task.answer((id - first) as u32, answers));
            let now = Instant::now();
            pauses.retain(|&(until, id)| {
                if until <= now {
                    task.answer(id, Vec::new());
                }
                until > now
            });
        }
    }

    /// Waits at its end for writes of lent bytes that are still under way, as after a loss.
    pub(crate) fn settled(&self) -> Settled {
        Settled(Rc::clone(&self.drive))
    }

    /// Carries out operations side by side. The next one is taken from `ops` when `more` says so,
    /// and is told how many are under way. Each outcome is told with the number of its operation,
    /// from 0 on. The caller has called [`Store::tend`], which may replace the drive, before it
    /// took [`Store::settled`].
    ///
    /// # Errors
    /// As [`Store::run`]: which of the operations took effect is not known.
    pub(crate) fn run_all<O, T: 'static, F: Future<Output = T> + 'static>(
        &mut self,
        ops: impl IntoIterator<Item = O>,
        more: impl Fn(usize) -> bool,
        start: impl Fn(Rc<keyspace::Keyspace>, Io, O) -> F,
        tell: impl FnMut(usize, T),
    ) -> Result<(), Failed> {
        match self.carry_out_all(ops, more, start, tell) {
            Ok(()) => Ok(()),
            Err(failed) => {
                self.or_joined_anew(Err(failed))?;
                Err(Failed::Refused(Trouble::ShutOut))
            }
        }
    }

    fn carry_out_all<O, T: 'static, F: Future<Output = T> + 'static>(
        &mut self,
        ops: impl IntoIterator<Item = O>,
        more: impl Fn(usize) -> bool,
        start: impl Fn(Rc<keyspace::Keyspace>, Io, O) -> F,
        mut tell: impl FnMut(usize, T),
    ) -> Result<(), Failed> {
        let (mut ops, mut tasks, mut ended, mut under_way) =
            (ops.into_iter().fuse().peekable(), Schedule::new(self.batches), Vec::new(), 0);
        loop {
            self.look_at_clocks(Instant::now());
            // Each is posted before the next is begun, so that nodes have work while this process
            // prepares more.
            while more(under_way)
                && !self.background.is_stale(Instant::now())
                && let Some(op) = ops.next()
            {
                // Taking it may have lasted. What was near by the clock of before may be no more.
                self.look_at_clocks(Instant::now());
                let (store, at_once) = (Rc::clone(&self.inner), Rc::clone(&self.at_once));
                tasks.hold(Task::with(Some(at_once), |io| start(store, io, op)));
                under_way += 1;
                let stepped = tasks.step(&self.drive, &mut ended);
                self.batches = tasks.next_batch();
                stepped?;
            }
            let stepped = tasks.step(&self.drive, &mut ended);
            self.batches = tasks.next_batch();
            stepped?;
            under_way -= ended.len();
            let told = !ended.is_empty();
            ended.drain(..).for_each(|(number, outcome)| tell(number as usize, outcome));
            if under_way == 0 && ops.peek().is_none() {
                return Ok(());
            }
            let limit = match tasks.wakes() {
                _ if told || tasks.is_ready() => Duration::ZERO,
                Some(_) => PAUSE,
                None => WAIT,
            };
            let mut answers = self.wait(limit)?;
            tasks.take(&mut answers);
        }
    }

    /// Moves the background on, and waits for answers, at most so long. Those that are not the
    /// background's.
    fn wait(&mut self, limit: Duration) -> Result<Vec<(u64, Vec<Answer>)>, Failed> {
        self.background.begin(Instant::now(), &self.drive);
        let mut ended = Vec::new();
        self.background.tasks.step(&self.drive, &mut ended)?;
        for (_, ended) in ended {
            self.background.ended(ended, Instant::now()).map_err(|_: Trouble| Failed::ShutOut)?;
        }
        let mut answers = Vec::new();
        self.drive.borrow_mut().advance(limit, &mut answers)?;
        if !limit.is_zero() && answers.is_empty() && self.drive.borrow().under_way() == 0 {
            std::thread::sleep(PAUSE);
        }
        self.background.tasks.take(&mut answers);
        Ok(answers)
    }

    fn or_joined_anew(&mut self, ended: Result<(), Failed>) -> Result<(), Failed> {
        let Err(failed) = ended else { return Ok(()) };
        if !failed.may_be_a_shutting_out() {
            return Err(failed);
        }
        let opened = open::join_anew(&self.config, &self.inner.shards, failed)?;
        *self = Store::with(&self.config.clone(), opened)?;
        Ok(())
    }
}

/// See [`Store::settled`].
pub(crate) struct Settled(Rc<RefCell<Drive>>);

impl Drop for Settled {
    fn drop(&mut self) {
        self.0.borrow_mut().settle_lent();
    }
}
