//! The plugin that records a program's loads and stores under QEMU, and its other end in `farmem
//! amat`.
//!
//! `farmem amat` starts `qemu-x86_64` with this library as a plugin. QEMU calls it for each load
//! and store; it writes eight bytes a reference into memory that both processes map:
//!
//! ```text
//!  program under qemu-x86_64                          farmem amat
//!  load, store ─► plugin ─► chunk of 64 KiB, full ─► ring ─► references
//!                   └─ exec ─► qemu-x86_64 again, with the plugin
//! ```
//!
//! | file | |
//! |---|---|
//! | [`ring`] | the shared memory: chunks, who holds them, waiting |
//! | [`plugin`] | QEMU's side: callbacks, fork, exec |
//! | [`launch`] | which file an exec runs, and the command line of QEMU for it |
//! | [`library`] | the built plugin as a file that QEMU can load |
//!
//! The binary carries the built library and hands it to QEMU as a memfd, so nothing is installed.

pub mod launch;
pub mod library;
pub mod plugin;
pub mod ring;
