//! Reads records all over a large vector, sixteen known ahead, with hints. Prints the same wherever
//! it runs.

const RECORDS: usize = 1 << 18;

fn main() {
    let mut records: Vec<[u64; 8]> = (0..RECORDS as u64).map(|i| [i, i * i, 0, 0, 0, 0, 0, i ^ 0xFF]).collect();
    farmem_hints::pattern(&records[..], farmem_hints::Pattern::Random);
    let (mut sum, mut at) = (0u64, 1u64);
    for round in 0..400 {
        let wanted: Vec<usize> = (0..16).map(|_| next(&mut at)).collect();
        let refs: Vec<&[u64; 8]> = wanted.iter().map(|&i| &records[i]).collect();
        farmem_hints::read_each(&refs);
        sum = refs.iter().fold(sum, |sum, record| sum.wrapping_mul(31).wrapping_add(record[1] ^ record[7]));
        let some = &mut records[wanted[0]..][..1];
        farmem_hints::write(some);
        some[0][2] += round;
        if round % 8 == 0 {
            farmem_hints::page_out(&records[wanted[1] / 2..][..4096]);
            farmem_hints::cold(&records[..1000]);
        }
    }
    println!("{sum} {}", records.iter().map(|record| record[2]).sum::<u64>());
}

/// Numbers all over the records.
fn next(at: &mut u64) -> usize {
    *at = at.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
    (*at >> 33) as usize % (RECORDS - 4096)
}
