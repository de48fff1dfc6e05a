//! The store from C and from Python: programs of `tests/sources`, on a node of the test's.

use farmem_fabric::NodeAddr;
use farmem_memory::Node;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn node(name: &str) -> Node {
    let socket = std::env::temp_dir().join(format!("farmem-store-{name}-{}.sock", std::process::id()));
    let listen = vec![NodeAddr::Tcp("127.0.0.1:0".into()), NodeAddr::Shm(socket)];
    Node::start(&farmem_memory::Config::new(4 * (64 << 20), listen)).expect("a node")
}

fn here(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// Where cargo puts the cdylib: beside the tests.
fn library() -> PathBuf {
    let test = std::env::current_exe().expect("a test");
    let library = test.with_file_name("libfarmem_store.so");
    assert!(library.exists(), "{} is not there", library.display());
    library
}

fn ran(command: &mut Command) -> String {
    let Output { status, stdout, stderr } = command.output().unwrap_or_else(|e| panic!("{command:?}: {e}"));
    let (out, err) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
    assert!(status.success(), "{command:?}: {status}\n{out}{err}");
    out.into_owned()
}

#[test]
fn a_c_program_has_a_store() {
    let node = node("c");
    let dir = std::env::temp_dir().join(format!("farmem-store-c-{}", std::process::id()));
    std::fs::create_dir_all(&dir).expect("a directory");
    let library = library();
    let include = format!("-I{}", here("../c").display());
    let compiled = |compiler: &str, flags: &[&str], name: &str| {
        let program = dir.join(name);
        let mut command = Command::new(compiler);
        command.args(flags).args(["-Wall", "-Wextra", "-Werror", "-pthread", &include]);
        command.arg(here("tests/sources/store.c")).arg("-o").arg(&program).args(["-x", "none"]).arg(&library);
        ran(command.arg(format!("-Wl,-rpath,{}", library.parent().unwrap_or(Path::new("/")).display())));
        program
    };
    let program = compiled("gcc", &["-std=gnu99", "-Wpedantic"], "c");
    for address in node.addresses() {
        assert_eq!(ran(Command::new(&program).arg(address.to_string())), "all of it\n");
        farmem::remove_region(&address.to_string(), "c").expect("no front end is left");
    }
    // The header is C++, too.
    let source = dir.join("empty.cc");
    std::fs::write(&source, "#include <farmem_store.h>\n").expect("a file");
    ran(Command::new("g++").args(["-fsyntax-only", "-Wall", "-Wextra", "-Werror", &include]).arg(&source));
    let _ = std::fs::remove_dir_all(&dir);
}

#[test]
fn a_c_program_has_far_vectors() {
    let node = node("objects-c");
    let program = std::env::temp_dir().join(format!("farmem-objects-c-{}", std::process::id()));
    let library = library();
    let mut command = Command::new("gcc");
    command.args(["-std=gnu99", "-Wpedantic", "-Wall", "-Wextra", "-Werror", "-pthread"]);
    command.arg(format!("-I{}", here("../c").display())).arg(here("tests/sources/objects.c"));
    command.arg("-o").arg(&program).args(["-x", "none"]).arg(&library);
    ran(command.arg(format!("-Wl,-rpath,{}", library.parent().unwrap_or(Path::new("/")).display())));
    for address in node.addresses() {
        assert_eq!(ran(Command::new(&program).arg(address.to_string())), "all of it\n");
    }
    let _ = std::fs::remove_file(&program);
}

#[test]
fn a_python_program_has_frames() {
    let node = node("objects-python");
    for address in node.addresses() {
        let mut python = Command::new("/usr/bin/python3");
        python
            .env("PYTHONPATH", here("../python"))
            .env("FARMEM_STORE_LIBRARY", library())
            .env("PYTHONDONTWRITEBYTECODE", "1");
        let said = ran(python.arg(here("tests/sources/objects.py")).arg(address.to_string()));
        said.lines().filter(|line| line.starts_with("skipped")).for_each(|line| println!("{line}"));
        assert!(said.ends_with("all of it\n"), "{said}");
    }
}

#[test]
fn a_python_program_has_a_store() {
    let node = node("python");
    for address in node.addresses() {
        let mut python = Command::new("/usr/bin/python3");
        python
            .env("PYTHONPATH", here("../python"))
            .env("FARMEM_STORE_LIBRARY", library())
            .env("PYTHONDONTWRITEBYTECODE", "1");
        let said = ran(python.arg(here("tests/sources/store.py")).arg(address.to_string()));
        assert!(said.ends_with("all of it\n"), "{said}");
        farmem::remove_region(&address.to_string(), "python").expect("no front end is left");
    }
}

/// The Python that pages of the documentation show.
#[test]
fn what_is_documented_runs() {
    let node = node("documented");
    let mut python = Command::new("/usr/bin/python3");
    python
        .env("PYTHONPATH", here("../python"))
        .env("FARMEM_STORE_LIBRARY", library())
        .env("PYTHONDONTWRITEBYTECODE", "1");
    python.arg(here("tests/sources/documented.py")).arg(node.addresses()[0].to_string()).arg(here("../../docs"));
    let said = ran(&mut python);
    said.lines().filter(|line| line.starts_with("skipped")).for_each(|line| println!("{line}"));
    assert!(said.ends_with("all of it\n"), "{said}");
}

#[test]
fn python_puts_blocks_and_lmcache_misses_in_place_of_errors() {
    let node = node("blocks");
    let mut python = Command::new("/usr/bin/python3");
    python
        .env("PYTHONPATH", here("../python"))
        .env("FARMEM_STORE_LIBRARY", library())
        .env("PYTHONDONTWRITEBYTECODE", "1");
    python.arg(here("tests/sources/blocks.py")).arg(node.addresses()[0].to_string());
    let said = ran(python.arg("127.0.0.1:1"));
    assert!(said.ends_with("all of it\n"), "{said}");
}

/// What a process of this test is that has this variable: a node at the address that comes last.
const NODE: &str = "FARMEM_TEST_NODE";

#[test]
fn another_process() {
    if std::env::var_os(NODE).is_none() {
        return;
    }
    let at: NodeAddr = std::env::args().next_back().expect("an address").parse().expect("an address");
    let _node = Node::start(&farmem_memory::Config::new(4 * (64 << 20), vec![at])).expect("a node");
    let parent = std::os::unix::process::parent_id();
    while std::os::unix::process::parent_id() == parent {
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    std::process::exit(0);
}

#[test]
fn lmcache_misses_while_its_node_is_killed_and_goes_on_with_another() {
    let mut python = Command::new("/usr/bin/python3");
    python
        .env("PYTHONPATH", here("../python"))
        .env("FARMEM_STORE_LIBRARY", library())
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env(NODE, "yes");
    python.arg(here("tests/sources/killed.py")).arg(std::env::current_exe().expect("a test"));
    let said = ran(python.args(["another_process", "--exact", "--nocapture"]));
    assert!(said.ends_with("all of it\n"), "{said}");
}

/// As users install it: pip makes a wheel from the tree, and the program of the front page runs.
#[test]
fn pip_installs_it() {
    let pip = Command::new("/usr/bin/python3").args(["-m", "pip", "--version"]).output();
    if !pip.is_ok_and(|pip| pip.status.success()) {
        println!("skipped: no pip for /usr/bin/python3: install python3-pip");
        return;
    }
    let node = node("pip");
    let into = std::env::temp_dir().join(format!("farmem-store-pip-{}", std::process::id()));
    ran(Command::new("/usr/bin/python3")
        .args(["-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--root-user-action=ignore", "--target"])
        .arg(&into)
        .arg(here("../python"))
        .env("FARMEM_STORE_LIBRARY", library()));
    let program = format!(
        "import farmem; s = farmem.Store('sessions', nodes=['{}']); s['k'] = b'v'; print(s['k'], farmem.__file__)",
        node.addresses()[0]
    );
    let said = ran(Command::new("/usr/bin/python3").args(["-c", &program]).env("PYTHONPATH", &into));
    assert_eq!(said, format!("b'v' {}\n", into.join("farmem/__init__.py").display()));
    let _ = std::fs::remove_dir_all(&into);
}
