//! The programs: real ones, as they are installed, each with work of a few seconds.
//!
//! What a program prints must be the same on every run, whatever the machine does:
//! no clocks, no addresses, no order that threads decide.

use farmem_protocol::random::Random;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use anyhow::Context;
use serde::{Deserialize, Serialize};

use super::redis;

/// Which.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Program {
    /// redis-server filled, then read and written by one client
    Redis,
    /// Python: numpy sorts, then a dict of strings, looked up in no order
    Python,
    /// sqlite3 with a :memory: database: inserts, an index, joins, an update
    Sqlite,
    /// GNU sort of lines in no order, in memory, two threads
    Sort,
    /// gcc -O2 of one large file
    Gcc,
    /// xz -9 of text
    Xz,
    /// A hash join: build a table, probe it in no order
    Join,
    /// memcached filled, then read and written by one client
    Memcached,
    /// Python: a pool of forked children that read their parent's data, queues both ways
    Multiprocessing,
    /// zstd -12 --long of text, two threads
    Zstd,
    /// Perl: strings and hashes made, changed and dropped
    Perl,
    /// A git repository made, packed by two threads, and checked
    Git,
    /// stress-ng --vm: patterns written over all of its memory and verified
    Stress,
}

impl Program {
    /// Those that run unless others are named.
    pub const USUAL: [Program; 5] = [Program::Redis, Program::Python, Program::Sqlite, Program::Sort, Program::Gcc];

    /// All of them.
    pub const ALL: [Program; 13] = [
        Program::Redis,
        Program::Memcached,
        Program::Python,
        Program::Multiprocessing,
        Program::Sqlite,
        Program::Sort,
        Program::Gcc,
        Program::Join,
        Program::Xz,
        Program::Zstd,
        Program::Perl,
        Program::Git,
        Program::Stress,
    ];

    /// Heads a table's row and a plot.
    pub fn name(self) -> &'static str {
        match self {
            Program::Redis => "redis-server",
            Program::Python => "python numpy",
            Program::Sqlite => "sqlite :memory:",
            Program::Sort => "GNU sort",
            Program::Gcc => "gcc -O2",
            Program::Xz => "xz -9",
            Program::Join => "hash join",
            Program::Memcached => "memcached",
            Program::Multiprocessing => "multiprocessing",
            Program::Zstd => "zstd -12 --long",
            Program::Perl => "perl",
            Program::Git => "git",
            Program::Stress => "stress-ng --vm",
        }
    }

    /// What a file of its own is called after it.
    pub fn file_stem(self) -> &'static str {
        match self {
            Program::Redis => "redis",
            Program::Python => "python",
            Program::Sqlite => "sqlite",
            Program::Sort => "sort",
            Program::Gcc => "gcc",
            Program::Xz => "xz",
            Program::Join => "join",
            Program::Memcached => "memcached",
            Program::Multiprocessing => "multiprocessing",
            Program::Zstd => "zstd",
            Program::Perl => "perl",
            Program::Git => "git",
            Program::Stress => "stress",
        }
    }
}

/// How much work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Work {
    /// A tenth of a second natively, for many runs.
    Small,
    /// Half a second.
    Short,
    /// A few seconds.
    Full,
}

/// A program made ready: its input written, its command line known.
pub struct Job {
    /// Which.
    pub program: Program,
    /// The command, its program first.
    pub command: Vec<OsString>,
    /// Environment on top of ours.
    pub environment: Vec<(&'static str, &'static str)>,
    /// Standard input, if it reads any.
    pub input: Option<PathBuf>,
    /// A server's clients. What they were told is then its output, and how long they took its time.
    pub load: Option<redis::Load>,
}

impl Job {
    /// Writes the input into `dir`. `farmem` is the binary that has the hash join.
    ///
    /// # Errors
    /// The program is not installed; the input cannot be written.
    pub fn prepare(program: Program, work: Work, dir: &Path, farmem: &Path) -> anyhow::Result<Job> {
        let size = |of: [usize; 3]| of[work as usize];
        let text_of = |sizes: [usize; 3]| size(sizes).to_string();
        let mut job = Job { program, command: Vec::new(), environment: Vec::new(), input: None, load: None };
        let file = |name: &str| dir.join(name);
        let writing = || format!("writing the input of {}", program.name());
        match program {
            Program::Redis | Program::Memcached => {
                let (server, name) = match program {
                    Program::Redis => (redis::Server::Redis, "redis-server"),
                    _ => (redis::Server::Memcached, "memcached"),
                };
                let load = redis::Load::new(server, &file("server.sock"), size([20_000, 100_000, 400_000]));
                job.command = words([name]);
                job.command.extend(load.server_arguments(dir));
                job.load = Some(load);
            }
            Program::Python => {
                // Debian's own, for its numpy: another python3 may come first on the path.
                job.command = words(["/usr/bin/python3", "-c", PYTHON, &text_of([48_000, 240_000, 1_200_000])]);
                job.environment = vec![("PYTHONHASHSEED", "1"), ("OPENBLAS_NUM_THREADS", "1")];
            }
            Program::Sqlite => {
                job.command = words(["sqlite3", "-batch", ":memory:"]);
                let script = file("sqlite.sql");
                std::fs::write(&script, sql(size([40_000, 200_000, 1_000_000]) as u32)).with_context(writing)?;
                job.input = Some(script);
            }
            Program::Sort => {
                let lines = file("sort.txt");
                text(&lines, size([100_000, 700_000, 3_500_000])).with_context(writing)?;
                job.command = words(["sort", "-S", "2G", "--parallel=2"]);
                job.command.push(lines.into());
                job.environment = vec![("LC_ALL", "C")];
            }
            Program::Gcc => {
                let source = file("large.c");
                functions(&source, size([25, 90, 450])).with_context(writing)?;
                job.command = words(["gcc", "-O2", "-S", "-o", "-"]);
                job.command.push(source.into());
            }
            Program::Xz => {
                let lines = file("xz.txt");
                text(&lines, size([1500, 12_000, 60_000])).with_context(writing)?;
                job.command = words(["xz", "-9", "-T1", "-c"]);
                job.command.push(lines.into());
            }
            Program::Multiprocessing => {
                job.command = words(["/usr/bin/python3", "-c", PROCESSES, &text_of([25_000, 100_000, 800_000])]);
                job.environment = vec![("PYTHONHASHSEED", "1")];
            }
            Program::Zstd => {
                let lines = file("zstd.txt");
                text(&lines, size([8000, 60_000, 400_000])).with_context(writing)?;
                job.command = words(["zstd", "-q", "-12", "--long=27", "-T2", "-c"]);
                job.command.push(lines.into());
            }
            Program::Perl => {
                job.command = words(["perl", "-e", PERL, &text_of([25_000, 150_000, 1_200_000])]);
                job.environment = vec![("PERL_HASH_SEED", "0")];
            }
            Program::Git => {
                let lines = file("git.txt");
                text(&lines, size([6000, 30_000, 200_000])).with_context(writing)?;
                job.command = words(["sh", "-c", GIT, "sh"]);
                job.command.extend([dir.into(), lines.into()]);
                job.environment = vec![
                    ("GIT_AUTHOR_DATE", "2001-01-01T00:00:00Z"),
                    ("GIT_COMMITTER_DATE", "2001-01-01T00:00:00Z"),
                    ("GIT_CONFIG_GLOBAL", "/dev/null"),
                    ("GIT_CONFIG_SYSTEM", "/dev/null"),
                ];
            }
            Program::Stress => {
                job.command = words(["sh", "-c", STRESS, "sh", &text_of([8, 48, 256])]);
            }
            Program::Join => {
                let bytes = size([6, 48, 256]) << 20;
                job.command = vec![farmem.into()];
                job.command.extend(words(["bench-child", "small", "join", "--seed=1", "--checksum-only"]));
                job.command.push(format!("--bytes={bytes}").into());
            }
        }
        // What a shell's script runs is asked for by its own name.
        let command = match program {
            Program::Git => Path::new("git"),
            Program::Stress => Path::new("stress-ng"),
            _ => Path::new(&job.command[0]),
        };
        anyhow::ensure!(installed(command), "{} is not installed (sh tests/peers.sh installs it)", command.display());
        Ok(job)
    }
}

fn words<const N: usize>(words: [&str; N]) -> Vec<OsString> {
    words.into_iter().map(OsString::from).collect()
}

fn installed(program: &Path) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    // A path with a slash replaces the directory that it is joined to, if it is absolute.
    std::env::split_paths(&path).any(|dir| dir.join(program).is_file())
}

/// Sums of integers, and floats in a fixed order: nothing depends on how numpy splits its work.
const PYTHON: &str = r#"
import sys, hashlib
import numpy as np
n = int(sys.argv[1])
r = np.random.default_rng(7)
a = r.random(n * 4)
order = np.argsort(a, kind="stable")
print(order[::1000].sum(), a[order][::1000].tobytes().hex()[:64])
del order
a.sort()
print(hashlib.sha256(a.tobytes()).hexdigest())
d = {i * 7919 % 2_000_003: "name %d" % i for i in range(n)}
keys = r.integers(0, 2_000_003, n).tolist()
print(len(d), sum(len(d.get(k, "")) for k in keys))
print(hashlib.sha256("".join(sorted(d.values())).encode()).hexdigest())
"#;

/// Children read what they share with their parent; then the parent writes over it.
const PROCESSES: &str = r#"
import sys, hashlib
import multiprocessing as mp
data = [bytes([i % 251]) * (i % 97) + str(i).encode() for i in range(int(sys.argv[1]))]
def part(k):
    mine = sorted(data[k::8], key=lambda b: b[::-1])
    return hashlib.sha256(b"".join(mine)).hexdigest()
def square(todo, done):
    while (x := todo.get()) is not None:
        done.put((x, x * x, "y" * 100000))
mp.set_start_method("fork")
with mp.Pool(3) as pool:
    print(pool.map(part, range(8)))
data.reverse()
todo, done = mp.Queue(), mp.Queue()
children = [mp.Process(target=square, args=(todo, done)) for _ in range(2)]
for child in children: child.start()
for i in range(200): todo.put(i)
for child in children: todo.put(None)
print(sorted((a, b, len(c)) for a, b, c in (done.get() for _ in range(200)))[-1])
for child in children: child.join()
print([child.exitcode for child in children], hashlib.sha256(b"".join(data)).hexdigest())
"#;

const PERL: &str = r#"
my $n = shift; my %h; my $sum = 0;
for my $i (1 .. $n) { my $k = ($i * 7919) % 2000003; $h{$k} = "name $i of " . ($k ^ $i) . "x" x ($i % 60); }
for my $i (1 .. $n) { my $k = ($i * 104729) % 2000003; if (exists $h{$k}) { $sum += length $h{$k}; $h{$k} .= "!" if $i % 5 == 0; } }
for my $i (1 .. $n / 3) { delete $h{($i * 3 * 7919) % 2000003}; }
print scalar(keys %h), " $sum
"; my @s = sort { $h{$a} cmp $h{$b} } keys %h; print "$s[0] $s[-1] $s[@s / 2]
";
"#;

const GIT: &str = "set -e; cd \"$1\"; rm -rf repository; git init -q repository; cd repository; \
    for n in 1 2 3; do split -n l/$((n * 9)) \"$2\" part-$n-; git add .; \
    git -c user.name=n -c user.email=e commit -q -m $n; done; \
    git -c pack.threads=2 -c gc.auto=0 repack -adfq --window=40; git fsck --full --no-progress; \
    git rev-list --all --objects | sort | sha256sum; git log --stat -p | sha256sum";

/// Each ends by itself after so many operations, and fails if memory does not hold what was written.
const STRESS: &str = "for m in flip galpat-0 inc-nybble rand-set swap walk-0a write64; do \
    stress-ng --verify --quiet --timeout 300 --vm 1 --vm-bytes $1M --vm-keep --vm-ops 20 --vm-method $m || exit 1; \
    done; echo verified";

fn sql(rows: u32) -> String {
    format!(
        "PRAGMA temp_store = MEMORY;
CREATE TABLE item(id INTEGER PRIMARY KEY, owner INT, price INT, name TEXT);
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {rows})
  INSERT INTO item SELECT i, i * 7919 % 30011, i * 104729 % 9973, printf('item %d of %x and %x', i, i * 2654435761, i * 40503) FROM n;
CREATE TABLE owner(id INTEGER PRIMARY KEY, name TEXT);
INSERT INTO owner SELECT DISTINCT owner, 'owner ' || owner FROM item;
CREATE INDEX by_owner ON item(owner);
SELECT count(*), sum(price) FROM item;
SELECT o.name, count(*), sum(i.price) FROM item i JOIN owner o ON o.id = i.owner
  GROUP BY o.id ORDER BY 3 DESC, 1 LIMIT 50;
SELECT a.owner, count(*), sum(b.price) FROM item a JOIN item b ON b.owner = a.owner
  WHERE a.id % 20 = 0 GROUP BY a.owner ORDER BY 3 DESC, 1 LIMIT 50;
UPDATE item SET price = price + 1 WHERE owner % 3 = 0;
SELECT sum(price), max(name), count(DISTINCT owner) FROM item;
SELECT id, name FROM item ORDER BY name LIMIT 50;
"
    )
}

/// Lines in no order.
fn text(path: &Path, lines: usize) -> io::Result<()> {
    let mut out = BufWriter::with_capacity(1 << 20, File::create(path)?);
    let mut draw = Random::new(7);
    for _ in 0..lines {
        let dice = draw.bits();
        writeln!(out, "{dice:016x} order {} of customer {} item {}", dice >> 44, dice % 9_999_991, dice % 9973)?;
    }
    out.flush()
}

/// C functions that an optimiser has something to do with.
fn functions(path: &Path, count: usize) -> io::Result<()> {
    let mut out = BufWriter::new(File::create(path)?);
    writeln!(out, "#include <stdio.h>\n#include <string.h>\nstruct s {{ int a, b[16]; char name[32]; }};")?;
    for f in 0..count {
        writeln!(
            out,
            "int f{f}(struct s *p, int n) {{ int t = {f}; for (int i = 0; i < n; i++) {{ switch (p[i].a % 7) {{ \
             case 0: t += p[i].b[i % 16] * {f}; break; case 1: t ^= strlen(p[i].name); break; \
             case 2: snprintf(p[i].name, 32, \"%d-{f}\", t); break; case 3: t -= f{}(p, n / 2); break; \
             default: p[i].b[t & 15] = t + {f}; }} if (t > {f}000) t /= 3; }} return t; }}",
            f / 2
        )?;
    }
    out.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inputs_are_the_same_every_time() {
        let dir = std::env::temp_dir().join(format!("farmem-programs-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let file = dir.join("input");
        let written = |write: &dyn Fn() -> io::Result<()>| {
            write().unwrap();
            std::fs::read(&file).unwrap()
        };
        let lines = || text(&file, 1000);
        assert_eq!(written(&lines), written(&lines));
        assert_eq!(String::from_utf8(written(&lines)).unwrap().lines().count(), 1000);
        assert!(String::from_utf8(written(&|| functions(&file, 3))).unwrap().contains("int f2(struct s *p"));
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn what_is_not_installed_is_found_out() {
        assert!(installed(Path::new("sh")) && installed(Path::new("/bin/sh")));
        assert!(!installed(Path::new("no-such-program-here")) && !installed(Path::new("/no/such/program")));
    }
}
