//! No key seals two things under one number, whatever a program does: on the wire between a host
//! and a node, and in the pages that a node keeps. The program forks beside threads that write,
//! executes, and loses its connections.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use anyhow::{Result, ensure};
use farmem_sys::gcm;
use farmem_tests::compile;
use farmem_tests::farmem::{Far, Node, binary, far_run};
use farmem_tests::long;
use farmem_tests::process::{self, TempDir};
use farmem_trust::file;

use crate::LIMIT;
use crate::thief::{Heard, Thief};

/// A node that asks for a token, the token's file, and the thief before it.
fn robbed(dir: &TempDir, lend: &str) -> Result<(Node, std::path::PathBuf, Thief)> {
    let [store, token] = ["store.toml", "token"].map(|name| dir.path().join(name));
    let mut create = Command::new(binary());
    create.args(["token", "create", "--tenant", "forks", "--store"]).arg(&store);
    std::fs::write(&token, process::run(create, LIMIT)?.success()?.stdout)?;
    std::fs::set_permissions(&token, Permissions::from_mode(0o600))?;
    let node = Node::guarded(lend, &store)?;
    let thief = Thief::before(node.tcp, file::token(&token)?)?;
    Ok((node, token, thief))
}

/// A run of `nonces` through the thief: what he has heard then.
fn heard_of(arguments: &[&str], options: &[&str], ends_each: u64) -> Result<Heard> {
    let dir = TempDir::new("nonces")?;
    let (_node, token, thief) = robbed(&dir, "8G")?;
    thief.end_each(ends_each);
    let mut program = Command::new(compile::c("nonces", &[])?);
    program.args(arguments);
    let far = Far::local("4M").with(&["--seal", "--grace", "60s", "--token"]).with(&[&token.display().to_string()]);
    let far = far.with(options).on(&thief.at.to_string());
    let (outcome, _) = far_run(&program, &far, 4 * LIMIT)?;
    ensure!(outcome.code() == 0 && outcome.stdout == b"sound\n", "{outcome:?}");
    let heard = std::mem::take(&mut *thief.heard());
    let Heard { joined, rejoined, attached, records, written, .. } = heard;
    println!("{arguments:?}: {joined} joined, {rejoined} again, {attached} queues, {records} records, {written} pages");
    ensure!(heard.wrong.is_empty(), "{} times: {}", heard.wrong.len(), heard.wrong[0]);
    Ok(heard)
}

/// Some hundred children and grandchildren beside threads that write, and programs that are
/// executed anew.
#[test]
fn no_nonce_is_used_twice_across_forks_and_executions() -> Result<()> {
    let (children, count) = if long() { ("60", 60) } else { ("24", 24) };
    let heard = heard_of(&["24", "3", children, "6"], &[], 0)?;
    ensure!(heard.rejoined >= 6 * count && heard.joined > count / 3, "{} {}", heard.rejoined, heard.joined);
    ensure!(heard.attached > 6 * count && heard.written > 20_000, "{} {}", heard.attached, heard.written);
    Ok(())
}

/// Connections end with a record of either end again and again: each is made anew with keys of its
/// own, and what was not acknowledged is sent again as it was sealed.
#[test]
fn no_nonce_is_used_twice_where_connections_are_made_anew() -> Result<()> {
    for (ends_each, program) in [(301, ["24", "3", "3", "3"]), (97, ["12", "1", "0", "1"])] {
        let heard = heard_of(&program, &[], ends_each)?;
        let cuts = heard.records / ends_each;
        ensure!(cuts > 10 && heard.attached + heard.rejoined > cuts / 2, "{cuts} {}", heard.attached);
    }
    Ok(())
}

/// Two pages under one nonce are heard, or the tests above say nothing.
#[test]
fn two_pages_under_one_nonce_are_heard() -> Result<()> {
    let Some(key) = gcm::Key::new(&[3; 16]) else { return Ok(()) };
    let sealed = |nonce: u64, block: u8| {
        let mut page = vec![block; gcm::PAGE];
        // SAFETY: a page of ours. That a nonce is used twice is what is tried.
        #[allow(unsafe_code)]
        unsafe {
            key.seal(nonce, page.as_ptr(), page.as_mut_ptr())
        };
        page
    };
    let mut heard = Heard::default();
    for (nonce, block) in [(1, 7), (2, 7), (1, 7), (3, 9)] {
        heard.page(&sealed(nonce, block));
    }
    ensure!(heard.wrong.is_empty(), "{:?}", heard.wrong);
    heard.page(&sealed(2, 8));
    ensure!(heard.wrong.len() == 3, "{:?}", heard.wrong);
    Ok(())
}
