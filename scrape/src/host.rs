//! The hosts that a request may name.
//!
//! A web page of a stranger's site can have its site's name lead to an address of this machine or
//! network (*rebinding*). The browser then takes what listens there for that site: the page may read
//! answers, and send any header. What it cannot change is the request's Host, its site's name.

use std::net::IpAddr;

/// The host that a request's Host names, `HOST[:PORT]`, without its port, in small letters.
pub fn host_of(said: &str) -> String {
    // The colons of an IPv6 address stand between brackets.
    let from = said.find(']').unwrap_or(0);
    let end = said[from..].find(':').map_or(said.len(), |colon| from + colon);
    said[..end].trim_end_matches('.').to_ascii_lowercase()
}

/// Whether it is a host by which no stranger's page can have come: an address, or a name without a
/// dot, such as `localhost`. Domains that anybody can have stand below others, so they have one.
pub fn is_no_site(host: &str) -> bool {
    let one_label =
        || !host.is_empty() && host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte));
    match host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
        Some(bare) => bare.parse::<IpAddr>().is_ok_and(|ip| ip.is_ipv6()),
        None => host.parse::<IpAddr>().is_ok_and(|ip| ip.is_ipv4()) || one_label(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_no_site() {
        for own in [
            "127.0.0.1",
            "127.0.0.1:7400",
            "[::1]:7400",
            "[::1]",
            "LocalHost",
            "localhost.:80",
            "10.0.0.5:1",
            "rack:7400",
            "shelf2-host9",
        ] {
            assert!(is_no_site(&host_of(own)), "{own}");
        }
        for other in [
            "",
            ":80",
            "a.example",
            "127.0.0.1.a.example:7400",
            "localhost.a.example",
            "a.example@127.0.0.1",
            "127.0.0.1@a.example",
            "[::1].a.example",
            "[a.example]",
            "[127.0.0.1]",
            "::1",
            "127.1",
            "127.0.0.256",
            "127.0.0.1 ",
            "é",
        ] {
            assert!(!is_no_site(&host_of(other)), "{other}");
        }
    }
}
