//! Programs that are killed at any moment: what was theirs is the node's again, and what they share
//! stays whole.

mod common;

use common::{SLAB, WAYS, address, await_that, builder, node};
use farmem::{Addr, Memory, Transport};
use std::collections::BTreeSet;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Says that the test's binary is to be a program of this test: the node's address.
const IS_PROGRAM: &str = "FARMEM_TEST_PROGRAM";
/// Roots that refer to records.
const RECORDS: usize = 8;

/// Sizes of records: most are claimed by one swap, some by a batch.
fn bytes_of(n: u64) -> u64 {
    4096 << [0, 1, 3, 5, 6][n as usize % 5]
}

/// A record: its length, and its writer's number in every other word of its first and last chunk.
fn write_record(memory: &Memory, n: u64) -> Addr {
    let bytes = bytes_of(n);
    let record = memory.alloc(bytes).unwrap();
    let chunk = [bytes.to_le_bytes(), n.to_le_bytes()].concat().repeat(256);
    memory.write(record, &chunk).unwrap();
    memory.write(record + (bytes - 4096), &chunk).unwrap();
    record
}

/// Replaces records, and holds private memory, until it is killed.
#[test]
fn program() {
    let Ok(at) = std::env::var(IS_PROGRAM) else { return };
    let way = if at.starts_with("unix:") { Transport::Shm } else { Transport::Tcp };
    let named = || Memory::builder().node(&at).transport(way).grace(Duration::from_millis(50));
    let private = named().connect().unwrap();
    private.write(private.alloc(2 << 20).unwrap(), b"held").unwrap();
    let shared = named().region("records").create(true).connect().unwrap();
    println!("works");
    let me = std::process::id() as u64;
    for n in 0u64.. {
        let number = me * 1_000_003 + n;
        let root = shared.root((number % RECORDS as u64) as usize);
        let (old, new) = (shared.load(root).unwrap(), write_record(&shared, number));
        // The loser keeps nothing of it; the winner frees what nobody refers to any more.
        let unused = if shared.compare_swap(root, old, new.bits()).unwrap() == old { old } else { new.bits() };
        if let Some(unused) = Addr::from_bits(unused).filter(|unused| !unused.is_null()) {
            shared.free(unused).unwrap();
        }
    }
}

struct Program(Child);

impl Program {
    fn start(at: &str) -> Program {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["program", "--exact", "--nocapture"]).env(IS_PROGRAM, at);
        Program(command.stdout(Stdio::null()).stderr(Stdio::inherit()).spawn().unwrap())
    }

    fn is_running(&mut self) -> bool {
        self.0.try_wait().unwrap().is_none()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Every record is whole, and taken. Returns them.
fn records(memory: &Memory) -> BTreeSet<Addr> {
    let taken = memory.pieces().unwrap();
    let mut records = BTreeSet::new();
    for n in 0..RECORDS {
        let record = Addr::from_bits(memory.load(memory.root(n)).unwrap()).unwrap();
        if record.is_null() {
            continue;
        }
        let piece = taken.iter().find(|piece| piece.at == record).expect("a record is taken");
        let mut chunk = vec![0; 4096];
        memory.read(record, &mut chunk).unwrap();
        assert_eq!(u64::from_le_bytes(chunk[..8].try_into().unwrap()), piece.bytes, "as long as it says");
        assert!(chunk[..16].repeat(256) == chunk, "whole");
        let mut last = vec![0; 4096];
        memory.read(record + (piece.bytes - 4096), &mut last).unwrap();
        assert!(last == chunk, "whole to its end");
        assert!(records.insert(record), "referred to once");
    }
    records
}

#[test]
fn a_region_stays_whole_when_its_programs_are_killed() {
    for way in WAYS {
        let node = node(16);
        let memory = builder(&[&node], Transport::Tcp).region("records").create(true).connect().unwrap();
        let mut leaked = 0;
        // A closed tcp connection proves nothing: a second passes before what was held is free.
        let rounds = if way == Transport::Tcp { 2 } else { 8 };
        for round in 0..rounds {
            let mut programs: Vec<Program> = (0..3).map(|_| Program::start(&address(&node, way))).collect();
            await_that("the programs work", || (0..RECORDS).all(|n| memory.load(memory.root(n)).unwrap() != 0));
            std::thread::sleep(Duration::from_millis(30 + 17 * round));
            assert!(programs.iter_mut().all(Program::is_running));
            drop(programs);
            // Their private memory, and only that, is given back.
            await_that("what they held is free", || node.nic().members().len() == 1);
            let region = farmem::regions(&address(&node, Transport::Tcp)).unwrap()[0].bytes;
            await_that("only the region holds memory", || node.nic().lent() == region);
            assert!(region <= 4 * SLAB, "{region}");

            let records = records(&memory);
            let taken = memory.pieces().unwrap();
            // At most what each was about to publish, and what it had just replaced.
            let lost: Vec<Addr> = taken.iter().map(|piece| piece.at).filter(|at| !records.contains(at)).collect();
            assert!(lost.len() <= 2 * 3, "{lost:?}");
            leaked += lost.len();
            lost.into_iter().for_each(|piece| memory.free(piece).unwrap());
            assert_eq!(memory.pieces().unwrap().len(), records.len());
        }
        println!("{way:?}: {leaked} pieces were nobody's");
    }
}
