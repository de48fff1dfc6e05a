//! etcd's JSON gateway: its members, reached by HTTP or by TLS, and the user that calls are made for.
//!
//! Each call goes to the member that answered last, and to the others if it does not. A user is
//! authenticated by its password once. The token that etcd gives for it goes with each call. etcd
//! forgets tokens (after five minutes without a call, and when its users change): then the password
//! is sent again.

use super::EtcdError;
use farmem_protocol::wire::text::printable;
use serde_json::{Value, json};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use ureq::tls::{ClientCert, PemItem, RootCerts, TlsConfig, parse_pem};

/// How long one member may take to answer.
const ANSWER_WITHIN: Duration = Duration::from_millis(600);
/// How long it may take to look at a password, which is slow on purpose.
const PASSWORD_WITHIN: Duration = Duration::from_secs(3);
/// The most members that are named.
const MOST: usize = 9;
/// The longest answer: some 20 000 intents.
const LONGEST: u64 = 32 << 20;
/// The authorities that a Debian machine trusts.
const SYSTEMS_AUTHORITIES: &str = "/etc/ssl/certs/ca-certificates.crt";

/// How etcd is reached, beside its address.
#[derive(Clone, Debug, Default)]
pub struct Access {
    /// A file of the authorities, in PEM, of which one has signed the members' certificates. `None`:
    /// those of the system.
    pub ca: Option<PathBuf>,
    /// A file with `NAME:PASSWORD`, which only its owner may read.
    pub user: Option<PathBuf>,
    /// A file with this controller's own certificate and its private key, in PEM, which only its
    /// owner may read.
    pub cert: Option<PathBuf>,
}

impl Access {
    /// Whether it is by an address alone.
    pub fn is_plain(&self) -> bool {
        self.ca.is_none() && self.user.is_none() && self.cert.is_none()
    }
}

#[derive(Debug)]
pub(super) struct Gateway {
    scheme: &'static str,
    members: Vec<String>,
    agent: ureq::Agent,
    user: Option<(String, String)>,
    token: Mutex<Option<String>>,
    /// The member that answered last.
    last: AtomicUsize,
}

/// Why a member has not done what it was asked.
enum Failed {
    /// Another may.
    Away(String),
    /// No other will.
    Refused(String),
}

/// A status and a body.
type Answer = (u16, String);

impl Gateway {
    pub fn named(text: &str, access: &Access) -> Result<Gateway, String> {
        let (scheme, rest) = match (text.strip_prefix("etcds://"), text.strip_prefix("etcd://")) {
            (Some(rest), _) => ("https", rest),
            (None, rest) => ("http", rest.unwrap_or_default()),
        };
        let members: Vec<String> = rest.split(',').map(String::from).collect();
        let is_good = |member: &String| {
            let (host, port) = member.rsplit_once(':').unwrap_or_default();
            let plain = |c: char| c.is_ascii_alphanumeric() || "-._:[]".contains(c);
            !host.is_empty() && host.chars().all(plain) && port.parse::<u16>().is_ok()
        };
        if members.len() > MOST || !members.iter().all(is_good) {
            return Err(format!(
                "'{text}' names no etcd: write etcd://HOST:PORT, or etcds:// for TLS, or up to {MOST} of them by commas"
            ));
        }
        if scheme == "http" && !access.is_plain() {
            return Err("an authority, a certificate and a user need TLS: write etcds://HOST:PORT".into());
        }
        let config = ureq::Agent::config_builder()
            .timeout_global(Some(ANSWER_WITHIN))
            .http_status_as_error(false)
            .proxy(None)
            .max_redirects(0);
        let config = match scheme {
            "https" => {
                let own = access.cert.as_deref().map(certificate_in).transpose()?;
                config.tls_config(tls(access.ca.as_deref().unwrap_or(Path::new(SYSTEMS_AUTHORITIES)), own)?)
            }
            _ => config,
        };
        let user = access.user.as_deref().map(user_in).transpose()?;
        let (token, last) = (Mutex::new(None), AtomicUsize::new(0));
        Ok(Gateway { scheme, members, agent: config.build().into(), user, token, last })
    }

    /// Asks the members, one after the other, until one answers.
    pub fn call(&self, path: &str, body: &Value) -> Result<Value, EtcdError> {
        let first = self.last.load(Ordering::Relaxed);
        let mut why = String::new();
        for step in 0..self.members.len() {
            let at = (first + step) % self.members.len();
            match self.ask(at, path, body) {
                Ok(text) => {
                    self.last.store(at, Ordering::Relaxed);
                    // A stream of one answer ends with an empty line.
                    return serde_json::from_str(text.trim()).map_err(|e| EtcdError::Strange(e.to_string()));
                }
                Err(Failed::Away(failed)) => why = format!("{}: {failed}", self.members[at]),
                Err(Failed::Refused(failed)) => return Err(EtcdError::Refused(failed)),
            }
        }
        Err(EtcdError::Away(why))
    }

    /// Asks one member; once more with another token, if it does not know this one any more.
    fn ask(&self, at: usize, path: &str, body: &Value) -> Result<String, Failed> {
        let token = self.token(at)?;
        let (status, text) = self.post(at, path, body, token.as_deref(), ANSWER_WITHIN)?;
        if !is_stale(status, &text) || token.is_none() {
            return answered(status, text);
        }
        self.locked().take_if(|known| Some(&*known) == token.as_ref());
        let token = self.token(at)?;
        let (status, text) = self.post(at, path, body, token.as_deref(), ANSWER_WITHIN)?;
        answered(status, text)
    }

    fn locked(&self) -> std::sync::MutexGuard<'_, Option<String>> {
        self.token.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The token of this user; `None`: there is no user.
    fn token(&self, at: usize) -> Result<Option<String>, Failed> {
        let Some((name, password)) = &self.user else { return Ok(None) };
        if let Some(token) = self.locked().clone() {
            return Ok(Some(token));
        }
        let body = json!({ "name": name, "password": password });
        let (status, text) = self.post(at, "/v3/auth/authenticate", &body, None, PASSWORD_WITHIN)?;
        let answer: Value = serde_json::from_str(&answered(status, text)?).unwrap_or_default();
        let token = answer["token"].as_str().map(String::from);
        let token = token.ok_or_else(|| Failed::Away("it gives no token".into()))?;
        *self.locked() = Some(token.clone());
        Ok(Some(token))
    }

    fn post(
        &self,
        at: usize,
        path: &str,
        body: &Value,
        token: Option<&str>,
        in_time: Duration,
    ) -> Result<Answer, Failed> {
        let url = format!("{}://{}{path}", self.scheme, self.members[at]);
        let mut request = self.agent.post(url).config().timeout_global(Some(in_time)).build();
        if let Some(token) = token {
            request = request.header("Authorization", token);
        }
        // In TLS 1.3 a member that does not like this end's certificate just hangs up.
        let hung_up = [ErrorKind::BrokenPipe, ErrorKind::ConnectionReset, ErrorKind::UnexpectedEof];
        let failed = |e: ureq::Error| match &e {
            ureq::Error::Io(io) if self.scheme == "https" && hung_up.contains(&io.kind()) => {
                Failed::Away(format!("{e}: does it ask for another certificate (--etcd-cert)?"))
            }
            _ => Failed::Away(printable(&e.to_string())),
        };
        let mut answer = request.send_json(body).map_err(failed)?;
        let text = answer.body_mut().with_config().limit(LONGEST).read_to_string().map_err(failed)?;
        Ok((answer.status().as_u16(), text))
    }
}

/// Whether a token is not good any more, but its user may be.
fn is_stale(status: u16, text: &str) -> bool {
    status == 401 || status >= 400 && text.contains("revision of auth store is old")
}

/// The text of a good answer, or the reason of a bad one. Without a leader a member of etcd answers
/// by an error, and another member may have a leader. Errors about users are the same from all
/// members.
fn answered(status: u16, text: String) -> Result<String, Failed> {
    if (200..300).contains(&status) {
        return Ok(text);
    }
    let said: Value = serde_json::from_str(text.trim()).unwrap_or_default();
    let said = said["error"].as_str().unwrap_or(text.trim()).chars().take(200).collect::<String>();
    let said = printable(&said);
    let about_users = ["user", "authentic", "auth token", "permission denied"];
    match matches!(status, 401 | 403) || status < 500 && about_users.iter().any(|what| said.contains(what)) {
        true => Err(Failed::Refused(said)),
        false => Err(Failed::Away(said)),
    }
}

/// TLS by ring, which trusts the authorities of a file alone. `own`: what this end shows of itself.
fn tls(ca: &Path, own: Option<ClientCert>) -> Result<TlsConfig, String> {
    let wrong = |what: String| format!("{}: {what}", ca.display());
    let text = std::fs::read(ca).map_err(|e| wrong(e.to_string()))?;
    let mut authorities = Vec::new();
    for item in parse_pem(&text) {
        if let PemItem::Certificate(certificate) = item.map_err(|e| wrong(e.to_string()))? {
            authorities.push(certificate);
        }
    }
    if authorities.is_empty() {
        return Err(wrong("it holds no certificate in PEM".into()));
    }
    let ring = Arc::new(rustls::crypto::ring::default_provider());
    Ok(TlsConfig::builder()
        .root_certs(RootCerts::new_with_certs(&authorities))
        .client_cert(own)
        .unversioned_rustls_crypto_provider(ring)
        .build())
}

/// The certificates and the private key in a file.
fn certificate_in(file: &Path) -> Result<ClientCert, String> {
    let text = farmem_trust::file::secret(file).map_err(|e| e.to_string())?;
    let wrong = |what: String| format!("{}: {what}", file.display());
    let (mut chain, mut key) = (Vec::new(), None);
    for item in parse_pem(text.as_bytes()) {
        match item.map_err(|e| wrong(e.to_string()))? {
            PemItem::Certificate(certificate) => chain.push(certificate),
            PemItem::PrivateKey(found) => key = Some(found),
            _ => {}
        }
    }
    match key.filter(|_| !chain.is_empty()) {
        Some(key) => Ok(ClientCert::new_with_certs(&chain, key)),
        None => Err(wrong("it is to hold a certificate and its private key, in PEM".into())),
    }
}

/// The name and the password in a file.
fn user_in(file: &Path) -> Result<(String, String), String> {
    let text = farmem_trust::file::secret(file).map_err(|e| e.to_string())?;
    let (name, password) = text.trim_end_matches(['\n', '\r']).split_once(':').unwrap_or_default();
    if name.is_empty() || password.is_empty() || text.trim_end_matches(['\n', '\r']).contains('\n') {
        return Err(format!("{}: it is to hold one line, NAME:PASSWORD", file.display()));
    }
    Ok((name.to_owned(), password.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_cluster_is_named_by_its_members() {
        for good in ["etcd://a:2379", "etcd://a:2379,10.0.0.1:2379,[::1]:2379"] {
            assert!(Gateway::named(good, &Access::default()).is_ok(), "{good}");
        }
        for bad in
            ["", "etcd://", "etcd://a", "etcd://a:1,", "etcd://a:1/x", "etcd://u@a:1", "http://a:1", "etcd://a:70000"]
        {
            assert!(Gateway::named(bad, &Access::default()).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_password_needs_tls_and_a_file_of_its_own() {
        let file = std::env::temp_dir().join(format!("farmem-etcd-user-{}", std::process::id()));
        let access = Access { user: Some(file.clone()), ..Access::default() };
        let named = |text| Gateway::named(text, &access).err().unwrap_or_default();
        std::fs::write(&file, "rack:secret\n").unwrap();
        let mode = |mode| std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).unwrap();
        mode(0o644);
        assert!(named("etcd://a:1").contains("need TLS"));
        assert!(user_in(&file).unwrap_err().contains("others may read it"));
        mode(0o600);
        assert_eq!(user_in(&file), Ok(("rack".into(), "secret".into())));
        for bad in ["", "rack", "rack:", ":secret", "a:b\nc:d\n"] {
            std::fs::write(&file, bad).unwrap();
            assert!(user_in(&file).unwrap_err().contains("NAME:PASSWORD"), "{bad:?}");
        }
        assert!(tls(&file, None).unwrap_err().contains("no certificate"));
        assert!(certificate_in(&file).unwrap_err().contains("a certificate and its private key"));
        std::fs::remove_file(&file).unwrap();
        assert!(named("etcds://a:1").contains("No such file"));
    }

    #[test]
    fn a_refusal_is_told_from_an_absence() {
        let refused = |status, text: &str| matches!(answered(status, text.into()), Err(Failed::Refused(_)));
        assert!(refused(400, r#"{"error":"etcdserver: user name is empty","code":3}"#));
        assert!(refused(403, r#"{"error":"etcdserver: permission denied","code":7}"#));
        assert!(refused(400, r#"{"error":"etcdserver: authentication failed, invalid user ID or password"}"#));
        assert!(!refused(503, r#"{"error":"etcdserver: no leader","code":14}"#));
        assert!(!refused(500, "user error"));
    }
}
