//! Updates in virtual time that wait: for other clients of one key, and for the reclamation of memory.
//!
//! Both are questions to the store's model with farmem's allocator ([`crate::allocators`]).

use crate::allocators::{Came, Case, Places, run};
use crate::mix::Keys;
use anyhow::Result;
use farmem_alloc::sim::costs::Costs;
use farmem_alloc::systems::System;
use farmem_kit::report::Section;
use farmem_kit::table::{Table, duration};
use serde::Serialize;

/// The READs by which an owner finds out whether an object of its own was replaced.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Looks {
    /// Both buckets of the key.
    Buckets,
    /// The slot in which it was linked.
    Slot,
    /// Nothing: the owner is told at no cost, as a bound.
    Told,
}

/// Updates of one key by several clients.
///
/// # Errors
/// As [`run`].
pub fn one_key(costs: &Costs, quick: bool) -> Result<(Section, Vec<(Case, Came)>)> {
    let mut table = Table::new(["clients", "updates a second", "of one client's", "99 of 100 at most", "verbs"]);
    let (mut came, mut alone) = (Vec::new(), f64::NAN);
    for clients in [1u32, 2, 4, 8, 64] {
        let operations = (if quick { 2_000 } else { 20_000 } / clients).max(100);
        let case = Case {
            places: Places::Own,
            clients,
            keys: 1,
            operations,
            drawn: Keys::Uniform,
            reclaims: true,
            looks: Looks::Buckets,
        };
        let found = run(System::Farmem, case, costs)?;
        if clients == 1 {
            alone = found.rate;
        }
        table.row([
            clients.to_string(),
            format!("{:.0}", found.rate),
            format!("{:.2} ×", found.rate / alone),
            duration(found.p99),
            format!("{:.2}", found.verbs),
        ]);
        came.push((case, found));
    }
    Ok((Section { title: "Updates of one key, each object in a piece of its own".into(), table }, came))
}

/// The cost of reclamation in `case`, by how an owner looks its objects up.
///
/// # Errors
/// As [`run`].
pub fn reclamation(costs: &Costs, case: Case) -> Result<(Section, Vec<(Case, Came)>)> {
    let mut table = Table::new(["reclamation", "updates a second", "of those without", "99 of 100 at most", "verbs"]);
    let without = Case { reclaims: false, ..case };
    let kept = run(System::Farmem, without, costs)?;
    let mut came = vec![(without, kept)];
    for looks in [Looks::Buckets, Looks::Slot, Looks::Told] {
        let case = Case { looks, ..case };
        came.push((case, run(System::Farmem, case, costs)?));
    }
    for (case, found) in &came {
        let name = match (case.reclaims, case.looks) {
            (false, _) => "none",
            (true, Looks::Buckets) => "owners read both buckets",
            (true, Looks::Slot) => "owners read the slot",
            (true, Looks::Told) => "owners are told, at no cost",
        };
        table.row([
            name.to_owned(),
            format!("{:.0}", found.rate),
            format!("{:.3} ×", found.rate / kept.rate),
            duration(found.p99),
            format!("{:.2}", found.verbs),
        ]);
    }
    let title = format!("Updates of {} clients with and without reclamation, uniform keys", case.clients);
    Ok((Section { title, table }, came))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looking_is_what_reclamation_costs() {
        let case = Case {
            places: Places::Own,
            clients: 64,
            keys: 2_000,
            operations: 150,
            drawn: Keys::Uniform,
            reclaims: true,
            looks: Looks::Buckets,
        };
        let (_, came) = reclamation(&Costs::shipped(), case).expect("what the ledger allows");
        let [none, buckets, slot, told] = [0, 1, 2, 3].map(|at: usize| came[at].1);
        // They meet each other's CAS at other moments.
        assert!((none.verbs - told.verbs).abs() < 0.1, "{came:?}");
        assert!(buckets.verbs > slot.verbs && slot.verbs > told.verbs, "{came:?}");
        assert!(buckets.rate < slot.rate && slot.rate < told.rate, "{came:?}");
    }

    #[test]
    fn updates_of_one_key_do_not_collapse() {
        let (_, came) = one_key(&Costs::shipped(), true).expect("what the ledger allows");
        let alone = came[0].1.rate;
        assert!(came.iter().all(|(_, found)| found.rate > 0.9 * alone), "{came:?}");
    }
}
