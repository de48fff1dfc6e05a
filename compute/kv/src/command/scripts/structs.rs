//! Numbers and texts as bytes for scripts, as redis's module `struct` has them.
//!
//! A format is a row of options, each of a letter and perhaps a number. They say how the next value is
//! written, or set the order of bytes and the alignment from there on.

use super::library::error;
use super::msgpack::RESULTS;
use mlua::{Lua, LuaString, MultiValue, Table, Value};

/// Bytes of a number, at most.
const WIDEST: usize = 32;
/// Bytes of a format, and of what one call writes.
const FORMAT: usize = 1 << 20;
const LONGEST: usize = 16 << 20;

/// The table `struct`.
pub fn module(lua: &Lua) -> mlua::Result<Table> {
    let table = lua.create_table()?;
    let pack = |lua: &Lua, args: MultiValue| {
        let mut args = Args::new(lua, "pack", args);
        let format = args.text()?;
        let out = pack(&mut Format::new(&format.as_bytes())?, &mut args)?;
        lua.create_string(out)
    };
    let unpack = |lua: &Lua, args: MultiValue| {
        let mut args = Args::new(lua, "unpack", args);
        let (format, data) = (args.text()?, args.text()?);
        let from = if args.has_more() { args.number()? } else { 1.0 };
        if from.is_nan() || from < 1.0 {
            return Err(wrong("unpack", 3, "offset must be 1 or greater"));
        }
        unpack(lua, &mut Format::new(&format.as_bytes())?, &data.as_bytes(), from as usize - 1)
    };
    let size = |lua: &Lua, args: MultiValue| {
        let format = Args::new(lua, "size", args).text()?;
        Ok(size(&mut Format::new(&format.as_bytes())?)? as f64)
    };
    table.raw_set("pack", lua.create_function(pack)?)?;
    table.raw_set("unpack", lua.create_function(unpack)?)?;
    table.raw_set("size", lua.create_function(size)?)?;
    Ok(table)
}

/// The error about an argument.
fn wrong(function: &str, argument: usize, what: &str) -> mlua::Error {
    error(format!("bad argument #{argument} to '{function}' ({what})"))
}

fn bad_option(function: &str, option: u8) -> mlua::Error {
    wrong(function, 1, &format!("invalid format option '{}'", char::from(option).escape_default()))
}

/// The arguments of a call, from the first on.
struct Args<'a> {
    lua: &'a Lua,
    function: &'static str,
    values: MultiValue,
    taken: usize,
}

impl Args<'_> {
    fn new<'a>(lua: &'a Lua, function: &'static str, values: MultiValue) -> Args<'a> {
        Args { lua, function, values, taken: 0 }
    }

    fn has_more(&self) -> bool {
        self.values.front().is_some_and(|next| !next.is_nil())
    }

    /// The next one in the form that is wanted: a number may be a text, and the other way round.
    fn next<T>(&mut self, what: &str, of: impl Fn(&Lua, Value) -> mlua::Result<Option<T>>) -> mlua::Result<T> {
        self.taken += 1;
        let next = self.values.pop_front();
        let got = next.as_ref().map_or("no value", Value::type_name);
        match next.map(|next| of(self.lua, next)).transpose()?.flatten() {
            Some(value) => Ok(value),
            None => Err(wrong(self.function, self.taken, &format!("{what} expected, got {got}"))),
        }
    }

    fn text(&mut self) -> mlua::Result<LuaString> {
        self.next("string", Lua::coerce_string)
    }

    fn number(&mut self) -> mlua::Result<f64> {
        self.next("number", Lua::coerce_number)
    }
}

/// The rest of a format, and the settings that it has made.
struct Format<'a> {
    left: &'a [u8],
    big: bool,
    align: usize,
}

impl Format<'_> {
    fn new(text: &[u8]) -> mlua::Result<Format<'_>> {
        if text.len() > FORMAT {
            return Err(error(format!("struct: the format is longer than {} MiB", FORMAT >> 20)));
        }
        // As in C, where a text ends with a byte of 0.
        let left = text.split(|&byte| byte == 0).next().unwrap_or_default();
        Ok(Format { left, big: false, align: 1 })
    }

    /// The number that comes next, if there is one.
    fn number(&mut self, otherwise: usize) -> mlua::Result<usize> {
        let digits = self.left.iter().take_while(|byte| byte.is_ascii_digit()).count();
        let (digits, rest) = self.left.split_at(digits);
        self.left = rest;
        if digits.is_empty() {
            return Ok(otherwise);
        }
        let add = |sum: i32, &digit: &u8| sum.checked_mul(10)?.checked_add(i32::from(digit - b'0'));
        let number = digits.iter().try_fold(0, add).ok_or_else(|| error("integral size overflow"))?;
        Ok(number as usize)
    }

    /// The next option, and the bytes of its value. 0: it has no value, or all bytes of it. An option
    /// that sets something has done so.
    fn next(&mut self) -> mlua::Result<Option<(u8, usize)>> {
        let Some((&option, rest)) = self.left.split_first() else { return Ok(None) };
        self.left = rest;
        let size = match option {
            b'b' | b'B' | b'x' => 1,
            b'h' | b'H' => 2,
            b'f' => 4,
            b'l' | b'L' | b'T' | b'd' => 8,
            b'c' => self.number(1)?,
            b'i' | b'I' => self.number(4)?,
            _ => 0,
        };
        match option {
            b'i' | b'I' if size > WIDEST => {
                return Err(error(format!("integral size {size} is larger than limit of {WIDEST}")));
            }
            b'<' | b'>' => self.big = option == b'>',
            b'!' => {
                self.align = self.number(8)?;
                if !self.align.is_power_of_two() {
                    return Err(error(format!("alignment {} is not a power of 2", self.align)));
                }
            }
            _ => {}
        }
        Ok(Some((option, size)))
    }

    /// Bytes between a place and the next value.
    fn gap(&self, at: usize, option: u8, size: usize) -> usize {
        if size == 0 || option == b'c' {
            return 0;
        }
        let size = size.min(self.align);
        (size - (at & (size - 1))) & (size - 1)
    }
}

/// Whether an option is a number without a fraction.
fn is_int(option: u8) -> bool {
    b"bBhHlLTiI".contains(&option)
}

/// Whether an option has no value.
fn sets(option: u8) -> bool {
    b" <>!".contains(&option)
}

fn pack(format: &mut Format<'_>, args: &mut Args<'_>) -> mlua::Result<Vec<u8>> {
    let mut out = Vec::new();
    while let Some((option, size)) = format.next()? {
        out.resize(out.len() + format.gap(out.len(), option, size), 0);
        match option {
            b'x' => out.push(0),
            b'f' => put(&mut out, &(args.number()? as f32).to_le_bytes(), format.big),
            b'd' => put(&mut out, &args.number()?.to_le_bytes(), format.big),
            b'c' | b's' => {
                let text = args.text()?;
                let text = text.as_bytes();
                let taken = if size == 0 { Some(&text[..]) } else { text.get(..size) };
                out.extend_from_slice(taken.ok_or_else(|| wrong(args.function, args.taken, "string too short"))?);
                if option == b's' {
                    out.push(0);
                }
            }
            option if is_int(option) => {
                let number = args.number()?;
                let word = if number < 0.0 { number as i64 as u64 } else { number as u64 };
                let mut bytes = [0; WIDEST];
                bytes[..8].copy_from_slice(&word.to_le_bytes());
                put(&mut out, &bytes[..size], format.big);
            }
            option if sets(option) => {}
            option => return Err(bad_option(args.function, option)),
        }
        if out.len() > LONGEST {
            return Err(error(format!("struct: the text is longer than {} MiB", LONGEST >> 20)));
        }
    }
    Ok(out)
}

/// Appends the bytes of a number, of which the lowest is the first.
fn put(out: &mut Vec<u8>, bytes: &[u8], big: bool) {
    let begin = out.len();
    out.extend_from_slice(bytes);
    if big {
        out[begin..].reverse();
    }
}

/// The lowest bytes of a number, the lowest first.
fn lowest(bytes: &[u8], big: bool) -> [u8; 8] {
    let mut lowest = [0; 8];
    let at = |n: usize| if big { bytes.len().checked_sub(n + 1) } else { Some(n) };
    for (n, byte) in lowest.iter_mut().enumerate() {
        *byte = at(n).and_then(|at| bytes.get(at)).copied().unwrap_or(0);
    }
    lowest
}

fn unpack(lua: &Lua, format: &mut Format<'_>, data: &[u8], from: usize) -> mlua::Result<MultiValue> {
    let (mut at, mut found) = (from, Vec::new());
    let too_short = || wrong("unpack", 2, "data string too short");
    while let Some((option, mut size)) = format.next()? {
        at = at.saturating_add(format.gap(at, option, size));
        let rest = data.get(at..).ok_or_else(too_short)?;
        let value = rest.get(..size).ok_or_else(too_short)?;
        if found.len() >= RESULTS {
            return Err(error("too many results"));
        }
        match option {
            b'x' => {}
            b'f' => found
                .push(Value::Number(f64::from(f32::from_bits(u64::from_le_bytes(lowest(value, format.big)) as u32)))),
            b'd' => found.push(Value::Number(f64::from_le_bytes(lowest(value, format.big)))),
            b'c' => {
                if size == 0 {
                    size = length(found.pop())?.ok_or_else(too_short)?;
                }
                found.push(Value::String(lua.create_string(rest.get(..size).ok_or_else(too_short)?)?));
            }
            b's' => {
                let end = rest.iter().position(|&byte| byte == 0);
                let end = end.ok_or_else(|| error("unfinished string in data"))?;
                found.push(Value::String(lua.create_string(&rest[..end])?));
                size = end + 1;
            }
            option if is_int(option) => {
                let word = u64::from_le_bytes(lowest(value, format.big));
                let unused = 64 - 8 * size.clamp(1, 8) as u32;
                let signed = (word << unused) as i64 >> unused;
                found.push(Value::Number(if option.is_ascii_lowercase() { signed as f64 } else { word as f64 }));
            }
            option if sets(option) => {}
            option => return Err(bad_option("unpack", option)),
        }
        at += size;
    }
    found.push(Value::Number((at + 1) as f64));
    Ok(MultiValue::from_iter(found))
}

/// The length of a text, which was read before it. `None`: there is no such text.
fn length(before: Option<Value>) -> mlua::Result<Option<usize>> {
    match before {
        Some(Value::Number(len)) => Ok((len >= 0.0 && len < LONGEST as f64 * 64.0).then_some(len as usize)),
        _ => Err(error("format 'c0' needs a previous size")),
    }
}

fn size(format: &mut Format<'_>) -> mlua::Result<usize> {
    let mut at = 0;
    while let Some((option, size)) = format.next()? {
        at += format.gap(at, option, size) + size;
        match option {
            b's' => return Err(wrong("size", 1, "option 's' has no fixed size")),
            b'c' if size == 0 => return Err(wrong("size", 1, "option 'c0' has no fixed size")),
            option if option.is_ascii_alphanumeric() || sets(option) => {}
            option => return Err(bad_option("size", option)),
        }
    }
    Ok(at)
}

#[cfg(test)]
mod tests {
    use super::*;
    use farmem_protocol::random::Random;

    /// A machine with the module alone.
    fn lua() -> Lua {
        let lua = Lua::new();
        lua.globals().raw_set("struct", module(&lua).unwrap()).unwrap();
        lua
    }

    #[test]
    fn bytes_are_those_of_redis() {
        let lua = lua();
        for (said, is) in [
            ("struct.pack('>I2b', 258, -1)", "\x01\x02\u{ff}"),
            ("struct.pack('<i3', -2)", "\u{fe}\u{ff}\u{ff}"),
            ("struct.pack('>I10', 5)", "\0\0\0\0\0\0\0\0\0\x05"),
            ("struct.pack('!4bi', 1, 2)", "\x01\0\0\0\x02\0\0\0"),
            ("struct.pack('!bd', 1, 0)", "\x01\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0"),
            ("struct.pack('x>fc2s', 1, 'abc', 'd')", "\0\x3f\u{80}\0\0abd\0"),
            ("struct.pack('c0', 'abc')", "abc"),
            ("struct.pack('Bc0', 3, 'abc', 'unused')", "\x03abc"),
        ] {
            let bytes = lua.load(format!("return {said}")).eval::<LuaString>().unwrap();
            let is: Vec<u8> = is.chars().map(|one| one as u8).collect();
            assert_eq!(bytes.as_bytes(), is, "{said}");
        }
        for (said, is) in [
            ("struct.unpack('>I2b', '\\1\\2\\255')", "258 -1 4"),
            ("struct.unpack('<i3', '\\254\\255\\255')", "-2 4"),
            ("struct.unpack('bc0>H', '\\2ab\\1\\0')", "ab 256 6"),
            ("struct.unpack('s', 'ab\\0c', 2)", "b 4"),
            ("struct.unpack('d', struct.pack('d', 1.5))", "1.5 9"),
            ("struct.unpack('>l<L', struct.pack('>l<L', -7, 7))", "-7 7 17"),
            ("struct.unpack('', '', 9)", "9"),
            ("struct.size('!bhlT>>c7')", "31"),
            ("struct.size('i3')", "3"),
        ] {
            let told = lua.load(format!("local t = {{{said}}}; return table.concat(t, ' ')")).eval::<String>().unwrap();
            assert_eq!(told, is, "{said}");
        }
        for (said, why) in [
            ("struct.pack('i33', 1)", "integral size 33 is larger than limit of 32"),
            ("struct.pack('!3')", "alignment 3 is not a power of 2"),
            ("struct.pack('!0')", "alignment 0 is not a power of 2"),
            ("struct.pack('q')", "bad argument #1 to 'pack' (invalid format option 'q')"),
            ("struct.pack('c5', 'abc')", "string too short"),
            ("struct.pack('b')", "bad argument #2 to 'pack' (number expected, got no value)"),
            ("struct.pack('b', {})", "number expected, got table"),
            ("struct.pack(('c0'):rep(40), unpack(t))", "longer than"),
            ("struct.pack(('x'):rep(2^21))", "longer than"),
            ("struct.unpack('c99999999999', '')", "integral size overflow"),
            ("struct.unpack('i', 'abc')", "data string too short"),
            ("struct.unpack('b', 'abc', 2^60)", "data string too short"),
            ("struct.unpack('!8bc2147483647', 'abc')", "data string too short"),
            ("struct.unpack('b', 'abc', 0)", "offset must be 1 or greater"),
            ("struct.unpack('c0', 'abc')", "format 'c0' needs a previous size"),
            ("struct.unpack('bc0', '\\255abc')", "data string too short"),
            ("struct.unpack('bc0', '\\9abc')", "data string too short"),
            ("struct.unpack('s', 'abc')", "unfinished string in data"),
            ("struct.unpack(('b'):rep(8000), ('x'):rep(8000))", "too many results"),
            ("struct.size('s')", "option 's' has no fixed size"),
            ("struct.size('c0')", "option 'c0' has no fixed size"),
            ("struct.size('?')", "invalid format option '?'"),
        ] {
            let prepared = "local t, s = {}, ('x'):rep(2^19); for n = 1, 40 do t[n] = s end;";
            let failed = lua.load(format!("{prepared} return {said}")).eval::<Value>().unwrap_err().to_string();
            assert!(failed.contains(why), "{said}: {failed}");
        }
    }

    /// Formats and texts of all kinds: none does harm, and what was packed is unpacked.
    #[test]
    fn hostile_formats_do_no_harm() {
        let lua = lua();
        let (pack, unpack, size) = {
            let table = lua.globals().raw_get::<Table>("struct").unwrap();
            let of = |name: &str| table.raw_get::<mlua::Function>(name).unwrap();
            (of("pack"), of("unpack"), of("size"))
        };
        let mut random = Random::new(28);
        for _ in 0..20_000 {
            let alphabet = b"bBhHlLTiIfdcsx<>! 0123456789q\0\xff";
            let format: Vec<u8> = (0..random.index(12)).map(|_| alphabet[random.index(alphabet.len())]).collect();
            let mut data = vec![0; random.index(64)];
            random.fill(&mut data);
            let from = [1.0, 2.0, -1.0, 1e300, f64::NAN, 60.0][random.index(6)];
            let format = lua.create_string(&format).unwrap();
            let _ = unpack.call::<MultiValue>((&format, lua.create_string(&data).unwrap(), from));
            let _ = size.call::<f64>(&format);
            let values: Vec<Value> = (0..12)
                .map(|_| match random.index(4) {
                    0 => Value::String(lua.create_string(&data).unwrap()),
                    1 => Value::Number(f64::from_bits(u64::from_le_bytes(lowest(&data, false)))),
                    2 => Value::Nil,
                    _ => Value::Number(random.index(300) as f64 - 150.0),
                })
                .collect();
            let mut all = MultiValue::from_iter(values);
            all.push_front(Value::String(format.clone()));
            let Ok(packed) = pack.call::<LuaString>(all) else { continue };
            // The same bytes come of what is read from them.
            let Ok(mut read) = unpack.call::<MultiValue>((&format, &packed)) else { continue };
            if format.as_bytes().windows(2).any(|pair| pair == b"c0") {
                continue;
            }
            read.pop_back();
            read.push_front(Value::String(format.clone()));
            let again = pack.call::<LuaString>(read);
            assert!(again.is_ok(), "{format:?}");
        }
    }
}
