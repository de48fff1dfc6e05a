//! Which operations there are, and how often each is drawn.

// The weights keep most pages mapped and most work on content: operations that
// change the address space are rarer, forks rarest, for each costs a process.
macro_rules! operations {
    ($of_each:ident) => {
        $of_each! {
            300 write_lines
            120 write_run
            260 verify_random
            120 verify_run
            60 verify_strided
            100 copy_page
            60 copy_lines
            60 through_pipe
            60 through_file
            60 through_vectors
            30 through_messages
            20 discard
            8 free_lazily
            40 protect
            24 unmap
            60 map_again
            20 map_over
            20 move_run
            20 random_bytes
            40 wait_in_vain
            100 add_counters
            80 write_shared
            30 hold_mutex
            30 heap
            6 far_stack
            1 fork_child
        }
    };
}
pub(crate) use operations;

macro_rules! names {
    ($($weight:literal $name:ident)*) => {
        /// What they are called in reports.
        pub const NAMES: &[&str] = &[$(stringify!($name)),*];
    };
}

operations!(names);
