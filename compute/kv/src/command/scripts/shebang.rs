//! The first line by which a script says what it is: `#!lua flags=no-writes,allow-oom`.

use crate::command::Fail;

/// The flags that redis knows. Only the first one means something here.
const FLAGS: [&str; 5] = ["no-writes", "allow-oom", "allow-stale", "no-cluster", "allow-cross-slot-keys"];

/// Where the script begins, behind this line, and whether it may change nothing.
///
/// # Errors
/// The line is not one that redis would take.
pub fn read(text: &[u8]) -> Result<(usize, bool), Fail> {
    if !text.starts_with(b"#!") {
        return Ok((0, false));
    }
    let end = text.iter().position(|&byte| byte == b'\n').ok_or_else(|| Fail::new("Invalid script shebang"))?;
    let wrong = |what: &str, word: &str| Err(Fail::new(format!("{what}: {}", word.escape_default())));
    let line = String::from_utf8_lossy(&text[..end.min(1024)]).into_owned();
    let mut words = line.split_ascii_whitespace();
    let engine = words.next().unwrap_or_default();
    if engine != "#!lua" {
        return wrong("Unexpected engine in script shebang", engine);
    }
    let mut reads = false;
    for word in words {
        let Some(flags) = word.strip_prefix("flags=") else { return wrong("Unknown lua shebang option", word) };
        for flag in flags.split(',').filter(|flag| !flag.is_empty()) {
            if !FLAGS.contains(&flag) {
                return wrong("Unexpected flag in script shebang", flag);
            }
            reads |= flag == FLAGS[0];
        }
    }
    // With the line's end, so that errors name the right line.
    Ok((end, reads))
}

#[test]
fn a_first_line_is_read_as_redis_reads_it() {
    let error = |text: &str| match read(text.as_bytes()) {
        Err(Fail(crate::resp::Reply::Error(text))) => text,
        other => panic!("{other:?}"),
    };
    assert_eq!(read(b"return 1"), Ok((0, false)));
    assert_eq!(read(b"#!lua\nreturn 1"), Ok((5, false)));
    assert_eq!(read(b"#!lua flags=\r\n"), Ok((13, false)));
    assert_eq!(read(b"#!lua flags=allow-oom,no-writes \n"), Ok((32, true)));
    assert_eq!(error("#!lua"), "ERR Invalid script shebang");
    assert_eq!(error("#!not-lua\n"), "ERR Unexpected engine in script shebang: #!not-lua");
    assert_eq!(error("#!lua badger=data\n"), "ERR Unknown lua shebang option: badger=data");
    assert_eq!(error("#!lua flags=what?\n"), "ERR Unexpected flag in script shebang: what?");
}
