//! Numbers as redis adds them in INCRBYFLOAT and HINCRBYFLOAT: C's `long double` of x86-64, with 64
//! bits of mantissa. So a sum of decimal fractions is the same text at a store and at redis.
//!
//! `rustc_apfloat` reads and adds. This module writes: 17 decimals at most, and no exponent.

use rustc_apfloat::ieee::{Double, X87DoubleExtended};
use rustc_apfloat::{Float, Round, StatusAnd};
use std::fmt;

/// Bytes of a number's text at most, as in redis: the largest number has 4933 digits.
const LONGEST: usize = 5 * 1024 - 1;
/// Decimals that are written.
const DECIMALS: u32 = 17;
/// The bias of x87's exponent, and the 63 bits of the mantissa behind its first.
const BIAS: i32 = 16383 + 63;

/// See the module.
#[derive(Clone, Copy)]
pub struct Extended(X87DoubleExtended);

impl Extended {
    pub const ZERO: Extended = Extended(X87DoubleExtended::ZERO);

    /// Reads a number as C's `strtold` does, but neither blanks before it nor `nan`.
    pub fn parse(text: &[u8]) -> Option<Extended> {
        parse(text).map(Extended)
    }

    pub fn plus(self, other: Extended) -> Extended {
        let StatusAnd { value, .. } = self.0.add_r(other.0, Round::NearestTiesToEven);
        Extended(value)
    }

    /// Whether it is neither infinite nor, as the sum of both infinities is, no number.
    pub fn is_finite(self) -> bool {
        self.0.is_finite()
    }
}

/// A double by C's form for hexadecimal numbers.
pub fn hexadecimal(text: &str) -> Option<f64> {
    let double: Double = parse(text.as_bytes())?;
    Some(f64::from_bits(u64::try_from(double.to_bits()).ok()?))
}

fn parse<T: Float>(text: &[u8]) -> Option<T> {
    let text = std::str::from_utf8(text).ok().filter(|text| text.len() <= LONGEST)?;
    let negative = text.starts_with('-');
    let digits = text.strip_prefix(['-', '+']).unwrap_or(text).to_ascii_lowercase();
    let number = match digits.as_str() {
        "inf" | "infinity" => T::INFINITY,
        _ if !is_number(&digits) => return None,
        // C needs no exponent, the library does.
        _ if digits.starts_with("0x") && !digits.contains('p') => T::from_str(&format!("{digits}p0")).ok()?,
        _ => T::from_str_r(&digits, Round::NearestTiesToEven).ok()?.value,
    };
    // It overflows or underflows: C says ERANGE, and redis refuses it.
    let lost = number.is_infinite() && !digits.starts_with("inf")
        || number.is_zero() && digits.split(['e', 'p']).next()?.contains(|digit| ('1'..='9').contains(&digit));
    if lost {
        return None;
    }
    Some(if negative { -number } else { number })
}

/// Whether this is digits, a point among or beside them, and an exponent, if any: the library's
/// reader supposes that much.
fn is_number(text: &str) -> bool {
    let (digits, of, mark) = match text.strip_prefix("0x") {
        Some(digits) => (digits, 16, 'p'),
        None => (text, 10, 'e'),
    };
    let (digits, exponent) = digits.split_once(mark).map_or((digits, None), |(digits, power)| (digits, Some(power)));
    let (whole, part) = digits.split_once('.').unwrap_or((digits, ""));
    let all = |text: &str| text.chars().all(|digit| digit.is_digit(of));
    let power = exponent.is_none_or(|power| {
        let power = power.strip_prefix(['-', '+']).unwrap_or(power);
        // Beyond that all are zero or infinite, and the library counts in 32 bits.
        !power.is_empty() && power.len() <= 6 && power.bytes().all(|digit| digit.is_ascii_digit())
    });
    whole.len() + part.len() > 0 && all(whole) && all(part) && power
}

impl fmt::Display for Extended {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.0.is_finite() {
            return write!(to, "{}inf", if self.0.is_negative() { "-" } else { "" });
        }
        let bits = self.0.to_bits();
        let (mantissa, power) = (bits as u64, ((bits >> 64) & 0x7FFF) as i32 - BIAS);
        let (whole, part) =
            if power >= 0 { (large(mantissa, power), 0) } else { split(mantissa, power.unsigned_abs()) };
        if self.0.is_negative() && (whole != "0" || part != 0) {
            to.write_str("-")?;
        }
        to.write_str(&whole)?;
        if part == 0 {
            return Ok(());
        }
        let decimals = format!("{part:0width$}", width = DECIMALS as usize);
        write!(to, ".{}", decimals.trim_end_matches('0'))
    }
}

/// The digits of `mantissa` · 2^`power`.
fn large(mantissa: u64, power: i32) -> String {
    const LIMB: u128 = 10u128.pow(18);
    // Decimal limbs, the least first.
    let mut limbs = vec![mantissa % LIMB as u64, mantissa / LIMB as u64];
    let mut left = power;
    while left > 0 {
        let by = left.min(59);
        left -= by;
        let mut carry = 0;
        for limb in &mut limbs {
            // 2^59 is less than 10^18, so a carry is a limb.
            let scaled = (u128::from(*limb) << by) + carry;
            (*limb, carry) = ((scaled % LIMB) as u64, scaled / LIMB);
        }
        if carry > 0 {
            limbs.push(carry as u64);
        }
    }
    let digits: String = limbs.iter().rev().map(|limb| format!("{limb:018}")).collect();
    let digits = digits.trim_start_matches('0');
    if digits.is_empty() { "0".into() } else { digits.into() }
}

/// `mantissa` / 2^`power` as its whole part, and [`DECIMALS`] digits rounded to the nearest, to the
/// even one between two. 64 bits of mantissa and 57 of 10^17 fit 128.
fn split(mantissa: u64, power: u32) -> (String, u64) {
    let scale = 10u64.pow(DECIMALS);
    let whole = mantissa.checked_shr(power).unwrap_or(0);
    let rest = if power < 64 { mantissa & ((1 << power) - 1) } else { mantissa };
    let (scaled, mut part) = (u128::from(rest) * u128::from(scale), 0);
    if power < 128 {
        let half = 1u128 << (power - 1);
        let left = scaled & ((half << 1).wrapping_sub(1));
        part = (scaled >> power) as u64;
        part += u64::from(left > half || left == half && part % 2 == 1);
    }
    // Rounded up to one.
    ((u128::from(whole) + u128::from(part / scale)).to_string(), part % scale)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sum(one: &str, other: &str) -> String {
        Extended::parse(one.as_bytes()).unwrap().plus(Extended::parse(other.as_bytes()).unwrap()).to_string()
    }

    /// As redis 7.0.15 of x86-64 answers.
    #[test]
    fn sums_are_those_of_redis() {
        for (one, other, both) in [
            ("0.1", "0.2", "0.3"),
            ("-5", "17.3333333333333333", "12.3333333333333333"),
            ("10.50", "0.1", "10.6"),
            ("5.0e3", "2.0e2", "5200"),
            ("3", "-3", "0"),
            ("-0", "0", "0"),
            ("1e-320", "0", "0"),
            ("0", "-0.000000000000000004", "0"),
            ("0.999999999999999999", "0", "1"),
            ("0x1p3", "0x10", "24"),
            ("9223372036854775807", "1", "9223372036854775808"),
            ("1e20", "0.5", "100000000000000000000"),
            ("1e30", "0", "1000000000000000000024696061952"),
            (".5", "5.", "5.5"),
        ] {
            assert_eq!(sum(one, other), both, "{one} + {other}");
        }
        assert_eq!(sum("1e400", "0").len(), 401);
        assert!(!Extended::parse(b"inf").unwrap().plus(Extended::parse(b"-inf").unwrap()).is_finite());
        let large = sum("1e4000", "1");
        assert_eq!((large.len(), sum(&large, "-1e4000").as_str()), (4000, "0"));
        for wrong in [
            "",
            "-",
            "nan",
            " 1",
            "1 ",
            "x",
            "1e",
            "0x",
            "0x1p",
            "1_0",
            "--1",
            ".",
            "1e1000000000",
            "+-1",
            "1.2.3",
            "1e99999",
            "1e-9999",
        ] {
            assert!(Extended::parse(wrong.as_bytes()).is_none(), "{wrong}");
        }
        assert_eq!((hexadecimal("-0x1.8p1"), hexadecimal("0xg")), (Some(-3.0), None));
    }
}
