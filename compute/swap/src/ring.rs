//! Pages of the kernel's ring buffer for tracing, as `trace_pipe_raw` gives them.
//!
//! ```text
//!  page    0      8        16
//!          | time | length | event | event | …            time: of what came before the first event
//!  event   | kind: 5 bits | delta: 27 bits | payload      kind: the payload's words, or see `KIND_*`
//! ```
//!
//! The kernel describes an event's payload by a text, its *format*. The same events as text
//! (`trace_pipe`) cost the kernel some fifty times the CPU time.
//!
//! Pure. No text and no page makes this panic.

/// Bytes of a page before its events.
const HEAD: usize = 16;
/// The bits of `length` that are one. Above them are flags.
const LENGTH: u64 = (1 << 27) - 1;
/// The payload's length is a word before it, which counts itself.
const KIND_LONG: u32 = 0;
/// No event: a gap whose length is in the word that follows; without a delta, the page's end.
const KIND_GAP: u32 = 29;
/// More bits of the next event's delta.
const KIND_DELTA: u32 = 30;
/// A time, of which the highest bits are as they were.
const KIND_TIME: u32 = 31;
/// Bits of a delta in an event's head, and of a time without its highest bits.
const DELTA_BITS: u32 = 27;
const TIME_BITS: u32 = 59;

/// Where a number is in a payload.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Field {
    at: usize,
    size: usize,
}

/// A format: the number of an event's type, and its fields.
#[derive(PartialEq, Eq, Debug)]
pub(crate) struct Format {
    /// The number that begins the payload of each such event.
    pub(crate) id: u16,
    fields: Vec<(String, Field)>,
}

impl Field {
    /// The number in this payload, which is unsigned. `None`: the payload is too short.
    pub(crate) fn of(self, payload: &[u8]) -> Option<u64> {
        let bytes = payload.get(self.at..)?.get(..self.size)?;
        let mut number = [0; 8];
        number.get_mut(..self.size)?.copy_from_slice(bytes);
        Some(u64::from_le_bytes(number))
    }
}

impl Format {
    /// Reads the kernel's text:
    ///
    /// ```text
    /// ID: 1623
    ///         field:unsigned short common_type;       offset:0;       size:2; signed:0;
    /// ```
    pub(crate) fn parse(text: &str) -> Option<Format> {
        let id = text.lines().find_map(|line| line.strip_prefix("ID:")?.trim().parse().ok())?;
        Some(Format { id, fields: text.lines().filter_map(field).collect() })
    }

    /// The field of this name.
    pub(crate) fn field(&self, name: &str) -> Option<Field> {
        self.fields.iter().find(|(named, _)| named == name).map(|&(_, field)| field)
    }
}

fn field(line: &str) -> Option<(String, Field)> {
    let mut parts = line.trim().split(';').map(str::trim);
    let name = parts.next()?.strip_prefix("field:")?.rsplit(' ').next()?;
    let at = parts.next()?.strip_prefix("offset:")?.parse().ok()?;
    let size = parts.next()?.strip_prefix("size:")?.parse().ok()?;
    Some((name.to_owned(), Field { at, size }))
}

/// Calls `each` with every event of a page: its time by the buffer's clock, and its payload. What
/// is cut off is left out.
///
/// An event is never said to be later than it was: the deltas of gaps do not count, as in the
/// kernel's own reader.
pub(crate) fn events(page: &[u8], mut each: impl FnMut(u64, &[u8])) {
    let Some((head, mut rest)) = page.split_first_chunk::<HEAD>() else { return };
    let (time, length) = head.split_at(HEAD / 2);
    let number = |bytes: &[u8]| bytes.try_into().map_or(0, u64::from_le_bytes);
    let (mut time, length) = (number(time), (number(length) & LENGTH) as usize);
    rest = &rest[..length.min(rest.len())];
    while let Some((head, after)) = rest.split_first_chunk::<4>() {
        let head = u32::from_le_bytes(*head);
        let (kind, delta) = (head & 31, u64::from(head >> 5));
        let word = after.first_chunk().map_or(u32::MAX, |bytes| u32::from_le_bytes(*bytes));
        let long = (u64::from(word) << DELTA_BITS) + delta;
        let (begins, ends) = match kind {
            KIND_GAP if delta == 0 => return,
            KIND_GAP => (None, word as usize),
            KIND_DELTA => {
                time = time.wrapping_add(long);
                (None, 4)
            }
            KIND_TIME => {
                time = time >> TIME_BITS << TIME_BITS | long;
                (None, 4)
            }
            KIND_LONG => (Some(4), word as usize),
            words => (Some(0), words as usize * 4),
        };
        if let Some(begins) = begins {
            time = time.wrapping_add(delta);
            let Some(payload) = after.get(begins..ends) else { return };
            each(time, payload);
        }
        let Some(left) = after.get(ends..) else { return };
        rest = left;
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Of Linux 6.1.
    pub(crate) const FREED: &str = "name: freed\nID: 1623\nformat:\n\
        \tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;\n\
        \tfield:unsigned char common_flags;\toffset:2;\tsize:1;\tsigned:0;\n\
        \tfield:unsigned char common_preempt_count;\toffset:3;\tsize:1;\tsigned:0;\n\
        \tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;\n\n\
        \tfield:unsigned long __probe_ip;\toffset:8;\tsize:8;\tsigned:0;\n\
        \tfield:u32 type;\toffset:16;\tsize:4;\tsigned:0;\n\
        \tfield:u64 first;\toffset:20;\tsize:8;\tsigned:0;\n\
        \tfield:u64 last;\toffset:28;\tsize:8;\tsigned:0;\n\n\
        print fmt: \"(%lx) type=%u first=%Lu last=%Lu\", REC->__probe_ip, REC->type, REC->first, REC->last\n";

    /// A page with these events, as the kernel lays them out.
    pub(crate) fn page(time: u64, events: &[u8]) -> Vec<u8> {
        let flags = 1_u64 << 31;
        [&time.to_le_bytes(), &(events.len() as u64 | flags).to_le_bytes(), events].concat()
    }

    pub(crate) fn event(kind: u32, delta: u32, words: &[u32]) -> Vec<u8> {
        [kind | delta << 5].iter().chain(words).flat_map(|word| word.to_le_bytes()).collect()
    }

    fn all(page: &[u8]) -> Vec<(u64, Vec<u8>)> {
        let mut all = Vec::new();
        events(page, |at, payload| all.push((at, payload.to_vec())));
        all
    }

    #[test]
    fn a_format_names_its_fields() {
        let format = Format::parse(FREED).unwrap();
        assert_eq!((format.id, format.fields.len()), (1623, 8));
        assert_eq!(format.field("first"), Some(Field { at: 20, size: 8 }));
        assert_eq!(format.field("fmt"), None);
        assert_eq!(format.field("type").unwrap().of(&[7; 20]), Some(0x0707_0707));
        assert_eq!(format.field("type").unwrap().of(&[7; 19]), None);
        assert_eq!(Format::parse("name: freed\n"), None);
    }

    #[test]
    fn times_add_up() {
        let words = |words: &[u32]| -> Vec<u8> { words.iter().flat_map(|word| word.to_le_bytes()).collect() };
        let events = [
            event(2, 5, &[1, 2]),
            // Of a gap nothing counts.
            event(KIND_GAP, 9, &[8, 0]),
            event(KIND_DELTA, 3, &[2]),
            event(1, 1, &[3]),
            event(KIND_LONG, 2, &[12, 4, 5]),
            event(KIND_TIME, 6, &[1 << 10]),
            event(1, 1, &[6]),
            event(KIND_GAP, 0, &[0]),
            event(1, 1, &[7]),
        ];
        let (far, long) = (1_u64 << 60, (2 << 27) + 3);
        let told = all(&page(far + 100, &events.concat()));
        let third = far + 105 + long + 1;
        assert_eq!(
            told,
            [
                (far + 105, words(&[1, 2])),
                (third, words(&[3])),
                (third + 2, words(&[4, 5])),
                (far + (1 << 37) + 7, words(&[6]))
            ]
        );
    }

    #[test]
    fn what_is_cut_off_is_left_out() {
        let whole = page(0, &[event(1, 1, &[1]), event(2, 1, &[2, 3])].concat());
        let counts: Vec<usize> = (0..=whole.len()).map(|n| all(&whole[..n]).len()).collect();
        assert_eq!((counts[23], counts[24], counts[35], counts[36]), (0, 1, 1, 2));
        // The length that the page names is less than what was read.
        let more = [&whole[..], &event(1, 1, &[9])].concat();
        assert_eq!(all(&more).len(), 2);
    }

    proptest! {
        #[test]
        fn any_page_is_read(time: u64, bytes in prop::collection::vec(any::<u8>(), 0..200), cut in 0..220_usize) {
            let page = page(time, &bytes);
            events(&page[..cut.min(page.len())], |_, _| {});
            events(&bytes, |_, _| {});
        }

        #[test]
        fn any_format_is_read(text in "(ID:|\tfield:| ?offset:|size:|;|[a-z0-9 -]|\n){0,40}", payload: [u8; 9]) {
            if let Some(format) = Format::parse(&format!("ID: 7\n{text}")) {
                format.fields.iter().for_each(|(_, field)| { field.of(&payload); });
            }
        }
    }
}
