//! Connections, peers' ends, and descriptors on their way.

use super::*;
use std::net::TcpListener;
use std::os::fd::AsRawFd;

#[test]
fn nothing_is_held_back_or_paced_at_either_end() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    send_at_once(listener.as_raw_fd());
    let fd = connect(Peer::Tcp(listener.local_addr().unwrap()), 1_000_000_000).unwrap();
    let (other, _) = listener.accept().unwrap();
    for fd in [fd, other.as_raw_fd()] {
        assert_eq!(option(fd, libc::IPPROTO_TCP, libc::TCP_NODELAY), Ok(1));
        let name = congestion(fd).unwrap();
        assert!(!name.starts_with(b"bbr"), "{}", name.escape_ascii());
    }
    close(fd);
}

#[test]
fn bytes_and_addresses_arrive() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    let fd = connect(Peer::Tcp(at), 1_000_000_000).unwrap();
    let (other, from) = listener.accept().unwrap();
    assert_eq!(peer_address(fd), Some(at));
    assert_eq!(local_address(fd), Some(from));
    assert_eq!(send_bytes(other.as_raw_fd(), b"hello"), Ok(5));
    assert_ne!(wait(fd, true, false, 1_000_000_000), 0);
    let mut got = [0; 8];
    assert_eq!(receive_bytes(fd, &mut got), Ok(5));
    assert_eq!(&got[..5], b"hello");
    assert!(!is_cut(fd));
    drop(other);
    wait(fd, true, false, 1_000_000_000);
    assert!(is_cut(fd));
    let (ours, theirs) = crate::descriptors::socket_pair().unwrap();
    assert_eq!(send_bytes(theirs, b"last words"), Ok(10));
    assert!(!is_cut(ours));
    close(theirs);
    assert!(is_cut(ours), "with words before the end that nobody has read");
    let mut words = [0; 16];
    assert_eq!((receive_bytes(ours, &mut words), is_cut(ours)), (Ok(10), true));
    close(ours);
    close(fd);
    drop(listener);
    assert_eq!(connect(Peer::Tcp(at), 1_000_000_000), Err(Errno(libc::ECONNREFUSED)));
}

#[test]
fn a_descriptor_travels_with_bytes() {
    let (a, b) = crate::descriptors::socket_pair().unwrap();
    let (c, d) = crate::descriptors::socket_pair().unwrap();
    let x = Part::new(b"x".as_ptr() as *mut u8, 1);
    // SAFETY: a literal.
    assert_eq!(unsafe { send_with_descriptor(a, &[x], c) }, Ok(1));
    let mut byte = [0];
    let (n, passed) = receive_with_descriptor(b, &mut byte).unwrap();
    let passed = passed.unwrap().into_raw();
    assert_eq!((n, byte[0]), (1, b'x'));
    assert_eq!(send_bytes(passed, b"y"), Ok(1));
    assert_eq!(receive_bytes(d, &mut byte), Ok(1));
    [a, b, c, d, passed].into_iter().for_each(close);
}

/// A peer may pass more than it was asked for. A second descriptor must not stay in this process,
/// where nobody knows its number.
#[test]
fn of_two_descriptors_in_a_message_one_comes() {
    #[repr(C)]
    struct Two {
        head: libc::cmsghdr,
        fds: [i32; 2],
    }
    let (a, b) = crate::descriptors::socket_pair().unwrap();
    let (c, d) = crate::descriptors::socket_pair().unwrap();
    let (e, f) = crate::descriptors::socket_pair().unwrap();
    let part = Part::new(b"x".as_ptr() as *mut u8, 1);
    // SAFETY: zero is valid for both.
    let (mut message, mut control): (libc::msghdr, Two) = unsafe { (zeroed(), zeroed()) };
    control.head.cmsg_len = size_of::<Two>();
    (control.head.cmsg_level, control.head.cmsg_type) = (libc::SOL_SOCKET, libc::SCM_RIGHTS);
    control.fds = [c, e];
    message.msg_iov = (&raw const part).cast_mut().cast();
    message.msg_iovlen = 1;
    message.msg_control = (&raw mut control).cast();
    message.msg_controllen = size_of::<Two>();
    // SAFETY: the header, its part and its control message are live.
    let sent = unsafe { retried(libc::SYS_sendmsg, [a as usize, &raw const message as usize, 0, 0, 0, 0]) };
    assert_eq!(sent, Ok(1));
    let (n, passed) = receive_with_descriptor(b, &mut [0]).unwrap();
    assert_eq!(n, 1);
    close(c);
    close(e);
    drop(passed.expect("the first comes"));
    assert!(is_cut(d) && is_cut(f), "a descriptor is still open");
    [a, b, d, f].into_iter().for_each(close);
}
