//! The pager with a SIGBUS handler of the test's: pages come, go, and keep their bytes.
#![allow(unsafe_code)]

use farmem_fabric::{ConnectOptions, NodeAddr, Session, Transport};
use farmem_memory::Node;
use farmem_pager::{Config, FaultMode, Pager};
use farmem_pool::Pool;
use farmem_protocol::addr::PAGE_BYTES;
use farmem_protocol::counters::Process;
use std::sync::OnceLock;
use std::time::Duration;

static PAGER: OnceLock<&'static Pager> = OnceLock::new();

extern "C" fn on_sigbus(_: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel's arguments to a SA_SIGINFO handler.
    let (addr, write) = unsafe {
        let context = &*context.cast::<libc::ucontext_t>();
        ((*info).si_addr() as usize, context.uc_mcontext.gregs[libc::REG_ERR as usize] & 2 != 0)
    };
    if !PAGER.get().unwrap().fault(addr, write) {
        farmem_pager::ending::die(99, &format!("a fault at {addr:#x} that is not far"));
    }
}

/// A member of a node in this very process, which lives as long as the test.
fn session(mapped: bool) -> Session {
    let path = std::env::temp_dir().join(format!("farmem-pager-{}.sock", std::process::id()));
    let node = Node::start(&farmem_memory::Config {
        lend: 1 << 30,
        listen: vec![NodeAddr::Tcp("127.0.0.1:0".into()), NodeAddr::Shm(path)],
        metrics: None,
        grace: Duration::ZERO,
        huge: false,
        embedded: false,
        status_dir: None,
    });
    let node = Box::leak(Box::new(node.unwrap()));
    let options = ConnectOptions {
        timeout: Duration::from_secs(5),
        grace: Duration::from_secs(1),
        run: [1; 16],
        pid: std::process::id(),
        transport: if mapped { Transport::Shm } else { Transport::Tcp },
    };
    Session::connect(&node.addresses()[0], &options).unwrap()
}

fn start(local: u64, mapped: bool) -> &'static Pager {
    // SAFETY: a zeroed Process is a valid one.
    let counters: &'static Process = Box::leak(Box::new(unsafe { std::mem::zeroed() }));
    let config = Config {
        local,
        mode: if std::env::var("THREAD").is_ok() { FaultMode::Thread } else { FaultMode::Inline },
        prefetch: std::env::var("NOPREFETCH").is_err(),
        vectored: true,
    };
    let pool = Pool::new(vec![session(mapped)]).unwrap();
    let pager = farmem_pager::start(config, pool, counters).unwrap();
    PAGER.set(pager).ok().unwrap();
    // SAFETY: installs a handler that follows the pager's rules.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_sigbus as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO;
        libc::sigfillset(&mut action.sa_mask);
        libc::sigaction(libc::SIGBUS, &action, std::ptr::null_mut());
    }
    pager
}

#[test]
fn everything() {
    let mapped = std::env::var("UNMAPPED").is_err();
    let pager = start(8 << 20, mapped);
    let pages = 16384usize;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let at = pager.mmap(0, pages * PAGE_BYTES, 3, flags);
    assert!(at > 0);
    let base = at as usize as *mut u64;
    let mut model = vec![0u64; pages];
    let mut r = 88172645463325252u64;
    let mut next = || {
        r ^= r << 13;
        r ^= r >> 7;
        r ^= r << 17;
        r
    };
    let t = std::time::Instant::now();
    for i in 0..pages {
        unsafe { base.add(i * 512 + 7).write(i as u64 + 1) };
        model[i] = i as u64 + 1;
    }
    println!("first touch {:?}/page", t.elapsed() / pages as u32);
    let t = std::time::Instant::now();
    for i in 0..pages {
        assert_eq!(unsafe { base.add(i * 512 + 7).read() }, model[i]);
    }
    println!("seq read {:?}/page", t.elapsed() / pages as u32);
    let t = std::time::Instant::now();
    for _ in 0..200_000 {
        let i = next() as usize % pages;
        assert_eq!(unsafe { base.add(i * 512 + 7).read() }, model[i]);
    }
    println!("rand read {:?}", t.elapsed() / 200_000);
    let t = std::time::Instant::now();
    for _ in 0..200_000 {
        let i = next() as usize % pages;
        let v = next();
        unsafe { base.add(i * 512 + 7).write(v) };
        model[i] = v;
    }
    println!("rand write {:?}", t.elapsed() / 200_000);
    for _ in 0..200_000 {
        let i = next() as usize % pages;
        let v = next();
        unsafe {
            let p = base.add(i * 512 + 7);
            assert_eq!(p.read(), model[i]);
            if v & 1 == 0 {
                p.write(v);
                model[i] = v
            }
        }
    }
    // move
    let at2 = pager.mremap(
        at as usize,
        pages * PAGE_BYTES,
        pages * PAGE_BYTES,
        libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED,
        at as usize + (1 << 35),
    );
    assert_eq!(at2, at + (1 << 35));
    let base = at2 as usize as *mut u64;
    for i in 0..pages {
        assert_eq!(unsafe { base.add(i * 512 + 7).read() }, model[i], "page {i}");
    }
    assert_eq!(pager.madvise(at2 as usize + 100 * 4096, 50 * 4096, libc::MADV_DONTNEED), 0);
    for i in 100..150 {
        model[i] = 0
    }
    for i in 0..pages {
        assert_eq!(unsafe { base.add(i * 512 + 7).read() }, model[i], "page {i}");
    }
    // fork
    let fork = pager.fork_prepare();
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        pager.fork_child(fork, Box::leak(Box::new(unsafe { std::mem::zeroed() })));
        for i in 0..pages {
            if unsafe { base.add(i * 512 + 7).read() } != model[i] {
                unsafe { libc::_exit(1) }
            }
        }
        for i in 0..pages {
            unsafe { base.add(i * 512 + 7).write(i as u64 ^ 0x5555) }
        }
        for i in 0..pages {
            if unsafe { base.add(i * 512 + 7).read() } != i as u64 ^ 0x5555 {
                unsafe { libc::_exit(2) }
            }
        }
        unsafe { libc::_exit(0) }
    }
    pager.fork_parent(fork, true);
    for i in (0..pages).rev() {
        unsafe {
            assert_eq!(base.add(i * 512 + 7).read(), model[i]);
            base.add(i * 512 + 7).write(i as u64 ^ 0x77)
        }
    }
    let mut status = 0;
    unsafe { libc::waitpid(pid, &mut status, 0) };
    assert_eq!(status, 0);
    for i in 0..pages {
        assert_eq!(unsafe { base.add(i * 512 + 7).read() }, i as u64 ^ 0x77);
    }
    // threads
    let base = base as usize;
    let threads: Vec<_> = (0..4usize)
        .map(|t| {
            std::thread::spawn(move || {
                let mut r = 88172645463325252u64 + t as u64;
                let base = base as *mut u64;
                let mut mine = vec![0u64; pages];
                for n in 0..100_000u64 {
                    r ^= r << 13;
                    r ^= r >> 7;
                    r ^= r << 17;
                    let i = r as usize % pages;
                    unsafe {
                        let p = base.add(i * 512 + 16 + t);
                        if mine[i] != 0 {
                            assert_eq!(p.read(), mine[i]);
                        }
                        p.write(n + 1);
                        mine[i] = n + 1;
                    }
                }
            })
        })
        .collect();
    for t in threads {
        t.join().unwrap();
    }
}
