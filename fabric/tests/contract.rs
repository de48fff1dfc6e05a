//! The contract over the simulated network.

use farmem_contract::{self as contract, Subject};
use farmem_fabric::{ConnectOptions, Session};
use farmem_nic::tenants::{Known, Standing};
use farmem_protocol::addr::SLAB_BYTES;
use farmem_sim::{Network, Weather};
use farmem_trust::{Key, Token};

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

/// A token that the node of the network knows.
fn token(network: &Network) -> Key {
    let key = Token::new("analytics", &[7; 40]).unwrap().key();
    network
        .with_nic(|nic| nic.set_tokens(vec![Known { key, standing: Standing::Good, quota: u64::MAX, rate: u64::MAX }]));
    key
}

#[test]
fn the_encrypted_sim_holds_the_contract() {
    // Pieces that are shorter than a record's head, and longer than several records.
    for (seed, segment) in [(1, 64 << 10), (2, 3000)] {
        let network =
            Network::new(Weather { seed, segment, ..Weather::default() }, contract::SLABS as u64 * SLAB_BYTES);
        let trust = token(&network).into();
        contract::hold(&Subject {
            connect: &|options| {
                let session = Session::simulated(&network, &ConnectOptions { trust, ..options.clone() })?;
                assert!(session.is_sealed());
                Ok(session)
            },
            lent: &|| network.lent(),
            pass: &|| network.pass(1_000_000),
        });
    }
}
