//! What only an RDMA device can show. Runs where one is: in the virtual machine that
//! `lab/rxe/run.sh` makes, on soft-RoCE, or on a machine with a card.
//!
//! ```text
//! farmem-rxe devices     what there is
//! farmem-rxe windows     type-2B windows: bound, used, refused, invalidated
//! farmem-rxe contract    the fabric's contract suite
//! farmem-rxe evict       changed lines by WRITEs, pages whole, records in frames: what they take
//! farmem-rxe soft-dirty  farmem track by soft-dirty bits, of: farmem-rxe writes K
//! farmem-rxe swap NODE MIB [POOL]  a swap device by ublk, whose pages go to the node by RDMA; the allocator of its
//!                                  blocks is farmem, finemem or onesidedmw
//! farmem-rxe lines N     N lines in no order, the same every time: input for programs under test
//! ```

use farmem_protocol::random::Random;
use std::io::Write;
use std::process::ExitCode;

mod contract;
mod evict;
mod half;
mod pools;
mod revoked;
mod soft_dirty;
mod swap;
mod windows;

fn main() -> ExitCode {
    let what = std::env::args().nth(1);
    let done = match what.as_deref() {
        Some("devices") => devices(),
        Some("windows") => windows::hold(),
        Some("evict") => evict::measure(),
        Some("soft-dirty") => soft_dirty::hold(),
        Some("writes") => match number() {
            Ok(k) => soft_dirty::write(k as usize),
            Err(why) => Err(why),
        },
        Some("contract") => contract::hold(),
        Some("swap") => swap(),
        Some("lines") => lines(),
        _ => {
            Err("usage: farmem-rxe devices | windows | contract | evict | soft-dirty | swap NODE MIB [POOL] | lines N"
                .into())
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("{why}");
            ExitCode::FAILURE
        }
    }
}

fn number() -> Result<u64, String> {
    std::env::args().nth(2).and_then(|n| n.parse().ok()).ok_or_else(|| "how many?".into())
}

fn swap() -> Result<(), String> {
    let node = std::env::args().nth(2).ok_or("which node?")?;
    let mib = std::env::args().nth(3).and_then(|n| n.parse().ok()).ok_or("how many MiB?")?;
    swap::serve(&node, mib, &std::env::args().nth(4).unwrap_or_else(|| "farmem".into()))
}

fn lines() -> Result<(), String> {
    let n = number()?;
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    let mut random = Random::new(1);
    for i in 0..n {
        writeln!(out, "{:016x} {i}", random.bits()).map_err(|e| e.to_string())?;
    }
    out.flush().map_err(|e| e.to_string())
}

fn devices() -> Result<(), String> {
    let device = farmem_sys::verbs::Device::open(None).map_err(|e| e.to_string())?;
    println!("{}: {:?}", device.name(), device.abilities());
    Ok(())
}
