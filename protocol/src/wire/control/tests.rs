use super::super::Status;
use super::super::request::*;
use super::*;
use crate::addr::SlabId;
use crate::key::Key;
use crate::region::RegionName;
use proptest::prelude::*;

/// The longest of a text: `N` bytes.
fn full<const N: usize>() -> Text<N> {
    Text::new(&"x".repeat(N))
}

fn region() -> RegionName {
    "sixteen-letters.".parse().unwrap()
}

fn names() -> Names {
    Names { host: full(), user: full(), program: full() }
}

fn all_purposes() -> Vec<Purpose> {
    let known = Known { secret: [0xFF; 16], incarnation: u64::MAX };
    let join = Join { run: [0xFF; 16], pid: u32::MAX, grace_ms: u64::MAX, lasting: true, names: names() };
    let volume = NewVolume {
        id: [0xFF; 16],
        size: u64::MAX,
        kept_ms: u64::MAX,
        overcommit: true,
        pid: u32::MAX,
        names: names(),
    };
    vec![
        Purpose::Join(join),
        Purpose::Rejoin(known),
        Purpose::Attach(known, u64::MAX),
        Purpose::Wire(known, u64::MAX),
        Purpose::NewVolume(volume),
        Purpose::Volume(known, true),
    ]
}

fn all_asks() -> Vec<Ask> {
    let (slab, key) = (SlabId(u64::MAX), Key(u64::MAX));
    let range = Range { slab, offset: u64::MAX, len: u64::MAX };
    vec![
        Ask::Ping,
        Ask::Bye,
        Ask::Grant,
        Ask::Release(slab),
        Ask::Again(slab),
        Ask::Discard(range),
        Ask::Back(range),
        Ask::Ticket,
        Ask::EndRun([0xFF; 16]),
        Ask::Unit(key, u32::MAX),
        Ask::Window,
        Ask::DropWindow(key),
        Ask::Who(u16::MAX),
        Ask::Figure(Figure::InUse),
        Ask::Expose(slab),
        Ask::ExposeWindow(key, u64::MAX),
        Ask::Region(region(), true),
        Ask::RegionSlab(region(), u64::MAX),
        Ask::RegionGrow(region(), u64::MAX),
        Ask::RegionRemove(region()),
        Ask::RegionAt(u64::MAX),
        Ask::VolumeAt(u64::MAX),
        Ask::RegionExpel(region(), u32::MAX),
        Ask::Wanted,
        Ask::RegionOpener(region(), u64::MAX),
        Ask::RegionRemoveUnused(region()),
    ]
}

fn all_results() -> Vec<Result<Reply, Refused>> {
    let who = Who { pid: u32::MAX, run: u64::MAX, leader: u32::MAX, names: names() };
    let (most, told) = (u64::MAX, true);
    let volume = VolumeInfo { owner: u16::MAX, size: most, live: most, filled: most, told, host: full() };
    let replies = [
        Reply::Done,
        Reply::Slab(SlabId(u64::MAX)),
        Reply::Child([0xFF; 16]),
        Reply::Window(Key(u64::MAX)),
        Reply::Who(who),
        Reply::Figure(u64::MAX),
        Reply::Exposed(u32::MAX, u16::MAX),
        Reply::Slabs(u64::MAX),
        Reply::Region(region(), u64::MAX, u16::MAX),
        Reply::Volume(volume),
    ];
    let refused = Refused { status: Status::Empty, value: u64::MAX };
    replies.into_iter().map(Ok).chain([Err(refused)]).collect()
}

fn all_greetings() -> Vec<Greeting> {
    let welcome = Welcome {
        owner: u16::MAX,
        secret: [0xFF; 16],
        incarnation: u64::MAX,
        epoch: u64::MAX,
        lend: u64::MAX,
        free: u64::MAX,
        address: [0xFF; 16],
        port: u16::MAX,
        offers: u8::MAX,
        path: Path::new(&[b'/'; MAX_PATH]).unwrap(),
        domain: Text::new(&"d".repeat(64)),
        share: Some([0xFF; 32]),
        proof: [0xFF; 32],
    };
    use Verdict::*;
    let verdicts = [
        Version,
        Draining,
        Unknown,
        Incarnation,
        Full,
        Malformed,
        NoRoom(u64::MAX),
        NoToken,
        WrongToken,
        Revoked,
        Expired,
        NoTokens,
    ];
    let others =
        [Greeting::Welcome(welcome), Greeting::Challenge([0xFF; 32]), Greeting::Proven(NoRoom(u64::MAX), [0xFF; 32])];
    verdicts.map(Greeting::Refused).into_iter().chain(others).collect()
}

/// Whether a frame is there whole; `None`: what is there is none.
type Reader = fn(&[u8]) -> Option<bool>;

/// Every frame, encoded, and its reader.
fn all_frames() -> Vec<(Vec<u8>, Reader)> {
    let hello: Reader = |b| Hello::read(b).map(|read| read.is_some()).ok();
    let greeting: Reader = |b| Greeting::read(b).map(|read| read.is_some()).ok();
    let request: Reader = |b| Request::read(b).map(|read| read.is_some()).ok();
    let answer: Reader = |b| Answer::read(b).map(|read| read.is_some()).ok();
    let mut frames: Vec<(Vec<u8>, Reader)> = Vec::new();
    for purpose in all_purposes() {
        let credential = Some(Credential { id: [0xFF; 8], nonce: [0xFF; 32], cipher: Cipher::ChaCha20Poly1305 });
        let said = Hello { purpose, tenant: full(), credential, epoch: u64::MAX };
        assert_eq!(Hello::read(said.frame().as_bytes()), Ok(Some((said, said.frame().len))));
        frames.push((said.frame().as_bytes().to_vec(), hello));
    }
    for said in all_greetings() {
        assert_eq!(Greeting::read(said.frame().as_bytes()), Ok(Some((said, said.frame().len))));
        frames.push((said.frame().as_bytes().to_vec(), greeting));
    }
    let proof = Proof { mac: [0xFF; 32], share: Some([0xFF; 32]) };
    frames.push((proof.frame().as_bytes().to_vec(), |b| Proof::read(b).map(|read| read.is_some()).ok()));
    for ask in all_asks() {
        let said = Request { number: u64::MAX, epoch: u64::MAX, ask };
        assert_eq!(Request::read(said.frame().as_bytes()), Ok(Some((said, said.frame().len))));
        frames.push((said.frame().as_bytes().to_vec(), request));
    }
    for result in all_results() {
        let said = Answer { number: u64::MAX, epoch: u64::MAX, result };
        assert_eq!(Answer::read(said.frame().as_bytes()), Ok(Some((said, said.frame().len))));
        frames.push((said.frame().as_bytes().to_vec(), answer));
    }
    frames
}

/// A body that did not fit its frame would be empty, and no frame of an empty body can be read.
#[test]
fn the_longest_of_everything_fits() {
    assert!(all_frames().iter().all(|(bytes, read)| read(bytes) == Some(true)));
}

#[test]
fn a_frame_that_has_not_come_whole_is_waited_for_at_every_byte() {
    for (bytes, read) in all_frames() {
        for n in 0..bytes.len() {
            assert_eq!(read(&bytes[..n]), Some(false), "{n} of {bytes:?}");
        }
        let more = [&bytes[..], &[0xEE; 7]].concat();
        assert_eq!(read(&more), Some(true), "what comes behind is the next frame's");
    }
}

/// The length says less than the body takes, or more: at every length.
#[test]
fn a_length_that_is_not_the_bodys_is_refused() {
    for (bytes, read) in all_frames() {
        let at = if bytes.starts_with(&MAGIC) { HEAD } else { 0 };
        let body = bytes.len() - at - LENGTH;
        let mut other = [&bytes[..], &[0; 300]].concat();
        for len in (0..body).chain(body + 1..body + 100) {
            other[at..at + LENGTH].copy_from_slice(&(len as u16).to_le_bytes());
            assert_eq!(read(&other), None, "{len} for {body}");
        }
    }
}

#[test]
fn a_length_beyond_the_limit_is_refused_before_its_body_comes() {
    for (bytes, read) in all_frames() {
        let at = if bytes.starts_with(&MAGIC) { HEAD } else { 0 };
        let most = if at > 0 { MAX_HELLO_BODY } else { MAX_REQUEST - LENGTH };
        let mut head = bytes[..at + LENGTH].to_vec();
        head[at..].copy_from_slice(&(most as u16).to_le_bytes());
        assert_eq!(read(&head), Some(false));
        for len in [most as u16 + 1, u16::MAX] {
            head[at..].copy_from_slice(&len.to_le_bytes());
            assert_eq!(read(&head), None, "{len}");
        }
    }
}

#[test]
fn an_unknown_variant_is_refused() {
    let framed = |body: &[u8]| [&(body.len() as u16).to_le_bytes()[..], body].concat();
    let first = |body: &[u8]| [&magic_and_version()[..], &framed(body)].concat();
    // Zeros; and with a byte that makes them a region's name.
    let (zeros, mut named) = ([0; 100], [0; 100]);
    named[0] = b'r';
    let behind = |front: &[u8]| -> Vec<Vec<u8>> {
        (0..100).flat_map(|n| [zeros, named].map(|rest| [front, &rest[..n]].concat())).collect()
    };
    for unknown in 0..=127u8 {
        let known = unknown < all_purposes().len() as u8;
        let read = behind(&[unknown]).iter().any(|body| matches!(Hello::read(&first(body)), Ok(Some(_))));
        assert_eq!(read, known, "purpose {unknown}");
        let read = behind(&[unknown]).iter().any(|body| matches!(Greeting::read(&first(body)), Ok(Some(_))));
        assert_eq!(read, unknown < 4, "greeting {unknown}");
        let read = behind(&[1, unknown]).iter().any(|body| matches!(Greeting::read(&first(body)), Ok(Some(_))));
        assert_eq!(read, unknown < 12, "verdict {unknown}");
        let read = behind(&[1, 0, unknown]).iter().any(|body| matches!(Request::read(&framed(body)), Ok(Some(_))));
        assert_eq!(read, unknown < all_asks().len() as u8, "ask {unknown}");
        let read = matches!(Request::read(&framed(&[1, 0, 13, unknown])), Ok(Some(_)));
        assert_eq!(read, unknown <= Figure::Aside as u8, "figure {unknown}");
        let read = behind(&[1, 0, 0, unknown]).iter().any(|body| matches!(Answer::read(&framed(body)), Ok(Some(_))));
        assert_eq!(read, unknown < all_results().len() as u8 - 1, "reply {unknown}");
        let read = matches!(Answer::read(&framed(&[1, 0, 1, unknown, 0])), Ok(Some(_)));
        assert_eq!(read, unknown <= 10, "status {unknown}");
    }
}

/// The bytes themselves: the format is the order of fields and variants.
#[test]
fn bytes_lie_where_the_drawings_say() {
    let known = Known { secret: [7; 16], incarnation: 300 };
    let hello = Hello { epoch: 2, tenant: Text::new("ab"), ..Hello::new(Purpose::Attach(known, 5)) };
    let body = [&[2][..], &[7; 16], &[0xAC, 2], &[5], &[2, b'a', b'b'], &[0], &[2]].concat();
    let head = [b'f', b'a', b'r', b'm', b'e', b'm', VERSION as u8, 0, body.len() as u8, 0];
    assert_eq!(hello.frame().as_bytes(), [&head[..], &body].concat());
    let request = Request::new(1, Ask::Release(SlabId(9)));
    assert_eq!(request.frame().as_bytes(), [4, 0, 1, 0, 3, 9]);
    let refused = Refused { status: Status::Quota, value: 4 };
    let answer = Answer { number: 1, epoch: 0, result: Err(refused) };
    assert_eq!(answer.frame().as_bytes(), [5, 0, 1, 0, 1, 6, 4]);
}

#[test]
fn another_version_is_named_and_nothing_behind_it_is_read() {
    let later = [&b"farmem\x09\x01"[..], &[0xFF; 50]].concat();
    assert_eq!(Hello::read(&later), Err(NoHello::Version(0x0109)));
    assert_eq!(Greeting::read(&later[..8]), Err(NoHello::Version(0x0109)));
    // A node of version 6 refuses every other so.
    assert_eq!(Greeting::read(b"farmem\x06\x00\x02\x00\x01\x00"), Err(NoHello::Version(6)));
    assert_eq!(Hello::read(b"GET / HTTP/1.1"), Err(NoHello::Magic));
    assert_eq!(Hello::read(b"farm"), Ok(None));
}

proptest! {
    /// Nothing that anybody can send makes a reader panic; and what is read, encoded anew, says the
    /// same.
    #[test]
    fn no_bytes_make_a_reader_panic(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        if let Ok(Some((request, _))) = Request::read(&bytes) {
            prop_assert_eq!(Request::read(request.frame().as_bytes()).unwrap().unwrap().0, request);
        }
        if let Ok(Some((answer, _))) = Answer::read(&bytes) {
            prop_assert_eq!(Answer::read(answer.frame().as_bytes()).unwrap().unwrap().0, answer);
        }
        let first = [&magic_and_version()[..], &bytes].concat();
        if let Ok(Some((hello, _))) = Hello::read(&first) {
            prop_assert_eq!(Hello::read(hello.frame().as_bytes()).unwrap().unwrap().0, hello);
        }
        let _ = (Hello::read(&bytes), Greeting::read(&first), Greeting::read(&bytes));
    }

    /// A valid frame with any one byte changed is read, refused or waited for.
    #[test]
    fn a_changed_byte_makes_no_reader_panic(which in 0usize..30, at in 0usize..300, to in any::<u8>()) {
        let frames = all_frames();
        let (mut bytes, read) = frames[which % frames.len()].clone();
        let at = at % bytes.len();
        bytes[at] = to;
        let _ = read(&bytes);
    }
}
