//! A second thread of a host, which goes on while the first one waits: an actor that is asked
//! whenever something arrives, or its own time has come.

use std::cell::RefCell;

/// Does what is to be done now; when it wants to be asked again at the latest.
type Actor = Box<dyn FnMut(u64) -> u64>;

thread_local! {
    static BESIDE: RefCell<Option<(Actor, u64)>> = const { RefCell::new(None) };
}

/// From now on this actor goes on beside whoever waits on this thread.
pub fn goes_on(actor: impl FnMut(u64) -> u64 + 'static) {
    BESIDE.with(|beside| *beside.borrow_mut() = Some((Box::new(actor), 0)));
}

/// No actor goes on any more.
pub fn ends() {
    BESIDE.with(|beside| *beside.borrow_mut() = None);
}

/// When the actor is to be asked. `None`: there is none, or it waits itself.
pub(crate) fn due() -> Option<u64> {
    BESIDE.with(|beside| beside.borrow().as_ref().map(|(_, due)| *due))
}

/// Lets the actor do what it has to do.
pub(crate) fn act(now: u64) {
    // Taken out meanwhile: where it waits itself, it is not asked again.
    let Some((mut actor, _)) = BESIDE.with(|beside| beside.borrow_mut().take()) else { return };
    let due = actor(now);
    BESIDE.with(|beside| beside.borrow_mut().get_or_insert((actor, due)).1 = due);
}
