//! Policies that see what user space cannot: every access, or the future.
//! One page at a time, no batches, all of local memory. Each returns misses,
//! the first touch of every page not counted.

use crate::trace::Trace;
use std::collections::{BTreeSet, VecDeque};

/// Least recently used.
pub fn lru(trace: &Trace, capacity: usize) -> u64 {
    let mut last = vec![usize::MAX; trace.pages.len()];
    let mut order = BTreeSet::new();
    let mut local = vec![false; trace.pages.len()];
    let mut misses = 0;
    for (now, &page) in trace.accesses.iter().enumerate() {
        let page = page as usize;
        if local[page] {
            order.remove(&(last[page], page));
        } else {
            misses += (last[page] != usize::MAX) as u64;
            if order.len() == capacity
                && let Some((_, victim)) = order.pop_first()
            {
                local[victim] = false;
            }
            local[page] = true;
        }
        last[page] = now;
        order.insert((now, page));
    }
    misses
}

/// Belady's MIN: the page whose next use is farthest leaves. Nothing does better.
pub fn belady(trace: &Trace, capacity: usize) -> u64 {
    let mut next = vec![usize::MAX; trace.accesses.len()];
    let mut seen = vec![usize::MAX; trace.pages.len()];
    for (now, &page) in trace.accesses.iter().enumerate().rev() {
        next[now] = std::mem::replace(&mut seen[page as usize], now);
    }
    let mut due = vec![0; trace.pages.len()];
    let mut order = BTreeSet::new();
    let mut local = vec![false; trace.pages.len()];
    let mut known = vec![false; trace.pages.len()];
    let mut misses = 0;
    for (now, &page) in trace.accesses.iter().enumerate() {
        let page = page as usize;
        if local[page] {
            order.remove(&(due[page], page));
        } else {
            misses += std::mem::replace(&mut known[page], true) as u64;
            if order.len() == capacity
                && let Some((_, victim)) = order.pop_last()
            {
                local[victim] = false;
            }
            local[page] = true;
        }
        due[page] = next[now];
        order.insert((due[page], page));
    }
    misses
}

/// CLOCK with reference bits: second chance, as kernels run it.
pub fn clock(trace: &Trace, capacity: usize) -> u64 {
    let mut queue = VecDeque::new();
    let mut referenced = vec![false; trace.pages.len()];
    let (mut local, mut known) = (referenced.clone(), referenced.clone());
    let mut misses = 0;
    for &page in &trace.accesses {
        let at = page as usize;
        if local[at] {
            referenced[at] = true;
            continue;
        }
        misses += std::mem::replace(&mut known[at], true) as u64;
        while queue.len() >= capacity {
            let Some(front) = queue.pop_front() else { break };
            if std::mem::take(&mut referenced[front as usize]) {
                queue.push_back(front);
            } else {
                local[front as usize] = false;
            }
        }
        local[at] = true;
        queue.push_back(page);
    }
    misses
}
