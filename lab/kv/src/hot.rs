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

/// The READs by which an owner finds out which of its objects were replaced.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Looks {
    /// The slot of each.
    Each,
    /// Slots that lie near each other together.
    Near,
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
            fronts: clients,
            keys: 1,
            operations,
            drawn: Keys::Uniform,
            reclaims: true,
            looks: Looks::Near,
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

/// The cost of reclamation in `case`, by the number of front ends and how they look.
///
/// # Errors
/// As [`run`].
pub fn reclamation(costs: &Costs, case: Case) -> Result<(Section, Vec<(Case, Came)>)> {
    let head = ["front ends", "reclamation", "updates a second", "of those without", "99 of 100 at most", "verbs"];
    let (mut table, mut came) = (Table::new(head), Vec::new());
    for fronts in [1, 2, 4, 8, 16, 32, case.clients] {
        let without = Case { reclaims: false, fronts, ..case };
        let kept = run(System::Farmem, without, costs)?;
        let mut some = vec![(without, kept)];
        for looks in [Looks::Near, Looks::Each, Looks::Told] {
            let case = Case { looks, fronts, ..case };
            some.push((case, run(System::Farmem, case, costs)?));
        }
        for (case, found) in &some {
            let name = match (case.reclaims, case.looks) {
                (false, _) => "none",
                (true, Looks::Near) => "an owner reads slots together",
                (true, Looks::Each) => "an owner reads each slot",
                (true, Looks::Told) => "an owner is told, at no cost",
            };
            table.row([
                fronts.to_string(),
                name.to_owned(),
                format!("{:.0}", found.rate),
                format!("{:.3} ×", found.rate / kept.rate),
                duration(found.p99),
                format!("{:.2}", found.verbs),
            ]);
        }
        came.extend(some);
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
            fronts: 2,
            keys: 2_000,
            operations: 150,
            drawn: Keys::Uniform,
            reclaims: true,
            looks: Looks::Near,
        };
        let (_, came) = reclamation(&Costs::shipped(), case).expect("what the ledger allows");
        let of = |fronts| {
            let some: Vec<Came> =
                came.iter().filter(|(case, _)| case.fronts == fronts).map(|(_, came)| *came).collect();
            [0, 1, 2, 3].map(|at: usize| some[at])
        };
        for fronts in [2, 16] {
            let [none, near, each, told] = of(fronts);
            // They meet each other's CAS at other moments.
            assert!((none.verbs - told.verbs).abs() < 0.1, "{came:?}");
            assert!(each.verbs > near.verbs && near.verbs > told.verbs - 0.1, "{came:?}");
            assert!(each.rate < near.rate, "{came:?}");
        }
        let [none, near, ..] = of(2);
        assert!(near.rate > 0.97 * none.rate, "{came:?}");
    }

    #[test]
    fn updates_of_one_key_do_not_collapse() {
        let (_, came) = one_key(&Costs::shipped(), true).expect("what the ledger allows");
        let alone = came[0].1.rate;
        assert!(came.iter().all(|(_, found)| found.rate > 0.9 * alone), "{came:?}");
    }
}
