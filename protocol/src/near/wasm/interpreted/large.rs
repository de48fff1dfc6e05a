//! Modules of as many bytes as there may be, each of a kind that is much work for its bytes.

use super::MAX_CODE;

/// A number as WebAssembly writes it.
fn leb(mut n: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    loop {
        let low = (n & 0x7f) as u8;
        n >>= 7;
        bytes.push(low | if n > 0 { 0x80 } else { 0 });
        if n == 0 {
            return bytes;
        }
    }
}

fn section(number: u8, body: &[u8]) -> Vec<u8> {
    [&[number], &leb(body.len())[..], body].concat()
}

/// Things with their number before them.
fn list(all: &[Vec<u8>]) -> Vec<u8> {
    [leb(all.len()), all.concat()].concat()
}

/// A module of these functions: their locals and their code. All have the type of `run`, which is the
/// first. `results`: those of a further type, number 1, of no parameters.
pub fn functions(results: usize, bodies: &[(usize, Vec<u8>)]) -> Vec<u8> {
    let run = vec![0x60, 5, 0x7f, 0x7f, 0x7f, 0x7f, 0x7e, 1, 0x7e];
    let several = [&[0x60, 0][..], &leb(results), &vec![0x7f; results]].concat();
    let body = |(locals, code): &(usize, Vec<u8>)| {
        let declared = if *locals > 0 { [vec![1], leb(*locals), vec![0x7e]].concat() } else { vec![0] };
        let body = [declared, code.clone(), vec![0x0b]].concat();
        [leb(body.len()), body].concat()
    };
    let mut module = b"\0asm\x01\0\0\0".to_vec();
    module.extend(section(1, &list(&[run, several])));
    module.extend(section(3, &list(&vec![vec![0]; bodies.len()])));
    module.extend(section(5, &[1, 0, 1]));
    module.extend(section(7, b"\x02\x06memory\x02\x00\x03run\x00\x00"));
    module.extend(section(10, &list(&bodies.iter().map(body).collect::<Vec<_>>())));
    module
}

/// `i64.const 0`: the result of a function.
const ZERO: [u8; 2] = [0x42, 0];

/// As many of `part` as there is room for beside `rest`, then `tail` as often.
fn filled(part: &[u8], tail: &[u8], rest: usize) -> Vec<u8> {
    let n = (MAX_CODE as usize - 160 - rest) / (part.len() + tail.len());
    [part.repeat(n), tail.repeat(n)].concat()
}

/// Each kind: its name, and a module.
pub fn all() -> Vec<(&'static str, Vec<u8>)> {
    let one = |code: Vec<u8>| functions(1, &[(0, [code, ZERO.to_vec()].concat())]);
    let several = |locals, part: &[u8], n: usize| {
        let code = [part.repeat((MAX_CODE as usize - 300) / n / part.len() - 12), ZERO.to_vec()].concat();
        functions(1, &vec![(locals, code); n])
    };
    let targets = MAX_CODE as usize - 200;
    let gets = [0x20, 0].repeat(1950);
    vec![
        ("sums", one(filled(&[0x20, 0, 0x41, 1, 0x6a, 0x21, 0], &[], 0))),
        ("blocks in blocks", one(filled(&[0x02, 0x40], &[0x0b], 0))),
        ("loops in loops", one(filled(&[0x03, 0x40], &[0x0b], 0))),
        ("ifs in ifs", one(filled(&[0x20, 0, 0x04, 0x40], &[0x05, 0x0b], 0))),
        ("branches out of all blocks", one(filled(&[0x02, 0x40, 0x20, 0, 0x0d, 0], &[0x0b], 0))),
        (
            "a table of branches",
            one([vec![0x02, 0x40, 0x20, 0, 0x0e], leb(targets), vec![0; targets + 1], vec![0x0b]].concat()),
        ),
        ("a deep stack", one(filled(&[0x20, 0], &[0x1a], 0))),
        ("blocks on a deep stack", one([&gets[..], &[0x02, 0x40, 0x0b].repeat(680), &[0x1a].repeat(1950)].concat())),
        ("locals that are kept", one([&gets[..], &[0x41, 7, 0x21, 0].repeat(480), &[0x1a].repeat(1950)].concat())),
        ("locals kept one by one", one(filled(&[0x20, 0, 0x41, 7, 0x21, 0], &[0x1a], 0))),
        ("choices", one(filled(&[0x20, 0, 0x20, 1, 0x20, 2, 0x1b, 0x21, 3], &[], 0))),
        ("many functions", several(0, &[0x01], 150)),
        ("functions of 20 locals", several(20, &[0x01], 120)),
        ("a thousand loads", one(filled(&[0x20, 0, 0x29, 3, 0, 0x1a], &[], 0))),
    ]
}

/// Modules of more locals than there may be: in one function, and in all.
pub fn of_many_locals() -> Vec<Vec<u8>> {
    let code = [vec![0x01; 36], ZERO.to_vec()].concat();
    [(30_000, 100), (257, 1), (250, 100), (41, 100)]
        .map(|(locals, n)| functions(1, &vec![(locals, code.clone()); n]))
        .into()
}

/// A block of 16 results, and a table of branches out of it.
pub fn branches_with_results() -> Vec<u8> {
    let targets = MAX_CODE as usize - 280;
    let wide = [vec![0x02, 1], [0x41, 0].repeat(16), vec![0x41, 0, 0x0e], leb(targets), vec![0; targets + 1]];
    let code = [wide.concat(), vec![0x0b], vec![0x1a; 16], ZERO.to_vec()].concat();
    functions(16, &[(0, code)])
}
