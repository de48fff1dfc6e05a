//! Numbers for people: three digits that matter and a unit.

/// Bytes, in powers of 1024: `812 MiB`, `3.1 GiB`.
pub fn bytes(n: u64) -> String {
    scaled(n as f64, 1024.0, &["B", "KiB", "MiB", "GiB", "TiB", "PiB"], false)
}

/// A count: `812`, `1.24 M`.
pub fn count(n: u64) -> String {
    scaled(n as f64, 1000.0, &["", "k", "M", "G", "T"], false)
}

/// A duration given in nanoseconds: `6.2 µs`, `41 ms`, `4.2 s`, `3 min 20 s`.
pub fn nanos(ns: u64) -> String {
    let seconds = ns / 1_000_000_000;
    if seconds >= 60 {
        return match (seconds / 3600, seconds / 60 % 60) {
            (0, minutes) => format!("{minutes} min {} s", seconds % 60),
            (hours, minutes) => format!("{hours} h {minutes} min"),
        };
    }
    scaled(ns as f64, 1000.0, &["ns", "µs", "ms", "s"], true)
}

/// A share of a whole: `63 %`, `0.4 %`; `-` when there is no whole.
pub fn share(part: u64, whole: u64) -> String {
    if whole == 0 {
        return "-".into();
    }
    let percent = 100.0 * part as f64 / whole as f64;
    if percent > 0.0 && percent < 9.95 { format!("{percent:.1} %") } else { format!("{percent:.0} %") }
}

fn scaled(mut n: f64, base: f64, units: &[&str], fine: bool) -> String {
    let mut unit = 0;
    // 999.5 would print as "1000": go on to the next unit from there.
    while n >= base - 0.5 && unit + 1 < units.len() {
        n /= base;
        unit += 1;
    }
    let decimals = if unit == 0 && !fine || n >= 99.95 || n.fract() == 0.0 && unit == 0 {
        0
    } else if n >= 9.995 {
        1
    } else {
        2
    };
    format!("{n:.decimals$} {}", units[unit]).trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_digits_and_a_unit() {
        assert_eq!(bytes(0), "0 B");
        assert_eq!(bytes(1023), "1023 B");
        assert_eq!(bytes(3 << 30), "3.00 GiB");
        assert_eq!(bytes(812 << 20), "812 MiB");
        assert_eq!(count(12), "12");
        assert_eq!(count(999_600), "1.00 M");
        assert_eq!(count(1_240_000), "1.24 M");
        assert_eq!(nanos(6_200), "6.20 µs");
        assert_eq!(nanos(41_000_000), "41.0 ms");
        assert_eq!(nanos(200_000_000_000), "3 min 20 s");
        assert_eq!(nanos(7_300_000_000_000), "2 h 1 min");
        assert_eq!(share(1, 3), "33 %");
        assert_eq!(share(1, 1000), "0.1 %");
        assert_eq!(share(0, 0), "-");
    }
}
