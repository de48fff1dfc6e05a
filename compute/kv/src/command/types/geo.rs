//! Places on the earth: GEOADD, GEOSEARCH and their relatives.
//!
//! A place is a member of a sorted set. Its score is a number of 52 bits: longitude and latitude by
//! 26 bits each, whose bits take turns. A search looks at every member, because a set is read as a
//! whole anyway.

use super::places::Places;
use super::sorted::{Member, flat, members, names, sort};
use super::{put_at, sorted};
use crate::command::args::{float, int, is};
use crate::command::{Answered, Call, Fail};
use crate::object::Type;
use crate::resp::Reply;
use std::rc::Rc;

const STEPS: u32 = 26;
const LONGITUDE: f64 = 180.0;
/// Beyond it the projection of the world as a square ends.
const LATITUDE: f64 = 85.051_128_78;
const RADIUS_M: f64 = 6_372_797.560_856;

/// Longitude and latitude, in degrees.
type Place = (f64, f64);

/// Spreads 32 bits to the even places of 64.
fn spread(bits: u32) -> u64 {
    (0..32).fold(0, |all, n| all | u64::from(bits >> n & 1) << (2 * n))
}

fn gather(bits: u64) -> u32 {
    (0..32).fold(0, |all, n| all | ((bits >> (2 * n) & 1) as u32) << n)
}

/// The number of a place, for latitudes up to `latitude`.
fn number((longitude, latitude): Place, most: f64) -> u64 {
    let part = |at: f64, most: f64| ((at + most) / (2.0 * most) * f64::from(1 << STEPS)) as u32;
    spread(part(latitude, most)) | spread(part(longitude, LONGITUDE)) << 1
}

/// A number that no place has is taken as redis on x86-64 takes it, and its place is at the edge.
fn place(score: f64) -> Place {
    const HALF: f64 = (1u64 << 63) as f64;
    let bits = match score {
        _ if score >= 2.0 * HALF => 0,
        _ if score >= HALF => score as u64,
        _ => score as i64 as u64,
    };
    let middle = |bits: u32, most: f64| {
        let at = |bits: f64| -most + bits / f64::from(1 << STEPS) * (2.0 * most);
        ((at(f64::from(bits)) + at(f64::from(bits) + 1.0)) / 2.0).clamp(-most, most)
    };
    (middle(gather(bits >> 1), LONGITUDE), middle(gather(bits), LATITUDE))
}

/// Whether a score is that of a place: a search looks among those alone.
fn is_place(score: f64) -> bool {
    (0.0..(1u64 << (2 * STEPS)) as f64).contains(&score)
}

fn along_meridian(one: f64, other: f64) -> f64 {
    RADIUS_M * (other.to_radians() - one.to_radians()).abs()
}

/// Between two places, in meters.
fn distance(one: Place, other: Place) -> f64 {
    let v = ((other.0.to_radians() - one.0.to_radians()) / 2.0).sin();
    if v == 0.0 {
        return along_meridian(one.1, other.1);
    }
    let (from, to) = (one.1.to_radians(), other.1.to_radians());
    let u = ((to - from) / 2.0).sin();
    2.0 * RADIUS_M * (u * u + from.cos() * to.cos() * v * v).sqrt().asin()
}

/// The region of a search around its middle, in meters.
#[derive(Clone, Copy)]
enum Shape {
    Circle(f64),
    /// Width and height.
    Box(f64, f64),
}

impl Shape {
    /// The distance of a place in it.
    fn holds(self, middle: Place, at: Place) -> Option<f64> {
        let far = distance(middle, at);
        let holds = match self {
            Shape::Circle(radius) => far <= radius,
            Shape::Box(width, height) => {
                along_meridian(at.1, middle.1) <= height / 2.0 && distance(at, (middle.0, at.1)) <= width / 2.0
            }
        };
        holds.then_some(far)
    }
}

fn unit(text: &[u8]) -> Result<f64, Fail> {
    let known = [("m", 1.0), ("km", 1000.0), ("ft", 0.3048), ("mi", 1609.34)];
    let found = known.iter().find(|(name, _)| is(text, name));
    found.map(|(_, meters)| *meters).ok_or_else(|| Fail::new("unsupported unit provided. please use M, KM, FT, MI"))
}

fn coordinates(longitude: &[u8], latitude: &[u8]) -> Result<Place, Fail> {
    let (longitude, latitude) = (float(longitude)?, float(latitude)?);
    if longitude.abs() > LONGITUDE || latitude.abs() > LATITUDE {
        return Err(Fail::new(format!("invalid longitude,latitude pair {longitude:.6},{latitude:.6}")));
    }
    Ok((longitude, latitude))
}

pub async fn run(name: &str, call: &Call) -> Answered {
    match name {
        "geoadd" => add(call).await,
        "geodist" => {
            let meters = if call.count() == 5 { unit(call.arg(4))? } else { 1.0 };
            if call.count() > 5 {
                return Err(Fail::syntax());
            }
            let all = members(call, call.arg(1)).await?;
            let ends = find(&all, call.arg(2)).zip(find(&all, call.arg(3)));
            Ok(ends.map_or(Reply::Null, |(one, other)| far(distance(place(one), place(other)) / meters)))
        }
        "geohash" => {
            let told = |score: Option<f64>| Reply::maybe(score.map(|score| text(place(score))));
            Ok(Reply::Array(scores(call).await?.into_iter().map(told).collect()))
        }
        "geopos" => {
            let told = |score: Option<f64>| score.map_or(Reply::NullArray, |score| shown(call, place(score)));
            Ok(Reply::Array(scores(call).await?.into_iter().map(told).collect()))
        }
        _ => Search::of(name, call).await?.run(call).await,
    }
}

/// The scores of the members that a command names.
async fn scores(call: &Call) -> Result<Vec<Option<f64>>, Fail> {
    let all = members(call, call.arg(1)).await?;
    let wanted: Vec<&[u8]> = call.args[2..].iter().map(Vec::as_slice).collect();
    let places = Places::of(&wanted, names(&all));
    Ok(wanted.iter().map(|name| places.get(name).map(|at| all[at].0)).collect())
}

fn find(all: &[Member], name: &[u8]) -> Option<f64> {
    all.iter().find(|member| member.1 == name).map(|member| member.0)
}

fn far(distance: f64) -> Reply {
    Reply::bulk(format!("{distance:.4}"))
}

fn shown(call: &Call, (longitude, latitude): Place) -> Reply {
    let one = |degrees: f64| match call.version() >= 3 {
        true => Reply::Double(degrees),
        false => {
            let text = format!("{degrees:.17}");
            Reply::bulk(text.trim_end_matches('0').trim_end_matches('.'))
        }
    };
    Reply::Array(vec![one(longitude), one(latitude)])
}

/// A place as other services write it: 11 signs of 5 bits, the last of them without meaning.
fn text(at: Place) -> String {
    const SIGNS: &[u8; 32] = b"0123456789bcdefghjkmnpqrstuvwxyz";
    let bits = number(at, 90.0);
    let sign = |n: u32| if n == 10 { '0' } else { char::from(SIGNS[(bits >> (52 - (n + 1) * 5)) as usize & 31]) };
    (0..11).map(sign).collect()
}

async fn add(call: &Call) -> Answered {
    let mut n = 2;
    while ["nx", "xx", "ch"].iter().any(|option| is(call.arg(n), option)) {
        n += 1;
    }
    let places = call.args.get(n..).unwrap_or_default();
    let both = |options: &[Vec<u8>]| ["nx", "xx"].iter().all(|option| options.iter().any(|given| is(given, option)));
    if places.is_empty() || !places.len().is_multiple_of(3) || both(&call.args[2..n]) {
        return Err(Fail::syntax());
    }
    let mut args = vec![b"zadd".to_vec()];
    args.extend_from_slice(&call.args[1..n]);
    for triple in places.chunks_exact(3) {
        let at = coordinates(&triple[0], &triple[1])?;
        args.extend([number(at, LATITUDE).to_string().into_bytes(), triple[2].clone()]);
    }
    sorted::run("zadd", &Call { args: Rc::new(args), ..call.clone() }).await
}

/// GEOSEARCH, GEORADIUS and their relatives.
struct Search {
    /// The key of the places.
    key: Vec<u8>,
    /// `None`: the member in the middle was not there because the key was not.
    middle: Option<Place>,
    shape: Shape,
    meters: f64,
    /// In the order of the distance; the nearest last if false.
    order: Option<bool>,
    most: Option<usize>,
    any: bool,
    with: [bool; 3],
    /// Where the places are stored, and whether by their distance.
    store: Option<(Vec<u8>, bool)>,
}

impl Search {
    async fn of(name: &str, call: &Call) -> Result<Search, Fail> {
        let (radius, by_member) = (name.starts_with("georadius"), name.contains("bymember"));
        let stores = name == "geosearchstore";
        let key = call.arg(if stores { 2 } else { 1 }).to_vec();
        let (mut n, mut middle, mut shape) = (if stores { 3 } else { 2 }, None, None);
        let all = members(call, &key).await?;
        let mut meters = 1.0;
        let of_member = |name: &[u8]| match find(&all, name) {
            _ if all.is_empty() => Ok(None),
            Some(score) => Ok(Some(place(score))),
            None => Err(Fail::new("could not decode requested zset member")),
        };
        if radius {
            middle =
                Some(if by_member { of_member(call.arg(2))? } else { Some(coordinates(call.arg(2), call.arg(3))?) });
            n = if by_member { 3 } else { 4 };
            (shape, meters) = circle(call, n)?;
            n += 2;
        }
        let mut search = Search {
            key,
            middle: None,
            shape: Shape::Circle(0.0),
            meters,
            order: None,
            most: None,
            any: false,
            with: [false; 3],
            store: stores.then(|| (call.arg(1).to_vec(), false)),
        };
        while n < call.count() {
            let more = call.count() - n - 1;
            if !radius && is(call.arg(n), "frommember") && more > 0 {
                if middle.is_some() {
                    return Err(Fail::syntax());
                }
                (middle, n) = (Some(of_member(call.arg(n + 1))?), n + 2);
            } else if !radius && is(call.arg(n), "fromlonlat") && more > 1 {
                if middle.is_some() {
                    return Err(Fail::syntax());
                }
                (middle, n) = (Some(Some(coordinates(call.arg(n + 1), call.arg(n + 2))?)), n + 3);
            } else if !radius && is(call.arg(n), "byradius") && more > 1 {
                if shape.is_some() {
                    return Err(Fail::syntax());
                }
                ((shape, search.meters), n) = (circle(call, n + 1)?, n + 3);
            } else if !radius && is(call.arg(n), "bybox") && more > 2 {
                if shape.is_some() {
                    return Err(Fail::syntax());
                }
                ((shape, search.meters), n) = (rectangle(call, n + 1)?, n + 4);
            } else {
                n = search.option(name, call, n)?;
            }
        }
        search.middle = middle.ok_or_else(|| one_of("FROMMEMBER or FROMLONLAT", name))?;
        search.shape = shape.ok_or_else(|| one_of("BYRADIUS and BYBOX", name))?;
        if search.any && search.most.is_none() {
            return Err(Fail::new("the ANY argument requires COUNT argument"));
        }
        if search.store.is_some() && search.with.contains(&true) {
            let what = if stores { "GEOSEARCHSTORE" } else { "STORE option in GEORADIUS" };
            return Err(Fail::new(format!("{what} is not compatible with WITHDIST, WITHHASH and WITHCOORD options")));
        }
        Ok(search)
    }

    /// An option that all of the commands have; the place behind it.
    fn option(&mut self, name: &str, call: &Call, n: usize) -> Result<usize, Fail> {
        let more = call.count() - n - 1;
        let by_radius = name.starts_with("georadius") && !name.ends_with("_ro");
        match call.arg(n) {
            arg if is(arg, "withdist") => self.with[0] = true,
            arg if is(arg, "withhash") => self.with[1] = true,
            arg if is(arg, "withcoord") => self.with[2] = true,
            arg if is(arg, "asc") => self.order = Some(true),
            arg if is(arg, "desc") => self.order = Some(false),
            arg if is(arg, "any") => self.any = true,
            arg if is(arg, "count") && more > 0 => {
                let most = usize::try_from(int(call.arg(n + 1))?).ok().filter(|most| *most > 0);
                self.most = Some(most.ok_or_else(|| Fail::new("COUNT must be > 0"))?);
                return Ok(n + 2);
            }
            arg if name == "geosearchstore" && is(arg, "storedist") => {
                self.store.iter_mut().for_each(|store| store.1 = true);
            }
            arg if by_radius && (is(arg, "store") || is(arg, "storedist")) && more > 0 => {
                self.store = Some((call.arg(n + 1).to_vec(), is(arg, "storedist")));
                return Ok(n + 2);
            }
            _ => return Err(Fail::syntax()),
        }
        Ok(n + 1)
    }

    async fn run(&self, call: &Call) -> Answered {
        let all = members(call, &self.key).await?;
        let mut found = Vec::new();
        for (score, name) in all.into_iter().filter(|(score, _)| is_place(*score)) {
            if let Some(far) = self.middle.and_then(|middle| self.shape.holds(middle, place(score))) {
                found.push((far, score, name));
                if self.any && self.most == Some(found.len()) {
                    break;
                }
            }
        }
        match self.order.or((self.most.is_some() && !self.any).then_some(true)) {
            Some(true) => found.sort_by(|one, other| one.0.total_cmp(&other.0)),
            Some(false) => found.sort_by(|one, other| other.0.total_cmp(&one.0)),
            None => {}
        }
        found.truncate(self.most.unwrap_or(usize::MAX));
        if let Some((key, by_distance)) = &self.store {
            let stored = found
                .into_iter()
                .map(|(far, score, name)| (if *by_distance { far / self.meters } else { score }, name));
            let mut stored: Vec<Member> = stored.collect();
            sort(&mut stored);
            put_at(call, key, Type::SortedSet, &flat(&stored)).await?;
            return Ok(Reply::Int(stored.len() as i64));
        }
        let one = |(distance, score, name): &(f64, f64, Vec<u8>)| {
            let mut parts = vec![Reply::bulk(name.as_slice())];
            parts.extend(self.with[0].then(|| far(distance / self.meters)));
            parts.extend(self.with[1].then_some(Reply::Int(*score as i64)));
            parts.extend(self.with[2].then(|| shown(call, place(*score))));
            if parts.len() == 1 { parts.pop().unwrap_or(Reply::Null) } else { Reply::Array(parts) }
        };
        Ok(Reply::Array(found.iter().map(one).collect()))
    }
}

fn one_of(what: &str, name: &str) -> Fail {
    Fail::new(format!("exactly one of {what} can be specified for {name}"))
}

fn length(text: &[u8], what: &str) -> Result<f64, Fail> {
    float(text).map_err(|_| Fail::new(format!("need numeric {what}")))
}

fn circle(call: &Call, at: usize) -> Result<(Option<Shape>, f64), Fail> {
    let radius = length(call.arg(at), "radius")?;
    if radius < 0.0 {
        return Err(Fail::new("radius cannot be negative"));
    }
    let meters = unit(call.arg(at + 1))?;
    Ok((Some(Shape::Circle(radius * meters)), meters))
}

fn rectangle(call: &Call, at: usize) -> Result<(Option<Shape>, f64), Fail> {
    let (width, height) = (length(call.arg(at), "width")?, length(call.arg(at + 1), "height")?);
    if width < 0.0 || height < 0.0 {
        return Err(Fail::new("height or width cannot be negative"));
    }
    let meters = unit(call.arg(at + 2))?;
    Ok((Some(Shape::Box(width * meters, height * meters)), meters))
}

#[test]
fn places_are_found_again() {
    let palermo = (13.361_389, 38.115_556);
    let score = number(palermo, LATITUDE);
    assert_eq!(score, 3_479_099_956_230_698);
    let found = place(score as f64);
    assert!(distance(found, palermo) < 1.0, "{found:?}");
    let catania = place(number((15.087_269, 37.502_669), LATITUDE) as f64);
    assert_eq!(format!("{:.4}", distance(found, catania)), "166274.1516");
    assert_eq!((text(found), text(catania)), ("sqc8b49rny0".into(), "sqdtr74hyu0".into()));
}
