//! Quotas as people write them: `512M`, `alice=4G`, `1000/nightly=1G`.

use std::str::FromStr;

use farmem_agent::ledger::MAX_JOB;
use farmem_agent::stock::Quotas;

use farmem_protocol::extent::place::BLOCK_BYTES;

use crate::failure::Failure;
use crate::size::{self, Size};
use crate::units;

/// One `--quota`.
#[derive(Clone, Debug, PartialEq)]
pub struct Quota {
    /// A user, and a job of his or none; `None`: each user.
    of: Option<(u32, String)>,
    most: Size,
}

impl FromStr for Quota {
    type Err = String;

    fn from_str(text: &str) -> Result<Quota, String> {
        let Some((who, most)) = text.split_once('=') else {
            return Ok(Quota { of: None, most: text.parse().map_err(|e| format!("{e}"))? });
        };
        let (user, job) = who.split_once('/').unwrap_or((who, ""));
        if job.len() > MAX_JOB || (who.contains('/') && job.is_empty()) {
            return Err(format!("a job's name has 1 to {MAX_JOB} bytes"));
        }
        let uid = user.parse().ok().or_else(|| uid_of(user)).ok_or(format!("no user '{user}' on this machine"))?;
        Ok(Quota { of: Some((uid, job.to_owned())), most: most.parse().map_err(|e| format!("{e}"))? })
    }
}

impl Quota {
    /// Bytes.
    fn bytes(&self) -> u64 {
        self.most.bytes(size::ram().map_or(u64::MAX, |ram| ram.total))
    }

    /// Refuses one below a block: quotas are counted in these, so nothing could be held.
    pub fn check(&self) -> Result<(), Failure> {
        let bytes = self.bytes();
        match bytes < BLOCK_BYTES {
            true => {
                let why = "the block in which quotas are counted";
                Err(Failure::usage(units::too_little("--quota", bytes, BLOCK_BYTES, why)))
            }
            false => Ok(()),
        }
    }

    /// Adds it to others; a later one takes an earlier one's place.
    pub fn add_to(mut all: Quotas, quota: &Quota) -> Quotas {
        let bytes = quota.bytes();
        match &quota.of {
            None => all.each = Some(bytes),
            Some(tenant) => drop(all.named.insert(tenant.clone(), bytes)),
        }
        all
    }
}

/// A user's number, by /etc/passwd.
fn uid_of(name: &str) -> Option<u32> {
    let passwd = std::fs::read_to_string("/etc/passwd").ok()?;
    let line = passwd.lines().find(|line| line.split(':').next() == Some(name))?;
    line.split(':').nth(2)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotas_are_read() {
        let read = |text: &str| text.parse::<Quota>();
        assert_eq!(read("512M").unwrap().of, None);
        assert_eq!(read("root=1G").unwrap().of, Some((0, String::new())));
        assert_eq!(read("1000/nightly=1G").unwrap().of, Some((1000, "nightly".into())));
        for bad in ["", "=1G", "nobody-of-that-name=1G", "root/=1G", "root=", "root=many"] {
            assert!(read(bad).is_err(), "{bad}");
        }
        let quotas = ["512M", "1G", "root/x=2M"].iter().map(|text| read(text).unwrap());
        let all = quotas.fold(Quotas::default(), |all, quota| Quota::add_to(all, &quota));
        assert_eq!((all.each, all.named[&(0, "x".to_owned())]), (Some(1 << 30), 2 << 20));
    }
}
