//! Lines per dirty page, as an SVG histogram with the share up to each bar.

use std::fmt::Write;

use crate::count::Tally;

const LEFT: f64 = 60.0;
const TOP: f64 = 50.0;
const BAR: f64 = 11.0;
const HEIGHT: f64 = 260.0;

/// Draws it.
pub fn svg(title: &str, total: &Tally) -> String {
    let pages = total.pages.max(1) as f64;
    let share = |lines: usize| total.by_lines[lines] as f64 / pages;
    let most = (1..=64).map(share).fold(0.0, f64::max).max(0.01);
    // The axis ends at a round share.
    let top = [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0].into_iter().find(|&top| top >= most).unwrap_or(1.0);
    let x = |lines: f64| LEFT + (lines - 1.0) * BAR;
    let y = |share: f64| TOP + HEIGHT * (1.0 - share);
    let (right, bottom) = (x(65.0), TOP + HEIGHT);
    let mut out = format!(
        r#"<svg xmlns="http://www.w3.org/2000/svg" width="{0:.0}" height="{1:.0}" viewBox="0 0 {0:.0} {1:.0}" font-family="sans-serif" font-size="11">
<rect width="100%" height="100%" fill="white"/>
"#,
        right + 60.0,
        bottom + 50.0
    );
    let mut text = |at: (f64, f64), anchor: &str, size: u32, text: &str| {
        let escaped = text.replace('&', "&amp;").replace('<', "&lt;");
        let (x, y) = at;
        let _ =
            writeln!(out, r#"<text x="{x:.1}" y="{y:.1}" text-anchor="{anchor}" font-size="{size}">{escaped}</text>"#);
    };
    text((LEFT, 22.0), "start", 15, title);
    let ratio = total.pages_over_lines().map_or("nothing dirty".into(), |ratio| {
        format!("{} dirty pages, {} dirty lines: whole pages are {ratio:.2} times the lines", total.pages, total.lines)
    });
    text((LEFT, 39.0), "start", 11, &ratio);
    for quarter in 0..=4 {
        let part = f64::from(quarter) / 4.0;
        text((LEFT - 6.0, y(part) + 4.0), "end", 11, &format!("{:.3} %", 100.0 * part * top).replace(".000", ""));
        text((right + 6.0, y(part) + 4.0), "start", 11, &format!("{:.0} %", 100.0 * part));
    }
    for lines in [1, 8, 16, 24, 32, 40, 48, 56, 64] {
        text((x(f64::from(lines)) + BAR / 2.0, bottom + 15.0), "middle", 11, &lines.to_string());
    }
    text(
        ((LEFT + right) / 2.0, bottom + 34.0),
        "middle",
        11,
        "dirty lines of a dirty page (bars: share of pages; curve: share up to here)",
    );
    for quarter in 0..=4 {
        let at = y(f64::from(quarter) / 4.0);
        let _ = writeln!(out, r##"<line x1="{LEFT}" x2="{right:.1}" y1="{at:.1}" y2="{at:.1}" stroke="#ddd"/>"##);
    }
    let (mut so_far, mut curve) = (0.0, String::new());
    for lines in 1..=64 {
        let (part, at) = (share(lines), x(lines as f64));
        so_far += part;
        let _ = write!(curve, "{:.1},{:.1} ", at + BAR / 2.0, y(so_far.min(1.0)));
        if part > 0.0 {
            let from = y(part / top);
            let _ = writeln!(
                out,
                r##"<rect x="{:.1}" y="{from:.1}" width="{:.1}" height="{:.1}" fill="#0072B2"/>"##,
                at + 1.0,
                BAR - 2.0,
                bottom - from
            );
        }
    }
    let _ = writeln!(out, r##"<polyline points="{}" fill="none" stroke="#D55E00" stroke-width="1.5"/>"##, curve.trim());
    out.push_str("</svg>\n");
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diff::Change;

    #[test]
    fn a_bar_for_each_number_that_occurs() {
        let mut tally = Tally::default();
        [1, 3, 3, u64::MAX].into_iter().for_each(|lines| tally.add(Change { lines, bytes: 1 }));
        let svg = svg("a < b", &tally);
        assert_eq!(svg.matches("fill=\"#0072B2\"").count(), 3, "1, 2 and 64 lines");
        assert!(svg.contains("a &lt; b") && svg.ends_with("</svg>\n"));
        assert!(self::svg("", &Tally::default()).contains("nothing dirty"));
    }
}
