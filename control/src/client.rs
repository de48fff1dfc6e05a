//! The client of a controller, for nodes, runs and operators. Each call waits for its answer.

use crate::api::{Beat, Given, ORDER_HEADER, Orders, Rack, Refused, Term, Terms, Want};
use crate::guard::{self, Asked};
use farmem_protocol::wire::text::printable;
use farmem_trust::{Key, Nonce, drawn};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long a controller may take to answer, if it is the only one …
const ANSWER_WITHIN: Duration = Duration::from_secs(2);
/// … or one of several.
const ONE_WITHIN: Duration = Duration::from_millis(700);
/// How long to look for one of several that leads: as long as another may take to take over.
const LEADER_WITHIN: Duration = Duration::from_secs(4);
/// The longest answer that is read: a rack of 20 000 nodes, and of [`crate::api::MOST_SHOWN`] runs.
const LONGEST_ANSWER: u64 = 64 << 20;
/// Between two rounds.
const PAUSE: Duration = Duration::from_millis(100);

/// Why there is no answer that helps.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// It was not reached, or did not answer in time.
    #[error("the controller at {at} cannot be reached: {why}")]
    Away {
        /// Where.
        at: String,
        /// The error of the system.
        why: String,
        /// Its machine says that nobody listens there: waiting for an answer is of no use.
        nobody: bool,
    },
    /// Several were not reached.
    #[error("no controller can be reached: {0}")]
    AllAway(String),
    /// The controller does not lead, or leads no longer.
    #[error("the controller at {at} has no answer: {why}")]
    NotNow {
        /// Its address.
        at: String,
        /// The reason that it gives.
        why: String,
    },
    /// The controller was reached, and refuses.
    #[error("{0}")]
    Refused(String),
    /// Something else answers there.
    #[error("what listens at {at} is not a farmem controller: {why}")]
    Stranger {
        /// Where.
        at: String,
        /// The text of its answer.
        why: String,
    },
}

/// A rack's controller, or several of which one leads, by their addresses:
/// `HOST:PORT[,HOST:PORT…]`.
///
/// It remembers the latest term of an answer, and ignores answers of earlier leaders after that.
#[derive(Clone, Debug)]
pub struct Client {
    named: String,
    at: Vec<String>,
    agent: ureq::Agent,
    /// The token to prove, and to have proven.
    key: Option<Key>,
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    /// The one that answered last.
    last: AtomicUsize,
    seen: Mutex<Terms>,
}

impl Client {
    /// Nothing is sent yet.
    pub fn new(named: &str) -> Client {
        let at: Vec<String> = named.split(',').map(String::from).collect();
        let config = ureq::Agent::config_builder()
            .timeout_global(Some(if at.len() > 1 { ONE_WITHIN } else { ANSWER_WITHIN }))
            .http_status_as_error(false)
            // A controller is in the rack. Proxies that the environment names are for other networks.
            .proxy(None)
            .max_redirects(0)
            // A controller closes what is idle for longer.
            .max_idle_age(crate::door::HEAD_WITHIN / 2)
            .build();
        Client { named: named.to_owned(), at, agent: config.into(), key: None, shared: Arc::default() }
    }

    /// The same, which proves a token. It takes no answer but from a controller that knows the
    /// token too.
    pub fn by(self, key: Option<Key>) -> Client {
        Client { key, ..self }
    }

    /// Its address, or those of all.
    pub fn address(&self) -> &str {
        &self.named
    }

    /// A node's beat.
    ///
    /// # Errors
    /// See [`AskError`].
    pub fn beat(&self, beat: &Beat) -> Result<Orders, AskError> {
        self.ask(|at| {
            let beat = Beat { seen: self.seen(), ..beat.clone() };
            self.is_current(at, self.post(at, "/v1/beat", &beat)?, |orders: &Orders| orders.term)
        })
    }

    /// Nodes for a run.
    ///
    /// # Errors
    /// See [`AskError`].
    pub fn want(&self, want: &Want) -> Result<Given, AskError> {
        self.ask(|at| {
            let want = Want { seen: self.seen(), ..want.clone() };
            self.is_current(at, self.post(at, "/v1/want", &want)?, |given: &Given| given.term)
        })
    }

    /// The rack.
    ///
    /// # Errors
    /// See [`AskError`].
    pub fn rack(&self) -> Result<Rack, AskError> {
        self.ask(|at| {
            let rack = self.send(at, Asked { method: "GET", path: "/v1/rack", body: b"" })?;
            self.is_current(at, rack, |rack: &Rack| rack.term)
        })
    }

    /// `drain`, `undrain` or `forget` a node.
    ///
    /// # Errors
    /// See [`AskError`].
    pub fn order(&self, node: &str, order: &str) -> Result<Rack, AskError> {
        let name: String = node.bytes().map(|b| encoded(b).unwrap_or_else(|| char::from(b).to_string())).collect();
        let path = format!("/v1/nodes/{name}/{order}");
        self.ask(|at| self.send(at, Asked { method: "POST", path: &path, body: b"" }))
    }

    fn seen(&self) -> Option<Term> {
        self.shared.seen.lock().unwrap_or_else(PoisonError::into_inner).latest()
    }

    /// The answer, if it is not one of a leader whose time is over.
    fn is_current<T>(&self, at: &str, answer: T, term: impl Fn(&T) -> Term) -> Result<T, AskError> {
        let mut seen = self.shared.seen.lock().unwrap_or_else(PoisonError::into_inner);
        match seen.takes(term(&answer)) {
            true => Ok(answer),
            false => Err(AskError::NotNow { at: at.to_owned(), why: "another leads the rack by now".to_owned() }),
        }
    }

    /// Asks the controller that answered last, then the others, until one that leads has answered.
    /// Where nobody listens at any of them, none can take over soon: that ends the search at once.
    fn ask<T>(&self, call: impl Fn(&str) -> Result<T, AskError>) -> Result<T, AskError> {
        let (until, count) = (Instant::now() + LEADER_WITHIN, self.at.len());
        loop {
            let (first, mut failed) = (self.shared.last.load(Ordering::Relaxed), Vec::new());
            for step in 0..count {
                let at = (first + step) % count;
                match call(&self.at[at]) {
                    Err(e @ (AskError::NotNow { .. } | AskError::Away { .. } | AskError::Stranger { .. })) => {
                        failed.push(e);
                    }
                    answer => {
                        self.shared.last.store(at, Ordering::Relaxed);
                        return answer;
                    }
                }
            }
            let nobody = failed.iter().all(|e| matches!(e, AskError::Away { nobody: true, .. }));
            let failed = together(failed);
            let may_come = count > 1 && !nobody || matches!(failed, AskError::NotNow { .. });
            if !may_come || Instant::now() + PAUSE > until {
                return Err(failed);
            }
            std::thread::sleep(PAUSE);
        }
    }

    fn post<T: DeserializeOwned>(&self, at: &str, path: &str, body: &impl Serialize) -> Result<T, AskError> {
        let body = serde_json::to_vec(body).map_err(|e| AskError::Refused(e.to_string()))?;
        self.send(at, Asked { method: "POST", path, body: &body })
    }

    /// Sends a request, and once more with a proof if the controller asks for one.
    fn send<T: DeserializeOwned>(&self, at: &str, asked: Asked<'_>) -> Result<T, AskError> {
        let Some(key) = &self.key else { return read(at, self.once(at, asked, None)?) };
        let nonce: Nonce = drawn().ok_or_else(|| AskError::Refused("the system has no randomness".to_owned()))?;
        let mut answer = self.once(at, asked, Some(&guard::token(key, &nonce, None, asked)))?;
        if let (401, Some(challenge)) = (answer.status, &answer.challenge) {
            answer = self.once(at, asked, Some(&guard::token(key, &nonce, Some(challenge), asked)))?;
        }
        let proof = answer.proof.as_deref().unwrap_or_default();
        if !guard::is_proven(proof, key, &nonce, asked, answer.status, answer.text.as_bytes()) {
            // A refusal may give its reason without a proof.
            let why = if answer.is_success() { None } else { read::<()>(at, answer).err() };
            let unproven = "it does not prove that it knows the token: has it --tokens with this one?";
            return Err(why.unwrap_or_else(|| AskError::Stranger { at: at.to_owned(), why: unproven.to_owned() }));
        }
        read(at, answer)
    }

    fn once(&self, at: &str, asked: Asked<'_>, token: Option<&str>) -> Result<Answer, AskError> {
        let url = format!("http://{at}{}", asked.path);
        let always = [(guard::NO_PAGE, "1")].into_iter().chain(token.map(|token| (guard::TOKEN, token)));
        let sent = match asked.method {
            "GET" => always.fold(self.agent.get(url), |get, (name, value)| get.header(name, value)).call(),
            _ => {
                let headers = [("content-type", "application/json"), (ORDER_HEADER, "1")].into_iter().chain(always);
                headers.fold(self.agent.post(url), |post, (name, value)| post.header(name, value)).send(asked.body)
            }
        };
        let mut answer = sent.map_err(|e| {
            let nobody = matches!(&e, ureq::Error::Io(e) if e.kind() == std::io::ErrorKind::ConnectionRefused);
            AskError::Away { at: at.to_owned(), why: printable(&why_away(e)), nobody }
        })?;
        let header = |name| answer.headers().get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
        let (challenge, proof) = (header(guard::CHALLENGE), header(guard::ANSWER));
        let text = answer.body_mut().with_config().limit(LONGEST_ANSWER).read_to_string();
        let text = text.map_err(|e| AskError::Stranger { at: at.to_owned(), why: e.to_string() })?;
        Ok(Answer { status: answer.status().as_u16(), challenge, proof, text })
    }
}

/// What is told of controllers of which none has answered. A controller's own reason says more than that
/// others are away, and a stranger's answer more than silence.
fn together(mut failed: Vec<AskError>) -> AskError {
    let said = failed.iter().position(|e| matches!(e, AskError::NotNow { .. }));
    let said = said.or_else(|| failed.iter().position(|e| !matches!(e, AskError::Away { .. })));
    if let Some(at) = said.or(if failed.len() == 1 { Some(0) } else { None }) {
        return failed.swap_remove(at);
    }
    let each = |e: &AskError| match e {
        AskError::Away { at, why, .. } => format!("{at}: {why}"),
        other => other.to_string(),
    };
    AskError::AllAway(failed.iter().map(each).collect::<Vec<_>>().join("; "))
}

/// What the system says, where it is the system that refuses; what to do where that is known.
fn why_away(e: ureq::Error) -> String {
    match e {
        ureq::Error::Io(e) if e.kind() == std::io::ErrorKind::ConnectionRefused => {
            "nobody listens there: start `farmem controller` on it, or check the address".to_owned()
        }
        ureq::Error::Io(e) => e.to_string(),
        e => e.to_string(),
    }
}

/// A controller's answer.
struct Answer {
    status: u16,
    challenge: Option<String>,
    proof: Option<String>,
    text: String,
}

impl Answer {
    fn is_success(&self) -> bool {
        (200..300).contains(&self.status)
    }
}

fn read<T: DeserializeOwned>(at: &str, answer: Answer) -> Result<T, AskError> {
    let stranger = |why: String| AskError::Stranger { at: at.to_owned(), why };
    let said = serde_json::from_str::<Value>(&answer.text).map(cleaned);
    if answer.is_success() {
        return said.and_then(serde_json::from_value).map_err(|e| stranger(e.to_string()));
    }
    match said.and_then(serde_json::from_value::<Refused>) {
        Ok(Refused { why }) if answer.status == 503 => Err(AskError::NotNow { at: at.to_owned(), why }),
        Ok(refused) => Err(AskError::Refused(refused.why)),
        Err(_) => Err(stranger(format!("status {}", answer.status))),
    }
}

/// The same, with texts that can be printed: another may have written them, as whoever answers at a
/// controller's address where no token is named. An operator's terminal obeys none of them.
pub fn cleaned(said: Value) -> Value {
    match said {
        Value::String(text) => Value::String(printable(&text)),
        Value::Array(all) => all.into_iter().map(cleaned).collect(),
        Value::Object(all) => all.into_iter().map(|(name, value)| (printable(&name), cleaned(value))).collect(),
        other => other,
    }
}

/// A byte of a name as a URL has it, where it may not stand as it is.
fn encoded(byte: u8) -> Option<String> {
    let plain = byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    (!plain).then(|| format!("%{byte:02X}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::TcpListener;

    /// Whatever listens at a controller's address writes nothing to a terminal but text.
    #[test]
    fn an_answer_moves_no_cursor() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap().to_string();
        let node = r#"{"at":"a\u001b[2J:1","domain":"\u202ed"}"#;
        let answers = [
            ("409 Conflict", r#"{"why":"no\u001b]0;x\u0007\nfarmem: yes"}"#.to_owned()),
            ("200 OK", format!(r#"{{"nodes":[{node}],"term":{{"rack":1,"epoch":1}}}}"#)),
        ];
        let serves = std::thread::spawn(move || {
            for (status, body) in answers {
                let (mut stream, _) = listener.accept().unwrap();
                let mut asked = [0; 4096];
                assert!(stream.read(&mut asked).unwrap() > 0);
                let length = body.len();
                let head = format!("HTTP/1.1 {status}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n");
                stream.write_all((head + &body).as_bytes()).unwrap();
            }
        });
        let client = Client::new(&at);
        let refused = client.rack().unwrap_err().to_string();
        assert_eq!(refused, "no?]0;x??farmem: yes");
        let given = client.want(&Want::default()).unwrap();
        assert_eq!((given.nodes[0].at.as_str(), given.nodes[0].domain.as_str()), ("a?[2J:1", "?d"));
        serves.join().unwrap();
    }

    #[test]
    fn controllers_of_which_none_listens_are_all_named_at_once() {
        let begun = Instant::now();
        let said = Client::new("127.0.0.1:1,127.0.0.1:2").rack().unwrap_err().to_string();
        assert!(said.contains("127.0.0.1:1: nobody listens") && said.contains("127.0.0.1:2: nobody"), "{said}");
        assert!(begun.elapsed() < LEADER_WITHIN / 2);
    }

    #[test]
    fn a_controllers_reason_is_told_before_the_silence_of_others() {
        let away = |at: &str| AskError::Away { at: at.to_owned(), why: "silent".to_owned(), nobody: false };
        let now = || AskError::NotNow { at: "c:1".to_owned(), why: "it follows b:1".to_owned() };
        let said = |failed| together(failed).to_string();
        assert_eq!(said(vec![away("a:1"), now()]), "the controller at c:1 has no answer: it follows b:1");
        assert_eq!(said(vec![away("a:1")]), "the controller at a:1 cannot be reached: silent");
        assert_eq!(said(vec![away("a:1"), away("b:1")]), "no controller can be reached: a:1: silent; b:1: silent");
    }
}
