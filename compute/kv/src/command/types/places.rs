//! The names of a command among the items of a key.

use std::collections::HashMap;

/// Names that are compared one by one. To hash each item for a few names would take longer.
const FEW: usize = 8;

/// Where each name of a command is among a key's items. One pass over the items finds all of them.
/// A command may have half a million names: to look for each by itself would hold up the front end
/// for minutes.
pub enum Places<'n> {
    Few(Vec<(&'n [u8], Option<usize>)>),
    Many(HashMap<&'n [u8], Option<usize>>),
}

impl<'n> Places<'n> {
    /// `there`: the names of the items, in order. Of those that are alike the first counts.
    pub fn of<'t>(names: &[&'n [u8]], there: impl Iterator<Item = &'t [u8]>) -> Places<'n> {
        let none = names.iter().map(|name| (*name, None));
        let mut places = if names.len() <= FEW { Places::Few(none.collect()) } else { Places::Many(none.collect()) };
        for (n, name) in there.enumerate() {
            match &mut places {
                Places::Few(few) => {
                    for (_, place) in few.iter_mut().filter(|(one, _)| *one == name) {
                        place.get_or_insert(n);
                    }
                }
                Places::Many(many) => {
                    if let Some(place) = many.get_mut(name) {
                        place.get_or_insert(n);
                    }
                }
            }
        }
        places
    }

    /// Where a name is.
    pub fn get(&self, name: &[u8]) -> Option<usize> {
        match self {
            Places::Few(few) => few.iter().find(|(one, _)| *one == name)?.1,
            Places::Many(many) => *many.get(name)?,
        }
    }

    /// An item of this name, which there was none of, is there now.
    pub fn set(&mut self, name: &[u8], at: usize) {
        match self {
            Places::Few(few) => {
                for (_, place) in few.iter_mut().filter(|(one, _)| *one == name) {
                    *place = Some(at);
                }
            }
            Places::Many(many) => {
                if let Some(place) = many.get_mut(name) {
                    *place = Some(at);
                }
            }
        }
    }
}

#[test]
fn names_are_found_however_many_they_are() {
    let there = [&b"b"[..], b"a", b"b", b"c"];
    for more in [0, 20] {
        let others: Vec<String> = (0..more).map(|n| format!("x{n}")).collect();
        let names: Vec<&[u8]> =
            [&b"a"[..], b"b", b"d", b"a"].into_iter().chain(others.iter().map(String::as_bytes)).collect();
        let mut places = Places::of(&names, there.into_iter());
        let found = [&b"a"[..], b"b", b"d", b"c"].map(|name| places.get(name));
        assert_eq!(found, [Some(1), Some(0), None, None], "{more}");
        places.set(b"d", 9);
        assert_eq!((places.get(b"d"), places.get(b"a")), (Some(9), Some(1)));
    }
}
