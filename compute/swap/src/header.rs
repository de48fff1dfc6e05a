//! The first page of a swap device, as `mkswap` writes it. Pure.

use farmem_protocol::nbd::PAGE;

/// The header of a device of `pages` pages, with this id and a label for people.
///
/// ```text
///  0       1024      1028        1032       1036   1052    1068          4086
///  | 0 …   | version | last page | bad pages | uuid | label | 0 …        | SWAPSPACE2 |
/// ```
pub fn page(pages: u32, uuid: [u8; 16], label: &str) -> [u8; PAGE as usize] {
    let mut page = [0; PAGE as usize];
    page[1024..1028].copy_from_slice(&1u32.to_ne_bytes());
    page[1028..1032].copy_from_slice(&(pages - 1).to_ne_bytes());
    page[1036..1052].copy_from_slice(&uuid);
    let label = &label.as_bytes()[..label.len().min(15)];
    page[1052..1052 + label.len()].copy_from_slice(label);
    page[4086..].copy_from_slice(b"SWAPSPACE2");
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By util-linux, where it is there.
    #[test]
    fn a_header_is_what_mkswap_writes() {
        let file = std::env::temp_dir().join(format!("farmem-header-{}", std::process::id()));
        let pages = 64u32;
        std::fs::write(&file, vec![0; pages as usize * 4096]).unwrap();
        let made = std::process::Command::new("mkswap")
            .env("PATH", "/usr/sbin:/sbin:/usr/bin:/bin")
            .args(["--label", "farmem", "--uuid", "01020304-0506-0708-090a-0b0c0d0e0f10"])
            .arg(&file)
            .output();
        let theirs = std::fs::read(&file).unwrap();
        let _ = std::fs::remove_file(&file);
        match made {
            Ok(made) if made.status.success() => {}
            other => return println!("skipped: no mkswap: {other:?}"),
        }
        let uuid = std::array::from_fn(|i| i as u8 + 1);
        assert!(page(pages, uuid, "farmem")[..] == theirs[..4096]);
    }
}
