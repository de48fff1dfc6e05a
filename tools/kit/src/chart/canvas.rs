//! SVG, element by element.

use std::fmt::Write;

/// Elements drawn so far.
#[derive(Clone, Debug, Default)]
pub struct Canvas(String);

/// Which part of a text stands at its place.
#[derive(Clone, Copy, Debug)]
pub(super) enum Anchor {
    Start,
    Middle,
    End,
}

pub(super) const INK: &str = "#333";
pub(super) const FAINT: &str = "#666";
pub(super) const GRID: &str = "#ddd";
pub(super) const REFERENCE: &str = "#777";

pub(super) type At = (f64, f64);

// Writing to a string does not fail.
impl Canvas {
    pub(super) fn text(&mut self, (x, y): At, anchor: Anchor, fill: &str, text: &str) {
        let anchor = match anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        let text = escaped(text);
        let _ = writeln!(self.0, r#"<text x="{x:.1}" y="{y:.1}" text-anchor="{anchor}" fill="{fill}">{text}</text>"#);
    }

    /// A title, from here to the right.
    pub fn heading(&mut self, (x, y): (f64, f64), size: f64, text: &str) {
        if !text.is_empty() {
            let text = escaped(text);
            let _ =
                writeln!(self.0, r#"<text x="{x:.1}" y="{y:.1}" font-size="{size}" font-weight="600">{text}</text>"#);
        }
    }

    pub(super) fn line(&mut self, from: At, to: At, colour: &str) {
        let ((x1, y1), (x2, y2)) = (from, to);
        let _ = writeln!(self.0, r#"<line x1="{x1:.1}" y1="{y1:.1}" x2="{x2:.1}" y2="{y2:.1}" stroke="{colour}"/>"#);
    }

    pub(super) fn bar(&mut self, (x, y): At, width: f64, height: f64, colour: &str) {
        let width = width.max(0.0);
        let _ = writeln!(
            self.0,
            r#"<rect x="{x:.1}" y="{y:.1}" width="{width:.1}" height="{height:.1}" fill="{colour}"/>"#
        );
    }

    pub(super) fn dot(&mut self, (x, y): At, colour: &str) {
        let _ = writeln!(self.0, r#"<circle cx="{x:.1}" cy="{y:.1}" r="3.5" fill="{colour}"/>"#);
    }

    /// A tip that points upwards from here: it goes on beyond.
    pub(super) fn tip(&mut self, (x, y): At, colour: &str) {
        let _ = writeln!(self.0, r#"<path d="M{x:.1} {:.1} l-5 9 h10 z" fill="{colour}"/>"#, y - 9.0);
    }

    pub(super) fn polyline(&mut self, points: &[At], colour: &str, is_dashed: bool) {
        let points: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        let (points, dash) = (points.join(" "), if is_dashed { r#" stroke-dasharray="6 4""# } else { "" });
        let look = r#"fill="none" stroke-width="2" stroke-linejoin="round""#;
        let _ = writeln!(self.0, r#"<polyline points="{points}" {look} stroke="{colour}"{dash}/>"#);
    }

    /// Draws a piece of a curve in a legend.
    pub(super) fn key(&mut self, (x, y): At, colour: &str, is_dashed: bool) {
        let dash = if is_dashed { r#" stroke-dasharray="6 4""# } else { "" };
        let end = x + 20.0;
        let at = format!(r#"x1="{x:.1}" y1="{y:.1}" x2="{end:.1}" y2="{y:.1}""#);
        let _ = writeln!(self.0, r#"<line {at} stroke-width="2.5" stroke="{colour}"{dash}/>"#);
    }

    pub(super) fn place(&mut self, (x, y): At, part: Canvas) {
        let _ = write!(self.0, "<g transform=\"translate({x},{y})\">\n{}</g>\n", part.0);
    }

    pub(super) fn document(self, width: f64, height: f64) -> String {
        let (width, height) = (width.ceil(), height.ceil());
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
             viewBox=\"0 0 {width} {height}\" font-family=\"system-ui, 'DejaVu Sans', Helvetica, Arial, sans-serif\" \
             font-size=\"11\" fill=\"{INK}\">\n<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n{}</svg>\n",
            self.0
        )
    }
}

/// Text as it may stand in an SVG file.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
