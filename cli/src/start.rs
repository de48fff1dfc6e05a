//! Carries out a command line. A failure becomes one line on standard error and an exit status.

use std::ffi::OsString;
use std::io::Write;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicI32, Ordering};

use clap::error::ErrorKind;
use clap::{CommandFactory, FromArgMatches};
use farmem_protocol::wire::text::printable;
use farmem_run::exit;

use crate::failure::Failure;

/// A command line.
pub trait Program: CommandFactory + FromArgMatches {
    /// Does what it says.
    ///
    /// # Errors
    /// Says what is wrong, and the status to end with.
    fn execute(self) -> Result<(), Failure>;
}

/// Reads the command line and carries it out. Returns on success; else prints one line and exits.
pub fn start<P: Program>() {
    end_with_output();
    let matches = numbers_as_values(P::command()).try_get_matches_from(asked(std::env::args_os()));
    let ended = match matches.and_then(|matches| P::from_arg_matches(&matches)) {
        Ok(program) => std::panic::catch_unwind(AssertUnwindSafe(|| program.execute())),
        Err(refused) => Ok(Err(explain(&P::command(), &refused))),
    };
    let failure = match ended {
        Ok(Ok(())) => return,
        Ok(Err(failure)) => failure,
        // The unwinding has put everything back: files, processes, swap areas.
        Err(panic) => match OUTPUT_ENDED.load(Ordering::Relaxed) {
            0 => std::panic::resume_unwind(panic),
            status => std::process::exit(status),
        },
    };
    // Standard error may be closed; the status still tells.
    let _ = writeln!(std::io::stderr(), "farmem: {}", shown(&failure.line));
    std::process::exit(failure.status);
}

/// The same words, with `farmem help run` as `farmem run --help`.
fn asked(words: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let mut words: Vec<OsString> = words.collect();
    if words.get(1).is_some_and(|word| word == "help") {
        words.remove(1);
        words.push("--help".into());
    }
    words
}

/// A line as a terminal may have it: an argument, a file or a peer may have put into it what moves a
/// cursor.
fn shown(line: &str) -> String {
    line.lines().map(printable).collect::<Vec<_>>().join("\n")
}

/// Has options take `-1` for a value. The option then refuses it by name, where clap would else
/// report an unknown flag `-1`.
fn numbers_as_values(command: clap::Command) -> clap::Command {
    let option = |arg: &clap::Arg| !arg.is_positional() && arg.get_action().takes_values();
    command
        .mut_args(|arg| if option(&arg) { arg.allow_negative_numbers(true) } else { arg })
        .mut_subcommands(numbers_as_values)
}

/// The status to end with, once standard output takes no more.
static OUTPUT_ENDED: AtomicI32 = AtomicI32::new(0);

/// `println!` panics where standard output takes no more. If the reader went away (`| head`), it
/// has seen enough: the process ends, with the status that a shell has for SIGPIPE. A full disk is
/// reported in a line. The main thread unwinds, because values' `Drop` removes what commands made.
/// Another thread ends the process as it is.
fn end_with_output() {
    let default = std::panic::take_hook();
    let main = std::thread::current().id();
    std::panic::set_hook(Box::new(move |panic| {
        let said = panic.payload_as_str().unwrap_or_default();
        let Some(why) = said.strip_prefix("failed printing to stdout: ") else { return default(panic) };
        let status = output_failed(why.starts_with("Broken pipe"), &why);
        OUTPUT_ENDED.store(status, Ordering::Relaxed);
        if std::thread::current().id() != main {
            std::process::exit(status);
        }
    }));
}

/// Says that standard output takes no more, unless its reader went away, and gives the status to
/// end with.
fn output_failed(reader_gone: bool, why: &dyn std::fmt::Display) -> i32 {
    if reader_gone {
        return 128 + libc::SIGPIPE;
    }
    let _ = writeln!(std::io::stderr(), "farmem: cannot write to standard output: {why}");
    1
}

/// Help goes out as it is; a mistake becomes one line.
fn explain(program: &clap::Command, refused: &clap::Error) -> Failure {
    match refused.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            let printed = refused.print().and_then(|()| std::io::stdout().flush());
            std::process::exit(match printed {
                Ok(()) => 0,
                Err(e) => output_failed(e.kind() == std::io::ErrorKind::BrokenPipe, &e),
            });
        }
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            let _ = refused.print();
            std::process::exit(exit::USAGE);
        }
        kind => {
            let first = std::env::args_os().nth(1).unwrap_or_default();
            if let Some(moved) = moved(program, &first.to_string_lossy()) {
                return Failure::usage(moved);
            }
            let mut line = one_line(&refused.render().to_string());
            // Where a value is wrong, its own message says how to write it.
            let unclear =
                [ErrorKind::UnknownArgument, ErrorKind::InvalidSubcommand, ErrorKind::MissingRequiredArgument];
            if unclear.contains(&kind) {
                line += &format!("; see {} --help", command_meant(program, std::env::args_os().skip(1)));
            }
            Failure::usage(line)
        }
    }
}

/// Says where to find a command that `farmem` does not have: those that measure and prove are in a
/// binary of their own.
fn moved(program: &clap::Command, name: &str) -> Option<String> {
    let is_labs = ["bench", "malloc-bench", "replay", "torture"].contains(&name);
    (is_labs && program.find_subcommand(name).is_none()).then(|| {
        format!("{name} is a command of farmem-lab: farmem-lab {name} (from source: cargo run --release --bin farmem-lab -- {name})")
    })
}

/// The command whose help is named: `farmem token create` if the first words are `token create`,
/// and `farmem` if the first one is no command.
fn command_meant(program: &clap::Command, words: impl Iterator<Item = OsString>) -> String {
    let (mut command, mut meant) = (program, program.get_name().to_owned());
    for word in words {
        let Some(known) = command.get_subcommands().find(|command| word == command.get_name()) else { break };
        command = known;
        meant += &format!(" {}", command.get_name());
    }
    meant
}

/// The first paragraph of a message, which names the mistake, and its tip, as one line.
fn one_line(message: &str) -> String {
    let joined = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let mut paragraphs = message.trim_start().split("\n\n");
    let line = joined(paragraphs.next().unwrap_or_default()).trim_start_matches("error: ").to_owned();
    match paragraphs.find_map(|paragraph| paragraph.trim_start().strip_prefix("tip: ")) {
        Some(tip) => format!("{line}; {}", joined(tip)),
        None => line,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Farmem;
    use clap::Parser;

    #[test]
    fn a_mistake_is_one_line_with_its_tip() {
        let said = |arguments: &[&str]| one_line(&Farmem::try_parse_from(arguments).unwrap_err().render().to_string());
        assert_eq!(said(&["farmem", "rum"]), "unrecognized subcommand 'rum'; a similar subcommand exists: 'run'");
        let line = said(&["farmem", "top", "--intervall", "1s"]);
        assert!(line.contains("'--intervall'") && line.contains("similar") && line.lines().count() == 1, "{line}");
    }

    #[test]
    fn help_fits_a_terminal_of_eighty_columns() {
        // Paragraphs are wrapped to any width. Text with a layout, which is indented or has breaks
        // of its own, would be torn.
        fn look(command: &clap::Command) {
            let after = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            let lines: Vec<&str> = after.lines().collect();
            for (n, line) in lines.iter().enumerate() {
                let ends = lines.get(n + 1).is_none_or(|next| next.is_empty());
                let begins = n.checked_sub(1).is_none_or(|last| lines[last].is_empty());
                let is_paragraph = begins && ends && !line.starts_with(' ');
                assert!(is_paragraph || line.chars().count() <= 80, "{}: {line}", command.get_name());
            }
            command.get_subcommands().for_each(look);
        }
        look(&Farmem::command());
    }

    #[test]
    fn each_command_has_an_example() {
        fn look(command: &clap::Command) {
            let after = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            // What `lab` has is said by farmem-lab.
            let is_shown = !command.is_hide_set() && !["farmem", "lab"].contains(&command.get_name());
            assert!(!is_shown || after.contains("Example"), "{} --help", command.get_name());
            command.get_subcommands().for_each(look);
        }
        look(&Farmem::command());
    }

    #[test]
    fn the_command_that_was_meant_is_named() {
        let meant = |words: &[&str]| command_meant(&Farmem::command(), words.iter().map(OsString::from));
        assert_eq!(meant(&["run", "--local", "1G", "node"]), "farmem run");
        assert_eq!(meant(&["token", "create"]), "farmem token create");
        assert_eq!(meant(&["nonsense"]), "farmem");
        assert_eq!(meant(&[]), "farmem");
    }

    #[test]
    fn help_may_be_asked_for_by_its_name() {
        let read = |words: &[&str]| asked(words.iter().map(OsString::from));
        assert_eq!(read(&["farmem", "help", "token", "create"]), ["farmem", "token", "create", "--help"]);
        assert_eq!(read(&["farmem", "help"]), ["farmem", "--help"]);
        assert_eq!(read(&["farmem", "run", "--", "help"]), ["farmem", "run", "--", "help"]);
    }

    #[test]
    fn no_line_moves_a_cursor() {
        assert_eq!(shown("a \u{1b}[31mb\tc"), "a ?[31mb?c");
    }

    #[test]
    fn commands_of_the_lab_are_named() {
        let line = moved(&Farmem::command(), "bench").unwrap();
        assert!(line.contains("farmem-lab bench") && line.lines().count() == 1, "{line}");
        assert_eq!((moved(&Farmem::command(), "run"), moved(&Farmem::command(), "bemch")), (None, None));
    }
}
