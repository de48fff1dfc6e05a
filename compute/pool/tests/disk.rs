//! Slabs whose second copy is in a file on this host: nodes are killed, join again, and leave; the file is full.

mod common;

use common::{all_done, all_there, alloc, leave_once, node, page, read, repaired, write};
use farmem_pool::homes::State;
use farmem_pool::{Disk, Lacks, Lane, Pool, Protect, Standing};
use farmem_protocol::addr::{FarSlot, PAGE_BYTES, SLAB_BYTES};
use farmem_protocol::lines::{self, Entry};
use farmem_sim::Network;
use std::sync::{Arc, Mutex};

/// One at a time: a limit on files is the process's.
static ALONE: Mutex<()> = Mutex::new(());

/// The number by which a home on disk is named.
const DISK: usize = farmem_pool::MAX_NODES;

/// A pool that keeps a copy in a file, over simulated nodes that lend this many slabs each; with the thread that
/// writes, or without.
fn on_disk(slabs: &[u64], thread: bool) -> (Vec<Arc<Network>>, &'static Pool) {
    let (networks, pool) = common::pool(slabs);
    let pool: &'static Pool = Box::leak(Box::new(pool));
    pool.protect_by(Disk::open("/tmp").unwrap());
    if thread {
        std::thread::spawn(|| pool.run_disk(|| ()));
    }
    (networks, pool)
}

fn written(pool: &Pool, lane: &mut Lane, n: usize) -> Vec<FarSlot> {
    let slots = alloc(pool, n);
    slots.iter().enumerate().for_each(|(value, &slot)| assert_eq!(write(pool, lane, slot, value as u64 + 1), Ok(0)));
    slots
}

#[test]
fn the_only_node_is_killed_and_every_page_is_read_from_the_disk() {
    let _alone = ALONE.lock();
    for thread in [false, true] {
        let (networks, pool) = on_disk(&[2], thread);
        let mut lane = Lane::new();
        let slots = written(pool, &mut lane, 600);
        let index = slots[0].slab_index();
        assert_eq!(pool.homes(index), [Some((0, State::Whole)), Some((DISK, State::Whole))]);
        assert_eq!((pool.protection(), pool.repair().single_bytes(), pool.repair().lacks()), (Protect::Disk, 0, None));
        // One record of lines: the node gets the line, the disk the page.
        let changed = page(601);
        let mut record = [0u8; 4096];
        // SAFETY: a page of bytes.
        #[allow(unsafe_code)]
        let bytes = unsafe { &*changed.as_ptr().cast::<[u8; PAGE_BYTES]>() };
        let entry = [Entry { place: (slots[7].place() as u16).into(), lines: u64::MAX.into() }];
        assert!(pool.takes_lines(slots[7]).is_some());
        // SAFETY: page and record outlive the operation, which is awaited.
        #[allow(unsafe_code)]
        unsafe {
            lane.lines(pool, 3, [(slots[7], changed.as_ptr().cast())].into_iter(), false, |slab| {
                let lines = [Entry { lines: 0xff.into(), ..entry[0] }];
                lines::encode(slab, &lines, &mut record, |_| bytes).map(|len| (record.as_ptr(), len as u32))
            });
        }
        assert_eq!(all_done(pool, &mut lane), [(3, Ok(0))]);
        networks[0].kill_node();
        assert_eq!(read(pool, &mut lane, slots[7]), Ok(601));
        assert_eq!(write(pool, &mut lane, slots[7], 8), Ok(0));
        all_there(pool, &mut lane, &slots);
        assert_eq!((pool.nodes().standing(0), pool.losses().tend()), (Some(Standing::Lost), Ok(())));
        assert_eq!(pool.homes(index), [None, Some((DISK, State::Whole))]);
        assert_eq!((pool.takes_lines(slots[0]), pool.repair().single_bytes()), (None, SLAB_BYTES));
        // New memory is on disk alone, as long as there is no node.
        pool.slots().ensure(3 * SLAB_BYTES).unwrap();
        let more = written(pool, &mut lane, 40);
        // A node joins: everything moves there, and the disk keeps its copy.
        let (_second, session) = node(9, 3);
        pool.add_node(session).unwrap();
        assert!(repaired(pool, &mut lane));
        assert_eq!(pool.homes(index), [Some((1, State::Whole)), Some((DISK, State::Whole))]);
        assert_eq!(pool.repair().single_bytes(), 0);
        all_there(pool, &mut lane, &slots);
        all_there(pool, &mut lane, &more);
        // Freed slabs take no room.
        pool.slots().free(&slots);
        pool.slots().free(&more);
        pool.slots().shrink(0);
        assert_eq!((pool.slots().capacity(), pool.disk_news()), (0, vec![]));
    }
}

/// A drain moves slabs to another node; the disk keeps its copy meanwhile.
#[test]
fn a_node_is_taken_out() {
    let _alone = ALONE.lock();
    let (networks, pool) = on_disk(&[2, 2], true);
    let mut lane = Lane::new();
    let slots = written(pool, &mut lane, 50);
    let left = pool.homes(slots[0].slab_index())[0].unwrap().0;
    assert!(pool.take_out(left) && repaired(pool, &mut lane));
    pool.slots().shrink(SLAB_BYTES);
    assert_eq!(
        (pool.nodes().standing(left), networks[left].lent(), pool.repair().single_bytes()),
        (Some(Standing::Left), 0, 0)
    );
    networks.iter().for_each(|network| network.kill_node());
    all_there(pool, &mut lane, &slots);
}

/// Without room in the file a slab has its node alone, and gets its copy when there is room.
#[test]
fn a_file_that_is_full_costs_the_copy_and_no_page() {
    let _alone = ALONE.lock();
    let (networks, pool) = on_disk(&[2], true);
    let mut lane = Lane::new();
    // SAFETY: plain limits of this process, whose other tests wait.
    #[allow(unsafe_code)]
    let limit = |bytes: u64| unsafe {
        let limit = libc::rlimit { rlim_cur: bytes, rlim_max: libc::RLIM_INFINITY };
        assert_eq!(libc::setrlimit(libc::RLIMIT_FSIZE, &limit), 0);
    };
    let slots = written(pool, &mut lane, 600);
    // The first two blocks have room; a third does not, and the slab goes on without the file.
    limit(4 << 20);
    let more = written(pool, &mut lane, 600);
    let index = slots[0].slab_index();
    assert_eq!((pool.homes(index), pool.repair().single_bytes()), ([Some((0, State::Whole)), None], SLAB_BYTES));
    leave_once(pool);
    assert_eq!(pool.repair().lacks(), Some(Lacks::Home(index)));
    let refused = pool.moves().add_home(index).unwrap_err().to_string();
    assert!(refused.contains("/tmp has no room"), "{refused}");
    limit(libc::RLIM_INFINITY);
    assert!(repaired(pool, &mut lane));
    networks[0].kill_node();
    all_there(pool, &mut lane, &slots);
    all_there(pool, &mut lane, &more);
}

/// A file system on a loop device whose own file system is full: what it promised room for cannot be written.
struct Failing {
    dir: std::path::PathBuf,
}

impl Failing {
    /// None: nothing can be mounted here.
    fn mounted() -> Option<Failing> {
        let dir = std::env::temp_dir().join(format!("farmem-failing-{}", std::process::id()));
        let failing = Failing { dir };
        let (ground, above) = (failing.dir.join("ground"), failing.dir.join("above"));
        std::fs::create_dir_all(&ground).and_then(|()| std::fs::create_dir_all(&above)).ok()?;
        let done = |program: &str, words: &[&str]| {
            let ran = std::process::Command::new(program).args(words).output();
            ran.is_ok_and(|ran| ran.status.success()).then_some(())
        };
        let image = ground.join("image");
        let (ground, above, image) = (ground.to_str()?, above.to_str()?, image.to_str()?);
        done("mount", &["-t", "tmpfs", "-o", "size=24M", "tmpfs", ground])?;
        std::fs::File::create(image).and_then(|file| file.set_len(256 << 20)).ok()?;
        done("mkfs.ext4", &["-q", "-O", "^has_journal", image])?;
        done("mount", &["-o", "loop", image, above])?;
        Some(failing)
    }
}

impl Drop for Failing {
    fn drop(&mut self) {
        for part in ["above", "ground"] {
            let _ = std::process::Command::new("umount").arg("-l").arg(self.dir.join(part)).output();
        }
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

/// A device that fails after the kernel has taken the pages: the node has every one, and the program is told.
#[test]
fn a_device_that_fails_costs_the_copies_and_no_page() {
    let _alone = ALONE.lock();
    let Some(failing) = Failing::mounted() else {
        println!("skipped: a_device_that_fails_costs_the_copies_and_no_page: no loop device can be mounted here");
        return;
    };
    let (_networks, pool) = common::pool(&[4]);
    let pool: &'static Pool = Box::leak(Box::new(pool));
    pool.protect_by(Disk::open(failing.dir.join("above").to_str().unwrap()).unwrap());
    std::thread::spawn(|| pool.run_disk(|| ()));
    let mut lane = Lane::new();
    let slots = written(pool, &mut lane, 16_000);
    let in_file = |slot: &FarSlot| pool.homes(slot.slab_index()).iter().flatten().any(|home| home.0 == DISK);
    // The kernel writes back in its own time: pages leave again until it has tried.
    let begun = std::time::Instant::now();
    while slots.iter().any(in_file) {
        assert!(begun.elapsed().as_secs() < 60, "the device's errors are not seen");
        slots.iter().enumerate().for_each(|(at, slot)| assert_eq!(write(pool, &mut lane, *slot, at as u64 + 1), Ok(0)));
    }
    assert_eq!(pool.disk_news().len(), 1);
    all_there(pool, &mut lane, &slots);
}

/// The device has failed and nobody has noticed when the node is lost: no page is read that might be wrong.
#[test]
fn a_device_that_has_failed_gives_no_page() {
    let _alone = ALONE.lock();
    let Some(failing) = Failing::mounted() else {
        println!("skipped: a_device_that_has_failed_gives_no_page: no loop device can be mounted here");
        return;
    };
    let (networks, pool) = common::pool(&[2]);
    let pool: &'static Pool = Box::leak(Box::new(pool));
    let above = failing.dir.join("above");
    pool.protect_by(Disk::open(above.to_str().unwrap()).unwrap());
    let mut lane = Lane::new();
    let slots = written(pool, &mut lane, 10_000);
    let _ = std::process::Command::new("sync").arg("-f").arg(&above).output();
    networks[0].kill_node();
    let refused = slots.iter().enumerate().filter(|(at, slot)| match read(pool, &mut lane, **slot) {
        Ok(value) => {
            assert_eq!(value, *at as u64 + 1);
            false
        }
        Err(_) => true,
    });
    assert!(refused.count() > 0, "the device has failed, and every page is read");
}
