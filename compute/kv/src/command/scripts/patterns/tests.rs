use super::*;
use farmem_protocol::random::Random;
use mlua::{LuaOptions, StdLib};

/// A machine whose table `own` has Lua's functions, and `ours` those of this module.
fn both() -> Lua {
    let lua = Lua::new_with(StdLib::STRING, LuaOptions::default()).unwrap();
    let strings = lua.globals().raw_get::<Table>("string").unwrap();
    let own = lua.create_table().unwrap();
    for name in ["find", "match", "gmatch", "gsub"] {
        own.raw_set(name, strings.raw_get::<Function>(name).unwrap()).unwrap();
    }
    install(&lua, &strings, &Current::default()).unwrap();
    lua.globals().raw_set("own", own).unwrap();
    lua.load(
        r#"
        function said(of, name, ...)
            if name == "gmatch" then
                local all = {}
                local ok, e = pcall(function(...)
                    for a, b, c in of.gmatch(...) do
                        all[#all + 1] = tostring(a) .. "," .. tostring(b) .. "," .. tostring(c)
                        if #all > 50 then break end
                    end
                end, ...)
                local text = ok and "" or "error"
                for _, one in pairs(all) do text = text .. one .. ";" end
                return text
            end
            local found = { pcall(of[name], ...) }
            if not found[1] then return "error" end
            local text = ""
            for n = 2, 8 do text = text .. tostring(found[n]) .. ";" end
            return text
        end
        "#,
    )
    .exec()
    .unwrap();
    lua
}

fn same(lua: &Lua, name: &str, args: &[Value]) {
    let said = lua.globals().raw_get::<Function>("said").unwrap();
    let of = |of: &str| {
        let table = lua.globals().raw_get::<Table>(of).unwrap();
        let all = [Value::Table(table), Value::String(lua.create_string(name).unwrap())];
        said.call::<LuaString>(all.into_iter().chain(args.iter().cloned()).collect::<MultiValue>()).unwrap()
    };
    let [own, ours] = [of("own"), of("string")];
    assert_eq!(ours.to_string_lossy(), own.to_string_lossy(), "{name} {args:?}");
}

#[test]
fn results_are_those_of_lua() {
    let (lua, mut numbers) = (both(), Random::new(7));
    const ITEMS: [&str; 40] = [
        "a", "b", ".", "%a", "%d", "%s", "%w", "%A", "[ab]", "[^a]", "[%d-]", "[a-c]", "[]a]", "[^]]", "%%", "%.", "*",
        "+", "-", "?", "(", ")", "()", "%1", "%2", "%b()", "%bab", "%f[%a]", "%f[^b]", "^", "$", "[", "%", "(a*)",
        "(.-)", "(b+)", "x", "1", " ", "%z",
    ];
    const BYTES: &[u8] = b"aaabbbc()1 \0.-%^$]x";
    const BY: [&str; 8] = ["<%0>", "%1", "%2%1", "", "x%%y", "%", "%a", "plain"];
    let string = |bytes: &[u8]| Value::String(lua.create_string(bytes).unwrap());
    for _ in 0..6000 {
        let text: Vec<u8> = (0..numbers.index(12)).map(|_| BYTES[numbers.index(BYTES.len())]).collect();
        let pattern: String = (0..numbers.index(6)).map(|_| ITEMS[numbers.index(ITEMS.len())]).collect();
        let (text, pattern) = (string(&text), string(pattern.as_bytes()));
        let from = Value::Number(numbers.index(9) as f64 - 4.0);
        let args = [text.clone(), pattern.clone(), from];
        same(&lua, "find", &args);
        same(&lua, "match", &args);
        same(&lua, "match", &args[..2]);
        same(&lua, "gmatch", &args[..2]);
        let by = string(BY[numbers.index(BY.len())].as_bytes());
        same(&lua, "gsub", &[text.clone(), pattern.clone(), by.clone()]);
        same(&lua, "gsub", &[text, pattern, by, Value::Number(numbers.index(3) as f64)]);
    }
}

#[test]
fn replacements_come_from_tables_and_functions() {
    let lua = both();
    let text = |code: &str| lua.load(format!("return tostring({code})")).eval::<String>().unwrap();
    for code in [
        "OF.gsub('hello world', '%w+', {hello = 'bye', world = false})",
        "OF.gsub('hello world', '(%w)(%w*)', function(a, b) return b .. a end)",
        "OF.gsub('abc', '%w', function() end)",
        "OF.gsub(12345, 3, 'x')",
        "OF.find('a.b', '.', 1, true)",
        "OF.find('abc', '', 10)",
        "select('#', OF.match('abc', '()b()'))",
        "pcall(OF.gsub, 'abc', 'b', function() return {} end)",
        "pcall(OF.find, nil, 'b')",
        "pcall(OF.gsub, 'abc', 'b')",
    ] {
        let [own, ours] = ["own", "string"].map(|of| text(&code.replace("OF", of)));
        assert_eq!(ours, own, "{code}");
    }
}

/// A text that almost has another everywhere: the search takes as long as both are, and not their product.
#[test]
fn a_long_text_is_found_in_a_long_text() {
    let text = vec![b'a'; 8 << 20];
    let mut other = vec![b'a'; 4 << 20];
    let minute = std::time::Duration::from_secs(60);
    let until = Some(Until::new(minute, std::time::Instant::now() + minute));
    assert_eq!(position(&text, &other, until).unwrap(), Some(0));
    *other.last_mut().unwrap() = b'b';
    assert_eq!(position(&text, &other, until).unwrap(), None);
    let mut text = text;
    // At the end of the text, and over the seam of two stretches.
    for end in [8 << 20, STRETCH + 3, 5 << 20] {
        text[end - 1] = b'b';
        assert_eq!(position(&text[..end], b"aaab", until).unwrap(), Some(end - 4), "{end}");
        text[end - 1] = b'a';
    }
    assert_eq!(position(b"ab", b"", until).unwrap(), Some(0));
    assert_eq!(position(b"ab", b"abc", until).unwrap(), None);
    // A clock that has run out ends it after a stretch.
    assert!(position(&text, b"b", Some(Until::new(std::time::Duration::ZERO, std::time::Instant::now()))).is_err());
}
