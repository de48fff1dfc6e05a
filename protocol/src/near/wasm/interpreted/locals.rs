//! The locals of a module. Three bytes can declare fifty thousand, which are work for each call of their
//! function and for its translation. So they are counted before. Pure.

/// The most locals of one function: what a call may have to clear.
const OF_ONE: u64 = 256;
/// The most locals of all functions together.
const OF_ALL: u64 = 4096;
/// The section of functions' bodies.
const CODE: u8 = 10;

/// Takes a byte.
fn byte(from: &mut &[u8]) -> Option<u8> {
    let (&first, rest) = from.split_first()?;
    *from = rest;
    Some(first)
}

/// Takes a number of 32 bits, in LEB128: five bytes at most.
fn number(from: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..35).step_by(7) {
        let next = byte(from)?;
        value |= u64::from(next & 0x7f) << shift;
        if next & 0x80 == 0 {
            return u32::try_from(value).is_ok().then_some(value);
        }
    }
    None
}

/// Takes as many bytes as a number before them says.
fn part<'a>(from: &mut &'a [u8]) -> Option<&'a [u8]> {
    let len = usize::try_from(number(from)?).ok()?;
    let (part, rest) = from.split_at_checked(len)?;
    *from = rest;
    Some(part)
}

/// Whether no function of a module has more locals than it may have. `None`: this is no module.
pub fn are_few(module: &[u8]) -> Option<bool> {
    let (mut module, mut all) = (module.get(8..)?, 0);
    while !module.is_empty() {
        let kind = byte(&mut module)?;
        let mut section = part(&mut module)?;
        if kind != CODE {
            continue;
        }
        for _ in 0..number(&mut section)? {
            let mut body = part(&mut section)?;
            let mut of_this = 0;
            for _ in 0..number(&mut body)? {
                of_this += number(&mut body)?;
                // Its type: one byte, for numbers and references alike.
                byte(&mut body)?;
            }
            all += of_this;
            if of_this > OF_ONE || all > OF_ALL {
                return Some(false);
            }
        }
    }
    Some(true)
}
