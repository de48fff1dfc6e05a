//! Where an object's links are: by hand, or by `#[derive(Linked)]`.

use crate::Far;
#[cfg(doc)]
use crate::Gc;

/// Objects that refer to others of their type, by [`Gc`] fields.
///
/// ```
/// use farmem_objects::{Gc, Linked};
///
/// #[derive(zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable, Linked)]
/// #[repr(C)]
/// struct Person {
///     friends: [Gc<Person>; 2],
///     age: u64,
/// }
/// assert_eq!(Person::LINKS, [0, 8]);
/// ```
/// The derive knows each field: a link, a number, an array of these, or `#[plain]`. A link
/// that keeps nothing alive is `#[weak]`. It refuses a type in which a link might be overlooked:
/// ```compile_fail
/// # use farmem_objects::{Gc, Linked};
/// #[derive(zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable, Clone, Copy)]
/// #[repr(C)]
/// struct Pair(Gc<Person>, Gc<Person>);
/// #[derive(zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable, Linked)]
/// #[repr(C)]
/// struct Person {
///     friends: Pair, // not a link, nor a number
/// }
/// ```
/// … and a link to objects of another type:
/// ```compile_fail,E0308
/// # use farmem_objects::{Gc, Linked};
/// #[derive(zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable, Linked)]
/// #[repr(C)]
/// struct Person {
///     house: Gc<u64>,
/// }
/// ```
pub trait Linked: Far {
    /// Where an object has its [`Gc`] fields: offsets, multiples of 8. A field that is left out
    /// does not keep its object alive.
    const LINKS: &[usize];
}

/// Links of runs: each has a place, and as many links side by side.
#[doc(hidden)]
pub const fn count_of(runs: &[(usize, usize)]) -> usize {
    let (mut all, mut n) = (0, 0);
    while n < runs.len() {
        all += runs[n].1;
        n += 1;
    }
    all
}

/// The places of all links of runs, `N` in all.
#[doc(hidden)]
pub const fn links_of<const N: usize>(runs: &[(usize, usize)]) -> [usize; N] {
    let (mut links, mut next, mut n) = ([0; N], 0, 0);
    while n < runs.len() {
        let mut one = 0;
        while one < runs[n].1 {
            links[next] = runs[n].0 + 8 * one;
            (next, one) = (next + 1, one + 1);
        }
        n += 1;
    }
    links
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_told_one_by_one() {
        const RUNS: &[(usize, usize)] = &[(0, 2), (24, 1), (40, 0), (48, 3)];
        assert_eq!(links_of::<{ count_of(RUNS) }>(RUNS), [0, 8, 24, 48, 56, 64]);
    }
}
