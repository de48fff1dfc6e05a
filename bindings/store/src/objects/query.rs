//! A query about a frame, as JSON: `{"filter": ["lt", "day", 90], "op": "totals", "column":
//! "fare"}`.

use super::State;
use crate::error::Problem;
use farmem_objects::{Agg, Expr, Join, Order, Selected, Table, Value, col};
use serde_json::Value as Json;

/// A query.
pub struct Query(Json);

/// The answer to a query.
pub enum Answer {
    Table(Table),
    /// The number of a new frame.
    Frame(u64),
}

fn wrong(what: &str, got: &Json) -> Problem {
    Problem::invalid(format!("{what} is {got}"))
}

fn word<'a>(what: &str, of: &'a Json) -> Result<&'a str, Problem> {
    of.as_str().ok_or_else(|| wrong(what, of))
}

fn list<'a>(what: &str, of: &'a Json) -> Result<&'a [Json], Problem> {
    of.as_array().map(Vec::as_slice).ok_or_else(|| wrong(what, of))
}

fn count(what: &str, of: &Json) -> Result<usize, Problem> {
    of.as_u64().map(|n| n as usize).ok_or_else(|| wrong(what, of))
}

fn constant(of: &Json) -> Result<Value, Problem> {
    Ok(match of {
        Json::Bool(is) => (*is).into(),
        Json::String(text) => text.as_str().into(),
        Json::Number(number) => {
            let whole = number.as_i64().map(Value::from).or_else(|| number.as_u64().map(Value::from));
            whole.or_else(|| number.as_f64().map(Value::from)).ok_or_else(|| wrong("a constant", of))?
        }
        _ => return Err(wrong("a constant", of)),
    })
}

/// The most conditions within one another. Each takes a frame of the parser's stack.
const DEEP: usize = 100;

fn expr(of: &Json, depth: usize) -> Result<Expr, Problem> {
    if depth == DEEP {
        return Err(Problem::invalid(format!("a condition has more than {DEEP} others around it")));
    }
    let bad = || wrong("a condition", of);
    Ok(match list("a condition", of)? {
        [how, one, other] if how == "and" => expr(one, depth + 1)?.and(expr(other, depth + 1)?),
        [how, one, other] if how == "or" => expr(one, depth + 1)?.or(expr(other, depth + 1)?),
        [how, one] if how == "not" => expr(one, depth + 1)?.not(),
        [how, name] if how == "is_null" => col(word("a column", name)?).is_null(),
        [how, name, with] => {
            let (column, with) = (col(word("a column", name)?), constant(with)?);
            match how.as_str() {
                Some("lt") => column.lt(with),
                Some("le") => column.le(with),
                Some("gt") => column.gt(with),
                Some("ge") => column.ge(with),
                Some("eq") => column.eq(with),
                Some("ne") => column.ne(with),
                _ => return Err(bad()),
            }
        }
        _ => return Err(bad()),
    })
}

fn agg(of: &Json) -> Result<Agg, Problem> {
    let parts = list("an aggregate", of)?;
    let column = || word("a column", parts.get(1).unwrap_or(&Json::Null));
    Ok(match parts.first().and_then(Json::as_str) {
        Some("sum") => Agg::sum(column()?),
        Some("min") => Agg::min(column()?),
        Some("max") => Agg::max(column()?),
        Some("mean") => Agg::mean(column()?),
        Some("count") => Agg::count(column()?),
        Some("rows") => Agg::rows(),
        _ => return Err(wrong("an aggregate", of)),
    })
}

/// A column of one value, in the value's type.
fn single(value: Value) -> farmem_objects::Series {
    match value {
        Value::U64(value) => vec![value].into(),
        Value::I64(value) => vec![value].into(),
        Value::F64(value) => vec![value].into(),
        Value::Bool(value) => vec![value].into(),
        Value::Text(text) => vec![text].into(),
        Value::Null => vec![None::<f64>].into(),
    }
}

fn totals(selected: &Selected<'_>, column: &str) -> Result<Table, Problem> {
    let totals = selected.totals(column)?;
    let columns = [
        ("count", single(totals.count.into())),
        ("sum", single(totals.sum)),
        ("min", single(totals.min)),
        ("max", single(totals.max)),
        ("mean", single(totals.mean)),
    ];
    Ok(Table::new(columns)?)
}

impl Query {
    pub fn parse(text: &str) -> Result<Query, Problem> {
        serde_json::from_str(text).map(Query).map_err(|e| Problem::invalid(format!("the query is no JSON: {e}")))
    }

    pub fn answer(&self, state: &mut State, frame: u64) -> Result<Answer, Problem> {
        let of = &self.0;
        let right = of["right"].as_u64();
        let whole = state.frame(frame)?;
        let selected = match &of["filter"] {
            Json::Null => whole.all(),
            condition => whole.filter(expr(condition, 0)?),
        };
        let words = |what: &str| -> Result<Vec<&str>, Problem> {
            list(what, &of[what])?.iter().map(|one| word(what, one)).collect()
        };
        let made = match word("op", &of["op"])? {
            "len" => return Ok(Answer::Table(Table::new([("len", single((whole.len() as u64).into()))])?)),
            "count" => return Ok(Answer::Table(Table::new([("count", single(selected.count()?.into()))])?)),
            "totals" => return Ok(Answer::Table(totals(&selected, word("column", &of["column"])?)?)),
            "head" => return Ok(Answer::Table(selected.head(count("n", &of["n"])?)?)),
            "rows" => {
                let (from, until) = (count("from", &of["from"])?, count("until", &of["until"])?);
                return Ok(Answer::Table(whole.rows(from..until)?));
            }
            "group" => {
                let aggs: Vec<Agg> = list("aggs", &of["aggs"])?.iter().map(agg).collect::<Result<_, _>>()?;
                return Ok(Answer::Table(selected.group(&words("keys")?).of(&aggs)?));
            }
            "collect" => selected.collect()?,
            "take" => {
                let rows = list("rows", &of["rows"])?.iter().map(|row| count("a row", row).map(|row| row as u64));
                whole.take(&rows.collect::<Result<Vec<u64>, _>>()?)?
            }
            "sort" => {
                let is_down = of["descending"] == true;
                let how = if is_down { Order::Descending } else { Order::Ascending };
                let by: Vec<(&str, Order)> = words("by")?.into_iter().map(|name| (name, how)).collect();
                whole.sort(&by)?
            }
            "join" => {
                let right = state.frame(right.unwrap_or_default())?;
                let how = match word("how", &of["how"])? {
                    "inner" => Join::Inner,
                    "left" => Join::Left,
                    other => return Err(Problem::invalid(format!("a join is inner or left, and not {other:?}"))),
                };
                whole.join(right, word("on", &of["on"])?, how)?
            }
            other => return Err(Problem::invalid(format!("there is no operation {other:?}"))),
        };
        let number = state.number();
        state.frames.insert(number, made);
        Ok(Answer::Frame(number))
    }
}
