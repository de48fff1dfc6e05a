//! The segments that a front end has at hand, and the heads that it has looked at last. A segment
//! is told by its place and its checksum, and never changes. So one that is here needs no look at
//! the node, whoever has changed the value since. A head is told by its key's hash and its checksum.

use super::{Body, Sides};
use crate::fast::Map;
use crate::layout::At;
use crate::object::Type;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

/// Bytes of segments that stay here.
const BUDGET: usize = 32 << 20;
/// Bytes of a value that one object has, and of a segment at least.
const LEAST: usize = 8 << 10;
/// Heads that stay here, and their entries together.
const HEADS: usize = 16;
const ENTRIES: usize = 1 << 16;

/// A segment that is to be read.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Wanted {
    /// Its object's first byte.
    pub at: At,
    /// Its object's checksum.
    pub checksum: u64,
    /// Bytes of its items.
    pub len: u32,
    /// The type of the value.
    pub kind: Type,
}

/// A head's name, and its entries.
type Head = ((u64, u64), Rc<Sides>);
type Kept = Map<(At, u64), (Body, bool)>;
/// Segments that one command needs.
pub(crate) type Lent = Map<(At, u64), Body>;

/// See the module.
#[derive(Debug)]
pub struct Segments {
    /// A value that one object would have in more bytes is in segments. The smallest segments have
    /// as many at most. Tests set it.
    pub least: Cell<usize>,
    kept: RefCell<Kept>,
    /// Those that were kept, in the order in which they came. Some have gone since.
    order: RefCell<VecDeque<(At, u64)>>,
    bytes: Cell<usize>,
    lent: RefCell<Lent>,
    wanted: RefCell<Vec<Wanted>>,
    /// The last one comes first.
    heads: RefCell<Vec<Head>>,
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
            heads: RefCell::default(),
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

    /// The items of a segment. `None`: it is not here, and wanted from now on.
    pub(super) fn get(&self, wanted: Wanted) -> Option<Body> {
        let name = (wanted.at, wanted.checksum);
        if let Some((body, used)) = self.kept.borrow_mut().get_mut(&name) {
            *used = true;
            return Some(body.clone());
        }
        if let Some(body) = self.lent.borrow().get(&name) {
            return Some(body.clone());
        }
        self.wanted.borrow_mut().push(wanted);
        None
    }

    /// Keeps a segment that was read or written.
    pub(super) fn keep(&self, at: At, checksum: u64, body: &Body) {
        let (mut kept, mut order) = (self.kept.borrow_mut(), self.order.borrow_mut());
        if kept.insert((at, checksum), (body.clone(), false)).is_none() {
            order.push_back((at, checksum));
            self.bytes.set(self.bytes.get() + taken(body));
        }
        if order.len() > 2 * kept.len() + HEADS {
            order.retain(|name| kept.contains_key(name));
        }
        while self.bytes.get() > BUDGET {
            let Some(name) = order.pop_front() else { return };
            if kept.get_mut(&name).is_some_and(|(_, used)| std::mem::take(used)) {
                order.push_back(name);
                continue;
            }
            let gone = kept.remove(&name).map_or(0, |(body, _)| taken(&body));
            self.bytes.set(self.bytes.get() - gone);
        }
    }

    /// Forgets segments that no head lists any more. An operation that still needs one reads it.
    pub(crate) fn forget(&self, gone: &[(At, u64)]) {
        let mut kept = self.kept.borrow_mut();
        let bytes: usize = gone.iter().filter_map(|name| kept.remove(name)).map(|(body, _)| taken(&body)).sum();
        self.bytes.set(self.bytes.get() - bytes);
    }

    /// The entries of a head.
    pub(super) fn head(&self, name: (u64, u64)) -> Option<Rc<Sides>> {
        let mut heads = self.heads.borrow_mut();
        let place = heads.iter().position(|(other, _)| *other == name)?;
        heads[..=place].rotate_right(1);
        Some(Rc::clone(&heads[0].1))
    }

    /// Keeps the entries of a head, all of whose segments are written.
    pub(super) fn keep_head(&self, name: (u64, u64), sides: &Rc<Sides>) {
        let mut heads = self.heads.borrow_mut();
        // An older head of the value is not looked at again.
        heads.retain(|((hash, _), _)| *hash != name.0);
        heads.insert(0, (name, Rc::clone(sides)));
        let mut entries = 0;
        let fits = heads.iter().take_while(|(_, sides)| {
            entries += sides.iter().map(|side| side.parts.len()).sum::<usize>();
            entries <= ENTRIES
        });
        let fits = fits.count().clamp(1, HEADS);
        heads.truncate(fits);
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

fn taken(body: &Body) -> usize {
    body.len() + 128
}

#[test]
fn segments_stay_up_to_a_bound() {
    let segments = Segments::default();
    let body = Body::of(&vec![1; 1 << 20]);
    (1..100).for_each(|n| segments.keep(n * 64, n, &body));
    assert!(segments.bytes.get() <= BUDGET && segments.kept.borrow().len() > 30);
    let wanted = |n: u64| Wanted { at: n * 64, checksum: n, len: 1 << 20, kind: Type::List };
    assert!(segments.get(wanted(99)).is_some() && segments.get(wanted(1)).is_none() && segments.is_wanting());
    segments.forget(&[(99 * 64, 99), (64, 1)]);
    assert!(segments.get(wanted(99)).is_none() && segments.get(wanted(98)).is_some());
    let bytes = segments.bytes.get();
    // One that is kept and forgotten in turn leaves nothing.
    for n in 200..2000 {
        segments.keep(n, n, &Body::of(b"x"));
        segments.forget(&[(n, n)]);
    }
    assert!(segments.bytes.get() == bytes && segments.order.borrow().len() < 200);
}

#[test]
fn the_last_heads_stay() {
    let segments = Segments::default();
    let sides = Rc::new(Sides::default());
    (0..40).for_each(|n| segments.keep_head((n, 1), &sides));
    assert!(segments.head((39, 1)).is_some() && segments.head((24, 1)).is_some() && segments.head((23, 1)).is_none());
    segments.keep_head((39, 2), &sides);
    assert!(segments.head((39, 1)).is_none() && segments.head((39, 2)).is_some());
    assert_eq!(segments.heads.borrow().len(), HEADS);
}
