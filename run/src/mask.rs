//! Features that a run does without, or does in spite of what it finds. For tests, and for
//! measuring what a feature gives.

use std::fmt;
use std::str::FromStr;

/// A feature that can be masked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Feature {
    /// `process_madvise` is not used: as on kernels before Linux 6.13.
    ProcessMadvise,
    /// Dirty pages are not held by reference on their way out.
    Hold,
    /// As where the system has swap.
    Swapless,
    /// Changed lines go by WRITEs, as to a card, wherever they go.
    Records,
    /// Two bits of a line's twelve are looked at. Changed lines are overlooked, and the node's
    /// refusals put it right.
    Changes,
    /// Pages that leave are compared and copied whole alternately, to see which is faster.
    Alternate,
    /// Faults return with the kernel's help.
    Resume,
    /// The program's signals are blocked in faults.
    Open,
}

impl Feature {
    /// All of them, by their names.
    pub const ALL: [(Feature, &'static str); 8] = [
        (Feature::ProcessMadvise, "process_madvise"),
        (Feature::Hold, "hold"),
        (Feature::Swapless, "swapless"),
        (Feature::Records, "records"),
        (Feature::Changes, "changes"),
        (Feature::Alternate, "alternate"),
        (Feature::Resume, "resume"),
        (Feature::Open, "open"),
    ];
}

/// Features that are masked.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct Mask(u8);

impl Mask {
    /// Nothing is masked: as users run it.
    pub const NONE: Mask = Mask(0);

    /// With one more.
    #[must_use]
    pub const fn with(self, feature: Feature) -> Mask {
        Mask(self.0 | 1 << feature as u8)
    }

    /// Whether a feature is masked.
    #[inline(always)]
    pub const fn has(self, feature: Feature) -> bool {
        self.0 >> feature as u8 & 1 == 1
    }
}

/// Names, comma separated.
impl fmt::Display for Mask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut between = "";
        for (_, name) in Feature::ALL.iter().filter(|(feature, _)| self.has(*feature)) {
            write!(f, "{between}{name}")?;
            between = ",";
        }
        Ok(())
    }
}

impl fmt::Debug for Mask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Mask({self})")
    }
}

/// There is no feature of this name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NoFeature(pub String);

impl fmt::Display for NoFeature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no feature is called {:?}; there are", self.0)?;
        Feature::ALL.iter().try_for_each(|(_, name)| write!(f, " {name}"))
    }
}

impl std::error::Error for NoFeature {}

impl FromStr for Mask {
    type Err = NoFeature;

    fn from_str(text: &str) -> Result<Mask, NoFeature> {
        text.split(',').filter(|name| !name.is_empty()).try_fold(Mask::NONE, |mask, name| {
            let known = Feature::ALL.iter().find(|(_, known)| *known == name);
            known.map(|(feature, _)| mask.with(*feature)).ok_or_else(|| NoFeature(name.to_owned()))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_set_of_features_is_read_as_it_was_written() {
        for bits in 0..=u8::MAX {
            assert_eq!(Mask(bits).to_string().parse(), Ok(Mask(bits)));
        }
        assert!(!Mask::NONE.has(Feature::Hold) && Mask::NONE.with(Feature::Hold).has(Feature::Hold));
    }

    #[test]
    fn an_unknown_feature_is_refused_by_name() {
        let refused = "hold,uphold".parse::<Mask>().unwrap_err();
        assert_eq!(refused, NoFeature("uphold".into()));
        assert!(refused.to_string().contains("process_madvise"));
    }
}
