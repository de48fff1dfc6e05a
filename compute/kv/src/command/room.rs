//! Limits of the bytes that one client, and all clients, may make the front end hold.
//!
//! A request of kilobytes may ask for gigabytes: the same large value thousands of times, or millions
//! of random members. And a client may send requests without reading replies. So these bytes count,
//! all three together:
//!
//! * what commands gather for their replies, while they run,
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
//! The names of subscriptions stay for as long as a client likes, and are bounded for themselves
//! (`channels`).

use super::table::{Command, Group};
use super::{Call, Client, Fail};
use crate::resp::Reply;
use std::cell::Cell;
use std::rc::Rc;

/// Bytes that one client may make the front end hold.
const MOST: usize = 1 << 30;
/// Bytes that all clients may make it hold.
const ALL: usize = 4 << 30;
/// Bytes of all clients above which those with more than [`EACH`] wait.
pub const CROWDED: usize = 1 << 30;
/// Bytes that a client may have, and a command may gather, however much others have.
pub const EACH: usize = 1 << 20;
/// Bytes that a command in a script may gather: the script could not hold more.
const SCRIPT: usize = 128 << 20;
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
