use super::*;
use crate::key::Key;
use crate::near::{Function, Range};
use proptest::prelude::*;

use super::large;
use super::modules::{endless, module, sum};

fn wasm(code: &[u8], room: u32, argument: u64) -> Wasm {
    Wasm { code: code.len() as u32, room, argument }
}

fn computed(code: &[u8], source: &[u8], room: u32) -> Result<(u64, Vec<u8>), String> {
    Engine::default().compute(code, source, wasm(code, room, 5), || false)
}

#[test]
fn a_module_sums() {
    let source: Vec<u8> = (0..1000u64).flat_map(u64::to_le_bytes).collect();
    let sum_of: u64 = 999 * 1000 / 2;
    let (word, result) = computed(&sum(), &source, 16).unwrap();
    assert_eq!((word, &result[..8], &result[8..]), (sum_of + 5, &sum_of.to_le_bytes()[..], &[0; 8][..]));
    // As many bytes as there may be, and a result that ends with the last page.
    let source = vec![1; (256 << 10) - 4096];
    assert_eq!(
        computed(&sum(), &source, 8).unwrap().0,
        0x0101_0101_0101_0101u64.wrapping_mul(source.len() as u64 / 8) + 5
    );
    assert!(computed(&sum(), &vec![0; PAGE - 8], 8).is_ok() && computed(&sum(), &[0; 8], PAGE as u32 - 8).is_ok());
}

#[test]
fn modules_are_bounded() {
    let refused = |code: &[u8], why: &str| {
        let said = computed(code, &[0; 8], 8).unwrap_err();
        assert!(said.contains(why), "{said}");
    };
    refused(&endless(), "did not end");
    refused(&module(1, true, &[0x42, 0]), "");
    refused(b"(module)", "");
    refused(b"\x7fELF\x02\x01\x01\0", "");
    // A load outside of its memory, recursion without an end, 17 pages of its own.
    refused(&module(1, false, &[0x41, 0x7f, 0x29, 3, 0]), "");
    let again = [0x20, 0, 0x20, 1, 0x20, 2, 0x20, 3, 0x20, 4, 0x10, 0];
    refused(&module(1, false, &again), "");
    refused(&module(17, false, &[0x42, 0]), "");
    // 100 pages more are refused to it; what it gets is -1.
    let grows = module(1, false, &[0x41, 0xe4, 0, 0x40, 0, 0xac]);
    assert_eq!(computed(&grows, &[0; 8], 8).unwrap().0, u64::MAX);
    // The time is looked at while it runs.
    let mut looks = 0;
    let code = endless();
    let late = Engine::default().compute(&code, &[0; 8], wasm(&code, 8, 0), || {
        looks += 1;
        looks > 3
    });
    assert!(late.is_err() && looks == 4);
}

#[test]
fn modules_are_kept_by_their_bytes() {
    let engine = Engine::default();
    for n in 0..100u8 {
        let code = module(1, false, &[0x42, n % 64]);
        assert_eq!(engine.compute(&code, &[0; 8], wasm(&code, 8, 0), || false).unwrap().0, u64::from(n % 64));
        assert!(engine.kept.lock().unwrap().len() <= KEPT);
    }
}

/// Source and list as plain bytes.
struct Plain([Vec<u8>; 2]);

impl Bytes for Plain {
    fn read(&mut self, of: Which, at: u64, into: &mut [u8]) -> Option<()> {
        into.copy_from_slice(self.0[(of == Which::List) as usize].get(at as usize..)?.get(..into.len())?);
        Some(())
    }

    fn write(&mut self, of: Which, at: u64, bytes: &[u8]) -> Option<()> {
        assert!(of == Which::List, "a module writes to its result alone");
        self.0[1].get_mut(at as usize..)?.get_mut(..bytes.len())?.copy_from_slice(bytes);
        Some(())
    }
}

#[test]
fn a_call_has_one_frame_and_its_result_behind_the_module() {
    let (code, source) = (sum(), vec![2; 4096]);
    let wasm = wasm(&code, 8, 0);
    let ranges = [(1, source.len() as u64), (2, wasm.work())].map(|(key, len)| Range { key: Key(key), at: 0, len });
    let call = Call { source: ranges[0], list: ranges[1], function: Function::Wasm(wasm) };
    assert_eq!(Call::parse(&call.frame()), Ok(call));
    let mut list = code;
    list.resize(wasm.work() as usize, 0);
    let mut memory = Plain([source, list]);
    let sum = 0x0202_0202_0202_0202u64.wrapping_mul(512);
    assert_eq!(Engine::default().run(&call, wasm, &mut memory), Some(Reply::Ran(sum)));
    assert_eq!(memory.0[1][wasm.result_at() as usize..], sum.to_le_bytes());
    let reply = Reply::Ran(sum);
    assert_eq!(Reply::parse(&reply.frame(), &call), Some(reply));
    assert_eq!(call.run(&mut memory), None);
}

proptest! {
    /// Bytes of any kind, and modules with some bytes changed, end: with a result or without.
    #[test]
    fn hostile_modules_end(
        bytes in prop::collection::vec(any::<u8>(), 0..200),
        changes in prop::collection::vec((any::<usize>(), any::<u8>()), 0..6),
    ) {
        let mut changed = sum();
        let len = changed.len();
        changes.into_iter().for_each(|(at, byte)| changed[at % len] = byte);
        for code in [bytes, changed] {
            let _ = computed(&code, &[7; 64], 8);
        }
    }
}

/// A worker of a node translates a module before it looks at the clock. So no module may be much more
/// work than its bytes say: each kind is compared with one of plain sums.
#[test]
fn no_module_is_much_work_for_its_bytes() {
    let translated = |code: &[u8]| {
        let each = (0..9).map(|_| {
            let begun = std::time::Instant::now();
            Engine::default().module(code).map(|_| begun.elapsed())
        });
        each.min_by_key(|each| each.clone().unwrap_or_default()).unwrap()
    };
    let all = large::all();
    let plain = translated(&all[0].1).unwrap();
    for (name, code) in all {
        assert!(code.len() <= MAX_CODE as usize, "{name}: {}", code.len());
        let took = translated(&code).unwrap_or_else(|e| panic!("{name}: {e}"));
        println!("{name}: {} bytes, {took:?}", code.len());
        assert!(took < 6 * plain, "{name}: {took:?}, where plain sums take {plain:?}");
    }
    for code in large::of_many_locals() {
        let said = Engine::default().module(&code).map(drop).unwrap_err();
        assert!(said.contains("locals"), "{said}");
    }
    let said = Engine::default().module(&large::branches_with_results()).map(drop).unwrap_err();
    assert!(said.contains("multi-value"), "{said}");
}
