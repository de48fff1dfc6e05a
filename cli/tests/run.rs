//! `farmem run` as its users and their scripts see it.

#[allow(dead_code)] // Shared by test programs, each of which uses a part.
mod common;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, Stdio};

use common::{Place, eventually, listens, outcome, runs};

fn signal(pid: u32, name: &str) {
    assert!(Command::new("kill").args([name, &pid.to_string()]).status().unwrap().success());
}

#[test]
fn output_and_status_are_the_programs_own() {
    let place = Place::new();
    assert_eq!(outcome(place.shell("echo out; echo err >&2; exit 7")), (Some(7), "out\n".into(), "err\n".into()));
    assert_eq!(place.left(), Vec::<String>::new());
}

#[test]
fn input_reaches_the_program() {
    let place = Place::new();
    let mut command = place.shell("cat");
    command.stdin(Stdio::from(std::fs::File::open("/etc/passwd").unwrap()));
    assert_eq!(outcome(command).1, std::fs::read_to_string("/etc/passwd").unwrap());
}

#[test]
fn a_signal_that_ends_the_program_ends_us_alike() {
    let place = Place::new();
    for (name, number) in [("SEGV", 11), ("KILL", 9), ("TERM", 15), ("USR1", 10)] {
        let ended = place.shell(&format!("kill -{name} $$")).output().unwrap().status;
        assert_eq!(ended.signal(), Some(number), "{name}");
    }
}

#[test]
fn signals_go_on_to_the_program() {
    let place = Place::new();
    // Not INT or HUP: tests started in the background may have them ignored, and a shell then
    // cannot trap them.
    for name in ["TERM", "USR1", "USR2"] {
        let script = format!("trap 'echo got {name}; exit 5' {name}; echo ready; while :; do sleep 0.05; done");
        let mut child = place.shell(&script).stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert_eq!(lines.next().unwrap().unwrap(), "ready");
        signal(child.id(), &format!("-{name}"));
        assert_eq!(lines.next().unwrap().unwrap(), format!("got {name}"));
        assert_eq!(child.wait().unwrap().code(), Some(5));
    }
}

/// A controller that gives a node at which nobody listens, until the test ends.
fn gives_a_node_that_is_gone() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let (mut asked, mut piece) = (String::new(), [0; 4096]);
            while !asked.ends_with('}') {
                let n = stream.read(&mut piece).unwrap_or(0);
                if n == 0 {
                    break;
                }
                asked.push_str(&common::text(&piece[..n]));
            }
            let body = r#"{"nodes":[{"at":"127.0.0.1:1","domain":"d"}],"term":{"rack":1,"epoch":1}}"#;
            let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close\r\n\r\n", body.len());
            let _ = stream.write_all((head + body).as_bytes());
        }
    });
    at
}

#[test]
fn a_run_that_asks_for_nodes_ends_when_it_is_told_to() {
    let place = Place::new();
    let gone = gives_a_node_that_is_gone();
    for (controller, waits) in [("127.0.0.1:1", "when a controller answers"), (&gone, "asked for other nodes")] {
        for command in [
            &["run", "--local", "16M", "--controller", controller, "--", "true"][..],
            &["agent", "--controller", controller],
        ] {
            let mut child = place.farmem(command).stderr(Stdio::piped()).spawn().unwrap();
            let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
            assert!(lines.any(|line| line.unwrap().contains(waits)), "{command:?}");
            // Not one that asks to end: it is neither the end of the wait nor of the run.
            signal(child.id(), "-USR1");
            signal(child.id(), "-TERM");
            let ended = child.wait().unwrap();
            let expected = if command[0] == "run" { (None, Some(15)) } else { (Some(0), None) };
            assert_eq!((ended.code(), ended.signal()), expected, "{command:?} {:?}", lines.collect::<Vec<_>>());
        }
    }
}

#[test]
fn an_ignored_signal_stays_ignored() {
    let place = Place::new();
    let mut shell = Command::new("sh");
    shell.args(["-c", "trap '' USR1; exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_farmem")]);
    shell.args([
        "run",
        "--local",
        "16M",
        "--far",
        "128M",
        "--stats",
        "none",
        "--",
        "sh",
        "-c",
        "kill -USR1 $$; echo lives",
    ]);
    shell.env("XDG_RUNTIME_DIR", place.path());
    assert_eq!(outcome(shell), (Some(0), "lives\n".into(), String::new()));
}

#[test]
fn mistakes_are_one_line_and_a_status() {
    let place = Place::new();
    let script = place.path().join("plain");
    std::fs::write(&script, "x").unwrap();
    let plain = script.to_str().unwrap();
    let cases: &[(&[&str], i32, &str)] = &[
        (&["run", "--local"], 64, "--local"),
        (&["run", "--local", "1G"], 64, "PROGRAM"),
        (&["run", "--local", "lots", "--", "true"], 64, "512M"),
        (&["run", "--local", "-1G", "--", "true"], 64, "-1G"),
        (&["run", "--local", "0", "--", "true"], 64, "more than zero"),
        (&["run", "--local", "1k", "--", "true"], 64, "least"),
        (&["run", "--local", "200%", "--", "true"], 64, "100%"),
        (&["run", "--local", "25%%", "--", "true"], 64, "unknown unit '%%'"),
        (&["run", "--local", "1e30", "--", "true"], 64, "unknown unit 'e30'"),
        (&["run", "--local", "1G", "--fault", "magic", "--", "true"], 64, "magic"),
        (&["run", "--local", "1G", "--grace", "soon", "--", "true"], 64, "30s"),
        (&["run", "--local", "1G", "--stats", "xml", "--", "true"], 64, "json"),
        (&["run", "--local", "1G", "--node", "nowhere", "--", "true"], 64, "nowhere"),
        (&["run", "--local", "1G", "--node", "host:port", "--", "true"], 64, "host:port"),
        (&["run", "--local", "1G", "--node", "a:1", "--far", "1G", "--", "true"], 64, "--far"),
        (&["run", "--local", "1G", "--node", "a:1,none", "--", "true"], 64, "none"),
        (&["run", "--local", "1G", "--node", "a:1,", "--", "true"], 64, "--node"),
        (&["run", "--local", "1G", "--node", "a:1,b:1,a:1@x", "--", "true"], 64, "--node: a:1 is named twice"),
        (&["run", "--node", "a:1", "--node", "a:1", "--protect", "mirror", "--", "true"], 64, "a:1 is named twice"),
        (&["run", "--local", "1G", "--token", "/no/such/token", "--", "true"], 64, "--token /no/such/token"),
        (&["run", "--local", "4194304T", "--", "true"], 64, "more than this machine's"),
        (&["run", "--local", "1G", "--stats", "json:/nonexistent/stats", "--", "true"], 64, "/nonexistent/stats"),
        (&["run", "--local", "1G", "--trace", "a;b", "--", "true"], 64, "semicolon"),
        (&["run", "--local", "1G", "--grace", "-1s", "--", "true"], 64, "30s"),
        (&["run", "--local", "1G", "--far", "1M", "--", "true"], 64, "--far is below 64 MiB"),
        (&["run", "--local", "64", "--", "true"], 64, "below 1 MiB, the least that works; 64 is bytes, write 512M"),
        (&["kv", "--name", "a store", "--node", "a:1"], 64, "no name for a region"),
        (&["track", "--pid", "x"], 64, "not the number of a process"),
        (
            &["token", "create", "--tenant", "a", "--store", "/no/such/store"],
            64,
            "/no/such/store: there is no such folder",
        ),
        (&["controller", "--listen", "here"], 64, "--listen here: not an address: write HOST:PORT"),
        (&["drain", "a", "--controller", "127.0.0.1:9"], 72, "start `farmem controller` on it, or check the address"),
        (&["run", "--local", "1G", "--far", "900T", "--", "true"], 64, "--far is 900 TiB, more than this machine's"),
        (&["run", "--local", "1G", "--node", "a:1;b=2", "--", "true"], 64, "semicolon"),
        (&["run", "--local", "1G", "--", ""], 127, "'': not found"),
        (&["run", "--local", "1G", "--", "no-such-program"], 127, "not found"),
        (&["run", "--local", "1G", "--", "/no/such/program"], 127, "not found"),
        (&["run", "--local", "1G", "--", plain], 126, "not executable"),
        (&["run", "--local", "1G", "--", "/tmp"], 126, "not executable"),
        (&["track", "--", "no-such-program"], 127, "not found"),
        (&["track", "--", plain], 126, "not executable"),
        (&["track", "--windows", "-1", "--", "true"], 64, "invalid value '-1' for '--windows <N>'"),
        (&["amat", "--", "no-such-program"], 127, "not found"),
        (&["amat", "--", plain], 126, "not executable"),
        (&["run", "--local", "1G", "--node", "127.0.0.1:1", "--", "true"], 72, "127.0.0.1:1"),
        (&["run", "--local", "1G", "--node", "unix:/no/such/socket", "--", "true"], 72, "/no/such/socket"),
        (&["node", "--lend", "1G"], 64, "--listen"),
        (&["node", "--lend", "0", "--listen", "127.0.0.1:0"], 64, "more than zero"),
        (&["node", "--lend", "1G", "--listen", "nonsense"], 64, "nonsense"),
        (&["node", "--lend", "1G", "--listen", "unix:"], 64, "unix:"),
        (&["node", "--lend", "1G", "--listen", "127.0.0.1:99999"], 64, "99999"),
        (&["node", "--lend", "900T", "--listen", "127.0.0.1:0"], 64, "--lend"),
        (&["node", "--lend", "1G", "--listen", "127.0.0.1:0", "--metrics", "x"], 64, "127.0.0.1:9411"),
        (&["top", "--interval", "soon"], 64, "30s"),
        (&["nonsense"], 64, "nonsense"),
        (&["rum"], 64, "'run'"),
        (&["run", "--locl", "1G", "--", "true"], 64, "'--locl' is neither a flag nor a program; see farmem run --help"),
        (&["run", "-x", "--local", "1G", "--", "true"], 64, "'-x' is neither"),
        (&["node", "--lend", "1G", "--listen", "127.0.0.1:0", "--quota", "1M"], 64, "--quota is below 2 MiB"),
        (&["run", "--local", "1G", "--prefech", "off", "--", "true"], 64, "'--prefech' is neither"),
        (&["kv", "--name", "s", "--node", "a:1,a:1"], 64, "--node: a:1 is named twice"),
        (&["kv", "--name", "s", "--node", "a:1", "--spare", "b:1"], 64, "add --protect mirror"),
        (
            &["kv", "--name", "s", "--node", "a:1,b:1", "--protect", "mirror", "--spare", "b:1"],
            64,
            "--spare b:1: the store has it by --node already",
        ),
        (&["kv", "--name", "s", "--node", "a:1", "--local", "1k"], 64, "below 64 KiB"),
        (&["kv", "--name", "s", "--node", "a:1", "--local", "900T"], 64, "more than this machine's"),
        (&["kv", "--name", "s", "--node", "a:1", "--listen", "127.0.0.1:7", "--listen", "127.0.0.1:7"], 64, "twice"),
        (&["token", "create", "--tenant", "a", "--store", "s", "--quota", "1k"], 64, "--quota is below 2 MiB"),
        (&["token", "create", "--tenant", "a", "--store", "s", "--rack-quota", "1k"], 64, "--rack-quota is below"),
        (&["token", "create", "--tenant", "a", "--store", "s", "--expires", "0"], 64, "--expires is below a second"),
        (&["token", "create", "--tenant", "a", "--store", "s", "--rate", "50%"], 64, "not a share of RAM"),
        (&["token", "create", "--tenant", "\u{1b}[31m", "--store", "s"], 64, "--tenant ?[31m: 1 to 64 letters"),
        (&["agent", "--quota", "1k"], 64, "--quota is below 2 MiB"),
        (&["node", "--lend", "64M", "--listen", "127.0.0.1:0", "--controller", "a:1", "--name", "a b"], 64, "1 to 200"),
        (&["node", "--lend", "64M", "--listen", "127.0.0.1:0", "--controller", "a:1", "--name", ""], 64, "1 to 200"),
        (&["node", "--lend", "64M", "--listen", "127.0.0.1:7", "--listen", "127.0.0.1:7"], 64, "is named twice"),
        (&["node", "--lend", "64M", "--listen", "127.0.0.1:0", "--reserve", "900T"], 64, "nothing would be lent"),
        (&["node", "--lend", "64M", "--listen", "127.0.0.1:0", "--compute", "99999999"], 64, "0..=1024"),
        (&["node", "--lend", "64M", "--listen", "127.0.0.1:0", "--tokens", "/no"], 64, "farmem token create makes one"),
        (&["node", "--lend", "64M", "--listen", "127.0.0.1:0", "--controller", "a:1"], 64, "do not reach a loopback"),
        (
            &["node", "--lend", "64M", "--listen", "0.0.0.0:0", "--controller", "a:1", "--advertise", "a:1,b:1"],
            64,
            "write one HOST:PORT",
        ),
        (&["controller", "--advertise", "a:1,b:1"], 64, "write one HOST:PORT"),
        (&["controller", "--called", ""], 64, "--called"),
        (&["controller", "--called", "a b"], 64, "the name of a machine"),
        (&["status", "--controller", "127.0.0.1:1,127.0.0.1:2"], 72, "127.0.0.1:1: nobody listens there"),
        (&["status", "--controller", "127.0.0.1:1,127.0.0.1:2"], 72, "127.0.0.1:2: nobody listens there"),
        (&["run", "--sites", "--stats", "none", "--", "true"], 64, "--stats none leaves that out"),
        (&["run", "--seal", "lines", "--", "true"], 127, "lines: not found; or --seal=lines"),
        (&["run", "--local", "0.00001%", "--", "true"], 64, "KiB, below 1 MiB"),
        (&["run", "--grace", "400d", "--", "true"], 64, "at most 365d"),
        (&["size", "--token", "/no", "--", "true"], 64, "--token /no"),
        (&["track", "--wp", "--svg", "a.svg", "--", "true"], 64, "no lines"),
        (&["track", "--max-memory", "x", "--", "true"], 64, "write it as 512M or 8G"),
        (&["track", "--svg", "/no/such/a.svg", "--", "true"], 64, "/no/such/a.svg"),
        (&["amat", "--svg", "/no/such/a.svg", "--", "true"], 64, "/no/such/a.svg"),
        (&["amat", "--local", "500%", "--", "true"], 64, "at most 400%"),
    ];
    for (arguments, status, part) in cases {
        let (got, out, err) = outcome(place.farmem(*arguments));
        assert_eq!((got, out.as_str()), (Some(*status), ""), "{arguments:?}: {err}");
        assert!(err.starts_with("farmem: ") && err.ends_with('\n') && err.lines().count() == 1, "{arguments:?}: {err}");
        assert!(err.contains(part), "{arguments:?}: {err}");
    }
    assert_eq!(place.left(), Vec::<String>::new());
}

/// A node that listens on this socket, until it is dropped.
fn node(place: &Place, name: &str) -> (Killed, String) {
    let socket = place.path().join(name);
    let address = format!("unix:{}", socket.display());
    let node = place.farmem(["node", "--lend", "128M", "--listen", &address]).stderr(Stdio::null()).spawn().unwrap();
    let node = Killed(node);
    listens(&socket);
    (node, address)
}

struct Killed(std::process::Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn what_flags_leave_open_is_taken_from_variables_then_files() {
    let place = Place::new();
    let ((_one, a), (_other, b)) = (node(&place, "a.sock"), node(&place, "b.sock"));
    let run = |variables: &[(&str, &str)], flags: &[&str]| {
        let mut command = place.farmem(["run"].iter().chain(flags).chain(&["--stats", "json", "--", "true"]));
        command.envs(variables.iter().copied());
        let (status, _, said) = outcome(command);
        assert_eq!(status, Some(0), "{said}");
        let stats: serde_json::Value = serde_json::from_str(&said).unwrap();
        let text = |name: &str| stats[name].as_str().unwrap().to_owned();
        (stats["local_limit"].as_u64().unwrap(), text("local_from"), text("nodes"))
    };
    let (local, from, nodes) = run(&[], &[]);
    assert!(local >= 1 << 20 && from == "default" && nodes.contains("/run-"), "{local} {from} {nodes}");

    let file = place.path().join("farmem/config.toml");
    std::fs::write(&file, format!("local = \"16M\"\nnode = [\"{a}\", \"{b}\"]\n")).unwrap();
    let by_file = file.to_str().unwrap().to_owned();
    assert_eq!(run(&[], &[]), (16 << 20, by_file.clone(), format!("{a},{b}")));
    let variables = [("FARMEM_LOCAL", "17M"), ("FARMEM_NODE", b.as_str())];
    assert_eq!(run(&variables, &[]), (17 << 20, "FARMEM_LOCAL".into(), b.clone()));
    assert_eq!(run(&variables, &["--local", "18M", "--node", &a]), (18 << 20, "--local".into(), a.clone()));
    assert_eq!(run(&[], &["--node", &format!("{b},{a}")]).2, format!("{b},{a}"));
    assert_eq!(run(&[], &["--node", &b, "--node", &a]).2, format!("{b},{a}"));
    let link = place.path().join("link.sock");
    std::os::unix::fs::symlink(&a["unix:".len()..], &link).unwrap();
    let (status, _, said) =
        outcome(place.farmem(["run", "--node", &format!("{a},unix:{}", link.display()), "--", "true"]));
    assert!(said.ends_with("are the same node: name it once\n") && status == Some(64), "{said}");
    // A rack that a file names is not asked for what a variable names.
    std::fs::write(&file, "controller = \"127.0.0.1:1\"\n").unwrap();
    assert_eq!(run(&[("FARMEM_NODE", b.as_str())], &[]).2, b);
    // A node of its own, even if the settings name others.
    for flags in [&["--node", "none"][..], &["--far", "64M"], &["--no-settings"]] {
        assert!(run(&variables, flags).2.contains("/run-"), "{flags:?}");
    }
    assert_eq!(run(&variables, &["--no-settings", "--local", "18M"]).0, 18 << 20);

    std::fs::write(&file, "local = \"16M\"\nnodes = \"a:1\"\n").unwrap();
    let (status, _, said) = outcome(place.farmem(["run", "true"]));
    assert!(status == Some(64) && said.lines().count() == 1 && said.contains(&by_file), "{said}");
    assert!(said.contains("unknown key 'nodes'; known are local, node"), "{said}");
}

#[test]
fn the_summary_says_how_much_was_local_and_who_said_so() {
    let place = Place::new();
    let first = |flags: &[&str]| {
        let (_, _, said) = outcome(place.farmem(["run", "--far", "64M"].iter().chain(flags).chain(&["--", "true"])));
        said.lines().next().unwrap().to_owned()
    };
    assert!(first(&["--local", "16M"]).ends_with("; 16.0 MiB local (--local)"));
    assert!(first(&[]).ends_with(" local (by default, half of what was available)"));
}

#[test]
fn a_static_program_is_refused_before_it_runs() {
    let place = Place::new();
    let program = place.path().join("static");
    // An ELF header for x86-64 with no program headers: nothing names a loader.
    let mut elf = vec![0; 64];
    elf[..7].copy_from_slice(b"\x7fELF\x02\x01\x01");
    (elf[16], elf[18], elf[54]) = (2, 62, 56);
    std::fs::write(&program, elf).unwrap();
    Command::new("chmod").arg("755").arg(&program).status().unwrap();
    let (status, _, err) = outcome(place.farmem(["run", "--local", "64M", "--", program.to_str().unwrap()]));
    assert_eq!(status, Some(64));
    assert!(err.contains("statically linked"), "{err}");
}

#[test]
fn a_set_user_id_program_is_refused() {
    let place = Place::new();
    let program = place.path().join("privileged");
    // Copied by a process of its own. A file that this process has open for writing may be
    // inherited by another test's child for a moment, and cannot be executed then.
    assert!(Command::new("cp").arg("/bin/true").arg(&program).status().unwrap().success());
    let owner = Command::new("chown").arg("65534").arg(&program).status().unwrap().success();
    Command::new("chmod").arg("4755").arg(&program).status().unwrap();
    let (status, _, err) = outcome(place.farmem(["run", "--local", "64M", "--", program.to_str().unwrap()]));
    if owner {
        assert_eq!(status, Some(64));
        assert!(err.contains("set-user-ID"), "{err}");
    } else {
        // Not root: the file is our own, and executing it changes nothing.
        assert_eq!(status, Some(0), "{err}");
    }
}

/// `exit(0)` by a system call: an ELF file with one segment, and no loader.
fn static_program() -> Vec<u8> {
    let code = [0xb8, 60, 0, 0, 0, 0x31, 0xff, 0x0f, 0x05];
    let at = 0x40_0000u64;
    let mut elf = vec![0; 120];
    elf[..7].copy_from_slice(b"\x7fELF\x02\x01\x01");
    (elf[16], elf[18], elf[20], elf[52], elf[54], elf[56]) = (2, 62, 1, 64, 56, 1);
    elf[24..32].copy_from_slice(&(at + 120).to_le_bytes());
    elf[32] = 64;
    // One program header: all of the file, to be loaded and executed.
    (elf[64], elf[68]) = (1, 5);
    [80, 88].iter().for_each(|&field| elf[field..field + 8].copy_from_slice(&at.to_le_bytes()));
    [96, 104].iter().for_each(|&field| elf[field] = 120 + code.len() as u8);
    elf[113] = 0x10;
    elf.extend(code);
    elf
}

#[test]
fn programs_of_the_run_without_far_memory_are_named() {
    let place = Place::new();
    let [bare, other] = ["bare", "other"].map(|name| place.path().join(name));
    std::fs::write(&bare, static_program()).unwrap();
    assert!(Command::new("cp").arg("/usr/bin/id").arg(&other).status().unwrap().success());
    assert!(Command::new("chmod").args(["755"]).arg(&bare).arg(place.path()).status().unwrap().success());
    let is_root = farmem_sys::process::user() == 0;
    if is_root {
        // Executing it makes the process nobody's.
        assert!(Command::new("chown").arg("65534").arg(&other).status().unwrap().success());
        assert!(Command::new("chmod").arg("4755").arg(&other).status().unwrap().success());
    }
    let [bare, other] = [bare, other].map(|path| path.to_str().unwrap().to_owned());
    let script = format!("{bare} && {bare} && {bare}-nowhere 2>/dev/null; exec {other} -u");
    let native = outcome({
        let mut sh = Command::new("sh");
        sh.args(["-c", &script]);
        sh
    });
    let run = |stats: &str, program: &[&str]| {
        outcome(place.farmem(["run", "--local", "16M", "--far", "64M", "--stats", stats, "--"].iter().chain(program)))
    };
    let (status, out, said) = run("text", &["sh", "-c", &script]);
    assert_eq!((status, &out), (native.0, &native.1), "what it does is what it does without farmem: {said}");
    assert!(said.contains("bare (static, 2 times)") && said.lines().count() <= 6, "{said}");
    assert!(!is_root || said.contains("other (set-user-ID)"), "{said}");
    let (_, _, said) = run("json", &["sh", "-c", &script]);
    let near = serde_json::from_str::<serde_json::Value>(&said).unwrap()["near"].clone();
    assert_eq!((&near[0]["program"], &near[0]["times"]), (&"bare".into(), &2.into()), "{near}");

    if !is_root {
        eprintln!("not tried: programs of another user, for which one must be root");
        return;
    }
    let (status, out, said) = run("text", &["setpriv", "--reuid", "65534", "--clear-groups", "sh", "-c", "id -u"]);
    assert_eq!((status, out.as_str()), (Some(0), "65534\n"), "{said}");
    assert!(said.starts_with("farmem: a program of another user"), "{said}");
    assert!(said.contains("1   programs of the run had no far memory: sh (another user)"), "{said}");
    assert!(!said.contains("ERROR"), "the loader is not told of a library that it may not open: {said}");
}

#[test]
fn a_program_that_never_started_has_no_summary() {
    let place = Place::new();
    let run = |setting: &str| {
        let script = format!("{setting}; exec \"$0\" run --local 16M --far 64M -- true");
        let mut shell = Command::new("sh");
        shell.args(["-c", &script, env!("CARGO_BIN_EXE_farmem")]).env("XDG_RUNTIME_DIR", place.path());
        outcome(shell)
    };
    let (status, _, said) = run("ulimit -v 4000000");
    assert!(status == Some(64) && said.lines().count() == 1 && said.contains("raise the limit"), "{said}");
    let (status, _, said) = run(":");
    assert!(status == Some(0) && said.contains("faults"), "{said}");
}

/// Faults of system calls count as much as those of the program's own accesses.
#[test]
fn the_summarys_faults_add_up() {
    let place = Place::new();
    let options = ["run", "--local", "8M", "--far", "128M", "--prefetch", "off", "--stats", "json", "--"];
    // A buffer of 32 MiB, filled by one call, written by another, twice.
    let dd = ["dd", "if=/dev/urandom", "of=/dev/null", "bs=32M", "count=2", "status=none"];
    let (status, _, said) = outcome(place.farmem(options.into_iter().chain(dd)));
    let stats: serde_json::Value = serde_json::from_str(&said).unwrap();
    let count = |name: &str| stats[name].as_u64().unwrap();
    let kinds = ["first_touch", "demand", "rescued", "upgrades", "joined", "unmapped"];
    assert_eq!(count("faults"), kinds.into_iter().map(count).sum::<u64>(), "{stats}");
    // 8192 pages: all fresh once; three times more they come back, of which each time a quarter at
    // most is still there.
    let [fresh, back] = [count("first_touch"), count("demand") + count("rescued")];
    assert!(status == Some(0) && (8192..8192 + 300).contains(&fresh), "{stats}");
    assert!((3 * 6144..=3 * 8192 + 300).contains(&back), "{stats}");
}

#[test]
fn the_summary_comes_in_every_form() {
    let place = Place::new();
    let file = place.path().join("stats.json");
    let form = format!("json:{}", file.display());
    let run =
        |form: &str| outcome(place.farmem(["run", "--local", "16M", "--far", "128M", "--stats", form, "--", "true"]));

    let (status, _, err) = run("text");
    assert_eq!(status, Some(0));
    assert!(err.starts_with("farmem: ") && err.contains("far memory"), "{err}");

    let (_, _, err) = run("json");
    let report: serde_json::Value = serde_json::from_str(&err).unwrap();
    assert_eq!((&report["program"], &report["status"], &report["processes"]), (&"true".into(), &0.into(), &1.into()));
    assert_eq!(report["local_limit"], 16 << 20);

    assert_eq!(run("none").2, "");
    assert_eq!(run(&form).2, "");
    let report: serde_json::Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    assert_eq!(report["status"], 0);
}

#[test]
fn other_preloaded_libraries_stay() {
    let place = Place::new();
    let mut command = place.shell("echo $LD_PRELOAD");
    command.env("LD_PRELOAD", "libc.so.6");
    let (status, out, _) = outcome(command);
    assert_eq!(status, Some(0));
    assert!(out.contains("libfarmem_preload") && out.trim_end().ends_with(":libc.so.6"), "{out}");
}

/// The pids of the program and of the embedded node, and the supervisor's process. To wait for
/// that, end the program's input first.
fn started(place: &Place, script: &str) -> (u32, u32, std::process::Child, BufReader<std::process::ChildStdout>) {
    // A process group of its own: in an orphaned one, as of a job that nobody waits for, nothing
    // stops by SIGTSTP.
    let mut command = place.shell(script);
    let mut child = command.process_group(0).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    out.read_line(&mut line).unwrap();
    let program = line.trim().parse().unwrap();
    let children = std::fs::read_to_string(format!("/proc/{0}/task/{0}/children", child.id())).unwrap();
    let node = children.split_whitespace().map(|pid| pid.parse().unwrap()).find(|&pid| pid != program).unwrap();
    (program, node, child, out)
}

#[test]
fn nothing_outlives_a_supervisor_that_is_killed() {
    let place = Place::new();
    let (program, node, mut farmem, _out) = started(&place, "echo $$; exec sleep 60");
    assert!(runs(program) && runs(node));
    farmem.kill().unwrap();
    farmem.wait().unwrap();
    eventually("the program is gone", || !runs(program));
    eventually("the node is gone", || !runs(node));
    // The next run sweeps up after it.
    assert_eq!(outcome(place.shell("exit 0")).0, Some(0));
    assert_eq!(place.left(), Vec::<String>::new());
}

#[test]
fn the_node_ends_with_a_killed_program() {
    let place = Place::new();
    let (program, node, mut farmem, _out) = started(&place, "echo $$; exec sleep 60");
    signal(program, "-KILL");
    assert_eq!(farmem.wait().unwrap().signal(), Some(9));
    eventually("the node is gone", || !runs(node));
    assert_eq!(place.left(), Vec::<String>::new());
}

#[test]
fn a_program_left_in_the_background_keeps_its_run() {
    let place = Place::new();
    let seen = place.path().join("seen");
    let background = format!("exec >&- 2>&-; until [ -e {} ]; do sleep 0.1; done", seen.display());
    let (_, node, mut farmem, mut out) = started(&place, &format!("echo $$; sleep 0.5; ({background}) & exit 4"));
    // A reader of our output does not wait for the background.
    let mut rest = String::new();
    out.read_to_string(&mut rest).unwrap();
    assert_eq!(farmem.wait().unwrap().code(), Some(4));
    assert!(runs(node), "the background process has lost its memory");
    std::fs::write(seen, "").unwrap();
    eventually("the node ends with the last process", || !runs(node));
    eventually("the run's files are gone", || place.left().is_empty());
}

/// After `su` or `sudo -E` the variable names another user's directory. That user could put another
/// library in the place of what is laid down there.
#[test]
fn nothing_is_laid_down_where_another_user_may_replace_it() {
    let (place, others) = (Place::new(), Place::new());
    if std::os::unix::fs::chown(others.path(), Some(1234), None).is_err() {
        eprintln!("not tried: a directory of another user, for which one must be root");
        return;
    }
    let mut command = place.shell("echo $LD_PRELOAD");
    command.env("XDG_RUNTIME_DIR", others.path());
    let (status, told, said) = outcome(command);
    assert_eq!(status, Some(0), "{said}");
    assert!(told.contains("libfarmem_preload") && !told.contains(&*others.path().to_string_lossy()), "{told}");
    assert_eq!(std::fs::read_dir(others.path()).unwrap().count(), 0);
}

/// Other users see arguments of processes, the paths of sockets, and what is shown. A run's name is
/// the right to end it.
#[test]
fn nobody_else_sees_a_runs_name() {
    let place = Place::new();
    let seen = place.path().join("seen");
    let background = format!("exec >&- 2>&-; until [ -e {} ]; do sleep 0.1; done", seen.display());
    let script = format!("echo $FARMEM_RUN; ({background}) & exit 4");
    let mut command = place.farmem(["run", "-v", "--local", "16M", "--far", "128M", "--stats", "none", "--"]);
    // The background keeps the runtime's own standard error.
    let errors = place.path().join("errors");
    command.args(["sh", "-c", &script]).stderr(std::fs::File::create(&errors).unwrap());
    let (status, told, _) = outcome(command);
    let said = std::fs::read_to_string(errors).unwrap();
    assert_eq!(status, Some(4), "{said}");
    let name = told.split(';').find_map(|pair| pair.strip_prefix("run=")).unwrap();
    assert!(name.len() == 32 && said.contains("farmem: run "), "{told} {said}");
    assert!(!said.contains(name), "{said}");
    // The background, its keeper and the node are there.
    let mut keepers = 0;
    for process in std::fs::read_dir("/proc").unwrap().flatten() {
        let arguments = std::fs::read(process.path().join("cmdline")).unwrap_or_default();
        let arguments = String::from_utf8_lossy(&arguments).into_owned();
        assert!(!arguments.contains(name), "{arguments:?}");
        let is_keeper = arguments.contains("\0keep\0") && arguments.contains(&*place.path().to_string_lossy());
        keepers += usize::from(is_keeper);
    }
    assert_eq!(keepers, 1);
    assert!(!std::fs::read_to_string("/proc/net/unix").unwrap().contains(name));
    assert!(place.left().iter().any(|file| file.ends_with(".counters")), "{:?}", place.left());
    assert!(place.left().iter().all(|file| !file.contains(name)), "{:?}", place.left());
    let (_, shown, _) = outcome(place.farmem(["top", "--once"]));
    assert!(!shown.contains(name), "{shown}");
    std::fs::write(seen, "").unwrap();
    eventually("the run's files are gone", || place.left().is_empty());
}

#[test]
fn a_stop_by_the_terminal_stops_the_job_and_a_plain_one_does_not() {
    let place = Place::new();
    let state = |pid: u32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.rsplit(") ").next().and_then(|rest| rest.chars().next()).unwrap_or('?')
    };
    let (program, _, mut farmem, _out) = started(&place, "echo $$; exec cat");
    signal(program, "-TSTP");
    eventually("we stop with the program", || state(farmem.id()) == 'T');
    signal(farmem.id(), "-CONT");
    eventually("both go on", || state(program) == 'S' && state(farmem.id()) == 'S');
    signal(program, "-STOP");
    eventually("the program stops", || state(program) == 'T');
    std::thread::sleep(std::time::Duration::from_millis(200));
    assert_ne!(state(farmem.id()), 'T');
    signal(program, "-CONT");
    assert_eq!(farmem.wait().unwrap().code(), Some(0));
}

#[test]
fn a_closed_standard_error_changes_nothing() {
    let place = Place::new();
    let script = "exec \"$0\" run --local 16M --far 128M -- sh -c 'exit 3' 2>&-";
    let mut shell = Command::new("sh");
    shell.args(["-c", script, env!("CARGO_BIN_EXE_farmem")]).env("XDG_RUNTIME_DIR", place.path());
    assert_eq!(outcome(shell).0, Some(3));
}

#[test]
fn what_was_closed_is_closed_for_the_program() {
    let place = Place::new();
    let [says, said] = ["says.sh", "said"].map(|name| place.path().join(name));
    let script = "for fd in 0 1 2; do [ -e /proc/$$/fd/$fd ] && open=$open$fd; done; echo \"open:$open\" >\"$1\"";
    std::fs::write(&says, script).unwrap();
    for (closed, open) in [("<&-", "12"), (">&-", "02"), ("2>&-", "01"), ("<&- >&- 2>&-", ""), ("", "012")] {
        for farmem in ["", concat!(env!("CARGO_BIN_EXE_farmem"), " run --local 16M --far 128M --stats none --")] {
            let mut shell = Command::new("sh");
            shell.args(["-c", &format!("exec {farmem} sh \"$0\" \"$1\" {closed}")]).arg(&says).arg(&said);
            shell.env("XDG_RUNTIME_DIR", place.path());
            assert_eq!(outcome(shell).0, Some(0), "{closed} {farmem}");
            assert_eq!(std::fs::read_to_string(&said).unwrap(), format!("open:{open}\n"), "{closed} {farmem}");
        }
    }
}

#[test]
fn a_leftover_runtime_directory_of_another_user_is_not_used() {
    let place = Place::new();
    let open = place.path().join("farmem");
    std::fs::create_dir(&open).unwrap();
    Command::new("chmod").arg("777").arg(&open).status().unwrap();
    let mut command = place.shell("echo $LD_PRELOAD");
    command.arg0("farmem");
    let (status, out, _) = outcome(command);
    assert_eq!(status, Some(0));
    assert!(!out.contains(open.to_str().unwrap()), "{out}");
}

/// Limits that `ulimit` sets, and only root may undo.
#[test]
fn limits_are_lived_with_or_told_of() {
    let under = |limit: &str| {
        let place = Place::new();
        let script = format!(
            "ulimit {limit}; exec \"$0\" run --local 16M --far 128M --stats none -- sh -c 'echo $(echo lives)'"
        );
        let mut shell = Command::new("sh");
        shell.args(["-c", &script, env!("CARGO_BIN_EXE_farmem")]).env("XDG_RUNTIME_DIR", place.path());
        outcome(shell)
    };
    assert_eq!(under("-n 20"), (Some(0), "lives\n".into(), String::new()));
    assert_eq!(under("-s 256"), (Some(0), "lives\n".into(), String::new()));
    let (status, _, line) = under("-v 4000000");
    assert!(status == Some(64) && line.contains("raise the limit"), "{status:?} {line}");
    // Not even a line can be written to a file. In a fresh directory it is the library that is not
    // written; where it lies already, the node cannot say why it ends.
    let place = Place::new();
    let run = |limit: &str| {
        let script = format!("ulimit {limit}; exec \"$0\" run --local 16M --far 128M --stats none -- true");
        let mut shell = Command::new("sh");
        shell.args(["-c", &script, env!("CARGO_BIN_EXE_farmem")]).env("XDG_RUNTIME_DIR", place.path());
        outcome(shell)
    };
    for _ in 0..2 {
        let (status, _, line) = run("-f 0");
        assert!(
            status == Some(0) || status.is_some_and(|status| status != 0) && line.contains("(ulimit -f): allow"),
            "{status:?} {line}"
        );
        assert_eq!(run("-f unlimited").0, Some(0));
    }
    // In blocks of 512 bytes: more than the runtime's library, even unoptimized (33 MiB), less than
    // a slab.
    let (status, out, line) = under("-f 130000");
    assert!(
        status == Some(0) && out == "lives\n" || status == Some(72) && line.contains("ulimit -f"),
        "{status:?} {line}"
    );
}
