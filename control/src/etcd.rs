//! The part of etcd that a controller with a standby needs, by its JSON gateway over HTTP/1.1.
//!
//! | key | what |
//! |---|---|
//! | `farmem/leader` | the address of the controller that leads; its lease ends with it. The key's revision is the epoch |
//! | `farmem/rack` | a random number: epochs of different racks are not compared |
//! | `farmem/intent/…` | an [`Intent`](crate::state::Intent) as JSON |
//!
//! The gateway has keys and values in base64, and 64-bit numbers as strings. `gateway` has members,
//! TLS and users. A call that is not answered may have been carried out all the same: callers repeat
//! it, and each may be carried out twice.

mod gateway;

pub use gateway::Access;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use farmem_protocol::wire::text::printable;
use gateway::Gateway;
use serde_json::{Value, json};

/// Operations of one transaction, at most: etcd's own limit is 128.
const OPERATIONS: usize = 100;

/// Why etcd has not done what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum EtcdError {
    /// No member answered.
    #[error("no member of etcd answers: {0}")]
    Away(String),
    /// It does not take the user, or does not let it.
    #[error("etcd refuses: {0}; --etcd-user names a file with NAME:PASSWORD of a user that may change farmem/")]
    Refused(String),
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
    gateway: Gateway,
}

impl Etcd {
    /// The cluster that `etcd://HOST:PORT[,HOST:PORT…]` names, or `etcds://…` by TLS. Nothing is sent
    /// yet.
    ///
    /// # Errors
    /// One line that says what is wrong.
    pub fn named(text: &str, access: &Access) -> Result<Etcd, String> {
        Ok(Etcd { gateway: Gateway::named(text, access)? })
    }

    fn call(&self, path: &str, body: &Value) -> Result<Value, EtcdError> {
        self.gateway.call(path, body)
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
            // It is shown to operators.
            address: printable(&decoded(&found["value"]).unwrap_or_default()),
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
    EtcdError::Strange(printable(&answer.to_string().chars().take(200).collect::<String>()))
}
