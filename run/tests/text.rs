//! Every run's settings are read as they were written, and nothing else is read, or ends badly.

use farmem_run::{
    Choice, Dirty, Faults, Feature, Mask, NodeAddr, Prefetch, Protect, RunNode, RunSpec, Seal, Transport, Unwritable,
};
use proptest::prelude::*;
use std::path::PathBuf;
use std::time::Duration;

fn choice<C: Choice + std::fmt::Debug>() -> impl Strategy<Value = C> {
    (0..C::ALL.len()).prop_map(|n| C::ALL[n].0)
}

fn mask() -> impl Strategy<Value = Mask> {
    let features = proptest::collection::vec(0..Feature::ALL.len(), 0..4);
    features.prop_map(|all| all.into_iter().fold(Mask::NONE, |mask, n| mask.with(Feature::ALL[n].0)))
}

fn node() -> impl Strategy<Value = NodeAddr> {
    prop_oneof![
        ("[a-z0-9.-]{1,20}", any::<u16>()).prop_map(|(host, port)| NodeAddr::Tcp(format!("{host}:{port}"))),
        any::<u16>().prop_map(|port| NodeAddr::Tcp(format!("[::1]:{port}"))),
        "/[^;,\\x00]{0,20}".prop_map(|path| NodeAddr::Shm(PathBuf::from(path))),
    ]
}

fn run_node() -> impl Strategy<Value = RunNode> {
    (node(), "([a-z0-9/-]{1,20})?").prop_map(|(at, domain)| match at {
        NodeAddr::Tcp(_) => RunNode { at, domain: farmem_protocol::wire::Text::new(&domain) },
        NodeAddr::Shm(_) => at.into(),
    })
}

fn path() -> impl Strategy<Value = Option<String>> {
    proptest::option::of("/[^;\\x00]{0,30}")
}

fn spec() -> impl Strategy<Value = RunSpec> {
    let nodes = proptest::collection::vec(run_node(), 0..4);
    let numbers = (any::<[u8; 16]>(), any::<u64>(), any::<u64>(), any::<Option<u64>>());
    let choices = (choice::<Transport>(), choice::<Faults>(), choice::<Prefetch>(), choice::<Dirty>(), mask());
    (
        numbers,
        nodes,
        choices,
        any::<[bool; 4]>(),
        (choice::<Protect>(), choice::<Seal>()),
        [path(), path(), path(), path(), path()],
    )
        .prop_map(
            |(
                (run, local, grace_ms, shape),
                nodes,
                choices,
                [relayed, changes, sample, plain],
                (protect, seal),
                paths,
            )| {
                let [counters, trace, token, sites, disk] = paths;
                let (transport, faults, prefetch, dirty, mask) = choices;
                let grace = Duration::from_millis(grace_ms);
                RunSpec {
                    run,
                    local,
                    nodes,
                    relayed,
                    changes,
                    protect,
                    disk,
                    transport,
                    grace,
                    shape,
                    faults,
                    prefetch,
                    dirty,
                    mask,
                    counters,
                    trace,
                    token,
                    sites,
                    sample,
                    plain,
                    seal,
                }
            },
        )
}

/// A text near a good one: pieces of one cut out, doubled, or replaced.
fn near() -> impl Strategy<Value = String> {
    let edits = proptest::collection::vec((any::<prop::sample::Index>(), "[a-z0-9=;,:+é\\x00]{0,3}", 0..4usize), 1..4);
    (spec(), edits).prop_map(|(spec, edits)| {
        let mut text: Vec<char> = spec.to_text().expect("a text").chars().collect();
        for (at, put, out) in edits {
            let at = at.index(text.len() + 1);
            let end = (at + out).min(text.len());
            text.splice(at..end, put.chars());
        }
        text.into_iter().collect()
    })
}

proptest! {
    #[test]
    fn a_run_is_read_as_it_was_written(spec in spec()) {
        let text = spec.to_text().expect("nothing in it separates");
        prop_assert!(!text.contains('\0'));
        prop_assert_eq!(RunSpec::parse(&text), Ok(spec));
    }

    #[test]
    fn a_broken_text_is_refused_by_one_short_line_or_means_something(text in near()) {
        match RunSpec::parse(&text) {
            Ok(spec) => match spec.to_text() {
                Ok(again) => prop_assert_eq!(RunSpec::parse(&again), Ok(spec)),
                Err(Unwritable { value, .. }) => prop_assert!(value.contains('\0')),
            },
            Err(e) => {
                let line = e.to_string();
                prop_assert!(line.starts_with("FARMEM_RUN: ") && !line.contains('\n') && line.len() < 600, "{}", line);
            }
        }
    }

    #[test]
    fn any_text_at_all_is_refused_or_means_something(text in ".{0,200}") {
        if let Err(e) = RunSpec::parse(&text) {
            prop_assert!(!e.to_string().contains('\n'));
        }
    }
}

const LEAST: &str = "v=2;run=000102030405060708090a0b0c0d0e0f;local=1048576";

#[test]
fn each_mistake_has_its_own_words() {
    assert_eq!(RunSpec::parse(LEAST).map(|spec| (spec.local, spec.run[15])), Ok((1 << 20, 15)));
    let errors = [
        ("", "v is missing"),
        ("v=1", "another version"),
        ("v=2;local=1", "run is missing"),
        (&LEAST.replace("0f;", "0f0;"), "32 hexadecimal"),
        (&LEAST.replace("00010203", "+0010203"), "32 hexadecimal"),
        (&LEAST.replace("local=", "local=+"), "local=\"+1048576\" is not a number"),
        (&format!("{LEAST};local=3"), "comes twice"),
        (&format!("{LEAST};node=a"), "HOST:PORT"),
        (&format!("{LEAST};node=a:1,"), "HOST:PORT"),
        (&format!("{LEAST};transport=pigeon"), "no transport"),
        (&format!("{LEAST};fault=mine"), "serve faults"),
        (&format!("{LEAST};dirty=pages"), "no policy"),
        (&format!("{LEAST};prefetch=1"), "on or off"),
        (&format!("{LEAST};mask=hold,hodl"), "no feature is called \"hodl\""),
        (&format!("{LEAST};sample=yes"), "0 or 1"),
        (&format!("{LEAST};grace_ms=5s"), "not a number"),
        (&format!("{LEAST};lcal=1"), "\"lcal\" is not a setting"),
        (&format!("{LEAST};trace"), "not key=value"),
    ];
    for (text, words) in errors {
        let told = RunSpec::parse(text).expect_err(text).to_string();
        assert!(told.contains(words), "{text}: {told}");
    }
}

#[test]
fn what_separates_settings_is_not_carried() {
    let with = |node: &str, trace: &str| RunSpec {
        nodes: vec![NodeAddr::Shm(node.into()).into()],
        trace: Some(trace.into()),
        ..RunSpec::default()
    };
    assert!(with("/a", "/b").to_text().is_ok());
    for (spec, key) in [(with("/a,b", "/b"), "node"), (with("/a;b", "/b"), "node"), (with("/a", "/b;c"), "trace")] {
        let refused = spec.to_text().expect_err(key);
        assert!(refused.key == key && refused.to_string().contains("choose another name"));
    }
}
