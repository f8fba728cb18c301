//! Lowers the priority of threads that no acknowledgement waits for: those that write to MongoDB
//! and those that evaluate queries. They yield to the others when all cores are busy.

/// Of the threads that write to MongoDB: a third of a thread's share is left. At 10, MongoDB got a
/// fifth fewer readings while senders sent as fast as they could.
pub const STORING: i32 = 5;
/// Of the threads that evaluate queries: a ninth of a thread's share is left.
pub(crate) const QUERIES: i32 = 10;

/// Lowers the priority of the calling thread alone: on Linux, each thread has its own priority.
pub fn lower_own(nicer_by: i32) {
    // If that fails, acknowledgements are slower and nothing else.
    let _ = rustix::process::nice(nicer_by);
}
