//! The part of etcd that a controller with a standby needs, by its JSON gateway over HTTP/1.1.
//!
//! | key | what |
//! |---|---|
//! | `farmem/leader` | the address of the controller that leads; its lease ends with it. The key's revision is the epoch |
//! | `farmem/rack` | a random number: epochs of different racks are not compared |
//! | `farmem/intent/…` | an [`Intent`](crate::state::Intent) as JSON |
//!
//! The gateway has keys and values in base64, and 64-bit numbers as strings. Each call goes to the
//! member that answered last, and to the others if it does not. A call that is not answered may
//! have been carried out all the same: callers repeat it, and each may be carried out twice.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// How long one member may take to answer.
const ANSWER_WITHIN: Duration = Duration::from_millis(600);
/// Operations of one transaction, at most: etcd's own limit is 128.
const OPERATIONS: usize = 100;
/// The most members that are named.
const MOST: usize = 9;
/// The longest answer: some 20 000 intents.
const LONGEST: u64 = 32 << 20;

/// Why etcd has not done what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum EtcdError {
    /// No member answered.
    #[error("no member of etcd answers: {0}")]
    Away(String),
    /// It answered something that makes no sense.
    #[error("etcd answered something else than was asked: {0}")]
    Strange(String),
    /// Another controller leads by now: nothing was changed.
    #[error("another controller leads by now")]
    Deposed,
}

/// The leader key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// The revision at which it was written last: the epoch of its holder.
    pub revision: u64,
    /// The lease that it hangs on.
    pub lease: String,
    /// Its holder's address.
    pub address: String,
}

/// An etcd cluster.
#[derive(Debug)]
pub struct Etcd {
    members: Vec<String>,
    agent: ureq::Agent,
    /// The member that answered last.
    last: AtomicUsize,
}

impl Etcd {
    /// The cluster that `etcd://HOST:PORT[,HOST:PORT…]` names. Nothing is sent yet.
    ///
    /// # Errors
    /// One line that says what is wrong.
    pub fn named(text: &str) -> Result<Etcd, String> {
        let members: Vec<String> =
            text.strip_prefix("etcd://").unwrap_or_default().split(',').map(String::from).collect();
        let is_good = |member: &String| {
            let (host, port) = member.rsplit_once(':').unwrap_or_default();
            let plain = |c: char| c.is_ascii_alphanumeric() || "-._:[]".contains(c);
            !host.is_empty() && host.chars().all(plain) && port.parse::<u16>().is_ok()
        };
        if members.len() > MOST || !members.iter().all(is_good) {
            return Err(format!("'{text}' names no etcd: write etcd://HOST:PORT, or up to {MOST} of them by commas"));
        }
        let agent = ureq::Agent::config_builder()
            .timeout_global(Some(ANSWER_WITHIN))
            .http_status_as_error(false)
            .proxy(None)
            .max_redirects(0)
            .build();
        Ok(Etcd { members, agent: agent.into(), last: AtomicUsize::new(0) })
    }

    fn call(&self, path: &str, body: &Value) -> Result<Value, EtcdError> {
        let first = self.last.load(Ordering::Relaxed);
        let mut why = String::new();
        for step in 0..self.members.len() {
            let at = (first + step) % self.members.len();
            let url = format!("http://{}{path}", self.members[at]);
            let answer = self.agent.post(url).send_json(body).map_err(|e| e.to_string());
            let text = answer.and_then(|mut answer| {
                let text =
                    answer.body_mut().with_config().limit(LONGEST).read_to_string().map_err(|e| e.to_string())?;
                // A member without a leader says so by an error, and another may have one.
                if answer.status().is_success() { Ok(text) } else { Err(text.trim().chars().take(200).collect()) }
            });
            match text {
                Ok(text) => {
                    self.last.store(at, Ordering::Relaxed);
                    // A stream of one answer ends with an empty line.
                    return serde_json::from_str(text.trim()).map_err(|e| EtcdError::Strange(e.to_string()));
                }
                Err(failed) => why = format!("{}: {failed}", self.members[at]),
            }
        }
        Err(EtcdError::Away(why))
    }

    /// Grants a lease of that many seconds, or of the least that etcd grants. Returns its id.
    ///
    /// # Errors
    /// See [`EtcdError`].
    pub fn grant(&self, seconds: u64) -> Result<String, EtcdError> {
        let answer = self.call("/v3/lease/grant", &json!({ "TTL": seconds.to_string() }))?;
        text(&answer["ID"]).ok_or_else(|| strange(&answer))
    }

    /// Renews a lease; whether there was one.
    ///
    /// # Errors
    /// See [`EtcdError`].
    pub fn keep_alive(&self, lease: &str) -> Result<bool, EtcdError> {
        let answer = self.call("/v3/lease/keepalive", &json!({ "ID": lease }))?;
        Ok(number(&answer["result"]["TTL"]).is_some_and(|left| left > 0))
    }

    /// Seconds that a lease was granted for, and those that are left. `None`: it is over.
    ///
    /// # Errors
    /// See [`EtcdError`].
    pub fn left(&self, lease: &str) -> Result<Option<(u64, u64)>, EtcdError> {
        let answer = self.call("/v3/lease/timetolive", &json!({ "ID": lease }))?;
        let (granted, left) = (number(&answer["grantedTTL"]), text(&answer["TTL"]));
        // A number that is 0 is left out, and one below it is no lease.
        Ok(granted
            .filter(|_| left.as_deref() != Some("-1"))
            .map(|granted| (granted, number(&answer["TTL"]).unwrap_or(0))))
    }

    /// Gives a lease back: its keys are gone at once.
    ///
    /// # Errors
    /// See [`EtcdError`].
    pub fn revoke(&self, lease: &str) -> Result<(), EtcdError> {
        self.call("/v3/lease/revoke", &json!({ "ID": lease })).map(drop)
    }

    /// The name of the leader.
    ///
    /// # Errors
    /// See [`EtcdError`].
    pub fn leader(&self) -> Result<Option<Held>, EtcdError> {
        let answer = self.call("/v3/kv/range", &json!({ "key": coded(LEADER) }))?;
        let Some(found) = answer["kvs"].get(0) else { return Ok(None) };
        let held = Held {
            revision: number(&found["mod_revision"]).ok_or_else(|| strange(&answer))?,
            lease: text(&found["lease"]).unwrap_or_default(),
            address: decoded(&found["value"]).unwrap_or_default(),
        };
        Ok(Some(held))
    }

    /// Takes the leader key, if it is as it was seen: of that revision, or absent. The revision
    /// that it has then; `None`: another was first.
    ///
    /// # Errors
    /// See [`EtcdError`].
    pub fn take(&self, seen: Option<u64>, lease: &str, address: &str) -> Result<Option<u64>, EtcdError> {
        let body = json!({
            "compare": [is_at(seen.unwrap_or(0))],
            "success": [{ "request_put": { "key": coded(LEADER), "value": coded(address), "lease": lease } }],
        });
        let answer = self.call("/v3/kv/txn", &body)?;
        if answer["succeeded"] != true {
            return Ok(None);
        }
        number(&answer["header"]["revision"]).map(Some).ok_or_else(|| strange(&answer))
    }

    /// The rack's number: this one, if it has none yet.
    ///
    /// # Errors
    /// See [`EtcdError`].
    pub fn rack(&self, proposed: u64) -> Result<u64, EtcdError> {
        let body = json!({
            "compare": [{ "key": coded(RACK), "target": "CREATE", "create_revision": "0", "result": "EQUAL" }],
            "success": [{ "request_put": { "key": coded(RACK), "value": coded(&proposed.to_string()) } }],
            "failure": [{ "request_range": { "key": coded(RACK) } }],
        });
        let answer = self.call("/v3/kv/txn", &body)?;
        if answer["succeeded"] == true {
            return Ok(proposed);
        }
        let found = decoded(&answer["responses"][0]["response_range"]["kvs"][0]["value"]);
        found.and_then(|found| found.parse().ok()).ok_or_else(|| strange(&answer))
    }

    /// All intents, by their keys.
    ///
    /// # Errors
    /// See [`EtcdError`].
    pub fn intents(&self) -> Result<Vec<(String, String)>, EtcdError> {
        // '0' follows '/'.
        let end = format!("{}0", INTENTS.trim_end_matches('/'));
        let answer = self.call("/v3/kv/range", &json!({ "key": coded(INTENTS), "range_end": coded(&end) }))?;
        let rows = answer["kvs"].as_array().cloned().unwrap_or_default();
        let row = |row: &Value| {
            let key = decoded(&row["key"])?.strip_prefix(INTENTS)?.to_owned();
            Some((key, decoded(&row["value"])?))
        };
        rows.iter().map(|each| row(each).ok_or_else(|| strange(each))).collect()
    }

    /// Writes intents (`None`: deletes what has the key) in their order, as long as the leader key
    /// has this revision.
    ///
    /// # Errors
    /// [`EtcdError::Deposed`], and nothing of the last hundred is written; the others, and it may
    /// be.
    pub fn keep(&self, revision: u64, rows: &[(String, Option<String>)]) -> Result<(), EtcdError> {
        let operation = |(key, value): &(String, Option<String>)| {
            let key = coded(&format!("{INTENTS}{key}"));
            match value {
                Some(value) => json!({ "request_put": { "key": key, "value": coded(value) } }),
                None => json!({ "request_delete_range": { "key": key } }),
            }
        };
        for some in rows.chunks(OPERATIONS) {
            let all: Vec<Value> = some.iter().map(operation).collect();
            let answer = self.call("/v3/kv/txn", &json!({ "compare": [is_at(revision)], "success": all }))?;
            if answer["succeeded"] != true {
                return Err(EtcdError::Deposed);
            }
        }
        Ok(())
    }
}

const LEADER: &str = "farmem/leader";
const RACK: &str = "farmem/rack";
const INTENTS: &str = "farmem/intent/";

/// That the leader key was written last at this revision. 0: that there is none.
fn is_at(revision: u64) -> Value {
    json!({ "key": coded(LEADER), "target": "MOD", "mod_revision": revision.to_string(), "result": "EQUAL" })
}

fn coded(text: &str) -> String {
    STANDARD.encode(text)
}

fn decoded(value: &Value) -> Option<String> {
    String::from_utf8(STANDARD.decode(value.as_str()?).ok()?).ok()
}

fn text(value: &Value) -> Option<String> {
    value.as_str().map(String::from)
}

fn number(value: &Value) -> Option<u64> {
    value.as_str()?.parse().ok()
}

fn strange(answer: &Value) -> EtcdError {
    EtcdError::Strange(answer.to_string().chars().take(200).collect())
}

#[cfg(test)]
mod tests {
    use super::Etcd;

    #[test]
    fn a_cluster_is_named_by_its_members() {
        for good in ["etcd://a:2379", "etcd://a:2379,10.0.0.1:2379,[::1]:2379"] {
            assert!(Etcd::named(good).is_ok(), "{good}");
        }
        for bad in
            ["", "etcd://", "etcd://a", "etcd://a:1,", "etcd://a:1/x", "etcd://u@a:1", "http://a:1", "etcd://a:70000"]
        {
            assert!(Etcd::named(bad).is_err(), "{bad}");
        }
    }
}
