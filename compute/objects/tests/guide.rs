//! The guide's Rust is what its example does, and the example runs.

mod common;

use farmem::Transport;
use std::path::Path;
use std::process::Command;

/// Code without comments, white space and commas at ends of lists: as the guide and rustfmt alike
/// may write it.
fn plain(code: &str) -> String {
    let code: String = code.lines().map(|line| line.split("//").next().unwrap_or_default()).collect();
    let code: String = code.split_whitespace().collect();
    code.replace(",}", "}").replace(",)", ")").replace(",]", "]")
}

#[test]
fn each_line_of_the_guide_compiles() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let guide = std::fs::read_to_string(here.join("../../docs/objects.md")).unwrap();
    let example = plain(&std::fs::read_to_string(here.join("examples/guide.rs")).unwrap());
    let blocks = guide.split("```rust\n").skip(1).filter_map(|rest| rest.split_once("```"));
    let mut paragraphs = 0;
    for (block, _) in blocks {
        for paragraph in block.split("\n\n") {
            // Imports are one by one: others lie between them.
            let parts: Vec<&str> = match paragraph.starts_with("use ") {
                true => paragraph.lines().collect(),
                false => vec![paragraph],
            };
            for part in parts {
                assert!(example.contains(&plain(part)), "not in examples/guide.rs:\n{part}");
                paragraphs += 1;
            }
        }
    }
    assert!(paragraphs > 10, "{paragraphs}");
}

#[test]
fn the_guide_runs() {
    let node = common::node();
    // Cargo builds examples beside tests: target/PROFILE/{deps/this-test, examples/NAME}.
    let here = std::env::current_exe().unwrap();
    let program = here.parent().unwrap().parent().unwrap().join("examples/guide");
    let out = Command::new(&program).arg(common::address(&node, Transport::Tcp)).env_remove("FARMEM_RUN").output();
    let out = out.unwrap_or_else(|e| panic!("{}: {e}: cargo build -p farmem-objects --examples", program.display()));
    let said = String::from_utf8_lossy(&out.stdout);
    assert!(out.status.success() && said.starts_with("1000000 orders, 499500000 cents\n"), "{out:?}");
}
