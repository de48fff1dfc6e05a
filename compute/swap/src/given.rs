//! The stream that the kernel was given, as its descriptor shows it.
//!
//! The kernel tells of a stream's death by a message, and needs memory for it. When it has none,
//! nothing is told, and pages would wait until the grace is over. But the kernel shuts a dead
//! stream down, and sets its own timeout on one that it takes. This process has a descriptor of
//! the same socket, and sees both.

use crate::stream::Stream;
use std::time::{Duration, Instant};

/// How long a stream may be shut down before that counts as its death. A death that is told is told
/// sooner. The kernel takes a new stream only when it has done with the old one.
const UNTOLD: Duration = Duration::from_secs(1);
/// How long after the offer of a stream the end of the one before may be told.
const SETTLES: Duration = Duration::from_secs(2);

/// A stream that was offered to the kernel.
#[derive(Debug)]
pub(crate) struct Given {
    stream: Stream,
    at: Instant,
    /// When it was first seen to be shut down.
    ended: Option<Instant>,
}

impl Given {
    pub(crate) fn new(stream: Stream, now: Instant) -> Given {
        Given { stream, at: now, ended: None }
    }

    /// Whether the end of the stream before would have been told by now.
    pub(crate) fn is_settled(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.at) >= SETTLES
    }

    /// Whether it is shut down, and it is not yet sure that this will not be told.
    pub(crate) fn is_doubtful(&self) -> bool {
        self.ended.is_some()
    }

    /// Whether it has died, and nobody told. `takes_over`: the kernel may have had another stream,
    /// and have taken none.
    pub(crate) fn is_dead(&mut self, now: Instant, takes_over: bool) -> bool {
        if !self.stream.is_shut() {
            self.ended = None;
            return takes_over && self.is_settled(now) && !self.stream.has_limit();
        }
        now.saturating_duration_since(*self.ended.get_or_insert(now)) >= UNTOLD
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::net::{Shutdown, TcpListener, TcpStream};

    /// A stream as the kernel gets it, the same socket as the kernel has it, and the node's end.
    pub(crate) fn streams() -> (Stream, TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let ours = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let kernels = ours.try_clone().unwrap();
        (Stream::of_test(ours), kernels, listener.accept().unwrap().0)
    }

    #[test]
    fn a_stream_that_the_kernel_has_shut_down_is_dead_when_nobody_tells() {
        let begun = Instant::now();
        let (stream, kernels, node) = streams();
        let mut given = Given::new(stream, begun);
        assert!(!given.is_dead(begun, false) && !given.is_doubtful());
        // The kernel sees the node's end first, and takes what came before it.
        node.shutdown(Shutdown::Write).unwrap();
        assert!(!given.is_dead(begun + 9 * UNTOLD, false));
        kernels.shutdown(Shutdown::Both).unwrap();
        let seen = begun + 10 * UNTOLD;
        // It may be told yet.
        assert!(!given.is_dead(seen, false) && !given.is_dead(seen + UNTOLD / 2, false) && given.is_doubtful());
        assert!(given.is_dead(seen + UNTOLD, false));
    }

    #[test]
    fn a_stream_that_the_kernel_did_not_take_is_seen_when_one_takes_over() {
        let begun = Instant::now();
        let (stream, kernels, _node) = streams();
        let mut given = Given::new(stream, begun);
        assert!(!given.is_dead(begun + SETTLES / 2, true) && !given.is_dead(begun + SETTLES, false));
        assert!(given.is_dead(begun + SETTLES, true));
        // As the kernel's NBD client does with a socket that it takes.
        kernels.set_write_timeout(Some(Duration::from_secs(3))).unwrap();
        assert!(!given.is_dead(begun + SETTLES, true));
    }
}
