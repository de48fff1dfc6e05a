//! A rack in network namespaces, as `farmem lab up` makes it: a program there, a node that is killed meanwhile, and
//! nothing that is left.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use farmem_tests::farmem::lab;
use farmem_tests::process::{self, eventually};

/// Longer than anything here takes on a machine that is busy with other things.
const LIMIT: Duration = Duration::from_secs(60);

/// Whether this machine can have such a rack. Says what is missing.
fn can() -> bool {
    let namespace = format!("farmem-test-{}", std::process::id());
    let made = Command::new("ip").args(["netns", "add", &namespace]).output();
    let filtered = Command::new("ip").args(["netns", "exec", &namespace, "iptables", "-w", "-L"]).output();
    let _ = Command::new("ip").args(["netns", "delete", &namespace]).output();
    let can = [made, filtered].into_iter().all(|ran| ran.is_ok_and(|ran| ran.status.success()));
    if !can {
        eprintln!("skipped: a rack in network namespaces: needs root, ip and iptables");
    }
    can
}

fn named(arguments: &[&str]) -> Command {
    let mut command = Command::new(lab());
    command.args(arguments);
    command
}

#[test]
fn a_program_in_the_rack_outlives_a_node() -> Result<()> {
    if !can() {
        return Ok(());
    }
    // Its last lines come when the node is dead.
    let sort = "seq 200000 | sort -R --random-source=/dev/zero -S 64M >/dev/null; touch $XDG_RUNTIME_DIR/begun; \
                { seq 399000; until [ -e $XDG_RUNTIME_DIR/killed ]; do sleep 0.05; done; seq 399001 400000; } | \
                sort -R --random-source=/dev/zero -S 128M | sort -n -S 128M | md5sum";
    let native = Command::new("sh").args(["-c", "seq 400000 | md5sum"]).output()?;
    let mut up = named(&["up", "--nodes", "3", "--etcd", "--lend", "512M", "--"]);
    up.args(["farmem", "run", "--local", "8M", "--protect", "mirror", "--stats", "none", "--", "sh", "-c", sort]);
    let up = process::spawn(up)?;
    let begun = || Path::new("/run/farmem-lab/h1/begun").exists() || !up.alive();
    ensure!(eventually(LIMIT, begun), "the program has not begun: {}", up.stderr());
    // One of the controllers and one of etcd's members go, packets are lost, and a node's answers come late.
    let disk = Path::new("/run/farmem-lab/h1/disk");
    for (machine, fault) in [
        ("e1", "kill"),
        ("c1", "kill"),
        ("h1", "loss=1%"),
        ("h1", "full"),
        ("n2", "delay=5ms"),
        ("n2", "heal"),
        ("h1", "heal"),
        ("e1", "start"),
        ("n1", "kill"),
    ] {
        let happens = named(&["fault", machine, fault]).output()?;
        ensure!(happens.status.success(), "{machine} {fault}: {}", String::from_utf8_lossy(&happens.stderr));
        let probe = disk.join("probe");
        let is_full = std::fs::write(&probe, vec![1; 1 << 20]).is_err();
        // What stays would make room for the next one.
        std::fs::remove_file(&probe)?;
        ensure!(fault != "full" || is_full, "a full disk takes a file");
        ensure!(fault != "heal" || machine != "h1" || !is_full, "the disk has no room");
    }
    std::fs::write("/run/farmem-lab/h1/killed", "")?;
    let ended = up.wait(LIMIT).context("the rack did not end with its command")?;
    assert_eq!((ended.code(), &ended.stdout), (0, &native.stdout), "{}", ended.stderr);
    let left = Command::new("ip").args(["netns", "list"]).output()?;
    assert!(!String::from_utf8_lossy(&left.stdout).contains("farmem-n1"), "namespaces are left");
    assert!(!Path::new("/run/farmem-lab").exists());
    let none = named(&["fault", "n1", "cut"]).output()?;
    assert!(String::from_utf8_lossy(&none.stderr).contains("farmem-lab up makes one"));
    Ok(())
}
