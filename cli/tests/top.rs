//! `farmem top --once` and `--json`, beside a run and a node that are there.

#[allow(dead_code)] // Each test file uses a part.
mod common;

use std::io::{Read, Write};
use std::process::Stdio;
use std::time::Duration;

use common::{Place, eventually, listens, outcome};
use farmem_agent::client::{Client, Options};

const LIMIT: Duration = Duration::from_secs(30);

#[test]
fn runs_and_nodes_are_shown_while_they_live() {
    let place = Place::new();
    let socket = place.path().join("node.sock");
    let address = format!("unix:{}", socket.display());
    let mut node = place.farmem(["node", "--lend", "256M", "--listen", &address]).spawn().unwrap();
    listens(&socket);
    let run = ["run", "--local", "16M", "--node", &address, "--stats", "none", "--", "sleep", "60"];
    let mut run = place.farmem(run).stdout(Stdio::null()).spawn().unwrap();

    let top = || {
        let (status, out, err) = outcome(place.farmem(["top", "--json", "--interval", "100ms"]));
        assert_eq!((status, err.as_str()), (Some(0), ""));
        serde_json::from_str::<serde_json::Value>(&out).unwrap()
    };
    let mine = |list: &serde_json::Value, key: &str, pid: u32| {
        list.as_array().unwrap().iter().find(|entry| entry[key] == pid).cloned()
    };
    eventually("the run is shown", || mine(&top()["runs"], "supervisor", run.id()).is_some());
    let seen = mine(&top()["runs"], "supervisor", run.id()).unwrap();
    assert_eq!(
        (&seen["program"], &seen["nodes"], &seen["local_limit"]),
        (&"sleep 60".into(), &address.as_str().into(), &(16 << 20).into())
    );
    eventually("the node is shown with its client", || {
        mine(&top()["nodes"], "pid", node.id()).is_some_and(|node| node["clients"].as_u64() > Some(0))
    });
    assert_eq!(mine(&top()["nodes"], "pid", node.id()).unwrap()["lend"], 256 << 20);

    // An agent of that node, with a program.
    let mut agent = place.farmem(["agent", "--quiet", "--node", &address]).spawn().unwrap();
    let dir = place.path().join("farmem");
    eventually("the agent listens", || dir.join("agent.sock").exists());
    let options = Options { socket: dir.join("agent.sock"), job: String::new(), patience: LIMIT, start: None };
    let program = Client::connect(options).unwrap();
    let chunk = program.alloc(0).unwrap();
    eventually("the agent is shown with what its program holds", || {
        mine(&top()["agents"], "pid", agent.id()).is_some_and(|agent| {
            (&agent["applications"][0]["held"], &agent["taken"]) == (&(2 << 20).into(), &(2 << 20).into())
        })
    });
    let (_, table, _) = outcome(place.farmem(["top", "--once", "--interval", "100ms"]));
    assert!(table.contains("programs") && table.contains("2.00 MiB"), "{table}");
    let (_, holders, _) = outcome(place.farmem(["status", &address]));
    assert!(holders.contains(&format!("agent {}", agent.id())), "{holders}");
    program.free(chunk);
    drop(program);
    agent.kill().unwrap();
    agent.wait().unwrap();
    assert_eq!(top()["agents"].as_array().unwrap().len(), 0);
    // Its report is gone with it. The rest stays, because programs that it served may live.
    assert!(!dir.join("agent.json").exists());
    ["sock", "lock", "ledger"].iter().for_each(|end| std::fs::remove_file(dir.join(format!("agent.{end}"))).unwrap());

    let (_, table, _) = outcome(place.farmem(["top", "--once", "--interval", "100ms"]));
    assert!(table.contains("sleep 60") && table.contains("faults/s") && table.contains("16.0 MiB"), "{table}");

    // They were killed and leave files behind; the next look removes them.
    run.kill().unwrap();
    run.wait().unwrap();
    node.kill().unwrap();
    node.wait().unwrap();
    eventually("what died is not shown", || {
        let view = top();
        mine(&view["runs"], "supervisor", run.id()).is_none() && mine(&view["nodes"], "pid", node.id()).is_none()
    });
    eventually("no file is left", || {
        top();
        place.left().is_empty()
    });
}

/// `println!` would panic.
#[test]
fn output_that_cannot_be_written_is_a_line() {
    let place = Place::new();
    let full = || std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let mut command = place.farmem(["top", "--once", "--interval", "100ms"]);
    let told = command.stdout(full()).stderr(std::process::Stdio::piped()).spawn().unwrap().wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&told.stderr).into_owned();
    assert!(said.starts_with("farmem: cannot write to standard output: No space left"), "{said}");
    assert_eq!((told.status.code(), said.lines().count()), (Some(1), 1), "{said}");
    // A reader that has seen enough is no failure of anybody's.
    let mut command = place.farmem(["top", "--once", "--interval", "100ms"]);
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let told = command.stdout(writer).stderr(std::process::Stdio::piped()).spawn().unwrap().wait_with_output().unwrap();
    assert_eq!((told.status.code(), told.stderr.as_slice()), (Some(141), &b""[..]));
}

/// Help and version are clap's to print, a replay's table a library's.
#[test]
fn nor_is_it_lost_elsewhere() {
    let place = Place::new();
    for arguments in [&["--help"][..], &["run", "--help"], &["--version"], &["amat", "--show", "kona"]] {
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let mut command = place.farmem(arguments);
        command.stdout(full).stderr(std::process::Stdio::piped());
        let told = command.spawn().unwrap().wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&told.stderr).into_owned();
        assert!(said.starts_with("farmem: cannot write to standard output: No space left"), "{arguments:?}: {said}");
        assert_eq!((told.status.code(), said.lines().count()), (Some(1), 1), "{arguments:?}: {said}");

        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut command = place.farmem(arguments);
        command.stdout(writer).stderr(std::process::Stdio::piped());
        let told = command.spawn().unwrap().wait_with_output().unwrap();
        assert_eq!((told.status.code(), told.stderr.as_slice()), (Some(141), &b""[..]), "{arguments:?}");
    }
}

#[test]
fn a_terminal_that_cannot_be_drawn_on_is_a_line() {
    let place = Place::new();
    let mut command = place.farmem(["top"]);
    command.env("TERM", "dumb");
    let (status, out, said) = common::outcome(command);
    assert_eq!((status, out.as_str()), (Some(1), ""));
    assert!(said.starts_with("farmem: no terminal to draw on (TERM is dumb)") && said.contains("--once"), "{said}");
}

#[test]
fn a_store_is_shown_while_its_front_end_lives() {
    let place = Place::new();
    let socket = place.path().join("node.sock");
    let address = format!("unix:{}", socket.display());
    let mut node = place.farmem(["node", "--lend", "256M", "--listen", &address]).spawn().unwrap();
    listens(&socket);
    let listen = common::free().to_string();
    let mut front = place.farmem(["kv", "--name", "shown", "--node", &address, "--listen", &listen]).spawn().unwrap();
    eventually("the front end listens", || std::net::TcpStream::connect(&listen).is_ok());
    let mut client = std::net::TcpStream::connect(&listen).unwrap();
    client.set_read_timeout(Some(LIMIT)).unwrap();
    client.write_all(b"SET k v\r\nGET k\r\nGET k\r\nGET k\r\nGET none\r\n").unwrap();
    client.read_exact(&mut [0; 31]).unwrap();
    let pid = front.id();
    let mine = || {
        let (_, out, _) = outcome(place.farmem(["top", "--json", "--interval", "100ms"]));
        let view = serde_json::from_str::<serde_json::Value>(&out).unwrap();
        view["stores"].as_array().unwrap().iter().find(|store| store["pid"] == pid).cloned()
    };
    eventually("its reads are counted", || mine().is_some_and(|store| store["hit_rate"] == 0.75));
    let seen = mine().unwrap();
    assert_eq!((&seen["store"], &seen["listen"][0]), (&"shown".into(), &listen.as_str().into()), "{seen}");
    assert!(seen["verbs_per_command"].as_f64() > Some(0.0) && seen["held"].as_u64() > Some(0), "{seen}");
    let (_, table, _) = outcome(place.farmem(["top", "--once", "--interval", "100ms"]));
    assert!(table.contains("requests/s") && table.contains("75 %"), "{table}");
    let file = place.path().join(format!("farmem/kv-{pid}.json"));
    assert!(file.exists());
    front.kill().unwrap();
    front.wait().unwrap();
    eventually("a killed one is not shown", || mine().is_none() && !file.exists());
    node.kill().unwrap();
    node.wait().unwrap();
}
