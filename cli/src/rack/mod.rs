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
    use super::address;

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
