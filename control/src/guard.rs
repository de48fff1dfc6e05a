//! The right to change the rack: a token, if the controller has a store of tokens.
//!
//! ```text
//! host                                                controller
//!  │── POST …, x-farmem-token: id h ───────────────────►│
//!  │◄──────────────── 401, x-farmem-challenge: n ───────│
//!  │── POST …, x-farmem-token: id h n mac head ────────►│  mac = HMAC(key, "request" n h method path body)
//!  │◄── answer, x-farmem-answer: mac ───────────────────│  mac = HMAC(key, "answer" h method path status body)
//! ```
//!
//! `h` is the host's nonce, `n` the challenge; `head` is as `mac`, without the body. A body is
//! received only behind a head that is proven, or where there are no tokens at all.
//!
//! Any token may ask for a run's nodes. A node's beat and an operator's order need a token of the
//! tenant [`OPERATOR`]. A GET needs no token: every client that reaches the port may look at the
//! rack. A client that names a token gets a proof with that answer, too.
//!
//! A request names this controller by an address, a name without a dot, or a name that its operator
//! gave ([`Guard::called`]), unless it names a token, or says that farmem sent it ([`NO_PAGE`]): so a
//! web page whose site's name was made to lead here (*rebinding*) gives no orders and reads nothing of
//! the rack.
//!
//! A challenge can be answered once, within [`GOOD_FOR`]. It carries its time and a seal that only
//! this controller can make. So the controller stores only challenges that were answered.

use crate::api::Refused;
use crate::spare::Spare;
use axum::Json;
use axum::body::{Body, Bytes, HttpBody, to_bytes};
use axum::extract::{ConnectInfo, Request, State};
use axum::http::header::{CONNECTION, HOST, TRANSFER_ENCODING};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use farmem_protocol::fairness::is_fair;
use farmem_scrape::host::{host_of, is_no_site};
use farmem_trust::{Key, Mac, Nonce, TokenId, drawn, hashed, hex, same, unhex};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::future::poll_fn;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The header by which a host names its token and proves it.
pub const TOKEN: &str = "x-farmem-token";
/// The header of the challenge in a refusal.
pub const CHALLENGE: &str = "x-farmem-challenge";
/// The header of the controller's proof for its answer.
pub const ANSWER: &str = "x-farmem-answer";
/// The header by which farmem says that no web page sends this: a browser lets none set a header
/// whose name begins with `sec-` (Fetch, *forbidden request-header*).
pub const NO_PAGE: &str = "sec-farmem";
/// The tenant whose tokens are for nodes and operators.
pub const OPERATOR: &str = "rack";
/// The most bytes of a request's body.
pub const LONGEST_REQUEST: usize = 64 << 10;

/// A challenge can be answered for this long.
const GOOD_FOR: Duration = Duration::from_secs(10);
/// The most answered challenges that are remembered. Further ones within [`GOOD_FOR`] are refused.
/// One token may have half of what the others leave.
const MOST_ANSWERED: usize = 1 << 17;
/// Those of them that only tokens of the tenant [`OPERATOR`] may have: beats and orders come
/// through, however much the others ask.
const OPERATORS: usize = MOST_ANSWERED / 8;
/// A request whose body takes longer to arrive is refused.
const BODY_WITHIN: Duration = Duration::from_secs(5);
/// The most bodies that are received at the same time. One tenant may have half of what the others
/// leave; without tokens one address may.
const MOST_BODIES: usize = 256;
/// Those of them that only the tenant [`OPERATOR`] may have.
const OPERATORS_BODIES: usize = MOST_BODIES / 8;
/// Those of them that are kept for addresses that have none, where there are no tokens.
const KEPT_BODIES: usize = MOST_BODIES / 4;

/// 8 bytes of time in milliseconds, 16 random bytes, 16 bytes of the seal. The time is big-endian,
/// so that challenges sort by age.
type Challenge = [u8; 40];

/// Finds the key of a token that can be used now, by its public name.
pub type Find = Box<dyn Fn(&TokenId) -> Option<Key> + Send + Sync>;

/// The request that a proof is for.
#[derive(Clone, Copy)]
pub struct Asked<'a> {
    /// The request's method, in capitals.
    pub method: &'a str,
    /// Its path.
    pub path: &'a str,
    /// Its body.
    pub body: &'a [u8],
}

/// The value of the header [`TOKEN`]. It names the host's token, and proves it if there is a
/// challenge.
pub fn token(key: &Key, nonce: &Nonce, challenge: Option<&str>, asked: Asked<'_>) -> String {
    let named = format!("{} {}", hex(&key.id), hex(nonce));
    match challenge {
        None => named,
        Some(challenge) => {
            let (seen, mac) = (challenge.as_bytes(), of_request(key, challenge.as_bytes(), nonce, asked));
            format!("{named} {challenge} {} {}", hex(&mac), hex(&of_head(key, seen, nonce, asked.method, asked.path)))
        }
    }
}

/// Whether `answer` proves that a controller that knows the token answered this request so.
pub fn is_proven(answer: &str, key: &Key, nonce: &Nonce, asked: Asked<'_>, status: u16, body: &[u8]) -> bool {
    unhex(answer).is_some_and(|shown| same(&shown, &of_answer(key, nonce, asked, status, &hashed(body))))
}

fn of_request(key: &Key, challenge: &[u8], nonce: &Nonce, asked: Asked<'_>) -> Mac {
    key.of_request(&[challenge, nonce, asked.method.as_bytes(), asked.path.as_bytes(), asked.body])
}

fn of_head(key: &Key, challenge: &[u8], nonce: &Nonce, method: &str, path: &str) -> Mac {
    key.of_request(&[challenge, nonce, method.as_bytes(), path.as_bytes()])
}

/// The SHA-256 of an answer's body, as an extension of the answer. A handler that gives a long body to
/// many hashes it once.
#[derive(Clone, Copy)]
pub struct Hash(pub [u8; 32]);

/// `body`: the SHA-256 of the answer's.
fn of_answer(key: &Key, nonce: &Nonce, asked: Asked<'_>, status: u16, body: &[u8; 32]) -> Mac {
    // The request's body is left out: the request's own proof covers it, and a GET has none.
    key.of_answer(&[nonce, asked.method.as_bytes(), asked.path.as_bytes(), &status.to_le_bytes(), body])
}

/// A controller's tokens and open challenges.
pub struct Guard {
    /// `None`: every request is carried out, without a token.
    find: Option<Find>,
    /// A random key that no other process knows: it seals challenges.
    seal: Key,
    begun: Instant,
    answered: Mutex<Answered>,
    bodies: Mutex<Bodies>,
    body_within: Duration,
    /// Names of this controller, beside its addresses.
    names: BTreeSet<String>,
}

/// Challenges that were answered in the last [`GOOD_FOR`].
#[derive(Default)]
struct Answered {
    /// The oldest first, each with the token that answered it.
    challenges: BTreeMap<Challenge, TokenId>,
    /// How many of them each token has answered.
    of: HashMap<TokenId, usize>,
}

impl Answered {
    /// Forgets the oldest, if it is too old.
    fn forget_first(&mut self, is_old: impl Fn(&Challenge) -> bool) -> bool {
        let Some(oldest) = self.challenges.first_entry().filter(|oldest| is_old(oldest.key())) else { return false };
        let token = oldest.remove();
        if let Some(count) = self.of.get_mut(&token) {
            *count -= 1;
            if *count == 0 {
                self.of.remove(&token);
            }
        }
        true
    }

    /// Remembers a challenge that a token has answered. False: it was answered before, or the token
    /// has as many as it may.
    fn insert(&mut self, challenge: &Challenge, key: &Key) -> bool {
        let most = if key.tenant.as_str() == OPERATOR { MOST_ANSWERED } else { MOST_ANSWERED - OPERATORS };
        let of = self.of.get(&key.id).copied().unwrap_or(0);
        let all = self.challenges.len();
        if all >= most || !is_fair(of + 1, most - all - 1, most) || self.challenges.contains_key(challenge) {
            return false;
        }
        self.challenges.insert(*challenge, key.id);
        self.of.insert(key.id, of + 1);
        true
    }
}

/// The tenant of a request's proven token, for its handler.
#[derive(Clone)]
pub struct OfTenant(pub String);

/// A token that a request names.
struct Named {
    key: Key,
    nonce: Nonce,
    /// The challenge that its head has answered, and the proof for the whole request.
    shown: Option<(String, Mac)>,
}

impl Named {
    /// Whether the request is proven.
    fn proves(&self, asked: Asked<'_>) -> bool {
        let is = |(challenge, mac): &(String, Mac)| {
            same(mac, &of_request(&self.key, challenge.as_bytes(), &self.nonce, asked))
        };
        self.shown.as_ref().is_some_and(is)
    }
}

impl Guard {
    /// A guard that knows tokens by `find`. Without `find` it lets every request pass.
    ///
    /// # Errors
    /// The system has no randomness.
    pub fn new(find: Option<Find>) -> std::io::Result<Guard> {
        let seal = drawn().ok_or_else(|| std::io::Error::other("the system has no randomness"))?;
        let seal = Key::stored(Default::default(), [0; 8], seal);
        let bodies = Mutex::default();
        let (begun, answered) = (Instant::now(), Mutex::default());
        Ok(Guard { find, seal, begun, answered, bodies, body_within: BODY_WITHIN, names: BTreeSet::new() })
    }

    /// The same guard, for a controller that requests may call by these names too, `HOST[:PORT]`.
    pub fn called<'a>(self, names: impl IntoIterator<Item = &'a str>) -> Guard {
        let names = names.into_iter().map(host_of).filter(|name| !name.is_empty()).collect();
        Guard { names, ..self }
    }

    /// Whether a request calls this controller by its address, or by a name that is its own. The page
    /// and whether it leads are no secret.
    fn is_called(&self, head: &Parts) -> bool {
        if head.headers.contains_key(NO_PAGE) {
            return true;
        }
        let is_own = |said: &str| {
            let host = host_of(said);
            is_no_site(&host) || self.names.contains(&host)
        };
        let mut said = head.headers.get_all(HOST).iter();
        let names_own = match (said.next(), said.next()) {
            // No browser does that.
            (None, _) => true,
            (Some(host), None) => host.to_str().is_ok_and(is_own),
            (Some(_), Some(_)) => false,
        };
        let public = head.method == Method::GET && matches!(head.uri.path(), "/" | "/v1/leads");
        public || names_own && head.uri.authority().is_none_or(|named| is_own(named.as_str()))
    }

    fn now_ms(&self) -> u64 {
        self.begun.elapsed().as_millis() as u64
    }

    fn challenge(&self) -> Option<Challenge> {
        let mut challenge = [0; 40];
        challenge[..8].copy_from_slice(&self.now_ms().to_be_bytes());
        challenge[8..24].copy_from_slice(&drawn::<16>()?);
        let seal = self.seal.of_request(&[&challenge[..24]]);
        challenge[24..].copy_from_slice(&seal[..16]);
        Some(challenge)
    }

    /// Whether a challenge is this controller's, not too old, and answered for the first time, by this
    /// token.
    fn takes(&self, challenge: &Challenge, key: &Key) -> bool {
        let time = |challenge: &Challenge| challenge[..8].iter().fold(0u64, |at, &byte| at << 8 | u64::from(byte));
        let (mut sealed, mut shown) = (self.seal.of_request(&[&challenge[..24]]), [0; 32]);
        shown[..16].copy_from_slice(&challenge[24..]);
        sealed[16..].fill(0);
        let (now, good) = (self.now_ms(), GOOD_FOR.as_millis() as u64);
        let is_old = |challenge: &Challenge| now.saturating_sub(time(challenge)) > good;
        if !same(&sealed, &shown) || is_old(challenge) {
            return false;
        }
        let mut answered = self.answered.lock().unwrap_or_else(PoisonError::into_inner);
        while answered.forget_first(is_old) {}
        answered.insert(challenge, key)
    }

    /// The token that a request names, if the controller knows it. A challenge that its head answers
    /// is used up.
    fn named(&self, find: &Find, headers: &HeaderMap, method: &str, path: &str) -> Option<Named> {
        let mut words = headers.get(TOKEN)?.to_str().ok()?.split(' ');
        let (key, nonce) = (find(&unhex(words.next()?)?)?, unhex(words.next()?)?);
        let shown = match (words.next(), words.next().and_then(unhex), words.next().and_then(unhex), words.next()) {
            (Some(challenge), Some(mac), Some(head), None) => {
                let is_proven = same(&head, &of_head(&key, challenge.as_bytes(), &nonce, method, path))
                    // What needs no proof uses no challenge up.
                    && method == Method::POST.as_str()
                    && unhex(challenge).is_some_and(|challenge| self.takes(&challenge, &key));
                is_proven.then(|| (challenge.to_owned(), mac))
            }
            _ => None,
        };
        Some(Named { key, nonce, shown })
    }

    /// The same guard, with another limit on the time of bodies.
    #[cfg(test)]
    pub(crate) fn waits(self, body_within: Duration) -> Guard {
        Guard { body_within, ..self }
    }

    /// The refusal of a request; `None` if it may be carried out. The token that it names, and whether
    /// it proves it.
    fn refusal(&self, named: Option<(&Named, bool)>, headers: &HeaderMap, asked: Asked<'_>) -> Option<Response> {
        if asked.method != Method::POST.as_str() {
            return None;
        }
        let why = match named {
            Some((Named { key, .. }, true)) if key.tenant.as_str() == OPERATOR => return None,
            Some((_, true)) if asked.path == "/v1/want" => return None,
            Some((_, true)) => {
                let why = "nodes and orders need a token of the tenant rack: name it by --token FILE";
                return Some(refused(StatusCode::FORBIDDEN, why));
            }
            Some((_, false)) => "the token was not proven: answer the challenge",
            None if headers.contains_key(TOKEN) => {
                "the controller does not know this token: it was revoked, has expired, or is of another store"
            }
            None => "the controller serves holders of tokens alone: name yours by --token FILE",
        };
        let mut refused = refused(StatusCode::UNAUTHORIZED, why);
        if let Some(challenge) = self.challenge().and_then(|challenge| HeaderValue::from_str(&hex(&challenge)).ok()) {
            refused.headers_mut().insert(CHALLENGE, challenge);
        }
        Some(refused)
    }
}

/// Whose body it is.
#[derive(Clone, PartialEq, Eq, Hash)]
enum Sender {
    Tenant(String),
    /// Where there are no tokens.
    Address(IpAddr),
}

/// Bodies that are being received, by their senders.
#[derive(Default)]
struct Bodies {
    /// Without those in `spare`.
    all: usize,
    of: HashMap<Sender, usize>,
    spare: Spare,
}

/// The place of a body that is being received.
struct Place<'a> {
    bodies: &'a Mutex<Bodies>,
    from: Sender,
    /// The address, if it is one of those that are kept.
    spare: Option<IpAddr>,
}

impl Place<'_> {
    /// `None`: this sender has its share.
    fn take(bodies: &Mutex<Bodies>, from: Sender) -> Option<Place<'_>> {
        let (kept, address) = match &from {
            Sender::Tenant(tenant) if tenant == OPERATOR => (0, None),
            Sender::Tenant(_) => (OPERATORS_BODIES, None),
            Sender::Address(address) => (KEPT_BODIES, Some(*address)),
        };
        let most = MOST_BODIES - kept;
        let mut within = bodies.lock().unwrap_or_else(PoisonError::into_inner);
        let of = within.of.get(&from).copied().unwrap_or(0);
        let fair = within.all < most && is_fair(of + 1, most - within.all - 1, most);
        let spare = address.filter(|_| !fair && of == 0);
        if !fair && !spare.is_some_and(|address| within.spare.take(address, KEPT_BODIES)) {
            return None;
        }
        if fair {
            within.all += 1;
        }
        within.of.insert(from.clone(), of + 1);
        Some(Place { bodies, from, spare })
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let mut bodies = self.bodies.lock().unwrap_or_else(PoisonError::into_inner);
        match self.spare {
            Some(address) => bodies.spare.give_back(address),
            None => bodies.all -= 1,
        }
        match bodies.of.get_mut(&self.from) {
            Some(count) if *count > 1 => *count -= 1,
            _ => drop(bodies.of.remove(&self.from)),
        }
    }
}

/// Receives a body of at most [`LONGEST_REQUEST`], and keeps nothing of it.
async fn dropped(mut body: Body) -> Result<Bytes, axum::Error> {
    let mut length = 0;
    while let Some(frame) = poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await {
        length += frame?.data_ref().map_or(0, Bytes::len);
        if length > LONGEST_REQUEST {
            return Err(axum::Error::new("too long"));
        }
    }
    Ok(Bytes::new())
}

impl Guard {
    /// Receives a request's body within bounds. A refusal, if it does not come.
    async fn body(&self, head: &Parts, named: Option<&Named>, body: Body) -> Result<Bytes, Response> {
        // What asks for the rack needs no body. A stranger's request is refused whatever its body is:
        // one that sends it slowly keeps no other request from being received.
        if head.method == Method::GET || self.find.is_some() && named.is_none() {
            return Ok(Bytes::new());
        }
        let sender = match named {
            // To know a token's name is not to know the token. The body is no use, but behind it comes
            // the request with the proof, on the same connection.
            Some(Named { shown: None, .. }) => None,
            Some(Named { key, .. }) => Some(Sender::Tenant(key.tenant.to_string())),
            None => {
                let from = head.extensions.get::<ConnectInfo<SocketAddr>>();
                let from = from.map_or(IpAddr::from([0; 4]), |ConnectInfo(from)| from.ip().to_canonical());
                Some(Sender::Address(from))
            }
        };
        let receives = async {
            let Some(sender) = sender else { return Ok(dropped(body).await) };
            match Place::take(&self.bodies, sender) {
                Some(_place) => Ok(to_bytes(body, LONGEST_REQUEST).await),
                None => {
                    let why = "this tenant, or address, sends too many requests at a time";
                    Err(refused(StatusCode::SERVICE_UNAVAILABLE, why))
                }
            }
        };
        match tokio::time::timeout(self.body_within, receives).await {
            Ok(Ok(Ok(body))) => Ok(body),
            Ok(Ok(Err(_))) => Err(refused(StatusCode::PAYLOAD_TOO_LARGE, "the request is too long, or was cut off")),
            Ok(Err(refusal)) => Err(refusal),
            Err(_) => Err(refused(StatusCode::REQUEST_TIMEOUT, "the request was too slow")),
        }
    }
}

/// Receives a request's body within bounds, and passes the request on unless it is refused.
pub async fn check(State(guard): State<Arc<Guard>>, request: Request, next: Next) -> Response {
    let (head, body) = request.into_parts();
    // A proxy before this controller may take another length to be the request's. Then the rest would
    // be a request of whoever comes next by that proxy.
    if head.headers.contains_key(TRANSFER_ENCODING) {
        let refusal = refused(StatusCode::LENGTH_REQUIRED, "a request says its length by content-length");
        return ([(CONNECTION, "close")], refusal).into_response();
    }
    let (method, path) = (head.method.clone(), head.uri.path().to_owned());
    let find = guard.find.as_ref();
    let named = find.and_then(|find| guard.named(find, &head.headers, method.as_str(), &path));
    if named.is_none() && !guard.is_called(&head) {
        let why = "this controller does not go by the host that the request names: ask by its address, or start it \
                   with --called NAME";
        return refused(StatusCode::MISDIRECTED_REQUEST, why);
    }
    let body = match guard.body(&head, named.as_ref(), body).await {
        Ok(body) => body,
        Err(refusal) => return refusal,
    };
    let whole = body.clone();
    let asked = Asked { method: method.as_str(), path: &path, body: &whole };
    if find.is_none() {
        return next.run(Request::from_parts(head, Body::from(body))).await;
    }
    let shown = named.as_ref().map(|named| (named, named.proves(asked)));
    let answer = match guard.refusal(shown, &head.headers, asked) {
        Some(refusal) => refusal,
        None => {
            let mut request = Request::from_parts(head, Body::from(body));
            if let Some((Named { key, .. }, true)) = shown {
                request.extensions_mut().insert(OfTenant(key.tenant.to_string()));
            }
            next.run(request).await
        }
    };
    match named {
        Some(Named { key, nonce, .. }) => proven(answer, &key, &nonce, asked).await,
        None => answer,
    }
}

/// Adds the controller's proof to an answer.
async fn proven(answer: Response, key: &Key, nonce: &Nonce, asked: Asked<'_>) -> Response {
    let (mut head, body) = answer.into_parts();
    // No limit is needed: the controller made this body itself, and it is in memory.
    let Ok(body) = to_bytes(body, usize::MAX).await else {
        return refused(StatusCode::INTERNAL_SERVER_ERROR, "the answer was lost");
    };
    let hash = head.extensions.get::<Hash>().map_or_else(|| hashed(&body), |Hash(hash)| *hash);
    let mac = hex(&of_answer(key, nonce, asked, head.status.as_u16(), &hash));
    if let Ok(mac) = HeaderValue::from_str(&mac) {
        head.headers.insert(ANSWER, mac);
    }
    Response::from_parts(head, Body::from(body))
}

fn refused(status: StatusCode, why: &str) -> Response {
    (status, Json(Refused { why: why.to_owned() })).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;
    use farmem_trust::Token;

    fn guard(key: Key) -> Guard {
        Guard::new(Some(Box::new(move |id| (*id == key.id).then_some(key)))).unwrap()
    }

    fn named(guard: &Guard, shown: &str, asked: Asked<'_>) -> Option<Named> {
        let mut headers = HeaderMap::new();
        headers.insert(TOKEN, shown.parse().unwrap());
        guard.named(guard.find.as_ref().unwrap(), &headers, asked.method, asked.path)
    }

    fn is_proven_by(guard: &Guard, shown: &str, asked: Asked<'_>) -> bool {
        named(guard, shown, asked).is_some_and(|named| named.proves(asked))
    }

    #[test]
    fn a_proof_is_good_for_one_request_and_once() {
        let key = Token::new("lab", &[7; 40]).unwrap().key();
        let (guard, nonce) = (guard(key), [3; 32]);
        let challenge = hex(&guard.challenge().unwrap());
        let asked = Asked { method: "POST", path: "/v1/want", body: b"{}" };
        let good = token(&key, &nonce, Some(&challenge), asked);
        assert!(!is_proven_by(&guard, &good, Asked { path: "/v1/beat", ..asked }), "another path");
        assert!(!is_proven_by(&guard, &good, Asked { method: "GET", ..asked }), "another method");
        assert!(!is_proven_by(&guard, &good.replace(&hex(&nonce), &hex(&[4; 32])), asked), "another nonce");
        assert!(!is_proven_by(&guard, &token(&key, &nonce, None, asked), asked), "no proof");
        let other = Key::stored(key.tenant, key.id, [1; 32]);
        assert!(!is_proven_by(&guard, &token(&other, &nonce, Some(&challenge), asked), asked), "another token");
        assert!(is_proven_by(&guard, &good, asked));
        assert!(!is_proven_by(&guard, &good, asked), "a second time");
        let challenge = hex(&guard.challenge().unwrap());
        let good = token(&key, &nonce, Some(&challenge), asked);
        assert!(!is_proven_by(&guard, &good, Asked { body: b"{ }", ..asked }), "another body");
        assert!(!is_proven_by(&guard, &good, asked), "its head was proven, and is so once");
        let challenge = hex(&guard.challenge().unwrap());
        let made_up = ["00".repeat(40), challenge.replacen(&challenge[30..34], "0bad", 1), challenge[..60].to_owned()];
        for made_up in made_up {
            assert!(!is_proven_by(&guard, &token(&key, &nonce, Some(&made_up), asked), asked), "{made_up}");
        }
        for shown in ["", " ", "00", "x y z w", "é", &format!("{good} {good}")] {
            assert!(!is_proven_by(&guard, shown, asked), "{shown}");
        }
    }

    /// However many tenants or addresses send bodies slowly, and however many each, another one's is
    /// received. The operator's is in any case.
    #[test]
    fn one_sender_receives_a_part_of_all_bodies_and_gives_it_back() {
        let (bodies, tenant) = (Mutex::default(), |n: u8| Sender::Tenant(format!("t{n}")));
        let address = |n: u8| Sender::Address(IpAddr::from([10, 0, 0, n]));
        let mut places = Vec::new();
        for from in (0..5).map(|n| if n % 2 == 0 { tenant(n) } else { address(n) }) {
            places.push(Place::take(&bodies, from.clone()).expect("another sender"));
            while let Some(place) = Place::take(&bodies, from.clone()) {
                places.push(place);
            }
        }
        assert!(places.len() > MOST_BODIES / 2 && places.len() < MOST_BODIES - OPERATORS_BODIES);
        for other in 5..40 {
            while let Some(place) = Place::take(&bodies, tenant(other)) {
                places.push(place);
            }
        }
        assert_eq!(places.len(), MOST_BODIES - OPERATORS_BODIES);
        let operator = Sender::Tenant(OPERATOR.to_owned());
        assert!(Place::take(&bodies, operator).is_some(), "beats come through");
        drop(places);
        let bodies = bodies.lock().unwrap();
        assert!(bodies.all == 0 && bodies.of.is_empty());
    }

    /// Where there are no tokens, addresses that send as many bodies as they may keep out none that sends
    /// one, unless they have many networks.
    #[test]
    fn addresses_that_send_many_bodies_keep_no_other_out() {
        let bodies = Mutex::default();
        let address = |net: u8, host: u8| Sender::Address(IpAddr::from([10, 0, net, host]));
        let mut places = Vec::new();
        for host in 0..=255 {
            while let Some(place) = Place::take(&bodies, address(0, host)) {
                places.push(place);
            }
        }
        assert!(places.len() >= MOST_BODIES - KEPT_BODIES && places.len() < MOST_BODIES);
        let mut other = (1..10).map(|net| Place::take(&bodies, address(net, 1)));
        assert!(other.all(|place| place.is_some()), "another network's is received");
        for net in 1..=255 {
            places.extend((0..8).filter_map(|host| Place::take(&bodies, address(net, host))));
        }
        assert_eq!(places.len(), MOST_BODIES);
        drop(places);
        let bodies = bodies.lock().unwrap();
        assert!(bodies.all == 0 && bodies.of.is_empty() && bodies.spare.is_unused());
    }

    #[test]
    fn a_challenge_of_another_controller_or_of_long_ago_is_of_no_use() {
        let key = Token::new("lab", &[7; 40]).unwrap().key();
        let (one, mut other) = (guard(key), guard(key));
        assert!(!other.takes(&one.challenge().unwrap(), &key));
        let old = other.challenge().unwrap();
        // As if the controller had begun that much earlier.
        other.begun -= GOOD_FOR + Duration::from_millis(2);
        assert!(!other.takes(&old, &key) && other.takes(&other.challenge().unwrap(), &key));
        assert_eq!(other.answered.lock().unwrap().challenges.len(), 1);
    }

    /// However much tokens of others prove, another token is left some, and the operator's an eighth.
    #[test]
    fn a_token_that_proves_much_keeps_nobody_out() {
        let key = |tenant, drawn| Token::new(tenant, &[drawn; 40]).unwrap().key();
        let greedy: Vec<Key> = (0..80).map(|drawn| key("lab", drawn)).collect();
        let (modest, operator) = (key("shop", 100), key(OPERATOR, 101));
        let mut answered = Answered::default();
        let mut number = 0_u64;
        let mut proves = |answered: &mut Answered, key: &Key| {
            number += 1;
            let mut challenge = [0; 40];
            challenge[8..16].copy_from_slice(&number.to_le_bytes());
            answered.insert(&challenge, key)
        };
        let first = (0..MOST_ANSWERED).take_while(|_| proves(&mut answered, &greedy[0])).count();
        assert!(first <= MOST_ANSWERED / 2, "{first}");
        assert!((0..1000).all(|_| proves(&mut answered, &modest)), "another token proves on");
        for key in &greedy[1..] {
            while proves(&mut answered, key) {}
        }
        assert!(!proves(&mut answered, &greedy[79]));
        assert!((0..1000).all(|_| proves(&mut answered, &operator)), "beats come through");
        assert!(!answered.insert(&[0; 40], &operator) || !answered.insert(&[0; 40], &operator), "each once");
        let all = answered.challenges.len();
        while answered.forget_first(|_| true) {}
        assert!(all > MOST_ANSWERED / 2 && answered.of.is_empty());
    }

    #[test]
    fn a_look_uses_no_challenge_up() {
        let key = Token::new("lab", &[7; 40]).unwrap().key();
        let (guard, nonce) = (guard(key), [3; 32]);
        let challenge = hex(&guard.challenge().unwrap());
        let asked = Asked { method: "GET", path: "/v1/rack", body: b"" };
        assert!(named(&guard, &token(&key, &nonce, Some(&challenge), asked), asked).is_some());
        assert!(guard.answered.lock().unwrap().challenges.is_empty());
    }

    #[test]
    fn an_answer_is_proven_for_one_request_one_status_and_one_body() {
        let key = Token::new("lab", &[7; 40]).unwrap().key();
        let asked = Asked { method: "GET", path: "/v1/rack", body: b"" };
        let shown = hex(&of_answer(&key, &[1; 32], asked, 200, &hashed(b"{}")));
        assert!(is_proven(&shown, &key, &[1; 32], asked, 200, b"{}"));
        assert!(!is_proven(&shown, &key, &[2; 32], asked, 200, b"{}"));
        assert!(!is_proven(&shown, &key, &[1; 32], asked, 404, b"{}"));
        assert!(!is_proven(&shown, &key, &[1; 32], asked, 200, b"[]"));
        assert!(!is_proven(&shown, &key, &[1; 32], Asked { method: "POST", ..asked }, 200, b"{}"));
        assert!(!is_proven("", &key, &[1; 32], asked, 200, b"{}"));
    }
}
