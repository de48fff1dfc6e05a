//! `farmem region`: regions that the library has made at a node are listed, shown by `status`,
//! recounted and removed.

#[allow(dead_code)] // Shared by test programs, each of which uses a part.
mod common;

use std::process::{Child, Stdio};

use common::{Place, eventually, listens, outcome};
use farmem::Memory;

struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_region_is_listed_counted_and_removed() {
    let place = Place::new();
    let socket = place.path().join("node.sock");
    let at = format!("unix:{}", socket.display());
    let mut node = place.farmem(["node", "--lend", "256M", "--quota", "128M", "--listen", &at]);
    let _node = Killed(node.stderr(Stdio::null()).spawn().unwrap());
    listens(&socket);
    let said = |arguments: &[&str]| {
        let (status, said, complaint) = outcome(place.farmem(arguments));
        assert_eq!((status, complaint.as_str()), (Some(0), ""), "{said}");
        said
    };
    assert!(said(&["region", "ls", &at]).contains("has no regions"));

    let memory = Memory::builder().node(&at).region("sessions").create(true).connect().unwrap();
    let piece = memory.alloc(4096).unwrap();
    memory.write(piece, b"of all").unwrap();
    let listed = said(&["region", "ls", &at, "--json"]);
    assert_eq!(
        serde_json::from_str::<serde_json::Value>(&listed).unwrap(),
        serde_json::json!([{ "name": "sessions", "bytes": 64 << 20 }])
    );
    assert!(said(&["status", &at]).contains("region sessions"), "{}", said(&["status", &at]));
    assert!(said(&["check", &at]).contains("sound"));

    // The quota is each region's.
    let pieces = std::iter::from_fn(|| memory.alloc(2 << 20).ok()).count();
    assert_eq!(pieces, 62);
    let full = memory.alloc(2 << 20).unwrap_err().to_string();
    assert!(full.contains("--quota"), "{full}");
    let (status, _, complaint) = outcome(place.farmem(["region", "rm", &at, "sessions"]));
    // This program's name begins so.
    let own = "region sessions is in use by region-";
    assert!(status == Some(64) && complaint.contains(own) && complaint.contains("--force"), "{complaint}");
    drop(memory);
    assert!(said(&["region", "ls", &at]).contains("128"), "it outlives its openers");

    said(&["region", "rm", &at, "sessions"]);
    eventually("its memory is free", || said(&["check", &at]).contains("256 MiB free"));
    let (status, _, complaint) = outcome(place.farmem(["region", "rm", &at, "sessions"]));
    assert_eq!(status, Some(farmem_run::exit::USAGE));
    assert!(complaint.contains("has no region sessions"), "{complaint}");
    let (status, ..) = outcome(place.farmem(["region", "rm", &at, "no name"]));
    assert_eq!(status, Some(farmem_run::exit::USAGE));
    let (status, ..) = outcome(place.farmem(["region", "ls", "unix:/nowhere"]));
    assert_eq!(status, Some(farmem_run::exit::NODE_UNUSABLE));

    // Programs that are no front ends keep what they have open.
    let memory = Memory::builder().node(&at).region("kept").create(true).connect().unwrap();
    let piece = memory.alloc(4096).unwrap();
    let (status, _, complaint) = outcome(place.farmem(["region", "rm", "--force", &at, "kept"]));
    assert!(status == Some(0) && complaint.contains("1 program that has it open keeps"), "{complaint}");
    memory.write(piece, b"still").unwrap();
    assert!(said(&["region", "ls", &at]).contains("has no regions"));
}
