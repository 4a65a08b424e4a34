//! What examples that measure have in common: the program's allocator, and the processor's time.

use mimalloc::MiMalloc;

#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

/// Time that this thread has had a core for, where the system tells it: on a machine that others use, wall time is theirs too.
pub(crate) fn on_cpu_s() -> Option<f64> {
    let schedstat = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    Some(schedstat.split_whitespace().next()?.parse::<f64>().ok()? / 1e9)
}
