//! A member that another opener of its region has expelled: what of its verbs came before took effect, and no more.

use super::*;
use std::sync::atomic::AtomicU64;

const LEN: usize = 4096;

/// The name of a run.
fn run(number: u8) -> [u8; 16] {
    std::array::from_fn(|n| if n == 0 { number } else { 0 })
}

/// A member in the run of this number that has opened the region, and the slab that it holds of it.
fn opener(nic: &Nic, number: u8, local: bool) -> (Engine, Known, SlabId) {
    let region = "region".parse().unwrap();
    let mut control = Engine::new(Circumstances { local, ..Circumstances::default() });
    let welcome = entered(&mut control, nic, Purpose::Join(Join { run: run(number), ..Join::default() }));
    answered(&mut control, nic, &Request::new(1, Ask::Region(region, true))).unwrap();
    let Ok(Reply::Slab(slab)) = answered(&mut control, nic, &Request::new(2, Ask::RegionGrow(region, 0))) else {
        panic!("no slab")
    };
    (control, Known { secret: welcome.secret, incarnation: nic.incarnation }, slab)
}

/// A WRITE of ones to the slab's first bytes.
fn write(slab: SlabId) -> Vec<u8> {
    let verb = Verb {
        op: Op::Write as u8,
        zero: [0; 3],
        len: (LEN as u32).into(),
        key: Key::from(slab).0.into(),
        offset: 0.into(),
    };
    let batch = Batch { count: 1.into(), zero: 0.into(), bytes: (LEN as u32).into(), first: 0.into() };
    [batch.as_bytes(), verb.as_bytes(), &[1; LEN]].concat()
}

#[test]
fn half_a_write_is_all_that_comes_of_an_expelled_member() {
    let draw = AtomicU8::new(1);
    let nic = Nic::new(Lending::new(SLAB_BYTES, Backing::Small), move || [draw.fetch_add(1, Ordering::Relaxed); 16]);
    let (region, stranger) = ("region".parse().unwrap(), wire::tag(&run(9)));
    let ((mut stays, ..), (mut goes, known, slab)) = (opener(&nic, 1, false), opener(&nic, 2, false));
    let mut queue = Engine::new(Circumstances::default());
    entered(&mut queue, &nic, Purpose::Attach(known, 0));
    let bytes = write(slab);
    let (before, after) = bytes.split_at(bytes.len() - LEN / 2);
    pull(&mut queue, &nic, before).unwrap();
    let expel = |tag| Ask::RegionExpel(region, tag);
    assert_eq!(answered(&mut stays, &nic, &Request::new(3, expel(stranger))), Ok(Reply::Done));
    assert_eq!(answered(&mut goes, &nic, &Request::new(3, Ask::Ping)), Ok(Reply::Done), "it was not meant");
    assert_eq!(answered(&mut stays, &nic, &Request::new(4, expel(wire::tag(&run(2))))), Ok(Reply::Done));

    assert_eq!(pull(&mut queue, &nic, after), Err(Goodbye::Done));
    let slab = nic.regions().slabs().remove(0);
    let mut found = [7; LEN];
    // SAFETY: the buffer has as many bytes.
    assert!(unsafe { slab.mapping.read(0, found.as_mut_ptr(), LEN as u32) });
    assert_eq!((&found[..LEN / 2], &found[LEN / 2..]), (&[1; LEN / 2][..], &[0; LEN / 2][..]));
    // Nor does it come back.
    let mut again = Engine::new(Circumstances::default());
    let hello = Hello::new(Purpose::Rejoin(known)).frame();
    pull(&mut again, &nic, hello.as_bytes()).unwrap();
    assert_eq!((pull(&mut again, &nic, &[0]), nic.members().len()), (Err(Goodbye::Done), 1));
}

#[test]
fn a_member_with_mapped_memory_is_expelled_by_its_end_alone() {
    let draw = AtomicU8::new(1);
    let nic = Nic::new(Lending::new(SLAB_BYTES, Backing::Small), move || [draw.fetch_add(1, Ordering::Relaxed); 16]);
    let ((mut stays, ..), (goes, ..)) = (opener(&nic, 1, false), opener(&nic, 2, true));
    let expel = Ask::RegionExpel("region".parse().unwrap(), wire::tag(&run(2)));
    let refused = answered(&mut stays, &nic, &Request::new(3, expel)).unwrap_err();
    assert_eq!((refused.status, nic.members().len()), (Status::Shared, 2));
    goes.close(&nic, Goodbye::Cut, 0);
    assert_eq!(answered(&mut stays, &nic, &Request::new(4, expel)), Ok(Reply::Done));
    // One that has no such region open has no say.
    let mut other = Engine::new(Circumstances::default());
    entered(&mut other, &nic, Purpose::Join(Join { run: run(3), ..Join::default() }));
    let expel = Ask::RegionExpel("region".parse().unwrap(), wire::tag(&run(1)));
    assert_eq!(answered(&mut other, &nic, &Request::new(1, expel)).unwrap_err().status, Status::NotHeld);
}

/// What a program has open is not taken from it by a slip: who removes it is told whose it is.
#[test]
fn a_region_goes_unused_alone_unless_it_is_meant() {
    let draw = AtomicU8::new(1);
    let nic = Nic::new(Lending::new(SLAB_BYTES, Backing::Small), move || [draw.fetch_add(1, Ordering::Relaxed); 16]);
    let ((mut stays, ..), (goes, ..)) = (opener(&nic, 1, false), opener(&nic, 2, false));
    let name = "region".parse().unwrap();
    let mut number = 3;
    let mut ask = |stays: &mut Engine, ask| {
        number += 1;
        answered(stays, &nic, &Request::new(number, ask))
    };
    let unused = Ask::RegionRemoveUnused(name);
    assert_eq!(ask(&mut stays, unused).unwrap_err().status, Status::Shared);
    let Ok(Reply::Who(who)) = ask(&mut stays, Ask::RegionOpener(name, 0)) else { panic!("the other has it open") };
    assert_eq!(who.run, wire::run_id(&run(2)));
    assert_eq!(ask(&mut stays, Ask::RegionOpener(name, 1)).unwrap_err().status, Status::NotHeld, "not itself");
    goes.close(&nic, Goodbye::Done, 0);
    nic.membership().end_run(&nic.members()[0].clone(), &run(2));
    assert_eq!(ask(&mut stays, Ask::RegionOpener(name, 0)).unwrap_err().status, Status::NotHeld);
    assert_eq!(ask(&mut stays, unused), Ok(Reply::Done), "its own use is none");
    assert_eq!(ask(&mut stays, unused).unwrap_err().status, Status::NotHeld);
}

/// One that joined by TCP comes again by the Unix socket, and is passed its slab there.
#[test]
fn a_member_that_has_come_by_the_unix_socket_since_has_mapped_memory() {
    let draw = AtomicU8::new(1);
    let nic = Nic::new(Lending::new(SLAB_BYTES, Backing::Small), move || [draw.fetch_add(1, Ordering::Relaxed); 16]);
    let ((mut stays, ..), (_goes, known, slab)) = (opener(&nic, 1, false), opener(&nic, 2, false));
    let mut local = Engine::new(Circumstances { local: true, ..Circumstances::default() });
    entered(&mut local, &nic, Purpose::Rejoin(known));
    let region = "region".parse().unwrap();
    assert_eq!(answered(&mut local, &nic, &Request::new(3, Ask::RegionSlab(region, 0))), Ok(Reply::Slab(slab)));
    let expel = Ask::RegionExpel(region, wire::tag(&run(2)));
    let refused = answered(&mut stays, &nic, &Request::new(3, expel)).unwrap_err();
    assert_eq!((refused.status, nic.members().len()), (Status::Shared, 2), "it may write still");
    // Nor is it forgotten when it goes on by TCP.
    let mut again = Engine::new(Circumstances::default());
    entered(&mut again, &nic, Purpose::Rejoin(known));
    local.close(&nic, Goodbye::Done, 0);
    assert_eq!(answered(&mut stays, &nic, &Request::new(4, expel)).unwrap_err().status, Status::Shared);
}

/// A fork beside the fence: no child of an expelled member holds the region, nor anything else.
#[test]
fn a_child_that_is_being_made_goes_with_its_parent() {
    const SLABS: u64 = 24;
    let draw = AtomicU64::new(1);
    let drawn = move || u128::from(draw.fetch_add(1, Ordering::Relaxed)).to_le_bytes();
    let nic = Nic::new(Lending::new((SLABS + 1) * SLAB_BYTES, Backing::Small), drawn);
    let (stays, ..) = opener(&nic, 1, false);
    let asks = nic.members().remove(0);
    let tag = wire::tag(&run(2));
    for round in 0..200 {
        let (mut goes, ..) = opener(&nic, 2, false);
        (0..SLABS).for_each(|n| assert!(answered(&mut goes, &nic, &Request::new(3 + n, Ask::Grant)).is_ok()));
        let parent = nic.members().into_iter().find(|member| member.run == run(2)).unwrap();
        let together = std::sync::Barrier::new(2);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                together.wait();
                let _ = nic.membership().ticket(&parent, 0);
            });
            together.wait();
            assert_eq!(nic.expel(&asks, "region".parse().unwrap(), tag), Status::Done);
        });
        assert_eq!(nic.members().len(), 1, "round {round}: a child is left");
    }
    drop(stays);
}
