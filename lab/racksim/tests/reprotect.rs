//! Copies are made again at half of a link of 10 Gbit/s, and a program beside that hardly feels it.

use clap::Parser;
use farmem_racksim::Reprotect;

#[derive(Parser)]
struct Asked {
    #[command(flatten)]
    how: Reprotect,
}

#[test]
fn repair_has_half_of_a_link_and_a_program_hardly_feels_it() {
    let Asked { how } = Asked::parse_from(["reprotect", "--slabs", "3"]);
    how.run().unwrap();
}
