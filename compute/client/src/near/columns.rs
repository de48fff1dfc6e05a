//! Two dense columns, scanned part by part at their nodes while the caller does something else.

use super::flights::{Flights, Landed};
use super::{Call, Columns, Found, Function, Near, Reply, TOGETHER};
use crate::{Addr, Error, Result};

/// Two ranges of a [`Near::scan_columns`], each by its address and its bytes.
pub type Pair = ((Addr, u64), (Addr, u64));

/// Scans pairs of ranges: see [`Near::scanning_columns`].
pub struct Scanning<'l> {
    flights: Flights<'l, usize>,
    pairs: Vec<Pair>,
    columns: Columns,
    /// The pair that is asked for next.
    next: usize,
    /// Of each pair that was asked for.
    found: Vec<Option<Found>>,
}

impl<'l> Near<'l> {
    /// Runs [`Columns`] over pairs of ranges: the tested elements, and those to be summed. One result
    /// for each pair, whose sums are taken in order. Both ranges of a pair lie within one piece
    /// each, and have 256 KiB together at most.
    ///
    /// # Errors
    /// As [`crate::Lane::read`]; [`Error::Size`] where the ranges of a pair do not have as many
    /// elements, or too many.
    pub fn scan_columns(&mut self, pairs: &[Pair], columns: &Columns) -> Result<Vec<Found>> {
        Near { lane: self.lane }.scanning_columns(pairs.to_vec(), columns).finish()
    }

    /// [`Near::scan_columns`] of a caller who does something else meanwhile. Nothing is asked for before
    /// the first [`Scanning::go_on`].
    pub fn scanning_columns(self, pairs: Vec<Pair>, columns: &Columns) -> Scanning<'l> {
        let found = vec![None; pairs.len()];
        Scanning { flights: Flights::new(self.lane), pairs, columns: *columns, next: 0, found }
    }
}

impl Scanning<'_> {
    /// Takes answers that have come, and asks for the next pairs. Does not wait for a node that computes.
    ///
    /// # Errors
    /// As [`Near::scan_columns`].
    pub fn go_on(&mut self) -> Result<()> {
        while self.flights.is_over() {
            self.land()?;
        }
        self.ask()
    }

    /// Waits for all answers. One for each pair. A pair that was met by an error before is looked at again.
    ///
    /// # Errors
    /// As [`Near::scan_columns`].
    pub fn finish(mut self) -> Result<Vec<Found>> {
        self.ask()?;
        while self.flights.len() > 0 {
            self.land()?;
            self.ask()?;
        }
        for number in 0..self.pairs.len() {
            if self.found[number].is_none() {
                self.look(number)?;
            }
        }
        Ok(self.found.iter().flatten().copied().collect())
    }

    /// Asks for some more pairs, by one message, when half of those under way have ended.
    fn ask(&mut self) -> Result<()> {
        if self.flights.len() > TOGETHER / 2 {
            return Ok(());
        }
        while self.flights.len() < TOGETHER
            && let Some(&((at, len), (values, bytes))) = self.pairs.get(self.next)
        {
            let mut near = self.flights.near();
            let (source, list) = (near.range(at, len)?, near.range(values, bytes)?);
            let call = Call { source, list, function: Function::Columns(self.columns) };
            call.check().map_err(|_| Error::Size(len))?;
            let is_there = at.node() == values.node() && near.is_computed(at.node());
            let number = self.next;
            self.next += 1;
            match is_there {
                true => self.flights.post((at.node(), call), None, None, number),
                false => self.look(number)?,
            }
        }
        self.flights.ring();
        Ok(())
    }

    fn land(&mut self) -> Result<()> {
        let Some(Landed { state: number, reply, .. }) = self.flights.land() else { return Ok(()) };
        match reply? {
            Some(Reply::Found(found)) => self.found[number] = Some(found),
            _ => self.look(number)?,
        }
        Ok(())
    }

    /// Reads a pair, and looks at it here.
    fn look(&mut self, number: usize) -> Result<()> {
        let ((at, len), (values, bytes)) = self.pairs[number];
        let (mut tests, mut summed) = (vec![0; len as usize], vec![0; bytes as usize]);
        let near = self.flights.near();
        let mut batch = near.lane.batch();
        batch.read(at, &mut tests).read(values, &mut summed);
        batch.run().into_iter().try_for_each(|done| done.map(drop))?;
        let mut found = Found::none(self.columns.value);
        self.columns.run(&tests, &summed, &mut found);
        self.found[number] = Some(found);
        Ok(())
    }
}

impl std::fmt::Debug for Scanning<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (pairs, asked) = (self.pairs.len(), self.next);
        f.debug_struct("Scanning").field("pairs", &pairs).field("asked", &asked).finish_non_exhaustive()
    }
}
