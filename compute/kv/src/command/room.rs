//! Limits of the bytes that one client, and all clients, may make the front end hold.
//!
//! A request of kilobytes may ask for gigabytes: the same large value thousands of times, or millions
//! of random members. And a client may send requests without reading replies. So these bytes count,
//! all four together:
//!
//! * what commands gather for their replies, while they run,
//! * collections that they read as a whole ([`Reads`]),
//! * replies that are there and wait for others before them,
//! * what was written for the client and is not read yet.
//!
//! | | one client | all clients |
//! |---|---|---|
//! | a client's next requests wait above | 256 MiB (`serve::Clients::kept`) | [`CROWDED`], if it has [`EACH`] |
//! | a command is refused above | [`MOST`] | [`ALL`], if it gathers [`EACH`] |
//!
//! The first row bounds what many requests bring, the second what one does. A command that has
//! changed something by itself keeps its reply: nothing else tells of what it did.
//!
//! One client may not have as much as has the others wait: [`MOST`] is half of [`CROWDED`].
//!
//! The names of subscriptions stay for as long as a client likes, and are bounded for themselves
//! (`channels`).

use super::table::{Command, Group};
use super::{Call, Client, Fail};
use crate::resp::Reply;
use crate::task::Io;
use std::cell::Cell;
use std::rc::Rc;

/// Bytes that one client may make the front end hold.
const MOST: usize = 1 << 30;
/// Bytes that all clients may make it hold.
const ALL: usize = 4 << 30;
/// Bytes of all clients above which those with more than [`EACH`] wait. A single client cannot come
/// there.
pub const CROWDED: usize = 2 * MOST;
/// Bytes that a client may have, and a command may gather, however much others have.
pub const EACH: usize = 1 << 20;
/// Bytes that a command in a script may gather: the script could not hold more.
const SCRIPT: usize = 128 << 20;
/// Bytes of the collections that one client's commands read side by side.
const READ: usize = 128 << 20;
/// Bytes that a part of a reply takes beside its own.
const BESIDE: usize = 64;

/// The bytes that a command has gathered, or a reply that waits. They count until this is dropped.
#[derive(Debug)]
pub struct Room {
    client: Rc<Client>,
    all: Rc<Cell<usize>>,
    most: usize,
    bytes: usize,
}

impl Room {
    /// Of a command.
    pub fn new(call: &Call) -> Room {
        let mut room = Room::of(&call.client, &call.front.held);
        room.most = if call.script.is_some() { SCRIPT } else { MOST };
        room
    }

    /// Of a client's reply. `all`: the bytes of all clients.
    pub fn of(client: &Rc<Client>, all: &Rc<Cell<usize>>) -> Room {
        Room { client: Rc::clone(client), all: Rc::clone(all), most: MOST, bytes: 0 }
    }

    /// [`Room::of`] for a reply that exists already: it is counted, and never refused.
    pub fn with(client: &Rc<Client>, all: &Rc<Cell<usize>>, reply: &Reply) -> Room {
        let mut room = Room::of(client, all);
        room.add(size(reply));
        room
    }

    fn add(&mut self, bytes: usize) {
        self.bytes += bytes;
        self.client.gathered.set(self.client.gathered.get() + bytes);
        self.all.set(self.all.get() + bytes);
    }

    fn check(&self, more: usize) -> Result<(), Fail> {
        let taken = self.bytes.saturating_add(more);
        if taken > self.most || self.client.held().saturating_add(more) > MOST {
            let most = self.most >> 20;
            return Err(Fail::new(format!("the replies would have more than {most} MiB: ask for less at once")));
        }
        if self.all.get().saturating_add(more) > ALL && taken > EACH {
            let most = ALL >> 20;
            return Err(Fail::new(format!("all clients' replies would have more than {most} MiB: ask again later")));
        }
        Ok(())
    }

    /// Takes the room of an item that has this many bytes.
    ///
    /// # Errors
    /// There is none left.
    pub fn take(&mut self, bytes: usize) -> Result<(), Fail> {
        let more = bytes.saturating_add(BESIDE);
        self.check(more)?;
        self.add(more);
        Ok(())
    }

    /// Looks whether so many items would fit, however small they are.
    ///
    /// # Errors
    /// They would not.
    pub fn fits(&self, items: u64) -> Result<(), Fail> {
        self.check(usize::try_from(items).unwrap_or(usize::MAX).saturating_mul(BESIDE))
    }

    /// Takes room for a reply that is there.
    ///
    /// # Errors
    /// There is none left.
    pub fn hold(&mut self, reply: &Reply) -> Result<(), Fail> {
        self.take(size(reply))
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        self.client.gathered.set(self.client.gathered.get() - self.bytes);
        self.all.set(self.all.get() - self.bytes);
    }
}

/// What a command reads as a whole. Its bytes count from before it is read until the command has
/// ended.
#[derive(Debug)]
pub struct Reads {
    client: Rc<Client>,
    all: Rc<Cell<usize>>,
    /// Its place among the client's commands that read.
    place: Cell<Option<u64>>,
    bytes: Cell<usize>,
}

impl Reads {
    /// Of a command that has read nothing. `all`: the bytes of all clients.
    pub fn new(client: &Rc<Client>, all: &Rc<Cell<usize>>) -> Reads {
        Reads { client: Rc::clone(client), all: Rc::clone(all), place: Cell::new(None), bytes: Cell::new(0) }
    }

    /// Waits until a value of so many bytes may be read, in place of any that was read before.
    /// The first of the client's commands waits for no other, so none waits for ever.
    pub async fn admit(&self, io: &Io, bytes: usize) {
        if bytes <= EACH.max(self.bytes.get()) {
            return;
        }
        let place = self.place.get().unwrap_or_else(|| {
            let mut reading = self.client.reading.borrow_mut();
            let place = reading.last_key_value().map_or(0, |(last, _)| last + 1);
            reading.insert(place, 0);
            self.place.set(Some(place));
            place
        });
        while !self.has_room(place, bytes) {
            io.pause(1).await;
        }
        self.count(bytes);
    }

    /// Takes the room for so many bytes, if it is the first or there is enough.
    fn has_room(&self, place: u64, bytes: usize) -> bool {
        let mut reading = self.client.reading.borrow_mut();
        let others: usize = reading.iter().filter(|(other, _)| **other != place).map(|(_, bytes)| bytes).sum();
        let is_first = reading.first_key_value().is_none_or(|(first, _)| *first == place);
        let has_room = is_first || others + bytes <= READ;
        if has_room {
            reading.insert(place, bytes);
        }
        has_room
    }

    fn count(&self, bytes: usize) {
        let before = self.bytes.replace(bytes);
        self.client.gathered.set(self.client.gathered.get() - before + bytes);
        self.all.set(self.all.get() - before + bytes);
    }
}

impl Drop for Reads {
    fn drop(&mut self) {
        self.count(0);
        if let Some(place) = self.place.get() {
            self.client.reading.borrow_mut().remove(&place);
        }
    }
}

/// A command's reply, or an error if there is no room for it: not every command counts what it
/// gathers. One that has changed something keeps its reply.
pub fn whole(command: &Command, call: &Call, reply: Reply) -> Reply {
    let keeps = command.changes() || matches!(command.group, Group::Channels | Group::Scripts);
    if keeps || size(&reply) <= EACH {
        return reply;
    }
    match Room::new(call).hold(&reply) {
        Ok(()) => reply,
        Err(Fail(refused)) => {
            call.front.stats.refused(&refused);
            refused
        }
    }
}

/// Bytes of a reply, with what each part takes.
fn size(reply: &Reply) -> usize {
    let all = |items: &[Reply]| items.iter().map(|item| size(item) + BESIDE).sum();
    match reply {
        Reply::Bulk(bytes) => bytes.len(),
        Reply::Line(text) | Reply::Error(text) | Reply::Text(text) => text.len(),
        Reply::Array(items) | Reply::Set(items) | Reply::Push(items) | Reply::Several(items) => all(items),
        Reply::Map(pairs) => pairs.iter().map(|(key, value)| size(key) + size(value) + 2 * BESIDE).sum(),
        _ => 0,
    }
}

#[cfg(test)]
fn client(id: u64) -> Rc<Client> {
    Rc::new(Client::new(id, Default::default(), 0))
}

#[test]
fn a_client_has_an_end() {
    let (client, all) = (client(1), Rc::default());
    let reply = Reply::Array(vec![Reply::Map(vec![(Reply::bulk("key"), Reply::bulk(vec![0; 1 << 20]))])]);
    let mut rooms = [Room::of(&client, &all), Room::of(&client, &all)];
    // Two commands of one client share it, and what it has not read counts.
    client.unread.set(100 << 20);
    let count = (0..2000).filter(|n| rooms[n % 2].hold(&reply).is_ok()).count();
    assert!((900..924).contains(&count), "{count}");
    assert!(rooms[0].take(usize::MAX).is_err() && rooms[0].fits(u64::MAX).is_err());
    let [first, second] = rooms;
    drop(first);
    assert!(Room::of(&client, &all).take(400 << 20).is_ok());
    drop(second);
    assert_eq!((client.gathered.get(), all.get()), (0, 0));
}

#[test]
fn all_clients_have_an_end() {
    let all = Rc::new(Cell::new(0));
    let clients: Vec<_> = (0..6).map(client).collect();
    let mut rooms: Vec<Room> = clients.iter().map(|client| Room::of(client, &all)).collect();
    let taken = rooms.iter_mut().filter_map(|room| room.take(1000 << 20).ok()).count();
    assert_eq!(taken, 4);
    // Small replies are given in any case.
    assert!(rooms[4].take(EACH / 2).is_ok() && rooms[4].take(200 << 20).is_err());
    rooms.remove(0);
    assert!(rooms[3].take(200 << 20).is_ok());
    // What clients have not read is among all.
    all.set(all.get() + (3 << 30));
    assert!(rooms[4].take(EACH).is_err());
    all.set(all.get() - (3 << 30));
    drop(rooms);
    assert_eq!(all.get(), 0);
}

#[test]
fn what_is_read_counts_before_it_is_read() {
    use crate::task::Task;
    let (client, all) = (client(1), Rc::new(Cell::new(0)));
    let reads = |bytes: usize| {
        let reads = Rc::new(Reads::new(&client, &all));
        let own = Rc::clone(&reads);
        (reads, Task::new(|io| async move { own.admit(&io, bytes).await }))
    };
    let mut under_way: Vec<_> = [64 << 20; 128].map(reads).into();
    let admitted = |under_way: &mut Vec<(Rc<Reads>, Task<()>)>| {
        let ended = |(_, task): &mut (Rc<Reads>, Task<()>)| {
            task.asks().into_iter().for_each(|(id, _)| task.answer(id, Vec::new()));
            task.step().is_some()
        };
        under_way.iter_mut().filter_map(|one| ended(one).then_some(())).count()
    };
    assert_eq!(admitted(&mut under_way), 2);
    assert_eq!((client.gathered.get(), all.get()), (READ, READ));
    // Small values are read in any case, and what was read before makes room for what comes.
    assert!(reads(EACH).1.step().is_some());
    let (second, _) = under_way.remove(1);
    drop(under_way.remove(0));
    drop(second);
    assert_eq!((admitted(&mut under_way), client.gathered.get()), (2, READ));
    drop(under_way);
    assert_eq!((client.gathered.get(), all.get(), client.reading.borrow().len()), (0, 0, 0));
    // The first waits for nobody, however much it is.
    let (first, mut task) = reads(4 * READ);
    assert!(task.step().is_some() && first.bytes.get() == 4 * READ);
    let mut again = Task::new(|io| async move { first.admit(&io, 5 * READ).await });
    assert!(again.step().is_some() && client.gathered.get() == 0);
}
