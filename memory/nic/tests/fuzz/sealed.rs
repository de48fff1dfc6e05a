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
        let (mut wire, key, nonce) = (Wire::new(nic), key(), [8; 32]);
        let credential = Some(Credential { id: key.id, nonce, cipher: Cipher::Aes128Gcm });
        let hello = Hello { tenant: key.tenant, credential, ..*hello };
        wire.feed(hello.frame().as_bytes(), 1000, 1);
        let Ok(Some((Greeting::Challenge(theirs), said))) = Greeting::read(&wire.said) else { return None };
        let half = Half::new(&[9; 32]).unwrap();
        let is_later = matches!(hello.purpose, Purpose::Rejoin(_) | Purpose::Attach(..) | Purpose::Wire(..));
        let share = (!is_later).then(|| half.share());
        let proof = Proof { mac: key.of_host(&theirs, hello.frame().as_bytes(), share.as_ref()), share };
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
