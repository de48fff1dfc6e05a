//! Which thread gets which context, and which threads are waited for.

use super::*;

fn tp(n: usize) -> usize {
    0x7f00_0000_0000 + n * 0x2_1040
}

/// Threads that come and go, more than there are contexts, pass one thread's belongings on.
/// Threads that exist together have their own, however many came before.
#[test]
fn what_a_thread_had_is_the_next_ones() {
    let threads = Threads::new(8);
    let first = threads.enter_as(tp(0)).thread.number;
    threads.leave_as(tp(0));
    for n in 1..2 * CONTEXTS {
        assert_eq!(threads.enter_as(tp(n)).thread.number, first);
        threads.leave_as(tp(n));
    }
    let own: Vec<u32> = (0..CONTEXTS).map(|n| threads.enter_as(tp(n)).thread.number).collect();
    let again: Vec<u32> = (0..CONTEXTS).map(|n| threads.enter_as(tp(n)).thread.number).collect();
    let different = own.iter().collect::<std::collections::HashSet<_>>().len();
    assert_eq!((own == again, different), (true, CONTEXTS));
}

/// A thread that has left and come back is not waited for, and none that comes later.
#[test]
fn every_thread_is_waited_for_once() {
    let threads = Threads::new(8);
    drop(threads.enter_as(tp(1)));
    assert!(threads.all_leave_once(0), "nobody is in");
    let inside = threads.enter_as(tp(2));
    assert!(!threads.all_leave_once(1_000_000));
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| threads.all_leave_once(60_000_000_000));
        std::thread::sleep(std::time::Duration::from_millis(20));
        drop(inside);
        // It may be seen outside, or in again.
        let again = threads.enter_as(tp(2));
        assert!(waits.join().unwrap());
        drop(again);
    });
}

/// A thread that comes while a fork is under way may have set its flag when the child begins.
/// The child has no such thread, and its own next fork would wait for it.
#[test]
fn a_child_waits_for_no_thread_of_its_parents() {
    let threads = Threads::new(8);
    let mut own = threads.enter_as(tp(0));
    drop(threads.enter_as(tp(1)));
    threads.close(&own);
    let late = |context: &&Context| context.owner.load(Ordering::Relaxed) == tp(1);
    threads.contexts.iter().find(late).unwrap().inside.store(1, Ordering::Relaxed);
    threads.forget_links(&mut own);
    threads.open();
    let inside = threads.contexts.iter().filter(|context| is_in(context.inside.load(Ordering::Relaxed))).count();
    assert_eq!(inside, 1, "the child itself");
}
