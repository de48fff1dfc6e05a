//! `farmem track --find soft-dirty`, on a kernel that has soft-dirty bits: a writer of k lines a page is found to dirty
//! k lines of each of its pages in every window, by a tracker that reads only what these bits tell.

use farmem_protocol::addr::PAGE_BYTES;
use farmem_protocol::lines::LINE_BYTES;
use serde_json::Value;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

const PAGES: usize = 2000;
const FOUND: &str = "/tmp/found.json";

/// Writes to `k` lines of each page of an array, over and over, until it is killed.
pub fn write(k: usize) -> ! {
    // Larger than what malloc takes from its heap: a mapping of its own.
    let mut array = vec![0u8; (PAGES + 1) * PAGE_BYTES];
    let first = array.as_ptr().align_offset(PAGE_BYTES);
    let pages = &mut array[first..first + PAGES * PAGE_BYTES];
    loop {
        for page in pages.chunks_exact_mut(PAGE_BYTES) {
            page.chunks_exact_mut(LINE_BYTES).take(k).for_each(|line| line[7] = line[7].wrapping_add(1));
        }
        // Else the compiler may see that nobody reads it. And a count that comes round would look unchanged.
        std::hint::black_box(&mut *pages);
        std::thread::sleep(Duration::from_millis(31));
    }
}

/// Tracks such writers.
pub fn hold() -> Result<(), String> {
    for k in [1, 3, 64] {
        let mut writer = Command::new("farmem-rxe")
            .args(["writes", &k.to_string()])
            .stdin(Stdio::null())
            .spawn()
            .map_err(|e| e.to_string())?;
        // Its array is there.
        std::thread::sleep(Duration::from_secs(1));
        // A guest that stands still for a window has a writer that does not come round in it: another look, then.
        let mut held = track(&writer, k);
        for _ in 0..3 {
            held = held.or_else(|_| track(&writer, k));
        }
        let unharmed = matches!(writer.try_wait(), Ok(None));
        let _ = writer.kill();
        let _ = writer.wait();
        held?;
        if !unharmed {
            return Err("the writer did not outlive its tracker".into());
        }
    }
    Ok(())
}

fn track(writer: &Child, k: usize) -> Result<(), String> {
    let pid = writer.id().to_string();
    let status = Command::new("farmem")
        .args(["track", "--find", "soft-dirty", "--window", "2s", "--windows", "4", "--max-pause", "5s"])
        .args(["--json", FOUND, "--pid", &pid])
        .stdout(Stdio::null())
        .status()
        .map_err(|e| e.to_string())?;
    if !status.success() {
        return Err(format!("farmem track: {status}"));
    }
    let text = std::fs::read_to_string(FOUND).map_err(|e| e.to_string())?;
    let found: Value = serde_json::from_str(&text).map_err(|e| e.to_string())?;
    let windows = found["pooled"]["windows"].as_u64().unwrap_or(0);
    let mappings = found["pooled"]["mappings"].as_array().into_iter().flatten();
    let array = mappings.max_by_key(|mapping| mapping["dirty_pages"].as_u64()).ok_or("no mappings")?;
    let (pages, lines) = (array["dirty_pages"].as_u64(), array["dirty_lines"].as_u64());
    println!("  {k} lines a page: {windows} windows, {pages:?} pages, {lines:?} lines");
    let all = windows * PAGES as u64;
    if windows < 3 || pages != Some(all) || lines != Some(all * k as u64) {
        return Err(format!("expected {all} pages and {} lines", all * k as u64));
    }
    Ok(())
}
