//! A program's side of the pager, as the runtime plays it: its SIGBUS handler, a node in this very process, counters.

use farmem_fabric::{ConnectOptions, NodeAddr, Session, Transport};
use farmem_memory::Node;
use farmem_pager::Pager;
use farmem_run::RunSpec;
use farmem_run::counters::Process;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// As in a program: the pager's background thread has no thread-locals, which libc's malloc uses.
#[global_allocator]
static ARENA: farmem_sys::arena::Arena = farmem_sys::arena::Arena::new();

static PAGER: OnceLock<&'static Pager> = OnceLock::new();

/// Faults that [`on_sigbus`] took to the pager.
pub static FAULTS: AtomicU64 = AtomicU64::new(0);

/// Takes a fault to the pager.
pub extern "C" fn on_sigbus(_: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel's arguments to a SA_SIGINFO handler.
    let (addr, write) = unsafe {
        let context = &*context.cast::<libc::ucontext_t>();
        ((*info).si_addr() as usize, context.uc_mcontext.gregs[libc::REG_ERR as usize] & 2 != 0)
    };
    FAULTS.fetch_add(1, Ordering::Relaxed);
    if !PAGER.get().unwrap().fault(addr, write) {
        farmem_pager::ending::die(99, &format!("a fault at {addr:#x} that is not far"));
    }
}

/// Gives this pager the faults of the process. A process has one.
pub fn serve_faults(pager: &'static Pager) {
    PAGER.set(pager).ok().unwrap();
    handle(libc::SIGBUS, on_sigbus);
}

/// Has a signal handled, all others blocked.
pub fn handle(signal: i32, handler: extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void)) {
    // SAFETY: installs a handler that follows the pager's rules.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO;
        libc::sigfillset(&mut action.sa_mask);
        libc::sigaction(signal, &action, std::ptr::null_mut());
    }
}

/// A node that listens there and lends this much, as long as the test lives, and a member of it at the first address.
pub fn member(lend: u64, listens: Vec<NodeAddr>, transport: Transport) -> (&'static Node, Session) {
    let node = Node::start(&farmem_memory::Config::new(lend, listens)).unwrap();
    let node: &'static Node = Box::leak(Box::new(node));
    (node, connect(&node.addresses()[0], transport))
}

/// A member of the node at an address.
pub fn connect(address: &NodeAddr, transport: Transport) -> Session {
    let options = ConnectOptions {
        timeout: Duration::from_secs(30),
        grace: Duration::from_secs(1),
        run: [1; 16],
        pid: std::process::id(),
        transport,
        ..ConnectOptions::default()
    };
    Session::connect(address, &options).unwrap()
}

/// Counters that live as long as the test.
pub fn counters() -> &'static Process {
    // SAFETY: atomics; zero is a value of each.
    Box::leak(Box::new(unsafe { std::mem::zeroed() }))
}

/// As a run has it that names nothing but its local memory, bytes.
pub fn spec(local: u64) -> RunSpec {
    RunSpec { local, ..RunSpec::default() }
}
