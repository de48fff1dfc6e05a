//! An agent within one program, which serves only that program.
//!
//! ```text
//!  this process:  client ── ring, socket pair ──► clerk (a thread) ── stock, blocks ──► node
//!                                                                     (a member of its own)
//! ```
//!
//! The same clerk, stock and blocks as in [`crate::host`], with one program, and without the means
//! of one agent to follow another. The ledger is a memory of this process, and the member at the
//! node ends with its connection. So there is nothing to take over. Another program that wants an
//! agent starts one, which is another member of the node, and neither knows of the other. When this
//! program ends, its memory is the node's again, by the words, as with any host that dies.
//!
//! Nothing is lost in trust: a stray write of the program may harm its own agent, hence itself; the
//! node lets that agent change the words of its own blocks and no others.

use super::{ConnectError, member_options};
use crate::blocks::Blocks;
use crate::ledger::{self, Ledger};
use crate::serve::{Service, text_of};
use crate::sources::Sources;
use crate::stock::{Quotas, Stock};
use farmem_fabric::{NodeAddr, Transport};
use farmem_sys::descriptors;
use farmem_sys::raw::{self, Errno};
use farmem_sys::{process, shared};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a connection to a node elsewhere that was cut may take to come back.
const GRACE: Duration = Duration::from_secs(5);

/// How long it may take to give everything back.
const FAREWELL: Duration = Duration::from_secs(2);

/// The agent. Ends when dropped.
pub(super) struct Alone {
    /// `None` only while it is dropped.
    service: Option<Arc<Service>>,
}

impl Alone {
    /// Joins the node and begins to serve.
    pub(super) fn start(node: &NodeAddr, patience: Duration) -> Result<Alone, ConnectError> {
        let system = |e: Errno| ConnectError::System(e.to_string());
        let fd = shared::memory(c"farmem-ledger", ledger::BYTES as u64).map_err(system)?;
        let ledger = Ledger::fresh(fd);
        descriptors::close(fd);
        let ledger = Arc::new(ledger.map_err(system)?);
        let transport = match node {
            NodeAddr::Shm(_) => Transport::Shm,
            NodeAddr::Tcp(_) => Transport::Tcp,
        };
        let text = text_of(node, transport, 0);
        let options = member_options(patience, GRACE, transport)?;
        let blocks = Blocks::join_alone(node, &options, Arc::clone(&ledger));
        let blocks = blocks.map_err(|e| ConnectError::Node(e.to_string()))?;
        let stock = Stock::open(Arc::clone(&ledger), Quotas::default());
        let sources = Sources::new(Arc::clone(&ledger), blocks, text.clone());
        let service = Service::new(stock, sources, text).map_err(system)?;
        let serving = Arc::clone(&service);
        // Until it is stopped. That the node is lost the program learns with the next thing that it
        // asks.
        let serve = move || drop(serving.run(None, &ledger, None, &mut || ()));
        // The program's signals are its own threads'.
        let spawn = || std::thread::Builder::new().name("agent".into()).stack_size(256 << 10).spawn(serve);
        process::deaf(spawn).map_err(|e| ConnectError::System(e.to_string()))?;
        Ok(Alone { service: Some(service) })
    }

    /// A connection to it.
    pub(super) fn connect(&self) -> std::io::Result<UnixStream> {
        let (ours, its) = UnixStream::pair()?;
        if let Some(service) = &self.service {
            process::deaf(|| service.welcome(its));
        }
        Ok(ours)
    }
}

impl Drop for Alone {
    fn drop(&mut self) {
        let Some(service) = self.service.take() else { return };
        service.stop();
        // No thread watches sockets any more. A clerk that does not learn of the end would keep
        // all memory.
        service.end_seats();
        // The program's memory is given back, and the node is told goodbye, before this returns and
        // the program may end: otherwise a node elsewhere would wait for it. The wait is limited,
        // because a node may not answer.
        let until = Instant::now() + FAREWELL;
        // Each of its threads has one.
        while Arc::strong_count(&service) > 1 && Instant::now() < until {
            raw::sleep_ns(500_000);
        }
        // The last, if they have ended: the session goes with it.
        drop(service);
    }
}
