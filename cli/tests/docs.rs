//! The documents agree with the tree: links lead somewhere, and the map of the code names every
//! room.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

/// The crates' folders, as the workspace names them.
fn crates() -> Vec<String> {
    let manifest = fs::read_to_string(root().join("Cargo.toml")).unwrap();
    let (_, rest) = manifest.split_once("members = [").unwrap();
    let (members, _) = rest.split_once(']').unwrap();
    members.split('"').skip(1).step_by(2).map(str::to_owned).collect()
}

/// The documents of the root, and of the folders that are part of the project: others may lie
/// beside them.
fn documents() -> Vec<PathBuf> {
    fn search(dir: &Path, deep: bool, found: &mut Vec<PathBuf>) {
        for path in fs::read_dir(dir).unwrap().flatten().map(|entry| entry.path()) {
            if path.is_dir() && deep {
                search(&path, deep, found);
            } else if path.extension().is_some_and(|extension| extension == "md") {
                found.push(path);
            }
        }
    }
    let mut found = Vec::new();
    search(root(), false, &mut found);
    let crates = crates();
    for folder in crates.iter().map(String::as_str).chain(["docs"]) {
        search(&root().join(folder), true, &mut found);
    }
    found
}

/// Without what stands between fences, which is quoted.
fn prose(document: &Path) -> String {
    let text = fs::read_to_string(document).unwrap();
    text.split("```").step_by(2).collect()
}

/// The anchors of a document's headings, as web sites make them.
fn anchors(document: &Path) -> BTreeSet<String> {
    let text = prose(document);
    let headings =
        text.lines().filter_map(|line| line.strip_prefix('#')).map(|rest| rest.trim_start_matches('#').trim());
    let kept = |c: &char| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_');
    headings.map(|heading| heading.to_lowercase().chars().filter(kept).collect::<String>().replace(' ', "-")).collect()
}

/// The text in the parentheses of `[…](…)`.
fn links(text: &str) -> impl Iterator<Item = &str> {
    text.split("](").skip(1).filter_map(|rest| rest.split_once(')').map(|(link, _)| link))
}

#[test]
fn links_lead_to_what_exists() {
    let all = documents();
    assert!(all.len() > 10, "{all:?}");
    let anchors: BTreeMap<PathBuf, _> = all.iter().map(|path| (path.canonicalize().unwrap(), anchors(path))).collect();
    for document in &all {
        for link in links(&prose(document)).filter(|link| !link.contains("://")) {
            let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
            let target = if path.is_empty() { document.clone() } else { document.parent().unwrap().join(path) };
            let target = target.canonicalize().unwrap_or_else(|e| panic!("{}: {link}: {e}", document.display()));
            let known = anchor.is_empty() || anchors.get(&target).is_none_or(|known| known.contains(anchor));
            assert!(known, "{}: {link}: no such heading", document.display());
        }
    }
}

/// Crates without examples in their comments say so (`doctest = false`): rustdoc would read each of
/// them to find none. An example that is written into one would not be run.
#[test]
fn crates_without_doctests_have_none() {
    fn sources(dir: &Path, found: &mut Vec<PathBuf>) {
        for path in fs::read_dir(dir).unwrap().flatten().map(|entry| entry.path()) {
            if path.is_dir() {
                sources(&path, found);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                found.push(path);
            }
        }
    }
    let without = |folder: &String| {
        let manifest = fs::read_to_string(root().join(folder).join("Cargo.toml")).unwrap();
        manifest.contains("doctest = false")
    };
    for folder in crates().into_iter().filter(without) {
        let mut files = Vec::new();
        sources(&root().join(&folder).join("src"), &mut files);
        for file in files {
            let text = fs::read_to_string(&file).unwrap();
            let comments = text.lines().map(str::trim).filter_map(|line| line.strip_prefix("//"));
            let mut fences = comments.filter_map(|line| line.trim_start_matches(['/', '!', ' ']).strip_prefix("```"));
            while let Some(language) = fences.next() {
                let is_no_rust = matches!(language, "text" | "toml");
                assert!(is_no_rust, "{}: an example: remove `doctest = false`", file.display());
                fences.next();
            }
        }
    }
}

#[test]
fn the_map_names_every_room() {
    let map = fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let crates = crates();
    assert!(crates.len() > 15, "{crates:?}");
    for room in crates.iter().map(String::as_str).chain(["fuzz", "packaging", "docs"]) {
        // The lab's are told in one row, and so are the tools.
        let name = room.strip_prefix("lab/").or(room.strip_prefix("tools/"));
        let shown = name.map_or(format!("`{room}/`"), |name| format!("`{name}`"));
        assert!(map.contains(&shown), "{room}/ is not on the map");
    }
}
