//! The program matrix: real programs on far memory, output equal to native.
//!
//! Each program runs natively first, which gives the expected bytes and the
//! peak resident set; then with 25 % and 10 % of that peak local. One at a time,
//! so that the times printed mean something. A program that does not end is
//! killed and fails.
//!
//! `FARMEM_TEST_SCALE=N` makes every program's work N times as large;
//! `FARMEM_TEST_TRANSPORT=tcp` sends it all over TCP instead of shared memory.

mod server;
mod table;

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use farmem_tests::farmem::{Far, built, compare, copy, counter, far_run};
use farmem_tests::process::{self, TempDir};

/// One program may take this long, times the scale.
const LIMIT: Duration = Duration::from_secs(240);
/// Shares of the native peak that are local, percent.
const SHARES: [u64; 2] = [25, 10];
/// The least local memory that the runtime accepts.
const LEAST_LOCAL: u64 = 2 << 20;

fn scale() -> usize {
    std::env::var("FARMEM_TEST_SCALE").ok().and_then(|s| s.parse().ok()).unwrap_or(1)
}

fn limit() -> Duration {
    LIMIT * scale() as u32
}

/// How the far runs of a program with this native peak are made.
fn far(peak: u64, share: u64) -> Far {
    let transport = std::env::var("FARMEM_TEST_TRANSPORT").unwrap_or_else(|_| "shm".into());
    Far::local((peak * share / 100).max(LEAST_LOCAL)).with(&["--transport", &transport])
}

/// Runs a program that ends by itself, natively and far.
fn program(name: &'static str, command: &Command) -> Result<()> {
    let _turn = table::turn();
    let native = process::run(copy(command), limit())?.success()?;
    ensure!(native.peak_rss > 8 << 20, "{name} needs too little memory to say anything: {}", native.peak_rss);
    for share in SHARES {
        let (outcome, stats) = far_run(command, &far(native.peak_rss, share), limit())?;
        compare(&native, &outcome).with_context(|| format!("{name} at {share} %"))?;
        ensure!(counter(&stats, "faults") > 0, "{name} did not run on far memory: {stats}");
        table::row(name, share, native.wall, outcome.wall, native.peak_rss, &stats);
    }
    Ok(())
}

/// A text file of lines in no order.
fn lines(path: &Path, count: usize) -> Result<()> {
    let mut file = BufWriter::new(File::create(path)?);
    let mut x = 0x1234_5678_9abc_def0_u64;
    for _ in 0..count {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        writeln!(file, "{x:016x} item {} of a list", x % 9973)?;
    }
    Ok(file.flush()?)
}

#[test]
fn redis() -> Result<()> {
    server::redis()
}

#[test]
fn memcached() -> Result<()> {
    server::memcached()
}

#[test]
fn numpy() -> Result<()> {
    let mut python = Command::new("/usr/bin/python3");
    python.args(["-c", NUMPY, &scale().to_string()]).env("OPENBLAS_NUM_THREADS", "2").env("PYTHONHASHSEED", "1");
    program("python numpy", &python)
}

/// Sums of integers only, or of floats in a fixed order: threads may not change the bytes.
const NUMPY: &str = r#"
import sys, hashlib, numpy as np
n = int(sys.argv[1])
def show(what, a): print(what, hashlib.sha256(np.ascontiguousarray(a).tobytes()).hexdigest())
r = np.random.default_rng(7)
a = r.random(1_500_000 * n)
show("random", a)
show("argsort", np.argsort(a, kind="stable"))
a.sort()
show("sorted", a)
m = r.integers(0, 100, (700, 700)).astype(np.float64)
show("matmul", m @ m @ m.T)
d = {i * 7919 % 1_000_003: str(i) for i in range(1_000_000 * n)}
print("dict", len(d), sum(len(v) for v in d.values()), d[12345])
for k in range(0, 1_000_000, 3): d.pop(k, None)
print("popped", len(d), sum(k for k in d) % 1000007)
l = sorted(d.values())
print("strings", hashlib.sha256("".join(l).encode()).hexdigest())
"#;

#[test]
fn multiprocessing() -> Result<()> {
    let mut python = Command::new("/usr/bin/python3");
    python.args(["-c", MULTIPROCESSING, &scale().to_string()]).env("PYTHONHASHSEED", "1");
    program("python processes", &python)
}

const MULTIPROCESSING: &str = r#"
import sys, hashlib, multiprocessing as mp
n = int(sys.argv[1])
data = [bytes([i % 251]) * (i % 97) + str(i).encode() for i in range(250_000 * n)]
def part(k):
    mine = sorted(data[k::8], key=lambda b: b[::-1])
    return hashlib.sha256(b"".join(mine)).hexdigest(), [len(b) for b in mine[:1000]]
def square(q, out):
    while (x := q.get()) is not None: out.put((x, x * x, "y" * 100000))
if __name__ == "__main__":
    mp.set_start_method("fork")
    with mp.Pool(3) as pool:
        for digest, head in pool.map(part, range(8)): print(digest, sum(head))
    data.reverse()
    q, out = mp.Queue(), mp.Queue()
    p = [mp.Process(target=square, args=(q, out)) for _ in range(2)]
    for x in p: x.start()
    for i in range(200): q.put(i)
    for x in p: q.put(None)
    print(sorted((a, b, len(c)) for a, b, c in (out.get() for _ in range(200)))[-1])
    for x in p: x.join(); print(x.exitcode)
    print(hashlib.sha256(b"".join(data)).hexdigest())
"#;

#[test]
fn sqlite() -> Result<()> {
    let rows = 120_000 * scale();
    let mut sqlite = Command::new("sqlite3");
    sqlite.arg(":memory:").arg(format!(
        "PRAGMA temp_store = MEMORY;
         CREATE TABLE item(id INTEGER PRIMARY KEY, owner INT, price INT, name TEXT);
         WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {rows})
           INSERT INTO item SELECT i, i * 7919 % 30011, i * 104729 % 9973, printf('item %d %0100d', i, i * 31) FROM n;
         CREATE TABLE owner(id INTEGER PRIMARY KEY, name TEXT);
         INSERT INTO owner SELECT DISTINCT owner, 'owner ' || owner FROM item;
         CREATE INDEX by_owner ON item(owner);
         CREATE INDEX by_name ON item(name, price);
         SELECT count(*), sum(price) FROM item;
         SELECT o.name, count(*), sum(i.price) FROM item i JOIN owner o ON o.id = i.owner
           GROUP BY o.id ORDER BY 3 DESC, 1 LIMIT 20;
         UPDATE item SET price = price + 1 WHERE owner % 3 = 0;
         DELETE FROM item WHERE id % 5 = 0;
         SELECT sum(price), max(name), count(DISTINCT owner) FROM item;
         SELECT a.id, b.id FROM item a JOIN item b ON a.name < b.name AND a.owner = b.owner
           WHERE a.owner < 40 ORDER BY a.id, b.id LIMIT 200;
         PRAGMA integrity_check;"
    ));
    program("sqlite :memory:", &sqlite)
}

#[test]
fn sort() -> Result<()> {
    let dir = TempDir::new("sort")?;
    let input = dir.path().join("lines");
    lines(&input, 700_000 * scale())?;
    let mut sort = Command::new("sort");
    sort.args(["-S", "1G", "--parallel=4", "-k3,3n", "-k1,1"]).arg(&input).env("LC_ALL", "C");
    program("GNU sort", &sort)
}

#[test]
fn gcc() -> Result<()> {
    let dir = TempDir::new("gcc")?;
    let source = dir.path().join("large.c");
    let mut file = BufWriter::new(File::create(&source)?);
    writeln!(file, "#include <stdio.h>\n#include <string.h>\nstruct s {{ int a, b[16]; char name[32]; }};")?;
    for f in 0..700 * scale() {
        writeln!(
            file,
            "int f{f}(struct s *p, int n) {{ int t = {f}; for (int i = 0; i < n; i++) {{ \
             switch (p[i].a % 7) {{ case 0: t += p[i].b[i % 16] * {f}; break; case 1: t ^= strlen(p[i].name); break; \
             case 2: snprintf(p[i].name, 32, \"%d-{f}\", t); break; case 3: t -= f{g}(p, n / 2); break; \
             default: p[i].b[t & 15] = t + {f}; }} if (t > {f}000) t /= 3; }} return t; }}",
            g = f / 2
        )?;
    }
    file.flush()?;
    drop(file);
    let mut gcc = Command::new("gcc");
    gcc.args(["-O2", "-g", "-S", "-o", "-"]).arg(&source);
    program("gcc -O2", &gcc)
}

#[test]
fn hash_join() -> Result<()> {
    let mut join = Command::new(built("farmem-tests", "hash-join")?);
    join.args([(600_000 * scale()).to_string(), "2".into()]);
    program("Rust hash join", &join)
}

#[test]
fn xz() -> Result<()> {
    let dir = TempDir::new("xz")?;
    let input = dir.path().join("lines");
    lines(&input, 90_000 * scale())?;
    let mut xz = Command::new("xz");
    xz.args(["-9", "-T1", "-c"]).arg(&input);
    program("xz -9", &xz)
}

#[test]
fn stress_ng() -> Result<()> {
    let _turn = table::turn();
    let methods = ["flip", "galpat-0", "inc-nybble", "rand-set", "swap", "walk-0a", "write64", "prime-gray-0"];
    let native_limit = limit();
    let mut walls = [Duration::ZERO; 3];
    let mut last = [None, None];
    for method in methods {
        let mut stress = Command::new("stress-ng");
        stress.args(["--vm", "2", "--vm-bytes", "48M", "--vm-keep", "--vm-method", method, "--verify"]);
        stress.args(["--vm-ops", &(40 * scale()).to_string(), "--timeout", "120", "--quiet"]);
        walls[0] += process::run(copy(&stress), native_limit)?.success()?.wall;
        for (k, share) in SHARES.into_iter().enumerate() {
            // Two stressors of half of 48 MiB each, every one with its own share.
            let (outcome, stats) = far_run(&stress, &far(24 << 20, share), limit())?;
            let outcome = outcome.success().with_context(|| format!("stress-ng {method} at {share} %"))?;
            ensure!(counter(&stats, "faults") > 0, "stress-ng did not run on far memory: {stats}");
            walls[k + 1] += outcome.wall;
            last[k] = Some(stats);
        }
    }
    for (k, share) in SHARES.into_iter().enumerate() {
        if let Some(stats) = &last[k] {
            table::row("stress-ng vm", share, walls[0], walls[k + 1], 48 << 20, stats);
        }
    }
    Ok(())
}
