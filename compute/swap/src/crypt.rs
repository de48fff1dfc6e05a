//! Encryption of swapped pages: dm-crypt between the kernel's swap and its NBD client, with a
//! random key that is never stored.
//!
//! ```text
//!  kernel: swap ── /dev/dm-N (farmem-nbdI) ── encrypts ── /dev/nbdI ── TCP ──► node
//! ```
//!
//! The device mapper's ioctls make the device; no program is needed. The key is in the kernel
//! alone, and gone with the device. Slots keep their numbers, and TRIM passes through. So the node
//! learns which slots are in use, and nothing of their bytes.

use crate::device::Device;
use crate::mapper::{HEAD, Mapper};
use farmem_protocol::nbd::PAGE;
use farmem_sys::process;
use std::fs;
use std::io;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

/// AES of 256 bits in XTS takes two keys of 32 bytes.
const KEY_BYTES: usize = 64;
/// Bytes of a sector, as the device mapper counts.
const SECTOR: u64 = 512;
/// Asks the kernel to overwrite what it has copied of a message.
const SECRET: u32 = 1 << 15;
/// Times that a removal is tried: udev may be looking at the device.
const TRIES: u32 = 50;

const CREATE: u8 = 3;
const REMOVE: u8 = 4;
const RESUME: u8 = 6;
const LOAD: u8 = 9;

fn name(device: Device) -> String {
    format!("farmem-{}", device.name())
}

/// The device that encrypts for this one, if there is one.
pub fn find(device: Device) -> Option<PathBuf> {
    let devices = fs::read_dir("/sys/block").ok()?.flatten();
    let ours = |entry: &fs::DirEntry| {
        fs::read_to_string(entry.path().join("dm/name")).is_ok_and(|found| found.trim_end() == name(device))
    };
    let found = devices.into_iter().find(ours)?;
    Some(PathBuf::from("/dev").join(found.file_name()))
}

/// Makes the device that encrypts for `/dev/nbdN`, of `size` bytes, with a new key.
///
/// # Errors
/// The kernel has no dm-crypt, or refuses.
pub fn begin(device: Device, size: u64) -> io::Result<PathBuf> {
    // Best effort: the next call's error names a missing module.
    let _ = Command::new("modprobe").args(["-a", "dm_crypt", "xts", "ecb"]).output();
    let mapper = Mapper::open()?;
    mapper.ask(CREATE, &mut message(device, 0, None))?;
    let made = key().and_then(|key| {
        let mut load = message(device, SECRET, Some((size / SECTOR, &parameters(device, &key))));
        let loaded = mapper.ask(LOAD, &mut load);
        load.fill(0);
        loaded
    });
    let made = made.and_then(|()| mapper.ask(RESUME, &mut message(device, 0, None)));
    let made = made.and_then(|()| find(device).ok_or_else(|| io::ErrorKind::NotFound.into()));
    made.inspect_err(|_| {
        let _ = mapper.ask(REMOVE, &mut message(device, 0, None));
    })
}

/// Removes the device, and the key with it.
pub fn end(device: Device) -> io::Result<()> {
    if find(device).is_none() {
        return Ok(());
    }
    let mapper = Mapper::open()?;
    let mut removed = Ok(());
    for _ in 0..TRIES {
        removed = mapper.ask(REMOVE, &mut message(device, 0, None));
        match &removed {
            Err(e) if e.raw_os_error() == Some(libc::EBUSY) => std::thread::sleep(Duration::from_millis(20)),
            _ => break,
        }
    }
    removed
}

fn key() -> io::Result<[u8; KEY_BYTES]> {
    let mut key = [0; KEY_BYTES];
    process::random_bytes(&mut key)?;
    Ok(key)
}

/// dm-crypt's parameters: cipher, key, offset of the first sector's number, device, its offset, and
/// options.
fn parameters(device: Device, key: &[u8; KEY_BYTES]) -> String {
    let digits: String = key.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("aes-xts-plain64 {digits} 0 {} 0 2 allow_discards sector_size:{PAGE}", device.path().display())
}

/// A message to the device mapper about the device. `table`: one target, its sectors and
/// parameters.
///
/// ```text
///  0        12     16      20        28      40    48      176    312      320       336     352
///  | 4.0.0 | size | start | targets | flags | dev | name | uuid | sector, length | next | crypt | parameters, 0, to 8 |
/// ```
fn message(device: Device, flags: u32, table: Option<(u64, &str)>) -> Vec<u8> {
    let mut bytes = vec![0; HEAD];
    bytes[..4].copy_from_slice(&4u32.to_ne_bytes());
    bytes[16..20].copy_from_slice(&(HEAD as u32).to_ne_bytes());
    bytes[28..32].copy_from_slice(&flags.to_ne_bytes());
    let name = name(device);
    bytes[48..48 + name.len()].copy_from_slice(name.as_bytes());
    if let Some((sectors, parameters)) = table {
        bytes[20..24].copy_from_slice(&1u32.to_ne_bytes());
        let begins = bytes.len();
        bytes.extend_from_slice(&0u64.to_ne_bytes());
        bytes.extend_from_slice(&sectors.to_ne_bytes());
        bytes.extend_from_slice(&0u32.to_ne_bytes());
        let len = (begins + 40 + parameters.len() + 1).next_multiple_of(8) - begins;
        bytes.extend_from_slice(&(len as u32).to_ne_bytes());
        bytes.extend_from_slice(b"crypt\0\0\0\0\0\0\0\0\0\0\0");
        bytes.extend_from_slice(parameters.as_bytes());
        bytes.resize(begins + len, 0);
    }
    let size = bytes.len() as u32;
    bytes[12..16].copy_from_slice(&size.to_ne_bytes());
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_laid_out_as_the_kernel_reads_it() {
        let number = |bytes: &[u8], at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap());
        let plain = message(Device::Nbd(3), 0, None);
        assert_eq!((plain.len(), number(&plain, 0), number(&plain, 12), number(&plain, 20)), (312, 4, 312, 0));
        assert!(plain[48..].starts_with(b"farmem-nbd3\0"));
        let key = std::array::from_fn(|i| i as u8);
        let parameters = parameters(Device::Nbd(3), &key);
        assert!(parameters.starts_with("aes-xts-plain64 000102030405"), "{parameters}");
        assert_eq!(parameters.split(' ').nth(1).map(str::len), Some(2 * KEY_BYTES));
        let table = message(Device::Nbd(3), SECRET, Some((77, &parameters)));
        assert_eq!((number(&table, 12) as usize, number(&table, 16), number(&table, 20)), (table.len(), 312, 1));
        assert_eq!((number(&table, 28), number(&table, 320), table.len() % 8), (SECRET, 77, 0));
        assert_eq!(number(&table, 332) as usize, table.len() - 312);
        assert!(table[336..].starts_with(b"crypt\0") && table[352..].starts_with(parameters.as_bytes()));
        assert_eq!(table[352 + parameters.len()], 0);
    }
}
