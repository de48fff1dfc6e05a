//! A list that several processes write to, in a region: `counter REGION NODE...`.
//!
//! Each process adds one record. Root 0 counts, root 1 is the list's head. A record is
//! written before the head is swapped to it, so that nobody finds half of one.

use farmem::{Addr, Memory};

fn main() {
    let mut args = std::env::args().skip(1);
    let region = args.next().unwrap_or_else(|| "counter".to_owned());
    let nodes: Vec<String> = args.collect();
    if let Err(e) = count(&region, nodes) {
        eprintln!("counter: {e}");
        std::process::exit(1);
    }
}

fn count(region: &str, nodes: Vec<String>) -> farmem::Result<()> {
    let builder = nodes.into_iter().fold(Memory::builder(), farmem::Builder::node);
    let memory = builder.region(region).create(true).connect()?;
    let (count, head) = (memory.root(0), memory.root(1));
    let number = memory.fetch_add(count, 1)?;

    // A record: the next one's address, and who wrote it.
    let record = memory.alloc(4096)?;
    memory.write(record + 8, &number.to_le_bytes())?;
    let mut next = memory.load(head)?;
    loop {
        memory.write(record, &next.to_le_bytes())?;
        match memory.compare_swap(head, next, record.bits())? {
            found if found == next => break,
            found => next = found,
        }
    }

    let (mut records, mut at) = (0, memory.load(head)?);
    while let Some(record) = Addr::from_bits(at).filter(|record| !record.is_null()) {
        let mut bytes = [0; 8];
        memory.read(record, &mut bytes)?;
        at = u64::from_le_bytes(bytes);
        records += 1;
    }
    println!("process {number} finds {records} records");
    Ok(())
}
