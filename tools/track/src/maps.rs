//! The mappings of a process, from the text of `/proc/PID/maps`.

use std::fmt;

/// The thing behind a mapping.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Behind {
    /// Private memory of the process; far memory, on farmem.
    Anonymous,
    /// As that, but a thread's stack, which farmem leaves local.
    Stack,
    /// A private mapping of a file: pages are the file's until they are written.
    PrivateFile(FileId),
    /// Shared memory, or a shared mapping of a file: others may write it too.
    Shared(FileId),
    /// The kernel's own (`[vdso]`, `[vvar]`).
    Kernel,
}

/// A file by what identifies it in `maps`, and where in it a mapping's address 0 would be
/// (wrapping), which is the same for every part of one mapping.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileId {
    device: String,
    inode: u64,
    origin: u64,
}

/// One mapping.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// First address.
    pub start: u64,
    /// After the last.
    pub end: u64,
    /// Readable.
    pub read: bool,
    /// Writable.
    pub write: bool,
    /// Code.
    pub execute: bool,
    /// The thing behind it.
    pub behind: Behind,
    /// As the kernel names it: a path, `[heap]`, `[stack]`; empty for anonymous memory.
    pub name: String,
}

impl Mapping {
    /// Whether its stores are tracked.
    pub fn is_tracked(&self) -> bool {
        self.read && self.write && self.behind != Behind::Kernel
    }
}

impl fmt::Display for Mapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.behind, self.name.as_str()) {
            (Behind::Shared(_), "") => f.write_str("shared"),
            (Behind::Shared(_), name) => write!(f, "shared {name}"),
            (_, "") => f.write_str("anonymous"),
            (_, name) => f.write_str(name),
        }
    }
}

/// Reads the text. Lines that do not have the form are left out: a line cut short is one at the
/// very end.
pub fn parse(text: &str) -> Vec<Mapping> {
    text.lines().filter_map(line).collect()
}

fn line(line: &str) -> Option<Mapping> {
    let mut fields = line.splitn(6, ' ');
    let (start, end) = fields.next()?.split_once('-')?;
    let (start, end) = (u64::from_str_radix(start, 16).ok()?, u64::from_str_radix(end, 16).ok()?);
    let rights = fields.next()?.as_bytes();
    let offset = u64::from_str_radix(fields.next()?, 16).ok()?;
    let device = fields.next()?.to_owned();
    let inode: u64 = fields.next()?.parse().ok()?;
    let name = fields.next().unwrap_or_default().trim_start().to_owned();
    let shared = *rights.get(3)? == b's';
    let file = || FileId { device: device.clone(), inode, origin: offset.wrapping_sub(start) };
    let behind = match name.as_str() {
        "[vdso]" | "[vsyscall]" => Behind::Kernel,
        name if name.starts_with("[vvar") => Behind::Kernel,
        _ if shared => Behind::Shared(file()),
        _ if inode != 0 => Behind::PrivateFile(file()),
        "[stack]" => Behind::Stack,
        _ => Behind::Anonymous,
    };
    (start < end && rights.len() == 4).then(|| Mapping {
        start,
        end,
        read: rights[0] == b'r',
        write: rights[1] == b'w',
        execute: rights[2] == b'x',
        behind,
        name,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
5581a000-5581c000 r--p 00000000 fd:01 393 /usr/bin/a program
5581c000-5581d000 rw-p 00002000 fd:01 393 /usr/bin/a program
7f0000000000-7f0000021000 rw-p 00000000 00:00 0 
7f0000021000-7f0004000000 ---p 00000000 00:00 0 
7f1000000000-7f1000001000 rw-s 00000000 00:01 77 /dev/zero (deleted)
7ffc00000000-7ffc00021000 rw-p 00000000 00:00 0                          [stack]
7ffc00100000-7ffc00101000 r-xp 00000000 00:00 0                          [vdso]
7ffc001";

    #[test]
    fn what_is_behind_a_mapping() {
        let maps = parse(TEXT);
        assert_eq!(maps.len(), 7);
        assert_eq!(maps[1].to_string(), "/usr/bin/a program");
        assert!(matches!(maps[1].behind, Behind::PrivateFile(_)));
        assert_eq!((maps[2].behind.clone(), maps[2].to_string()), (Behind::Anonymous, "anonymous".into()));
        assert!(matches!(maps[4].behind, Behind::Shared(_)));
        assert_eq!(maps[5].behind, Behind::Stack);
        let tracked: Vec<bool> = maps.iter().map(Mapping::is_tracked).collect();
        assert_eq!(tracked, [false, true, true, false, true, true, false]);
    }

    #[test]
    fn parts_of_one_mapping_are_the_same_file() {
        let maps = parse(
            "1000-2000 rw-p 00005000 08:01 7 /f\n2000-3000 r--p 00006000 08:01 7 /f\n8000-9000 rw-p 00005000 08:01 7 /f\n",
        );
        assert_eq!(maps[0].behind, maps[1].behind);
        assert_ne!(maps[0].behind, maps[2].behind);
    }
}
