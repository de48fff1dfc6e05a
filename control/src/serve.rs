//! HTTP in front of the state: the messages of [`crate::api`], a page, and metrics.
//!
//! A request is carried out under the state's lock. Its intents are then kept in the store, without
//! that lock. Then it is answered. Of several controllers only the leader answers.

use crate::api::{Beat, Given, ORDER_HEADER, Orders, Rack, Refused, Term, Want};
use crate::door;
use crate::election::{self, CONFIRMED_FOR};
use crate::etcd::{Etcd, EtcdError};
use crate::guard::{self, Guard, Hash, OfTenant};
use crate::log::Log;
use crate::metrics;
use crate::state::{Action, Intent, Refusal, State};
use crate::store::{Kept, Store, StoreError};
use crate::unsaved::Unsaved;
use axum::body::Bytes;
use axum::extract::{ConnectInfo, Extension, Path, State as With};
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::from_fn_with_state;
use axum::response::{Html, IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use farmem_protocol::random::Random;
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// What a browser shows. It makes text of names, and never markup.
const PAGE: &str = include_str!("page.html");
/// What a browser lets the page do: run what is in it, and ask this controller. No other site's page
/// may show it in a frame, and have its user press a button unawares.
const PAGE_MAY: &str = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; \
    connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
/// How often the state is told the time.
const TICK: Duration = Duration::from_millis(100);

/// How long a new leader waits for the beats of nodes that it knows, before it gives nodes to runs.
const BEATS_WITHIN: Duration = Duration::from_millis(1200);

/// How long a text of the rack is given to all who look at it.
const SHOWN_FOR: Duration = Duration::from_millis(250);

/// The rack as texts, which all who look at it share: a peer that reads slowly holds no text of its
/// own.
struct Shown {
    made: Instant,
    term: Term,
    rack: Bytes,
    /// Of the rack's text: anybody may ask for a proof, often.
    hash: Hash,
    counters: Bytes,
}

/// Whether a controller leads the rack now.
enum Role {
    /// It leads. If it is one of several: when etcd last confirmed that. `None`: it is the only
    /// one.
    Leads(Option<Instant>),
    /// It stands by, for this reason.
    Stands(String),
}

/// A controller's state, shared by its requests.
struct Controller {
    state: State,
    role: Role,
    /// Each later change, and each tick, tries to keep them.
    unsaved: Unsaved,
    /// Bytes that tenants may hold in the whole rack, by name.
    quotas: BTreeMap<String, u64>,
    random: Random,
    /// When it began to lead: the zero of the state's time.
    begun: Instant,
    /// Writes a line, and which of those that nodes cause are written.
    log: fn(&str),
    lines: Log,
}

/// A controller that is not served yet.
pub struct Served {
    controller: Mutex<Controller>,
    store: Store,
    /// Held while intents are written to the store. So they reach it in the order in which the
    /// state took them.
    keeping: tokio::sync::Mutex<()>,
    /// The newest texts. Held while they are made, so that one maker at a time asks for the state.
    shown: tokio::sync::Mutex<Option<Arc<Shown>>>,
}

impl Served {
    fn of(store: Store, state: State, role: Role, seed: u64, log: fn(&str)) -> Arc<Served> {
        let (unsaved, random, begun) = (Unsaved::default(), Random::new(seed), Instant::now());
        let (quotas, lines) = (BTreeMap::new(), Log::new(begun));
        let controller = Controller { state, role, unsaved, quotas, random, begun, log, lines };
        let controller = Mutex::new(controller);
        Arc::new(Served { controller, store, keeping: Default::default(), shown: Default::default() })
    }

    /// The only controller of its rack, with the content of its store. `seed` is random: it decides
    /// which nodes are drawn. `log` takes a line for each event.
    pub fn alone(store: Store, kept: Kept, seed: u64, log: fn(&str)) -> Arc<Served> {
        Served::of(store, State::of(kept.intents).led_in(kept.term), Role::Leads(None), seed, log)
    }

    /// One of several controllers that share an etcd. Nodes, runs and the other controllers reach
    /// it at `address`. It stands by at first. A thread of its own takes part in the election until
    /// the process ends.
    ///
    /// # Errors
    /// The system has no thread.
    pub fn of_several(etcd: Etcd, address: &str, seed: u64, log: fn(&str)) -> std::io::Result<Arc<Served>> {
        let etcd = Arc::new(etcd);
        let store = Store::Etcd(Arc::clone(&etcd));
        let role = Role::Stands("this controller has just begun: ask again".to_owned());
        let served = Served::of(store, State::default(), role, seed, log);
        let (one, address) = (Arc::clone(&served), address.to_owned());
        std::thread::Builder::new()
            .name("election".into())
            .spawn(move || election::take_part(&*one, &etcd, &address, seed))?;
        Ok(served)
    }

    /// Sets the bytes that tenants may hold in the whole rack, by name.
    pub fn set_quotas(&self, quotas: BTreeMap<String, u64>) {
        let mut controller = self.lock();
        if controller.quotas != quotas {
            controller.state.set_quotas(quotas.clone());
            controller.quotas = quotas;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Controller> {
        // A panic of a handler does not make the state unusable: it is as the last whole change
        // left it.
        self.controller.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The controller, if it leads.
    fn led(&self) -> Result<MutexGuard<'_, Controller>, No> {
        let controller = self.lock();
        match &controller.role {
            Role::Leads(sure) if sure.is_none_or(|sure| sure.elapsed() < CONFIRMED_FOR) => Ok(controller),
            Role::Leads(_) => Err(No::not_now("this controller does not reach etcd and may lead no longer".into())),
            Role::Stands(why) => Err(No::not_now(why.clone())),
        }
    }

    /// As [`Served::led`], once it knows which nodes are up. A node counts as down until its first
    /// beat. So a leader that answers at once would replace nodes that are up, let them be
    /// forgotten, and show them as down.
    fn informed(&self) -> Result<MutexGuard<'_, Controller>, No> {
        let controller = self.led()?;
        match controller.now() < BEATS_WITHIN && controller.state.awaits_beats() {
            true => Err(No::not_now("this controller has just begun to lead: ask again".into())),
            false => Ok(controller),
        }
    }

    /// The rack's texts, at most [`SHOWN_FOR`] old. They are made without the controller's lock.
    async fn shown(&self) -> Result<Arc<Shown>, No> {
        // A look waits until the leader knows which nodes are up.
        while self.led().is_ok() && self.informed().is_err() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let mut shown = self.shown.lock().await;
        let (view, term) = {
            let controller = self.informed()?;
            let term = controller.state.term();
            let is_new = |shown: &&Arc<Shown>| shown.term == term && shown.made.elapsed() < SHOWN_FOR;
            if let Some(shown) = shown.as_ref().filter(is_new) {
                return Ok(Arc::clone(shown));
            }
            (controller.state.view(controller.now()), term)
        };
        let rack = serde_json::to_vec(&view).map_err(|e| No(StatusCode::INTERNAL_SERVER_ERROR, e.to_string()))?;
        let hash = Hash(farmem_trust::hashed(&rack));
        let (rack, counters) = (rack.into(), metrics::exposition(Some(&view)).into());
        let made = Arc::new(Shown { made: Instant::now(), term, rack, hash, counters });
        *shown = Some(Arc::clone(&made));
        Ok(made)
    }

    /// Writes the unsaved intents of this term to the store. The controller is not locked meanwhile.
    ///
    /// # Errors
    /// The store failed, or another term began, which has discarded them: nothing is said to be kept
    /// that is not.
    async fn keep(self: &Arc<Self>, of: Term) -> Result<(), StoreError> {
        let _one = self.keeping.lock().await;
        let (up_to, intents) = self.lock().unsaved_of(of)?;
        if intents.is_empty() {
            return Ok(());
        }
        let served = Arc::clone(self);
        let kept = tokio::task::spawn_blocking(move || served.store.keep(of.epoch, &intents)).await;
        kept.map_err(|e| StoreError::Panicked(e.to_string()))??;
        let mut controller = self.lock();
        controller.unsaved_of(of)?;
        controller.unsaved.saved(up_to);
        Ok(())
    }
}

/// The controller's side of an election.
impl election::Led for Served {
    fn leads(&self, term: Term, kept: Kept, sure: Instant) {
        let mut controller = self.lock();
        controller.state = State::of(kept.intents).led_in(term);
        let quotas = controller.quotas.clone();
        controller.state.set_quotas(quotas);
        controller.unsaved.clear();
        controller.begun = Instant::now();
        controller.role = Role::Leads(Some(sure));
        (controller.log)(&format!("this controller leads the rack from here on (epoch {})", term.epoch));
    }

    fn is_sure(&self, at: Instant) {
        if let Role::Leads(sure) = &mut self.lock().role {
            *sure = Some(at);
        }
    }

    fn stands(&self, why: String) {
        let mut controller = self.lock();
        if !matches!(&controller.role, Role::Stands(was) if *was == why) {
            (controller.log)(&why);
            controller.role = Role::Stands(why);
        }
    }

    fn say(&self, line: &str) {
        (self.lock().log)(line);
    }
}

impl Controller {
    /// The unsaved intents, if the term is this one.
    fn unsaved_of(&self, term: Term) -> Result<(u64, Vec<Intent>), StoreError> {
        if self.state.term() == term { Ok(self.unsaved.all()) } else { Err(EtcdError::Deposed.into()) }
    }

    fn now(&self) -> Duration {
        self.begun.elapsed()
    }

    /// Carries out a change's actions. Intents are only queued: [`Served::keep`] stores them. `from`: the
    /// address that has asked for the change.
    fn carry_out(&mut self, actions: Vec<Action>, from: Option<IpAddr>) {
        for action in actions {
            match action {
                Action::Keep(intent) => self.unsaved.push(intent),
                Action::Say { line, of } => {
                    if of.or(from).is_none_or(|of| self.lines.may(of, Instant::now())) {
                        (self.log)(&line);
                    }
                }
            }
        }
    }
}

/// The refusal of a handler: a status and a reason.
struct No(StatusCode, String);

impl No {
    /// 503: another controller may be able to answer, or this one a moment later.
    fn not_now(why: String) -> No {
        No(StatusCode::SERVICE_UNAVAILABLE, why)
    }
}

impl IntoResponse for No {
    fn into_response(self) -> Response {
        (self.0, Json(Refused { why: self.1 })).into_response()
    }
}

impl From<Refusal> for No {
    fn from(refusal: Refusal) -> No {
        let status = match refusal {
            Refusal::Malformed(_) => StatusCode::BAD_REQUEST,
            Refusal::Unknown(_) => StatusCode::NOT_FOUND,
            Refusal::NameTaken(_) | Refusal::NameKept(..) | Refusal::IsUp(_) | Refusal::NoNode(_) => {
                StatusCode::CONFLICT
            }
            Refusal::OthersRun(_) => StatusCode::FORBIDDEN,
            Refusal::ManyRuns(_) => StatusCode::TOO_MANY_REQUESTS,
            Refusal::Deposed => StatusCode::SERVICE_UNAVAILABLE,
        };
        No(status, refusal.to_string())
    }
}

impl From<StoreError> for No {
    fn from(error: StoreError) -> No {
        let status = match error {
            StoreError::Etcd(EtcdError::Deposed) => StatusCode::SERVICE_UNAVAILABLE,
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        };
        No(status, format!("the controller's store: {error}"))
    }
}

type Shared = Arc<Served>;

/// Serves until the process ends. The guard decides which requests may change the rack.
///
/// # Errors
/// The socket failed.
pub async fn serve(listener: std::net::TcpListener, served: Arc<Served>, guard: Guard) -> std::io::Result<()> {
    listener.set_nonblocking(true)?;
    let listener = tokio::net::TcpListener::from_std(listener)?;
    tokio::spawn(tick(Arc::clone(&served)));
    let router = Router::new()
        .route("/", get(|| async { ([(header::CONTENT_SECURITY_POLICY, PAGE_MAY)], Html(PAGE)) }))
        .route("/v1/leads", get(leads))
        .route("/v1/beat", post(beat))
        .route("/v1/want", post(want))
        .route("/v1/rack", get(rack))
        .route("/v1/nodes/{name}/{order}", post(order))
        .route("/metrics", get(counters))
        .layer(from_fn_with_state(Arc::new(guard), guard::check))
        .with_state(served);
    door::serve(listener, router).await;
    Ok(())
}

async fn tick(shared: Shared) {
    let mut every = tokio::time::interval(TICK);
    every.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        every.tick().await;
        let term = if let Ok(mut controller) = shared.led() {
            let (now, mut actions) = (controller.now(), Vec::new());
            controller.state.tick(now, &mut actions);
            controller.carry_out(actions, None);
            if let Some(counts) = controller.lines.counts(Instant::now()) {
                (controller.log)(&counts);
            }
            controller.state.term()
        } else {
            continue;
        };
        // Retries intents that could not be kept. The operators of such orders were told already.
        let _ = shared.keep(term).await;
    }
}

/// Answers standbys that ask whether this controller leads.
async fn leads(With(shared): With<Shared>) -> Result<Json<Term>, No> {
    Ok(Json(shared.led()?.state.term()))
}

async fn beat(
    With(shared): With<Shared>,
    ConnectInfo(from): ConnectInfo<SocketAddr>,
    Json(mut beat): Json<Beat>,
) -> Result<Json<Orders>, No> {
    beat.listen = beat.listen.iter().map(|at| completed(at, from.ip())).collect();
    let (term, orders) = {
        let mut controller = shared.led()?;
        let (now, mut actions) = (controller.now(), Vec::new());
        let orders = controller.state.beat_of(Some(from.ip()), now, beat, &mut actions)?;
        controller.carry_out(actions, Some(from.ip()));
        (controller.state.term(), orders)
    };
    shared.keep(term).await?;
    Ok(Json(orders))
}

/// Completes an address of no particular host (`0.0.0.0:7411`) by the address that the beat came
/// from.
fn completed(at: &str, from: IpAddr) -> String {
    match at.parse::<SocketAddr>() {
        Ok(at) if at.ip().is_unspecified() => SocketAddr::new(from.to_canonical(), at.port()).to_string(),
        _ => at.to_owned(),
    }
}

async fn want(
    With(shared): With<Shared>,
    tenant: Option<Extension<OfTenant>>,
    Json(want): Json<Want>,
) -> Result<Json<Given>, No> {
    let tenant = tenant.map_or_else(String::new, |Extension(OfTenant(tenant))| tenant);
    let mut controller = shared.informed()?;
    let (now, random) = (controller.now(), controller.random.bits());
    Ok(Json(controller.state.want_of(&tenant, now, &want, random)?))
}

async fn rack(With(shared): With<Shared>) -> Result<impl IntoResponse, No> {
    let shown = shared.shown().await?;
    Ok(([(header::CONTENT_TYPE, "application/json")], Extension(shown.hash), shown.rack.clone()))
}

async fn order(
    With(shared): With<Shared>,
    ConnectInfo(from): ConnectInfo<SocketAddr>,
    Path((name, order)): Path<(String, String)>,
    headers: HeaderMap,
) -> Result<Json<Rack>, No> {
    // This stops forged orders from other web sites. A browser lets their pages send this header
    // only if this server allows it, and it does not.
    if !headers.contains_key(ORDER_HEADER) {
        return Err(No(StatusCode::FORBIDDEN, format!("an order has the header {ORDER_HEADER}")));
    }
    let (term, view) = {
        let mut controller = if order == "forget" { shared.informed()? } else { shared.led()? };
        let (now, mut actions) = (controller.now(), Vec::new());
        match order.as_str() {
            "drain" => controller.state.drain(now, &name, true, &mut actions)?,
            "undrain" => controller.state.drain(now, &name, false, &mut actions)?,
            "forget" => controller.state.forget(now, &name, &mut actions)?,
            _ => return Err(No(StatusCode::NOT_FOUND, format!("no such order: {order}"))),
        }
        controller.carry_out(actions, Some(from.ip()));
        (controller.state.term(), controller.state.view_of(now, &name))
    };
    // The next look shows what the order has changed.
    *shared.shown.lock().await = None;
    shared.keep(term).await?;
    Ok(Json(view))
}

async fn counters(With(shared): With<Shared>) -> impl IntoResponse {
    // A standby has no figures of the rack.
    let counters = match shared.shown().await {
        Ok(shown) => shown.counters.clone(),
        Err(_) => metrics::exposition(None).into(),
    };
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], counters)
}

#[cfg(test)]
mod tests;
