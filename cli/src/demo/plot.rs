//! One plot: slowdown against the share of memory that is local.

use std::fmt::Write;

use farmem_kit::chart::escaped;

/// A measured point.
pub struct Point {
    /// Share of the program's memory that was local, 0–1.
    pub share: f64,
    /// Time over native time.
    pub slowdown: f64,
    /// The local memory, for people.
    pub label: String,
}

const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 440.0;
const LEFT: f64 = 76.0;
const RIGHT: f64 = 724.0;
const TOP: f64 = 72.0;
const BOTTOM: f64 = 356.0;

/// The plot as an SVG document.
pub fn svg(title: &str, points: &[Point]) -> String {
    let greatest = points.iter().map(|p| p.slowdown).fold(1.0, f64::max);
    let (step, top) = ticks(greatest);
    // Less local memory to the right: the curve tells a story that way.
    let x = |share: f64| LEFT + (1.0 - share) * (RIGHT - LEFT);
    let y = |slowdown: f64| BOTTOM - slowdown / top * (BOTTOM - TOP);
    let mut out = String::new();
    let mut put = |line: &str| {
        let _ = writeln!(out, "{line}");
    };
    put(&format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" width=\"{WIDTH}\" height=\"{HEIGHT}\" \
         font-family=\"system-ui, 'DejaVu Sans', Helvetica, Arial, sans-serif\" font-size=\"13\" fill=\"#333\">"
    ));
    put(&format!("<rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"#fff\"/>"));
    put(&format!("<text x=\"{LEFT}\" y=\"32\" font-size=\"18\" font-weight=\"600\">{}</text>", escaped(title)));
    put(&format!("<text x=\"{LEFT}\" y=\"52\" fill=\"#666\">time over native time, as less of it is local</text>"));
    let mut at = 0.0;
    while at <= top + step / 2.0 {
        put(&format!("<line x1=\"{LEFT}\" x2=\"{RIGHT}\" y1=\"{0:.1}\" y2=\"{0:.1}\" stroke=\"#e4e4e4\"/>", y(at)));
        put(&format!(
            "<text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}x</text>",
            LEFT - 10.0,
            y(at) + 4.5,
            trimmed(at)
        ));
        at += step;
    }
    put(&format!(
        "<line x1=\"{LEFT}\" x2=\"{RIGHT}\" y1=\"{0:.1}\" y2=\"{0:.1}\" stroke=\"#888\" stroke-dasharray=\"5 4\"/>",
        y(1.0)
    ));
    put(&format!(
        "<text x=\"{RIGHT}\" y=\"{:.1}\" text-anchor=\"end\" fill=\"#666\" font-size=\"12\">native</text>",
        y(1.0) + 15.0
    ));
    let line: Vec<String> = points.iter().map(|p| format!("{:.1},{:.1}", x(p.share), y(p.slowdown))).collect();
    put(&format!(
        "<polyline points=\"{}\" fill=\"none\" stroke=\"#0b6e99\" stroke-width=\"2.5\" stroke-linejoin=\"round\"/>",
        line.join(" ")
    ));
    for point in points {
        let (px, py) = (x(point.share), y(point.slowdown));
        put(&format!("<circle cx=\"{px:.1}\" cy=\"{py:.1}\" r=\"4.5\" fill=\"#0b6e99\"/>"));
        // The first value stands right of its point, out of the axis's way; the others left, above the curve.
        let (dx, anchor) = if point.share > 0.99 { (8.0, "start") } else { (-8.0, "end") };
        put(&format!(
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"{anchor}\" font-weight=\"600\" fill=\"#0b6e99\">{:.2}x</text>",
            px + dx,
            py - 9.0,
            point.slowdown
        ));
        put(&format!(
            "<text x=\"{px:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{:.0} %</text>",
            BOTTOM + 22.0,
            point.share * 100.0
        ));
        put(&format!(
            "<text x=\"{px:.1}\" y=\"{:.1}\" text-anchor=\"middle\" fill=\"#888\" font-size=\"11\">{}</text>",
            BOTTOM + 38.0,
            escaped(&point.label)
        ));
    }
    put(&format!("<line x1=\"{LEFT}\" x2=\"{RIGHT}\" y1=\"{BOTTOM}\" y2=\"{BOTTOM}\" stroke=\"#333\"/>"));
    put(&format!(
        "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\" fill=\"#666\">local share of the program's memory</text>",
        (LEFT + RIGHT) / 2.0,
        BOTTOM + 64.0
    ));
    put("</svg>");
    out
}

/// A step of 1, 2 or 5 times a power of ten, and the multiple of it above the greatest value.
fn ticks(greatest: f64) -> (f64, f64) {
    let rough = greatest / 5.0;
    let power = 10f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].iter().map(|m| m * power).find(|step| *step >= rough).unwrap_or(10.0 * power);
    // Room above the last point for its value.
    (step, ((greatest * 1.06) / step).ceil() * step)
}

fn trimmed(value: f64) -> String {
    let text = format!("{value:.2}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_round_and_leave_room() {
        assert_eq!(ticks(1.0), (0.2, 1.2000000000000002));
        assert_eq!(ticks(9.0), (2.0, 10.0));
        assert_eq!(ticks(47.0), (10.0, 50.0));
        for greatest in [1.0, 1.3, 2.7, 8.0, 33.0, 250.0] {
            let (step, top) = ticks(greatest);
            assert!(top >= greatest && top / step <= 8.0, "{greatest}: {step} {top}");
        }
    }

    #[test]
    fn every_point_and_its_labels_are_drawn() {
        let points = [(1.0, 1.02), (0.5, 2.0), (0.1, 9.3)].map(|(share, slowdown)| Point {
            share,
            slowdown,
            label: "1 <MiB>".into(),
        });
        let svg = svg("a & b", &points);
        assert_eq!(svg.matches("<circle").count(), 3);
        assert!(svg.contains("a &amp; b") && svg.contains("9.30x") && svg.contains("1 &lt;MiB&gt;"));
    }
}
