//! A front end's counters, as Prometheus reads them (`farmem_scrape`). The event loop writes the text
//! once a second, so no asker delays a client.

use super::open::Failed;
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex, PoisonError};

/// The text that is served.
#[derive(Clone, Debug, Default)]
pub struct Shown(Arc<Mutex<String>>);

impl Shown {
    /// Shows another text.
    pub fn set(&self, text: String) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = text;
    }

    fn get(&self) -> String {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Listens, and answers nobody yet.
///
/// # Errors
/// It cannot listen there.
pub fn bind(at: SocketAddr) -> Result<TcpListener, Failed> {
    farmem_scrape::bind(at).map_err(|reason| Failed::Listen { at, reason })
}

/// Begins to serve; the address with its port.
///
/// # Errors
/// The system has no thread for it.
pub fn serve(listener: TcpListener, at: SocketAddr, shown: Shown) -> Result<SocketAddr, Failed> {
    farmem_scrape::serve(listener, move || Some(shown.get())).map_err(|reason| Failed::Listen { at, reason })
}
