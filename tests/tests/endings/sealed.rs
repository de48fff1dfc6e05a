//! `--seal`: nodes that are not trusted. A real node serves; this test is its root, and reads and writes the
//! memory that it lends: it alters, empties, swaps, keeps old pages, and gives a program another's. Each is
//! noticed by the program, which ends with one line before it has used a byte. Beside it: what a node can
//! read; two copies, repair and the loss of nodes; real programs, byte for byte.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use farmem_tests::compile;
use farmem_tests::farmem::{Far, Node, same_as_native, split_stats};
use farmem_tests::long;
use farmem_tests::lost::Lost;
use farmem_tests::process::{self, TempDir, eventually};

use crate::disk;
use crate::mirror::{KILLED, at_work, by_tcp, mirrored, nodes, redis_loses, sound_with_one};
use crate::{BUSY, FORKED, LIMIT, Scenario, Work, scenario, together};

const PAGE: usize = 4096;
const LINE: usize = 64;
/// The ways of sealing.
const WHOLE: &str = "--seal";
const BY_LINES: &str = "--seal=lines";
/// Of a program that stands still until it is told to look at all of its memory.
const WAITING: &[&str] = &["16", "1", "idle"];
const ALTERED: i32 = farmem_run::exit::ALTERED;

/// A node whose root is hostile.
struct Hostile {
    node: Node,
    memory: File,
}

/// Pages that are not empty, by their addresses in the node.
type Pages = BTreeMap<u64, Vec<u8>>;

impl Hostile {
    fn start() -> Result<Hostile> {
        let node = Node::start("192M", &["--rdma", "off"])?;
        let memory = format!("/proc/{}/mem", node.running.pid());
        let memory = OpenOptions::new().read(true).write(true).open(memory).context("the node's memory")?;
        Ok(Hostile { node, memory })
    }

    fn sealed(&self) -> Far {
        self.sealed_by(WHOLE)
    }

    fn sealed_by(&self, option: &str) -> Far {
        Far::local("4M").with(&[option]).on(&self.node.by_tcp())
    }

    /// All that it holds.
    fn pages(&self) -> Result<Pages> {
        let maps = std::fs::read_to_string(format!("/proc/{}/maps", self.node.running.pid()))?;
        let mut pages = Pages::new();
        for line in maps.lines().filter(|line| line.contains("farmem-slab") && line.contains("rw")) {
            let (from, to) = line.split(' ').next().and_then(|range| range.split_once('-')).context("a range")?;
            let (from, to) = (u64::from_str_radix(from, 16)?, u64::from_str_radix(to, 16)?);
            // Its own tables are smaller.
            if to - from < farmem_protocol::addr::SLAB_BYTES {
                continue;
            }
            let mut bytes = vec![0; (to - from) as usize];
            self.memory.read_exact_at(&mut bytes, from)?;
            let each = bytes.chunks(PAGE).enumerate().filter(|(_, page)| page.iter().any(|byte| *byte != 0));
            pages.extend(each.map(|(at, page)| (from + (at * PAGE) as u64, page.to_vec())));
        }
        Ok(pages)
    }

    /// Waits until the node has done all that was asked of it: a program that was stopped may have
    /// posted a page. Then nothing is left in its sockets, and each of its threads sleeps.
    fn rests(&self) -> Result<()> {
        let port = format!(":{:04X}", self.node.tcp.port());
        // Of each line: number, local and remote address, state, bytes to be sent and to be read.
        let waits = |line: &str| {
            let words: Vec<&str> = line.split_whitespace().collect();
            let Some((sent, come)) = words.get(4).and_then(|queues| queues.split_once(':')) else { return false };
            words[1].ends_with(&port) && come != "00000000" || words[2].ends_with(&port) && sent != "00000000"
        };
        let unread = || std::fs::read_to_string("/proc/net/tcp").map(|all| all.lines().any(waits));
        let empty = || unread().is_ok_and(|unread| !unread);
        let rests = || empty() && process::asleep(self.node.running.pid()) && empty();
        ensure!(eventually(LIMIT, rests), "the node does not come to rest");
        Ok(())
    }

    fn put(&self, pages: &Pages) -> Result<()> {
        pages.iter().try_for_each(|(at, page)| Ok(self.memory.write_all_at(page, *at)?))
    }
}

/// What a hostile node makes of the pages that it holds now, of those that it held earlier, and of another
/// program's.
type Attack = fn(now: &Pages, earlier: &Pages, others: &Pages) -> Pages;

fn each(pages: &Pages, change: impl Fn(&mut Vec<u8>)) -> Pages {
    let mut pages = pages.clone();
    pages.values_mut().for_each(change);
    pages
}

/// Pages in each other's places.
fn placed(at: impl Iterator<Item = u64>, pages: impl Iterator<Item = Vec<u8>>) -> Pages {
    at.zip(pages).collect()
}

const OTHERS: &str = "another program's pages";

const ATTACKS: &[(&str, Attack)] = &[
    ("a bit is altered", |now, _, _| each(now, |page| page[1234] ^= 4)),
    ("all is zero", |now, _, _| each(now, |page| page.fill(0))),
    ("a tail is cut off", |now, _, _| each(now, |page| page[PAGE - 16..].fill(0))),
    ("slots are swapped", |now, _, _| placed(now.keys().copied(), now.values().skip(1).cloned())),
    ("old pages come back", |now, earlier, _| {
        earlier.iter().filter(|(at, _)| now.contains_key(at)).map(|(at, page)| (*at, page.clone())).collect()
    }),
    ("every other line is old", |now, earlier, _| {
        let both = now.iter().filter_map(|(at, page)| Some((at, page, earlier.get(at)?)));
        let mixed = both.map(|(at, page, old)| {
            let pairs = page.chunks(LINE).zip(old.chunks(LINE)).enumerate();
            let lines = pairs.flat_map(|(nth, (new, old))| if nth % 2 == 0 { new } else { old });
            (*at, lines.copied().collect())
        });
        mixed.collect()
    }),
    (OTHERS, |now, _, others| placed(now.keys().copied(), others.values().cloned().cycle())),
];

/// A program has written most of its memory twice, so that its node holds new pages and has seen
/// old ones. It stands still while the node's root does as it likes. Then it looks at its memory.
fn attacked(attack: Attack, needs_others: bool, sealed: Option<&str>) -> Result<()> {
    let hostile = Hostile::start()?;
    let far = match sealed {
        Some(option) => hostile.sealed_by(option),
        None => Far::local("4M").with(&["--transport", "tcp"]).on(&hostile.node.by_tcp()),
    };
    // Another member's memory, which ends with it: it is remembered.
    let mut others = Pages::new();
    if needs_others {
        let other = Work::start(&far, WAITING)?;
        others = hostile.pages()?;
        other.sound()?;
    }
    let work = Work::start(&far, &["16", "1"])?;
    let earlier = hostile.pages()?;
    let is_new = |(at, page): &(&u64, &Vec<u8>)| earlier.get(at).is_some_and(|old| old != *page);
    let written = || hostile.pages().is_ok_and(|now| now.iter().filter(is_new).count() > earlier.len() / 2);
    ensure!(eventually(LIMIT, || written() || !work.run.alive()), "nothing is written: {}", work.run.stderr());
    process::send(work.program, libc::SIGSTOP);
    hostile.rests()?;
    hostile.put(&attack(&hostile.pages()?, &earlier, &others))?;
    process::send(work.program, libc::SIGCONT);
    let outcome = work.run.wait(LIMIT)?;
    let said = String::from_utf8_lossy(&outcome.stdout).into_owned();
    let (_, rest) = split_stats(&outcome.stderr);
    if sealed.is_none() {
        ensure!(outcome.code() == 99 && said.contains("WRONG"), "the attack does nothing: {outcome:?}");
        return Ok(());
    }
    ensure!(outcome.code() == ALTERED && !said.contains("WRONG") && !said.contains("sound"), "{outcome:?}");
    let told = rest.contains(&hostile.node.by_tcp()) && rest.contains("altered or old") && rest.contains(", slot ");
    ensure!(rest.lines().count() == 1 && told, "{rest}");
    Ok(())
}

#[test]
fn whatever_a_hostile_node_does_is_noticed() -> Result<()> {
    let scenarios = |attacks: &'static [(&'static str, Attack)], sealed: Option<&'static str>| -> Vec<Scenario> {
        let one = |(name, attack): &'static (&'static str, Attack)| {
            scenario(format!("{name}, {sealed:?}"), move || attacked(*attack, *name == OTHERS, sealed))
        };
        attacks.iter().map(one).collect()
    };
    together(scenarios(ATTACKS, Some(WHOLE)))?;
    // A node that acknowledges changed lines and does not lay them has old pages, or old lines.
    let old = ATTACKS.iter().position(|(name, _)| name.starts_with("old")).context("an attack by old pages")?;
    together(scenarios(if long() { ATTACKS } else { &ATTACKS[old..old + 2] }, Some(BY_LINES)))?;
    // Without the option each of them does harm: they are attacks.
    together(scenarios(if long() { ATTACKS } else { &ATTACKS[..1] }, None))
}

/// A node that keeps all that it ever saw of a program has none of its bytes, nor two pages that are alike.
#[test]
fn a_node_that_records_learns_nothing() -> Result<()> {
    const PROGRAM: &str = "import sys,time\nb=bytearray(b'In plain sight: sixteen words. ' * 500000)\n\
        [b.__setitem__(i, b[i]) for i in range(0, len(b), 4096)]\nprint(sum(b[::4096]), flush=True)\nsys.stdin.read()";
    let plain = |pages: &Pages| pages.values().filter(|page| page.windows(9).any(|seen| seen == b"In plain ")).count();
    let holds = |sealed: bool| -> Result<Pages> {
        let hostile = Hostile::start()?;
        let far = if sealed {
            hostile.sealed()
        } else {
            Far::local("4M").with(&["--transport", "tcp"]).on(&hostile.node.by_tcp())
        };
        let mut program = Command::new("/usr/bin/python3");
        program.args(["-c", PROGRAM]);
        let mut command = far.command(&program);
        command.stdin(Stdio::piped());
        let run = process::spawn(command)?;
        ensure!(eventually(LIMIT, || run.stdout().contains(&b'\n') || !run.alive()), "{}", run.stderr());
        hostile.pages()
    };
    let (open, sealed) = (holds(false)?, holds(true)?);
    ensure!(open.len() > 1000 && plain(&open) > 1000, "{} of {} pages can be read", plain(&open), open.len());
    ensure!(sealed.len() > 1000 && plain(&sealed) == 0, "{} of {} pages can be read", plain(&sealed), sealed.len());
    let ones: u64 = sealed.values().flatten().map(|byte| u64::from(byte.count_ones())).sum();
    let share = ones as f64 / (sealed.len() * PAGE * 8) as f64;
    ensure!((share - 0.5).abs() < 0.001, "it does not look random: {share} of the bits are set");
    let different: std::collections::BTreeSet<&[u8]> = sealed.values().map(|page| &page[..16]).collect();
    ensure!(different.len() == sealed.len(), "equal pages are sealed alike");
    Ok(())
}

/// Alters all that a node holds while a program that has a second copy stands still: of several nodes, the one that it
/// has read from most. The program goes on, finds all as it was, and says in one line which node is given up.
fn goes_on_without(nodes: &[Hostile], far: &Far, attack: Attack) -> Result<()> {
    let work = Work::start(far, &["16", "1"])?;
    let read = |hostile: &Hostile| hostile.node.metric("farmem_node_read_bytes_total").unwrap_or_default();
    std::thread::sleep(Duration::from_millis(400));
    process::send(work.program, libc::SIGSTOP);
    nodes.iter().try_for_each(Hostile::rests)?;
    let hostile = nodes.iter().max_by(|one, other| read(one).total_cmp(&read(other))).context("a node")?;
    let pages = hostile.pages()?;
    ensure!(pages.len() > 1000, "{} pages are there", pages.len());
    hostile.put(&attack(&pages, &Pages::new(), &Pages::new()))?;
    let before = read(hostile);
    process::send(work.program, libc::SIGCONT);
    // A disk may answer all that is read. A node that is late on a busy machine is asked again after a while, and what
    // it says too late is not looked at: so this waits for one answer in time.
    let limit = if nodes.len() == 1 { Duration::from_secs(1) } else { LIMIT };
    eventually(limit, || work.run.stderr().contains("the program goes on") || !work.run.alive());
    process::send(work.program, libc::SIGUSR1);
    let outcome = work.run.wait(LIMIT)?;
    let said = String::from_utf8_lossy(&outcome.stdout).into_owned();
    ensure!(outcome.code() == 0 && said.contains("\nsound "), "{outcome:?}");
    let (_, rest) = split_stats(&outcome.stderr);
    let told = rest.contains(&format!("{} is lost: it gave a page back altered or old (slab ", hostile.node.by_tcp()));
    let told = told && rest.lines().count() == 1 && rest.contains("; the program goes on with one copy of ");
    let unread = nodes.len() == 1 || read(hostile) == before;
    ensure!(told || unread && rest.is_empty(), "{rest}");
    Ok(())
}

/// The other copy is at another node, or on disk. The hostile node is given up by the first page that does not open.
#[test]
fn a_page_that_does_not_open_is_taken_from_the_other_copy() -> Result<()> {
    let sealed_by = |option: &'static str, (name, attack): &'static (&'static str, Attack)| {
        scenario(format!("mirror, {name}, {option}"), move || {
            let nodes = [Hostile::start()?, Hostile::start()?];
            let far = mirrored("4M", &nodes.each_ref().map(|hostile| hostile.node.by_tcp())).with(&[option]);
            goes_on_without(&nodes, &far, *attack)
        })
    };
    let disk = scenario("disk", || {
        let (hostile, dir) = (Hostile::start()?, TempDir::new("sealed")?);
        let far = hostile.sealed().with(&["--protect", &format!("disk={}", dir.path().display())]);
        goes_on_without(&[hostile], &far, ATTACKS[0].1)
    });
    let attacks = if long() { &ATTACKS[..4] } else { &ATTACKS[..1] };
    let whole = attacks.iter().map(|attack| sealed_by(WHOLE, attack));
    together(whole.chain([sealed_by(BY_LINES, &ATTACKS[0]), disk]).collect())
}

/// One of three nodes alters all pages that it has, while pages leave: whole, or by lines of what the nodes hold. No
/// parity is computed from an altered page, so that the program finds all its bytes.
#[test]
fn parity_is_of_true_pages_beside_a_node_that_alters() -> Result<()> {
    let beside = |option: &'static str, arguments: &'static [&'static str]| {
        scenario(format!("{option}, {arguments:?}"), move || {
            let nodes = [Hostile::start()?, Hostile::start()?, Hostile::start()?];
            let far = Far::local("4M").with(&[option, "--protect", "ec:2+1"]);
            let far = nodes.iter().fold(far, |far, hostile| far.on(&hostile.node.by_tcp()));
            let work = Work::start(&far, arguments)?;
            let metric = |hostile: &Hostile, name: &str| hostile.node.metric(name).unwrap_or_default();
            let lines = |hostile: &Hostile| metric(hostile, "farmem_node_record_bytes_total");
            let written = |hostile: &Hostile| metric(hostile, "farmem_node_write_bytes_total") + lines(hostile);
            let enough = |hostile: &Hostile| lines(hostile) > 50_000.0 || !arguments.contains(&"few");
            let changed = || nodes.iter().all(enough) || !work.run.alive();
            ensure!(eventually(LIMIT, changed), "no changed lines: {}", work.run.stderr());
            process::send(work.program, libc::SIGSTOP);
            nodes.iter().try_for_each(Hostile::rests)?;
            // The parity is written with the pages of both others. So this node has pages.
            let hostile =
                nodes.iter().min_by(|one, other| written(one).total_cmp(&written(other))).context("a node")?;
            hostile.put(&each(&hostile.pages()?, |page| page[1234] ^= 4))?;
            process::send(work.program, libc::SIGCONT);
            let told = || work.run.stderr().contains("parity stands in for") || !work.run.alive();
            ensure!(eventually(LIMIT, told), "nobody says that a node is given up: {}", work.run.stderr());
            process::send(work.program, libc::SIGUSR1);
            let outcome = work.run.wait(LIMIT)?;
            let said = String::from_utf8_lossy(&outcome.stdout).into_owned();
            let (_, rest) = split_stats(&outcome.stderr);
            ensure!(outcome.code() == 0 && said.contains("\nsound "), "{outcome:?}");
            let names = rest.contains(&hostile.node.by_tcp()) && rest.contains("altered or old");
            ensure!(names && rest.lines().count() == 1, "{rest}");
            Ok(())
        })
    };
    together(vec![beside(BY_LINES, &["16", "1", "few"]), beside(WHOLE, &["16", "1"]), beside(WHOLE, &["16", "2"])])
}

/// New pages take the places of others, beside pages that a node has altered. Their parity is of the true ones.
#[test]
fn new_pages_beside_altered_ones_leave_these_what_they_were() -> Result<()> {
    let nodes = [Hostile::start()?, Hostile::start()?, Hostile::start()?];
    let far = Far::local("4M").with(&[WHOLE, "--protect", "ec:2+1"]);
    let far = nodes.iter().fold(far, |far, hostile| far.on(&hostile.node.by_tcp()));
    let mut program = Command::new(compile::c("refills", &[])?);
    program.arg("12");
    let work = Work::of(process::spawn(far.command(&program))?)?;
    nodes.iter().try_for_each(Hostile::rests)?;
    // The parity is written with the pages of both others. So this node has pages.
    let written = |hostile: &&Hostile| hostile.node.metric("farmem_node_write_bytes_total").unwrap_or_default();
    let hostile = nodes.iter().min_by(|one, other| written(one).total_cmp(&written(other))).context("a node")?;
    hostile.put(&each(&hostile.pages()?, |page| page[1234] ^= 4))?;
    process::send(work.program, libc::SIGUSR1);
    let outcome = work.run.wait(LIMIT)?;
    let said = String::from_utf8_lossy(&outcome.stdout).into_owned();
    ensure!(outcome.code() == 0 && said.contains("\nsound "), "{outcome:?}");
    Ok(())
}

/// One node is stopped and given up, and then the other one alters what it has. The first is the
/// only one with a sound copy: the program waits for it, and goes on when it does.
fn waits_for_the_other(option: &str) -> Result<()> {
    let nodes = [Hostile::start()?, Hostile::start()?];
    let addresses = nodes.each_ref().map(|hostile| hostile.node.by_tcp());
    let [stopped, hostile] = &nodes;
    let work = at_work(&mirrored("4M", &addresses).with(&[option]), &["16", "1"])?;
    process::send(stopped.node.running.pid(), libc::SIGSTOP);
    let is_lost = || work.run.stderr().contains("the program goes on with one copy") || !work.run.alive();
    ensure!(eventually(LIMIT, is_lost), "the stopped node is not given up: {}", work.run.stderr());
    process::send(work.program, libc::SIGSTOP);
    hostile.rests()?;
    // What changed since is there alone.
    let kept: std::collections::BTreeSet<Vec<u8>> = stopped.pages()?.into_values().collect();
    let both: Pages = hostile.pages()?.into_iter().filter(|(_, page)| kept.contains(page)).collect();
    ensure!(both.len() > 1000, "{} pages are at both", both.len());
    hostile.put(&each(&both, |page| page[1234] ^= 4))?;
    process::send(work.program, libc::SIGCONT);
    std::thread::sleep(Duration::from_secs(1));
    ensure!(work.run.alive(), "it does not wait: {:?}", work.run.wait(LIMIT)?);
    process::send(stopped.node.running.pid(), libc::SIGCONT);
    let done = || work.run.stderr().contains("gave a page back altered or old") || !work.run.alive();
    ensure!(eventually(LIMIT, done), "it does not go on: {}", work.run.stderr());
    process::send(work.program, libc::SIGUSR1);
    let outcome = work.run.wait(LIMIT)?;
    let said = String::from_utf8_lossy(&outcome.stdout).into_owned();
    ensure!(outcome.code() == 0 && said.contains("\nsound "), "{outcome:?}");
    let (_, rest) = split_stats(&outcome.stderr);
    let line = |of: &Hostile, what: &str| rest.contains(&format!("{} is {what}", of.node.by_tcp()));
    ensure!(line(stopped, "back with the pages that it had"), "{rest}");
    ensure!(line(hostile, "lost: it gave a page back altered or old"), "{rest}");
    Ok(())
}

#[test]
fn a_stopped_node_with_the_only_sound_copy_is_waited_for() -> Result<()> {
    together([WHOLE, BY_LINES].map(|option| scenario(option, move || waits_for_the_other(option))).into())
}

/// Two hostile nodes: the program ends as with one, before a byte is used.
#[test]
fn a_page_of_which_no_copy_opens_ends_the_program() -> Result<()> {
    let nodes = [Hostile::start()?, Hostile::start()?];
    let far = mirrored("4M", &nodes.each_ref().map(|hostile| hostile.node.by_tcp())).with(&["--seal"]);
    let work = Work::start(&far, WAITING)?;
    for hostile in &nodes {
        hostile.put(&each(&hostile.pages()?, |page| page[0] ^= 1))?;
    }
    process::send(work.program, libc::SIGUSR1);
    let outcome = work.run.wait(LIMIT)?;
    let said = String::from_utf8_lossy(&outcome.stdout).into_owned();
    let (_, rest) = split_stats(&outcome.stderr);
    let last = rest.lines().last().unwrap_or_default();
    ensure!(outcome.code() == ALTERED && !said.contains("WRONG") && !said.contains("sound"), "{outcome:?}");
    ensure!(
        rest.lines().count() <= 2 && last.contains("altered or old") && last.contains("it does not open"),
        "{rest}"
    );
    Ok(())
}

/// Two copies: one is lost and made again elsewhere, from sealed bytes; then the other of the first two is lost.
#[test]
fn sealed_copies_are_lost_and_made_again() -> Result<()> {
    let goes_on = |arguments: &'static [&'static str]| {
        scenario(format!("{arguments:?}"), move || {
            let nodes = nodes(2)?;
            let work = at_work(&mirrored("4M", &by_tcp(&nodes)).with(&["--seal"]), arguments)?;
            let mut lost = Lost::by(&[work.program, nodes[1].running.pid(), nodes[0].running.pid()]);
            lost.kills(nodes[0].running.pid());
            sound_with_one(work, &nodes[0].by_tcp(), KILLED, &mut lost)
        })
    };
    let again = scenario("repair", || {
        let mut nodes = nodes(3)?;
        let work = Work::start(&mirrored("4M", &by_tcp(&nodes)).with(&["--seal"]), &["24", "2"])?;
        let lent = |node: &Node| node.metric("farmem_node_lent_bytes");
        let first = nodes.iter().position(|node| lent(node).is_ok_and(|lent| lent > 0.0)).context("nothing is lent")?;
        nodes.remove(first).running.signal(libc::SIGKILL);
        let again = || work.run.stderr().contains("every page has two copies again") || !work.run.alive();
        ensure!(eventually(LIMIT, again), "the copies are not made again: {}", work.run.stderr());
        nodes.remove(0).running.signal(libc::SIGKILL);
        std::thread::sleep(Duration::from_millis(500));
        process::send(work.program, libc::SIGUSR1);
        let outcome = work.run.wait(LIMIT)?;
        ensure!(outcome.code() == 0 && outcome.stderr.contains("goes on with one copy"), "{outcome:?}");
        Ok(())
    });
    let file = scenario("disk", || {
        let (node, dir) = (disk::node()?, TempDir::new("sealed")?);
        let work = Work::start(&disk::on_disk("4M", &dir, &[&node]).with(&["--seal"]), FORKED)?;
        std::thread::sleep(Duration::from_millis(300));
        let mut lost = Lost::by(&[work.program, node.running.pid()]);
        lost.kills(node.running.pid());
        sound_with_one(work, &node.by_tcp(), KILLED, &mut lost)
    });
    together(vec![goes_on(FORKED), again, file])?;
    if long() { together(vec![goes_on(BUSY)]) } else { Ok(()) }
}

/// A node is taken out of the run's list: its slabs move to the other one as they are.
#[test]
fn sealed_pages_are_drained() -> Result<()> {
    let (nodes, dir) = (nodes(2)?, TempDir::new("sealed")?);
    let (list, at) = (dir.path().join("nodes"), by_tcp(&nodes));
    std::fs::write(&list, format!("{}\n{}\n", at[0], at[1]))?;
    let far = Far::local("4M").with(&["--seal", "--node-file"]);
    let far = far.with(&[list.to_str().context("a path")?]);
    let work = Work::start(&far, FORKED)?;
    // The child ends first: slabs that a fork has shared stay where they are.
    process::send(work.child, libc::SIGUSR1);
    ensure!(eventually(LIMIT, || !process::alive(work.child)), "the child does not end");
    std::fs::write(&list, format!("{}\n", at[1]))?;
    let empty = || nodes[0].metric("farmem_node_lent_bytes").is_ok_and(|lent| lent == 0.0) || !work.run.alive();
    ensure!(eventually(LIMIT, empty), "it holds something still: {}", work.run.stderr());
    nodes[0].running.signal(libc::SIGKILL);
    process::send(work.program, libc::SIGUSR1);
    let outcome = work.run.wait(LIMIT)?;
    let said = String::from_utf8_lossy(&outcome.stdout).into_owned();
    ensure!(outcome.code() == 0 && said.contains("\nsound "), "{outcome:?}");
    Ok(())
}

/// Forks of forks, which all write to what they share, and read what others wrote before.
const FORKS: &str = "
import os,sys,hashlib,random
n=12<<20
b=bytearray((bytes(range(251))*(n//251+1))[:n])
def work(seed,depth):
    r=random.Random(seed)
    out=[]
    for round in range(2):
        for i in range(1500): b[r.randrange(n)]=r.randrange(256)
        if depth:
            rd,wr=os.pipe()
            pid=os.fork()
            if pid==0:
                os.write(wr,work(seed*7+round,depth-1).encode())
                os._exit(0)
            for i in range(1500): b[r.randrange(n)]=r.randrange(256)
            os.close(wr)
            told=b''
            while True:
                more=os.read(rd,4096)
                if not more: break
                told+=more
            out.append(told.decode())
            assert os.waitpid(pid,0)[1]==0
            os.close(rd)
    out.append(hashlib.sha256(b).hexdigest()[:16])
    return ' '.join(out)
print(work(1,2))
";

#[test]
fn programs_give_the_same_sealed() -> Result<()> {
    let dir = TempDir::new("sealed")?;
    let lines: String = (0..300_000_u64).map(|i| format!("{:016x}\n", i.wrapping_mul(0x9E37_79B9_7F4A_7C15))).collect();
    std::fs::write(dir.path().join("lines"), lines)?;
    let mut sort = Command::new("sort");
    sort.args(["-S", "64M", "--parallel=2"]).arg(dir.path().join("lines")).env("LC_ALL", "C");
    let mut python = Command::new("/usr/bin/python3");
    python.args(["-c", FORKS]);
    for (program, option) in [(&sort, WHOLE), (&python, WHOLE), (&python, BY_LINES)] {
        let (.., stats) = same_as_native(program, &Far::local("6M").with(&[option]), LIMIT)?;
        let out = farmem_tests::farmem::counter(&stats, "pages_whole");
        ensure!(out > 500, "{program:?}: {out} pages left");
    }
    Ok(())
}

#[test]
fn redis_goes_on_sealed_with_one_of_two_copies() -> Result<()> {
    if !long() {
        return Ok(());
    }
    let nodes = nodes(2)?;
    let far = mirrored("16M", &by_tcp(&nodes)).with(&["--seal"]);
    redis_loses(&far, &[&nodes[0], &nodes[1]], 1, "goes on with one copy of ").map(|_| ())
}

#[test]
fn what_cannot_be_sealed_is_refused() -> Result<()> {
    let refused = |options: &[&str], says: &str| -> Result<()> {
        let far = Far::local("4M").with(if options[0].starts_with(WHOLE) { &[] } else { &[WHOLE] }).with(options);
        let outcome = process::run(far.command(&Command::new("true")), LIMIT)?;
        ensure!(outcome.code() == 64 && outcome.stderr.lines().count() == 1, "{outcome:?}");
        ensure!(outcome.stderr.contains(says), "{outcome:?}");
        Ok(())
    };
    refused(&["--transport", "shm"], "with --transport shm nodes read memory as it is used")?;
    refused(&["--seal=lines", "--dirty", "exact"], "by hashes: not with --dirty exact")?;
    refused(&["--node", "unix:/run/nobody.sock"], "name unix:/run/nobody.sock by HOST:PORT")?;
    Ok(())
}
