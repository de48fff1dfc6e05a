//! Applications that lie: by hand, through the words of a desk, as no library does.

use super::{Host, LIMIT, within};
use farmem_agent::desk::Desk;
use farmem_agent::hello::{Declaration, Entry, Hello, MAGIC, Reached, Welcome};
use farmem_agent::word::{Down, Piece, Up};
use farmem_protocol::key::Key;
use farmem_protocol::wire::variant;
use farmem_sys::descriptors;
use farmem_sys::{shared, socket};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

/// A session whose words are written by hand.
pub struct Liar {
    pub stream: UnixStream,
    pub desk: Desk,
    pub token: [u8; 16],
    pub tail: u32,
    pub head: u32,
}

impl Liar {
    pub fn new(host: &Host) -> Liar {
        Liar::greeting(host, Hello { magic: MAGIC, ..Hello::new_zeroed() }, &[]).expect("welcome")
    }

    pub fn greeting(host: &Host, hello: Hello, declared: &[Declaration]) -> Result<Liar, Option<Entry>> {
        let mut stream = UnixStream::connect(host.socket()).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        let _ = stream.write_all(hello.as_bytes());
        declared.iter().for_each(|one| drop(stream.write_all(one.as_bytes())));
        let mut welcome = Welcome::new_zeroed();
        socket::wait(stream.as_raw_fd(), true, false, 10_000_000_000);
        let (n, fd) = socket::receive_with_descriptor(stream.as_raw_fd(), welcome.as_mut_bytes()).map_err(|_| None)?;
        match variant::<Entry>(welcome.status) {
            Some(Entry::Welcome) if n == size_of::<Welcome>() => {
                let fd = fd.unwrap().into_raw();
                let desk = Desk::map(fd).unwrap();
                descriptors::close(fd);
                Ok(Liar { stream, desk, token: welcome.token, tail: 0, head: 0 })
            }
            entry if n > 0 => Err(entry),
            _ => Err(None),
        }
    }

    pub fn say(&mut self, word: u64) {
        self.desk.up().entries[self.tail as usize % 512].store(word, Relaxed);
        self.tail = self.tail.wrapping_add(1);
        self.desk.up().tail.store(self.tail, SeqCst);
        shared::futex_wake(self.desk.up().tail);
    }

    pub fn hear(&mut self) -> Down {
        within("an answer comes", || self.desk.down().tail.load(SeqCst) != self.head);
        let word = self.desk.down().entries[self.head as usize % 512].load(Relaxed);
        self.head = self.head.wrapping_add(1);
        self.desk.down().head.store(self.head, SeqCst);
        Down::of(word).unwrap()
    }

    /// A chunk, honestly.
    pub fn chunk(&mut self) -> Piece {
        self.say(Up::Want { order: 0, count: 1 }.bits());
        let Down::Grant(piece) = self.hear() else { panic!("no grant") };
        assert_eq!(self.hear(), Down::Done(None));
        piece
    }

    /// The key of a block of a node elsewhere, asked for honestly; or the refusal.
    pub fn key(&mut self) -> Result<Key, Down> {
        self.say(Up::Want { order: 9, count: 1 }.bits());
        let Down::Grant(piece) = self.hear() else { panic!("no grant") };
        assert_eq!(self.hear(), Down::Done(None));
        self.say(Up::Map(piece.block).bits());
        match self.hear() {
            Down::Done(None) => {}
            refused => return Err(refused),
        }
        let mut said = [0; size_of::<Reached>() + 8];
        self.stream.read_exact(&mut said).unwrap();
        let (reached, key) = said.split_at(size_of::<Reached>());
        assert_eq!(Reached::read_from_bytes(reached).unwrap().keys, 1);
        Ok(Key(u64::from_ne_bytes(key.try_into().unwrap())))
    }

    /// Waits until the agent has ended the session, and says why.
    pub fn verdict(mut self) -> u32 {
        within("the session is ended", || socket::is_cut(self.stream.as_raw_fd()));
        let _ = self.stream.read(&mut [0; 64]);
        self.desk.verdict().load(SeqCst)
    }
}
