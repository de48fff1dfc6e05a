//! Tokens from the command line: made, named, wrong, expired, revoked in mid-run, beyond the quota.

#[allow(dead_code)] // Shared by test programs, each of which uses a part.
mod common;

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use common::{Place, eventually, outcome, text};
use farmem::Memory;
use farmem_swap::stream::Wanted;

/// Fills 48 MiB and says what is in it.
const PROGRAM: &str = "import hashlib,sys\nparts=[bytes([i%251])*65536 for i in range(768)]\n\
    print(hashlib.sha256(b''.join(parts)).hexdigest())";

struct Guarded {
    place: Place,
    node: Child,
    at: String,
}

impl Drop for Guarded {
    fn drop(&mut self) {
        let _ = self.node.kill();
        let _ = self.node.wait();
    }
}

impl Guarded {
    /// A node on a free port with tokens of a tenant.
    fn start(quota: &str) -> Guarded {
        let place = Place::new();
        create(&place, &["--tenant", "analytics", "--quota", quota], "analytics.token");
        let port = common::free();
        let (at, store) = (port.to_string(), place.path().join("tokens.toml"));
        let mut node = place.farmem(["node", "--lend", "512M", "--rdma", "off", "--listen", &at, "--tokens"]);
        node.arg(&store).stderr(fs::File::create(place.path().join("node.log")).unwrap());
        let node = node.spawn().unwrap();
        eventually("the node listens", || std::net::TcpStream::connect(port).is_ok());
        Guarded { place, node, at }
    }

    fn token(&self, name: &str) -> PathBuf {
        self.place.path().join(name)
    }

    fn run(&self, token: Option<&str>, program: &str) -> std::process::Command {
        let mut command = self.place.farmem(["run", "--local", "8M", "--stats", "none", "--transport", "tcp"]);
        command.args(["--node", &self.at]);
        if let Some(token) = token {
            command.arg("--token").arg(self.token(token));
        }
        command.args(["--", "python3", "-c", program]);
        command
    }

    fn log(&self) -> String {
        fs::read_to_string(self.place.path().join("node.log")).unwrap()
    }
}

fn create(place: &Place, arguments: &[&str], name: &str) {
    let store = place.path().join("tokens.toml");
    let mut command = place.farmem(["token", "create", "--store"]);
    command.arg(store).args(arguments);
    let (status, token, complaint) = outcome(command);
    assert_eq!((status, complaint.as_str()), (Some(0), ""));
    let path = place.path().join(name);
    fs::write(&path, token).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
}

fn refused(command: std::process::Command, says: &str) {
    let (status, said, complaint) = outcome(command);
    assert!(status.is_some_and(|status| status != 0), "{said}");
    assert!(complaint.lines().count() == 1 && complaint.contains(says), "{complaint}");
}

/// A shell makes the file that a token is printed into, and others may read what it makes.
#[test]
fn a_token_is_printed_into_a_file_of_its_owners_alone() {
    let place = Place::new();
    let token = |out: fs::File| {
        let mut command = place.farmem(["token", "create", "--tenant", "lab", "--store"]);
        command.arg(place.path().join("tokens.toml")).stdout(out).output().unwrap()
    };
    let path = place.path().join("lab.token");
    let made = fs::File::create(&path).unwrap();
    made.set_permissions(fs::Permissions::from_mode(0o644)).unwrap();
    assert!(token(made).status.success());
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    assert!(farmem_trust::file::token(&path).is_ok());
    // A process that opened the file before its mode changed could read the token.
    let early = place.path().join("early.token");
    let made = fs::File::create(&early).unwrap();
    let reader = fs::File::open(&early).unwrap();
    let tokens = || fs::read_to_string(place.path().join("tokens.toml")).unwrap();
    let before = tokens();
    let out = token(made);
    let (status, complaint) = (out.status.code(), text(&out.stderr));
    assert!(status.is_some_and(|status| status != 0 && status != 101), "{status:?} {complaint}");
    assert!(complaint.lines().count() == 1 && complaint.contains("another file"), "{complaint}");
    assert_eq!((reader.metadata().unwrap().len(), tokens()), (0, before), "it is nowhere");
}

/// Whoever types it is waited for.
#[test]
fn a_token_may_be_typed_at_a_terminal() {
    const TYPES: &str = "\
import os, pty, sys, time
child, terminal = pty.fork()
if child == 0:
    os.execv(sys.argv[1], sys.argv[1:])
time.sleep(0.5)
os.write(terminal, os.environ['TYPED'].strip().encode() + b'\\n\\x04')
said = b''
try:
    while piece := os.read(terminal, 4096):
        said += piece
except OSError:
    pass
sys.stdout.write(said.decode())
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
";
    let here = Guarded::start("64M");
    let typed = fs::read_to_string(here.token("analytics.token")).unwrap();
    let status = here.place.farmem(["status", &here.at, "--token", "/dev/stdin"]);
    let mut command = std::process::Command::new("python3");
    command.args(["-c", TYPES]).arg(status.get_program()).args(status.get_args()).env("TYPED", typed);
    let (status, said, complaint) = outcome(command);
    assert!(status == Some(0) && said.contains(&here.at), "{said}{complaint}");
}

/// It is shown once: one that nobody has seen is of no use to its tenant, and may be to a thief.
#[test]
fn a_token_that_cannot_be_printed_is_not_made() {
    let place = Place::new();
    let store = place.path().join("tokens.toml");
    let create = |options: &[&str], out: std::process::Stdio| {
        let mut command = place.farmem(["token", "create", "--store"]);
        let ended = command.arg(&store).args(options).stdout(out).output().unwrap();
        (ended.status.code(), text(&ended.stderr))
    };
    let full = || std::process::Stdio::from(fs::OpenOptions::new().write(true).open("/dev/full").unwrap());
    let refused = |(status, complaint): (Option<i32>, String)| {
        assert_eq!((status, complaint.lines().count()), (Some(64), 1), "{complaint}");
        assert!(complaint.contains("no token was made"), "{complaint}");
    };
    let kept = || fs::read_to_string(&store).unwrap();
    refused(create(&["--tenant", "a", "--quota", "64M"], full()));
    assert!(!kept().contains('a'), "{}", kept());
    assert_eq!(create(&["--tenant", "a", "--quota", "64M"], std::process::Stdio::piped()).0, Some(0));
    let before = kept();
    refused(create(&["--tenant", "a", "--quota", "128M"], full()));
    assert_eq!(kept(), before, "its tenant's quota is as it was");
    // As a shell leaves it after >&-, and where nobody would see it.
    let mut closed = std::process::Command::new("sh");
    closed.args(["-c", "exec \"$0\" token create --tenant b --store \"$1\" >&-", env!("CARGO_BIN_EXE_farmem")]);
    let ended = closed.arg(&store).output().unwrap();
    refused((ended.status.code(), text(&ended.stderr)));
    refused(create(&["--tenant", "b"], std::process::Stdio::null()));
    assert_eq!(kept(), before);
}

/// `revoke` takes a tenant or the id of a token.
#[test]
fn no_tenant_has_the_name_of_a_token() {
    let place = Place::new();
    let mut command = place.farmem(["token", "create", "--tenant", "0123456789abcdef", "--store"]);
    command.arg(place.path().join("tokens.toml"));
    refused(command, "the id of a token");
}

/// Two stores may differ in their last part alone.
#[test]
fn stores_beside_each_other_have_drafts_of_their_own() {
    let place = Place::new();
    let at = |name: &str| place.path().join(name);
    // Another command is changing this one.
    fs::write(at("a.b.new"), "").unwrap();
    let create = |store: &str| {
        let mut command = place.farmem(["token", "create", "--tenant", "lab", "--store"]);
        command.arg(at(store));
        command
    };
    refused(create("a.b"), "a.b.new");
    assert_eq!(outcome(create("a.c")).0, Some(0));
}

/// A node may read the store by another name than the command that changes it. Nothing else is written through a link.
#[test]
fn a_store_is_changed_where_it_lies() {
    let place = Place::new();
    let at = |name: &str| place.path().join(name);
    let token = |order: &[&str], store: &str| {
        let mut command = place.farmem([&["token"], order, &["--store"]].concat());
        command.arg(at(store));
        outcome(command)
    };
    fs::create_dir(at("real")).unwrap();
    assert_eq!(token(&["create", "--tenant", "lab"], "real/tokens.toml").0, Some(0));
    std::os::unix::fs::symlink("real/tokens.toml", at("link.toml")).unwrap();
    assert_eq!(token(&["revoke", "lab"], "link.toml").0, Some(0));
    assert!(fs::symlink_metadata(at("link.toml")).unwrap().is_symlink());
    assert!(token(&["list"], "real/tokens.toml").1.contains("revoked"), "a node that reads the file is not told");
    std::os::unix::fs::symlink("nowhere/tokens.toml", at("lost.toml")).unwrap();
    let (status, _, complaint) = token(&["create", "--tenant", "lab"], "lost.toml");
    assert!(status != Some(0) && complaint.lines().count() == 1, "{complaint}");
    // A draft that somebody has laid there as a link is not followed.
    fs::write(at("victim"), "as it was").unwrap();
    std::os::unix::fs::symlink("victim", at("own.toml.new")).unwrap();
    let (status, _, complaint) = token(&["create", "--tenant", "lab"], "own.toml");
    assert!(status != Some(0) && complaint.contains("at work on it"), "{complaint}");
    assert_eq!(fs::read_to_string(at("victim")).unwrap(), "as it was");
}

#[test]
fn a_run_with_its_token_goes_as_without_far_memory() {
    let here = Guarded::start("512M");
    let native = std::process::Command::new("python3").args(["-c", PROGRAM]).output().unwrap();
    let (status, said, complaint) = outcome(here.run(Some("analytics.token"), PROGRAM));
    assert_eq!((status, said), (Some(0), text(&native.stdout)), "{complaint}");
    // By the variable, too; and forked children and what they exec.
    let mut command = here.run(None, "import os,sys; sys.exit(os.system('python3 -c \"x=[1]*10**7\"') >> 8)");
    command.env("FARMEM_TOKEN", here.token("analytics.token"));
    assert_eq!(outcome(command).0, Some(0));
    let mut status = here.place.farmem(["check", &here.at, "--token"]);
    status.arg(here.token("analytics.token"));
    assert!(outcome(status).1.contains("sound"));
    eventually("the log names the tenant", || here.log().contains("for analytics"));
}

#[test]
fn a_run_without_the_right_token_is_refused_by_name() {
    let here = Guarded::start("512M");
    refused(here.run(None, PROGRAM), "--token FILE");
    refused(here.place.farmem(["status", &here.at]), "--token FILE");
    let other = Place::new();
    create(&other, &["--tenant", "analytics"], "other.token");
    fs::copy(other.path().join("other.token"), here.token("other.token")).unwrap();
    refused(here.run(Some("other.token"), PROGRAM), "does not know this token");
    create(&here.place, &["--tenant", "past", "--expires", "1s"], "past.token");
    // Until the node has looked at its tokens again, it does not know this one, and then it may be
    // good for some moments.
    eventually("the node knows the token, and that it has expired", || {
        outcome(here.run(Some("past.token"), PROGRAM)).2.contains("has expired")
    });
    refused(here.run(Some("past.token"), PROGRAM), "has expired");
    fs::set_permissions(here.token("analytics.token"), fs::Permissions::from_mode(0o644)).unwrap();
    refused(here.run(Some("analytics.token"), PROGRAM), "chmod 600");
    fs::write(here.token("past.token"), "nonsense").unwrap();
    refused(here.run(Some("past.token"), PROGRAM), "holds no token");
    refused(here.run(Some("nowhere"), PROGRAM), "No such file");
    let log = here.log();
    assert!(log.contains("it named no token") && log.contains("its token is not known here"), "{log}");
}

#[test]
fn a_run_ends_when_its_token_is_revoked() {
    let here = Guarded::start("512M");
    let busy =
        "x=[bytes([i%251])*65536 for i in range(768)]\nprint('busy',flush=True)\nwhile True: sum(p[0] for p in x)";
    let mut run =
        here.run(Some("analytics.token"), busy).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    let mut out = std::io::BufReader::new(run.stdout.take().unwrap());
    std::io::BufRead::read_line(&mut out, &mut line).unwrap();
    assert_eq!(line, "busy\n");
    let store = here.token("tokens.toml");
    let said = |arguments: &[&str]| {
        let mut command = here.place.farmem(["token"]);
        command.args(arguments).arg("--store").arg(&store);
        let (status, said, complaint) = outcome(command);
        assert_eq!(status, Some(0), "{complaint}");
        said
    };
    assert!(said(&["list"]).contains("good"));
    let begun = Instant::now();
    said(&["revoke", "analytics"]);
    let ended = run.wait_with_output().unwrap();
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    assert_eq!(ended.status.code(), Some(farmem_run::exit::NODE_LOST), "{}", text(&ended.stderr));
    assert!(text(&ended.stderr).contains("was revoked"), "{}", text(&ended.stderr));
    assert!(said(&["list"]).contains("revoked"));
    refused(here.run(Some("analytics.token"), PROGRAM), "was revoked");
    // A new one for the same tenant.
    let token = said(&["rotate", "--tenant", "analytics"]);
    fs::write(here.token("analytics.token"), token).unwrap();
    eventually("the node has read its store", || outcome(here.run(Some("analytics.token"), "print(1)")).0 == Some(0));
}

#[test]
fn a_tenant_that_has_its_quota_is_told() {
    let here = Guarded::start("64M");
    let (status, _, complaint) = outcome(here.run(Some("analytics.token"), "x=b'7'*(200<<20)\nprint(len(x))"));
    assert_ne!(status, Some(0));
    // As on any machine that has no more: the request fails, and the program says so.
    assert!(complaint.contains("MemoryError"), "{complaint}");
}

#[test]
fn a_node_that_others_can_reach_says_who_may_borrow() {
    let place = Place::new();
    refused(place.farmem(["node", "--lend", "64M", "--listen", "0.0.0.0:0"]), "--tokens FILE");
    refused(place.farmem(["node", "--lend", "64M", "--listen", "127.0.0.1:0", "--listen", "[::]:0"]), "--open");
    let store = place.path().join("tokens.toml");
    create(&place, &["--tenant", "a"], "a.token");
    fs::set_permissions(&store, fs::Permissions::from_mode(0o644)).unwrap();
    let mut node = place.farmem(["node", "--lend", "64M", "--listen", "127.0.0.1:0", "--tokens"]);
    node.arg(&store);
    refused(node, "chmod 600");
    let mut again = place.farmem(["token", "create", "--tenant", "b", "--store"]);
    again.arg(&store);
    refused(again, "chmod 600");
    refused(place.farmem(["token", "create", "--tenant", "no name", "--store", "x"]), "letters, digits");
}

/// Pages go over the wire encrypted, and as they are with `--plain`, which says so.
#[test]
fn what_is_moved_is_encrypted_unless_it_is_to_be_plain() {
    let here = Guarded::start("512M");
    // What a program stores in far memory: somebody on the path looks for it.
    let program = "parts=[b'nobody-is-to-read-this-'*3000 for i in range(512)]\nprint(sum(len(p) for p in parts))";
    for plain in [false, true] {
        let (at, heard) = listener(here.at.clone());
        let mut command = here.place.farmem(["run", "--local", "8M", "--stats", "none", "--transport", "tcp"]);
        command.args(["--node", &at, "--token"]).arg(here.token("analytics.token"));
        command.args(plain.then_some("--plain")).args(["--", "python3", "-c", program]);
        let (status, said, complaint) = outcome(command);
        assert_eq!((status, said.trim()), (Some(0), "35328000"), "{complaint}");
        assert_eq!(complaint.contains("can be read and changed on its way"), plain, "{complaint}");
        let heard = heard.lock().unwrap();
        assert!(heard.len() > 1 << 20, "{}", heard.len());
        assert_eq!(heard.windows(23).any(|seen| seen == b"nobody-is-to-read-this-"), plain);
    }
}

/// Somebody on the path to the node, who hears what is said both ways.
fn listener(node: String) -> (String, Arc<Mutex<Vec<u8>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (at, heard) = (listener.local_addr().unwrap().to_string(), Arc::new(Mutex::new(Vec::new())));
    let hears = Arc::clone(&heard);
    std::thread::spawn(move || {
        for host in listener.incoming() {
            let (Ok(host), Ok(node)) = (host, TcpStream::connect(&node)) else { return };
            for (one, other) in [(host.try_clone(), node.try_clone()), (Ok(node), Ok(host))] {
                let (Ok(mut one), Ok(mut other), hears) = (one, other, Arc::clone(&hears)) else { return };
                std::thread::spawn(move || {
                    let mut piece = [0; 65536];
                    while let Ok(n @ 1..) = one.read(&mut piece) {
                        hears.lock().unwrap().extend_from_slice(&piece[..n]);
                        if other.write_all(&piece[..n]).is_err() {
                            break;
                        }
                    }
                    let _ = other.shutdown(std::net::Shutdown::Both);
                });
            }
        }
    });
    (at, heard)
}

/// The cryptography that the runtime does in faults reads no thread-local: neither one of its own, nor the canary by which
/// some compilers guard stacks.
#[test]
fn the_librarys_cryptography_has_no_thread_pointer() {
    let place = Place::new();
    let (_, maps, _) =
        outcome(place.farmem(["run", "--local", "8M", "--stats", "none", "--", "cat", "/proc/self/maps"]));
    let library = maps.lines().find_map(|line| line.find('/').map(|at| &line[at..]).filter(|f| f.contains("preload")));
    let library = library.expect("the runtime is mapped");
    let Ok(listing) = std::process::Command::new("objdump").args(["-d", "--no-show-raw-insn", library]).output() else {
        println!("skipped: needs objdump");
        return;
    };
    let (mut functions, mut inside) = (0, None);
    for line in String::from_utf8_lossy(&listing.stdout).lines() {
        if let Some(name) =
            line.strip_suffix(">:").and_then(|line| line.split_once('<')).map(|(_, name)| name.to_owned())
        {
            inside = Some(name).filter(|name| name.contains("4ring") || name.contains("ring_core"));
            functions += usize::from(inside.is_some());
        }
        let reads = inside.as_deref().filter(|_| line.contains("%fs:"));
        assert!(reads.is_none(), "{reads:?} in {library}: build with CFLAGS=-fno-stack-protector");
    }
    assert!(functions > 20, "{functions}: a library without symbols?");
}

/// A token that no node knows: another one with its last digit changed.
fn forged(token: &Path) -> PathBuf {
    let text = fs::read_to_string(token).unwrap();
    let end = if text.trim().ends_with('0') { "1" } else { "0" };
    let forged = token.with_extension("forged");
    fs::write(&forged, format!("{}{end}", &text.trim()[..text.trim().len() - 1])).unwrap();
    fs::set_permissions(&forged, fs::Permissions::from_mode(0o600)).unwrap();
    forged
}

/// The same flag, the same words, whoever speaks to a node: a store's front end, regions, the library, swap.
#[test]
fn whoever_speaks_to_a_node_names_its_token() {
    let here = Guarded::start("512M");
    let token = here.token("analytics.token");
    let said = |arguments: &[&str]| {
        let mut command = here.place.farmem(arguments);
        command.arg("--token").arg(&token);
        let (status, said, complaint) = outcome(command);
        assert_eq!((status, complaint.as_str()), (Some(0), ""), "{said}");
        said
    };
    refused(here.place.farmem(["region", "ls", &here.at]), "--token FILE");
    refused(here.place.farmem(["kv", "--name", "s", "--node", &here.at, "--listen", "127.0.0.1:0"]), "--token FILE");
    let mut front = here.place.farmem(["kv", "--name", "s", "--node", &here.at, "--listen", "127.0.0.1:0", "--token"]);
    front.arg(forged(&token));
    refused(front, "does not know this token");
    let open = || Memory::builder().node(&here.at).region("shared").create(true).timeout(Duration::from_secs(5));
    let without = open().connect().unwrap_err().to_string();
    assert!(without.contains("--token FILE"), "{without}");
    let memory = open().token(&token).connect().unwrap();
    let piece = memory.alloc(4096).unwrap();
    memory.write(piece, b"by a token").unwrap();
    assert!(said(&["region", "ls", &here.at]).contains("shared"));
    drop(memory);
    said(&["region", "rm", &here.at, "shared"]);
    fs::set_permissions(&token, fs::Permissions::from_mode(0o644)).unwrap();
    assert!(open().token(&token).connect().unwrap_err().to_string().contains("chmod 600"));
    fs::set_permissions(&token, fs::Permissions::from_mode(0o600)).unwrap();

    let mut front = here.place.farmem(["kv", "--name", "store", "--listen", "127.0.0.1:0", "--transport", "tcp"]);
    front.args(["--node", &here.at]).env("FARMEM_TOKEN", &token).stderr(Stdio::piped());
    let mut front = front.spawn().unwrap();
    let mut line = String::new();
    let mut log = std::io::BufReader::new(front.stderr.take().unwrap());
    std::io::BufRead::read_line(&mut log, &mut line).unwrap();
    let at = line.trim().rsplit(' ').next().unwrap().to_owned();
    let mut client = TcpStream::connect(&at).unwrap_or_else(|e| panic!("{line}: {e}"));
    client.write_all(b"SET key value\r\nGET key\r\n").unwrap();
    let mut answer = [0; 16];
    client.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"+OK\r\n$5\r\nvalue\r\n");
    let _ = (front.kill(), front.wait());
}

/// A tenant is told by name who holds what is its own. Of others it is told the sum.
#[test]
fn status_names_a_tenants_own_holders_alone() {
    let here = Guarded::start("512M");
    create(&here.place, &["--tenant", "research"], "research.token");
    let token = here.token("analytics.token");
    let open = Memory::builder().node(&here.at).region("shared").create(true).timeout(Duration::from_secs(60));
    let memory = open.token(&token).connect().unwrap();
    let piece = memory.alloc(4096).unwrap();
    memory.write(piece, b"ours").unwrap();
    let status = |token: &str, json: bool| {
        let mut command = here.place.farmem(["status", &here.at, "--token"]);
        command.arg(here.token(token)).args(json.then_some("--json"));
        outcome(command)
    };
    eventually("the node knows the other token", || status("research.token", false).0 == Some(0));
    let view = |token: &str| {
        let (_, said, complaint) = status(token, true);
        let views: serde_json::Value = serde_json::from_str(&said).unwrap_or_else(|e| panic!("{e}: {said}{complaint}"));
        views[0].clone()
    };
    let (ours, theirs) = (view("analytics.token"), view("research.token"));
    let region = |view: &serde_json::Value| view["holders"].as_array().unwrap().iter().any(|h| h["region"] == "shared");
    assert!(region(&ours) && !region(&theirs), "{ours} {theirs}");
    assert_eq!((&theirs["unnamed"], theirs["holders"].as_array().unwrap().len()), (&ours["held"], 0), "{theirs}");
    assert_eq!(ours["unnamed"], 0, "{ours}");
    let said = [status("analytics.token", false).1, status("research.token", false).1];
    assert_eq!(said.map(|said| said.contains("by others")), [false, true]);
}

#[test]
fn status_shows_this_users_node_by_its_token() {
    let here = Guarded::start("512M");
    let mut command = here.place.farmem(["status", "--token"]);
    command.arg(here.token("analytics.token"));
    let (status, said, complaint) = outcome(command);
    assert!(status == Some(0) && said.contains(&here.at), "{said}{complaint}");
}

/// A controller shares out the quotas of so many tenants. One more would get no memory, and not
/// know why.
#[test]
fn quotas_of_the_rack_are_limited_in_number() {
    let place = Place::new();
    let store = place.path().join("tokens.toml");
    create(&place, &["--tenant", "first", "--rack-quota", "1G"], "first.token");
    let more: String = (1..128).map(|n| format!("\n[tenant.t{n}]\nrack_quota = 1073741824\n")).collect();
    let text = fs::read_to_string(&store).unwrap() + &more;
    fs::write(&store, &text).unwrap();
    let one_more = || {
        let mut command = place.farmem(["token", "create", "--tenant", "last", "--rack-quota", "1G", "--store"]);
        command.arg(&store);
        command
    };
    refused(one_more(), "more than 128 tenants have a --rack-quota");
    create(&place, &["--tenant", "last", "--quota", "1G"], "last.token");
    create(&place, &["--tenant", "first", "--rack-quota", "2G"], "again.token");
    fs::write(&store, text + "\n[tenant.t128]\nrack_quota = 1073741824\n").unwrap();
    let mut serves = place.farmem(["controller", "--listen", "127.0.0.1:0", "--store"]);
    serves.arg(place.path().join("rack.redb")).arg("--tokens").arg(&store);
    refused(serves, "more than 128 tenants have a --rack-quota");
}

/// The kernel's connections to a node prove the token, too, up to where the kernel has them.
#[test]
fn a_swap_volume_is_asked_for_by_a_token() {
    let here = Guarded::start("512M");
    let wanted = |token| Wanted {
        at: &[],
        node: &here.at,
        id: [3; 16],
        incarnation: 0,
        agreed: None,
        size: 16 << 20,
        kept: Duration::from_secs(1),
        overcommit: false,
        data: false,
        host: "here",
        token,
    };
    let dial = |token| farmem_swap::stream::dial(&wanted(token), Duration::from_secs(5));
    let without = dial(None).unwrap_err().to_string();
    assert!(without.contains("--token FILE"), "{without}");
    let good = here.token("analytics.token");
    let forged = forged(&good);
    let wrong = dial(Some(&forged)).unwrap_err().to_string();
    assert!(wrong.contains("does not know this token"), "{wrong}");
    let mut stream = dial(Some(&good)).unwrap();
    stream.report().unwrap();
    // Later streams come by what was agreed on as well: the token and the id, which was heard, are not enough.
    let known = Wanted { incarnation: stream.incarnation, data: true, ..wanted(Some(&*good)) };
    let again = |agreed| farmem_swap::stream::dial(&Wanted { agreed, ..known }, Duration::from_secs(5));
    for agreed in [None, Some([0; 32])] {
        assert!(again(agreed).is_err(), "{agreed:?}");
    }
    let mut moves = again(stream.agreed).unwrap();
    moves.report().unwrap();
    stream.free().unwrap();
}
