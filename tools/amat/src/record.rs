//! Records a program into a file, and shows how far that has come.

use crate::file::Writer;
use crate::qemu::{Outcome, Qemu};
use crate::reference::{Event, Sink};
use crate::{Origin, lackey};
use anyhow::{Context, Result, anyhow, bail};
use farmem_kit::usage::Usage;
use std::ffi::OsString;
use std::fs::File;
use std::io::{BufWriter, IsTerminal};
use std::path::Path;
use std::time::{Duration, Instant};

/// The recording program.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// QEMU where it can be used, otherwise lackey
    Auto,
    /// QEMU, by a plugin
    Qemu,
    /// Valgrind's lackey
    Lackey,
}

/// A program to be recorded.
pub struct Recording<'a> {
    /// With its arguments.
    pub program: &'a [OsString],
    /// The recording program.
    pub by: By,
    /// Whether its forked children are recorded.
    pub follow: bool,
    /// The library of QEMU's plugin.
    pub plugin: &'a [u8],
}

impl Recording<'_> {
    /// Records into a file of the user's, or into one that has no name any more: however this
    /// process ends, it is gone.
    ///
    /// # Errors
    /// When the program cannot be recorded, or its recording not be written.
    pub(crate) fn run(self, kept: Option<&Path>) -> Result<Origin> {
        let scratch = std::env::temp_dir().join(format!("farmem-amat-{}", std::process::id()));
        let to = kept.unwrap_or(&scratch);
        let mut options = File::options();
        options.read(kept.is_none()).write(true);
        match kept {
            Some(_) => options.create(true).truncate(true),
            None => options.create_new(true),
        };
        let file = options.open(to).with_context(|| to.display().to_string())?;
        if kept.is_none() {
            std::fs::remove_file(to).with_context(|| to.display().to_string())?;
        }
        let mut shown = Progress::of_recording(Writer::new(BufWriter::new(file.try_clone()?))?);
        self.tell(&mut shown)?;
        shown.done().finish().with_context(|| to.display().to_string())?;
        let name = Path::new(&self.program[0]).file_name().unwrap_or_default().to_string_lossy().into_owned();
        Ok(match kept {
            Some(path) => Origin::File(path.to_owned()),
            None => Origin::Recorded(file, name),
        })
    }

    fn tell(&self, sink: &mut dyn Sink) -> Result<()> {
        let why_not = match self.by {
            By::Lackey => None,
            By::Auto | By::Qemu => match Qemu::find(self.program) {
                Ok(qemu) => match qemu.run(self.plugin, self.follow, sink)? {
                    Outcome::Recorded => return Ok(()),
                    Outcome::Refused => Some("QEMU did not take farmem's plugin, or could not load the program".into()),
                },
                Err(why) => Some(why),
            },
        };
        if self.follow || self.by == By::Qemu {
            let option = if self.follow { "--follow" } else { "--by qemu" };
            let Some(why) = why_not else {
                let why = "valgrind cannot tell the references of processes apart";
                return Err(Usage::of(anyhow!("{option}: {why}")));
            };
            bail!("{option}: {why}");
        }
        if let Some(why) = why_not {
            eprintln!("{why}: recording by valgrind's lackey instead, which takes some 50 times as long");
        }
        lackey::run(self.program, sink)
    }
}

/// Shows how far a sink has come, on a terminal.
pub(crate) struct Progress<S> {
    sink: S,
    done: u64,
    /// 0: unknown.
    all: u64,
    /// None where there is no terminal.
    shown: Option<Shown>,
}

struct Shown {
    begun: Instant,
    last: Instant,
    /// Whether a line stands on the terminal.
    any: bool,
}

impl<S: Sink> Progress<S> {
    /// References between two looks at the clock.
    const STEP: u64 = 1 << 18;
    const EVERY: Duration = Duration::from_millis(250);

    pub(crate) fn of(sink: S, all: u64) -> Progress<S> {
        let now = Instant::now();
        let shown = std::io::stderr().is_terminal().then_some(Shown { begun: now, last: now, any: false });
        Progress { sink, done: 0, all, shown }
    }

    fn of_recording(sink: S) -> Progress<S> {
        Progress::of(sink, 0)
    }

    pub(crate) fn done(self) -> S {
        if self.shown.is_some_and(|shown| shown.any) {
            eprint!("\r\x1b[K");
        }
        self.sink
    }

    fn show(&mut self) {
        let Some(shown) = self.shown.as_mut().filter(|shown| shown.last.elapsed() >= Self::EVERY) else { return };
        (shown.last, shown.any) = (Instant::now(), true);
        let millions = self.done as f64 / 1e6;
        match self.all {
            0 => {
                let rate = millions / shown.begun.elapsed().as_secs_f64();
                eprint!("\r{millions:.1} M references recorded, {rate:.1} M a second\x1b[K");
            }
            all => eprint!("\r{:3} % of {} M references\x1b[K", self.done * 100 / all, all / 1_000_000),
        }
    }
}

impl<S: Sink> Sink for Progress<S> {
    fn take(&mut self, event: Event) {
        self.done += u64::from(matches!(event, Event::Reference(_)));
        if self.all > 0 && self.done.is_multiple_of(Self::STEP) {
            self.show();
        }
        self.sink.take(event);
    }

    fn check(&mut self) -> std::io::Result<()> {
        self.show();
        self.sink.check()
    }
}
