//! Which process a node's name stands for: of two beside each other, after a change of leader, and
//! by what other versions keep.

use super::*;

#[test]
fn two_nodes_of_one_name_are_not_taken_for_one() {
    let mut state = rack(&[("a", "1")]);
    let other = Beat { incarnation: 2, ..beat("a", "1", GIB, 0) };
    assert_eq!(state.beat(s(5), other.clone(), &mut Vec::new()), Err(Refusal::NameTaken("a".into())));
    // Once the first is late, or said that it goes, the name is free.
    state.tick(s(10), &mut Vec::new());
    state.beat(s(11), other, &mut Vec::new()).unwrap();
    let leaves = Beat { incarnation: 2, leaving: true, ..beat("a", "1", GIB, 0) };
    state.beat(s(12), leaves, &mut Vec::new()).unwrap();
    state.beat(s(13), beat("a", "1", GIB, 0), &mut Vec::new()).unwrap();
    assert_eq!(standing(&state, "a"), "up");
    assert_eq!(state.forget(s(13), "a", &mut Vec::new()), Err(Refusal::IsUp("a".into())));
    state.tick(s(40), &mut Vec::new());
    state.forget(s(40), "a", &mut Vec::new()).unwrap();
    assert!(state.view(s(40)).nodes.is_empty() && state.intents().is_empty());
}

/// A process that is cut off from the controller serves on within its share. Another of its name
/// gets none beside it, unless it is at the same address, where the first cannot be any more.
#[test]
fn a_share_is_not_given_to_two_processes_of_one_name() {
    let mut state = rack(&[("a", "1")]);
    state.set_quotas([("t".to_owned(), 64 * SLAB_BYTES)].into());
    let orders = state.beat(s(1), beat("a", "1", GIB, 0), &mut Vec::new()).unwrap();
    assert_eq!(orders.shares[0].1, 64 * SLAB_BYTES);
    state.tick(s(30), &mut Vec::new());
    let other = Beat { incarnation: 2, listen: vec!["b:7411".into()], ..beat("a", "1", GIB, 0) };
    let kept = Err(Refusal::NameKept("a".into(), "a:7411".into()));
    assert_eq!(state.beat(s(31), other.clone(), &mut Vec::new()), kept);
    // The first is heard again, and goes on.
    state.beat(s(32), beat("a", "1", GIB, 0), &mut Vec::new()).unwrap();
    // Its machine is started anew.
    state.tick(s(60), &mut Vec::new());
    let anew = Beat { incarnation: 3, ..beat("a", "1", GIB, 0) };
    state.beat(s(61), anew, &mut Vec::new()).unwrap();
    // It is gone for good, as the operator says.
    state.tick(s(90), &mut Vec::new());
    assert_eq!(state.beat(s(91), other.clone(), &mut Vec::new()), kept);
    state.forget(s(91), "a", &mut Vec::new()).unwrap();
    state.beat(s(92), other, &mut Vec::new()).unwrap();
}

fn kept(actions: Vec<Action>) -> Vec<Intent> {
    let keeps = |action| match action {
        Action::Keep(intent) => Some(intent),
        Action::Say { .. } => None,
    };
    actions.into_iter().filter_map(keeps).collect()
}

/// Another leader knows by what is kept which process of a name may hold shares, before it has heard
/// any.
#[test]
fn a_new_leader_gives_a_share_to_no_second_process_of_a_name() {
    let quotas = || [("t".to_owned(), 64 * SLAB_BYTES)].into();
    let (mut state, mut actions) = (State::default(), Vec::new());
    state.set_quotas(quotas());
    state.beat(s(0), beat("a", "1", GIB, 0), &mut actions).unwrap();
    let kept = kept(actions);
    let leads = || {
        let mut state = State::of(kept.clone());
        state.set_quotas(quotas());
        state
    };
    let mut next = leads();
    let other = Beat { incarnation: 2, listen: vec!["b:7411".into()], ..beat("a", "1", GIB, 0) };
    let refused = next.beat(s(1), other.clone(), &mut Vec::new());
    assert_eq!(refused, Err(Refusal::NameKept("a".into(), "a:7411".into())));
    next.beat(s(1), beat("a", "1", GIB, 0), &mut Vec::new()).unwrap();
    assert_eq!(next.beat(s(2), other.clone(), &mut Vec::new()), Err(Refusal::NameTaken("a".into())));
    // The same process, whose machine has another address towards this leader.
    let mut next = leads();
    let elsewhere = Beat { incarnation: 1, ..other.clone() };
    next.beat(s(1), elsewhere, &mut Vec::new()).unwrap();
    // Its machine is started anew.
    let mut next = leads();
    next.beat(s(1), Beat { incarnation: 3, ..beat("a", "1", GIB, 0) }, &mut Vec::new()).unwrap();
    // An operator says that the first has ended.
    let mut next = leads();
    next.forget(s(1), "a", &mut Vec::new()).unwrap();
    next.beat(s(2), other, &mut Vec::new()).unwrap();
}

/// As long as a node stays what it is, nothing is kept of it again.
#[test]
fn a_member_is_kept_when_its_process_changes() {
    let mut state = State::default();
    let mut keeps = |tenths, incarnation| {
        let mut actions = Vec::new();
        state.tick(s(tenths), &mut actions);
        state.beat(s(tenths), Beat { incarnation, ..beat("a", "1", GIB, 0) }, &mut actions).unwrap();
        kept(actions).len()
    };
    assert_eq!([keeps(0, 1), keeps(5, 1), keeps(40, 1), keeps(80, 2), keeps(85, 2)], [1, 0, 0, 1, 0]);
}

/// A rack is upgraded, or a version back, while its journal stays.
#[test]
fn a_member_is_read_by_and_from_earlier_versions() {
    /// As it was before a member had a process.
    #[derive(serde::Serialize, serde::Deserialize, PartialEq, Debug)]
    enum Before {
        Member { name: String, domain: String },
    }
    let before = Before::Member { name: "a".into(), domain: "1".into() };
    let text = serde_json::to_string(&before).unwrap();
    assert_eq!(text, r#"{"Member":{"name":"a","domain":"1"}}"#);
    let read: Intent = serde_json::from_str(&text).unwrap();
    assert_eq!(read, Intent::Member { name: "a".into(), domain: "1".into(), process: None });
    assert_eq!(serde_json::to_string(&read).unwrap(), text);
    // Nothing is known of the process: whichever is heard first is it, and is kept.
    let (mut state, mut actions) = (State::of([read]), Vec::new());
    state.beat(s(0), Beat { incarnation: 9, ..beat("a", "1", GIB, 0) }, &mut actions).unwrap();
    let kept = kept(actions);
    let process = Some(Process { address: "a:7411".into(), incarnation: 9 });
    assert_eq!(kept, [Intent::Member { name: "a".into(), domain: "1".into(), process }]);
    let text = serde_json::to_string(&kept[0]).unwrap();
    assert_eq!(text, r#"{"Member":{"name":"a","domain":"1","process":{"address":"a:7411","incarnation":9}}}"#);
    assert_eq!(serde_json::from_str::<Before>(&text).unwrap(), before);
}

/// A node that was started anew under another name: it is known by both until the first is missed.
#[test]
fn a_node_that_has_two_names_is_given_once() {
    let mut state = State::default();
    for name in ["was", "is"] {
        let beat = Beat { listen: vec!["a:7411".into()], ..beat(name, name, 8 * GIB, 0) };
        state.beat(s(0), beat, &mut Vec::new()).unwrap();
    }
    for random in 0..64 {
        let mut given = |run: &str, domains, held: &[&str]| {
            let given = state.want(s(1), &want(run, domains, held), random)?;
            Ok::<_, Refusal>(given.addresses().into_iter().map(str::to_owned).collect::<Vec<_>>())
        };
        assert_eq!(given("one", 1, &[]).unwrap(), ["a:7411"]);
        // One node is no two copies.
        assert!(matches!(given("mirror", 2, &[]), Err(Refusal::NoNode(_))));
        assert_eq!(given("goes-on", 2, &["a:7411"]).unwrap(), ["a:7411"]);
    }
}

/// A node that has just died is not missed yet. A run that did not reach it is given another one.
#[test]
fn a_run_is_not_given_what_it_did_not_reach() {
    let mut state = rack(&[("a", "1"), ("b", "1")]);
    for random in 0..64 {
        let asked = Want { gone: vec!["a:7411".into()], ..want("r", 1, &[]) };
        assert_eq!(state.want(s(1), &asked, random).unwrap().addresses(), ["b:7411"]);
        let all = Want { gone: vec!["a:7411".into(), "b:7411".into()], ..want("s", 1, &[]) };
        assert!(matches!(state.want(s(1), &all, random), Err(Refusal::NoNode(_))));
    }
    // It is its own word: others are given the node.
    let others = (0..64).map(|random| state.want(s(1), &want("t", 1, &[]), random).unwrap().addresses()[0].to_owned());
    assert!(others.collect::<Vec<_>>().contains(&"a:7411".to_owned()));
    let many = Want { gone: vec!["a:7411".into(); MOST + 1], ..want("r", 1, &[]) };
    assert!(matches!(state.want(s(1), &many, 1), Err(Refusal::Malformed(_))));
}
