//! Waiting for events: gates that a test opens, and conditions that come true.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

/// How long a test waits for what must come. Long, because machines are slow and a wait ends as soon as it may.
pub const PATIENCE: Duration = Duration::from_mins(1);

/// A point that a fake worker passes only once the test has opened it. Clones are the same gate.
#[derive(Clone, Debug)]
pub struct Gate {
    open: Arc<watch::Sender<bool>>,
    /// How many have come to it.
    arrived: Arc<watch::Sender<usize>>,
}

// === impl Gate ===

impl Gate {
    /// A closed gate.
    #[expect(clippy::new_without_default, reason = "a default gate would say nothing of being closed")]
    pub fn new() -> Self {
        Self { open: Arc::new(watch::Sender::new(false)), arrived: Arc::new(watch::Sender::new(0)) }
    }

    /// Lets everyone through, now and later.
    pub fn open(&self) {
        self.open.send_replace(true);
    }

    /// Waits until so many stand at the gate or have passed it.
    pub async fn arrivals(&self, count: usize) {
        eventually("someone at the gate", || *self.arrived.borrow() >= count).await;
    }

    /// Comes to the gate and waits until it is open.
    pub(crate) async fn pass(&self) {
        self.arrived.send_modify(|arrived| *arrived += 1);
        // The sender is this gate's own, so it can not be gone.
        drop(self.open.subscribe().wait_for(|open| *open).await);
    }
}

/// What a future gives, which must come within [`PATIENCE`].
pub async fn patient<T>(what: &str, future: impl Future<Output = T>) -> T {
    let Ok(value) = tokio::time::timeout(PATIENCE, future).await else {
        panic!("waited {PATIENCE:?} for {what}");
    };
    value
}

/// Waits until a condition holds, looking again and again.
pub async fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    patient(what, async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    })
    .await;
}
