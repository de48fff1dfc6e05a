//! The segments that a front end has at hand. A segment is told by its place and its checksum, and
//! never changes. So one that is here needs no look at the node, whoever has changed the value
//! since.

use crate::layout::At;
use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::rc::Rc;

/// Bytes of segments that stay here.
const BUDGET: usize = 32 << 20;
/// Bytes of a value that one object has, and of a segment at least.
const LEAST: usize = 8 << 10;

/// A segment that is to be read.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Wanted {
    /// Its object's first byte.
    pub at: At,
    /// Its object's checksum.
    pub checksum: u64,
    /// Bytes of its items.
    pub len: u32,
}

type Kept = HashMap<(At, u64), (Rc<Vec<u8>>, bool)>;
/// Segments that one command needs.
pub(crate) type Lent = HashMap<(At, u64), Rc<Vec<u8>>>;

/// See the module.
#[derive(Debug)]
pub struct Segments {
    /// A value that one object would have in more bytes is in segments. The smallest segments have
    /// as many at most. Tests set it.
    pub least: Cell<usize>,
    kept: RefCell<Kept>,
    order: RefCell<VecDeque<(At, u64)>>,
    bytes: Cell<usize>,
    lent: RefCell<Lent>,
    wanted: RefCell<Vec<Wanted>>,
}

impl Default for Segments {
    fn default() -> Segments {
        Segments {
            least: Cell::new(LEAST),
            kept: RefCell::default(),
            order: RefCell::default(),
            bytes: Cell::new(0),
            lent: RefCell::default(),
            wanted: RefCell::default(),
        }
    }
}

impl Segments {
    /// Has segments be smaller, if `FARMEM_KV_SEGMENT` says so: for tests, in which values are
    /// small.
    pub(crate) fn as_the_environment_says(&self) {
        let bytes = std::env::var("FARMEM_KV_SEGMENT").ok().and_then(|text| text.parse().ok());
        self.least.set(bytes.unwrap_or(LEAST).clamp(16, LEAST));
    }

    /// The bytes of a segment. `None`: it is not here, and wanted from now on.
    pub(super) fn get(&self, wanted: Wanted) -> Option<Rc<Vec<u8>>> {
        let name = (wanted.at, wanted.checksum);
        if let Some(bytes) = self.lent.borrow().get(&name) {
            return Some(Rc::clone(bytes));
        }
        if let Some((bytes, used)) = self.kept.borrow_mut().get_mut(&name) {
            *used = true;
            return Some(Rc::clone(bytes));
        }
        self.wanted.borrow_mut().push(wanted);
        None
    }

    /// Keeps a segment that was read or written.
    pub(super) fn keep(&self, at: At, checksum: u64, bytes: &Rc<Vec<u8>>) {
        let (mut kept, mut order) = (self.kept.borrow_mut(), self.order.borrow_mut());
        if kept.insert((at, checksum), (Rc::clone(bytes), false)).is_none() {
            order.push_back((at, checksum));
            self.bytes.set(self.bytes.get() + bytes.len() + 128);
        }
        while self.bytes.get() > BUDGET {
            let Some(name) = order.pop_front() else { return };
            if kept.get_mut(&name).is_some_and(|(_, used)| std::mem::take(used)) {
                order.push_back(name);
                continue;
            }
            let gone = kept.remove(&name).map_or(0, |(bytes, _)| bytes.len() + 128);
            self.bytes.set(self.bytes.get() - gone);
        }
    }

    /// Has these segments here while `look` runs, which waits for nothing. Returns also what it
    /// wanted.
    pub(super) fn with<T>(&self, lent: &mut Lent, look: impl FnOnce() -> T) -> (T, Vec<Wanted>) {
        self.lent.swap(&RefCell::new(std::mem::take(lent)));
        self.wanted.borrow_mut().clear();
        let came = look();
        *lent = self.lent.take();
        let mut wanted = self.wanted.take();
        let mut seen = std::collections::HashSet::new();
        wanted.retain(|one| seen.insert(*one));
        (came, wanted)
    }

    /// Whether a command has wanted a segment that is not here.
    pub(crate) fn is_wanting(&self) -> bool {
        !self.wanted.borrow().is_empty()
    }
}

#[test]
fn segments_stay_up_to_a_bound() {
    let segments = Segments::default();
    let bytes = Rc::new(vec![1; 1 << 20]);
    (1..100).for_each(|n| segments.keep(n * 64, n, &bytes));
    assert!(segments.bytes.get() <= BUDGET && segments.kept.borrow().len() > 30);
    let wanted = |n: u64| Wanted { at: n * 64, checksum: n, len: 1 << 20 };
    assert!(segments.get(wanted(99)).is_some() && segments.get(wanted(1)).is_none() && segments.is_wanting());
}
