//! Copies are made again fast on a link of 10 Gbit/s, and a program beside that hardly feels it.

use clap::Parser;
use farmem_racksim::Reprotect;

#[derive(Parser)]
struct Asked {
    #[command(flatten)]
    how: Reprotect,
}

/// Gbit/s for each program, at least. Only a program that does nothing but fetch holds repair below
/// half of the link.
const LEAST: [f64; 3] = [5.0, 4.9, 3.0];

#[test]
fn repair_is_fast_and_a_program_hardly_feels_it() {
    let Asked { how } = Asked::parse_from(["reprotect"]);
    let (half, most) = how.aims();
    assert_eq!(half, 5.0);
    for ((name, of), least) in how.outcomes().unwrap().into_iter().zip(LEAST) {
        println!("{name}: {of:?}");
        assert!(of.gbit >= least && of.slowdown().is_none_or(|slowdown| slowdown <= most), "{name}: {of:?}");
    }
}
