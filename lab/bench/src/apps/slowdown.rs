//! A slowdown: one figure of the tables and plots.

use farmem_kit::pairs::Spread;

/// A figure, or what is known instead.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Figure {
    /// The rounds' ratios.
    Of(Spread),
    /// Given up: at least so much.
    Above(f64),
    /// Killed by the kernel, every time.
    Killed,
}

impl Figure {
    /// In a table or beside a point.
    pub fn show(self) -> String {
        match self {
            Figure::Of(spread) => times(spread.median),
            Figure::Above(least) => format!("> {}", times(least)),
            Figure::Killed => "killed".into(),
        }
    }
}

/// `1.04×`, `12.3×`, `140×`.
fn times(ratio: f64) -> String {
    match ratio {
        ratio if ratio < 9.995 => format!("{ratio:.2}×"),
        ratio if ratio < 99.95 => format!("{ratio:.1}×"),
        ratio => format!("{ratio:.0}×"),
    }
}
