//! A stream of rows: 512 at a time, in order, of some columns.
//!
//! ```text
//! part 0 (8192 rows)   part 1              …
//! │ step │ step │ …    │ being read        │
//!   ▲ seen by the caller
//! ```
//!
//! Local chunks are looked at where they are. Chunks that are away come into the heap's frames while
//! there is room. Otherwise they are read past the frames: a stream pushes nothing out. The reads
//! of the next part, 16 chunks of a column of 8 bytes, are under way while the caller looks at one.

use super::{Column, FarFrame, PART, STEP, Type};
use crate::{CHUNK, Chunk, Error, FarBox, FarVec, Result, Scope};
use farmem::{Completion, Lane};
use std::collections::VecDeque;
use std::ops::Range;
use std::time::Duration;

/// The longest sleep between two looks whether a node is lost.
const PATIENCE: Duration = Duration::from_secs(1);
/// Bits of a tag below the number of its part.
const PIECE: u32 = 32;

/// Some rows of one column.
pub(super) struct View<'a> {
    pub kind: Type,
    /// Rows.
    pub rows: usize,
    /// The values' bytes; of text, where each value ends.
    pub values: &'a [u8],
    /// The bitmap of those that are not null.
    pub valid: Option<&'a [u8]>,
    /// The part's text, the place of its first byte in the column, and where the view's begins.
    text: Option<(&'a [u8], u64, u64)>,
}

impl<'a> View<'a> {
    /// Values of 8 bytes.
    pub fn eights(&self) -> &'a [[u8; 8]] {
        &self.values.as_chunks::<8>().0[..self.rows]
    }

    /// Values of 4 bytes.
    pub fn fours(&self) -> &'a [[u8; 4]] {
        &self.values.as_chunks::<4>().0[..self.rows]
    }

    /// A value of a column of text.
    pub fn text(&self, row: usize) -> &'a [u8] {
        let Some((bytes, first, begins)) = self.text else { return &[] };
        let ends = self.eights();
        let from = row.checked_sub(1).map_or(begins, |before| u64::from_le_bytes(ends[before]));
        let range = (from.saturating_sub(first)) as usize..u64::from_le_bytes(ends[row]).saturating_sub(first) as usize;
        // Where a node lies about the ends, a text is empty.
        bytes.get(range).unwrap_or_default()
    }

    /// Whether a value is not null.
    pub fn is_valid(&self, row: usize) -> bool {
        self.valid.is_none_or(|valid| super::series::bit(valid, row))
    }
}

/// Bytes that a part needs of one chunk.
#[derive(Clone, Copy)]
struct Piece<'a> {
    chunk: &'a FarBox<Chunk>,
    at: usize,
    len: usize,
}

/// Bytes that a part has read past the frames. `None`: they are looked at in their frame.
type Bytes = Option<Vec<u8>>;

/// One run of bytes that a step takes as they lie.
struct Source<'a> {
    of: &'a FarVec<u8>,
    /// Bytes of a step.
    each: usize,
}

/// A part that is being read, or looked at.
struct Part<'a> {
    number: usize,
    /// All sources' pieces, one source behind the other, and behind these all texts'.
    pieces: Vec<(Piece<'a>, Bytes)>,
    /// Where each source's, and each text's, begin.
    begins: Vec<usize>,
    /// Reads under way.
    missing: usize,
}

/// A stream. See the module.
pub(super) struct Steps<'a> {
    frame: &'a FarFrame,
    columns: Vec<&'a Column>,
    sources: Vec<Source<'a>>,
    texts: Vec<&'a Column>,
    lane: Lane,
    done: Vec<Completion>,
    parts: VecDeque<Part<'a>>,
}

impl<'a> Steps<'a> {
    /// Of the columns with these numbers.
    pub fn new(frame: &'a FarFrame, columns: &[usize]) -> Result<Steps<'a>> {
        let columns: Vec<&Column> = columns.iter().map(|&at| &frame.columns[at]).collect();
        let mut sources = Vec::new();
        for column in &columns {
            sources.push(Source { of: &column.values, each: column.bytes_of_step() });
            if let Some(valid) = &column.valid {
                sources.push(Source { of: valid, each: STEP / 8 });
            }
        }
        let texts = columns.iter().copied().filter(|column| column.text.is_some()).collect();
        let lane = frame.heap.inner.lane()?;
        Ok(Steps { frame, columns, sources, texts, lane, done: Vec::new(), parts: VecDeque::new() })
    }

    /// Calls `visit` for the rows of a range, and for others that share a part with them. `wants`:
    /// whether a part is to be looked at. Nothing may be written to far memory meanwhile: a scope is
    /// open, which would hold it local.
    pub fn visit(
        self,
        rows: Range<usize>,
        wants: impl Fn(usize) -> bool,
        mut visit: impl FnMut(usize, &[View<'_>]) -> Result<()>,
    ) -> Result<()> {
        self.visit_with(&mut (), rows, wants, |(), first, views| visit(first, views), |()| Ok(()))
    }

    /// … and `after` behind each of these calls, when no scope is open.
    pub fn visit_with<S>(
        mut self,
        state: &mut S,
        rows: Range<usize>,
        wants: impl Fn(usize) -> bool,
        mut visit: impl FnMut(&mut S, usize, &[View<'_>]) -> Result<()>,
        mut after: impl FnMut(&mut S) -> Result<()>,
    ) -> Result<()> {
        let numbers = rows.start / PART..rows.end.div_ceil(PART);
        let mut numbers = numbers.filter(|&number| wants(number)).peekable();
        while let Some(number) = numbers.next() {
            if self.parts.is_empty() {
                self.begin(number, &rows);
            }
            if let Some(&next) = numbers.peek() {
                self.begin(next, &rows);
            }
            let Some(part) = self.whole()? else { continue };
            let texts = (0..self.texts.len()).map(|n| self.text(&part, self.sources.len() + n));
            let texts = texts.collect::<Result<Vec<Vec<u8>>>>()?;
            let mut begins: Vec<u64> = self.texts.iter().map(|column| place_of(column, number)).collect();
            for step in steps_of(number, &rows) {
                self.look(&part, step, (&texts, &mut begins), |first, views| visit(state, first, views))?;
                after(state)?;
            }
        }
        Ok(())
    }

    /// Has a part's bytes come.
    fn begin(&mut self, number: usize, rows: &Range<usize>) {
        let inner = &self.frame.heap.inner;
        let class = FarBox::<Chunk>::CLASS;
        let mut part = Part { number, pieces: Vec::new(), begins: Vec::new(), missing: 0 };
        let steps = steps_of(number, rows);
        for source in &self.sources {
            part.begins.push(part.pieces.len());
            let end = (steps.end * source.each).min(source.of.len().next_multiple_of(CHUNK));
            pieces(source.of, steps.start * source.each..end, &mut part.pieces);
        }
        for column in &self.texts {
            part.begins.push(part.pieces.len());
            if let Some(text) = &column.text {
                pieces(&text.bytes, text.of_part(number), &mut part.pieces);
            }
        }
        let is_away = |piece: &Piece<'_>| !inner.is_local(class, piece.chunk.word());
        let away = part.pieces.iter().filter(|(piece, _)| is_away(piece)).count();
        if away > 0 && inner.room() >= away + 2 * PART / STEP {
            let chunks: Vec<_> =
                part.pieces.iter().filter(|(piece, _)| is_away(piece)).map(|(piece, _)| piece.chunk).collect();
            self.frame.heap.prefetch(&chunks);
        } else if away > 0 {
            for (n, (piece, bytes)) in part.pieces.iter_mut().enumerate().filter(|(_, (piece, _))| is_away(piece)) {
                // Of a chunk without a home nothing is read: the look at it tells.
                let Some(at) = inner.home(piece.chunk.word()) else { continue };
                *bytes = Some(Vec::new());
                let tag = (number as u64) << PIECE | n as u64;
                self.lane.post_read(tag, at + piece.at as u64, vec![0; piece.len]);
                part.missing += 1;
            }
            self.lane.ring();
            inner.passed(part.missing);
        }
        self.parts.push_back(part);
    }

    /// The first part, when all its reads have ended.
    fn whole(&mut self) -> Result<Option<Part<'a>>> {
        while self.parts.front().is_some_and(|part| part.missing > 0) {
            self.lane.wait(&mut self.done, PATIENCE);
            for Completion { tag, result, buffer, .. } in self.done.drain(..) {
                result?;
                let number = (tag >> PIECE) as usize;
                let Some(part) = self.parts.iter_mut().find(|part| part.number == number) else { continue };
                part.pieces[tag as u32 as usize].1 = Some(buffer);
                part.missing -= 1;
            }
        }
        Ok(self.parts.pop_front())
    }

    /// Shows a step. `texts`: each text's bytes in the part, and where the step's begin.
    fn look(
        &self,
        part: &Part<'_>,
        step: usize,
        (texts, begins): (&[Vec<u8>], &mut [u64]),
        visit: impl FnOnce(usize, &[View<'_>]) -> Result<()>,
    ) -> Result<()> {
        let scope = self.frame.heap.scope();
        let mut slices = Vec::with_capacity(self.sources.len());
        for (n, source) in self.sources.iter().enumerate() {
            slices.push(part.slice(n, step * source.each % (source.each * PART / STEP), source.each, &scope)?);
        }
        let first = step * STEP;
        let rows = STEP.min(self.frame.rows - first);
        let (mut slices, mut text) = (slices.into_iter(), 0);
        let mut views = Vec::with_capacity(self.columns.len());
        for column in &self.columns {
            let values = slices.next().unwrap_or_default();
            let valid = column.valid.as_ref().and_then(|_| slices.next());
            let texts = column.text.as_ref().map(|_| {
                text += 1;
                let (bytes, first, begins) = (&texts[text - 1][..], place_of(column, part.number), begins[text - 1]);
                let longest = column.text.as_ref().map_or(0, |text| text.longest_of(part.number));
                let is_sound = do_ascend((values, rows), begins, first + bytes.len() as u64, longest);
                (if is_sound { bytes } else { &[] }, first, begins)
            });
            views.push(View { kind: column.kind, rows, values, valid, text: texts });
        }
        visit(first, &views)?;
        let with_text = views.iter().filter(|view| view.text.is_some());
        for (begin, view) in begins.iter_mut().zip(with_text) {
            *begin = view.eights().last().map_or(0, |end| u64::from_le_bytes(*end)).max(*begin);
        }
        Ok(())
    }

    /// A part's text, in one run.
    fn text(&self, part: &Part<'_>, source: usize) -> Result<Vec<u8>> {
        let until = part.begins.get(source + 1).copied().unwrap_or(part.pieces.len());
        let mut run = Vec::new();
        for (piece, bytes) in &part.pieces[part.begins[source]..until] {
            match bytes {
                Some(bytes) => run.extend_from_slice(bytes),
                None => {
                    let scope = self.frame.heap.scope();
                    run.extend_from_slice(&piece.chunk.get(&scope)?.0[piece.at..piece.at + piece.len]);
                }
            }
        }
        Ok(run)
    }
}

impl Part<'_> {
    /// Bytes of a source, from an offset within the part on.
    fn slice<'s>(&'s self, source: usize, at: usize, len: usize, scope: &'s Scope) -> Result<&'s [u8]> {
        let mut at = at;
        for (piece, bytes) in &self.pieces[self.begins[source]..] {
            if at < piece.len {
                let whole = match bytes {
                    Some(bytes) => &bytes[..],
                    None => &piece.chunk.get(scope)?.0[piece.at..piece.at + piece.len],
                };
                return Ok(whole.get(at..at + len).unwrap_or_default());
            }
            at -= piece.len;
        }
        Ok(&[])
    }
}

/// Whether texts end one behind the other, from `begin` to `limit`, and none is longer than
/// `longest`. If not, a node lies, and might have each of them be as long as all.
fn do_ascend((ends, rows): (&[u8], usize), begin: u64, limit: u64, longest: u64) -> bool {
    let ends = ends.as_chunks::<8>().0.iter().take(rows).map(|end| u64::from_le_bytes(*end));
    let follows = |before: u64, end: u64| end.checked_sub(before).is_some_and(|len| len <= longest) && end <= limit;
    ends.fold((true, begin), |(is, before), end| (is && follows(before, end), end)).0
}

/// Where a part's text begins in its column.
fn place_of(column: &Column, part: usize) -> u64 {
    column.text.as_ref().map_or(0, |text| text.of_part(part).start as u64)
}

/// The steps of a part that have rows of a range.
fn steps_of(number: usize, rows: &Range<usize>) -> Range<usize> {
    let (first, end) = (number * PART, (number + 1) * PART);
    // A text's place is known from the beginning of its part on.
    first / STEP..rows.end.min(end).div_ceil(STEP)
}

/// The pieces of a range of bytes.
fn pieces<'a>(of: &'a FarVec<u8>, range: Range<usize>, into: &mut Vec<(Piece<'a>, Bytes)>) {
    let (mut next, chunks) = (range.start, of.chunks());
    while next < range.end {
        let (number, at) = (next / CHUNK, next % CHUNK);
        let len = (CHUNK - at).min(range.end - next);
        let Some(chunk) = chunks.get(number) else { break };
        into.push((Piece { chunk, at, len }, None));
        next += len;
    }
}

/// Bytes of a column at many places, `each` at a place, in the order of the places. A piece does
/// not cross chunks.
///
/// Local chunks are looked at here. Of the others the pieces come, or the whole chunks where these
/// are fewer bytes.
pub(super) fn gathered(frame: &FarFrame, of: &FarVec<u8>, places: &[usize], each: usize) -> Result<Vec<u8>> {
    let (inner, scope) = (&frame.heap.inner, frame.heap.scope());
    let class = FarBox::<Chunk>::CLASS;
    let chunk = |place: usize| {
        let chunk = of.chunks().get(place / CHUNK).filter(|_| place % CHUNK + each <= CHUNK);
        chunk.ok_or(Error::Index { index: place, len: of.len() })
    };
    let mut run = vec![0; places.len() * each];
    let mut away = Vec::new();
    for (n, &place) in places.iter().enumerate() {
        let chunk = chunk(place)?;
        if inner.is_local(class, chunk.word()) {
            let bytes = &chunk.get(&scope)?.0[place % CHUNK..][..each];
            run[n * each..][..each].copy_from_slice(bytes);
        } else {
            away.push(n);
        }
    }
    drop(scope);
    if away.is_empty() {
        return Ok(run);
    }
    let mut numbers: Vec<usize> = away.iter().map(|&n| places[n] / CHUNK).collect();
    numbers.sort_unstable();
    numbers.dedup();
    let mut lane = inner.lane()?;
    // A READ has 40 bytes, and its answer 24 beside the bytes; a piece of a list has 4.
    let first = inner.home(of.chunks()[numbers[0]].word()).ok_or(Error::OtherHeap)?;
    let one = each + if lane.near().computes(first.node()) { 4 } else { 64 };
    if numbers.len() * (CHUNK + 64) > away.len() * one {
        let mut gathering = lane.near().gathering(each as u32)?;
        let mut take = |n: usize, bytes: &[u8]| run[n * each..][..each].copy_from_slice(bytes);
        for &n in &away {
            let home = inner.home(of.chunks()[places[n] / CHUNK].word()).ok_or(Error::OtherHeap)?;
            gathering.add(n, home + (places[n] % CHUNK) as u64, &mut take)?;
        }
        gathering.finish(&mut take)?;
        return Ok(run);
    }
    for some in numbers.chunks(2 * PART / STEP) {
        let mut chunks = vec![0; some.len() * CHUNK];
        let mut batch = lane.batch();
        for (&number, bytes) in some.iter().zip(chunks.chunks_exact_mut(CHUNK)) {
            batch.read(inner.home(of.chunks()[number].word()).ok_or(Error::OtherHeap)?, bytes);
        }
        batch.run().into_iter().try_for_each(|done| done.map(drop))?;
        for &n in &away {
            if let Ok(at) = some.binary_search(&(places[n] / CHUNK)) {
                run[n * each..][..each].copy_from_slice(&chunks[at * CHUNK + places[n] % CHUNK..][..each]);
            }
        }
    }
    Ok(run)
}

/// The bytes of many ranges of a column, one behind the other.
pub(super) fn ranges(frame: &FarFrame, of: &FarVec<u8>, ranges: &[Range<usize>]) -> Result<Vec<u8>> {
    let (inner, scope) = (&frame.heap.inner, frame.heap.scope());
    let mut found = Vec::new();
    if let Some(range) = ranges.iter().find(|range| range.end > of.len() || range.start > range.end) {
        return Err(Error::Index { index: range.end, len: of.len() });
    }
    ranges.iter().for_each(|range| pieces(of, range.clone(), &mut found));
    let mut run = vec![0; found.iter().map(|(piece, _)| piece.len).sum()];
    let mut lane = inner.lane()?;
    let mut batch = lane.batch();
    let mut rest = &mut run[..];
    for (piece, _) in &found {
        let (bytes, more) = std::mem::take(&mut rest).split_at_mut(piece.len);
        rest = more;
        match inner.is_local(FarBox::<Chunk>::CLASS, piece.chunk.word()) {
            true => bytes.copy_from_slice(&piece.chunk.get(&scope)?.0[piece.at..piece.at + piece.len]),
            false => {
                batch.read(inner.home(piece.chunk.word()).ok_or(Error::OtherHeap)? + piece.at as u64, bytes);
            }
        }
    }
    batch.run().into_iter().try_for_each(|done| done.map(drop))?;
    Ok(run)
}
