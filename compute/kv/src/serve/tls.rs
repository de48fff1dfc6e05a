//! TLS between redis clients and a front end: its certificate, and a socket that may speak it.
//!
//! ```text
//!  socket ─► read_tls ─► records ─► plaintext ─► parser
//!     ▲                     │
//!     └── drain ◄───────────┴─ handshake, alerts, sealed replies ◄─ write
//! ```
//!
//! [`Wire`] never blocks: it is moved on by the event loop, as a plain socket is. Until the handshake
//! is over no byte of a client is a request, and no reply is sent. The front end bounds how many
//! clients are in a handshake, for how long, and how many steps of handshakes one turn takes.

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig, ServerConnection};
use std::io::{Error, ErrorKind, Read, Result as Outcome, Write};
use std::net::TcpStream;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;

/// The first byte of a TLS client's first record.
const HANDSHAKE: u8 = 22;
/// Reads of the socket in one read of the wire: records may have no plaintext in them.
const READS: u32 = 4;
/// Told to a client that begins without TLS.
const PLAIN: &[u8] = b"-ERR this port speaks TLS: connect with TLS, as by redis-cli --tls\r\n";

/// Which of the files is not as it should be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Part {
    /// The front end's certificate.
    Certificate,
    /// The key to it.
    Key,
    /// The authorities of clients' certificates.
    Authorities,
}

/// A front end's certificate and key, and who may be its client.
#[derive(Clone, Debug)]
pub struct Tls {
    settings: Arc<ServerConfig>,
    /// A client must show a certificate.
    pub asks_clients: bool,
}

impl Tls {
    /// From files' texts in PEM: a certificate with its chain, the key to it, and the authorities that
    /// clients' certificates must come from, if they must show one.
    ///
    /// # Errors
    /// Which of the texts cannot be used, and why.
    pub fn new(certificate: &[u8], key: &[u8], authorities: Option<&[u8]>) -> Result<Tls, (Part, String)> {
        let chain = certificates(certificate).map_err(|why| (Part::Certificate, why))?;
        let key = PrivateKeyDer::from_pem_slice(key);
        let key = key.map_err(|_| (Part::Key, "it holds no private key in PEM".to_owned()))?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let settings = ServerConfig::builder_with_provider(Arc::clone(&provider)).with_safe_default_protocol_versions();
        let settings = settings.map_err(|e| (Part::Certificate, e.to_string()))?;
        let settings = match authorities {
            None => settings.with_no_client_auth(),
            Some(text) => {
                let wrong = |why: String| (Part::Authorities, why);
                let mut roots = RootCertStore::empty();
                for authority in certificates(text).map_err(wrong)? {
                    roots.add(authority).map_err(|e| wrong(e.to_string()))?;
                }
                let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build();
                settings.with_client_cert_verifier(verifier.map_err(|e| wrong(e.to_string()))?)
            }
        };
        let settings = settings.with_single_cert(chain, key).map_err(|e| match e {
            rustls::Error::InconsistentKeys(_) => (Part::Key, "it is not the key to the certificate".into()),
            e => (Part::Certificate, e.to_string()),
        })?;
        Ok(Tls { settings: Arc::new(settings), asks_clients: authorities.is_some() })
    }
}

fn certificates(text: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(text).collect();
    match found {
        Ok(found) if !found.is_empty() => Ok(found),
        _ => Err("it holds no certificate in PEM".into()),
    }
}

/// A client's socket, plain or with TLS. It does not block.
#[derive(Debug)]
pub struct Wire {
    stream: TcpStream,
    tls: Option<Box<ServerConnection>>,
    /// A first byte has come, and is TLS.
    greeted: bool,
}

impl Wire {
    /// A socket that does not block; with TLS if that is given.
    ///
    /// # Errors
    /// TLS cannot begin.
    pub fn new(stream: TcpStream, tls: Option<&Tls>) -> Outcome<Wire> {
        let tls = tls.map(|tls| ServerConnection::new(Arc::clone(&tls.settings)));
        Ok(Wire { stream, tls: tls.transpose().map_err(Error::other)?.map(Box::new), greeted: false })
    }

    /// Whether the client has still to show that it speaks TLS, and who it is.
    pub fn is_in_handshake(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.is_handshaking())
    }

    /// Whether a read of fewer bytes than there was room for leaves nothing to be read: so it is with
    /// a plain socket. Another wire is empty when it says so.
    pub fn is_emptied_by_a_short_read(&self) -> bool {
        self.tls.is_none()
    }

    /// Whether bytes wait for room in the socket.
    pub fn is_unsent(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.wants_write())
    }

    /// Reads what has come. 0: nothing more will.
    ///
    /// # Errors
    /// `WouldBlock` if nothing is there. `Interrupted` if there may be more, and others are to have their
    /// turn first. Any other: the wire is of no more use.
    pub fn read(&mut self, into: &mut [u8]) -> Outcome<usize> {
        for _ in 0..READS {
            let Some(tls) = &mut self.tls else { return self.stream.read(into) };
            match tls.reader().read(into) {
                Err(e) if e.kind() == ErrorKind::WouldBlock => {}
                // It has closed its socket without a word: requests tell their lengths themselves.
                Err(e) if e.kind() == ErrorKind::UnexpectedEof => return Ok(0),
                done => return done,
            }
            if !self.greeted && !greets(&self.stream)? {
                return Err(ErrorKind::InvalidData.into());
            }
            self.greeted = true;
            if tls.read_tls(&mut self.stream)? == 0 {
                return Ok(0);
            }
            let state = tls.process_new_packets();
            // The handshake's next message, or the alert that says why there is none.
            match self.drain() {
                Err(e) if e.kind() != ErrorKind::WouldBlock => return Err(e),
                _ => {}
            }
            state.map_err(|e| Error::new(ErrorKind::InvalidData, e))?;
        }
        Err(ErrorKind::Interrupted.into())
    }

    /// Takes bytes to be sent, as many as it can.
    ///
    /// # Errors
    /// `WouldBlock` if it takes none now. Any other: the wire is of no more use.
    pub fn write(&mut self, bytes: &[u8]) -> Outcome<usize> {
        if self.is_in_handshake() {
            return Err(ErrorKind::WouldBlock.into());
        }
        // Nothing is sealed before what was sealed earlier is gone: so little lies here.
        self.drain()?;
        let Some(tls) = &mut self.tls else { return self.stream.write(bytes) };
        let taken = tls.writer().write(bytes)?;
        match self.drain() {
            Err(e) if e.kind() != ErrorKind::WouldBlock => Err(e),
            _ => Ok(taken),
        }
    }

    /// Sends what waits.
    ///
    /// # Errors
    /// `WouldBlock` if the socket has no room for all of it. Any other: the wire is of no more use.
    pub fn drain(&mut self) -> Outcome<()> {
        while let Some(tls) = self.tls.as_mut().filter(|tls| tls.wants_write()) {
            if tls.write_tls(&mut self.stream)? == 0 {
                return Err(ErrorKind::WriteZero.into());
            }
        }
        Ok(())
    }

    /// Tells the client that no more comes. It may not be there to hear it.
    pub fn end(&mut self) {
        if let Some(tls) = self.tls.as_mut().filter(|tls| !tls.is_handshaking()) {
            tls.send_close_notify();
            let _ = self.drain();
        }
    }
}

impl AsRawFd for Wire {
    fn as_raw_fd(&self) -> RawFd {
        self.stream.as_raw_fd()
    }
}

/// Whether the first byte is TLS. One that begins without is told so, if it has not gone.
fn greets(mut stream: &TcpStream) -> Outcome<bool> {
    let mut first = [HANDSHAKE];
    stream.peek(&mut first)?;
    if first == [HANDSHAKE] {
        return Ok(true);
    }
    let _ = stream.write(PLAIN);
    Ok(false)
}
