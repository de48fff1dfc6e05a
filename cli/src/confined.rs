//! Services of this binary give up what they do not need: [`farmem_sys::confine`].

use farmem_sys::confine::{SERVICE, confine};

/// Confines this process, which has one thread. A kernel that refuses a part of it is told of.
pub fn begin() {
    let confined = confine(&[SERVICE]);
    if !confined.is_whole() {
        eprintln!("farmem: this process is confined: {confined}");
    }
}
