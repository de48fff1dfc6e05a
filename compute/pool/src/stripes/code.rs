//! The code: which bytes the parity of a stripe has, and how one seat follows from others.
//!
//! A stripe has a *seat* for each of its pages: `data` seats, then `parity` seats. A parity byte is
//! the sum of the data bytes at its place, each times a factor. The factors are a Cauchy matrix,
//! scaled so that its first row and first column are ones: one parity is XOR. Every square part of
//! such a matrix can be inverted, so that any `data` seats give all others.

use farmem_sys::gf::{self, Unit, inverse, product};

/// Seats of a stripe, at most.
pub const MAX_SEATS: usize = 16;

/// Seats of data and of parity.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shape {
    /// Seats of data.
    pub data: usize,
    /// Seats of parity.
    pub parity: usize,
}

type Row = [u8; MAX_SEATS];

impl Shape {
    /// All seats.
    pub fn seats(self) -> usize {
        self.data + self.parity
    }

    /// A seat's factors: its bytes are the sum of the data's, each times one of these.
    fn factors(self, seat: usize) -> Row {
        let cauchy = |row: usize, column: usize| inverse((self.data + row) as u8 ^ column as u8);
        std::array::from_fn(|column| match seat.checked_sub(self.data) {
            _ if column >= self.data => 0,
            None => (seat == column) as u8,
            // Divided by its row's first, and by its column's.
            Some(row) => {
                let own = product(cauchy(row, column), cauchy(0, 0));
                product(own, inverse(product(cauchy(row, 0), cauchy(0, column))))
            }
        })
    }

    /// Computes a parity from all data: `data(seat)` is the bytes of each.
    pub fn encode<'a>(self, unit: Unit, seat: usize, data: impl Fn(usize) -> &'a [u8], into: &mut [u8]) {
        let factors = self.factors(seat);
        into.fill(0);
        (0..self.data).for_each(|seat| gf::add_scaled(unit, into, data(seat), factors[seat]));
    }

    /// Changes a parity as a data seat changed: `change` is the sum of its old and new bytes.
    pub fn change(self, unit: Unit, parity: usize, seat: usize, change: &[u8], into: &mut [u8]) {
        gf::add_scaled(unit, into, change, self.factors(parity)[seat]);
    }

    /// The factors by which a seat follows from these others, as many as there are seats of data,
    /// all different.
    pub fn from_others(self, seat: usize, others: &[u8]) -> Row {
        assert!(others.len() == self.data && self.seats() <= MAX_SEATS);
        // The rows of the others, beside the identity; Gauss and Jordan turn the one into the
        // other.
        let mut rows: [Row; MAX_SEATS] = [[0; MAX_SEATS]; MAX_SEATS];
        let mut inverted = rows;
        for (at, &other) in others.iter().enumerate() {
            rows[at] = self.factors(other as usize);
            inverted[at][at] = 1;
        }
        for column in 0..self.data {
            let pivot = (column..self.data).find(|&at| rows[at][column] != 0);
            let pivot = pivot.unwrap_or_else(|| panic!("seats {others:?} of {self:?} do not give the rest"));
            rows.swap(column, pivot);
            inverted.swap(column, pivot);
            let scale = inverse(rows[column][column]);
            for row in [&mut rows[column], &mut inverted[column]] {
                row.iter_mut().for_each(|factor| *factor = product(*factor, scale));
            }
            for at in (0..self.data).filter(|&at| at != column) {
                let times = rows[at][column];
                for n in 0..self.data {
                    rows[at][n] ^= product(times, rows[column][n]);
                    inverted[at][n] ^= product(times, inverted[column][n]);
                }
            }
        }
        let own = self.factors(seat);
        std::array::from_fn(|other| (0..self.data).fold(0, |sum, n| sum ^ product(own[n], inverted[n][other])))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shapes() -> impl Iterator<Item = Shape> {
        (1..=12).flat_map(|data| (1..=4).map(move |parity| Shape { data, parity }))
    }

    /// From any `data` seats of a stripe all its seats follow.
    #[test]
    fn any_seats_give_the_others() {
        let unit = Unit::best();
        for shape in shapes().filter(|shape| shape.data <= 8 && shape.parity <= 3) {
            let mut seats: Vec<Vec<u8>> =
                (0..shape.data).map(|seat| (0..40).map(|at| (seat * 89 + at * 7 + 3) as u8).collect()).collect();
            for seat in shape.data..shape.seats() {
                let mut parity = vec![9; 40];
                shape.encode(unit, seat, |seat| &seats[seat], &mut parity);
                seats.push(parity);
            }
            for set in (0u32..1 << shape.seats()).filter(|set| set.count_ones() as usize == shape.data) {
                let others: Vec<u8> = (0..shape.seats() as u8).filter(|seat| set >> seat & 1 != 0).collect();
                for seat in 0..shape.seats() {
                    let factors = shape.from_others(seat, &others);
                    let mut found = vec![0; 40];
                    for (at, &other) in others.iter().enumerate() {
                        gf::add_scaled(unit, &mut found, &seats[other as usize], factors[at]);
                    }
                    assert_eq!(found, seats[seat], "{shape:?}: seat {seat} from {others:?}");
                }
            }
        }
    }

    /// A parity that was changed as its data was is the parity of the new data.
    #[test]
    fn a_change_of_data_changes_parity_alike() {
        let unit = Unit::best();
        for shape in shapes() {
            let old: Vec<Vec<u8>> =
                (0..shape.data).map(|seat| (0..70).map(|at| (seat * 57 + at * 3 + 1) as u8).collect()).collect();
            for (changed, parity) in
                (0..shape.data).flat_map(|seat| (shape.data..shape.seats()).map(move |p| (seat, p)))
            {
                let mut new = old.clone();
                new[changed].iter_mut().enumerate().for_each(|(at, byte)| *byte ^= (at * 5) as u8);
                let change: Vec<u8> = old[changed].iter().zip(&new[changed]).map(|(old, new)| old ^ new).collect();
                let encoded = |data: &[Vec<u8>]| {
                    let mut into = vec![0; 70];
                    shape.encode(unit, parity, |seat| &data[seat], &mut into);
                    into
                };
                let mut found = encoded(&old);
                shape.change(unit, parity, changed, &change, &mut found);
                assert_eq!(found, encoded(&new), "{shape:?}: seat {changed}, parity {parity}");
            }
        }
    }

    #[test]
    fn one_parity_is_xor() {
        for shape in shapes() {
            assert!(shape.factors(shape.data)[..shape.data].iter().all(|factor| *factor == 1));
        }
    }

    /// Another's code loses and finds the same pages. (Its parity has other bytes: its matrix is
    /// another.)
    #[test]
    fn as_much_is_restored_as_by_another_code() {
        use reed_solomon_erasure::galois_8::ReedSolomon;
        for (data, parity) in [(2, 1), (4, 1), (4, 2), (8, 3)] {
            let (shape, theirs) = (Shape { data, parity }, ReedSolomon::new(data, parity).unwrap());
            let pages = |seat: usize| (0..64).map(|at| (seat * 31 + at * at) as u8).collect::<Vec<u8>>();
            let mut ours: Vec<Vec<u8>> = (0..data).map(pages).collect();
            let mut oracle: Vec<Vec<u8>> = (0..shape.seats()).map(pages).collect();
            theirs.encode(&mut oracle).unwrap();
            for seat in data..shape.seats() {
                let mut page = vec![0; 64];
                shape.encode(Unit::best(), seat, |seat| &ours[seat], &mut page);
                ours.push(page);
            }
            for lost in 0..data {
                let mut shards: Vec<Option<Vec<u8>>> = oracle.iter().cloned().map(Some).collect();
                (lost..lost + parity).for_each(|seat| shards[seat] = None);
                theirs.reconstruct(&mut shards).unwrap();
                let gone = |seat: &u8| (lost..lost + parity).contains(&(*seat as usize));
                let others: Vec<u8> = (0..shape.seats() as u8).filter(|seat| !gone(seat)).collect();
                let factors = shape.from_others(lost, &others[..data]);
                let mut found = vec![0; 64];
                for (at, &other) in others[..data].iter().enumerate() {
                    gf::add_scaled(Unit::best(), &mut found, &ours[other as usize], factors[at]);
                }
                assert_eq!(Some(&found), shards[lost].as_ref(), "{shape:?} without {lost} and those behind it");
            }
        }
    }
}
