//! Whether the GPUs of the node are released: their driver is being replaced, and no agent may use it.

use crate::gpu_node::Seen;
use std::time::Duration;
use tokio::{sync::watch, time::timeout};

/// How long a start waits for the API server before it takes the GPUs for its own.
const API_TIMEOUT: Duration = Duration::from_secs(5);

/// What the GpuNode says of it; nothing without API server.
#[derive(Clone, Debug)]
pub struct Release(Option<watch::Receiver<Seen>>);

impl Release {
    /// As the GpuNode says.
    pub fn of(gpu_node: watch::Receiver<Seen>) -> Self {
        Self(Some(gpu_node))
    }

    /// Never.
    pub fn never() -> Self {
        Self(None)
    }

    /// Whether they are released.
    pub fn is_on(&self) -> bool {
        self.0.as_ref().is_some_and(|gpu_node| is_released(&gpu_node.borrow()))
    }

    /// Waits until it is known, or the API server has not said so in time.
    pub async fn is_known(&mut self) {
        if let Some(gpu_node) = &mut self.0 {
            _ = timeout(API_TIMEOUT, gpu_node.wait_for(|seen| !matches!(seen, Seen::Unknown))).await;
        }
    }

    /// Waits until they are released.
    pub async fn is_asked(&mut self) {
        self.wait_for(is_released).await;
    }

    /// Waits until they are not released any more.
    pub async fn is_over(&mut self) {
        self.wait_for(|seen| !is_released(seen)).await;
    }

    async fn wait_for(&mut self, what: impl Fn(&Seen) -> bool) {
        let Some(gpu_node) = &mut self.0 else { return std::future::pending().await };
        if gpu_node.wait_for(what).await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

fn is_released(seen: &Seen) -> bool {
    matches!(seen, Seen::Present(object) if object.spec.release)
}
