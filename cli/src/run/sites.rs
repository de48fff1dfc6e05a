//! `farmem run --sites`: which functions of the program wait most for pages.
//!
//! The runtime counts by instruction ([`farmem_run::waits`]). Here instructions get names:
//! function, file and line from debugging information, else the function from the symbol table,
//! else file and offset.

use std::collections::HashMap;
use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use addr2line::Loader;
use farmem_run::waits::{Code, Counted, File, MAGIC};
use serde::Serialize;

use crate::units;

/// Functions that are told.
const TOLD: usize = 10;
/// Faults from which on a pattern is told.
const ENOUGH: u64 = 32;

/// A function that waited.
#[derive(Serialize, Debug)]
pub struct Site {
    /// Of the time that all places waited, the share, 0–1.
    share: f64,
    wait_ns: u64,
    faults: u64,
    /// Of the faults: stores.
    writes: u64,
    /// `random`, `sequential` or `mixed`. Nothing where too few faults were seen.
    pattern: Option<&'static str>,
    /// The function, or file and offset.
    function: String,
    /// Where in its source it waited most.
    line: Option<String>,
    /// The program or library that it is of.
    file: String,
}

/// All that waited, and those that waited most.
#[derive(Serialize, Debug)]
pub struct Sites {
    wait_ns: u64,
    faults: u64,
    most: Vec<Site>,
}

/// Makes the file in which a run's programs count.
pub fn create(path: &Path) -> io::Result<()> {
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.set_len(size_of::<File>() as u64)?;
    file.write_all_at(&MAGIC.to_le_bytes(), 0)
}

/// Reads what a run's programs have counted.
pub fn read(path: &Path) -> io::Result<Sites> {
    let file = File::read(&fs::read(path)?).ok_or_else(|| io::Error::other("it is not what the run made it"))?;
    Ok(told(&file))
}

fn told(file: &File) -> Sites {
    let mut names = Names::default();
    let mut all = Counted::default();
    let mut functions: HashMap<(String, String), (Counted, Counted, Option<String>)> = HashMap::new();
    for (code, counted) in file.all() {
        all.add(counted);
        let Name { function, line, file } = names.of(file, code);
        let (sum, most, at) = functions.entry((file, function)).or_default();
        sum.add(counted);
        if counted.wait_ns >= most.wait_ns {
            (*most, *at) = (counted, line);
        }
    }
    let mut most: Vec<Site> = functions
        .into_iter()
        .map(|((file, function), (counted, _, line))| Site {
            share: counted.wait_ns as f64 / all.wait_ns.max(1) as f64,
            wait_ns: counted.wait_ns,
            faults: counted.faults,
            writes: counted.writes,
            pattern: pattern(counted),
            function,
            line,
            file,
        })
        .collect();
    most.sort_by(|a, b| b.wait_ns.cmp(&a.wait_ns).then_with(|| a.function.cmp(&b.function)));
    most.truncate(TOLD);
    Sites { wait_ns: all.wait_ns, faults: all.faults, most }
}

fn pattern(counted: Counted) -> Option<&'static str> {
    (counted.faults >= ENOUGH).then(|| match counted.in_order * 10 / counted.faults {
        0..=2 => "random",
        3..=6 => "mixed",
        _ => "sequential",
    })
}

struct Name {
    function: String,
    line: Option<String>,
    file: String,
}

/// The known names of the run's files.
#[derive(Default)]
struct Names {
    known: HashMap<usize, (String, Option<Object>)>,
}

/// A file with code.
struct Object {
    loader: Loader,
    /// Of each loaded segment: offset, bytes, address.
    segments: Vec<(u64, u64, u64)>,
}

impl Names {
    fn of(&mut self, file: &File, code: Option<Code>) -> Name {
        let (number, offset) = match code {
            None => return Name { function: "(other places)".into(), line: None, file: String::new() },
            Some(Code::At(_)) => {
                return Name { function: "(code that no file holds)".into(), line: None, file: String::new() };
            }
            Some(Code::InFile(number, offset)) => (number, offset),
        };
        let (path, object) = self.known.entry(number).or_insert_with(|| {
            let path = file.path(number);
            let object = Object::open(&path);
            (path, object)
        });
        let short =
            Path::new(path.as_str()).file_name().map_or_else(|| path.clone(), |name| name.to_string_lossy().into());
        let found = object.as_ref().and_then(|object| object.name(offset));
        let (function, line) = found.unwrap_or_else(|| (format!("{short}+{offset:#x}"), None));
        Name { function, line, file: short }
    }
}

impl Object {
    fn open(path: &str) -> Option<Object> {
        let segments = segments(path)?;
        Some(Object { loader: Loader::new(path).ok()?, segments })
    }

    /// The function at an offset, and the line in its source.
    fn name(&self, offset: u64) -> Option<(String, Option<String>)> {
        let (start, _, address) = *self.segments.iter().find(|(start, len, _)| offset.wrapping_sub(*start) < *len)?;
        let at = offset - start + address;
        let line = self.loader.find_location(at).ok().flatten().and_then(|location| {
            let file = Path::new(location.file?).file_name()?.to_string_lossy().into_owned();
            Some(location.line.map_or(file.clone(), |line| format!("{file}:{line}")))
        });
        let inlined = self.loader.find_frames(at).ok().and_then(|mut frames| {
            let function = frames.next().ok()??.function?;
            function.demangle().ok().map(|name| name.into_owned())
        });
        let function = inlined.or_else(|| Some(readable(self.loader.find_symbol(at)?)));
        function.map(|function| (function, line))
    }
}

/// A symbol as its source has it. One of C stays: `h` and `w` would be taken for C++'s letters for
/// types.
fn readable(symbol: &str) -> String {
    if !symbol.starts_with("_Z") && !symbol.starts_with("_R") {
        return symbol.to_owned();
    }
    addr2line::demangle_auto(symbol.into(), None).into_owned()
}

/// The loaded segments of a 64-bit ELF file.
fn segments(path: &str) -> Option<Vec<(u64, u64, u64)>> {
    const LOAD: u32 = 1;
    let file = fs::File::open(path).ok()?;
    let mut head = [0u8; 64];
    file.read_exact_at(&mut head, 0).ok()?;
    if !head.starts_with(b"\x7fELF\x02\x01") {
        return None;
    }
    let half = |bytes: &[u8], at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
    let word = |bytes: &[u8], at: usize| u64::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
    let (table, size, count) = (word(&head, 32), half(&head, 54), half(&head, 56));
    let mut entry = [0u8; 56];
    let mut found = Vec::new();
    for n in 0..count as u64 {
        file.read_exact_at(&mut entry, table.checked_add(n * size as u64)?).ok()?;
        if u32::from_le_bytes([entry[0], entry[1], entry[2], entry[3]]) == LOAD {
            found.push((word(&entry, 8), word(&entry, 32), word(&entry, 16)));
        }
    }
    Some(found)
}

impl Sites {
    /// The lines for people.
    pub fn text(&self) -> String {
        if self.faults == 0 {
            return "farmem: the program waited for no page\n".to_owned();
        }
        let (wait, faults) = (units::nanos(self.wait_ns), units::count(self.faults));
        let mut out = format!("farmem: where the program waited: {wait} in {faults} faults\n");
        out += "  wait      faults   pattern      function\n";
        for site in &self.most {
            let share = units::share(site.wait_ns, self.wait_ns);
            let (faults, pattern) = (units::count(site.faults), site.pattern.unwrap_or(""));
            let line = site.line.as_ref().map_or_else(String::new, |line| format!(", {line}"));
            let file = if site.file.is_empty() { String::new() } else { format!(" ({})", site.file) };
            out += &format!("  {share:>5}   {faults:>8}   {pattern:<10}   {}{line}{file}\n", site.function);
        }
        if self.most.iter().any(|site| site.pattern == Some("random")) {
            out += "  random: where the next places are known, farmem_read_each of farmem.h brings them in together\n";
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_share_of_faults_in_order_makes_the_pattern() {
        let of = |faults, in_order| pattern(Counted { faults, in_order, ..Counted::default() });
        assert_eq!(of(10, 0), None);
        assert_eq!([of(100, 10), of(100, 50), of(100, 99)], [Some("random"), Some("mixed"), Some("sequential")]);
    }

    #[test]
    fn a_symbol_of_c_is_its_own_name() {
        let names = ["h", "w", "main", "_Z6lookupi", "_ZN3std4exit17h0123456789abcdefE"].map(readable);
        assert_eq!(names, ["h", "w", "main", "lookup(int)", "std::exit"]);
    }

    #[test]
    fn segments_of_this_program_hold_its_code() {
        let own = std::env::current_exe().unwrap();
        let segments = segments(own.to_str().unwrap()).unwrap();
        assert!(segments.len() >= 2 && segments.iter().any(|&(_, len, _)| len > 100_000), "{segments:?}");
        assert_eq!(super::segments("/proc/self/maps"), None);
    }
}
