//! This agent's turn as the one of its node that is registered.

use crate::{cli::NodeArgs, devices::manager::DeviceManager, health};
use std::{future::pending, sync::Arc, time::Duration};
use tokio::{
    sync::oneshot,
    task::{JoinHandle, JoinSet},
    time::timeout,
};
use tracing::warn;

/// How long what is known of the devices may take to be saved at the end.
const END_TIMEOUT: Duration = Duration::from_secs(2);

/// Whose turn it is.
pub enum Role {
    /// It is still another's.
    Standby,
    /// It is this agent's.
    Active(ActiveTasks),
    /// It is another's again.
    LetGo,
}

/// What follows the node while it is this agent's turn.
pub struct ActiveTasks {
    tasks: JoinSet<()>,
    health: JoinHandle<()>,
    end: oneshot::Sender<()>,
}

impl ActiveTasks {
    /// Begins to follow what changes beside the agent.
    pub fn begin(health: health::HealthMonitor, manager: &Arc<DeviceManager>, args: &NodeArgs) -> Self {
        let mut tasks = JoinSet::new();
        tasks.spawn(manager.clone().watch_holders(args.pod_resources()));
        tasks.spawn(manager.clone().watch_daemons());
        let (end, ended) = oneshot::channel();
        Self {
            tasks,
            health: tokio::spawn(health.watch(ended)),
            end,
        }
    }
}

impl Role {
    /// A task that ends although it should not.
    pub async fn failed(&mut self) -> String {
        let Self::Active(held) = self else {
            return pending().await;
        };
        tokio::select! {
            ended = held.tasks.join_next() => format!("{ended:?}"),
            ended = &mut held.health => format!("{ended:?}"),
        }
    }

    /// Ends it: what is known is on the disk then, for the next one.
    pub async fn end(self) {
        let Self::Active(ActiveTasks {
            tasks: _aborted,
            mut health,
            end,
        }) = self
        else {
            return;
        };
        if end.send(()).is_ok() && timeout(END_TIMEOUT, &mut health).await.is_err() {
            // What it would write later is not true any more.
            health.abort();
            warn!("save the faults before another agent takes over: no answer from the disk within {END_TIMEOUT:?}");
        }
    }
}
