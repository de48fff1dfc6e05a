//! The table of trips: columns of a taxi's year, near and far, from one seed.
//!
//! A row has 64 bytes in nine columns, as many rows as there are objects. The program reads three of
//! them: the sum of fares before day 90, their mean for each of these days, the sum of all tips.

use std::collections::HashMap;

use anyhow::Result;
use farmem_objects::{Agg, Heap, Table, Value, col};

use super::best;

/// Rows of a part: sums of floats are taken by parts.
const PART: usize = 8192;
/// Looks that one round takes.
const LOOKS: usize = 3;

/// Trips of a range of rows.
struct Trips {
    day: Vec<i32>,
    zone: Vec<i32>,
    fare: Vec<f64>,
    tip: Vec<f64>,
    others: [Vec<u64>; 5],
}

impl Trips {
    fn new(rows: std::ops::Range<usize>) -> Trips {
        let mixed = |row: usize, salt: u64| (row as u64 ^ salt << 40).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 20;
        let column = |salt: u64| rows.clone().map(|row| mixed(row, salt)).collect::<Vec<u64>>();
        Trips {
            day: rows.clone().map(|row| (mixed(row, 1) % 365) as i32).collect(),
            zone: rows.clone().map(|row| (mixed(row, 2) % 260) as i32).collect(),
            fare: rows.clone().map(|row| (mixed(row, 3) % 9000) as f64 * 0.01).collect(),
            tip: rows.clone().map(|row| (mixed(row, 4) % 900) as f64 * 0.01).collect(),
            others: [5, 6, 7, 8, 9].map(column),
        }
    }
}

fn summed(total: f64, means: impl Iterator<Item = f64>, tips: f64) -> u64 {
    let means = means.fold(0, |sum: u64, mean| sum.wrapping_add(mean.to_bits()));
    total.to_bits().wrapping_add(means).wrapping_add(tips.to_bits())
}

/// Time of a row, ns, and what was read, of near vectors.
pub fn near(rows: usize) -> Result<(f64, u64)> {
    let trips = Trips::new(0..rows);
    let found = best(2, LOOKS * rows, || {
        let parts = trips.day.chunks(PART).zip(trips.fare.chunks(PART));
        let total = parts.fold(0.0, |sum, (days, fares)| {
            let early = days.iter().zip(fares).filter(|(day, _)| **day < 90);
            sum + early.fold(0.0, |sum, (_, fare)| sum + fare)
        });
        let mut groups: HashMap<i32, (f64, u64)> = HashMap::new();
        let parts = trips.day.chunks(PART).zip(trips.fare.chunks(PART));
        for (days, fares) in parts {
            let mut part: HashMap<i32, f64> = HashMap::new();
            for (&day, &fare) in days.iter().zip(fares).filter(|(day, _)| **day < 90) {
                *part.entry(day).or_default() += fare;
                groups.entry(day).or_default().1 += 1;
            }
            part.into_iter().for_each(|(day, sum)| groups.entry(day).or_default().0 += sum);
        }
        let tips = trips.tip.chunks(PART).fold(0.0, |sum, tips| sum + tips.iter().fold(0.0, |sum, tip| sum + tip));
        Ok(summed(total, groups.values().map(|&(sum, count)| sum / count as f64), tips))
    });
    // The other columns are there as long as the program runs.
    std::hint::black_box((&trips.zone, &trips.others));
    found
}

/// The same of a far frame.
pub fn far(heap: &Heap, rows: usize) -> Result<(f64, u64)> {
    let mut writer = heap.frame_writer();
    for first in (0..rows).step_by(8 * PART) {
        let Trips { day, zone, fare, tip, others } = Trips::new(first..rows.min(first + 8 * PART));
        let columns = [("day", day.into()), ("zone", zone.into()), ("fare", fare.into()), ("tip", tip.into())];
        let names = ["pickup", "dropoff", "vendor", "distance", "passengers"];
        let others = names.into_iter().zip(others.map(Into::into));
        writer.append(&Table::new(columns.into_iter().chain(others))?)?;
    }
    let trips = writer.finish()?;
    let float = |value| if let Value::F64(value) = value { value } else { 0.0 };
    best(2, LOOKS * rows, || {
        let early = trips.filter(col("day").lt(90));
        let groups = early.group(&["day"]).of(&[Agg::mean("fare")])?;
        let means = groups.column("fare_mean")?.iter().map(float);
        Ok(summed(float(early.sum("fare")?), means, float(trips.all().sum("tip")?)))
    })
}
