//! The report on the allocators under a store, and on what they hold against each other.

use super::{Came, Case, Places, run};
use crate::hot::{self, Looks};
use crate::memory;
use crate::mix::Keys;
use anyhow::{Context, Result};
use farmem_alloc::sim::costs::Costs;
use farmem_alloc::systems::System;
use farmem_kit::environment::Environment;
use farmem_kit::pairs::Spread;
use farmem_kit::report::{Bound, Report, Section, Target};
use farmem_kit::table::{Table, duration};
use serde::Serialize;

/// Clients of a front end where there are many: those of a host.
const OF_A_HOST: u32 = 32;

/// Everything that was found, for machines.
#[derive(Serialize)]
pub struct Raw {
    /// Case, system, figures.
    pub runs: Vec<(Case, System, Came)>,
    /// Clients, and the share of memory saved against grants of 1 GiB.
    pub saved: Vec<(u32, f64)>,
}

fn once(figure: f64) -> Option<Spread> {
    Spread::of([figure])
}

fn million(rate: f64) -> String {
    format!("{:.2} M", rate / 1e6)
}

/// Runs it all.
///
/// # Errors
/// An allocator gave memory to two clients, or refused.
pub fn report(quick: bool) -> Result<Report<Raw>> {
    let costs = Costs::shipped();
    let clients: &[u32] = if quick { &[1, 64] } else { &[1, 8, 32, 128, 512] };
    let most = clients.last().copied().unwrap_or(1);
    let operations = |clients: u32| (if quick { 10_000 } else { 40_000 } / clients).clamp(100, 20_000);
    let keys = if quick { 2_000 } else { 8_000 };
    let update = |places, clients, drawn| Case {
        places,
        clients,
        fronts: clients.div_ceil(OF_A_HOST),
        keys,
        operations: operations(clients),
        drawn,
        reclaims: true,
        looks: Looks::Near,
    };
    let mut raw = Raw { runs: Vec::new(), saved: Vec::new() };
    let mut sections = Vec::new();
    for (places, drawn, title) in [
        (Places::Own, Keys::Uniform, "Updates a second, each object in a piece of its own, uniform keys"),
        (Places::Own, Keys::Zipfian, "The same, zipfian keys"),
        (Places::Shared, Keys::Uniform, "Updates a second, objects of 1 KiB that share pieces, uniform keys"),
    ] {
        let head = ["clients".to_owned()].into_iter().chain(System::ALL.map(|system| system.name().to_owned()));
        let (mut rates, mut tails) = (Table::new(head.clone()), Table::new(head));
        for &clients in clients {
            let mut came = Vec::new();
            for system in System::ALL {
                let case = update(places, clients, drawn);
                came.push(run(system, case, &costs).with_context(|| format!("{}, {clients} clients", system.name()))?);
                raw.runs.extend(came.last().map(|&came| (case, system, came)));
            }
            let row = |show: &dyn Fn(&Came) -> String| {
                [clients.to_string()].into_iter().chain(came.iter().map(show)).collect::<Vec<_>>()
            };
            rates.row(row(&|came| million(came.rate)));
            tails.row(row(&|came| duration(came.p99)));
        }
        sections.push(Section { title: title.into(), table: rates });
        sections.push(Section { title: "99 of 100 of them took at most".into(), table: tails });
    }
    for (section, came) in
        [hot::reclamation(&costs, update(Places::Own, most, Keys::Uniform))?, hot::one_key(&costs, quick)?]
    {
        sections.push(section);
        raw.runs.extend(came.into_iter().map(|(case, came)| (case, System::Farmem, came)));
    }
    let insert = |places| Case { keys: 0, ..update(places, most, Keys::Uniform) };
    let [grown, granted] = [Places::Shared, Places::Static].map(|places| run(System::Farmem, insert(places), &costs));
    let (grown, granted) = (grown?, granted?);
    let (section, saved) = memory::saved(if quick { 200_000 } else { 10_000_000 });
    sections.push(section);
    raw.saved = saved;
    let case = update(Places::Own, most, Keys::Uniform);
    let rate_of = |raw: &Raw, case, system| {
        raw.runs.iter().find(|run| run.0 == case && run.1 == system).map_or(f64::NAN, |run| run.2.rate)
    };
    let rate = |raw: &Raw, system| rate_of(raw, case, system);
    let kept = rate_of(&raw, Case { reclaims: false, ..case }, System::Farmem);
    let at = |clients| raw.saved.iter().find(|(at, _)| *at == clients).map_or(f64::NAN, |(_, share)| *share);
    let targets = vec![
        Target::new(
            format!("updates of {most} clients: farmem against windows by calls (OneSidedMW: 10.6)"),
            Bound::AtLeast(15.0, 20.0),
            once(rate(&raw, System::Farmem) / rate(&raw, System::RpcWindows)),
        ),
        Target::new(
            "memory saved against grants of 1 GiB, inserts, 64 clients, 1 KiB",
            Bound::AtLeast(0.70, 0.80),
            once(at(64)),
        ),
        Target::new(
            "inserts: throughput against static grants",
            Bound::AtLeast(0.97, 1.0),
            once(grown.rate / granted.rate),
        ),
        Target::new(
            "inserts: p99 added to static grants, µs",
            Bound::AtMost(2.0, 0.5),
            once((grown.p99 - granted.p99) / 1e3),
        ),
        Target::new(
            "updates: throughput with reclamation against without",
            Bound::AtLeast(0.97, 1.0),
            once(rate(&raw, System::Farmem) / kept),
        ),
    ];
    let method = vec![
        "Virtual time: cards, node and allocators of `farmem-lab bench alloc`, with its costs. One run; seeds are fixed."
            .into(),
        format!("{keys} keys, updates alone; objects of 3556 bytes in pieces of their own, of 1080 where they share."),
        "An object's place is used again, or its piece goes back, 1.5 ms after it was replaced, or was found to be.".into(),
        format!("Up to {OF_A_HOST} clients are of one front end, unless a table says otherwise."),
    ];
    let (environment, skipped) = (Environment::read(), Vec::new());
    Ok(Report { bench: "kv-allocators", method, environment, skipped, sections, targets, raw })
}
