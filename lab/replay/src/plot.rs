//! One picture: misses over Belady's bound, a bar for each policy.

use crate::report::{BUILDABLE, POLICIES, Report};
use std::fmt::Write;

/// The plot as an SVG document.
pub fn svg(report: &Report) -> String {
    let ratios = report.over_bound();
    let greatest = ratios.iter().copied().fold(1.0, f64::max);
    let mut out = String::from(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 640 400\" font-family=\"system-ui, sans-serif\" \
         font-size=\"13\" fill=\"#333\">\n<rect width=\"640\" height=\"400\" fill=\"#fff\"/>\n\
         <text x=\"24\" y=\"32\" font-size=\"17\" font-weight=\"600\">Misses, as a multiple of Belady's bound</text>\n\
         <text x=\"24\" y=\"52\" fill=\"#666\">geometric mean over traces and local shares; grey policies see every access</text>\n",
    );
    for (i, (name, ratio)) in POLICIES.iter().zip(ratios).enumerate() {
        let y = 76 + 27 * i;
        let fill = if i < BUILDABLE { "#0b6e99" } else { "#aaa" };
        let length = ratio / greatest * 460.0;
        let _ = writeln!(
            out,
            "<text x=\"24\" y=\"{}\">{name}</text><rect x=\"100\" y=\"{y}\" width=\"{length:.1}\" height=\"22\" \
             fill=\"{fill}\"/><text x=\"{:.1}\" y=\"{}\">{ratio:.2}</text>",
            y + 16,
            106.0 + length,
            y + 16
        );
    }
    out + "</svg>\n"
}
