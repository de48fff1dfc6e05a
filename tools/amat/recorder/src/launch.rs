//! Which file an exec runs, and the command line of QEMU for it.
//!
//! QEMU executes ELF files only, so scripts are resolved here, as the kernel does it. `farmem
//! amat` uses this for the first program. The plugin uses it for programs that this one executes.

use farmem_sys::process;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Scripts may name scripts as their interpreters; the kernel follows five.
const INTERPRETERS: usize = 5;

/// An x86-64 program, and what it is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The ELF file.
    pub file: PathBuf,
    /// Its arguments, its own name first.
    pub arguments: Vec<OsString>,
}

/// Why QEMU cannot run a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unusable {
    /// The kernel would refuse it too: it is not there, not executable, or no program.
    Refused,
    /// The kernel runs it. Says what it is.
    Other(&'static str),
}

/// Follows `#!` lines to the program that runs.
///
/// # Errors
/// When it is none that QEMU can run.
pub fn plan(file: &Path, mut arguments: Vec<OsString>) -> Result<Plan, Unusable> {
    let mut file = file.to_owned();
    for _ in 0..=INTERPRETERS {
        let about = file.metadata().map_err(|_| Unusable::Refused)?;
        if !about.is_file() || !may_execute(&file) {
            return Err(Unusable::Refused);
        }
        let mode = about.permissions().mode();
        let other_user = mode & 0o4000 != 0 && about.uid() != process::user();
        let other_group = mode & 0o2000 != 0 && about.gid() != process::group();
        if other_user || other_group || process::user() != 0 && process::has_capabilities(&file) {
            return Err(Unusable::Other("runs with other privileges (set-user-ID, or file capabilities)"));
        }
        let mut head = Vec::new();
        let opened = File::open(&file).map_err(|_| Unusable::Other("is not readable"))?;
        opened.take(256).read_to_end(&mut head).map_err(|_| Unusable::Refused)?;
        let Some(line) = head.strip_prefix(b"#!") else {
            return elf(&head).map(|()| Plan { file, arguments });
        };
        let (interpreter, argument) = interpreter(line).ok_or(Unusable::Refused)?;
        let script = std::mem::replace(&mut file, interpreter.clone());
        let rest = arguments.drain(..).skip(1).collect::<Vec<_>>();
        arguments.push(interpreter.into_os_string());
        arguments.extend(argument);
        arguments.push(script.into_os_string());
        arguments.extend(rest);
    }
    Err(Unusable::Refused)
}

/// Finds a program as `execvp` would.
pub fn locate(name: &OsStr) -> Option<PathBuf> {
    if name.as_bytes().contains(&b'/') {
        return Some(PathBuf::from(name));
    }
    let path = std::env::var_os("PATH").unwrap_or_else(|| "/usr/local/bin:/usr/bin:/bin".into());
    let mut files = std::env::split_paths(&path).map(|directory| directory.join(name));
    files.find(|file| file.is_file() && may_execute(file))
}

#[allow(unsafe_code)]
fn may_execute(file: &Path) -> bool {
    let mut path = file.as_os_str().as_bytes().to_vec();
    path.push(0);
    // SAFETY: a path that ends with a zero byte.
    unsafe { libc::access(path.as_ptr().cast(), libc::X_OK) == 0 }
}

/// The interpreter of a `#!` line, and the one argument it may have.
fn interpreter(line: &[u8]) -> Option<(PathBuf, Option<OsString>)> {
    let line = line.split(|&byte| byte == b'\n').next()?.trim_ascii();
    let blank = |byte: &u8| matches!(byte, b' ' | b'\t');
    let end = line.iter().position(blank).unwrap_or(line.len());
    let (path, argument) = (&line[..end], line[end..].trim_ascii());
    let argument = (!argument.is_empty()).then(|| OsString::from_vec(argument.to_vec()));
    (!path.is_empty()).then(|| (PathBuf::from(OsStr::from_bytes(path)), argument))
}

fn elf(head: &[u8]) -> Result<(), Unusable> {
    const X86_64: [u8; 2] = [62, 0];
    match head {
        [0x7f, b'E', b'L', b'F', 2, 1, rest @ ..] if rest.get(12..14) == Some(&X86_64) => Ok(()),
        [0x7f, b'E', b'L', b'F', ..] => Err(Unusable::Other("is not an x86-64 program")),
        _ => Err(Unusable::Refused),
    }
}

/// How QEMU is started: the plugin's arguments, which it passes on to itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recorder {
    /// `qemu-x86_64`.
    pub qemu: PathBuf,
    /// The plugin's library.
    pub library: PathBuf,
    /// The ring's file.
    pub ring: PathBuf,
    /// Whether forked children are recorded.
    pub follow: bool,
    /// The program that runs now.
    pub program: PathBuf,
}

impl Recorder {
    /// Reads the plugin's arguments, `name=value` each.
    ///
    /// # Errors
    /// One is missing.
    pub fn parse(arguments: &[OsString]) -> Result<Recorder, String> {
        let value = |name: &str| {
            let found = arguments.iter().find_map(|argument| argument.as_bytes().strip_prefix(name.as_bytes()));
            found.map(|value| PathBuf::from(OsStr::from_bytes(value))).ok_or_else(|| format!("no argument {name}"))
        };
        let (qemu, library, ring) = (value("qemu=")?, value("library=")?, value("ring=")?);
        Ok(Recorder { qemu, library, ring, follow: value("follow=")? == Path::new("on"), program: value("program=")? })
    }

    /// The value of QEMU's option `-plugin`.
    fn plugin(&self, program: &Path) -> OsString {
        let follow = Path::new(if self.follow { "on" } else { "off" });
        let (qemu, library, ring) = (self.qemu.as_path(), self.library.as_path(), self.ring.as_path());
        let arguments = [
            ("", library),
            (",qemu=", qemu),
            (",library=", library),
            (",ring=", ring),
            (",follow=", follow),
            (",program=", program),
        ];
        let mut option = OsString::new();
        for (name, value) in arguments {
            option.push(name);
            // A comma that is doubled is one.
            let value = value.as_os_str().as_bytes();
            let doubled = value.iter().flat_map(|&byte| [byte; 2].into_iter().take(1 + usize::from(byte == b',')));
            option.push(OsString::from_vec(doubled.collect()));
        }
        option
    }

    /// QEMU's arguments and environment for a program. Variables that the dynamic loader heeds are
    /// meant for the program: QEMU sets them there, and does not see them itself.
    pub fn command_line(&self, plan: Plan, environment: &[OsString]) -> (Vec<OsString>, Vec<OsString>) {
        let mut arguments: Vec<OsString> = vec![self.qemu.clone().into_os_string()];
        // The emulated processor has everything that QEMU offers: programs choose their code by it.
        arguments.extend(["-cpu", "max", "-plugin"].map(OsString::from));
        arguments.push(self.plugin(&plan.file.canonicalize().unwrap_or_else(|_| plan.file.clone())));
        let mut given = plan.arguments.into_iter();
        arguments.push("-0".into());
        arguments.push(given.next().unwrap_or_default());
        // QEMU takes a comma for the end of a variable.
        let is_loaders =
            |variable: &&OsString| variable.as_bytes().starts_with(b"LD_") && !variable.as_bytes().contains(&b',');
        let (loaders, others): (Vec<&OsString>, Vec<&OsString>) = environment.iter().partition(is_loaders);
        for variable in loaders {
            arguments.push("-E".into());
            arguments.push(variable.clone());
        }
        // A name that begins with a dash would be taken for an option.
        arguments.push(match plan.file.as_os_str().as_bytes() {
            [b'-', ..] => Path::new(".").join(plan.file).into_os_string(),
            _ => plan.file.into_os_string(),
        });
        arguments.extend(given);
        (arguments, others.into_iter().cloned().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(words: &[&str]) -> Vec<OsString> {
        words.iter().map(OsString::from).collect()
    }

    #[test]
    fn scripts_lead_to_their_interpreters() {
        let dir = std::env::temp_dir().join(format!("farmem-launch-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let script = |name: &str, text: &str, mode: u32| {
            let path = dir.join(name);
            std::fs::write(&path, text).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            path
        };
        let inner = script("inner", "#!/bin/sh  -e x \n", 0o755);
        let outer = script("outer", &format!("#! {}\n", inner.display()), 0o755);
        let planned = plan(&outer, words(&["outer", "1"])).unwrap();
        assert_eq!(planned.file, Path::new("/bin/sh"));
        let (inner, outer) = (inner.to_str().unwrap(), outer.to_str().unwrap());
        assert_eq!(planned.arguments, words(&["/bin/sh", "-e x", inner, outer, "1"]));

        let circle = dir.join("circle");
        script("circle", &format!("#!{}\n", circle.display()), 0o755);
        let refused = [circle, script("text", "hello\n", 0o755), script("no", "#!/bin/sh\n", 0o644), dir.join("none")];
        for file in refused.iter().chain([&dir]) {
            assert_eq!(plan(file, vec![]), Err(Unusable::Refused), "{}", file.display());
        }
        let other = script("other", "\x7fELF\x01\x01........\x03\x00", 0o755);
        assert!(matches!(plan(&other, vec![]), Err(Unusable::Other(_))));
        std::fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn the_plugin_is_told_what_it_passes_on() {
        let path = |text: &str| PathBuf::from(text);
        let (qemu, library, ring) = (path("/usr/bin/qemu-x86_64"), path("/l"), path("/r"));
        let recorder = Recorder { qemu, library, ring, follow: true, program: path("-,x") };
        let told = words(&["qemu=/usr/bin/qemu-x86_64", "library=/l", "ring=/r", "follow=on", "program=-,x"]);
        assert_eq!(Recorder::parse(&told), Ok(recorder.clone()));
        assert!(Recorder::parse(&told[1..]).is_err());

        let plan = Plan { file: path("-,x"), arguments: words(&["me", "-a"]) };
        let (arguments, environment) = recorder.command_line(plan, &words(&["A=1", "LD_PRELOAD=p", "LD_X=1,2"]));
        let plugin = "/l,qemu=/usr/bin/qemu-x86_64,library=/l,ring=/r,follow=on,program=-,,x";
        let qemu = ["/usr/bin/qemu-x86_64", "-cpu", "max", "-plugin", plugin, "-0", "me", "-E", "LD_PRELOAD=p"];
        assert_eq!(arguments, [words(&qemu), words(&["./-,x", "-a"])].concat());
        assert_eq!(environment, words(&["A=1", "LD_X=1,2"]));
    }
}
