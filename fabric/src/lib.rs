//! stub
#![allow(unsafe_code, missing_docs)]
use farmem_protocol::addr::*;
use std::ptr::NonNull;
use std::time::Duration;
#[derive(Debug, thiserror::Error)]
#[error("lost")]
pub struct Lost;
#[derive(Debug, thiserror::Error)]
#[error("refused")]
pub struct Refusal;
#[derive(Debug, thiserror::Error)]
#[error("connect")]
pub struct ConnectError;
#[derive(Debug, thiserror::Error)]
pub enum GrantError {
    #[error("lost")]
    Lost(Lost),
    #[error("exhausted")]
    Exhausted,
}
pub struct Session {
    mapped: bool,
    mem: std::sync::Arc<std::sync::Mutex<Vec<usize>>>,
}
pub struct Slab {
    pub id: SlabId,
    pub base: Option<NonNull<u8>>,
}
pub struct ForkTicket(Session);
pub struct Completion {
    pub tag: u64,
    pub result: Result<u64, Refusal>,
}
pub struct QueuePair {
    mem: std::sync::Arc<std::sync::Mutex<Vec<usize>>>,
    posted: Vec<(u64, usize, usize, usize)>,
    n: usize,
}
impl Session {
    pub fn local(mapped: bool) -> Session {
        Session { mapped, mem: Default::default() }
    }
    pub fn is_mapped(&self) -> bool {
        self.mapped
    }
    pub fn grant(&self) -> Result<Slab, GrantError> {
        let p = farmem_sys::memory::reserve(SLAB_BYTES as usize).unwrap();
        let mut m = self.mem.lock().unwrap();
        m.push(p as usize);
        Ok(Slab { id: SlabId(m.len() as u64 - 1), base: if self.mapped { NonNull::new(p) } else { None } })
    }
    pub fn release(&self, _: SlabId) -> Result<(), Lost> {
        Ok(())
    }
    pub fn queue_pair(&self) -> Result<QueuePair, Lost> {
        Ok(QueuePair { mem: self.mem.clone(), posted: vec![], n: 0 })
    }
    pub fn fork_ticket(&self) -> Result<ForkTicket, Lost> {
        Ok(ForkTicket(Session { mapped: self.mapped, mem: self.mem.clone() }))
    }
    pub fn from_ticket(t: ForkTicket) -> Result<Session, ConnectError> {
        Ok(t.0)
    }
    pub fn forget_in_child(self) {}
}
impl ForkTicket {
    pub fn handed_over(self) {}
    pub fn abandon(self) {}
}
impl QueuePair {
    pub unsafe fn read(&mut self, tag: u64, slab: SlabId, off: u64, into: *mut u8, len: u32) {
        let b = self.mem.lock().unwrap()[slab.0 as usize] + off as usize;
        self.posted.push((tag, b, into as usize, len as usize));
    }
    pub unsafe fn write(&mut self, tag: u64, slab: SlabId, off: u64, from: *const u8, len: u32) {
        let b = self.mem.lock().unwrap()[slab.0 as usize] + off as usize;
        self.posted.push((tag, from as usize, b, len as usize));
    }
    pub fn doorbell(&mut self) -> Result<(), Lost> {
        Ok(())
    }
    pub fn poll(&mut self, d: &mut Vec<Completion>) -> Result<usize, Lost> {
        self.n = self.posted.len();
        for (tag, f, t, l) in self.posted.drain(..) {
            unsafe { std::ptr::copy_nonoverlapping(f as *const u8, t as *mut u8, l) };
            d.push(Completion { tag, result: Ok(0) });
        }
        Ok(d.len())
    }
    pub fn wait(&mut self, d: &mut Vec<Completion>, _: Duration) -> Result<usize, Lost> {
        self.poll(d)
    }
    pub fn in_flight(&self) -> usize {
        self.posted.len()
    }
    pub fn forget_in_child(self) {}
}
