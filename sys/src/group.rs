//! The memory group (cgroup) of this process: its limit, its free part, and the processes that the
//! kernel killed because of it.
//!
//! ```text
//!  /proc/self/cgroup     0::/app.slice/run            the group's path (v2; v1: 4:memory:/...)
//!  /proc/self/mountinfo  /app.slice on /sys/fs/cgroup  what part of the tree is mounted where
//!                          └─► /sys/fs/cgroup/run, and its ancestors up to the mount point
//! ```
//!
//! A limit holds for all of a group's processes and its subgroups' together, so every ancestor's
//! counts. From inside a container those above its own group cannot be seen.
//!
//! The files are read by std: none of this is for the runtime inside a program.

use std::fs;
use std::path::{Path, PathBuf};

/// A limit as large as this is none (v1 writes "no limit" as the largest multiple of a page).
const NONE: u64 = 1 << 62;

/// The groups that a process is in, its own first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Groups {
    dirs: Vec<PathBuf>,
    files: &'static Files,
}

/// The tightest limit, and what is left within all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// Bytes that the group's processes may have together.
    pub bytes: u64,
    /// Bytes that they can still get; cached files count as free.
    pub left: u64,
}

/// The names of files and fields in one version of the interface.
#[derive(Debug, PartialEq, Eq)]
struct Files {
    limit: &'static str,
    usage: &'static str,
    /// Prefix of the fields of `memory.stat` that count subgroups too.
    total: &'static str,
    /// The file that counts processes ended, as `oom_kill N`.
    kills: &'static str,
    /// The file that counts hits of the limit, and its field; `""`: the file is the number.
    hits: (&'static str, &'static str),
}

static VERSION_1: Files = Files {
    limit: "memory.limit_in_bytes",
    usage: "memory.usage_in_bytes",
    total: "total_",
    kills: "memory.oom_control",
    hits: ("memory.failcnt", ""),
};

static VERSION_2: Files = Files {
    limit: "memory.max",
    usage: "memory.current",
    total: "",
    kills: "memory.events",
    hits: ("memory.events", "oom"),
};

/// How often the kernel has acted on a limit, at some moment.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    kills: Option<u64>,
    /// Of each group.
    hits: Vec<Option<u64>>,
}

/// The difference between two tallies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Killed {
    /// Processes of the group that the kernel killed because memory ran out.
    pub processes: u64,
    /// The limit for which it did; `None`: the machine's memory, or a limit that cannot be seen.
    pub limit: Option<u64>,
}

impl Groups {
    /// Those of this process. `None` where the system has no memory groups, or hides them.
    pub fn own() -> Option<Groups> {
        let of = fs::read_to_string("/proc/self/cgroup").ok()?;
        let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
        Groups::find(&of, &mounts, |file| file.exists())
    }

    fn find(of: &str, mounts: &str, exists: impl Fn(&Path) -> bool) -> Option<Groups> {
        let version_1 = of.lines().find_map(|line| {
            let mut fields = line.splitn(3, ':').skip(1);
            let has_memory = fields.next()?.split(',').any(|controller| controller == "memory");
            fields.next().filter(|_| has_memory)
        });
        let (path, files) = match version_1 {
            Some(path) => (path, &VERSION_1),
            None => (of.lines().find_map(|line| line.strip_prefix("0::"))?, &VERSION_2),
        };
        let is_ours = |kind: &str, options: &str| match files {
            f if f == &VERSION_1 => kind == "cgroup" && options.split(',').any(|option| option == "memory"),
            _ => kind == "cgroup2",
        };
        let (root, mount) = mounts.lines().find_map(|line| {
            let (before, after) = line.split_once(" - ")?;
            let mut after = after.split(' ');
            let (kind, options) = (after.next()?, after.nth(1)?);
            let mut before = before.split(' ').skip(3);
            is_ours(kind, options).then(|| Some((before.next()?.to_owned(), unescaped(before.next()?))))?
        })?;
        // In a container's view the group may lie outside of what is mounted: then the mount point
        // is the best there is, as the container's engine meant it.
        let below = Path::new(path).strip_prefix(&root).unwrap_or(Path::new(""));
        let below = if below.components().any(|part| part.as_os_str() == "..") { Path::new("") } else { below };
        let mount = PathBuf::from(mount);
        let dirs: Vec<PathBuf> = below.ancestors().map(|part| mount.join(part)).collect();
        // The root of all groups has no limit, and no file for one in version 2.
        let dirs: Vec<PathBuf> = dirs.into_iter().filter(|dir| exists(&dir.join(files.limit))).collect();
        (!dirs.is_empty()).then_some(Groups { dirs, files })
    }

    /// The limit that leaves least; `None` where there is none.
    pub fn limit(&self) -> Option<Limit> {
        let limits: Vec<Limit> = self.dirs.iter().filter_map(|dir| self.limit_of(dir)).collect();
        let bytes = limits.iter().map(|limit| limit.bytes).min()?;
        let left = limits.iter().map(|limit| limit.left).min()?;
        Some(Limit { bytes, left })
    }

    fn limit_of(&self, dir: &Path) -> Option<Limit> {
        let bytes = bound(dir, self.files)?;
        let usage = number(dir, self.files.usage).unwrap_or(0);
        let stat = fs::read_to_string(dir.join("memory.stat")).unwrap_or_default();
        let total = self.files.total;
        let cached = |name: &str| field(&stat, &format!("{total}{name}")).unwrap_or(0);
        let used = usage.saturating_sub(cached("active_file") + cached("inactive_file"));
        Some(Limit { bytes, left: bytes.saturating_sub(used) })
    }

    /// How often the kernel has acted so far.
    pub fn tally(&self) -> Tally {
        let count = |dir: &Path, (file, name): (&str, &str)| {
            let text = fs::read_to_string(dir.join(file)).ok()?;
            if name.is_empty() { text.trim().parse().ok() } else { field(&text, name) }
        };
        Tally {
            kills: count(&self.dirs[0], (self.files.kills, "oom_kill")),
            hits: self.dirs.iter().map(|dir| count(dir, self.files.hits)).collect(),
        }
    }

    /// The processes that the kernel killed since. `None`: none, as far as the kernel tells.
    pub fn killed_since(&self, before: &Tally) -> Option<Killed> {
        let now = self.tally();
        let processes = now.kills?.saturating_sub(before.kills?);
        let was_hit = now.hits.iter().zip(&before.hits).map(|(now, before)| now > before);
        let limit = self.dirs.iter().zip(was_hit).find_map(|(dir, hit)| bound(dir, self.files).filter(|_| hit));
        (processes > 0).then_some(Killed { processes, limit })
    }
}

/// A group's own limit.
fn bound(dir: &Path, files: &Files) -> Option<u64> {
    // "max" where there is none.
    number(dir, files.limit).filter(|&bytes| bytes < NONE)
}

fn number(dir: &Path, file: &str) -> Option<u64> {
    fs::read_to_string(dir.join(file)).ok()?.trim().parse().ok()
}

/// The number behind a name at the beginning of a line.
fn field(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok())
}

/// A path of mountinfo: blanks, tabs, newlines and backslashes are octal there.
fn unescaped(path: &str) -> String {
    let codes = [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")];
    codes.iter().fold(path.to_owned(), |path, (code, plain)| path.replace(code, plain))
}

#[cfg(test)]
mod tests {
    use super::*;

    const V1: &str = "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n\
                      41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
    const V2: &str = "25 30 0:23 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";

    fn dirs(of: &str, mounts: &str) -> Option<Vec<String>> {
        let groups = Groups::find(of, mounts, |_| true)?;
        Some(groups.dirs.iter().map(|dir| dir.display().to_string()).collect())
    }

    #[test]
    fn a_group_is_found_where_it_is_mounted() {
        let both = "4:memory:/jobs/one\n1:cpu:/\n0::/x\n";
        let v1 = ["/sys/fs/cgroup/memory/jobs/one", "/sys/fs/cgroup/memory/jobs", "/sys/fs/cgroup/memory/"];
        assert_eq!(dirs(both, V1).unwrap(), v1);
        let v2 = ["/sys/fs/cgroup/a.slice/b c.scope", "/sys/fs/cgroup/a.slice", "/sys/fs/cgroup/"];
        assert_eq!(dirs("0::/a.slice/b c.scope\n", V2).unwrap(), v2);
        // A container's engine has mounted the group alone, and hidden its name or not.
        let alone = "9 8 0:23 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n";
        assert_eq!(dirs("4:memory:/docker/abc\n", alone).unwrap(), ["/sys/fs/cgroup/memory/"]);
        assert_eq!(dirs("4:memory:/docker/abc/sub\n", alone).unwrap()[0], "/sys/fs/cgroup/memory/sub");
        assert_eq!(dirs("4:memory:/elsewhere\n", alone).unwrap(), ["/sys/fs/cgroup/memory/"]);
        assert_eq!(dirs("0::/../../other\n", V2).unwrap(), ["/sys/fs/cgroup/"]);
        let odd = "25 30 0:23 / /mnt/c\\040groups rw - cgroup2 cgroup2 rw\n";
        assert_eq!(dirs("0::/\n", odd).unwrap(), ["/mnt/c groups/"]);
    }

    #[test]
    fn where_nothing_is_known_nothing_is_claimed() {
        for (of, mounts) in
            [("", V2), ("0::/a\n", ""), ("1:cpu:/\n", V1), ("4:memory:/a\n", V2), ("junk", "junk - \n - ")]
        {
            assert_eq!(Groups::find(of, mounts, |_| true), None, "{of} {mounts}");
        }
        assert_eq!(Groups::find("0::/a\n", V2, |_| false), None);
    }

    /// A tree of files in place of the kernel's.
    struct Tree(PathBuf);

    impl Tree {
        fn new(name: &str, files: &[(&str, &str)]) -> Tree {
            let root = std::env::temp_dir().join(format!("farmem-groups-{name}-{}", std::process::id()));
            let tree = Tree(root);
            files.iter().for_each(|(file, text)| tree.write(file, text));
            tree
        }

        fn write(&self, file: &str, text: &str) {
            let path = self.0.join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }

        fn groups(&self, of: &str, kind: &str) -> Groups {
            let mounts = format!("1 2 0:3 / {} rw - {kind} x rw,memory\n", self.0.display());
            Groups::find(of, &mounts, Path::exists).unwrap()
        }
    }

    impl Drop for Tree {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn the_tightest_limit_counts() {
        let tree = Tree::new(
            "two",
            &[
                ("a/b/memory.max", "max\n"),
                ("a/memory.max", "178257920\n"),
                ("a/memory.current", "104857600\n"),
                ("a/memory.stat", "anon 1\nfile 9\ninactive_file 41943040\nactive_file 10485760\n"),
                ("a/b/memory.events", "low 0\nhigh 0\nmax 7\noom 0\noom_kill 3\n"),
                ("a/memory.events", "oom 1\noom_kill 3\n"),
            ],
        );
        let groups = tree.groups("0::/a/b\n", "cgroup2");
        assert_eq!(groups.limit(), Some(Limit { bytes: 170 << 20, left: 120 << 20 }));
        let before = groups.tally();
        assert_eq!(groups.killed_since(&before), None);
        tree.write("a/b/memory.events", "oom 0\noom_kill 4\n");
        assert_eq!(groups.killed_since(&before), Some(Killed { processes: 1, limit: None }));
        tree.write("a/memory.events", "oom 2\noom_kill 4\n");
        assert_eq!(groups.killed_since(&before), Some(Killed { processes: 1, limit: Some(170 << 20) }));
    }

    #[test]
    fn version_one_has_other_names() {
        let tree = Tree::new(
            "one",
            &[
                ("g/memory.limit_in_bytes", "125829120\n"),
                ("g/memory.usage_in_bytes", "62914560\n"),
                ("g/memory.stat", "cache 1\ninactive_file 5\ntotal_inactive_file 10485760\ntotal_active_file 0\n"),
                ("g/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 0\n"),
                ("g/memory.failcnt", "0\n"),
                ("memory.limit_in_bytes", "9223372036854771712\n"),
            ],
        );
        let groups = tree.groups("4:memory:/g\n", "cgroup");
        assert_eq!(groups.limit(), Some(Limit { bytes: 120 << 20, left: 70 << 20 }));
        let before = groups.tally();
        tree.write("g/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n");
        tree.write("g/memory.failcnt", "12\n");
        assert_eq!(groups.killed_since(&before), Some(Killed { processes: 2, limit: Some(120 << 20) }));
        assert_eq!(tree.groups("4:memory:/\n", "cgroup").limit(), None);
    }
}
