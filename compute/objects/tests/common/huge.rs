//! What the tests of huge pages ask the kernel.

use farmem_sys::memory;

/// Whether the kernel gives a huge page.
pub fn is_given() -> bool {
    let at = memory::reserve(2 * memory::HUGE_PAGE).unwrap();
    let part = at.map_addr(|at| at.next_multiple_of(memory::HUGE_PAGE));
    // SAFETY: nobody else has it.
    unsafe {
        part.write(1);
        let joined = memory::join(part, memory::HUGE_PAGE);
        memory::unmap(at, 2 * memory::HUGE_PAGE);
        matches!(joined, Ok(true))
    }
}
