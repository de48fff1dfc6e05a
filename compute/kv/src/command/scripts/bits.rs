//! Operations on bits for scripts, as redis's module `bit` has them: on numbers of 32 bits.

use mlua::{IntoLua, Lua, Table, Variadic};

/// Functions of one and of two numbers, by name.
type Unary = (&'static str, fn(u32) -> u32);
type Binary = (&'static str, fn(u32, u32) -> u32);

/// The table `bit`.
pub fn module(lua: &Lua) -> mlua::Result<Table> {
    let table = lua.create_table()?;
    let unary: [Unary; 3] = [("tobit", |x| x), ("bnot", |x| !x), ("bswap", u32::swap_bytes)];
    for (name, of) in unary {
        table.raw_set(name, lua.create_function(move |_, x: f64| Ok(told(of(bits(x)))))?)?;
    }
    let several: [Binary; 3] = [("band", |x, y| x & y), ("bor", |x, y| x | y), ("bxor", |x, y| x ^ y)];
    for (name, of) in several {
        let fold = move |_: &Lua, (first, rest): (f64, Variadic<f64>)| {
            Ok(told(rest.iter().fold(bits(first), |all, x| of(all, bits(*x)))))
        };
        table.raw_set(name, lua.create_function(fold)?)?;
    }
    let shifts: [Binary; 5] = [
        ("lshift", |x, n| x << n),
        ("rshift", |x, n| x >> n),
        ("arshift", |x, n| (x as i32 >> n) as u32),
        ("rol", u32::rotate_left),
        ("ror", u32::rotate_right),
    ];
    for (name, of) in shifts {
        // Of the number of places, the lowest five bits count.
        let shift = move |_: &Lua, (x, n): (f64, f64)| Ok(told(of(bits(x), bits(n) & 31)));
        table.raw_set(name, lua.create_function(shift)?)?;
    }
    let digits = |lua: &Lua, (x, n): (f64, Option<f64>)| {
        let n = n.map_or(8, |n| (bits(n) as i32).clamp(-8, 8));
        let all = format!("{:08x}", bits(x));
        let shown = &all[8 - n.unsigned_abs() as usize..];
        if n < 0 { shown.to_ascii_uppercase().into_lua(lua) } else { shown.into_lua(lua) }
    };
    table.raw_set("tohex", lua.create_function(digits)?)?;
    Ok(table)
}

/// The lowest 32 bits of a number.
fn bits(x: f64) -> u32 {
    x.round_ties_even().rem_euclid(4_294_967_296.0) as u32
}

/// A result: with a sign.
fn told(x: u32) -> f64 {
    f64::from(x as i32)
}
