//! The contract over the simulated network.

use farmem_contract::{self as contract, Subject};
use farmem_fabric::Session;
use farmem_protocol::addr::SLAB_BYTES;
use farmem_sim::{Network, Weather};

#[test]
fn sim_holds_the_contract() {
    for seed in 1..=3 {
        let weather = Weather { seed, segment: if seed == 1 { 16 << 10 } else { 3000 }, ..Weather::default() };
        let network = Network::new(weather, contract::SLABS as u64 * SLAB_BYTES);
        contract::hold(&Subject {
            connect: &|options| Session::simulated(&network, options),
            lent: &|| network.lent(),
            pass: &|| network.pass(1_000_000),
        });
    }
}
