//! Times as people write them: `30s`, `500ms`, `2m`, `1.5s`, `30d`; a bare number is seconds.

use std::time::Duration;

/// Why a text is not a time.
#[derive(Debug, PartialEq, thiserror::Error)]
pub enum NotATime {
    /// No number, or another unit.
    #[error("not a time; write for example 500ms, 30s, 2m or 30d")]
    Text,
    /// A number beyond the longest.
    #[error("above a year, the longest time: at most 365d")]
    Long,
}

/// Reads a time; at most a year.
pub fn parse(text: &str) -> Result<Duration, NotATime> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let number: f64 = number.parse().map_err(|_| NotATime::Text)?;
    let seconds = match unit.trim() {
        "ms" => number / 1000.0,
        "" | "s" => number,
        "m" | "min" => number * 60.0,
        "h" => number * 3600.0,
        "d" => number * 86400.0,
        _ => return Err(NotATime::Text),
    };
    let year = 365.0 * 86400.0;
    Duration::try_from_secs_f64(seconds).ok().filter(|time| time.as_secs_f64() <= year).ok_or(NotATime::Long)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn people_write_times_in_many_ways() {
        assert_eq!(parse("30s"), Ok(Duration::from_secs(30)));
        assert_eq!(parse("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(parse("1.5 m"), Ok(Duration::from_secs(90)));
        assert_eq!(parse("7"), Ok(Duration::from_secs(7)));
        assert_eq!(parse("30d"), Ok(Duration::from_secs(30 * 86400)));
        for bad in ["", "s", "-1s", "1w", "1e9"] {
            assert_eq!(parse(bad), Err(NotATime::Text), "{bad}");
        }
        for long in ["9999999h", "366d"] {
            assert_eq!(parse(long), Err(NotATime::Long), "{long}");
        }
    }

    proptest! {
        #[test]
        fn no_text_makes_the_parser_panic(text in "\\PC*|[0-9.]{0,40}[msh]{0,3}") {
            let _ = parse(&text);
        }
    }
}
