//! HTTP in front of the state: the messages of [`crate::api`], a page, and metrics.
//!
//! Each request takes the state's lock, is carried out, has its intents kept, and is answered.
//! Nothing waits for another host with the lock held.

use crate::api::{Beat, Given, NodeView, ORDER_HEADER, Orders, Rack, Refused, Want};
use crate::state::{Action, Intent, Refusal, State};
use crate::store::{Store, StoreError};
use axum::extract::{ConnectInfo, DefaultBodyLimit, Path, State as With};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{Html, IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use farmem_protocol::random::Random;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The most bytes of a request.
const LONGEST_REQUEST: usize = 64 << 10;
/// How often time goes by for the state.
const TICK: Duration = Duration::from_millis(100);

/// A controller that is not served yet.
pub struct Controller {
    state: State,
    store: Store,
    /// Intents that the state has and the store has not: a disk was full. Each later change, and
    /// each tick, tries again, so that an order that failed is not lost when it is repeated.
    unsaved: Vec<Intent>,
    random: Random,
    begun: Instant,
    log: fn(&str),
}

impl Controller {
    /// With what a store held. `seed` is random: it decides which nodes are drawn. `log` takes a
    /// line for each thing that happens.
    pub fn new(store: Store, kept: Vec<Intent>, seed: u64, log: fn(&str)) -> Controller {
        Controller {
            state: State::of(kept),
            store,
            unsaved: Vec::new(),
            random: Random::new(seed),
            begun: Instant::now(),
            log,
        }
    }

    fn now(&self) -> Duration {
        self.begun.elapsed()
    }

    /// Carries out what follows from a change. What cannot be kept is an error for whoever asked.
    fn carry_out(&mut self, actions: Vec<Action>) -> Result<(), StoreError> {
        for action in actions {
            match action {
                Action::Keep(intent) => self.unsaved.push(intent),
                Action::Say(line) => (self.log)(&line),
            }
        }
        self.store.keep(&self.unsaved)?;
        self.unsaved.clear();
        Ok(())
    }
}

/// What a handler answers when it cannot.
struct No(StatusCode, String);

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
            Refusal::NameTaken(_) | Refusal::IsUp(_) | Refusal::NoNode(_) => StatusCode::CONFLICT,
        };
        No(status, refusal.to_string())
    }
}

impl From<StoreError> for No {
    fn from(error: StoreError) -> No {
        No(StatusCode::INTERNAL_SERVER_ERROR, format!("the controller's store: {error}"))
    }
}

type Shared = Arc<Mutex<Controller>>;

/// Serves until the process ends.
///
/// # Errors
/// The socket failed.
pub async fn serve(listener: std::net::TcpListener, controller: Controller) -> std::io::Result<()> {
    listener.set_nonblocking(true)?;
    let listener = tokio::net::TcpListener::from_std(listener)?;
    let shared: Shared = Arc::new(Mutex::new(controller));
    tokio::spawn(tick(Arc::clone(&shared)));
    let router = Router::new()
        .route("/", get(|| async { Html(include_str!("page.html")) }))
        .route("/v1/beat", post(beat))
        .route("/v1/want", post(want))
        .route("/v1/rack", get(rack))
        .route("/v1/nodes/{name}/{order}", post(order))
        .route("/metrics", get(metrics))
        .layer(DefaultBodyLimit::max(LONGEST_REQUEST))
        .with_state(shared);
    axum::serve(listener, router.into_make_service_with_connect_info::<SocketAddr>()).await
}

async fn tick(shared: Shared) {
    let mut every = tokio::time::interval(TICK);
    every.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        every.tick().await;
        let mut controller = lock(&shared);
        let (now, mut actions) = (controller.now(), Vec::new());
        controller.state.tick(now, &mut actions);
        // Time alone changes no intent. Whoever gave an order was told that it could not be kept.
        let _ = controller.carry_out(actions);
    }
}

fn lock(shared: &Shared) -> std::sync::MutexGuard<'_, Controller> {
    // A handler that panicked left the state as its last whole change did: each is made at once.
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn beat(
    With(shared): With<Shared>,
    ConnectInfo(from): ConnectInfo<SocketAddr>,
    Json(mut beat): Json<Beat>,
) -> Result<Json<Orders>, No> {
    beat.listen = beat.listen.iter().map(|at| completed(at, from.ip())).collect();
    let mut controller = lock(&shared);
    let (now, mut actions) = (controller.now(), Vec::new());
    let orders = controller.state.beat(now, beat, &mut actions)?;
    controller.carry_out(actions)?;
    Ok(Json(orders))
}

/// An address of no particular host, completed by where its node speaks from.
fn completed(at: &str, from: IpAddr) -> String {
    match at.parse::<SocketAddr>() {
        Ok(at) if at.ip().is_unspecified() => SocketAddr::new(from.to_canonical(), at.port()).to_string(),
        _ => at.to_owned(),
    }
}

async fn want(With(shared): With<Shared>, Json(want): Json<Want>) -> Result<Json<Given>, No> {
    let mut controller = lock(&shared);
    let (now, random) = (controller.now(), controller.random.bits());
    Ok(Json(controller.state.want(now, &want, random)?))
}

async fn rack(With(shared): With<Shared>) -> Json<Rack> {
    let controller = lock(&shared);
    Json(controller.state.view(controller.now()))
}

async fn order(
    With(shared): With<Shared>,
    Path((name, order)): Path<(String, String)>,
    headers: HeaderMap,
) -> Result<Json<Rack>, No> {
    // A page of another site may not send this header: its reader's browser asks here first.
    if !headers.contains_key(ORDER_HEADER) {
        return Err(No(StatusCode::FORBIDDEN, format!("an order has the header {ORDER_HEADER}")));
    }
    let mut controller = lock(&shared);
    let (now, mut actions) = (controller.now(), Vec::new());
    match order.as_str() {
        "drain" => controller.state.drain(now, &name, true, &mut actions)?,
        "undrain" => controller.state.drain(now, &name, false, &mut actions)?,
        "forget" => controller.state.forget(now, &name, &mut actions)?,
        _ => return Err(No(StatusCode::NOT_FOUND, format!("no such order: {order}"))),
    }
    controller.carry_out(actions)?;
    Ok(Json(controller.state.view(now)))
}

async fn metrics(With(shared): With<Shared>) -> impl IntoResponse {
    let rack = {
        let controller = lock(&shared);
        controller.state.view(controller.now())
    };
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], exposition(&rack))
}

/// Prometheus' text format.
fn exposition(rack: &Rack) -> String {
    type Value = fn(&NodeView) -> u64;
    let gauges: [(&str, &str, Value); 5] = [
        ("farmem_rack_node_up", "Whether the node was heard of within a second.", |node| {
            u64::from(!matches!(node.standing.as_str(), "down" | "suspect"))
        }),
        ("farmem_rack_node_lends_bytes", "Bytes that the node lends at most.", |node| node.lends),
        ("farmem_rack_node_lent_bytes", "Bytes that the node has lent.", |node| node.lent),
        ("farmem_rack_node_members", "Processes that borrow from the node.", |node| node.members),
        ("farmem_rack_node_draining", "Whether the node is to be emptied, or goes down.", |node| {
            u64::from(matches!(node.standing.as_str(), "draining" | "empty" | "leaving"))
        }),
    ];
    let escaped = |text: &str| text.replace('\\', "\\\\").replace('"', "\\\"");
    let mut text = String::new();
    for (name, help, value) in gauges {
        text += &format!("# HELP {name} {help}\n# TYPE {name} gauge\n");
        for node in &rack.nodes {
            let (of, domain) = (escaped(&node.name), escaped(&node.domain));
            text += &format!("{name}{{node=\"{of}\",domain=\"{domain}\"}} {}\n", value(node));
        }
    }
    let runs = "farmem_rack_runs";
    text + &format!(
        "# HELP {runs} Runs that asked for nodes lately.\n# TYPE {runs} gauge\n{runs} {}\n",
        rack.runs.len()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_of_no_host_becomes_the_nodes_own() {
        let from: IpAddr = "10.0.0.7".parse().unwrap();
        assert_eq!(completed("0.0.0.0:7411", from), "10.0.0.7:7411");
        assert_eq!(completed("[::]:7411", "::ffff:10.0.0.7".parse().unwrap()), "10.0.0.7:7411");
        assert_eq!(completed("10.1.1.1:7411", from), "10.1.1.1:7411");
        assert_eq!(completed("shelf:7411", from), "shelf:7411");
    }

    #[test]
    fn metrics_are_escaped() {
        let mut state = State::default();
        let beat = Beat {
            name: "a\"b".into(),
            incarnation: 1,
            domain: "d".into(),
            listen: vec!["a:1".into()],
            lends: 5,
            lent: 3,
            members: 1,
            bytes_read: 0,
            bytes_written: 0,
            leaving: false,
        };
        state.beat(Duration::ZERO, beat, &mut Vec::new()).unwrap();
        let text = exposition(&state.view(Duration::ZERO));
        assert!(text.contains("farmem_rack_node_lent_bytes{node=\"a\\\"b\",domain=\"d\"} 3\n"), "{text}");
        assert!(text.contains("farmem_rack_runs 0\n"));
    }
}
