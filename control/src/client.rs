//! What nodes, runs and operators say to a controller. Each call waits for its answer.

use crate::api::{Beat, Given, ORDER_HEADER, Orders, Rack, Refused, Want};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::time::Duration;

/// How long a controller may take to answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);

/// Why there is no answer that helps.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// It was not reached, or did not answer in time.
    #[error("the controller at {at} cannot be reached: {why}")]
    Away {
        /// Where.
        at: String,
        /// What the system says.
        why: String,
    },
    /// It was reached, and says no.
    #[error("{0}")]
    Refused(String),
    /// Something else answers there.
    #[error("what listens at {at} is not a farmem controller: {why}")]
    Stranger {
        /// Where.
        at: String,
        /// What it answered.
        why: String,
    },
}

/// A controller, by its address `HOST:PORT`.
#[derive(Clone, Debug)]
pub struct Client {
    at: String,
    agent: ureq::Agent,
}

impl Client {
    /// Nothing is sent yet.
    pub fn new(at: &str) -> Client {
        let config = ureq::Agent::config_builder()
            .timeout_global(Some(ANSWER_WITHIN))
            .http_status_as_error(false)
            // A controller is in the rack: what the environment names is for other networks.
            .proxy(None)
            .max_redirects(0)
            .build();
        Client { at: at.to_owned(), agent: config.into() }
    }

    /// Its address.
    pub fn address(&self) -> &str {
        &self.at
    }

    /// A node's beat.
    ///
    /// # Errors
    /// See [`AskError`].
    pub fn beat(&self, beat: &Beat) -> Result<Orders, AskError> {
        self.post("/v1/beat", beat)
    }

    /// Nodes for a run.
    ///
    /// # Errors
    /// See [`AskError`].
    pub fn want(&self, want: &Want) -> Result<Given, AskError> {
        self.post("/v1/want", want)
    }

    /// The rack.
    ///
    /// # Errors
    /// See [`AskError`].
    pub fn rack(&self) -> Result<Rack, AskError> {
        self.answered(self.agent.get(self.url("/v1/rack")).call())
    }

    /// `drain`, `undrain` or `forget` a node.
    ///
    /// # Errors
    /// See [`AskError`].
    pub fn order(&self, node: &str, order: &str) -> Result<Rack, AskError> {
        let name: String = node.bytes().map(|b| encoded(b).unwrap_or_else(|| char::from(b).to_string())).collect();
        self.answered(
            self.agent.post(self.url(&format!("/v1/nodes/{name}/{order}"))).header(ORDER_HEADER, "1").send_empty(),
        )
    }

    fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.at)
    }

    fn post<T: DeserializeOwned>(&self, path: &str, body: &impl Serialize) -> Result<T, AskError> {
        self.answered(self.agent.post(self.url(path)).send_json(body))
    }

    fn answered<T: DeserializeOwned>(
        &self,
        answer: Result<ureq::http::Response<ureq::Body>, ureq::Error>,
    ) -> Result<T, AskError> {
        let stranger = |why: String| AskError::Stranger { at: self.at.clone(), why };
        let mut answer = answer.map_err(|e| AskError::Away { at: self.at.clone(), why: e.to_string() })?;
        let status = answer.status();
        let text = answer.body_mut().read_to_string().map_err(|e| stranger(e.to_string()))?;
        if status.is_success() {
            return serde_json::from_str(&text).map_err(|e| stranger(e.to_string()));
        }
        match serde_json::from_str::<Refused>(&text) {
            Ok(refused) => Err(AskError::Refused(refused.why)),
            Err(_) => Err(stranger(format!("status {}", status.as_u16()))),
        }
    }
}

/// A byte of a name as a URL has it, where it may not stand as it is.
fn encoded(byte: u8) -> Option<String> {
    let plain = byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    (!plain).then(|| format!("%{byte:02X}"))
}
