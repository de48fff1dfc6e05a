//! Clients that put a front end under load, and remember what they did.

use super::linear::{Call, Step};
use super::process::Process;
use farmem_protocol::random::Random;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The calls of a client on a few keys, until its front end is gone or it is told to stop. A call
/// that was answered by an IOERR may have taken effect.
pub fn clients(
    front: &Process,
    seed: u64,
    moment: &Arc<AtomicU64>,
    stop: &Arc<AtomicBool>,
) -> Vec<(usize, Call<Step>)> {
    let (mut client, mut numbers, mut calls) = (front.client(), Random::new(seed), Vec::new());
    let now = || moment.fetch_add(1, Ordering::SeqCst);
    while !stop.load(Ordering::Relaxed) {
        let (key, unique) = (numbers.index(KEYS), now());
        let name = format!("k{key}");
        let begun = now();
        let (words, guess): (Vec<String>, Step) = match numbers.below(10) {
            0..4 => (vec!["GET".into(), name], Step::Get(None)),
            4..7 => (vec!["SET".into(), name, unique.to_string()], Step::Set(unique)),
            7 => (vec!["SETNX".into(), name, unique.to_string()], Step::SetIfAbsent(unique, true)),
            8 => (vec!["DEL".into(), name], Step::Delete(None)),
            _ => (vec!["INCRBY".into(), name, "3".into()], Step::Add(3, None)),
        };
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let said = client.send(&words).ok().and_then(|()| client.reply());
        let Some(said) = said else {
            if !matches!(guess, Step::Get(_)) {
                calls.push((key, Call { operation: guess, begun, ended: None }));
            }
            return calls;
        };
        if said.starts_with("-IOERR") {
            if !matches!(guess, Step::Get(_)) {
                calls.push((key, Call { operation: guess, begun, ended: None }));
            }
            continue;
        }
        let number = said.trim_start_matches(':').parse::<u64>().ok();
        let operation = match guess {
            Step::Get(_) => Step::Get(number),
            Step::SetIfAbsent(unique, _) => Step::SetIfAbsent(unique, said == ":1"),
            Step::Delete(_) => Step::Delete(Some(said == ":1")),
            Step::Add(by, _) => Step::Add(by, number),
            set => set,
        };
        assert!(!said.starts_with('-'), "{words:?}: {said}");
        calls.push((key, Call { operation, begun, ended: Some(now()) }));
    }
    calls
}

pub const KEYS: usize = 6;
