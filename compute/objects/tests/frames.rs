//! Frames against plain rows: every operation, over shared memory and TCP, at nodes that compute and
//! at those that do not. Results are equal to the last bit.

mod common;

use common::node;
use farmem::Transport;
use farmem_fabric::NodeAddr;
use farmem_memory::{Config, Node};
use farmem_objects::{Agg, CHUNK, Error, FarFrame, Heap, Join, Order, Selected, Series, Table, Type, Value, col};
use proptest::prelude::*;
use std::cmp::Ordering;
use std::sync::atomic::Ordering::Relaxed;

/// Rows of a part: sums of floats are taken by parts.
const PART: usize = 8192;

/// Numbers that follow from a seed.
struct Draw(u64);

impl Draw {
    fn next(&mut self, below: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % below
    }
}

fn computing() -> Node {
    let listen = vec![NodeAddr::Tcp("127.0.0.1:0".into())];
    Node::start(&Config { compute: 2, ..Config::new(256 << 20, listen) }).unwrap()
}

/// A heap of `local` chunks.
fn heap(node: &Node, way: Transport, local: usize) -> Heap {
    Heap::builder().local(local * CHUNK).node(common::address(node, way)).transport(way).build().unwrap()
}

/// Trips: every type, some columns with nulls.
fn trips(rows: usize, seed: u64) -> Table {
    let mut draw = Draw(seed);
    let mut of = |with_nulls: bool, value: &mut dyn FnMut(&mut Draw) -> Value| -> Vec<Value> {
        let one = |_| if with_nulls && draw.next(9) == 0 { Value::Null } else { value(&mut draw) };
        (0..rows).map(one).collect()
    };
    let float = |draw: &mut Draw| match draw.next(500) {
        0 => f64::NAN,
        1 => -0.0,
        2 => 0.0,
        n => n as f64 * 0.37 - 11.0,
    };
    let columns = [
        ("id", Type::U64, of(false, &mut |draw| (draw.next(1 << 20) << 20).into())),
        ("day", Type::I32, of(false, &mut |draw| (draw.next(365) as i32 - 3).into())),
        ("fare", Type::F64, of(false, &mut |draw| float(draw).into())),
        ("tip", Type::F64, of(true, &mut |draw| float(draw).into())),
        ("cents", Type::I64, of(false, &mut |draw| (draw.next(1000) as i64 - 500).into())),
        ("card", Type::Bool, of(true, &mut |draw| (draw.next(3) == 0).into())),
        ("zone", Type::Text, of(true, &mut |draw| format!("zone {}", "é".repeat(draw.next(7) as usize)).into())),
    ];
    let series = |kind, values: Vec<Value>| -> Series {
        let text = |value: &Value| if let Value::Text(text) = value { Some(text.clone()) } else { None };
        let u64s = |value: &Value| if let Value::U64(value) = value { Some(*value) } else { None };
        let i64s = |value: &Value| if let Value::I64(value) = value { Some(*value) } else { None };
        let f64s = |value: &Value| if let Value::F64(value) = value { Some(*value) } else { None };
        let bools = |value: &Value| if let Value::Bool(value) = value { Some(*value) } else { None };
        match kind {
            Type::U64 => values.iter().filter_map(u64s).collect::<Vec<u64>>().into(),
            Type::I32 => values.iter().filter_map(i64s).map(|value| value as i32).collect::<Vec<i32>>().into(),
            Type::I64 => values.iter().filter_map(i64s).collect::<Vec<i64>>().into(),
            Type::F64 if values.contains(&Value::Null) => values.iter().map(f64s).collect::<Vec<_>>().into(),
            Type::F64 => values.iter().filter_map(f64s).collect::<Vec<_>>().into(),
            Type::Bool => values.iter().map(bools).collect::<Vec<_>>().into(),
            Type::Text => values.iter().map(text).collect(),
        }
    };
    Table::new(columns.map(|(name, kind, values)| (name, series(kind, values)))).unwrap()
}

fn frame(heap: &Heap, table: &Table, pieces: usize) -> FarFrame {
    let mut writer = heap.frame_writer();
    let rows: Vec<usize> = (0..=pieces).map(|n| table.len() * n / pieces).collect();
    for range in rows.windows(2) {
        writer.append(&plain_rows(table, &(range[0]..range[1]).collect::<Vec<_>>())).unwrap();
    }
    writer.finish().unwrap()
}

/// Some rows of a near table.
fn plain_rows(table: &Table, rows: &[usize]) -> Table {
    let series = table.columns().iter().map(|(name, series)| (name.clone(), chosen(series, rows)));
    Table::new(series).unwrap()
}

fn chosen(series: &Series, rows: &[usize]) -> Series {
    let values: Vec<Value> = rows.iter().map(|&row| series.get(row)).collect();
    of_values(series.kind(), &values)
}

fn of_values(kind: Type, values: &[Value]) -> Series {
    macro_rules! of {
        ($variant:ident as $to:ty) => {
            values
                .iter()
                .map(|value| if let Value::$variant(value) = value { Some(*value as $to) } else { None })
                .collect::<Vec<Option<$to>>>()
                .into()
        };
    }
    match kind {
        Type::U64 => of!(U64 as u64),
        Type::I64 => of!(I64 as i64),
        Type::I32 => of!(I64 as i32),
        Type::F64 => of!(F64 as f64),
        Type::Bool => values
            .iter()
            .map(|value| if let Value::Bool(value) = value { Some(*value) } else { None })
            .collect::<Vec<Option<bool>>>()
            .into(),
        Type::Text => {
            values.iter().map(|value| if let Value::Text(text) = value { Some(text.clone()) } else { None }).collect()
        }
    }
}

/// As numbers, exactly: all of the test's integers are below 2^53.
fn number(value: &Value) -> Option<f64> {
    match *value {
        Value::U64(value) => Some(value as f64),
        Value::I64(value) => Some(value as f64),
        Value::F64(value) => Some(value),
        Value::Bool(value) => Some(value.into()),
        Value::Null | Value::Text(_) => None,
    }
}

/// The twin of sum, min, max, mean and count.
fn totals(series: &Series, rows: &[usize]) -> (u64, Value, Value, Value, Value) {
    let mut parts = vec![0.0; series.len().div_ceil(PART)];
    let (mut count, mut whole, mut extremes) = (0u64, 0i128, None::<(Value, Value)>);
    for &row in rows {
        let value = series.get(row);
        let Some(float) = number(&value) else { continue };
        count += 1;
        parts[row / PART] += float;
        whole += float as i128;
        if float.is_nan() {
            continue;
        }
        let (low, high) = extremes.get_or_insert((value.clone(), value.clone()));
        if float < number(low).unwrap() {
            *low = value.clone();
        }
        if float > number(high).unwrap() {
            *high = value;
        }
    }
    let float = parts.iter().fold(0.0, |sum, part| sum + part);
    let (sum, mean) = match series.kind() {
        Type::F64 => (Value::F64(float), float / count as f64),
        Type::U64 | Type::Bool => (Value::U64(whole as u64), whole as f64 / count as f64),
        _ => (Value::I64(whole as i64), whole as f64 / count as f64),
    };
    let (low, high) = extremes.unwrap_or((Value::Null, Value::Null));
    (count, sum, low, high, if count == 0 { Value::Null } else { Value::F64(mean) })
}

fn alike(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::F64(a), Value::F64(b)) => a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan(),
        (a, b) => a == b,
    }
}

fn agrees(selected: &Selected<'_>, table: &Table, rows: &[usize]) {
    assert_eq!(selected.count().unwrap(), rows.len() as u64);
    for name in ["id", "day", "fare", "tip", "cents", "card"] {
        let got = selected.totals(name).unwrap();
        let (count, sum, min, max, mean) = totals(table.column(name).unwrap(), rows);
        assert_eq!(got.count, count, "{name}");
        for (got, wanted) in [(&got.sum, &sum), (&got.min, &min), (&got.max, &max), (&got.mean, &mean)] {
            assert!(alike(got, wanted), "{name}: {got:?}, not {wanted:?}");
        }
    }
    assert_eq!(selected.indices().unwrap(), rows.iter().map(|&row| row as u64).collect::<Vec<_>>());
}

/// The rows for which a condition says that it is true; `None` is neither true nor false.
fn passing(table: &Table, condition: impl Fn(&dyn Fn(&str) -> Value) -> Option<bool>) -> Vec<usize> {
    let row = |row: usize| condition(&|name: &str| table.column(name).unwrap().get(row)) == Some(true);
    (0..table.len()).filter(|&at| row(at)).collect()
}

fn filters(frame: &FarFrame, table: &Table, bound: i64) {
    let less = |value: Value, than: f64| number(&value).map(|value| value < than);
    agrees(&frame.all(), table, &(0..table.len()).collect::<Vec<_>>());
    let rows = passing(table, |of| less(of("day"), bound as f64));
    agrees(&frame.filter(col("day").lt(bound)), table, &rows);
    let rows = passing(table, |of| less(of("fare"), bound as f64 * 0.37 - 11.0));
    agrees(&frame.filter(col("fare").lt(bound as f64 * 0.37 - 11.0)), table, &rows);
    let rows = passing(table, |of| less(of("fare"), bound as f64).map(|is| !is));
    agrees(&frame.filter(col("fare").lt(bound).not()), table, &rows);
    let range = col("cents").ge(-bound).and(col("cents").le(bound as f64 + 0.5)).and(col("cents").ne(3_u64));
    let rows = passing(table, |of| {
        number(&of("cents")).map(|value| -bound as f64 <= value && value <= bound as f64 + 0.5 && value != 3.0)
    });
    agrees(&frame.filter(range), table, &rows);
    // With nulls: a true side decides an or, a false one an and.
    let either = col("tip").gt(0.0).or(col("card").eq(true)) & !col("zone").eq("zone é");
    let rows = passing(table, |of| {
        let tip = number(&of("tip")).map(|tip| tip > 0.0);
        let card = if let Value::Bool(card) = of("card") { Some(card) } else { None };
        let zone = if let Value::Text(zone) = of("zone") { Some(zone != "zone é") } else { None };
        let either = match (tip, card) {
            (Some(true), _) | (_, Some(true)) => Some(true),
            (Some(false), Some(false)) => Some(false),
            _ => None,
        };
        match (either, zone) {
            (Some(false), _) | (_, Some(false)) => Some(false),
            (Some(true), Some(true)) => Some(true),
            _ => None,
        }
    });
    agrees(&frame.filter(either.clone()), table, &rows);
    let collected = frame.filter(either.clone()).collect().unwrap();
    assert_eq!(collected.rows(0..rows.len()).unwrap(), plain_rows(table, &rows));
    let first = &rows[..rows.len().min(7)];
    assert_eq!(frame.filter(either).head(7).unwrap(), plain_rows(table, first));
    let rows = passing(table, |of| Some(of("zone") == Value::Null || of("tip") != Value::Null));
    agrees(&frame.filter(col("zone").is_null() | col("tip").not_null()), table, &rows);
}

fn groups(frame: &FarFrame, table: &Table) {
    for keys in [&["day"][..], &["card", "zone"], &["zone"], &["card"], &["id"]] {
        let aggs =
            [Agg::sum("fare"), Agg::min("tip"), Agg::max("cents"), Agg::mean("id"), Agg::count("tip"), Agg::rows()];
        let got = frame.filter(col("cents").gt(-400)).group(keys).of(&aggs).unwrap();
        let mut groups: Vec<(Vec<Value>, Vec<usize>)> = Vec::new();
        for row in passing(table, |of| number(&of("cents")).map(|cents| cents > -400.0)) {
            let key: Vec<Value> = keys.iter().map(|key| table.column(key).unwrap().get(row)).collect();
            match groups.iter_mut().find(|(other, _)| *other == key) {
                Some((_, rows)) => rows.push(row),
                None => groups.push((key, vec![row])),
            }
        }
        assert_eq!(got.len(), groups.len());
        let of = |name: &str, rows: &[usize]| {
            totals(&chosen(table.column(name).unwrap(), rows), &(0..rows.len()).collect::<Vec<_>>())
        };
        for (n, (key, rows)) in groups.iter().enumerate() {
            let mut wanted = key.clone();
            wanted.push(totals(table.column("fare").unwrap(), rows).1);
            wanted.extend([of("tip", rows).2, of("cents", rows).3, of("id", rows).4]);
            wanted.extend([Value::U64(of("tip", rows).0), Value::U64(rows.len() as u64)]);
            let row = got.row(n);
            assert!(
                row.len() == wanted.len() && row.iter().zip(&wanted).all(|(a, b)| alike(a, b)),
                "{row:?}, not {wanted:?}"
            );
        }
    }
}

fn sorts_and_takes(frame: &FarFrame, table: &Table, seed: u64) {
    let mut rows: Vec<usize> = (0..table.len()).collect();
    let key = |name: &str, row: usize| table.column(name).unwrap().get(row);
    let compare = |name: &str, a: usize, b: usize, down: bool| {
        let order = match (key(name, a), key(name, b)) {
            (Value::Null, Value::Null) => return Ordering::Equal,
            (Value::Null, _) => return Ordering::Greater,
            (_, Value::Null) => return Ordering::Less,
            (Value::Text(a), Value::Text(b)) => a.cmp(&b),
            (a, b) => {
                let (a, b) = (number(&a).unwrap(), number(&b).unwrap());
                a.partial_cmp(&b).unwrap_or_else(|| a.is_nan().cmp(&b.is_nan()))
            }
        };
        if down { order.reverse() } else { order }
    };
    let by = [("zone", Order::Descending), ("tip", Order::Descending), ("day", Order::Ascending)];
    rows.sort_by(|&a, &b| {
        by.iter().fold(Ordering::Equal, |order, &(name, how)| {
            order.then_with(|| compare(name, a, b, how == Order::Descending))
        })
    });
    let order = frame.sort_index(&by).unwrap();
    assert_eq!(order, rows.iter().map(|&row| row as u64).collect::<Vec<_>>());
    let mut draw = Draw(seed);
    let some: Vec<u64> = (0..table.len().min(700)).map(|_| draw.next(table.len() as u64)).collect();
    let wanted = plain_rows(table, &some.iter().map(|&row| row as usize).collect::<Vec<_>>());
    assert_eq!(frame.gather(&some).unwrap(), wanted);
    let taken = frame.take(&some).unwrap();
    assert_eq!(taken.head(usize::MAX).unwrap(), wanted);
    let (from, until) = (table.len() / 3, table.len() / 2);
    assert_eq!(frame.rows(from..until).unwrap(), plain_rows(table, &(from..until).collect::<Vec<_>>()));
}

fn joins(heap: &Heap, frame: &FarFrame, table: &Table, seed: u64) {
    let days = Table::new([
        ("cents", vec![1.5, f64::NAN, 3.5, 4.5, 5.5].into()),
        ("day", vec![Some(3), Some(90), Some(3), None, Some(-2)].into()),
        ("name", vec!["a", "b", "c", "d", "e"].into()),
    ]);
    let (days, zones) = (days.unwrap(), plain_rows(&trips(40, seed ^ 1), &(0..40).collect::<Vec<_>>()));
    for (right, on) in [(days, "day"), (zones, "zone")] {
        let far = heap.frame(&right).unwrap();
        for how in [Join::Inner, Join::Left] {
            let got = frame.join(&far, on, how).unwrap();
            let (mut left, mut partners) = (Vec::new(), Vec::new());
            for row in 0..table.len() {
                let key = table.column(on).unwrap().get(row);
                let with =
                    (0..right.len()).filter(|&other| key != Value::Null && right.column(on).unwrap().get(other) == key);
                let before = left.len();
                with.for_each(|other| {
                    left.push(row);
                    partners.push(other);
                });
                if left.len() == before && how == Join::Left {
                    left.push(row);
                    partners.push(usize::MAX);
                }
            }
            let mut columns: Vec<(String, Series)> = plain_rows(table, &left).columns().to_vec();
            for (name, series) in right.columns().iter().filter(|(name, _)| name != on) {
                let is_taken = table.column(name).is_ok();
                let name = if is_taken { format!("{name}_right") } else { name.clone() };
                // Behind the end, a series says null.
                columns.push((name, chosen(series, &partners)));
            }
            assert_eq!(got.rows(0..got.len()).unwrap(), Table::new(columns).unwrap(), "{on} {how:?}");
        }
    }
}

fn all_agree(node: &Node, way: Transport, cases: u32) {
    let config = ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() };
    let sizes = prop_oneof![0..5usize, 500..530usize, Just(PART), 9000..20_000usize];
    let drawn = (sizes, any::<u64>(), 1..4usize, 0..400i64, 64..400usize);
    proptest::test_runner::TestRunner::new(config)
        .run(&drawn, |(rows, seed, pieces, bound, local)| {
            let table = trips(rows, seed);
            let heap = heap(node, way, local);
            let frame = frame(&heap, &table, pieces);
            filters(&frame, &table, bound);
            groups(&frame, &table);
            if rows > 0 {
                sorts_and_takes(&frame, &table, seed);
            }
            joins(&heap, &frame, &table, seed);
            Ok(())
        })
        .unwrap();
}

/// One key in all rows: ten million pairs, of which near memory holds a part at a time.
#[test]
fn a_join_with_one_key_in_all_rows_holds_no_more_than_a_part() {
    const ALONE: &str = "FARMEM_TEST_ALONE";
    if std::env::var_os(ALONE).is_none() {
        // A process of its own, because its memory is looked at.
        let mut alone = std::process::Command::new(std::env::current_exe().unwrap());
        alone.args(["--exact", "a_join_with_one_key_in_all_rows_holds_no_more_than_a_part"]).env(ALONE, "1");
        let ended = alone.output().unwrap();
        assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stdout));
        return;
    }
    let node = node();
    let heap = heap(&node, Transport::Shm, 400);
    let of = |rows: usize| heap.frame(&Table::new([("same", vec![true; rows].into())]).unwrap()).unwrap();
    let (left, right) = (of(512), of(20_000));
    let peak = || {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<usize>().unwrap()
    };
    let before = peak();
    let joined = left.join(&right, "same", Join::Inner).unwrap();
    assert_eq!(joined.len(), 512 * 20_000);
    // The pairs alone are 160 MB.
    // The kernel adds up a process's pages by parts: what it says may be less than before.
    let took = peak().saturating_sub(before);
    assert!(took < 40 << 10, "{took} KiB");
}

#[test]
fn frames_are_as_plain_rows_over_shm() {
    all_agree(&node(), Transport::Shm, 2);
}

#[test]
fn frames_are_as_plain_rows_over_tcp() {
    all_agree(&node(), Transport::Tcp, 2);
}

#[test]
fn frames_are_as_plain_rows_at_a_node_that_computes() {
    let node = computing();
    all_agree(&node, Transport::Tcp, 3);
    assert!(node.nic().computed.calls.load(Relaxed) > 10);
}

/// Groups by their node and here say the same, to the last bit, and where they are few the columns
/// stay at the node.
#[test]
fn groups_stay_at_the_node() {
    let (there, here) = (computing(), node());
    let rows = 200_000;
    let mut draw = Draw(3);
    let drawn = |most: u64, draw: &mut Draw| (0..rows).map(|_| draw.next(most)).collect::<Vec<_>>();
    let day: Vec<i32> = drawn(60, &mut draw).into_iter().map(|day| day as i32 - 7).collect();
    let fare: Vec<f64> = drawn(9000, &mut draw).into_iter().map(|fare| fare as f64 * 0.37 - 99.0).collect();
    let (many, cents) = (drawn(5000, &mut draw), drawn(u64::MAX, &mut draw));
    let table =
        Table::new([("day", day.into()), ("fare", fare.into()), ("many", many.into()), ("cents", cents.into())]);
    let table = table.unwrap();
    let outcome = |node: &Node| {
        let heap = heap(node, Transport::Tcp, 64);
        let frame = heap.frame(&table).unwrap();
        let before = (node.nic().tally.read_bytes.load(Relaxed), node.nic().computed.calls.load(Relaxed));
        let aggs = [Agg::mean("fare"), Agg::sum("day"), Agg::max("fare"), Agg::rows(), Agg::count("fare")];
        let few = frame.filter(col("fare").lt(1000.0)).group(&["day"]).of(&aggs).unwrap();
        let read = node.nic().tally.read_bytes.load(Relaxed) - before.0;
        let called = node.nic().computed.calls.load(Relaxed) - before.1;
        // The first alone: its sums fit. The others are looked at here: too many groups, and sums
        // that may wrap.
        let rest = [
            frame.group(&["day"]).of(&[Agg::rows()]).unwrap(),
            frame.group(&["many"]).of(&[Agg::sum("fare")]).unwrap(),
            frame.group(&["day"]).of(&[Agg::max("cents"), Agg::mean("cents")]).unwrap(),
        ];
        (few, rest, read, called, node.nic().computed.ns.load(Relaxed))
    };
    let (few, rest, read, called, ns) = outcome(&there);
    let (few_here, rest_here, read_here, ..) = outcome(&here);
    assert_eq!((few.len(), rest[1].len()), (60, 5000));
    assert!(few == few_here && rest == rest_here);
    assert!(called > 20, "{called} calls");
    // On a machine so slow that calls are late, their bytes come.
    let is_slow = ns / called > 300_000;
    assert!(is_slow || read < read_here / 2, "{read} of {read_here} bytes by {called} calls");
}

/// A sum at the node moves less than a twentieth of the bytes.
#[test]
fn sums_stay_at_the_node() {
    let node = computing();
    let heap = heap(&node, Transport::Tcp, 64);
    let rows = 400_000;
    let days: Vec<i32> = (0..rows).map(|n| n % 365).collect();
    let fares: Vec<f64> = (0..rows).map(|n| f64::from(n) * 0.01).collect();
    let by_part = |fares: &[f64], days: &[i32]| {
        fares.iter().zip(days).filter(|(_, day)| **day < 90).fold(0.0, |sum, (fare, _)| sum + fare)
    };
    let wanted = fares.chunks(PART).zip(days.chunks(PART)).fold(0.0, |sum, (fares, days)| sum + by_part(fares, days));
    let table = Table::new([("day", days.into()), ("fare", fares.into())]).unwrap();
    let frame = heap.frame(&table).unwrap();
    let before = node.nic().tally.read_bytes.load(Relaxed);
    assert_eq!(frame.filter(col("day").lt(90)).sum("fare").unwrap(), Value::F64(wanted));
    let moved = node.nic().tally.read_bytes.load(Relaxed) - before;
    assert!(moved * 20 < 12 * rows as u64, "{moved} bytes");
    let again = frame.filter(col("day").lt(90)).group(&["day"]).of(&[Agg::rows()]).unwrap();
    assert_eq!(again.len(), 90);
}

#[test]
fn errors_name_the_column() {
    let node = node();
    let heap = heap(&node, Transport::Shm, 64);
    let table = trips(20, 1);
    let frame = heap.frame(&table).unwrap();
    let said = |result: Result<Value, Error>| result.unwrap_err().to_string();
    let all = "id, day, fare, tip, cents, card, zone";
    assert_eq!(said(frame.all().sum("fares")), format!("there is no column \"fares\": there are {all}"));
    assert_eq!(
        said(frame.filter(col("dya").lt(3)).sum("fare")),
        format!("there is no column \"dya\": there are {all}")
    );
    assert_eq!(said(frame.all().sum("zone")), "column \"zone\" is text: numbers and bools are summed");
    let text = said(frame.filter(col("zone").lt(3)).sum("fare"));
    assert_eq!(text, "column \"zone\" is text, and cannot be compared so with I64(3)");
    assert!(said(frame.filter(col("day").eq(Value::Null)).sum("fare")).contains("is_null()"));
    let by_float = frame.group(&["fare"]).of(&[Agg::rows()]).unwrap_err().to_string();
    assert!(by_float.starts_with("column \"fare\" is f64"), "{by_float}");
    assert!(matches!(frame.rows(3..21), Err(Error::Index { index: 21, len: 20 })));
    assert!(matches!(frame.take(&[20]), Err(Error::Index { index: 20, len: 20 })));
    let large = heap.frame(&Table::new([("n", vec![i64::MAX, 1].into())]).unwrap()).unwrap();
    assert_eq!(said(large.all().sum("n")), "column \"n\" has a sum beyond 64 bits");
    let twice = Table::new([("n", vec![1_i64].into()), ("n", vec![2_i64].into())]).unwrap_err();
    assert_eq!(twice.to_string(), "column \"n\" is there twice");
    let mut writer = heap.frame_writer();
    writer.append(&table).unwrap();
    let other = writer.append(&Table::new([("id", vec![1_i64].into())]).unwrap()).unwrap_err();
    assert_eq!(other.to_string(), "column \"id\" is u64 here, and \"id\" (i64) comes");
    let joined = frame.join(&large, "n", Join::Inner).unwrap_err();
    assert!(joined.to_string().starts_with("there is no column \"n\""), "{joined}");
}
