//! What strangers, nodes and operators are answered.

use super::*;
use std::sync::atomic::{AtomicUsize, Ordering};

fn alone(log: fn(&str)) -> Arc<Served> {
    let kept = Kept { term: Term::default(), intents: Vec::new() };
    Served::alone(Store::Memory, kept, 1, log)
}

/// Many who look at the rack are given one text, and a term that begins makes another.
#[test]
fn all_who_look_share_one_text() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let served = alone(|_| ());
        let look = || async { served.shown().await.ok().map(|shown| shown.rack.as_ptr()) };
        let (begun, first) = (Instant::now(), look().await.unwrap());
        let mut same = true;
        for _ in 0..1000 {
            same &= look().await == Some(first);
        }
        assert!(same || begun.elapsed() >= SHOWN_FOR);
        served.lock().state = State::default().led_in(Term { rack: 5, epoch: 7 });
        assert_ne!(look().await, Some(first));
        served.lock().role = Role::Stands("another leads".into());
        assert_eq!(look().await, None, "only the leader shows it");
    });
}

/// One that has just begun knows no node's beat. It answers then who asks what they would say.
#[test]
fn nobody_is_down_before_its_beat_was_due() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    runtime.block_on(async {
        let (served, from) = (alone(|_| ()), ConnectInfo(SocketAddr::from(([10, 0, 0, 9], 4711))));
        let said = |name: &str| {
            let (name, listen) = (name.to_owned(), vec![format!("{name}:7411")]);
            Json(Beat { name, domain: "d".into(), listen, ..Beat::default() })
        };
        for name in ["a", "b"] {
            assert!(beat(With(Arc::clone(&served)), from, said(name)).await.is_ok());
        }
        let intents = served.lock().state.intents();
        let kept = Kept { term: Term::default(), intents };
        let begins =
            || Served::alone(Store::Memory, Kept { term: kept.term, intents: kept.intents.clone() }, 1, |_| ());
        let served = begins();
        let headers: HeaderMap = [(ORDER_HEADER.parse().unwrap(), "1".parse().unwrap())].into_iter().collect();
        let orders = async |what: &str| {
            let path = Path(("a".to_owned(), what.to_owned()));
            order(With(Arc::clone(&served)), from, path, headers.clone()).await.err().map(|no| no.0)
        };
        let refuses = Some(StatusCode::SERVICE_UNAVAILABLE);
        let begun = Instant::now();
        let first = orders("forget").await;
        // On a busy machine this may ask too late.
        assert!(first == refuses || begun.elapsed() >= BEATS_WITHIN, "{first:?}");
        assert_eq!(orders("drain").await, None, "this is kept for the node");
        for name in ["a", "b"] {
            assert!(beat(With(Arc::clone(&served)), from, said(name)).await.is_ok());
        }
        assert_eq!(orders("forget").await, Some(StatusCode::CONFLICT), "it is up");
        let (without_beats, begun) = (begins(), Instant::now());
        assert!(without_beats.shown().await.is_ok() && begun.elapsed() >= BEATS_WITHIN, "{:?}", begun.elapsed());
    });
}

/// A stranger without tokens, or a node that flaps, writes no more than a part of the log.
#[test]
fn nodes_and_orders_make_lines_in_number() {
    static WRITTEN: AtomicUsize = AtomicUsize::new(0);
    let served = alone(|_| _ = WRITTEN.fetch_add(1, Ordering::Relaxed));
    let from = ConnectInfo(SocketAddr::from(([10, 0, 0, 9], 4711)));
    let headers: HeaderMap = [(ORDER_HEADER.parse().unwrap(), "1".parse().unwrap())].into_iter().collect();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        for n in 0..2000 {
            let (name, listen) = (format!("n{n}"), vec![format!("h{n}:7411")]);
            let said = Beat { name: name.clone(), domain: "d".into(), listen, ..Beat::default() };
            assert!(beat(With(Arc::clone(&served)), from, Json(said)).await.is_ok());
            for what in ["drain", "undrain"] {
                let path = Path((name.clone(), what.to_owned()));
                assert!(order(With(Arc::clone(&served)), from, path, headers.clone()).await.is_ok());
            }
        }
    });
    // 6000 were to be said, and one more a second is added.
    let written = WRITTEN.load(Ordering::Relaxed);
    assert!((100..1000).contains(&written), "{written} lines");
}

/// Names come from hosts and nodes. Nothing in the page could make markup, a script or an address of them.
#[test]
fn the_page_makes_no_markup_of_names() {
    for word in ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "Function(", "DOMParser"] {
        assert!(!PAGE.contains(word), "{word}");
    }
    for word in ["href", "src=", "srcdoc", "setAttribute", "javascript:", "location ="] {
        assert!(!PAGE.contains(word), "{word}");
    }
    assert!(PAGE_MAY.starts_with("default-src 'none'") && PAGE_MAY.contains("frame-ancestors 'none'"));
}

#[test]
fn an_address_of_no_host_becomes_the_nodes_own() {
    let from: IpAddr = "10.0.0.7".parse().unwrap();
    assert_eq!(completed("0.0.0.0:7411", from), "10.0.0.7:7411");
    assert_eq!(completed("[::]:7411", "::ffff:10.0.0.7".parse().unwrap()), "10.0.0.7:7411");
    assert_eq!(completed("10.1.1.1:7411", from), "10.1.1.1:7411");
    assert_eq!(completed("shelf:7411", from), "shelf:7411");
}
