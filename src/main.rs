//! The binary and its allocator. All commands are in [`hourbucket::cli`].

use std::cell::Cell;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Bodies, batches and pages of hundreds of kilobytes are allocated and freed all the time. With
/// the allocator of the C library the service took an eighth more CPU time per reading.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// How often a thread returns freed memory.
const RETURN_EVERY: Duration = Duration::from_secs(10);

thread_local! {
    static RETURNED_AT: Cell<Option<Instant>> = const { Cell::new(None) };
}

#[expect(unsafe_code, reason = "the crate has no safe function for it")]
unsafe extern "C" {
    /// Frees the calling thread's empty pages, and returns pages to the system that any thread
    /// freed more than a second ago. `force`: full pages and younger ones too.
    safe fn mi_collect(force: bool);
}

/// Returns the memory that the calling thread no longer needs to the system. Otherwise mimalloc
/// does so only while the thread allocates much, and a quiet service would keep what it needed in
/// its busiest minutes.
fn return_freed_memory() {
    let now = Instant::now();
    let returned_at = RETURNED_AT.get();
    if returned_at.is_none_or(|at| now.duration_since(at) >= RETURN_EVERY) {
        RETURNED_AT.set(Some(now));
        mi_collect(false);
    }
}

fn main() -> ExitCode {
    hourbucket::cli::main(return_freed_memory)
}
