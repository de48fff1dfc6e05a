//! Patterns of KEYS and SCAN: `*`, `?`, `[a-z]`, `[^a]`, `\x`.

use std::cell::OnceCell;

/// Whether the pattern is that of the whole text.
pub fn matches(pattern: &[u8], text: &[u8]) -> bool {
    // Where to go on if what follows the last star does not fit: behind it, one byte further.
    let (mut p, mut t, mut star) = (0, 0, None);
    while t < text.len() {
        match one(&pattern[p..], text[t]) {
            Some((len, true)) if pattern[p] != b'*' => {
                p += len;
                t += 1;
            }
            _ if pattern.get(p) == Some(&b'*') => {
                p += 1;
                star = Some((p, t));
            }
            _ => {
                let Some((behind, from)) = star else { return false };
                p = behind;
                t = from + 1;
                star = Some((behind, t));
            }
        }
    }
    pattern[p..].iter().all(|&byte| byte == b'*')
}

/// The length of the first item of a pattern, and whether it takes a byte.
fn one(pattern: &[u8], byte: u8) -> Option<(usize, bool)> {
    match pattern {
        [] => None,
        [b'?', ..] => Some((1, true)),
        [b'\\', literal, ..] => Some((2, *literal == byte)),
        [b'[', rest @ ..] => {
            let (not, from) = if rest.first() == Some(&b'^') { (true, 1) } else { (false, 0) };
            let (mut at, mut found) = (from, false);
            loop {
                match &rest[at.min(rest.len())..] {
                    [] => break,
                    [b']', ..] => {
                        at += 1;
                        break;
                    }
                    [b'\\', literal, ..] => {
                        found |= *literal == byte;
                        at += 2;
                    }
                    [low, b'-', high, ..] => {
                        let (low, high) = (low.min(high), low.max(high));
                        found |= (*low..=*high).contains(&byte);
                        at += 3;
                    }
                    [literal, ..] => {
                        found |= *literal == byte;
                        at += 1;
                    }
                }
            }
            Some((1 + at, found != not))
        }
        [literal, ..] => Some((1, *literal == byte)),
    }
}

/// Bytes of a pattern times those of a text, up to which [`matches()`] is fast enough.
const FEW: usize = 1 << 14;

/// A pattern that many names are matched with, which may be long. [`matches()`] takes a time that
/// grows with both lengths: seconds for one name of a MiB.
#[derive(Debug)]
pub struct Glob<'a> {
    pattern: &'a [u8],
    steps: OnceCell<Steps>,
}

impl<'a> Glob<'a> {
    /// Of this pattern.
    pub fn new(pattern: &'a [u8]) -> Glob<'a> {
        Glob { pattern, steps: OnceCell::new() }
    }

    /// Whether the pattern is that of the whole text.
    pub fn matches(&self, text: &[u8]) -> bool {
        if self.pattern.len().saturating_mul(text.len()) <= FEW {
            return matches(self.pattern, text);
        }
        self.steps.get_or_init(|| Steps::of(self.pattern)).take(text)
    }
}

/// A pattern as an automaton, a bit for each of its states: all states that a text may have led to
/// are moved on together, 64 at a time (Baeza-Yates and Gonnet, *A new approach to text searching*,
/// 1992).
#[derive(Debug)]
struct Steps {
    /// Words that the states take.
    words: usize,
    /// Items without stars. State `n`: the first `n` of them are behind.
    items: usize,
    /// The states in which a star takes any byte.
    stars: Vec<u64>,
    /// For each byte the states that it leads on from, `words` of them.
    taken: Vec<u64>,
}

impl Steps {
    fn of(pattern: &[u8]) -> Steps {
        // No pattern has more items than bytes.
        let words = pattern.len() / 64 + 1;
        let mut steps = Steps { words, items: 0, stars: vec![0; words], taken: vec![0; 256 * words] };
        let mut p = 0;
        while p < pattern.len() {
            let (word, bit) = (steps.items / 64, 1 << (steps.items % 64));
            if pattern[p] == b'*' {
                steps.stars[word] |= bit;
                p += 1;
                continue;
            }
            let mut len = 1;
            for byte in 0..=255u8 {
                let (item, takes) = one(&pattern[p..], byte).unwrap_or((1, false));
                len = item;
                if takes {
                    steps.taken[usize::from(byte) * words + word] |= bit;
                }
            }
            steps.items += 1;
            p += len;
        }
        steps
    }

    fn take(&self, text: &[u8]) -> bool {
        let mut states = vec![0u64; self.words];
        states[0] = 1;
        for &byte in text {
            let taken = &self.taken[usize::from(byte) * self.words..][..self.words];
            let mut carry = 0;
            for ((state, taken), stars) in states.iter_mut().zip(taken).zip(&self.stars) {
                let moved = *state & taken;
                *state = moved << 1 | carry | *state & stars;
                carry = moved >> 63;
            }
        }
        states[self.items / 64] >> (self.items % 64) & 1 == 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farmem_protocol::random::Random;

    #[test]
    fn patterns() {
        let yes = ["*", "h?llo", "h*o", "h[ae]llo", "h[^x]llo", "h[a-f]llo", "**l*o", "hello"];
        assert!(yes.iter().all(|pattern| matches(pattern.as_bytes(), b"hello")));
        let no = ["", "h", "h?", "h[x]llo", "h[^e]llo", "*x", "hello?", "h\\*o"];
        assert!(no.iter().all(|pattern| !matches(pattern.as_bytes(), b"hello")));
        assert!(matches(b"a\\*b", b"a*b") && matches(b"", b"") && matches(b"*", b""));
        // In no more than quadratic time.
        assert!(!matches(("a*".repeat(30) + "b").as_bytes(), "a".repeat(2000).as_bytes()));
    }

    #[test]
    fn an_automaton_takes_what_its_pattern_is_that_of() {
        let (mut random, mut taken) = (Random::new(30), 0);
        for round in 0..20_000 {
            let some = |alphabet: &[u8], most: usize, random: &mut Random| -> Vec<u8> {
                (0..random.index(most)).map(|_| alphabet[random.index(alphabet.len())]).collect()
            };
            let long = if round % 100 == 0 { 300 } else { 12 };
            let mut pattern = some(b"ab**?[^-]\\", long, &mut random);
            let text = some(b"abb-]*", long, &mut random);
            if round % 3 == 0 {
                pattern = [b"*", &text[..text.len() / 2], b"*", &pattern[..pattern.len().min(3)], b"*"].concat();
            }
            let expected = matches(&pattern, &text);
            assert_eq!(Steps::of(&pattern).take(&text), expected, "{pattern:?} {text:?}");
            taken += usize::from(expected);
        }
        assert!((2_000..18_000).contains(&taken), "{taken}");
    }

    #[test]
    fn a_long_pattern_and_a_long_name_take_no_time() {
        let pattern = [b"*", &[b'a'; 1000][..], b"b"].concat();
        let (glob, begun) = (Glob::new(&pattern), std::time::Instant::now());
        let mut name = vec![b'a'; 2 << 20];
        assert!(!glob.matches(&name));
        name.push(b'b');
        assert!(glob.matches(&name));
        assert!(begun.elapsed() < std::time::Duration::from_secs(2), "{:?}", begun.elapsed());
    }
}
