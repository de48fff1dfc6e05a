//! The memory that a store takes by pieces that grow with demand, beside grants of 1 GiB.

use crate::allocators::BESIDE;
use farmem_kit::report::Section;
use farmem_kit::table::Table;
use farmem_kv::layout::class_of;
use farmem_kv::shard::heap::Heap;

/// Bytes of the pieces that clients have after inserting a number of keys of 1 KiB, as the shipped
/// heap takes them.
fn pieces(keys: u64) -> u64 {
    let (mut heap, mut at) = (Heap::default(), 1 << 30);
    let bytes = (BESIDE + 1024) as u64;
    let class = class_of(bytes);
    for _ in 0..keys {
        if heap.take(class, bytes).is_none() {
            let piece = heap.piece_for(class, bytes);
            heap.add(at, piece, class);
            at += u64::from(piece);
            heap.take(class, bytes);
        }
    }
    heap.sizes().all
}

/// The table for a number of keys, and for each number of clients the share that is saved.
pub fn saved(records: u64) -> (Section, Vec<(u32, f64)>) {
    let mut table = Table::new(["clients", "pieces", "grants of 1 GiB", "saved"]);
    let mut shares = Vec::new();
    for clients in [16u32, 32, 64, 128, 512] {
        let (own, of_all) = (records / u64::from(clients), u64::from(clients));
        let each = pieces(own) * of_all;
        let grants = (own * (BESIDE as u64 + 1024)).next_multiple_of(1 << 30) * of_all;
        let share = 1.0 - each as f64 / grants as f64;
        shares.push((clients, share));
        let mib = |bytes: u64| format!("{} MiB", bytes >> 20);
        table.row([clients.to_string(), mib(each), mib(grants), format!("{:.1} %", share * 100.0)]);
    }
    (Section { title: format!("Memory of {records} inserted keys of 1 KiB"), table }, shares)
}
