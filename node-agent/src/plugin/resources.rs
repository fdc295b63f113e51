//! The device plugins of the node: one state machine per advertised resource.

use crate::{
    devices::advertised::AdvertisedList,
    plugin::registration::{Kubelet, RegisteredResources, keep_registered},
};
use std::{collections::BTreeMap, time::Duration};
use tokio::{
    sync::watch,
    task::{Id, JoinSet},
    time::timeout,
};
use tracing::{info, warn};

/// Maximum time for all servers to stop: SIGTERM leaves a second for everything.
const STOP_TIMEOUT: Duration = Duration::from_millis(600);

/// Servers of the advertised resources.
pub struct ResourceServers {
    kubelet: Kubelet,
    running: BTreeMap<String, RunningServer>,
    tasks: JoinSet<()>,
}

#[derive(Debug)]
struct RunningServer {
    advertised: watch::Sender<AdvertisedList>,
    stop: watch::Sender<bool>,
    task: Id,
    /// List of the server that starts after this one stops: kubelets up to 1.36 take the end of an old stream for the
    /// end of the new one.
    next: Option<AdvertisedList>,
}

impl RunningServer {
    fn is_stopping(&self) -> bool {
        *self.stop.borrow()
    }
}

impl ResourceServers {
    /// Returns an empty set of servers.
    pub fn new(kubelet: Kubelet) -> Self {
        Self {
            kubelet,
            running: BTreeMap::new(),
            tasks: JoinSet::new(),
        }
    }

    /// Advertises exactly `lists`. A resource that stays keeps its server and its stream, and sends a new list only if
    /// it differs.
    pub fn put(&mut self, lists: Vec<AdvertisedList>) {
        let mut added: BTreeMap<String, AdvertisedList> = lists
            .into_iter()
            .map(|list| (list.resource.name.clone(), list))
            .collect();
        // Stops removed resources first, so that no GPU is advertised under two names.
        for (name, running) in &mut self.running {
            if !added.contains_key(name) {
                running.next = None;
                if !running.stop.send_replace(true) {
                    info!(resource = name, "resource is no longer advertised");
                }
            }
        }
        for (name, running) in &mut self.running {
            let Some(list) = added.remove(name) else { continue };
            if running.is_stopping() {
                running.next = Some(list);
                continue;
            }
            running.advertised.send_if_modified(|now| {
                let changes = *now != list;
                if changes {
                    info!(
                        resource = name,
                        shares = list.resource.shares.len(),
                        healthy = list.healthy(),
                        "device list changed"
                    );
                    *now = list;
                }
                changes
            });
        }
        for (name, list) in added {
            self.start(name, list);
        }
    }

    fn start(&mut self, name: String, list: AdvertisedList) {
        let (advertised, lists) = watch::channel(list);
        let (stop, stopped) = watch::channel(false);
        let task = self
            .tasks
            .spawn(keep_registered(self.kubelet.clone(), lists, stopped))
            .id();
        self.running.insert(
            name,
            RunningServer {
                advertised,
                stop,
                task,
                next: None,
            },
        );
    }

    /// Returns the registered resources, which follow the state machines.
    pub fn registered(&self) -> watch::Receiver<RegisteredResources> {
        self.kubelet.registered.subscribe()
    }

    /// Waits for state machines that end. Starts the server that waited for a stopped one; returns the name of a
    /// resource whose state machine ended unexpectedly.
    pub async fn failed(&mut self) -> String {
        while let Some(ended) = self.tasks.join_next_with_id().await {
            let id = match &ended {
                Ok((id, ())) => *id,
                Err(error) => error.id(),
            };
            let ended = self.running.extract_if(.., |_, running| running.task == id).next();
            match ended {
                Some((name, RunningServer { next: Some(list), .. })) => self.start(name, list),
                Some((name, running)) if !running.is_stopping() => return name,
                _ => {}
            }
        }
        std::future::pending().await
    }

    /// Stops every server and removes its socket. [`Self::put`] may follow.
    pub async fn withdraw(&mut self) {
        for running in self.running.values() {
            running.stop.send_replace(true);
        }
        let ended = timeout(STOP_TIMEOUT, async { while self.tasks.join_next().await.is_some() {} }).await;
        if ended.is_err() {
            warn!("device plugin servers did not stop in time");
            self.tasks.shutdown().await;
            // Aborted state machines have not done this.
            for name in self.running.keys() {
                self.kubelet.manager.end_serving(name);
            }
            self.kubelet.registered.send_replace(RegisteredResources::default());
        }
        self.running.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        admin::metrics::AgentMetrics,
        devices::manager::{DeviceManager, DeviceManagerInputs, tests::nobody},
        driver::{hardware_probe::DriverRoots, utilisation::Utilisation},
        plugin::directory::PluginDirectory,
    };
    use gpunode_gpu::AdvertisedResource;
    use std::{path::Path, sync::Arc};

    fn lists() -> Vec<AdvertisedList> {
        let list = AdvertisedResource {
            name: "nvidia.com/gpu".to_owned(),
            is_companion: false,
            shares: Vec::new(),
        };
        vec![AdvertisedList {
            resource: list.into(),
            resend: 0,
        }]
    }

    fn plugins(folder: &Path) -> ResourceServers {
        let nowhere = DriverRoots::of_host(folder);
        let manager = DeviceManager::new(DeviceManagerInputs {
            roots: nowhere.clone(),
            mps_dir: folder.to_owned(),
            utilisation: Utilisation::new(nowhere, watch::channel(None).1),
            node: None,
            health: watch::Sender::default().subscribe(),
            cdi: watch::Sender::default().subscribe(),
            metrics: AgentMetrics::new(),
        });
        let registered = watch::Sender::new(RegisteredResources::default());
        let directory = PluginDirectory::new(folder.to_owned());
        ResourceServers::new(Kubelet {
            directory,
            manager: Arc::new(manager),
            registered,
            pod_resources: nobody(),
        })
    }

    /// Waits until the stopped state machines have ended.
    async fn settle(plugins: &mut ResourceServers) {
        let settle = async {
            while plugins.running.values().any(RunningServer::is_stopping) {
                assert!(timeout(Duration::from_millis(10), plugins.failed()).await.is_err());
            }
        };
        timeout(Duration::from_secs(10), settle).await.unwrap();
    }

    #[tokio::test]
    async fn a_resource_that_comes_back_at_once_waits_for_its_old_server() {
        let folder = tempfile::tempdir().unwrap();
        let mut plugins = plugins(folder.path());
        plugins.put(lists());
        let old = plugins.running.values().next().unwrap().task;
        plugins.put(Vec::new());
        plugins.put(lists());
        assert_eq!(plugins.tasks.len(), 1, "the old one is still there");
        settle(&mut plugins).await;
        assert_eq!((plugins.tasks.len(), plugins.running.len()), (1, 1));
        assert_ne!(plugins.running.values().next().unwrap().task, old);
        plugins.withdraw().await;
    }

    #[tokio::test]
    async fn a_server_that_does_not_stop_leaves_no_resource_registered() {
        let folder = tempfile::tempdir().unwrap();
        let mut plugins = plugins(folder.path());
        plugins.put(lists());
        plugins.tasks.spawn(std::future::pending());
        plugins.kubelet.registered.send_modify(|registered| {
            registered.taken.insert("nvidia.com/gpu".to_owned());
        });
        plugins.withdraw().await;
        assert_eq!(*plugins.registered().borrow(), RegisteredResources::default());
        assert!(plugins.tasks.is_empty());
    }

    #[tokio::test]
    async fn a_resource_that_goes_again_before_its_old_server_has_stopped_does_not_start() {
        let folder = tempfile::tempdir().unwrap();
        let mut plugins = plugins(folder.path());
        plugins.put(lists());
        plugins.put(Vec::new());
        plugins.put(lists());
        plugins.put(Vec::new());
        settle(&mut plugins).await;
        assert_eq!((plugins.tasks.len(), plugins.running.len()), (0, 0));
    }
}
