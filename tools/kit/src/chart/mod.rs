//! Charts as SVG.
//!
//! | file | |
//! |---|---|
//! | [`mod@curves`] | curves over two axes: what happens as something grows |
//! | [`mod@columns`] | a histogram: columns, and the share up to each |
//! | [`mod@rows`] | bars or marks in groups, one below the other: many things compared |
//! | [`mod@axis`] | from figures to places, with ticks |
//! | `canvas.rs` | what SVG is made of |
//!
//! Several drawings make a [`sheet`]. Costs under different systems lie decades apart, so most axes
//! are logarithmic. A figure is the median over rounds, a thin line its least and greatest.

pub mod axis;
mod canvas;
pub mod columns;
pub mod curves;
pub mod rows;

pub use axis::Axis;
pub use canvas::Canvas;
pub use columns::Columns;
pub use curves::{Curve, Panel, Point};
pub use rows::{Rows, Style};

/// Distinct to colour-blind readers too (Okabe and Ito, 2008). The first is for what others are
/// compared with.
pub const COLOURS: [&str; 8] = ["#999999", "#000000", "#0072B2", "#56B4E9", "#D55E00", "#E69F00", "#009E73", "#CC79A7"];

/// A part of a sheet.
pub trait Drawing {
    /// Width and height.
    fn size(&self) -> (f64, f64);
    /// Draws it, its upper left corner at 0, 0.
    fn draw(&self, on: &mut Canvas);
}

/// An SVG document of drawings in `columns` columns, below a title if it is not empty.
pub fn sheet<D: Drawing>(title: &str, drawings: &[D], columns: usize) -> String {
    let head = if title.is_empty() { 0.0 } else { 36.0 };
    let mut canvas = Canvas::default();
    canvas.heading((12.0, 24.0), 16.0, title);
    let (mut width, mut y) = (0f64, head);
    for row in drawings.chunks(columns.max(1)) {
        let (mut x, mut height) = (0.0, 0f64);
        for drawing in row {
            let (wide, high) = drawing.size();
            let mut part = Canvas::default();
            drawing.draw(&mut part);
            canvas.place((x, y), part);
            x += wide;
            height = height.max(high);
        }
        width = width.max(x);
        y += height;
    }
    canvas.document(width.max(CHARACTER * 1.4 * title.chars().count() as f64 + 24.0), y)
}

/// About what a character takes at most, at the usual size.
const CHARACTER: f64 = 6.3;

fn width_of(text: &str) -> f64 {
    CHARACTER * text.chars().count() as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Box(f64, f64);
    impl Drawing for Box {
        fn size(&self) -> (f64, f64) {
            (self.0, self.1)
        }
        fn draw(&self, on: &mut Canvas) {
            on.heading((0.0, 10.0), 11.0, "a < b & c");
        }
    }

    #[test]
    fn drawings_stand_in_rows() {
        let svg = sheet("", &[Box(100.0, 50.0), Box(80.0, 70.0), Box(10.0, 10.0)], 2);
        assert!(svg.contains("width=\"180\" height=\"80\""), "{svg}");
        assert!(svg.contains("translate(100,0)") && svg.contains("translate(0,70)"), "{svg}");
        assert_eq!(svg.matches("a &lt; b &amp; c").count(), 3);
        assert!(sheet::<Box>("", &[], 1).ends_with("</svg>\n"), "an empty sheet is still one");
    }
}
