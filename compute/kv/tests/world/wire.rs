//! A network namespace with a link to this one, and a filter in it that rejects.

use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

/// A machine beside this one. Removed when dropped.
pub struct Wire {
    pub namespace: String,
    /// This end's address.
    pub here: String,
    /// The other end's.
    pub there: String,
}

fn tool(line: &str) -> Result<(), String> {
    let mut words = line.split_whitespace();
    let out = Command::new(words.next().unwrap()).args(words).output().map_err(|e| format!("{line}: {e}"))?;
    if out.status.success() { Ok(()) } else { Err(format!("{line}: {}", String::from_utf8_lossy(&out.stderr).trim())) }
}

impl Wire {
    /// `Err`: this process may not make one, and why.
    pub fn new() -> Result<Wire, String> {
        static SERIAL: AtomicU32 = AtomicU32::new(0);
        let (pid, n) = (std::process::id(), SERIAL.fetch_add(1, Ordering::Relaxed));
        let (namespace, own) = (format!("fmkv{pid}-{n}"), format!("fk{pid}-{n}"));
        let net = format!("10.214.{}", (pid + 50 * n) % 256);
        let wire = Wire { namespace, here: format!("{net}.1"), there: format!("{net}.2") };
        let Wire { namespace, here, there } = &wire;
        tool(&format!("ip netns add {namespace}"))?;
        tool(&format!("ip link add {own} type veth peer name wire netns {namespace}"))?;
        tool(&format!("ip addr add {here}/24 dev {own}"))?;
        tool(&format!("ip link set {own} up"))?;
        tool(&format!("ip -n {namespace} addr add {there}/24 dev wire"))?;
        tool(&format!("ip -n {namespace} link set lo up"))?;
        tool(&format!("ip -n {namespace} link set wire up"))?;
        // Whether filters work, before anything depends on it.
        tool(&format!("ip netns exec {namespace} iptables -w -I OUTPUT -p tcp --dport 1 -j REJECT"))?;
        Ok(wire)
    }

    /// From now on everything that the other end sends to this address is answered by a reset.
    pub fn reject(&self, at: &str) {
        let (address, port) = at.rsplit_once(':').unwrap();
        let to = format!("-p tcp -d {address} --dport {port} -j REJECT --reject-with tcp-reset");
        tool(&format!("ip netns exec {} iptables -w -I OUTPUT {to}", self.namespace)).unwrap();
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        let _ = tool(&format!("ip netns del {}", self.namespace));
    }
}
