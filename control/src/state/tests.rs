use super::*;
use crate::api::{Beat, LONGEST, MOST, MOST_SHOWN, Want};
use farmem_protocol::addr::SLAB_BYTES;
use farmem_protocol::random::Random;
use proptest::prelude::*;
use std::collections::BTreeSet;

mod processes;

const GIB: u64 = 1 << 30;

fn beat(name: &str, domain: &str, lends: u64, lent: u64) -> Beat {
    Beat {
        name: name.into(),
        incarnation: 1,
        domain: domain.into(),
        listen: vec![format!("{name}:7411")],
        lends,
        lent,
        ..Beat::default()
    }
}

fn want(run: &str, domains: u32, held: &[&str]) -> Want {
    Want {
        run: run.into(),
        host: "h".into(),
        domains,
        held: held.iter().map(|&at| at.into()).collect(),
        gone: Vec::new(),
        seen: None,
        figures: None,
    }
}

const fn s(tenths: u64) -> Duration {
    Duration::from_millis(tenths * 100)
}

fn rack(nodes: &[(&str, &str)]) -> State {
    let mut state = State::default();
    for (name, domain) in nodes {
        state.beat(s(0), beat(name, domain, 8 * GIB, 0), &mut Vec::new()).unwrap();
    }
    state
}

fn standing(state: &State, name: &str) -> String {
    state.view(s(0)).nodes.into_iter().find(|node| node.name == name).unwrap().standing
}

#[test]
fn a_node_that_falls_silent_is_late_then_down_then_back() {
    let mut state = rack(&[("a", "1")]);
    let mut said = Vec::new();
    for (at, shown) in [(9, "up"), (10, "suspect"), (19, "suspect"), (20, "down")] {
        state.tick(s(at), &mut said);
        assert_eq!(standing(&state, "a"), shown, "{at}");
    }
    assert!(matches!(state.want(s(20), &want("r", 1, &[]), 1), Err(Refusal::NoNode(_))));
    state.beat(s(21), beat("a", "1", 8 * GIB, 0), &mut said).unwrap();
    assert_eq!(state.want(s(21), &want("r", 1, &[]), 1).unwrap().addresses(), ["a:7411"]);
    let lines = said.iter().filter_map(|a| if let Action::Say { line, .. } = a { Some(line.as_str()) } else { None });
    assert_eq!(lines.collect::<Vec<_>>(), ["a is late", "a is down: no word for 2 s", "a is back"]);
}

#[test]
fn a_mirror_lies_in_two_domains_or_is_refused() {
    let mut state = rack(&[("a", "1"), ("b", "1"), ("c", "2")]);
    for random in 0..64u64 {
        let given = state.want(s(1), &want("r", 2, &[]), random.wrapping_mul(0x9E37_79B9_7F4A_7C15)).unwrap();
        assert!(given.addresses().contains(&"c:7411") && given.nodes.len() == 2, "{given:?}");
    }
    let mut state = rack(&[("a", "1"), ("b", "1")]);
    let refused = state.want(s(1), &want("r", 2, &[]), 5).unwrap_err().to_string();
    assert!(refused.contains("2 failure domains, and 1"), "{refused}");
}

/// A run that goes on is given two nodes of the domain that is left, and one of another as soon as
/// there is one.
#[test]
fn a_mirror_goes_on_in_the_one_domain_that_is_left() {
    let mut state = rack(&[("a", "1"), ("b", "1"), ("c", "2")]);
    let given = state.want(s(1), &want("r", 2, &[]), 1).unwrap();
    assert!(!state.view(s(1)).runs[0].crowded);
    let mut held: Vec<String> = given.addresses().into_iter().map(String::from).collect();
    state.drain(s(1), "c", true, &mut Vec::new()).unwrap();
    for (open, nodes, crowded) in [(false, ["a:7411", "b:7411"], true), (true, ["a:7411", "c:7411"], false)] {
        if open {
            state.drain(s(2), "b", true, &mut Vec::new()).unwrap();
            state.drain(s(2), "c", false, &mut Vec::new()).unwrap();
        }
        let has: Vec<&str> = held.iter().map(String::as_str).collect();
        let given = state.want(s(2), &want("r", 2, &has), 7).unwrap();
        let mut now = given.addresses();
        now.sort_unstable();
        assert_eq!((now.as_slice(), state.view(s(2)).runs[0].crowded), (nodes.as_slice(), crowded));
        held = now.into_iter().map(String::from).collect();
    }
    // With both nodes of the first domain, one of the other joins them.
    state.drain(s(3), "b", false, &mut Vec::new()).unwrap();
    let given = state.want(s(3), &want("r", 2, &["a:7411", "b:7411"]), 7).unwrap();
    assert_eq!(given.addresses(), ["a:7411", "b:7411", "c:7411"]);
    assert_eq!(given.nodes[2].domain, "2");
}

/// A node that was started under another name by mistake, and under its own again: its address names it.
#[test]
fn an_address_is_of_the_node_that_is_up_there() {
    let says = |state: &mut State, now, name: &str| {
        let beat = Beat { listen: vec!["a:7411".into()], ..beat(name, "1", 8 * GIB, 0) };
        state.beat(now, beat, &mut Vec::new()).unwrap();
    };
    let mut state = State::default();
    says(&mut state, s(0), "a");
    says(&mut state, s(1), "mistake");
    says(&mut state, s(2), "a");
    assert_eq!(state.at["a:7411"], "mistake", "both seem to be up: the later claim counts");
    for tenths in [12, 17, 22, 27] {
        state.tick(s(tenths), &mut Vec::new());
        says(&mut state, s(tenths), "a");
    }
    assert_eq!((standing(&state, "mistake").as_str(), state.at["a:7411"].as_str()), ("down", "a"));
    assert_eq!(state.want(s(27), &want("r", 1, &["a:7411"]), 1).unwrap().addresses(), ["a:7411"]);
    state.forget(s(27), "mistake", &mut Vec::new()).unwrap();
    assert_eq!(state.want(s(28), &want("r", 1, &["a:7411"]), 1).unwrap().addresses(), ["a:7411"]);
}

/// What nodes say they lend is added up, and may be anything.
#[test]
fn sums_of_what_nodes_say_do_not_overflow() {
    let mut state = rack(&[]);
    for name in ["a", "b", "c"] {
        state.beat(s(0), beat(name, name, u64::MAX, u64::MAX), &mut Vec::new()).unwrap();
        state.beat(s(0), beat(name, name, u64::MAX, 0), &mut Vec::new()).unwrap();
    }
    assert_eq!(state.want(s(1), &want("r", 2, &["a:7411", "b:7411"]), 1).unwrap().addresses(), ["a:7411", "b:7411"]);
}

#[test]
fn a_run_keeps_its_node_and_gets_one_more_before_it_is_full() {
    let mut state = rack(&[("a", "1"), ("b", "2")]);
    assert_eq!(state.want(s(1), &want("r", 1, &["b:7411"]), 1).unwrap().addresses(), ["b:7411"]);
    state.beat(s(2), beat("b", "2", 8 * GIB, 8 * GIB - HEADROOM + 1), &mut Vec::new()).unwrap();
    assert_eq!(state.want(s(2), &want("r", 1, &["b:7411"]), 1).unwrap().addresses(), ["b:7411", "a:7411"]);
}

/// A run that was given the node just before may take memory there until the node knows.
#[test]
fn a_node_is_empty_only_by_a_beat_after_the_order() {
    let mut state = rack(&[("a", "1"), ("b", "2")]);
    let mut actions = Vec::new();
    state.beat(s(1), beat("a", "1", 8 * GIB, 0), &mut actions).unwrap();
    state.drain(s(1), "a", true, &mut actions).unwrap();
    assert_eq!(standing(&state, "a"), "draining");
    // This one was on its way already, as far as the controller knows.
    assert!(state.beat(s(2), beat("a", "1", 8 * GIB, 0), &mut actions).unwrap().drain);
    assert_eq!(standing(&state, "a"), "draining");
    for (lent, standing_then) in [(GIB, "draining"), (0, "empty"), (GIB, "draining"), (0, "empty")] {
        state.beat(s(3), beat("a", "1", 8 * GIB, lent), &mut actions).unwrap();
        assert_eq!(standing(&state, "a"), standing_then);
    }
    // Another process by its name does not know of the order yet.
    let anew = Beat { incarnation: 2, leaving: true, ..beat("a", "1", 8 * GIB, 0) };
    state.beat(s(3), Beat { incarnation: 1, ..anew.clone() }, &mut actions).unwrap();
    state.beat(s(3), anew, &mut actions).unwrap();
    assert_eq!(standing(&state, "a"), "draining");
}

#[test]
fn a_node_that_is_drained_is_given_to_nobody_and_says_when_it_is_empty() {
    let mut state = rack(&[("a", "1"), ("b", "2")]);
    let mut actions = Vec::new();
    state.beat(s(1), beat("a", "1", 8 * GIB, GIB), &mut actions).unwrap();
    state.drain(s(1), "a", true, &mut actions).unwrap();
    assert!(actions.contains(&Action::Keep(Intent::Drain { name: "a".into(), wanted: true })));
    assert_eq!(state.want(s(1), &want("r", 1, &["a:7411"]), 1).unwrap().addresses(), ["b:7411"]);
    assert_eq!(standing(&state, "a"), "draining");
    for lent in [GIB, 0, 0] {
        actions.clear();
        assert!(state.beat(s(2), beat("a", "1", 8 * GIB, lent), &mut actions).unwrap().drain);
    }
    assert_eq!((standing(&state, "a").as_str(), actions.len()), ("empty", 0), "it is said once");
    // After a restart it is drained still.
    let mut state = State::of(state.intents());
    for standing_then in ["draining", "empty"] {
        state.beat(s(0), beat("a", "1", 8 * GIB, 0), &mut actions).unwrap();
        assert_eq!(standing(&state, "a"), standing_then);
    }
    state.drain(s(1), "a", false, &mut actions).unwrap();
    assert_eq!(state.want(s(1), &want("r", 1, &[]), 1).unwrap().addresses(), ["a:7411"]);
    assert_eq!(state.drain(s(1), "z", true, &mut actions), Err(Refusal::Unknown("z".into())));
}

/// A leader of an old term does nothing for those who know a later one; terms of another rack are
/// none.
#[test]
fn an_old_leader_is_told_so() {
    let mut state = rack(&[("a", "1")]).led_in(Term { rack: 5, epoch: 7 });
    let seen = |rack, epoch| Some(Term { rack, epoch });
    for (seen, refused) in
        [(seen(5, 8), true), (seen(5, 7), false), (seen(5, 6), false), (seen(4, 9), false), (None, false)]
    {
        let asks = Want { seen, ..want("r", 1, &[]) };
        assert_eq!(state.want(s(1), &asks, 1) == Err(Refusal::Deposed), refused, "{seen:?}");
        let says = Beat { seen, ..beat("a", "1", 8 * GIB, GIB) };
        assert_eq!(state.beat(s(1), says, &mut Vec::new()) == Err(Refusal::Deposed), refused, "{seen:?}");
    }
    assert_eq!(state.want(s(1), &want("r", 1, &[]), 1).unwrap().term, Term { rack: 5, epoch: 7 });
}

/// What becomes of a run's copies is among the events, and how far a drain has come is in the view.
#[test]
fn repairs_and_drains_are_told() {
    let mut state = rack(&[("a", "1"), ("b", "2")]);
    let figures = |single, together, nodes_lost| {
        Some(Figures { program: "job".into(), single, together, nodes_lost, p99_ns: 7, ..Figures::default() })
    };
    for (single, together, lost) in [(0, 0, 0), (64 << 20, 0, 1), (0, 64 << 20, 1), (0, 0, 1)] {
        let asks = Want { figures: figures(single, together, lost), ..want("r", 2, &[]) };
        state.want(s(1), &asks, 5).unwrap();
    }
    let view = state.view(s(1));
    let told: Vec<&str> =
        view.events.iter().map(|event| event.what.as_str()).filter(|what| what.contains("job")).collect();
    let lines =
        ["two failure domains again", "64 MiB are in one failure domain", "two copies again", "64 MiB have one copy"];
    assert!(told.len() == 4 && told.iter().zip(lines).all(|(told, line)| told.contains(line)), "{told:?}");
    assert_eq!(view.runs[0].figures, figures(0, 0, 1));
    state.beat(s(1), beat("a", "1", 8 * GIB, 4 * GIB), &mut Vec::new()).unwrap();
    state.drain(s(1), "a", true, &mut Vec::new()).unwrap();
    state.beat(s(2), beat("a", "1", 8 * GIB, GIB), &mut Vec::new()).unwrap();
    let node = state.view(s(2)).nodes.remove(0);
    assert_eq!((node.lent, node.drain_from), (GIB, 4 * GIB));
    let bad = Want { figures: Some(Figures::default()), ..want("r", 1, &[]) };
    assert!(matches!(state.want(s(2), &bad, 1), Err(Refusal::Malformed(_))));
}

/// Nor does one tenant hide what befell another's runs.
#[test]
fn a_run_that_tells_much_hides_nothing_that_befell_the_rack() {
    let mut state = rack(&[("a", "1"), ("b", "2")]);
    state.tick(s(20), &mut Vec::new());
    state.beat(s(21), beat("a", "1", 8 * GIB, 0), &mut Vec::new()).unwrap();
    let tells = |state: &mut State, tenant: &str, together: u64| {
        let figures = Some(Figures { program: "job".into(), together, ..Figures::default() });
        state.want_of(tenant, s(22), &Want { figures, ..want(tenant, 1, &[]) }, 5).unwrap();
    };
    tells(&mut state, "quiet", 1);
    (0..1000).for_each(|at| tells(&mut state, "loud", at % 2));
    let view = state.view(s(22));
    let told = |what: &str| view.events.iter().filter(|event| event.what.contains(what)).count();
    assert_eq!((view.events.len(), told("b is down"), told("run quiet")), (100, 1, 1));
    // One that has them for itself has all.
    let mut state = State::default();
    for at in 0..1000 {
        state.note(s(at), at.to_string());
    }
    let view = state.view(s(1000));
    assert_eq!((view.events.len(), &*view.events[0].what, &*view.events[99].what), (100, "999", "900"));
}

#[test]
fn what_cannot_be_is_refused() {
    let mut state = State::default();
    let mut refused = |beat: Beat| matches!(state.beat(s(0), beat, &mut Vec::new()), Err(Refusal::Malformed(_)));
    assert!(refused(beat("", "1", 1, 0)));
    assert!(refused(beat("a b", "1", 1, 0)));
    assert!(refused(beat(&"a".repeat(LONGEST + 1), "1", 1, 0)));
    assert!(refused(beat("a", "x\ny", 1, 0)));
    assert!(refused(Beat { listen: vec![], ..beat("a", "1", 1, 0) }));
    assert!(refused(Beat { listen: vec!["a:1".into(); MOST + 1], ..beat("a", "1", 1, 0) }));
    assert!(state.want(s(0), &want("r", 0, &[]), 1).is_err());
    assert!(state.want(s(0), &want("r", 3, &[]), 1).is_err());
}

#[test]
fn runs_that_ask_between_two_beats_are_spread() {
    let names: Vec<String> = (0..100).map(|n| format!("n{n}")).collect();
    let mut state = State::default();
    for name in &names {
        state.beat(s(0), beat(name, name, 64 * GIB, 0), &mut Vec::new()).unwrap();
    }
    let (mut random, mut given) = (Random::new(7), BTreeMap::<String, u32>::new());
    for run in 0..400 {
        let nodes = state.want(s(1), &want(&format!("r{run}"), 1, &[]), random.bits()).unwrap().nodes;
        nodes.into_iter().for_each(|node| *given.entry(node.at).or_default() += 1);
    }
    let most = given.values().max().copied().unwrap();
    assert!(most <= 7 && given.len() >= 97, "{most} of 400 on one of 100 nodes, {} used", given.len());
}

/// Half a second of a rack's life: a controller has at least 100 000 placements a second to give on
/// a core. The bound here is a hundredth of that, for machines that are busy.
#[test]
fn a_thousand_nodes_are_placed_on_quickly() {
    let mut state = State::default();
    for node in 0..1000 {
        let name = format!("n{node}");
        state.beat(s(0), beat(&name, &name, 64 * GIB, 0), &mut Vec::new()).unwrap();
    }
    let (mut random, begun) = (Random::new(1), std::time::Instant::now());
    for run in 0..2000 {
        state.want(s(1), &want(&format!("r{}", run % 50), 1, &[]), random.bits()).unwrap();
    }
    let took = begun.elapsed();
    println!("{:.0} placements a second", 2000.0 / took.as_secs_f64());
    assert!(took < Duration::from_secs(2), "{took:?}");
}

#[derive(Clone, Debug)]
enum Step {
    Beat { node: usize, incarnation: u64, lent: u64, leaving: bool },
    Wait(u64),
    Want { run: usize, domains: u32, random: u64 },
    Drain { node: usize, wanted: bool },
    Forget(usize),
    Restart,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        6 => (0..5usize, 1..3u64, 0..9u64, prop::bool::weighted(0.1))
            .prop_map(|(node, incarnation, lent, leaving)| Step::Beat { node, incarnation, lent: lent * GIB, leaving }),
        4 => (1..15u64).prop_map(Step::Wait),
        5 => (0..3usize, 1..3u32, any::<u64>()).prop_map(|(run, domains, random)| Step::Want { run, domains, random }),
        2 => (0..5usize, any::<bool>()).prop_map(|(node, wanted)| Step::Drain { node, wanted }),
        1 => (0..5usize).prop_map(Step::Forget),
        1 => Just(Step::Restart),
    ];
    prop::collection::vec(step, 1..120)
}

proptest! {
    /// Whatever happens: nodes that are given were heard of within a second, are not drained, and
    /// lie in as many domains as are wanted; a restart from what was kept knows the same members
    /// and drains; what an operator asked stands until it is taken back.
    #[test]
    fn no_run_is_given_a_node_that_it_may_not_have(steps in steps()) {
        let mut state = State::default();
        let (mut now, mut kept) = (s(0), Vec::<Intent>::new());
        // The plain model: last accepted beat, domain, drain, leaving.
        let mut model = BTreeMap::<String, (Option<Duration>, String, bool, bool)>::new();
        let mut held = vec![Vec::<String>::new(); 3];
        for step in steps {
            let mut actions = Vec::new();
            state.tick(now, &mut actions);
            match step {
                Step::Beat { node, incarnation, lent, leaving } => {
                    let (name, domain) = (format!("n{node}"), format!("d{}", node % 3));
                    let beat = Beat { incarnation, leaving, ..beat(&name, &domain, 8 * GIB, lent) };
                    if state.beat(now, beat, &mut actions).is_ok() {
                        let of = model.entry(name).or_insert((None, domain, false, false));
                        (of.0, of.3) = (Some(now), leaving);
                    }
                }
                Step::Wait(tenths) => now += s(tenths),
                Step::Want { run, domains, random } => {
                    let held = &mut held[run];
                    let asks = Want { held: held.clone(), ..want(&format!("r{run}"), domains, &[]) };
                    match state.want(now, &asks, random) {
                        Ok(given) => {
                            let mut seen = BTreeSet::new();
                            for at in given.addresses() {
                                let (heard, domain, drain, leaving) = &model[at.strip_suffix(":7411").unwrap()];
                                prop_assert!(now - heard.unwrap() < SUSPECT_AFTER && !drain && !leaving, "{at}");
                                seen.insert(domain.clone());
                            }
                            // Fewer only for a run that goes on, when no other domain has room.
                            let room = |node: &Node| node.has_room() && !seen.contains(&node.domain);
                            let excused = !held.is_empty() && !state.nodes.values().any(room);
                            prop_assert!(seen.len() >= domains as usize || excused);
                            *held = given.nodes.into_iter().map(|node| node.at).collect();
                        }
                        Err(_) => {
                            let open = |of: &&(Option<Duration>, String, bool, bool)| {
                                of.0.is_some_and(|heard| now - heard < SUSPECT_AFTER) && !of.2 && !of.3
                            };
                            let domains_there: BTreeSet<_> =
                                model.values().filter(open).map(|of| of.1.clone()).collect();
                            let full = state.nodes.values().any(|node| node.free() < LEAST_FREE);
                            prop_assert!(full || domains_there.len() < domains as usize);
                        }
                    }
                }
                Step::Drain { node, wanted } => {
                    let known = model.get_mut(&format!("n{node}"));
                    let done = state.drain(now, &format!("n{node}"), wanted, &mut actions);
                    prop_assert_eq!(done.is_ok(), known.is_some());
                    known.into_iter().for_each(|of| of.2 = wanted);
                }
                Step::Forget(node) => {
                    if state.forget(now, &format!("n{node}"), &mut actions).is_ok() {
                        model.remove(&format!("n{node}"));
                    }
                }
                Step::Restart => {
                    state = State::of(kept.clone());
                    model.values_mut().for_each(|of| of.0 = None);
                }
            }
            kept.extend(actions.into_iter().filter_map(|action| match action {
                Action::Keep(intent) => Some(intent),
                Action::Say { .. } => None,
            }));
            prop_assert_eq!(State::of(kept.clone()).intents(), state.intents());
            let drains: Vec<bool> = state.nodes.values().map(|node| node.drain).collect();
            let open: u64 = state.nodes.values().filter(|node| node.has_room()).map(|node| node.lends >> 20).sum();
            prop_assert_eq!(state.open.total(), open);
            prop_assert_eq!(drains, model.values().map(|of| of.2).collect::<Vec<_>>());
        }
    }
}

/// A machine needs the memory that its node has lent. One run after the other is given other nodes,
/// the smaller first, if these have room for it.
#[test]
fn a_node_that_needs_its_memory_is_taken_from_runs_one_by_one() {
    let mut state = rack(&[("a", "1"), ("b", "2"), ("c", "3")]);
    let says = |state: &mut State, now, lends, lent| {
        state.beat(now, beat("a", "1", lends, lent), &mut Vec::new()).unwrap();
        ["b", "c"].iter().for_each(|name| drop(state.beat(now, beat(name, name, 8 * GIB, GIB), &mut Vec::new())));
    };
    let asks = |state: &mut State, now, run: &str, far, held: &[&str]| {
        let figures = Some(Figures { far: far * GIB, program: "p".into(), ..Figures::default() });
        let given = state.want(now, &Want { figures, ..want(run, 1, held) }, 7).unwrap();
        given.nodes.iter().any(|node| node.at == "a:7411")
    };
    let has = ["a:7411", "b:7411"];
    says(&mut state, s(1), 8 * GIB, 6 * GIB);
    assert!(asks(&mut state, s(1), "large", 5, &has) && asks(&mut state, s(1), "small", 1, &has));
    for tenths in (2..102).step_by(5) {
        says(&mut state, s(tenths), 2 * GIB, 6 * GIB);
        let stay = |state: &mut State, run, far| asks(state, s(tenths), run, far, &has);
        assert!(stay(&mut state, "large", 5) && stay(&mut state, "small", 1), "the coldest slabs move first");
    }
    says(&mut state, s(102), 2 * GIB, 6 * GIB);
    assert!(asks(&mut state, s(102), "large", 5, &has), "the smaller one goes first");
    assert!(!asks(&mut state, s(102), "small", 1, &has));
    assert!(asks(&mut state, s(103), "large", 5, &has), "its pages may be on their way");
    for tenths in (105..160).step_by(5) {
        says(&mut state, s(tenths), 2 * GIB, 5 * GIB);
        asks(&mut state, s(tenths), "small", 1, &["b:7411"]);
    }
    assert!(!asks(&mut state, s(156), "large", 5, &has));
    // Where the others have no room for it, it stays.
    let mut state = rack(&[("a", "1"), ("b", "2")]);
    for tenths in (1..=106).step_by(5) {
        says(&mut state, s(tenths), 2 * GIB, 6 * GIB);
        assert!(asks(&mut state, s(tenths), "huge", 60, &has));
    }
}

#[test]
fn a_full_rack_names_those_who_hold_it() {
    let mut state = rack(&[("a", "1")]);
    let figures = Some(Figures { far: 3 * GIB, program: "job".into(), ..Figures::default() });
    state.want(s(1), &Want { figures, ..want("r1", 1, &["a:7411"]) }, 7).unwrap();
    state.beat(s(1), beat("a", "1", 8 * GIB, 8 * GIB), &mut Vec::new()).unwrap();
    let why = state.want(s(1), &want("r2", 1, &[]), 7).unwrap_err().to_string();
    assert!(why.ends_with("; most of it is held by job on h (3072 MiB)"), "{why}");
    // It has asked no more: it has ended.
    state.beat(s(40), beat("a", "1", 8 * GIB, 8 * GIB), &mut Vec::new()).unwrap();
    let why = state.want(s(40), &want("r2", 1, &[]), 7).unwrap_err().to_string();
    assert!(why.contains("1 up, of these 1 full") && !why.contains("held by"), "{why}");
    // Nothing is held of a rack without nodes.
    let figures = Some(Figures { far: 3 * GIB, program: "job".into(), ..Figures::default() });
    state.want(s(41), &Want { figures, ..want("r1", 1, &["a:7411"]) }, 7).unwrap();
    state.tick(s(65), &mut Vec::new());
    let why = state.want(s(65), &want("r2", 1, &[]), 7).unwrap_err().to_string();
    assert!(why.contains("0 up") && !why.contains("held by"), "{why}");
}

/// One tenant's runs are many, and keep no other's out. Nor does it take another's name.
#[test]
fn runs_are_bounded_and_a_name_is_its_tenants() {
    let mut state = rack(&[("a", "1")]);
    let mut names = 0..;
    let mut begins = |state: &mut State, tenant: &str| {
        let name = format!("{tenant}{}", names.next().unwrap());
        state.want_of(tenant, s(0), &want(&name, 1, &[]), 1).map(|_| name)
    };
    let lab: Vec<String> = std::iter::from_fn(|| begins(&mut state, "lab").ok()).collect();
    assert!(lab.len() == MOST_RUNS / 2 && matches!(begins(&mut state, "lab"), Err(Refusal::ManyRuns(_))));
    let shop = begins(&mut state, "shop").unwrap();
    let others = state.want_of("lab", s(0), &want(&shop, 1, &["a:7411"]), 1);
    assert_eq!(others, Err(Refusal::OthersRun(shop.clone())));
    assert!(state.want_of("shop", s(0), &want(&shop, 1, &["a:7411"]), 1).is_ok());
    assert!(state.want_of("lab", s(0), &want(&lab[0], 1, &["a:7411"]), 1).is_ok(), "what is known goes on");
    // Nor does it hide them from an operator.
    let figures = Some(Figures { far: GIB, program: "p".into(), ..Figures::default() });
    state.want_of("shop", s(0), &Want { figures, ..want(&shop, 1, &["a:7411"]) }, 1).unwrap();
    let shown = state.view(s(0));
    assert_eq!((shown.runs.len(), shown.more_runs as usize), (MOST_SHOWN, lab.len() + 1 - MOST_SHOWN));
    assert!(shown.runs.iter().any(|run| run.run == shop));
    let one = state.view_of(s(0), "a");
    assert_eq!((one.nodes, one.runs.len()), (shown.nodes, 0));
    // They are over.
    state.tick(s(101), &mut Vec::new());
    state.beat(s(101), beat("a", "1", 8 * GIB, 0), &mut Vec::new()).unwrap();
    assert!(begins(&mut state, "lab").is_ok());
}
