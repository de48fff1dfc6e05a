//! The same attacks by a holder of a token, inside sealed records; and records that were changed on their way.

use crate::conversations::{seeds, turns};
use crate::frames::{ask, batch, join};
use crate::mutation::mutate;
use crate::wire::{Wire, nic, secret};
use farmem_nic::Nic;
use farmem_nic::engine::Goodbye;
use farmem_nic::lending::{Backing, Lending};
use farmem_nic::tenants::{Known, Standing};
use farmem_protocol::addr::SLAB_BYTES;
use farmem_protocol::random::Random;
use farmem_protocol::wire::{
    Ask, Cipher, Credential, Greeting, Hello, Join, Known as Member, NewVolume, Op, Proof, Purpose, Secret, Welcome,
};
use farmem_sys::raw::thread_cpu_ns;
use farmem_trust::agree::{Agreed, Half};
use farmem_trust::record::{Ends, HEAD, MOST, OVERHEAD, Opener};
use farmem_trust::{Key, Token};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

fn key() -> Key {
    Token::new("analytics", &[6; 40]).unwrap().key()
}

/// Another token of the same tenant.
fn second() -> Key {
    Token::new("analytics", &[7; 40]).unwrap().key()
}

fn guarded() -> Nic {
    let nic = nic();
    nic.set_tokens(vec![Known { key: key(), standing: Standing::Good, quota: u64::MAX, rate: u64::MAX }]);
    nic
}

/// A host of the token's on a connection: it says this Hello, and has proven its token.
struct Host<'a> {
    wire: Wire<'a>,
    ends: Ends,
    /// How much of what was said it has opened.
    heard: usize,
    /// The member's.
    secret: Secret,
    agreed: Agreed,
}

impl<'a> Host<'a> {
    /// `earlier`: the secret of the member's first connection. `None`: it was refused.
    fn new(nic: &'a Nic, hello: &Hello, earlier: Option<Agreed>) -> Option<Host<'a>> {
        let is_later = matches!(hello.purpose, Purpose::Rejoin(_) | Purpose::Attach(..) | Purpose::Wire(..));
        Host::by(key(), nic, hello, earlier, !is_later)
    }

    /// By this token. `agrees`: on a secret of its own.
    fn by(key: Key, nic: &'a Nic, hello: &Hello, earlier: Option<Agreed>, agrees: bool) -> Option<Host<'a>> {
        let (mut wire, nonce) = (Wire::new(nic), [8; 32]);
        let credential = Some(Credential { id: key.id, nonce, cipher: Cipher::Aes128Gcm });
        let hello = Hello { tenant: key.tenant, credential, ..*hello };
        wire.feed(hello.frame().as_bytes(), 1000, 1);
        let Ok(Some((Greeting::Challenge(theirs), said))) = Greeting::read(&wire.said) else { return None };
        let half = Half::new(&[9; 32]).unwrap();
        let share = agrees.then(|| half.share());
        // A volume's streams prove what was agreed on when it was made, and agree on a secret of their own.
        let by = match (&hello.purpose, earlier) {
            (Purpose::Volume(..), Some(of_volume)) => key.with(&of_volume),
            _ => key,
        };
        let proof = Proof { mac: by.of_host(&theirs, hello.frame().as_bytes(), share.as_ref()), share };
        wire.feed(proof.frame().as_bytes(), 1000, 1);
        let greeting = Greeting::read(&wire.said[said..]);
        let Ok(Some((Greeting::Welcome(Welcome { secret, share, .. }), welcome))) = greeting else { return None };
        let agreed = share.map_or(earlier, |theirs| half.agree(&theirs))?;
        let ends = key.host_ends(Cipher::Aes128Gcm, (&nonce, &theirs), &agreed)?;
        Some(Host { wire, ends, heard: said + welcome, secret, agreed })
    }

    /// The bytes in records of random lengths.
    fn seal(&mut self, random: &mut Random, bytes: &[u8]) -> Vec<u8> {
        let (mut records, mut rest) = (Vec::new(), bytes);
        while !rest.is_empty() {
            let most = if random.index(3) == 0 { MOST } else { 100 };
            let n = (1 + random.index(most)).min(rest.len());
            let mut record = [&[0; HEAD], &rest[..n], &[0; OVERHEAD - HEAD]].concat();
            self.ends.sealer.seal(&mut record).unwrap();
            records.extend(record);
            rest = &rest[n..];
        }
        records
    }

    /// What was answered since the last look: all of it is in records that open.
    fn answers(&mut self) -> Vec<u8> {
        let mut answers = Vec::new();
        while let Some(len) = Opener::length(&self.wire.said[self.heard..]).unwrap() {
            let Some(record) = self.wire.said.get(self.heard..self.heard + len) else { break };
            let mut record = record.to_vec();
            let n = self.ends.opener.open(&mut record, 0).unwrap();
            answers.extend_from_slice(&record[..n]);
            self.heard += len;
        }
        answers
    }
}

/// A token is revoked between its proof and the place of its member or volume.
#[test]
fn who_comes_in_while_its_token_is_revoked_is_gone() {
    let tokens = |standing| vec![Known { key: key(), standing, quota: u64::MAX, rate: u64::MAX }];
    let volume = Purpose::NewVolume(NewVolume { id: secret(77), size: 1 << 20, ..NewVolume::default() });
    for purpose in [Purpose::Join(Join::default()), volume] {
        let (nic, drawn) = (Arc::new(OnceLock::<Nic>::new()), AtomicU64::new(1));
        let within = Arc::clone(&nic);
        let draw = move || {
            let n = drawn.fetch_add(1, Ordering::Relaxed);
            // The first is the incarnation's; then two for the challenge, and two for the share that
            // the node adds after it has looked at the proof.
            if let (5, Some(nic)) = (n, within.get()) {
                nic.set_tokens(tokens(Standing::Revoked));
            }
            secret(n)
        };
        assert!(nic.set(Nic::new(Lending::new(4 * SLAB_BYTES, Backing::Small), draw)).is_ok());
        let nic = nic.get().unwrap();
        nic.set_tokens(tokens(Standing::Good));
        let host = Host::new(nic, &Hello::new(purpose), None);
        assert!(host.is_none(), "it is let in");
        assert_eq!((nic.members().len(), nic.volumes.is_empty()), (0, true));
    }
}

/// A node with both tokens, which draws numbers from 1 on, and has the second revoked in the midst of the draw that
/// `revokes` holds then.
fn with_second(revokes: &Arc<AtomicU64>) -> Arc<OnceLock<Nic>> {
    let (nic, drawn) = (Arc::new(OnceLock::<Nic>::new()), AtomicU64::new(1));
    let (within, revokes) = (Arc::clone(&nic), Arc::clone(revokes));
    let draw = move || {
        let n = drawn.fetch_add(1, Ordering::Relaxed);
        if let (true, Some(nic)) = (revokes.fetch_sub(1, Ordering::Relaxed) == 1, within.get()) {
            nic.set_tokens(both(Standing::Revoked));
        }
        secret(n)
    };
    assert!(nic.set(Nic::new(Lending::new(4 * SLAB_BYTES, Backing::Small), draw)).is_ok());
    nic.get().unwrap().set_tokens(both(Standing::Good));
    nic
}

fn both(of_second: Standing) -> Vec<Known> {
    let known = |key, standing| Known { key, standing, quota: u64::MAX, rate: u64::MAX };
    vec![known(key(), Standing::Good), known(second(), of_second)]
}

/// A connection without encryption, by the first token. Returns the member's secret.
fn plain<'a>(nic: &'a Nic, hello: &Hello) -> Option<(Wire<'a>, Secret)> {
    let (mut wire, key) = (Wire::new(nic), key());
    let credential = Some(Credential { id: key.id, nonce: [8; 32], cipher: Cipher::Plain });
    let hello = Hello { tenant: key.tenant, credential, ..*hello };
    wire.feed(hello.frame().as_bytes(), 1000, 1);
    let Ok(Some((Greeting::Challenge(theirs), said))) = Greeting::read(&wire.said) else { return None };
    let mac = key.of_host(&theirs, hello.frame().as_bytes(), None);
    wire.feed(Proof { mac, share: None }.frame().as_bytes(), 1000, 1);
    match Greeting::read(&wire.said[said..]) {
        Ok(Some((Greeting::Welcome(welcome), _))) => Some((wire, welcome.secret)),
        _ => None,
    }
}

/// A connection comes by a token that is revoked after its proof. The member had joined by another token of the tenant,
/// a good one: it stays, with the secret that it has (here: none).
#[test]
fn a_token_that_is_revoked_while_it_attaches_ends_no_member_of_another() {
    let revokes = Arc::new(AtomicU64::new(u64::MAX));
    let nic = with_second(&revokes);
    let nic = nic.get().unwrap();
    let (mut first, secret) =
        plain(nic, &Hello::new(Purpose::Join(Join { lasting: true, ..Join::default() }))).unwrap();
    let rejoin = Hello::new(Purpose::Rejoin(Member { secret, incarnation: nic.incarnation }));
    // Two draws are the challenge's; the node makes its share by two more, when it has looked at the proof.
    revokes.store(4, Ordering::Relaxed);
    assert!(Host::by(second(), nic, &rejoin, None, true).is_none(), "it is let in");
    assert_eq!(revokes.load(Ordering::Relaxed), 0, "it was refused before");
    assert_eq!(nic.members().len(), 1, "the member has ended");
    let (mut again, _) = plain(nic, &rejoin).expect("it comes again by its own token, and without a secret");
    let said = again.said.len();
    again.feed(&ask(2, Ask::Ping), 1000, 1);
    assert!(again.said.len() > said);
    // No connection of it is counted any more.
    [&mut first, &mut again].into_iter().for_each(|wire| wire.close(Goodbye::Cut, 1));
    nic.expire(4_000_000_000_000_000);
    assert!(nic.members().is_empty(), "its grace never ends");
}

/// The same of a volume's streams.
#[test]
fn a_token_that_is_revoked_while_it_comes_for_a_volume_ends_none_of_another() {
    let revokes = Arc::new(AtomicU64::new(u64::MAX));
    let nic = with_second(&revokes);
    let nic = nic.get().unwrap();
    let made = NewVolume { id: secret(77), size: 1 << 20, ..NewVolume::default() };
    let first = Host::new(nic, &Hello::new(Purpose::NewVolume(made)), None).unwrap();
    let known = Member { secret: secret(77), incarnation: nic.incarnation };
    let stream = Hello::new(Purpose::Volume(known, true));
    assert!(Host::by(second(), nic, &stream, None, true).is_none(), "a token and the id are enough");
    revokes.store(4, Ordering::Relaxed);
    assert!(Host::by(second(), nic, &stream, Some(first.agreed), true).is_none(), "it is let in");
    assert!(!nic.volumes.is_empty(), "the volume has ended");
    assert!(Host::by(key(), nic, &stream, Some(first.agreed), true).is_some());
}

/// A connection ends with the token by which it came, also where the member had joined by another.
#[test]
fn a_connection_ends_with_its_own_token() {
    let nic = with_second(&Arc::new(AtomicU64::new(u64::MAX)));
    let nic = nic.get().unwrap();
    let control = Host::new(nic, &Hello::new(Purpose::Join(Join::default())), None).unwrap();
    let member = Member { secret: control.secret, incarnation: nic.incarnation };
    let attach = |queue| Hello::new(Purpose::Attach(member, queue));
    let mut own = Host::new(nic, &attach(0), Some(control.agreed)).unwrap();
    let mut others = Host::by(second(), nic, &attach(1), Some(control.agreed), false).unwrap();
    assert!(!own.wire.is_over() && !others.wire.is_over());
    nic.set_tokens(both(Standing::Revoked));
    assert_eq!((own.wire.is_over(), others.wire.is_over()), (false, true));
    assert_eq!(nic.members().len(), 1);
}

/// A process that comes back by another token of its tenant (an agent, whose token was rotated) is a member by that one
/// from then on: it stays when the token by which it joined is revoked, and ends with the other.
#[test]
fn who_comes_back_by_another_token_ends_with_that() {
    let nic = with_second(&Arc::new(AtomicU64::new(u64::MAX)));
    let nic = nic.get().unwrap();
    let of = |key, standing| Known { key, standing, quota: u64::MAX, rate: u64::MAX };
    let lasting = Hello::new(Purpose::Join(Join { lasting: true, ..Join::default() }));
    let mut first = Host::new(nic, &lasting, None).unwrap();
    let member = Member { secret: first.secret, incarnation: nic.incarnation };
    let rejoin = Hello::new(Purpose::Rejoin(member));
    let mut again = Host::by(second(), nic, &rejoin, Some(first.agreed), false).unwrap();
    nic.set_tokens(vec![of(key(), Standing::Revoked), of(second(), Standing::Good)]);
    assert_eq!((nic.members().len(), first.wire.is_over(), again.wire.is_over()), (1, true, false));
    let ping = again.seal(&mut Random::new(1), &ask(1, Ask::Ping));
    again.wire.feed(&ping, 1000, 1);
    assert!(!again.answers().is_empty());
    nic.set_tokens(vec![of(key(), Standing::Good), of(second(), Standing::Revoked)]);
    assert!(nic.members().is_empty(), "it outlives its token");
}

/// A connection of a run's last member stands for a moment after the member has ended. Nobody of another tenant, who has
/// heard the run's name, is granted memory that counts to the first.
#[test]
fn memory_counts_to_no_tenant_whose_run_has_ended() {
    let (nic, others) = (nic(), Token::new("guest", &[9; 40]).unwrap().key());
    let of = |key, standing| Known { key, standing, quota: u64::MAX, rate: u64::MAX };
    nic.set_tokens(vec![of(key(), Standing::Good), of(others, Standing::Good)]);
    let join = Hello::new(Purpose::Join(Join { run: [3; 16], ..Join::default() }));
    let _stands = Host::new(&nic, &join, None).unwrap();
    assert!(Host::by(others, &nic, &join, None, true).is_none(), "it is let into another tenant's run");
    nic.set_tokens(vec![of(key(), Standing::Revoked), of(others, Standing::Good)]);
    if let Some(mut guest) = Host::by(others, &nic, &join, None, true) {
        let grant = guest.seal(&mut Random::new(1), &ask(1, Ask::Grant));
        guest.wire.feed(&grant, 1000, 1);
    }
    let held = nic.tenants.all().iter().map(|tenant| (tenant.name.to_string(), tenant.held())).collect::<Vec<_>>();
    assert!(held.iter().all(|(name, held)| name != "analytics" || *held == 0), "{held:?}");
}

/// Until when to go on, by this thread's CPU time in ns, and by which draws.
fn limits() -> (u64, Random) {
    let number = |name: &str, default| std::env::var(name).ok().and_then(|v| v.parse().ok()).unwrap_or(default);
    let until = thread_cpu_ns() + number("FARMEM_FUZZ_SECONDS", 1u64) * 1_000_000_000;
    (until, Random::new(number("FARMEM_FUZZ_SEED", 1u64)))
}

/// A tenant that knows its token may say what it likes: what it breaks is its own connection.
#[test]
fn hostile_bytes_inside_records_do_no_harm() {
    let (until, mut random) = limits();
    let pool = seeds(nic().incarnation);
    let (mut runs, mut inside) = (0, 0);
    while thread_cpu_ns() < until {
        let mut bytes = pool[random.index(pool.len())].clone();
        let other = pool[random.index(pool.len())].clone();
        mutate(&mut random, &mut bytes, &other);
        let nic = guarded();
        let mut hosts = Vec::new();
        for (_, said) in turns(&bytes) {
            let Ok(Some((mut hello, used))) = Hello::read(said) else { continue };
            // It knows its own members' secrets alone.
            let last = hosts.last().map(|host: &Host<'_>| (host.secret, host.agreed));
            if let Some((last, _)) = last
                && let Purpose::Rejoin(known) | Purpose::Attach(known, _) | Purpose::Wire(known, _) = &mut hello.purpose
            {
                known.secret = last;
            }
            let Some(mut host) = Host::new(&nic, &hello, last.map(|(_, agreed)| agreed)) else { continue };
            let records = host.seal(&mut random, &said[used..]);
            host.wire.feed(&records, 1 + random.index(5000), 1);
            host.answers();
            inside += 1;
            hosts.push(host);
        }
        assert!(nic.lent() <= nic.lending.limit());
        hosts.iter_mut().for_each(|host| host.wire.close(Goodbye::Cut, 1));
        nic.expire(4_000_000_000_000_000);
        runs += 1;
    }
    println!("{runs} conversations, {inside} connections inside");
    assert!(inside > runs / 2);
}

/// Whatever is done to records on their way, nothing is carried out that was said at the change or after it.
#[test]
fn nothing_behind_a_changed_record_is_carried_out() {
    let (until, mut random) = limits();
    let mut noticed = 0u64;
    while thread_cpu_ns() < until {
        let nic = guarded();
        let hello = |bytes: Vec<u8>| Hello::read(&bytes).unwrap().unwrap().0;
        let mut control = Host::new(&nic, &hello(join()), None).unwrap();
        let grant = control.seal(&mut random, &ask(1, Ask::Grant));
        control.wire.feed(&grant, 1000, 1);
        assert!(!control.answers().is_empty());
        let member = Member { secret: control.secret, incarnation: nic.incarnation };
        let attach = Hello::new(Purpose::Attach(member, 0));
        let mut queue = Host::new(&nic, &attach, Some(control.agreed)).unwrap();
        // Adds one to a word a hundred times, each addition in records of its own.
        let said: Vec<Vec<u8>> = (0..100).map(|n| batch(n, &[(Op::Faa, 1, 0, 8)])).collect();
        let records: Vec<Vec<u8>> = said.iter().map(|bytes| queue.seal(&mut random, bytes)).collect();
        let whole = records.concat();
        let mut changed = whole.clone();
        let others = whole.clone();
        mutate(&mut random, &mut changed, &others);
        let same = whole.iter().zip(&changed).take_while(|(a, b)| a == b).count();
        queue.wire.feed(&changed, 1 + random.index(3000), 1);
        let ends = records.iter().scan(0, |end, record| {
            *end += record.len();
            Some(*end)
        });
        let untouched = ends.filter(|end| *end <= same).count() as u64;
        // What came together with the change may go unheard: the host says it again.
        assert!(nic.tally.faa.load(Ordering::Relaxed) <= untouched);
        noticed += nic.tally.broken_connections.load(Ordering::Relaxed);
        queue.answers();
        queue.wire.close(Goodbye::Cut, 1);
        control.wire.close(Goodbye::Cut, 1);
    }
    assert!(noticed > 0);
}
