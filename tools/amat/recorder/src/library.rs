//! The built plugin as a file that QEMU can load, without a file.

use farmem_sys::descriptors::close;
use farmem_sys::raw::Errno;
use farmem_sys::shared;
use std::fs::File;
use std::io::{self, Write};
use std::mem::ManuallyDrop;
use std::os::fd::FromRawFd;

/// A memfd with a library's bytes. Others load it as `/proc/PID/fd/FD`, as long as this lives.
pub struct Library(i32);

impl Library {
    /// Of these bytes.
    ///
    /// # Errors
    /// No memory, or no descriptor.
    pub fn new(bytes: &[u8]) -> io::Result<Library> {
        let refused = |Errno(errno)| io::Error::from_raw_os_error(errno);
        let library = Library(shared::memory(c"farmem-recorder", bytes.len() as u64).map_err(refused)?);
        #[allow(unsafe_code)]
        // SAFETY: the descriptor is ours, and open until `library` is dropped.
        let mut file = ManuallyDrop::new(unsafe { File::from_raw_fd(library.0) });
        file.write_all(bytes)?;
        Ok(library)
    }

    /// Its descriptor.
    pub fn fd(&self) -> i32 {
        self.0
    }
}

impl Drop for Library {
    fn drop(&mut self) {
        close(self.0);
    }
}
