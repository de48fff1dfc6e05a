//! Programs that read, compute, print and end.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use farmem_protocol::random::Random;
use farmem_tests::compile::sources;
use farmem_tests::farmem::{built, counter, far_run};
use farmem_tests::process::{self, TempDir};

use crate::run::{far, limit, program, scale};
use crate::table::Row;

/// A command that runs one of the scripts under `programs/matrix/`, its one argument the scale.
fn script(interpreter: &[&str], name: &str) -> Command {
    let mut command = Command::new(interpreter[0]);
    command.args(&interpreter[1..]).arg(sources().join("matrix").join(name)).arg(scale().to_string());
    command.env("PYTHONHASHSEED", "1").env("PERL_HASH_SEED", "0").env("PYTHONDONTWRITEBYTECODE", "1");
    command
}

/// A text file of lines in no order.
fn lines(path: &Path, count: usize) -> Result<()> {
    let mut file = BufWriter::new(File::create(path)?);
    let mut random = Random::new(1);
    for _ in 0..count {
        let x = random.bits();
        writeln!(file, "{x:016x} item {} of a list", x % 9973)?;
    }
    Ok(file.flush()?)
}

pub fn numpy(row: &mut Row) -> Result<()> {
    let mut python = script(&["/usr/bin/python3"], "arrays.py");
    python.env("OPENBLAS_NUM_THREADS", "2");
    program(row, &python)
}

pub fn multiprocessing(row: &mut Row) -> Result<()> {
    program(row, &script(&["/usr/bin/python3"], "processes.py"))
}

pub fn python_loops(row: &mut Row) -> Result<()> {
    program(row, &script(&["/usr/bin/python3"], "loops.py"))
}

pub fn perl(row: &mut Row) -> Result<()> {
    program(row, &script(&["perl"], "churn.pl"))
}

pub fn node(row: &mut Row) -> Result<()> {
    program(row, &script(&["node"], "churn.js"))
}

pub fn java(row: &mut Row) -> Result<()> {
    // The compiler runs first, in the same process: a job of its own for the collector.
    program(row, &script(&["java", "-XX:+UseG1GC", "-Xmx512m"], "Churn.java"))
}

pub fn sqlite(row: &mut Row) -> Result<()> {
    let rows = 60_000 * scale();
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
    program(row, &sqlite)
}

pub fn sort(row: &mut Row) -> Result<()> {
    let dir = TempDir::new("sort")?;
    let input = dir.path().join("lines");
    lines(&input, 180_000 * scale())?;
    let mut sort = Command::new("sort");
    sort.args(["-S", "1G", "--parallel=4", "-k3,3n", "-k1,1"]).arg(&input).env("LC_ALL", "C");
    program(row, &sort)
}

pub fn gcc(row: &mut Row) -> Result<()> {
    let dir = TempDir::new("gcc")?;
    let source = dir.path().join("large.c");
    let mut file = BufWriter::new(File::create(&source)?);
    writeln!(file, "#include <stdio.h>\n#include <string.h>\nstruct s {{ int a, b[16]; char name[32]; }};")?;
    for f in 0..180 * scale() {
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
    program(row, &gcc)
}

/// The compiler, the linker that it starts, and what came of them: all far.
pub fn rustc(row: &mut Row) -> Result<()> {
    let dir = TempDir::new("rustc")?;
    let source = dir.path().join("large.rs");
    let mut file = BufWriter::new(File::create(&source)?);
    writeln!(file, "use std::collections::HashMap;\ntype M = HashMap<String, Vec<u64>>;")?;
    let functions = 12 * scale();
    for f in 0..functions {
        writeln!(
            file,
            "#[inline(never)] fn f{f}(m: &mut M, n: u64) -> u64 {{ let v = m.entry(format!(\"k{{}}\", n % {f}1)).or_default(); \
             v.push(n ^ {f}); v.sort_unstable_by_key(|x| x.wrapping_mul({f} + 3)); let s: u64 = v.iter().step_by(2).sum(); \
             match s % 5 {{ 0 => s / 3, 1 => s << 1, 2 if n > 4 => f{g}(m, n / 2), _ => s + {f} }} }}",
            g = f / 2
        )?;
    }
    let calls: String = (0..functions).map(|f| format!("s = s.rotate_left(5) ^ f{f}(&mut m, s % 97);")).collect();
    writeln!(file, "fn main() {{ let mut m = M::new(); let mut s = 1u64; {calls} println!(\"{{s:016x}}\"); }}")?;
    file.flush()?;
    drop(file);
    // Not rustup's proxy, which may first wait for other work of rustup's.
    let found = Command::new("rustc").args(["--print", "sysroot"]).output().context("rustc is missing")?;
    let compiler = Path::new(String::from_utf8_lossy(&found.stdout).trim()).join("bin/rustc");
    let mut rustc = Command::new("sh");
    let script = "set -e; \"$2\" --edition 2021 -Copt-level=1 -Ccodegen-units=4 -o \"$1/out\" \"$1/large.rs\"; \
                  \"$1/out\"; sha256sum < \"$1/out\"";
    rustc.args(["-c", script, "sh"]).arg(dir.path()).arg(compiler).env("SOURCE_DATE_EPOCH", "0");
    program(row, &rustc)
}

pub fn hash_join(row: &mut Row) -> Result<()> {
    let mut join = Command::new(built("farmem-tests", "hash-join")?);
    join.args([(120_000 * scale()).to_string(), "2".into()]);
    program(row, &join)
}

/// Its match finder walks trees all over its window: the hardest thing here for any cache.
pub fn xz(row: &mut Row) -> Result<()> {
    let dir = TempDir::new("xz")?;
    let input = dir.path().join("lines");
    lines(&input, 10_000 * scale())?;
    let mut xz = Command::new("xz");
    xz.args(["-9", "-T1", "-c"]).arg(&input);
    program(row, &xz)
}

pub fn zstd(row: &mut Row) -> Result<()> {
    let dir = TempDir::new("zstd")?;
    let input = dir.path().join("lines");
    lines(&input, 15_000 * scale())?;
    let mut zstd = Command::new("zstd");
    zstd.args(["-q", "-12", "--long=27", "-T2", "-c"]).arg(&input);
    program(row, &zstd)
}

/// A repository made, packed by threads, and checked.
pub fn git(row: &mut Row) -> Result<()> {
    let dir = TempDir::new("git")?;
    let input = dir.path().join("lines");
    lines(&input, 30_000 * scale())?;
    let script = "set -e; cd \"$1\"; rm -rf repository; git init -q repository; cd repository; \
                  for n in 1 2 3 4; do split -n l/$((n * 9)) ../lines part-$n-; git add .; \
                  git -c user.name=n -c user.email=e commit -q -m $n; done; \
                  git -c pack.threads=2 -c gc.auto=0 repack -adfq --window=40; git fsck --full; \
                  git rev-list --all --objects | sort | sha256sum; git log --stat -p | sha256sum";
    let mut sh = Command::new("sh");
    sh.args(["-c", script, "sh"]).arg(dir.path());
    for who in ["AUTHOR", "COMMITTER"] {
        sh.env(format!("GIT_{who}_DATE"), "2001-01-01T00:00:00Z");
    }
    sh.env("GIT_CONFIG_GLOBAL", "/dev/null").env("GIT_CONFIG_SYSTEM", "/dev/null");
    program(row, &sh)
}

/// Runs `stress-ng`, which verifies what it does, once for each line of arguments, and adds up.
fn stress(row: &mut Row, each: &[String], peak: u64) -> Result<()> {
    let command = |arguments: &String| {
        let mut command = Command::new("stress-ng");
        command.args(["--verify", "--quiet", "--timeout", "120"]).args(arguments.split_whitespace());
        command
    };
    let mut native = Duration::ZERO;
    for arguments in each {
        native += process::run(command(arguments), limit())?.success().context(arguments.clone())?.wall;
    }
    row.native(peak, native);
    for cell in row.cells() {
        let mut wall = Duration::ZERO;
        let mut last: Option<serde_json::Value> = None;
        for arguments in each {
            let (outcome, stats) = far_run(&command(arguments), &far(peak, cell)?, limit()).context(cell)?;
            wall += outcome.success().with_context(|| format!("{cell}: stress-ng {arguments}"))?.wall;
            // Some of them only make mappings: the row tells of the one that touched most.
            if counter(&stats, "faults") > last.as_ref().map_or(0, |stats| counter(stats, "faults")) {
                last = Some(stats);
            }
        }
        row.far(cell, wall, &last.context("stress-ng did not run on far memory")?);
    }
    Ok(())
}

pub fn stress_vm(row: &mut Row) -> Result<()> {
    let methods = ["flip", "galpat-0", "inc-nybble", "rand-set", "swap", "walk-0a", "write64", "prime-gray-0"];
    let ops = 40 * scale();
    let each = methods.map(|m| format!("--vm 2 --vm-bytes 48M --vm-keep --vm-ops {ops} --vm-method {m}"));
    // Two stressors of half of 48 MiB each, every one with its own share.
    stress(row, &each, 24 << 20)
}

/// Calls that make, move, split and drop mappings, and processes of every kind.
pub fn stress_maps(row: &mut Row) -> Result<()> {
    let ops = 20 * scale();
    let plain = [
        "madvise",
        "brk",
        "mprotect",
        "bigheap",
        "malloc",
        "mincore",
        "stackmmap",
        "vm-splice",
        "fork",
        "vfork",
        "clone",
        "sigsegv",
        "sigsuspend",
    ];
    let mut each: Vec<String> = plain.map(|stressor| format!("--{stressor} 2 --{stressor}-ops {ops}")).into();
    each.extend(["mmap", "mremap"].map(|s| format!("--{s} 2 --{s}-ops {} --{s}-bytes 8M", ops / 4)));
    // It ends by the clock.
    each.push(format!("--vforkmany 2 --vforkmany-ops {} --timeout 2", 100 * ops));
    stress(row, &each, 24 << 20)
}
