//! The binary and its allocator. All commands are in [`hourbucket::cli`].

use std::cell::Cell;
use std::ffi::{c_int, c_long};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Bodies, batches and pages of hundreds of kilobytes are allocated and freed all the time. With
/// the allocator of the C library the service took an eighth more CPU time per reading.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// How often a thread returns freed memory.
const RETURN_EVERY: Duration = Duration::from_secs(10);

/// How long mimalloc keeps freed memory before it returns it to the system, in milliseconds. After
/// its own second, a busy service gets the same memory back, page by page: with commands of 12 MiB,
/// 1.8 GiB of page faults in 16 seconds, for half a gigabyte of memory. Where a hypervisor takes
/// free memory from the machine, each of these faults takes 10 µs. Two seconds save two thirds of
/// what ten would, and keep the peak within the budgets for hostile input (tests/servers/memory.rs),
/// which five exceed.
const PURGE_DELAY_MS: c_long = 2_000;

/// `mi_option_purge_delay` in mimalloc's header.
const PURGE_DELAY: c_int = 15;

thread_local! {
    static RETURNED_AT: Cell<Option<Instant>> = const { Cell::new(None) };
}

#[expect(unsafe_code, reason = "the crate has no safe function for it")]
unsafe extern "C" {
    /// Frees the calling thread's empty pages, and returns pages to the system that any thread
    /// freed more than [`PURGE_DELAY_MS`] ago. `force`: full pages and younger ones too.
    safe fn mi_collect(force: bool);
    /// Sets an option, unless the environment did.
    safe fn mi_option_set_default(option: c_int, value: c_long);
    #[cfg(test)]
    safe fn mi_option_get(option: c_int) -> c_long;
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
    mi_option_set_default(PURGE_DELAY, PURGE_DELAY_MS);
    hourbucket::cli::main(return_freed_memory)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// No other option of mimalloc has this default, so another number for it would show.
    #[test]
    fn the_option_is_the_purge_delay() {
        assert_eq!(mi_option_get(PURGE_DELAY), 1_000);
    }
}
