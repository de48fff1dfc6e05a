//! Slabs of a pool: how many there are, from which node, who shares them after a fork, and what
//! becomes of them when their node's process ends.

#![allow(unsafe_code)] // Forks; buffers of reads and writes; bytes in place.

mod common;

use common::{alloc, options, pool, read, write};
use farmem_fabric::{ConnectOptions, NodeAddr, Session, Transport};
use farmem_memory::{Config, Node};
use farmem_pool::{Lane, NoRoom, Pool, Standing};
use farmem_protocol::addr::{FarSlot, SLAB_BYTES, SLOTS_PER_SLAB};
use std::io::Read;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

const SLAB: usize = SLOTS_PER_SLAB as usize;

#[test]
fn slabs_come_from_the_node_with_less_and_then_from_whoever_has_any() {
    let (networks, pool) = pool(&[6, 6, 2]);
    pool.slots().ensure(6 * SLAB_BYTES).unwrap();
    let lent = || networks.iter().map(|network| network.lent() / SLAB_BYTES).collect::<Vec<_>>();
    assert!(lent().iter().all(|slabs| (1..=3).contains(slabs)), "{:?}", lent());
    pool.slots().ensure(14 * SLAB_BYTES).unwrap();
    assert_eq!((lent(), pool.slots().capacity()), (vec![6, 6, 2], 14 * SLAB_BYTES));
    let refused = pool.slots().ensure(15 * SLAB_BYTES).unwrap_err();
    assert!(refused.to_string().contains("memory node sim has lent all"), "{refused}");
    // What is refused takes nothing.
    let slots = alloc(&pool, 14 * SLAB - 5);
    let mut more = vec![FarSlot::new(0, 0)];
    assert!(matches!(pool.slots().alloc(6, &mut more), Err(NoRoom::Exhausted(_))));
    assert_eq!((more.len(), pool.slots().used()), (1, (14 * SLAB as u64 - 5) * 4096));
    pool.slots().alloc(5, &mut more).unwrap();
    pool.slots().free(&slots);
    pool.slots().shrink(3 * SLAB_BYTES);
    assert_eq!((lent().iter().sum::<u64>(), pool.slots().used()), (3, 5 * 4096));
}

#[test]
fn a_node_that_is_taken_out_is_left_with_its_last_slab() {
    let (networks, pool) = pool(&[4, 4]);
    pool.slots().ensure(4 * SLAB_BYTES).unwrap();
    let (slots, mut lane) = (alloc(&pool, 4 * SLAB), Lane::new());
    let on = |slot: &FarSlot| pool.homes(slot.slab_index())[0].unwrap().0;
    let (mut mine, mut others): (Vec<FarSlot>, Vec<FarSlot>) = slots.iter().partition(|slot| on(slot) == 0);
    assert!(!mine.is_empty() && !others.is_empty());
    let kept = mine.pop().unwrap();
    write(&pool, &mut lane, kept, 5).unwrap();
    assert!(pool.is_own(kept) && pool.nodes().node_at("sim") == Some(0));
    assert!(pool.take_out(0) && !pool.take_out(0) && !pool.take_out(7));
    assert!(!pool.is_own(kept) && pool.is_own(others[0]) && pool.nodes().node_at("sim") == Some(1));
    // Nothing new is there, and what is there can be read.
    pool.slots().free(&mine);
    let more = alloc(&pool, SLAB);
    assert!(more.iter().all(|slot| on(slot) == 1));
    others.extend(more);
    assert_eq!((read(&pool, &mut lane, kept), pool.nodes().standing(0)), (Ok(5), Some(Standing::Leaving)));
    pool.slots().free(&[kept]);
    pool.slots().shrink(u64::MAX - SLAB_BYTES);
    assert_eq!((pool.nodes().standing(0), networks[0].lent(), pool.nodes().count()), (Some(Standing::Left), 0, 1));
    networks[0].kill_node();
    assert_eq!(pool.losses().tend(), Ok(()));
    assert!(pool.losses().take().is_empty(), "it was left");
    pool.slots().free(&others);
}

/// A child of this process that lives until it is killed.
struct Lives(i32);

impl Lives {
    /// Forks as the pager does: nobody else uses the pool.
    fn fork(pool: &Pool) -> Lives {
        let share = pool.forks().prepare().unwrap();
        // SAFETY: the child makes system calls only, and leaves by _exit.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            // SAFETY: as above. Every descriptor that it inherited stays open. Not for ever: its
            // parent may fail.
            unsafe {
                libc::alarm(60);
                libc::pause();
                libc::_exit(0)
            }
        }
        pool.forks().parent(share, true);
        Lives(pid)
    }

    fn ends(self) {
        // SAFETY: our child.
        unsafe {
            libc::kill(self.0, libc::SIGKILL);
            assert_eq!(libc::waitpid(self.0, std::ptr::null_mut(), 0), self.0);
        }
    }
}

#[test]
fn what_two_processes_share_is_neithers_while_both_live() {
    let (networks, pool) = pool(&[8]);
    let (mut lane, slots) = (Lane::new(), alloc(&pool, 100));
    write(&pool, &mut lane, slots[0], 7).unwrap();
    let child = Lives::fork(&pool);
    assert!(slots.iter().all(|&slot| !pool.is_own(slot)));
    let own = alloc(&pool, 1)[0];
    assert!(pool.is_own(own) && own.slab_index() != slots[0].slab_index());
    assert_eq!(read(&pool, &mut lane, slots[0]), Ok(7));
    pool.forks().end_shares();
    assert!(!pool.is_own(slots[0]), "the child lives");
    child.ends();
    pool.forks().end_shares();
    assert!(pool.is_own(slots[0]) && networks[0].lent() == 2 * SLAB_BYTES);
    assert_eq!(read(&pool, &mut lane, slots[0]), Ok(7));
}

/// A program that forks often and rewrites its memory in between does not take a slab for each
/// fork.
#[test]
fn a_shared_slab_that_holds_nothing_is_left_when_one_more_is_needed() {
    let (networks, pool) = pool(&[8]);
    let mut slots = alloc(&pool, 10);
    let mut children = Vec::new();
    for _ in 0..5 {
        children.push(Lives::fork(&pool));
        let fresh = alloc(&pool, 10);
        pool.slots().free(&slots);
        slots = fresh;
    }
    // The last two: one that a child still shares, and one of its own. Those before were left.
    assert_eq!(pool.slots().capacity(), 2 * SLAB_BYTES);
    children.into_iter().for_each(Lives::ends);
    pool.forks().end_shares();
    // Their descriptors ended with them; by now the node, too, has seen them go.
    networks[0].pass(5_000_000_000);
    alloc(&pool, SLAB);
    assert!(slots.iter().all(|&slot| pool.is_own(slot)));
}

/// A fork that fails leaves everything as it was.
#[test]
fn a_failed_fork_shares_nothing() {
    let (networks, pool) = pool(&[2, 2]);
    let slots = alloc(&pool, 10);
    let share = pool.forks().prepare().unwrap();
    pool.forks().parent(share, false);
    assert!(pool.is_own(slots[0]));
    pool.slots().free(&slots);
    pool.slots().shrink(0);
    networks.iter().for_each(|network| network.pass(5_000_000_000));
    assert_eq!(networks.iter().map(|network| network.lent()).sum::<u64>(), 0, "the ticket was given back");
}

const NODE: &str = "FARMEM_POOL_TEST_NODE";

/// What the tests below run in a process of its own; nothing by itself.
#[test]
fn node_process() {
    let Ok(path) = std::env::var(NODE) else { return };
    let _node = Node::start(&Config::new(256 << 20, vec![NodeAddr::Shm(PathBuf::from(path))])).unwrap();
    println!("listens");
    let _ = std::io::stdin().read(&mut [0]);
}

/// A node on this machine, in a process that can be killed.
struct Elsewhere {
    process: Child,
    path: PathBuf,
}

impl Elsewhere {
    fn start(name: &str) -> Elsewhere {
        let path = std::env::temp_dir().join(format!("farmem-pool-{}-{name}.sock", std::process::id()));
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args(["node_process", "--exact", "--nocapture"])
            .env(NODE, &path)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = Vec::new();
        while !String::from_utf8_lossy(&said).contains("listens") {
            let mut byte = [0];
            assert_eq!(process.stdout.as_mut().unwrap().read(&mut byte).unwrap(), 1, "the node did not start");
            said.push(byte[0]);
        }
        Elsewhere { process, path }
    }

    fn session(&self) -> Session {
        let options = ConnectOptions { transport: Transport::Shm, ..options() };
        Session::connect(&NodeAddr::Shm(self.path.clone()), &options).unwrap()
    }

    fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

impl Drop for Elsewhere {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = std::fs::remove_file(&self.path);
    }
}

fn put(pool: &Pool, slot: FarSlot, value: u64) {
    let at = pool.writable_in_place(slot).unwrap();
    // SAFETY: a slot of ours, mapped.
    unsafe { at.cast::<u64>().write_volatile(value) };
}

fn get(pool: &Pool, slot: FarSlot) -> u64 {
    let at = pool.readable_in_place(slot).unwrap();
    // SAFETY: as above.
    unsafe { at.cast::<u64>().read_volatile() }
}

#[test]
fn what_is_mapped_of_a_node_that_has_ended_stays() {
    let mut nodes = [Elsewhere::start("ends"), Elsewhere::start("stays")];
    let pool = Pool::new(nodes.iter().map(Elsewhere::session).collect()).unwrap();
    pool.slots().ensure(4 * SLAB_BYTES).unwrap();
    let slots = alloc(&pool, 4 * SLAB);
    let some: Vec<FarSlot> = slots.iter().copied().step_by(997).collect();
    some.iter().enumerate().for_each(|(nth, &slot)| put(&pool, slot, nth as u64 + 1));
    let there = some.iter().filter(|slot| pool.homes(slot.slab_index())[0].unwrap().0 == 0).count();
    assert!(there > 0 && there < some.len());
    nodes[0].kill();
    assert_eq!(pool.losses().tend(), Ok(()));
    let losses = pool.losses().take();
    assert!(losses.len() == 1 && losses[0].kept && losses[0].slabs > 0, "{losses:?}");
    assert_eq!([0, 1].map(|node| pool.nodes().standing(node)), [Some(Standing::Orphaned), Some(Standing::In)]);
    for (nth, &slot) in some.iter().enumerate() {
        assert_eq!(get(&pool, slot), nth as u64 + 1);
        put(&pool, slot, nth as u64 + 100);
    }
    // A lane copies, and asks nobody.
    let mut lane = Lane::new();
    some.iter().for_each(|&slot| assert_eq!(write(&pool, &mut lane, slot, 9).and(read(&pool, &mut lane, slot)), Ok(9)));
    // A forked child has them too, and shares them.
    let child = Lives::fork(&pool);
    assert!(some.iter().all(|&slot| !pool.is_own(slot)));
    child.ends();
    pool.forks().end_shares();
    assert!(some.iter().all(|&slot| pool.is_own(slot)));
    // What is freed is free again, and more comes from the other node.
    pool.slots().free(&slots);
    (0..3).for_each(|_| pool.slots().give_back_idle());
    let slots = alloc(&pool, 5 * SLAB);
    assert_eq!(slots.iter().filter(|slot| slot.slab_index() > 3).count(), SLAB);
    pool.slots().free(&slots);
    pool.slots().shrink(0);
    assert_eq!((pool.slots().capacity(), pool.losses().tend()), (0, Ok(())));
    // The last one ends with what it has, which is nothing: then there is no more.
    nodes[1].kill();
    assert_eq!(pool.losses().tend(), Ok(()));
    assert!(!pool.losses().take()[0].kept || pool.slots().capacity() == 0);
    let none = pool.slots().alloc(1, &mut Vec::new()).unwrap_err();
    assert!(matches!(&none, NoRoom::Exhausted(why) if why.contains("is lost")), "{none}");
}

/// A node that lives and no longer knows the member may give its memory to another: that is a loss.
#[test]
fn a_node_that_lives_and_lets_go_of_a_member_keeps_nothing_for_it() {
    let node = Elsewhere::start("lets-go");
    let session = node.session();
    let pool = Pool::new(vec![node.session()]).unwrap();
    let slot = alloc(&pool, 1)[0];
    put(&pool, slot, 3);
    drop(node);
    assert_eq!(pool.losses().tend(), Ok(()));
    assert_eq!(get(&pool, slot), 3, "ended");
    drop(session);
    // A node in this very process, which lives on.
    let path = std::env::temp_dir().join(format!("farmem-pool-{}-here.sock", std::process::id()));
    let node = Node::start(&Config::new(256 << 20, vec![NodeAddr::Shm(path.clone())])).unwrap();
    let options = ConnectOptions { transport: Transport::Shm, ..options() };
    let pool = Pool::new(vec![Session::connect(&NodeAddr::Shm(path), &options).unwrap()]).unwrap();
    alloc(&pool, 1);
    drop(node);
    // Children that other tests have forked hold its sockets for a while.
    let seen = (0..1000).find(|_| {
        std::thread::sleep(std::time::Duration::from_millis(10));
        pool.losses().tend().is_err()
    });
    assert!(seen.is_some() && !pool.losses().take()[0].kept);
}

/// What a slab has is copied to a mapped home by stores. The node has allocated the memory before: whoever touches a page
/// first is charged for it.
#[test]
fn a_mapped_home_has_memory_before_anything_is_copied_there() {
    let path = std::env::temp_dir().join(format!("farmem-pool-{}-backed.sock", std::process::id()));
    let [old, new] = [NodeAddr::Tcp("127.0.0.1:0".into()), NodeAddr::Shm(path.clone())]
        .map(|at| Node::start(&Config::new(256 << 20, vec![at])).unwrap());
    let pool = Pool::new(vec![Session::connect(&old.addresses()[0], &options()).unwrap()]).unwrap();
    // In three blocks.
    let slots = alloc(&pool, 1025);
    let index = slots[0].slab_index();
    let mapped = ConnectOptions { transport: Transport::Shm, ..options() };
    pool.add_node(Session::connect(&NodeAddr::Shm(path), &mapped).unwrap()).unwrap();
    assert!(pool.take_out(0));
    assert_eq!(new.nic().in_use(), 0);
    pool.moves().add_home(index).unwrap();
    assert_eq!(new.nic().in_use(), 3 << 21);
}

/// Every slab that is held is looked at before another is asked for, wherever the last one was found.
#[test]
fn all_that_a_node_lends_is_used() {
    for slabs in 1..=7 {
        let (_networks, pool) = pool(&[slabs]);
        let each = |_| alloc(&pool, SLOTS_PER_SLAB as usize).len();
        assert_eq!((0..slabs).map(each).sum::<usize>(), slabs as usize * SLOTS_PER_SLAB as usize);
    }
}
