//! What only an RDMA device can show. Runs where one is: in the virtual machine that
//! `lab/rxe/run.sh` makes, on soft-RoCE, or on a machine with a card.
//!
//! ```text
//! farmem-rxe devices     what there is
//! farmem-rxe windows     type-2B windows: bound, used, refused, invalidated
//! farmem-rxe contract    the fabric's contract suite
//! ```

use std::process::ExitCode;

mod contract;
mod windows;

fn main() -> ExitCode {
    let what = std::env::args().nth(1);
    let done = match what.as_deref() {
        Some("devices") => devices(),
        Some("windows") => windows::hold(),
        Some("contract") => contract::hold(),
        _ => Err("usage: farmem-rxe devices | windows | contract".into()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("{why}");
            ExitCode::FAILURE
        }
    }
}

fn devices() -> Result<(), String> {
    let device = farmem_sys::verbs::Device::open(None).map_err(|e| e.to_string())?;
    println!("{}: {:?}", device.name(), device.abilities());
    Ok(())
}
