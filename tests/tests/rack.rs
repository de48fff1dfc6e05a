//! A rack: a controller, nodes that say that they are there, runs that name none.
//!
//! Real processes, a real kill, and the page in a real browser.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use farmem_tests::compile;
use farmem_tests::farmem::{Node, binary, counter, free_port, split_stats};
use farmem_tests::process::{self, Running, TempDir, eventually};
use serde_json::Value;

/// Longer than anything here takes on a machine that is busy with other things.
const LIMIT: Duration = Duration::from_secs(60);

/// A controller in a process of its own.
struct Controller {
    running: Running,
    at: String,
    store: std::path::PathBuf,
    _dir: TempDir,
}

impl Controller {
    fn start() -> Result<Controller> {
        let dir = TempDir::new("rack")?;
        let (at, store) = (free_port()?.to_string(), dir.path().join("rack.redb"));
        let running = Controller::spawn(&at, &store)?;
        Ok(Controller { running, at, store, _dir: dir })
    }

    fn spawn(at: &str, store: &std::path::Path) -> Result<Running> {
        let mut command = Command::new(binary());
        command.args(["controller", "--listen", at, "--store"]).arg(store);
        let running = process::spawn(command)?;
        let serves = || running.stderr().contains("its page") || !running.alive();
        ensure!(eventually(LIMIT, serves) && running.alive(), "{}", running.stderr());
        Ok(running)
    }

    /// Killed, and started anew with what it had kept.
    fn again(&mut self) -> Result<()> {
        self.running.signal(libc::SIGKILL);
        ensure!(eventually(LIMIT, || !self.running.alive()));
        self.running = Controller::spawn(&self.at, &self.store)?;
        Ok(())
    }

    fn node(&self, name: &str, domain: &str) -> Result<Node> {
        let node = Node::start("1G", &["--controller", &self.at, "--name", name, "--domain", domain])?;
        self.until(name, "up")?;
        Ok(node)
    }

    fn farmem(&self, arguments: &[&str]) -> Result<process::Outcome> {
        let mut command = Command::new(binary());
        command.args(arguments).args(["--controller", &self.at]);
        process::run(command, LIMIT)
    }

    fn rack(&self) -> Result<Value> {
        let shown = self.farmem(&["status", "--json"])?.success()?;
        serde_json::from_slice(&shown.stdout).context("status is no JSON")
    }

    fn of(&self, name: &str, field: &str) -> Result<Value> {
        let rack = self.rack()?;
        let nodes = rack["nodes"].as_array().context("no nodes")?;
        let node = nodes.iter().find(|node| node["name"] == name);
        Ok(node.map_or(Value::Null, |node| node[field].clone()))
    }

    fn until(&self, name: &str, standing: &str) -> Result<()> {
        let is = || self.of(name, "standing").is_ok_and(|shown| shown == standing);
        ensure!(eventually(LIMIT, is), "{name} is not {standing}: {}", self.rack()?);
        Ok(())
    }

    /// A program that checks and rewrites its memory until SIGUSR1.
    fn work(&self) -> Result<Running> {
        working(&["--stats", "none", "--controller", &self.at])
    }
}

/// Such a program, run so.
fn working(options: &[&str]) -> Result<Running> {
    let mut command = Command::new(binary());
    command.args(["run", "--no-settings", "--local", "8M"]).args(options).arg("--");
    command.arg(compile::c("keeps_checking", &[])?).args(["48", "2"]);
    process::spawn(command)
}

fn is_ready(work: &Running) -> Result<()> {
    let ready = || String::from_utf8_lossy(&work.stdout()).contains("ready");
    ensure!(eventually(LIMIT, ready), "{}", work.stderr());
    Ok(())
}

/// The program itself, beneath its supervisor.
fn program_of(work: &Running) -> Result<i32> {
    let said = String::from_utf8_lossy(&work.stdout()).into_owned();
    let id = said.strip_prefix("ready ").and_then(|rest| rest.split_whitespace().next());
    id.context("the program does not say its number")?.parse().context("no number")
}

/// Ends it; what it said on standard error.
fn ends_sound(work: Running) -> Result<String> {
    work.signal(libc::SIGUSR1);
    let outcome = work.wait(LIMIT)?.success()?;
    ensure!(outcome.stdout_tail().contains("sound"), "{outcome:?}");
    Ok(outcome.stderr)
}

#[test]
fn a_node_is_drained_while_a_program_works_and_its_controller_dies() -> Result<()> {
    let mut rack = Controller::start()?;
    let (first, second) = (rack.node("first", "shelf1")?, rack.node("second", "shelf2")?);
    let work = rack.work()?;
    is_ready(&work)?;
    let lent = |rack: &Controller, name: &str| rack.of(name, "lent").is_ok_and(|lent| lent.as_u64() > Some(0));
    ensure!(eventually(LIMIT, || lent(&rack, "first") || lent(&rack, "second")), "{}", work.stderr());
    let (full, other) = if lent(&rack, "first") { ("first", "second") } else { ("second", "first") };
    rack.farmem(&["drain", full, "--no-wait"])?.success()?;
    // What was ordered stands, although whoever took the order is dead.
    rack.again()?;
    rack.until(full, "empty")?;
    // The other node says it with its next beat.
    ensure!(eventually(LIMIT, || lent(&rack, other)) && work.alive(), "{}", rack.rack()?);
    ends_sound(work)?;
    rack.farmem(&["undrain", full])?.success()?;
    rack.until(full, "up")?;
    drop((first, second));
    Ok(())
}

/// Each process of the rack is started anew, one after the other, while a program works that keeps two
/// copies, and one that keeps one: nodes are emptied first, the controller is killed. Nothing is lost.
#[test]
fn a_rolling_restart_of_a_rack_loses_nothing() -> Result<()> {
    let mut rack = Controller::start()?;
    let names = ["first", "second", "third"];
    let mut nodes = Vec::new();
    for (name, shelf) in names.iter().zip(["shelf1", "shelf2", "shelf3"]) {
        nodes.push(rack.node(name, shelf)?);
    }
    let works = [rack.work()?, working(&["--stats", "none", "--controller", &rack.at, "--protect", "mirror"])?];
    works.iter().try_for_each(is_ready)?;
    for (at, name) in names.iter().enumerate() {
        rack.farmem(&["drain", name, "--no-wait"])?.success()?;
        rack.until(name, "empty")?;
        nodes[at].running.signal(libc::SIGTERM);
        ensure!(eventually(LIMIT, || !nodes[at].running.alive()), "{}", nodes[at].running.stderr());
        rack.until(name, "down")?;
        nodes[at] =
            Node::start("1G", &["--controller", &rack.at, "--name", name, "--domain", &format!("shelf{}", at + 1)])?;
        rack.farmem(&["undrain", name])?.success()?;
        rack.until(name, "up")?;
        rack.again()?;
        rack.until(name, "up")?;
        ensure!(works.iter().all(Running::alive), "{}{}", works[0].stderr(), works[1].stderr());
    }
    works.into_iter().try_for_each(|work| ends_sound(work).map(drop))
}

/// A drain that has nowhere to go harms nobody, and ends when there is another node. While the owner
/// is stopped nothing moves.
#[test]
fn a_drain_waits_for_room_and_for_its_owner() -> Result<()> {
    let rack = Controller::start()?;
    let _first = rack.node("first", "shelf1")?;
    let work = rack.work()?;
    is_ready(&work)?;
    let program = program_of(&work)?;
    let lent = |name: &str| rack.of(name, "lent").ok().and_then(|lent| lent.as_u64()).unwrap_or(0);
    ensure!(eventually(LIMIT, || lent("first") > 0), "{}", work.stderr());
    let waits = rack.farmem(&["drain", "first", "--no-wait"])?.success()?;
    println!("{}", waits.stderr);
    std::thread::sleep(Duration::from_secs(2));
    ensure!(work.alive() && lent("first") > 0 && rack.of("first", "standing")? == "draining", "{}", rack.rack()?);
    process::send(program, libc::SIGSTOP);
    let _second = rack.node("second", "shelf2")?;
    std::thread::sleep(Duration::from_secs(2));
    ensure!(lent("first") > 0 && lent("second") == 0, "{}", rack.rack()?);
    process::send(program, libc::SIGCONT);
    rack.until("first", "empty")?;
    ensure!(eventually(LIMIT, || lent("second") > 0) && work.alive(), "{}", rack.rack()?);
    ends_sound(work)?;
    Ok(())
}

/// A token of a tenant, in a file of its own.
fn token(dir: &TempDir, tenant: &str, options: &[&str]) -> Result<String> {
    let (store, file) = (dir.path().join("tokens.toml"), dir.path().join(tenant));
    let mut command = Command::new(binary());
    command.args(["token", "create", "--tenant", tenant]).args(options).arg("--store").arg(store);
    let made = process::run(command, LIMIT)?.success()?;
    std::fs::write(&file, made.stdout)?;
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600))?;
    Ok(file.display().to_string())
}

/// A tenant may hold three slabs in a rack of two nodes with room for many. It gets them at either
/// node, and never a fourth: also when the controller is dead, or another has taken its place.
#[test]
fn a_tenants_quota_holds_in_the_whole_rack() -> Result<()> {
    let dir = TempDir::new("quota")?;
    let (operator, lab) = (token(&dir, "rack", &[])?, token(&dir, "lab", &["--rack-quota", "192M"])?);
    let store = dir.path().join("tokens.toml").display().to_string();
    let (at, kept) = (free_port()?.to_string(), dir.path().join("rack.redb"));
    let controller = || -> Result<Running> {
        let mut command = Command::new(binary());
        command.args(["controller", "--listen", &at, "--tokens", &store, "--store"]).arg(&kept);
        process::spawn(command)
    };
    let node = |name: &str| -> Result<(String, Running)> {
        let listen = free_port()?.to_string();
        let mut command = Command::new(binary());
        command.args(["node", "--lend", "1G", "--listen", &listen, "--tokens", &store, "--controller", &at]);
        command.args(["--token", &operator, "--name", name, "--domain", name]);
        Ok((listen, process::spawn(command)?))
    };
    let mut first = controller()?;
    let nodes = [node("a")?, node("b")?];
    let rack = || -> Result<Value> {
        let mut command = Command::new(binary());
        command.args(["status", "--json", "--controller", &at]);
        Ok(serde_json::from_slice(&process::run(command, LIMIT)?.success()?.stdout)?)
    };
    let up = || rack().is_ok_and(|rack| rack["nodes"].as_array().is_some_and(|nodes| nodes.len() == 2));
    ensure!(eventually(LIMIT, up), "{}", first.stderr());
    // Of two nodes that it names itself: it needs no controller.
    let work = || {
        let by = ["--transport", "tcp", "--node", &nodes[0].0, "--node", &nodes[1].0];
        working(&[&["--stats", "none", "--token", &lab], &by[..]].concat())
    };
    let ready = |work: &Running| String::from_utf8_lossy(&work.stdout()).contains("ready");
    // One that is refused ends, and finds the share moved when it is tried again.
    let begins = || -> Result<Running> {
        let until = Instant::now() + LIMIT;
        loop {
            let one = work()?;
            ensure!(eventually(LIMIT, || ready(&one) || !one.alive()), "{}", one.stderr());
            if one.alive() {
                return Ok(one);
            }
            ensure!(Instant::now() < until, "{} {}", one.stderr(), rack()?);
            std::thread::sleep(Duration::from_millis(500));
        }
    };
    let held = || Ok::<_, anyhow::Error>(rack()?["tenants"][0]["held"].as_u64().unwrap_or(0) >> 20);
    let mut all = vec![begins()?, begins()?, begins()?];
    ensure!(eventually(LIMIT, || held().is_ok_and(|held| held == 192)), "{}", rack()?);
    let refused = |why: &str| -> Result<()> {
        let one = work()?;
        ensure!(eventually(LIMIT, || ready(&one) || !one.alive()), "{}", one.stderr());
        ensure!(!one.alive(), "{why}: a fourth slab was granted: {}", rack()?);
        Ok(())
    };
    refused("the quota is used up")?;
    first.signal(libc::SIGKILL);
    ensure!(eventually(LIMIT, || !first.alive()));
    refused("the controller is dead")?;
    // Its memory is of the node's share: another program has it, although nobody leads.
    ends_sound(all.remove(0))?;
    all.push(begins()?);
    refused("the controller is dead, and the slab is taken again")?;
    first = controller()?;
    ensure!(eventually(LIMIT, || held().is_ok_and(|held| held == 192)), "{}", first.stderr());
    refused("another leads")?;
    for one in all {
        ends_sound(one)?;
    }
    ensure!(eventually(LIMIT, || held().is_ok_and(|held| held == 0)), "{}", rack()?);
    Ok(())
}

/// A run that begins while the controller is away says what it waits for, and begins when there is one.
#[test]
fn a_run_that_begins_waits_for_its_controller() -> Result<()> {
    let mut rack = Controller::start()?;
    let _node = rack.node("first", "shelf")?;
    rack.until("first", "up")?;
    rack.running.signal(libc::SIGKILL);
    ensure!(eventually(LIMIT, || !rack.running.alive()));
    let work = rack.work()?;
    let waits = || work.stderr().contains("the run begins when a controller answers");
    ensure!(eventually(LIMIT, || waits() || !work.alive()) && work.alive(), "{}", work.stderr());
    rack.again()?;
    is_ready(&work)?;
    ends_sound(work)?;
    Ok(())
}

/// A rack without room says who holds it.
#[test]
fn a_full_rack_says_who_holds_it() -> Result<()> {
    let rack = Controller::start()?;
    let node = Node::start("64M", &["--controller", &rack.at, "--name", "small", "--domain", "shelf"])?;
    rack.until("small", "up")?;
    let work = rack.work()?;
    is_ready(&work)?;
    // The run says what it holds, and the node that it has nothing left, each with its next beat.
    let holds = || {
        let lent = rack.of("small", "lent").is_ok_and(|lent| lent.as_u64() == Some(64 << 20));
        lent && rack.rack().is_ok_and(|rack| rack["runs"][0]["figures"]["far"].as_u64() > Some(0))
    };
    ensure!(eventually(LIMIT, holds), "{}", rack.rack()?);
    let refused = rack.work()?.wait(LIMIT)?;
    let says = ["1 up, of these 1 full", "most of it is held by keeps_checking"];
    ensure!(refused.code() == 72 && says.iter().all(|text| refused.stderr.contains(text)), "{refused:?}");
    ends_sound(work)?;
    drop(node);
    Ok(())
}

/// Copies are never in one failure domain while another has room. When the last node of the other domain goes they are
/// made there all the same, which is said; they move apart when it is back.
#[test]
fn a_mirror_keeps_to_two_failure_domains() -> Result<()> {
    let rack = Controller::start()?;
    let _shelf1 = (rack.node("first", "shelf1")?, rack.node("second", "shelf1")?);
    let _shelf2 = rack.node("third", "shelf2")?;
    let work = working(&["--stats", "none", "--transport", "tcp", "--protect", "mirror", "--controller", &rack.at])?;
    is_ready(&work)?;
    let lent = |name: &str| rack.of(name, "lent").map(|lent| lent.as_u64().unwrap_or(0));
    let apart = || Ok::<_, anyhow::Error>(lent("third")? > 0 && lent("first")? + lent("second")? == lent("third")?);
    ensure!(eventually(LIMIT, || apart().unwrap_or(false)), "{}", rack.rack()?);
    let says = |text: &str| eventually(LIMIT, || work.stderr().contains(text));
    rack.farmem(&["drain", "third"])?.success()?;
    ensure!(says("are in failure domain shelf1: no node of another has room"), "{}", work.stderr());
    let shown = rack.farmem(&["status"])?.success()?;
    ensure!(shown.stdout_tail().contains("(in one failure domain"), "{shown:?}");
    rack.farmem(&["undrain", "third"])?.success()?;
    ensure!(says("are in two failure domains again"), "{}", work.stderr());
    ensure!(eventually(LIMIT, || apart().unwrap_or(false)), "{}", rack.rack()?);
    ends_sound(work)?;
    Ok(())
}

/// Of how many bytes both copies are in one failure domain, as `top` shows a run.
fn together_of(work: &Running) -> Result<u64> {
    let mut command = Command::new(binary());
    command.args(["top", "--json", "--interval", "100ms"]);
    let view: Value = serde_json::from_slice(&process::run(command, LIMIT)?.success()?.stdout)?;
    let mut runs = view["runs"].as_array().into_iter().flatten();
    let run = runs.find(|run| run["supervisor"] == work.pid()).context("the run is not shown")?;
    run["together"].as_u64().context("no figure")
}

/// Without a controller nodes say their domains themselves; what the run says outweighs that.
#[test]
fn nodes_say_their_failure_domains_and_runs_know_better() -> Result<()> {
    let domains = ["shelf1", "shelf1", "shelf2"];
    let nodes = domains.iter().map(|domain| Node::start("256M", &["--domain", domain])).collect::<Result<Vec<_>>>()?;
    for (named, together) in [("", false), ("@rack7", true)] {
        let mut options = vec!["--stats".into(), "json".into(), "--transport".into(), "tcp".into()];
        options.extend(["--protect".into(), "mirror".into()]);
        for node in &nodes {
            options.extend(["--node".into(), format!("{}{named}", node.by_tcp())]);
        }
        let options: Vec<&str> = options.iter().map(String::as_str).collect();
        let work = working(&options)?;
        is_ready(&work)?;
        let told = || work.stderr().contains("are in failure domain rack7");
        if together {
            ensure!(eventually(LIMIT, told), "{}", work.stderr());
            let published = || together_of(&work).is_ok_and(|bytes| bytes > 0);
            ensure!(eventually(LIMIT, published), "no level is published: {}", work.stderr());
        } else {
            // A level is published once a second.
            std::thread::sleep(Duration::from_millis(1500));
        }
        ensure!(told() == together, "{}", work.stderr());
        let (stats, said) = split_stats(&ends_sound(work)?);
        let bytes = counter(&stats.context("no figures")?, "together_bytes");
        ensure!((bytes > 0) == together, "{bytes}: {said}");
    }
    Ok(())
}

#[test]
fn a_rack_says_who_is_there_and_why_nothing_is_given() -> Result<()> {
    let rack = Controller::start()?;
    let none = rack.work()?.wait(LIMIT)?;
    ensure!(none.code() == 72 && none.stderr.contains("has no node with room"), "{none:?}");
    let node = rack.node("only", "shelf")?;
    // Another of its name, at another port, is told so and lends on.
    let twin = Node::start("64M", &["--controller", &rack.at, "--name", "only"])?;
    ensure!(
        eventually(LIMIT, || twin.running.stderr().contains("give this one a --name")),
        "{}",
        twin.running.stderr()
    );
    ensure!(twin.running.alive());
    drop(twin);
    // A node that is stopped is late, then down, then back.
    let begun = Instant::now();
    node.running.signal(libc::SIGSTOP);
    rack.until("only", "down")?;
    ensure!(begun.elapsed() >= Duration::from_millis(1500), "{:?}", begun.elapsed());
    node.running.signal(libc::SIGCONT);
    rack.until("only", "up")?;
    // One that is there is not forgotten; one that is killed may be.
    let refused = rack.farmem(&["forget", "only"])?;
    ensure!(refused.code() == 64 && refused.stderr.contains("is up"), "{refused:?}");
    node.running.signal(libc::SIGKILL);
    rack.until("only", "down")?;
    rack.farmem(&["forget", "only"])?.success()?;
    ensure!(rack.rack()?["nodes"].as_array().is_some_and(Vec::is_empty));
    let unknown = rack.farmem(&["drain", "only"])?;
    ensure!(unknown.code() == 64 && unknown.stderr.contains("no node of this rack"), "{unknown:?}");
    Ok(())
}

#[test]
fn a_controller_takes_orders_from_the_network_only_if_told() -> Result<()> {
    let mut command = Command::new(binary());
    command.args(["controller", "--listen", "0.0.0.0:0"]);
    let refused = process::run(command, LIMIT)?;
    ensure!(refused.code() == 64 && refused.stderr.contains("--open"), "{refused:?}");
    // What is no controller is named as such; what is not there, too.
    let node = Node::start("64M", &[])?;
    for (at, why) in
        [(node.metrics_address(), "is not a farmem controller"), ("127.0.0.1:1".into(), "cannot be reached")]
    {
        let mut command = Command::new(binary());
        command.args(["status", "--controller", &at]);
        let refused = process::run(command, LIMIT)?;
        ensure!(refused.code() == 72 && refused.stderr.contains(why), "{at}: {refused:?}");
        ensure!(refused.stderr.lines().count() == 1, "{refused:?}");
    }
    Ok(())
}

/// What Prometheus reads at an address.
fn metrics(at: &str) -> Result<String> {
    let mut stream = TcpStream::connect(at)?;
    stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n")?;
    let mut said = String::new();
    stream.read_to_string(&mut said)?;
    Ok(said)
}

/// Every metric that the dashboard shows is told by a controller or a node; and a run's figures are in `top`.
#[test]
fn the_dashboard_and_top_show_what_is_told() -> Result<()> {
    let rack = Controller::start()?;
    let node = rack.node("first", "shelf1")?;
    let work = rack.work()?;
    is_ready(&work)?;
    let told = || metrics(&rack.at).is_ok_and(|told| told.contains("farmem_rack_run_fetch_p99_ns{"));
    ensure!(eventually(LIMIT, told), "{}", metrics(&rack.at)?);
    let board: Value = serde_json::from_str(include_str!("../../docs/grafana/rack.json"))?;
    let targets = board["panels"].as_array().context("no panels")?.iter().flat_map(|panel| panel["targets"].as_array());
    let mut shown = BTreeSet::new();
    for target in targets.flatten() {
        let asks = target["expr"].as_str().context("a target asks nothing")?;
        let words = asks.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        shown.extend(words.filter(|word| word.starts_with("farmem_")).map(String::from));
    }
    ensure!(shown.len() >= 20, "{shown:?}");
    // Some are told with a node's or a run's next beat.
    let untold = || -> Result<Vec<&String>> {
        let all = metrics(&rack.at)? + &metrics(&node.metrics_address())?;
        let names: BTreeSet<&str> = all.lines().filter_map(|line| line.split(['{', ' ']).next()).collect();
        Ok(shown.iter().filter(|name| !names.contains(name.as_str())).collect())
    };
    ensure!(eventually(LIMIT, || untold().is_ok_and(|names| names.is_empty())), "nobody tells {:?}", untold()?);
    let top = rack.farmem(&["top", "--rack", "--once"])?.success()?;
    for text in ["first", "p99.9", "keeps_checking", "whole", "joins, in shelf1"] {
        ensure!(top.stdout_tail().contains(text), "{text}: {top:?}");
    }
    ends_sound(work)?;
    Ok(())
}

/// Its page, in a browser: what it shows is what its nodes say; names are text, never markup.
#[test]
fn the_page_shows_the_rack() -> Result<()> {
    let rack = Controller::start()?;
    let _node = rack.node("<b>shelf1</b>", "rack7")?;
    rack.farmem(&["drain", "<b>shelf1</b>"])?.success()?;
    let browser = ["chromium-headless-shell", "chromium"]
        .into_iter()
        .find(|name| Command::new(name).arg("--version").output().is_ok_and(|out| out.status.success()));
    let dir = TempDir::new("browser")?;
    let mut command = Command::new(browser.context("no browser: tests/peers.sh installs chromium-headless-shell")?);
    command.args(["--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=4000", "--dump-dom"]);
    command.arg(format!("--user-data-dir={}", dir.path().display())).arg(format!("http://{}/", rack.at));
    let shown = process::run(command, LIMIT)?.success()?;
    let page = String::from_utf8_lossy(&shown.stdout);
    for text in ["1 of 1 nodes up", "rack7", "&lt;b&gt;shelf1&lt;/b&gt;", "Open again", "1.0 GiB", "is to be emptied"] {
        ensure!(page.contains(text), "{text} is not on the page:\n{page}\n{}", shown.stderr);
    }
    ensure!(!page.contains("<b>shelf1"), "{page}");
    // A keyboard reaches every button and every table that may be wider than the screen.
    ensure!(page.matches("<button").count() == 1 && page.matches("tabindex=\"0\"").count() == 3, "{page}");
    // It is drawn on a phone, and as the viewer's system says: light or dark.
    let mut drawn = Vec::new();
    for scheme in ["0", "1"] {
        let file = dir.path().join(format!("{scheme}.png"));
        let mut command = Command::new(browser.context("no browser")?);
        command.args([
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--virtual-time-budget=4000",
            "--window-size=390,900",
        ]);
        command.arg(format!("--blink-settings=preferredColorScheme={scheme}"));
        command
            .arg(format!("--screenshot={}", file.display()))
            .arg(format!("--user-data-dir={}", dir.path().display()));
        command.arg(format!("http://{}/", rack.at));
        process::run(command, LIMIT)?.success()?;
        drawn.push(std::fs::read(file)?);
    }
    // Bytes 16 to 24 of a PNG are its width and height.
    let size = [0, 0, 1, 134, 0, 0, 3, 132];
    ensure!(drawn.iter().all(|image| image.get(16..24) == Some(&size[..])), "not the size of a phone");
    ensure!(drawn[0] != drawn[1], "the dark page is the light one");
    Ok(())
}
