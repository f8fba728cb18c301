//! The binary. All commands are in [`hourbucket::cli`].

use std::process::ExitCode;

/// Bodies, batches and pages of hundreds of kilobytes are allocated and freed all the time. With
/// the allocator of the C library the service took an eighth more CPU time per reading.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    hourbucket::cli::main()
}
