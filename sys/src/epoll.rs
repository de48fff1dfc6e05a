//! Waiting for many descriptors at once, and being woken by another thread.

use crate::descriptors::close;
use crate::raw::{Errno, checked};

/// An epoll instance. Descriptors are known by a token of the caller's.
#[derive(Debug)]
pub struct Epoll(i32);

/// An event of a descriptor.
#[derive(Clone, Copy, Debug)]
pub struct Event {
    /// As given to [`Epoll::add`].
    pub token: u64,
    /// It can be read, or is at its end, or broken.
    pub readable: bool,
    /// It can be written, or is broken.
    pub writable: bool,
    /// The other end sends nothing more ([`Epoll::hear`]), or it is broken.
    pub ended: bool,
    /// It is broken.
    pub broken: bool,
}

/// Events of one wait, at most.
pub const BATCH: usize = 64;

impl Epoll {
    /// A new instance.
    pub fn new() -> Result<Epoll, Errno> {
        // SAFETY: no pointers.
        let fd = unsafe { checked(libc::SYS_epoll_create1, [libc::EPOLL_CLOEXEC as usize, 0, 0, 0, 0, 0])? };
        Ok(Epoll(fd as i32))
    }

    /// Watches a descriptor for what is asked, until it is closed.
    pub fn add(&self, fd: i32, token: u64, read: bool, write: bool) -> Result<(), Errno> {
        self.control(libc::EPOLL_CTL_ADD, fd, token, events(read, write))
    }

    /// Changes what is asked.
    pub fn change(&self, fd: i32, token: u64, read: bool, write: bool) -> Result<(), Errno> {
        self.control(libc::EPOLL_CTL_MOD, fd, token, events(read, write))
    }

    /// As [`Epoll::change`]. `end`: also when the other end sends nothing more, whatever it has sent before.
    pub fn hear(&self, fd: i32, token: u64, (read, write, end): (bool, bool, bool)) -> Result<(), Errno> {
        self.control(libc::EPOLL_CTL_MOD, fd, token, events(read, write) | if end { libc::EPOLLRDHUP } else { 0 })
    }

    /// Watches a descriptor no more.
    pub fn forget(&self, fd: i32) {
        // Not watched, or closed since: nothing to forget.
        let _ = self.control(libc::EPOLL_CTL_DEL, fd, 0, 0);
    }

    fn control(&self, op: i32, fd: i32, token: u64, events: i32) -> Result<(), Errno> {
        let mut event = libc::epoll_event { events: events as u32, u64: token };
        // SAFETY: a live event.
        unsafe {
            checked(
                libc::SYS_epoll_ctl,
                [self.0 as usize, op as usize, fd as usize, &mut event as *mut _ as usize, 0, 0],
            )
        }
        .map(|_| ())
    }

    /// Replaces `out` by what happened; waits for something to happen at most `timeout_ms`, -1 for
    /// ever.
    pub fn wait(&self, out: &mut Vec<Event>, timeout_ms: i32) -> Result<(), Errno> {
        out.clear();
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; BATCH];
        // SAFETY: room for BATCH live events; no signal mask.
        let n = unsafe {
            checked(
                libc::SYS_epoll_pwait,
                [self.0 as usize, events.as_mut_ptr() as usize, BATCH, timeout_ms as usize, 0, 8],
            )
        };
        let n = match n {
            Err(Errno(libc::EINTR)) => 0,
            other => other?,
        };
        out.extend(events[..n].iter().map(|event| {
            let (token, happened) = (event.u64, event.events as i32);
            let broken = happened & (libc::EPOLLERR | libc::EPOLLHUP) != 0;
            Event {
                token,
                readable: broken || happened & libc::EPOLLIN != 0,
                writable: broken || happened & libc::EPOLLOUT != 0,
                ended: broken || happened & libc::EPOLLRDHUP != 0,
                broken,
            }
        }));
        Ok(())
    }
}

fn events(read: bool, write: bool) -> i32 {
    let read = if read { libc::EPOLLIN } else { 0 };
    read | if write { libc::EPOLLOUT } else { 0 }
}

impl Drop for Epoll {
    fn drop(&mut self) {
        close(self.0);
    }
}

/// Wakes a thread that waits in an [`Epoll`] to which it was added.
#[derive(Debug)]
pub struct Waker(i32);

impl Waker {
    /// A new one, not yet woken.
    pub fn new() -> Result<Waker, Errno> {
        let flags = (libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) as usize;
        // SAFETY: no pointers.
        unsafe { checked(libc::SYS_eventfd2, [0, flags, 0, 0, 0, 0]) }.map(|fd| Waker(fd as i32))
    }

    /// The descriptor to add.
    pub fn fd(&self) -> i32 {
        self.0
    }

    /// Makes the descriptor readable.
    pub fn wake(&self) {
        let one = 1u64;
        // SAFETY: eight live bytes.
        let _ = unsafe { checked(libc::SYS_write, [self.0 as usize, &one as *const u64 as usize, 8, 0, 0, 0]) };
    }

    /// Makes it unreadable again.
    pub fn reset(&self) {
        let mut count = 0u64;
        // SAFETY: eight live bytes.
        let _ = unsafe { checked(libc::SYS_read, [self.0 as usize, &mut count as *mut u64 as usize, 8, 0, 0, 0]) };
    }
}

impl Drop for Waker {
    fn drop(&mut self) {
        close(self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_waker_wakes() {
        let (epoll, waker) = (Epoll::new().unwrap(), Waker::new().unwrap());
        epoll.add(waker.fd(), 7, true, false).unwrap();
        let mut events = Vec::new();
        epoll.wait(&mut events, 0).unwrap();
        assert!(events.is_empty());
        waker.wake();
        epoll.wait(&mut events, 1000).unwrap();
        assert!(events.len() == 1 && events[0].token == 7 && events[0].readable);
        waker.reset();
        epoll.wait(&mut events, 0).unwrap();
        assert!(events.is_empty());
    }
}
