//! The headers are written by hand: they declare what the library has, by the same types, and nothing else.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

/// By a function's name: the types of its parameters, then that of its result.
type Functions = BTreeMap<String, Vec<String>>;
/// By a struct's name: types and names of its fields.
type Structs = BTreeMap<String, Vec<String>>;

/// Rust's names of what C calls otherwise.
const NAMES: [(&str, &str); 11] = [
    ("c_char", "char"),
    ("c_void", "void"),
    ("c_int", "int"),
    ("usize", "size_t"),
    ("u64", "uint64_t"),
    ("u32", "uint32_t"),
    ("HeapHandle", "struct farmem_heap"),
    ("Handle", "farmem_store"),
    ("RawOptions", "struct farmem_store_options"),
    ("RawOp", "struct farmem_store_op"),
    ("Error", "struct farmem_store_error"),
];

fn here(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

fn text(path: &str) -> String {
    std::fs::read_to_string(here(path)).unwrap_or_else(|e| panic!("{path}: {e}"))
}

/// The text before and behind the first place of `at`.
fn cut<'a>(text: &'a str, at: &str) -> (&'a str, &'a str) {
    text.split_once(at).unwrap_or_else(|| panic!("{at:?} is missing: {}", &text[..text.len().min(200)]))
}

/// One space between words, none around stars.
fn spaced(text: &str) -> String {
    let words = text.replace('*', " * ");
    words.split_whitespace().collect::<Vec<_>>().join(" ").replace(" *", "*").replace("* ", "*")
}

/// Whether a handle is given to be changed is C's affair: both are one pointer.
fn plain(of_c: &str) -> String {
    let one = spaced(of_c);
    let is_handle = ["farmem_store*", "struct farmem_heap*"].iter().any(|handle| one.ends_with(handle));
    if is_handle { one.replace("const ", "") } else { one }
}

/// A type of Rust's as C has it.
fn of_rust(one: &str) -> String {
    let one = one.trim();
    let pointer = |rest: &str, constant: bool| {
        let inner = of_rust(rest);
        // A pointer to a constant pointer has `const` behind its star.
        match (constant, inner.ends_with('*')) {
            (true, true) => format!("{inner}const*"),
            (true, false) => format!("const {inner}*"),
            (false, _) => format!("{inner}*"),
        }
    };
    match (one.strip_prefix("*const "), one.strip_prefix("*mut ")) {
        (Some(rest), _) => pointer(rest, true),
        (_, Some(rest)) => pointer(rest, false),
        _ if one.starts_with("Arrow") => format!("struct {one}"),
        _ => NAMES.iter().find(|(name, _)| *name == one).map_or_else(|| one.into(), |(_, c)| (*c).into()),
    }
}

/// The functions that the library's sources export, as C has them.
fn exported(sources: &str) -> Functions {
    let mut found = Functions::new();
    for function in sources.split("#[unsafe(no_mangle)]").skip(1) {
        let (name, rest) = cut(cut(function, "extern \"C\" fn ").1, "(");
        let (parameters, rest) = cut(rest, ")");
        let result = cut(rest, "{").0.trim().strip_prefix("->").map_or_else(|| "void".into(), of_rust);
        let parameters = parameters.split(',').filter_map(|one| one.split_once(':'));
        let types = parameters.map(|(_, one)| plain(&of_rust(one))).chain([plain(&result)]).collect();
        assert!(found.insert(name.to_owned(), types).is_none(), "{name} is there twice");
    }
    found
}

/// A header without comments, directives, and functions of its own.
fn bare(header: &str) -> String {
    let mut bare = String::new();
    let mut rest = header;
    while let Some((before, behind)) = rest.split_once("/*") {
        bare += before;
        rest = cut(behind, "*/").1;
    }
    bare += rest;
    let lines = bare.lines().filter(|line| !line.starts_with('#') && !line.contains("extern \"C\""));
    let mut bare: String = lines.map(|line| format!("{line}\n")).collect();
    while let Some(at) = bare.find("static inline") {
        let end = bare[at..].find("\n}").expect("the function ends") + at + 2;
        bare.replace_range(at..end, "");
    }
    bare
}

/// A declaration of C's: its type and its name. The name is its last word.
fn declared(one: &str) -> (String, String) {
    let (one, array) = one.split_once('[').map_or((one, ""), |(one, array)| (one, array));
    let at = one.trim_end().rfind(|c: char| !c.is_ascii_alphanumeric() && c != '_').expect("a type and a name");
    let array = if array.is_empty() { String::new() } else { format!("[{array}") };
    (plain(&one[..=at]) + &array, one[at + 1..].trim().to_owned())
}

/// The functions that headers declare.
fn of_headers(header: &str) -> Functions {
    let mut found = Functions::new();
    let without = structs_of(header).1;
    for one in without.split(';').filter(|one| one.contains('(')) {
        let (head, parameters) = cut(one, "(");
        let (result, name) = declared(head);
        let parameters = parameters.trim().trim_end_matches(')');
        let types = parameters.split(',').map(|one| declared(one).0).chain([result]).collect();
        assert!(found.insert(name.clone(), types).is_none(), "{name} is there twice");
    }
    found
}

/// The structs of headers, and what is left without them and the enums.
fn structs_of(header: &str) -> (Structs, String) {
    let (mut found, mut left) = (Structs::new(), header.to_owned());
    while let Some(open) = left.find('{') {
        let from = left[..open].rfind(';').map_or(0, |at| at + 1);
        let end = left[open..].find("};").expect("it ends") + open;
        let (head, body) = (left[from..open].trim().to_owned(), left[open + 1..end].to_owned());
        if let Some(name) = head.strip_prefix("struct ") {
            let fields = body.split(';').filter(|one| !one.trim().is_empty()).map(declared);
            found.insert(name.into(), fields.map(|(of, name)| format!("{of} {name}")).collect());
        }
        left.replace_range(from..end + 1, "");
    }
    (found, left)
}

/// The structs that the library's sources have for C.
fn laid_out(sources: &str) -> Structs {
    let mut found = Structs::new();
    for one in sources.split("#[repr(C)]").skip(1) {
        let (name, rest) = cut(cut(one, "struct ").1, " {");
        let fields = cut(rest, "\n}").0.lines().filter(|line| !line.trim().starts_with("//"));
        let field = |line: &str| {
            let (name, of) = line.trim().trim_start_matches("pub ").trim_end_matches(',').split_once(": ")?;
            let array = of.strip_prefix('[').and_then(|of| of.strip_suffix(']')?.split_once("; "));
            let of = array.map_or_else(|| plain(&of_rust(of)), |(of, n)| format!("{}[{n}]", of_rust(of)));
            Some(format!("{of} {name}"))
        };
        let of_c = of_rust(name);
        found.insert(of_c.trim_start_matches("struct ").into(), fields.filter_map(field).collect());
    }
    found
}

#[test]
fn headers_declare_what_the_library_has() {
    let headers = ["store", "objects"].map(|name| bare(&text(&format!("../c/farmem_{name}.h")))).concat();
    let sources = ["lib", "ops", "error", "objects", "objects/query"].map(|name| text(&format!("src/{name}.rs")));
    let sources = sources.concat();
    let (declared, there) = (of_headers(&headers), exported(&sources));
    assert!(there.len() > 15, "{there:?}");
    for name in declared.keys().chain(there.keys()) {
        assert_eq!(declared.get(name), there.get(name), "{name}: in the header, and in the library");
    }
    let (declared, there) = (structs_of(&headers).0, laid_out(&sources));
    assert!(there.len() == 3, "{there:?}");
    for (name, fields) in &there {
        assert_eq!(declared.get(name), Some(fields), "{name}: in the header, and in the library");
    }
}

/// The library's table of names has these functions, and no other of farmem's.
#[test]
fn the_library_exports_what_headers_declare() {
    let library = std::env::current_exe().expect("a test").with_file_name("libfarmem_store.so");
    let listed = Command::new("nm").args(["-D", "--defined-only"]).arg(&library).output().expect("nm of binutils");
    assert!(listed.status.success(), "{}", String::from_utf8_lossy(&listed.stderr));
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    let mut names: Vec<&str> = listed.lines().filter_map(|line| line.split(" T farmem_").nth(1)).collect();
    names.sort_unstable();
    let headers = ["store", "objects"].map(|name| bare(&text(&format!("../c/farmem_{name}.h")))).concat();
    let declared: Vec<String> = of_headers(&headers).into_keys().collect();
    assert_eq!(names, declared.iter().filter_map(|name| name.strip_prefix("farmem_")).collect::<Vec<_>>());
}
