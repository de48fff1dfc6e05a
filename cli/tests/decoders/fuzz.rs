//! The loop of a fuzzer: mutates texts, and keeps those that a decoder answers in a new way.

use farmem_protocol::random::Random;
use farmem_sys::raw::{now_ns, thread_cpu_ns};
use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::PathBuf;

/// Seconds of CPU time that a fuzzer has by default, and the longest text.
const SECONDS: u64 = 1;
const LONGEST: usize = 64 << 10;
/// Texts that are mutated, at most.
const POOL: usize = 2048;

/// Has `one` decode mutations of `texts` and of the corpus, for [`SECONDS`] of this thread's CPU
/// time, or for `FARMEM_FUZZ_SECONDS`. `one` returns the kind of the outcome. A text with an
/// outcome of a new kind is mutated further, and written to the corpus if `FARMEM_FUZZ_KEEP` is
/// set.
pub fn fuzz<T: Hash>(name: &str, texts: &[&[u8]], one: impl FnMut(&mut Random, &[u8]) -> T) {
    until(thread_cpu_ns, name, texts, one);
}

/// [`fuzz`] of what other threads or processes decode: `cpu_ns` tells their CPU time. Without
/// `FARMEM_FUZZ_SECONDS` it takes [`SECONDS`] by the clock, because most of it is waiting.
pub fn fuzz_by<T: Hash>(
    cpu_ns: impl Fn() -> u64,
    name: &str,
    texts: &[&[u8]],
    one: impl FnMut(&mut Random, &[u8]) -> T,
) {
    match std::env::var_os("FARMEM_FUZZ_SECONDS") {
        Some(_) => until(cpu_ns, name, texts, one),
        None => until(now_ns, name, texts, one),
    }
}

fn until<T: Hash>(
    clock_ns: impl Fn() -> u64,
    name: &str,
    texts: &[&[u8]],
    mut one: impl FnMut(&mut Random, &[u8]) -> T,
) {
    let number = |name: &str, default| std::env::var(name).ok().and_then(|n| n.parse().ok()).unwrap_or(default);
    let (seconds, seed) = (number("FARMEM_FUZZ_SECONDS", SECONDS), number("FARMEM_FUZZ_SEED", 1));
    let keep = std::env::var_os("FARMEM_FUZZ_KEEP").is_some();
    let corpus = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../fuzz/decoders").join(name);
    let mut files: Vec<PathBuf> =
        std::fs::read_dir(&corpus).into_iter().flatten().flatten().map(|f| f.path()).collect();
    files.sort();
    let mut pool: Vec<Vec<u8>> = texts.iter().map(|text| text.to_vec()).collect();
    pool.extend(files.iter().filter_map(|file| std::fs::read(file).ok()));

    let mut random = Random::new(seed);
    let mut kinds = BTreeSet::new();
    for text in &pool {
        kinds.insert(hash(one(&mut random, text)));
    }
    let (until, mut cases) = (clock_ns() + seconds * 1_000_000_000, 0_u64);
    while clock_ns() < until {
        let mut text = pool[random.index(pool.len())].clone();
        let other = random.index(pool.len());
        mutate(&mut random, &mut text, &pool[other]);
        cases += 1;
        if kinds.insert(hash(one(&mut random, &text))) && pool.len() < POOL {
            if keep {
                std::fs::create_dir_all(&corpus).unwrap();
                std::fs::write(corpus.join(format!("{:016x}", hash(&text))), &text).unwrap();
            }
            pool.push(text);
        }
    }
    println!("{name}: {cases} cases in {seconds} s, seed {seed}, {} kinds of outcome", kinds.len());
}

fn hash(of: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    of.hash(&mut hasher);
    hasher.finish()
}

fn mutate(random: &mut Random, text: &mut Vec<u8>, other: &[u8]) {
    const WORDS: [&str; 14] = [
        "-1",
        "0",
        "18446744073709551616",
        "9223372036854775807",
        "1e400",
        "null",
        "[]",
        "{}",
        "\"",
        "\r\n",
        ".",
        "\0",
        "é",
        "[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[",
    ];
    for _ in 0..=random.index(5) {
        if text.is_empty() {
            text.extend_from_slice(other);
        }
        if text.is_empty() {
            text.push(b'0');
        }
        let at = random.index(text.len());
        let end = at + random.index(text.len() - at + 1).min(40);
        match random.index(8) {
            0 => text[at] ^= 1 << random.index(8),
            1 => text[at] = random.bits() as u8,
            2 => drop(text.splice(at..end, WORDS[random.index(WORDS.len())].bytes())),
            3 => drop(text.drain(at..end)),
            4 => {
                let piece = text[at..end].repeat(1 + random.index(40));
                drop(text.splice(at..at, piece));
            }
            5 => text.truncate(end),
            6 => text.extend_from_slice(&other[random.index(other.len().max(1)).min(other.len())..]),
            _ => {
                let n = [1, 2, 4, 8][random.index(4)].min(text.len() - at);
                let number = [0, 1, 127, 128, 255, 4096, u64::from(u32::MAX), u64::MAX][random.index(8)];
                text[at..at + n].copy_from_slice(&number.to_le_bytes()[..n]);
            }
        }
        text.truncate(LONGEST);
    }
}
