//! What examples that measure have in common: the program's allocator, and the processor's time.

use std::time::Instant;

use mimalloc::MiMalloc;

#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

/// Measures time: the processor's where the system tells it, since on a machine that others use wall time is theirs too.
pub(crate) struct Watch {
    begun: Instant,
    on_cpu_s: Option<f64>,
}

/// Time that this thread has had a core for.
fn on_cpu_s() -> Option<f64> {
    let schedstat = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    Some(schedstat.split_whitespace().next()?.parse::<f64>().ok()? / 1e9)
}

// === impl Watch ===

impl Watch {
    pub(crate) fn start() -> Self {
        Self { begun: Instant::now(), on_cpu_s: on_cpu_s() }
    }

    /// Seconds on the processor; by the clock where that is not known.
    pub(crate) fn cpu_s(&self) -> f64 {
        let now = on_cpu_s().zip(self.on_cpu_s).map(|(now, before)| now - before);
        now.unwrap_or_else(|| self.begun.elapsed().as_secs_f64())
    }
}
