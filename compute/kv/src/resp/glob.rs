//! Patterns of KEYS and SCAN: `*`, `?`, `[a-z]`, `[^a]`, `\x`.

/// Whether the pattern is that of the whole text.
pub fn matches(pattern: &[u8], text: &[u8]) -> bool {
    // Where to go on if what follows the last star does not fit: behind it, one byte further.
    let (mut p, mut t, mut star) = (0, 0, None);
    while t < text.len() {
        match one(&pattern[p..], text[t]) {
            Some(len) if pattern[p] != b'*' => {
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

/// Whether the first item of a pattern takes a byte: the item's length.
fn one(pattern: &[u8], byte: u8) -> Option<usize> {
    match pattern {
        [] => None,
        [b'?', ..] => Some(1),
        [b'\\', literal, ..] => (*literal == byte).then_some(2),
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
            (found != not).then_some(1 + at)
        }
        [literal, ..] => (*literal == byte).then_some(1),
    }
}

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
