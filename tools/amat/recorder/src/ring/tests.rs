//! The ring: its order, its bounds, and files that are none.

use super::*;

fn pair() -> (Ring, Ring) {
    let consumer = Ring::create().unwrap();
    let producer = Ring::open(consumer.fd()).unwrap();
    (consumer, producer)
}

fn add(chunk: &Chunk, word: u64) -> bool {
    // SAFETY: a chunk of a ring.
    unsafe { Chunk::add(chunk, word) }
}

/// The words of each chunk without their flags, and its instructions, as they are read.
fn read(ring: &Ring) -> Vec<(Vec<u64>, u64)> {
    let mut all = vec![];
    while ring.read(|words, instructions| all.push((plain(words), instructions))) {}
    all
}

fn plain(words: &[AtomicU64]) -> Vec<u64> {
    words.iter().map(|word| word.load(Ordering::Relaxed) & !word::FRESH).collect()
}

#[test]
fn chunks_are_read_in_the_order_they_were_handed_over() {
    let (consumer, producer) = pair();
    let (a, b) = (producer.take(1).unwrap(), producer.take(1).unwrap());
    a.enter(3);
    assert!(add(a, 10) && add(b, 20) && add(a, 11));
    producer.hand_over(b);
    producer.hand_over(a);
    assert_eq!(read(&consumer), [(vec![20], 0), (vec![10, 11], 3)]);
    assert_eq!(producer.number(producer.take(1).unwrap()), 0, "chunks are used again");
}

#[test]
fn a_block_of_code_is_told_by_its_first_reference() {
    let (consumer, producer) = pair();
    let chunk = producer.take(1).unwrap();
    let first = |chunk: &Chunk| {
        chunk.enter(1);
        add(chunk, 1) && add(chunk, 2)
    };
    assert!(first(chunk) && first(chunk));
    producer.hand_over(chunk);
    let mut fresh = vec![];
    let is_fresh = |word: &AtomicU64| word.load(Ordering::Relaxed) & word::FRESH != 0;
    consumer.read(|words, _| fresh.extend(words.iter().map(is_fresh)));
    assert_eq!(fresh, [true, false, true, false]);
}

#[test]
fn a_full_chunk_takes_no_more() {
    let (consumer, producer) = pair();
    let chunk = producer.take(1).unwrap();
    assert_eq!((0..).take_while(|&n| add(chunk, n)).count(), ROOM as usize);
    assert!(!add(&Chunk::full(), 1));
    producer.hand_over(chunk);
    assert_eq!(read(&consumer)[0].0.len(), ROOM as usize);
}

#[test]
fn what_an_ended_program_held_is_read() {
    let (consumer, producer) = pair();
    let (a, b) = (producer.take(1).unwrap(), producer.take(2).unwrap());
    assert!(add(a, 10) && add(b, 20));
    // The first process execs another program.
    producer.begin(1);
    assert_eq!(read(&consumer), [(vec![10], 0)]);
    let mut left = vec![];
    consumer.end(|words, _| left.push(plain(words)));
    assert_eq!(left, [[20]]);
    assert_eq!(producer.take(2).err(), Some(NoChunk::Ended));
}

#[test]
fn who_fills_faster_than_is_read_waits() {
    let (consumer, producer) = pair();
    let all = 10 * u64::from(MOST_READY);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for n in 0..all {
                let chunk = producer.take(1).unwrap();
                assert!(add(chunk, n));
                producer.hand_over(chunk);
            }
        });
        let mut expected = 0;
        while expected < all {
            assert!(consumer.control().high.load(Ordering::Relaxed) <= MOST_READY + 1);
            let next = consumer.read(|words, _| assert_eq!(plain(words), [expected]));
            expected += u64::from(next);
            if !next {
                consumer.wait(WAIT_NS);
            }
        }
    });
}

#[test]
fn more_threads_than_chunks_are_refused() {
    let (consumer, producer) = pair();
    assert!((0..CHUNKS).all(|_| producer.take(1).is_ok()));
    assert_eq!(producer.take(1).err(), Some(NoChunk::TooManyThreads));
    assert!(consumer.had_too_many_threads());
}

#[test]
fn a_file_that_is_no_ring_is_refused() {
    let fd = shared::memory(c"other", LEN as u64).unwrap();
    assert!(Ring::open(fd).is_err());
    close(fd);
    assert!(Ring::open(-1).is_err());
}
