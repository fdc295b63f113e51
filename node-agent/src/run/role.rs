//! Role of this agent: on standby, active (registered with the kubelet), or done.

use crate::{
    cdi::keeper::CdiKeeper, cli::NodeArgs, devices::manager::DeviceManager, gpu_processes::GpuProcessWatch,
    health::HealthMonitor, mig::executor::MigExecutor, runtime::blocking_thread::BlockingThread,
    usage::sampler::UsageSampler,
};
use std::{future::pending, sync::Arc, time::Duration};
use tokio::{
    sync::oneshot,
    task::{JoinHandle, JoinSet},
    time::timeout,
};
use tracing::warn;

/// Longest time to save the faults, and to end a write of the CDI file, at the end of an active role.
const END_TIMEOUT: Duration = Duration::from_secs(2);

/// Longest time to end a call of the driver that changes MIG. A successor waits 10 s for the end of all tasks.
const MIG_END_TIMEOUT: Duration = Duration::from_secs(4);

/// Role of this agent on its node.
pub enum Role {
    /// Another agent is registered; this one waits.
    Standby,
    /// This agent is registered.
    Active(ActiveTasks),
    /// This agent has handed over.
    LetGo,
}

/// Tasks that run only while this agent is active.
pub struct ActiveTasks {
    tasks: JoinSet<()>,
    monitor: JoinHandle<()>,
    end_monitor: oneshot::Sender<()>,
    /// Thread that writes the CDI file.
    cdi_disk: BlockingThread,
    /// Thread that changes MIG.
    mig_thread: BlockingThread,
}

impl ActiveTasks {
    /// Starts the tasks.
    pub fn begin(
        monitor: HealthMonitor,
        manager: &Arc<DeviceManager>,
        cdi: CdiKeeper,
        gpu_processes: GpuProcessWatch,
        usage: UsageSampler,
        mig: MigExecutor,
        args: &NodeArgs,
    ) -> Self {
        let mut tasks = JoinSet::new();
        let (cdi_disk, mig_thread) = (cdi.disk.clone(), mig.thread.clone());
        tasks.spawn(mig.run());
        tasks.spawn(cdi.run());
        tasks.spawn(gpu_processes.run());
        tasks.spawn(usage.run());
        tasks.spawn(manager.clone().watch_holders(args.pod_resources()));
        tasks.spawn(manager.clone().watch_daemons());
        tasks.spawn(manager.clone().watch_inputs());
        let (end_monitor, monitor_end) = oneshot::channel();
        Self {
            tasks,
            monitor: tokio::spawn(monitor.watch(monitor_end)),
            end_monitor,
            cdi_disk,
            mig_thread,
        }
    }
}

impl Role {
    /// Returns when a task ends unexpectedly, and describes its end.
    pub async fn failed(&mut self) -> String {
        let Self::Active(active) = self else {
            return pending().await;
        };
        tokio::select! {
            ended = active.tasks.join_next() => format!("{ended:?}"),
            ended = &mut active.monitor => format!("{ended:?}"),
        }
    }

    /// Stops the tasks. The faults are then on disk for the next agent, and this one writes the CDI file no more.
    pub async fn end(self) {
        let Self::Active(ActiveTasks {
            mut tasks,
            mut monitor,
            end_monitor,
            cdi_disk,
            mig_thread,
        }) = self
        else {
            return;
        };
        if end_monitor.send(()).is_ok() && timeout(END_TIMEOUT, &mut monitor).await.is_err() {
            // A later write would overwrite the faults of the next agent.
            monitor.abort();
            warn!(
                "cannot save the faults before another agent takes over: no answer from the disk within {END_TIMEOUT:?}"
            );
        }
        tasks.shutdown().await;
        // A job stops between two calls of the driver; the next agent goes on from there.
        if timeout(MIG_END_TIMEOUT, mig_thread.run(|| ())).await.is_err() {
            warn!(
                "cannot end a change of MIG before another agent takes over: no answer from the driver within {MIG_END_TIMEOUT:?}"
            );
        }
        // A write that has begun goes on without its task.
        if timeout(END_TIMEOUT, cdi_disk.run(|| ())).await.is_err() {
            warn!(
                "cannot end a write of the CDI file before another agent takes over: no answer from the disk within {END_TIMEOUT:?}"
            );
        }
    }
}
