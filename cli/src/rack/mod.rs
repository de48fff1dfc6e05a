//! A rack with a controller: `farmem controller`, `farmem drain`, `farmem undrain`, `farmem
//! forget`, and the controller's clients in `farmem node`, `farmem run` and `farmem status`.
//!
//! The controller itself is [`farmem_control`]. Here are:
//!
//! * [`controller`]: the command that serves it.
//! * [`member`]: a node's beats.
//! * [`nodes`]: a run's nodes, as the controller gives them.
//! * [`orders`]: an operator's orders.
//! * [`table`]: the rack as `farmem status --controller` prints it.

pub mod controller;
pub mod member;
pub mod nodes;
pub mod orders;
pub mod table;

/// A random number of the kernel's.
fn random() -> std::io::Result<u64> {
    let mut bytes = [0; 8];
    std::io::Read::read_exact(&mut std::fs::File::open("/dev/urandom")?, &mut bytes)?;
    Ok(u64::from_ne_bytes(bytes))
}

/// Reads one address that others are to use: `HOST:PORT`.
pub fn advertised(text: &str) -> Result<String, String> {
    match text.contains(',') {
        true => Err("write one HOST:PORT: others reach it there".into()),
        false => address(text).map_err(|_| format!("'{text}' is no address: write HOST:PORT, as bighost:7411")),
    }
}

/// Whether this address is of this machine: its loopback, or its own name.
fn is_here(at: &str) -> bool {
    let host = at.rsplit_once(':').map_or(at, |(host, _)| host);
    is_loopback(at) || host == farmem_sys::process::host_name()
}

/// Whether this address is of this machine alone.
fn is_loopback(at: &str) -> bool {
    let host = at.rsplit_once(':').map_or(at, |(host, _)| host).trim_start_matches('[').trim_end_matches(']');
    host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.to_canonical().is_loopback())
}

/// Reads the address of a controller, or of several of which one leads: `HOST:PORT[,HOST:PORT…]`.
pub fn address(text: &str) -> Result<String, String> {
    let is_one = |text: &str| {
        let (host, port) = text.rsplit_once(':').unwrap_or_default();
        let is_host = |c: char| c.is_ascii_alphanumeric() || "-._:[]".contains(c);
        !host.is_empty() && host.chars().all(is_host) && port.parse::<u16>().is_ok()
    };
    match text.split(',').all(is_one) {
        true => Ok(text.to_owned()),
        false => {
            Err(format!("'{text}' is no address of a controller: write HOST:PORT, as rack:7400; several by commas"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{address, advertised, is_loopback};

    #[test]
    fn one_address_is_advertised() {
        assert_eq!(advertised("bighost:7411"), Ok("bighost:7411".to_owned()));
        assert!(advertised("a:1,b:2").is_err() && advertised("bighost").is_err());
    }

    #[test]
    fn a_machines_own_addresses_are_known() {
        assert!(["127.0.0.1:1", "127.9.9.9:7411", "[::1]:1", "localhost:1"].into_iter().all(is_loopback));
        assert!(!["10.0.0.7:1", "0.0.0.0:1", "[::]:1", "rack:7400", "[fe80::1]:1"].into_iter().any(is_loopback));
    }

    #[test]
    fn a_controller_is_a_host_and_a_port() {
        for good in ["rack:7400", "10.0.0.1:1", "[::1]:7400", "a:1,b:2"] {
            assert_eq!(address(good), Ok(good.to_owned()));
        }
        for bad in [
            "",
            "a:1,",
            "a:1,,b:2",
            "rack",
            ":7400",
            "rack:",
            "rack:70000",
            "http://rack:7400",
            "a b:1",
            "a/b:1",
            "u@h:1",
        ] {
            assert!(address(bad).is_err(), "{bad}");
        }
    }
}
