//! A peer's identity and admission: Hello, challenge and proof, Welcome.
//!
//! ```text
//! Hello ─┬─ no token is asked, or the peer is the node's own user ──────────────────┬─► enter ─► Welcome
//!        ├─ a token of this node ─► Challenge ─► Proof ─► good, and still stands ────┘      └─► Refused
//!        └─ else ─► Refused
//! ```
//!
//! A peer that is refused has its answer, and then its connection closes. So does a connection whose
//! token is revoked or expires, whoever's the member is that it came to ([`Engine::is_over`]).

use super::sealed::Sealed;
use super::serving::Serving;
use super::{CONTROL_INPUT, Control, Engine, Goodbye, INPUT, Phase, Wire, volume};
use crate::events::{Event, Leaving, Refused, VolumeEvent};
use crate::shares::{Peer, Place};
use crate::tenants::Known;
use crate::volumes::Attached;
use crate::{Member, Nic, count};
use farmem_protocol::wire::control::Path;
use farmem_protocol::wire::{
    Broken, Cipher, Greeting, Hello, NoHello, Proof, Purpose, Secret, Share, Verdict, Welcome,
};
use farmem_trust::agree::{Agreed, Half};
use farmem_trust::{Key, Nonce};
use std::net::IpAddr;
use std::sync::Arc;

/// A peer's token, proven, and what protects its connection.
struct Proven {
    known: Known,
    /// The node's part of the challenge.
    nonce: Nonce,
    /// The secret of a connection that is encrypted.
    agreed: Option<Agreed>,
    /// The node's half, where it was agreed on for this connection.
    share: Option<Share>,
    /// The secret of a volume, which the proof was made with.
    opened: Option<Agreed>,
}

/// The Hello that came before a proof.
pub(super) struct Proving {
    hello: Hello,
    /// The node's part of the challenge.
    nonce: Nonce,
    known: Known,
}

/// What a refusal's proof is made of.
pub(super) struct Vouches {
    key: Key,
    /// The node's part of the challenge.
    nonce: Nonce,
    hello: Hello,
}

impl Vouches {
    fn greeting(&self, verdict: Verdict) -> Greeting {
        let bare = Greeting::Proven(verdict, [0; 32]).frame();
        Greeting::Proven(verdict, self.key.of_refusal(&self.nonce, self.hello.frame().as_bytes(), bare.as_bytes()))
    }
}

impl Engine {
    /// Takes a Hello: lets its peer in, challenges it, or refuses it.
    pub(super) fn greet(&mut self, nic: &Nic, now_ns: u64) -> Result<bool, Goodbye> {
        let hello = match Hello::read(&self.input[self.start..self.end]) {
            Ok(Some((hello, used))) => {
                self.start += used;
                hello
            }
            Ok(None) => return Ok(false),
            Err(NoHello::Magic) => return Err(Goodbye::Broken(Broken::Magic)),
            Err(NoHello::Version(theirs)) => {
                return self.refuse(nic, Verdict::Version, Refused::Version(theirs));
            }
            Err(NoHello::Malformed) => return self.turn_away(nic, Verdict::Malformed),
        };
        let (asked, known) = match &hello.credential {
            Some(credential) => nic.tenants.token(&credential.id),
            None => (nic.tenants.are_asked(), None),
        };
        match (asked, &hello.credential, known) {
            (false, Some(_), _) => self.turn_away(nic, Verdict::NoTokens),
            (true, Some(_), Some(known)) => self.challenge(nic, hello, known),
            (true, Some(_), None) => self.turn_away(nic, Verdict::WrongToken),
            // The node's own user can read its memory anyhow.
            (true, None, _) if !self.is_own() => self.turn_away(nic, Verdict::NoToken),
            (_, None, _) => self.enter(nic, &hello, None, now_ns),
        }
    }

    /// Whether the peer is of the node's user, or root, through a Unix socket.
    fn is_own(&self) -> bool {
        self.about.local && is_of(self.about.peer, farmem_sys::process::user())
    }

    /// Has the peer prove that it has the token that its Hello names.
    fn challenge(&mut self, nic: &Nic, hello: Hello, known: Known) -> Result<bool, Goodbye> {
        let nonce = draw(nic);
        self.output.bytes(Greeting::Challenge(nonce).frame().as_bytes());
        self.phase = Phase::Proving(Box::new(Proving { hello, nonce, known }));
        Ok(true)
    }

    /// Looks at a proof, and lets the peer in or not.
    pub(super) fn prove(&mut self, nic: &Nic, now_ns: u64) -> Result<bool, Goodbye> {
        let proof = match Proof::read(&self.input[self.start..self.end]) {
            Ok(Some((proof, used))) => {
                self.start += used;
                proof
            }
            Ok(None) => return Ok(false),
            Err(rule) => return Err(Goodbye::Broken(rule)),
        };
        let Phase::Proving(proving) = std::mem::replace(&mut self.phase, Phase::Hello) else { return Ok(false) };
        let Proving { hello, nonce, known } = *proving;
        let proves = |key: &Key| {
            farmem_trust::same(&proof.mac, &key.of_host(&nonce, hello.frame().as_bytes(), proof.share.as_ref()))
        };
        let opened = nic.swap().agreed(&hello.purpose);
        let secret = opened.map(|agreed| known.key.with(&agreed));
        let opens = secret.as_ref().is_none_or(proves);
        if !(secret.is_some() && opens || proves(&known.key)) || hello.tenant != known.key.tenant {
            return self.turn_away(nic, Verdict::WrongToken);
        }
        self.vouches = Some(Box::new(Vouches { key: known.key, nonce, hello }));
        // A token, and what was heard of a volume, do not open it.
        if !opens {
            return self.turn_away(nic, Verdict::Unknown);
        }
        // As it stands now: it may have been revoked since the challenge.
        if let Some(over) = nic.tenants.why_not(&known.key.id) {
            return self.turn_away(nic, over);
        }
        match self.agree(nic, &hello, proof.share) {
            Some((agreed, share)) => {
                self.enter(nic, &hello, Some(Proven { known, nonce, agreed, share, opened }), now_ns)
            }
            None => self.turn_away(nic, Verdict::Malformed),
        }
    }

    /// The secret of a connection that is encrypted, and the node's half of a new one. `None`: the
    /// host must agree on one here, or must not.
    fn agree(&self, nic: &Nic, hello: &Hello, theirs: Option<Share>) -> Option<(Option<Agreed>, Option<Share>)> {
        let sealed = hello.credential.is_some_and(|credential| credential.cipher != Cipher::Plain);
        let Some(theirs) = theirs else {
            return match &hello.purpose {
                Purpose::Join(_) | Purpose::NewVolume(_) | Purpose::Volume(..) => (!sealed).then_some((None, None)),
                Purpose::Rejoin(known) | Purpose::Attach(known, _) | Purpose::Wire(known, _) => {
                    // One that is not here is refused for that.
                    let agreed = nic.membership().known(known).map(|member| *member.agreed.lock());
                    // A token alone opens no member whose connections have a secret.
                    agreed.is_none_or(|agreed| agreed.is_some() == sealed).then_some((agreed.flatten(), None))
                }
            };
        };
        let may = match &hello.purpose {
            Purpose::Join(_) | Purpose::NewVolume(_) | Purpose::Volume(..) => true,
            // One that was not encrypted may be when its process is another. A secret that is there stays:
            // else a token, and what was heard of the member, would be enough to come in its place.
            Purpose::Rejoin(known) => {
                let found = nic.membership().known(known);
                found.is_none_or(|member| member.lasting && member.agreed.lock().is_none())
            }
            Purpose::Attach(..) | Purpose::Wire(..) => false,
        };
        // A volume's streams may be plain: the secret is a right to it all the same.
        let agrees = sealed && may || matches!(hello.purpose, Purpose::NewVolume(_));
        let half = Half::new(&draw(nic)).filter(|_| agrees)?;
        let share = half.share();
        Some((Some(half.agree(&theirs)?), Some(share)))
    }

    /// Lets a peer in that may come in.
    fn enter(&mut self, nic: &Nic, hello: &Hello, proven: Option<Proven>, now_ns: u64) -> Result<bool, Goodbye> {
        let holder = proven.as_ref().map(|Proven { known, .. }| (nic.tenants.of(known), known.key.id));
        let by = nic.tenants.by(holder.as_ref().map(|(tenant, _)| tenant.name), self.about.peer);
        let Ok(place) = nic.connections.take(by) else { return self.turn_away(nic, Verdict::Full) };
        let agreed = proven.as_ref().and_then(|proven| proven.agreed);
        self.place = Some(place);
        self.token = holder.as_ref().map(|(_, token)| (*token, nic.tenants.changes()));
        let from = (self.about.peer, by, self.about.local);
        let control = |(member, ours): (Arc<Member>, u64)| {
            (Arc::clone(&member), Phase::Control(Control { member, ours, copying: None }))
        };
        let entered = match &hello.purpose {
            Purpose::Join(join) => nic.membership().join(join, from, holder, agreed, now_ns).map(control),
            Purpose::Rejoin(known) => nic.membership().rejoin(known, self.about.local, &holder).map(control),
            Purpose::Attach(known, queue) => {
                nic.membership().attach(known, *queue, &holder).map(|(member, turn, ours)| {
                    let serving = Serving::new(Arc::clone(&member), *queue, turn, ours);
                    (member, Phase::Queue(Box::new(serving)))
                })
            }
            Purpose::Wire(known, queue) => {
                nic.membership().attach_wire(known, *queue, &holder).map(|(member, ours)| {
                    let wire = Wire { member: Arc::clone(&member), queue: *queue, ours, connected: false };
                    (member, Phase::Wire(wire))
                })
            }
            Purpose::NewVolume(new) => {
                let token = holder.as_ref().map(|(_, token)| *token);
                let made = nic.swap().make(new, (self.about.peer, by), (holder, agreed), now_ns);
                let attached = made.and_then(|volume| {
                    let attached = nic.swap().attach(Arc::clone(&volume), false, token);
                    // Nobody else has it yet.
                    attached.inspect_err(|_| nic.swap().free(&volume, VolumeEvent::Revoked))
                });
                return self.enter_volume(nic, attached, hello, proven);
            }
            Purpose::Volume(known, data) => {
                let token = holder.as_ref().map(|(_, token)| *token);
                let opened = proven.as_ref().and_then(|proven| proven.opened);
                let found = nic.swap().find(known, &holder, opened);
                let attached = found.and_then(|volume| nic.swap().attach(volume, *data, token));
                return self.enter_volume(nic, attached, hello, proven);
            }
        };
        match entered {
            Ok((member, phase)) => self.admitted(nic, &member, phase, hello, proven, now_ns),
            Err(verdict) => self.turn_away(nic, verdict),
        }
    }

    /// A member was made or found: gives it what was proven, and welcomes it. Turns it away if its
    /// token was revoked since the proof.
    fn admitted(
        &mut self,
        nic: &Nic,
        member: &Arc<Member>,
        phase: Phase,
        hello: &Hello,
        proven: Option<Proven>,
        now_ns: u64,
    ) -> Result<bool, Goodbye> {
        let rejoins = matches!(hello.purpose, Purpose::Rejoin(_));
        if let (true, Some((token, _))) = (rejoins, &self.token) {
            // Its process may have another token by now, and ends with that.
            nic.tenants.if_good(token, || *member.token.lock() = Some(*token));
        }
        if let Some(over) = over(nic, proven.as_ref()) {
            // A member that joined by it now was not found by the one who revoked it. One that
            // joined by another token stays.
            let joined_by_it = member.token() == self.token.as_ref().map(|(token, _)| *token);
            joined_by_it.then(|| nic.membership().part(member, Leaving::Revoked));
            phase.leave(nic, true, now_ns);
            return self.turn_away(nic, over);
        }
        if let Some(Proven { agreed, share: Some(_), .. }) = &proven
            && rejoins
        {
            *member.agreed.lock() = *agreed;
        }
        if !matches!(hello.purpose, Purpose::Join(_)) {
            count(&nic.tally.rejoined, 1);
            nic.events.tell(Event::Attached(member));
        }
        self.phase = phase;
        self.widen(if let Phase::Queue(_) = self.phase { INPUT } else { CONTROL_INPUT });
        self.welcome(nic, (member.owner(), member.secret), hello, proven);
        Ok(true)
    }

    /// [`Engine::enter`] for the stream of a volume.
    fn enter_volume(
        &mut self,
        nic: &Nic,
        attached: Result<Attached, Verdict>,
        hello: &Hello,
        proven: Option<Proven>,
    ) -> Result<bool, Goodbye> {
        match attached {
            Ok(attached) => {
                let owner = attached.volume.owner();
                self.phase = Phase::Volume(Box::new(volume::Stream::new(attached)));
                self.widen(INPUT);
                self.welcome(nic, (owner, [0; 16]), hello, proven);
                Ok(true)
            }
            Err(verdict) => self.turn_away(nic, verdict),
        }
    }

    /// Whether the token by which it came can be used no more: then it is to be closed. This costs
    /// little unless the node's tokens have changed since the last call.
    pub fn is_over(&mut self, nic: &Nic) -> bool {
        let changes = nic.tenants.changes();
        let Some((token, seen)) = &mut self.token else { return false };
        std::mem::replace(seen, changes) != changes && nic.tenants.why_not(token).is_some()
    }

    /// The connection has closed. Returns its place in the table of connections: the caller keeps
    /// it while anything of the connection still takes a descriptor.
    pub fn close(self, nic: &Nic, why: Goodbye, now_ns: u64) -> Option<Place> {
        if let Goodbye::Broken(rule) = why {
            count(&nic.tally.broken_connections, 1);
            nic.events.tell(Event::Refused(self.about.peer, Refused::Broken(rule)));
        }
        let broke = match &self.phase {
            Phase::Control(control) if matches!(why, Goodbye::Broken(_)) => Some(Arc::clone(&control.member)),
            _ => None,
        };
        self.phase.leave(nic, why == Goodbye::Done, now_ns);
        broke.iter().for_each(|member| nic.membership().broke(member));
        self.place
    }

    /// Refuses a peer for the reason that it is told.
    fn turn_away(&mut self, nic: &Nic, verdict: Verdict) -> Result<bool, Goodbye> {
        self.refuse(nic, verdict, Refused::Verdict(verdict))
    }

    /// Refuses a peer: `verdict` goes to it, `why` to the node's operator.
    fn refuse(&mut self, nic: &Nic, verdict: Verdict, why: Refused) -> Result<bool, Goodbye> {
        count(&nic.tally.refused_hellos, 1);
        nic.events.tell(Event::Refused(self.about.peer, why));
        let greeting = match self.vouches.take() {
            Some(vouches) => vouches.greeting(verdict),
            None => Greeting::Refused(verdict),
        };
        self.output.bytes(greeting.frame().as_bytes());
        self.phase = Phase::Closing;
        Ok(false)
    }

    /// Sends the Welcome: the peer's id and secret at this node. With a proof, records follow it.
    fn welcome(&mut self, nic: &Nic, (owner, secret): (u16, Secret), hello: &Hello, proven: Option<Proven>) {
        let (address, port) = match self.about.own_end {
            Some(end) => (ipv6_octets(end.ip()), end.port()),
            None => ([0; 16], 0),
        };
        let mut welcome = Welcome {
            owner,
            secret,
            incarnation: nic.incarnation,
            epoch: 0,
            lend: nic.lending.limit(),
            free: nic.lending.limit() - nic.lending.lent().min(nic.lending.limit()),
            address,
            port,
            offers: nic.offers(),
            path: Path::new(&self.about.path).unwrap_or_default(),
            domain: nic.domain,
            share: proven.as_ref().and_then(|proven| proven.share),
            proof: [0; 32],
        };
        let mut ends = None;
        if let Some(Proven { known, nonce, agreed, .. }) = proven {
            let said = Greeting::Welcome(welcome).frame();
            welcome.proof = known.key.of_node(&nonce, hello.frame().as_bytes(), said.as_bytes());
            ends = hello
                .credential
                .zip(agreed)
                .and_then(|(host, agreed)| known.key.node_ends(host.cipher, (&host.nonce, &nonce), &agreed));
        }
        self.vouches = None;
        self.output.bytes(Greeting::Welcome(welcome).frame().as_bytes());
        if let Some(ends) = ends {
            // Bytes that came behind the proof are a record already.
            let raw = (self.start, self.end);
            self.end = self.start;
            self.sealed = Some(Box::new(Sealed::new(ends, raw, self.output.backlog)));
        }
    }
}

impl Phase {
    /// The connection has closed: its member or volume has one less. `by_node`: the node closed it.
    fn leave(self, nic: &Nic, by_node: bool, now_ns: u64) {
        match self {
            Phase::Control(control) => nic.membership().left(&control.member, true, by_node, now_ns),
            Phase::Queue(serving) => {
                let (member, queue, turn) = (*serving).ended();
                member.detach(queue, turn);
                nic.membership().left(&member, false, by_node, now_ns);
            }
            Phase::Wire(wire) => {
                wire.member.wires.lock().cut(wire.queue, wire.ours);
                nic.membership().left(&wire.member, false, by_node, now_ns);
            }
            Phase::Volume(stream) => nic.swap().left(&stream.attached, now_ns),
            Phase::Hello | Phase::Proving(_) | Phase::Closing => {}
        }
    }
}

/// Why the token of a peer that has come in cannot be used any more.
fn over(nic: &Nic, proven: Option<&Proven>) -> Option<Verdict> {
    proven.and_then(|proven| nic.tenants.why_not(&proven.known.key.id))
}

/// Whether a peer on this machine is of this user, or root. The kernel tells one number for all users
/// that it cannot name here (of other user namespaces): that is nobody's own.
fn is_of(peer: Peer, user: u32) -> bool {
    /// `/proc/sys/kernel/overflowuid`, as it is unless an administrator has changed it.
    const UNNAMED: u32 = 65534;
    peer == Peer::User(0) || (user != UNNAMED && peer == Peer::User(user))
}

/// Bytes that nobody can guess.
fn draw(nic: &Nic) -> [u8; 32] {
    let mut bytes = [0; 32];
    bytes[..16].copy_from_slice(&(nic.draw)());
    bytes[16..].copy_from_slice(&(nic.draw)());
    bytes
}

fn ipv6_octets(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strangers_of_other_namespaces_are_not_the_nodes_user() {
        assert!(is_of(Peer::User(1000), 1000) && is_of(Peer::User(0), 1000) && is_of(Peer::User(0), 65534));
        assert!(!is_of(Peer::User(1001), 1000) && !is_of(Peer::User(1000), 0) && !is_of(Peer::Unknown, 1000));
        assert!(!is_of(Peer::User(65534), 65534), "a node of nobody's, and a peer without a name");
    }
}
