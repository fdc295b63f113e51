//! Keeps one resource registered with the kubelet: binds, serves and registers, and starts over when the kubelet
//! restarts, the socket vanishes, or the kubelet ends the device list stream.
//!
//! | module | what it does |
//! |---|---|
//! | `register` | registers with the kubelet |
//! | `backoff` | growing pauses after failures |
//! | `served` | detects other plugins, forgotten resources and devices of plugins that are gone |

mod backoff;
mod register;
mod served;

use crate::{
    admin::metrics::PluginMethod,
    devices::{
        advertised::AdvertisedList,
        manager::{DeviceManager, ObservationState},
    },
    kubelet::podresources::PodResources,
    plugin::{
        directory::PluginDirectory,
        server::{PluginServer, StreamCounts, until_stopped},
        socket::{MAX_SOCKET_PATH, socket_path},
    },
    store::file_id::FileId,
};
use backoff::Backoff;
use gpunode_process::OnChange;
use register::register;
use served::{AbandonedDevices, ForgottenResource, is_served_by_another, listed_ids, may_be_abandoned};
use std::{
    collections::BTreeSet,
    io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};
use tokio::{
    sync::watch,
    time::{Instant, sleep_until, timeout},
};
use tracing::{info, warn};

/// Duration after which a registration counts as stable: the next failure starts with a short pause again.
const STABLE_AFTER: Duration = Duration::from_secs(30);
/// Maximum time from the kubelet's answer to its device list stream.
const STREAM_TIMEOUT: Duration = Duration::from_secs(10);

/// Pause between two checks of a resource that another plugin serves.
const SERVED_PAUSE: Duration = Duration::from_secs(1);

/// Minimum time from the end of a stream to the next registration. The kubelet takes the end in meanwhile; where it has no
/// healthy device of the resource, nothing shows when.
const NOTICE_PAUSE: Duration = Duration::from_millis(200);

/// Names of the registered resources and of those that another plugin serves.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RegisteredResources {
    /// Resources with a device list stream to the kubelet.
    pub taken: BTreeSet<String>,
    /// Resources that another plugin serves, which this agent does not register or has registered before that plugin.
    pub others: BTreeSet<String>,
}

/// The kubelet's side of a device plugin, shared by all resources.
#[derive(Clone)]
pub struct Kubelet {
    /// The kubelet's folder of device plugin sockets.
    pub directory: PluginDirectory,
    /// Answers the kubelet's calls.
    pub manager: Arc<DeviceManager>,
    /// Takes the registered resources from the state machines.
    pub registered: watch::Sender<RegisteredResources>,
    /// Client for the kubelet's healthy devices.
    pub pod_resources: PodResources,
}

/// Cause for the end of a registration.
#[derive(Debug)]
enum RegistrationLost {
    /// The agent stops advertising the resource.
    Stopped,
    /// A failure that another try can fix.
    Retry(String),
}

/// Error of binding a server's socket.
#[derive(Debug, thiserror::Error)]
enum BindError {
    #[error("the path has more than {MAX_SOCKET_PATH} bytes; choose a shorter --device-plugin-dir")]
    LongPath,
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl RegistrationLost {
    fn retry(reason: &str) -> Self {
        Self::Retry(reason.to_owned())
    }
}

/// Keeps a resource registered until `stop` is set. Its list may change meanwhile.
pub async fn keep_registered(
    kubelet: Kubelet,
    advertised: watch::Receiver<AdvertisedList>,
    stop: watch::Receiver<bool>,
) {
    let name = advertised.borrow().resource.name.clone();
    let kubelet_socket = kubelet.directory.path().join("kubelet.sock");
    let (backoff, forgotten, logged_reason) = (Backoff::default(), ForgottenResource::default(), String::new());
    let mut registration = RegistrationLoop {
        kubelet,
        kubelet_socket,
        kubelet_id: None,
        name,
        advertised,
        stop,
        backoff,
        forgotten,
        logged_reason,
    };
    while let RegistrationLost::Retry(reason) = registration.serve_once().await {
        if reason != registration.logged_reason {
            warn!(
                resource = registration.name,
                reason, "not registered; registering again"
            );
            registration.logged_reason = reason;
        }
    }
    registration
        .kubelet
        .registered
        .send_if_modified(|registered| registered.others.remove(&registration.name));
}

struct RegistrationLoop {
    kubelet: Kubelet,
    kubelet_socket: PathBuf,
    /// Identity of the kubelet's socket at the last registration; none before the first.
    kubelet_id: Option<FileId>,
    name: String,
    advertised: watch::Receiver<AdvertisedList>,
    stop: watch::Receiver<bool>,
    backoff: Backoff,
    forgotten: ForgottenResource,
    /// Last logged reason for not being registered.
    logged_reason: String,
}

impl RegistrationLoop {
    /// Runs one server, from bind to the end of its registration.
    async fn serve_once(&mut self) -> RegistrationLost {
        let socket = socket_path(self.kubelet.directory.path(), &self.name);
        let server = match self.bind(&socket) {
            Ok(server) => server,
            Err(error) => {
                let now = FileId::of(&self.kubelet_socket);
                let pause = self.backoff.next();
                if self.pause(pause, None, now).await {
                    return RegistrationLost::Stopped;
                }
                let folder = self.kubelet.directory.path().display();
                return RegistrationLost::Retry(format!("bind a socket in {folder}: {error}"));
            }
        };
        let lost = self.registration(&server).await;
        self.kubelet.manager.end_serving(&self.name);
        let is_reachable = server.is_reachable();
        // Stops before the next server starts: kubelets up to 1.36 take the end of an old stream for the end of the
        // new one.
        server.stop().await;
        if matches!(lost, RegistrationLost::Stopped) {
            return lost;
        }
        // A kubelet that drops every registration must not be called in a hot loop.
        let backoff = self.backoff.next();
        let pause = if is_reachable {
            backoff.max(NOTICE_PAUSE)
        } else {
            NOTICE_PAUSE
        };
        let is_stopped = self.pause(pause, None, self.kubelet_id).await;
        if is_stopped { RegistrationLost::Stopped } else { lost }
    }

    fn bind(&self, socket: &Path) -> Result<PluginServer, BindError> {
        if socket.as_os_str().len() > MAX_SOCKET_PATH {
            return Err(BindError::LongPath);
        }
        let server = PluginServer::bind(socket, self.advertised.clone(), self.kubelet.manager.clone())?;
        Ok(server)
    }

    /// Registers, and returns at the end of the registration.
    async fn registration(&mut self, server: &PluginServer) -> RegistrationLost {
        if let Err(lost) = self.register_until_taken(server).await {
            return lost;
        }
        let mut streams = server.streams();
        let opened = tokio::select! {
            opened = timeout(STREAM_TIMEOUT, streams.wait_for(|streams| streams.opened > streams.ended)) => opened.is_ok(),
            () = until_stopped(self.stop.clone()) => return RegistrationLost::Stopped,
        };
        if !opened {
            return RegistrationLost::retry("the kubelet did not open the device list stream");
        }
        let shares = self.advertised.borrow().resource.shares.len();
        info!(resource = self.name, shares, socket = %server.socket().display(), "registered with the kubelet");
        self.kubelet
            .registered
            .send_if_modified(|registered| registered.taken.insert(self.name.clone()));
        self.logged_reason.clear();
        let since = Instant::now();
        let lost = self.until_lost(server, &mut streams).await;
        let mut was_left = false;
        self.kubelet.registered.send_if_modified(|registered| {
            was_left = registered.others.contains(&self.name);
            registered.taken.remove(&self.name)
        });
        if since.elapsed() >= STABLE_AFTER || was_left {
            self.backoff = Backoff::default();
        }
        lost
    }

    /// Registers until the kubelet accepts.
    async fn register_until_taken(&mut self, server: &PluginServer) -> Result<(), RegistrationLost> {
        let mut errors = OnChange::default();
        loop {
            self.until_free(server).await?;
            // Read before the call, to notice a kubelet that restarts during it.
            self.kubelet_id = FileId::of(&self.kubelet_socket);
            self.kubelet.manager.begin_serving(&self.name, server.hold());
            let result = tokio::select! {
                result = self.register(server.socket()) => result,
                () = until_stopped(self.stop.clone()) => return Err(RegistrationLost::Stopped),
            };
            self.kubelet.manager.metrics().registered(&self.name, result.is_ok());
            let error = match result {
                Ok(()) => return Ok(()),
                Err(error) => error,
            };
            if let Some(error) = errors.changed(error) {
                warn!(
                    resource = self.name,
                    error, "cannot register with the kubelet; retrying"
                );
            }
            let pause = self.backoff.next();
            if self.pause(pause, Some(server), self.kubelet_id).await {
                return Err(RegistrationLost::Stopped);
            }
            if !server.is_reachable() {
                return Err(RegistrationLost::retry("the socket is gone"));
            }
        }
    }

    async fn register(&self, socket: &Path) -> Result<(), register::RegisterError> {
        let _timer = self.kubelet.manager.metrics().timer(PluginMethod::Register);
        register(&self.kubelet_socket, &self.name, socket).await
    }

    /// Waits until no other plugin serves the resource. Up to 1.36 a kubelet can lose track of a plugin, and keeps its devices
    /// when it ends: they are registered after a while.
    async fn until_free(&mut self, server: &PluginServer) -> Result<(), RegistrationLost> {
        let mut abandoned = AbandonedDevices::default();
        let mut kubelet_id = FileId::of(&self.kubelet_socket);
        let mut is_taken = tokio::select! {
            is_taken = is_served_by_another(&self.kubelet.pod_resources, &self.name) => is_taken,
            () = until_stopped(self.stop.clone()) => return Err(RegistrationLost::Stopped),
        };
        loop {
            let others = &self.kubelet.registered;
            if !is_taken {
                if others.send_if_modified(|registered| registered.others.remove(&self.name)) {
                    info!(resource = self.name, "no other plugin serves the resource any more");
                }
                return Ok(());
            }
            if others.send_if_modified(|registered| registered.others.insert(self.name.clone())) {
                let reason = "ServedByAnother";
                warn!(
                    resource = self.name,
                    reason, "another plugin on this node serves the resource; not registering it"
                );
            }
            if self.pause(SERVED_PAUSE, Some(server), kubelet_id).await {
                return Err(RegistrationLost::Stopped);
            }
            if !server.is_reachable() {
                return Err(RegistrationLost::retry("the socket is gone"));
            }
            kubelet_id = FileId::of(&self.kubelet_socket);
            let listed = tokio::select! {
                listed = listed_ids(&self.kubelet.pod_resources, &self.name) => listed,
                () = until_stopped(self.stop.clone()) => return Err(RegistrationLost::Stopped),
            };
            let Some(listed) = listed else { continue };
            is_taken = !listed.is_empty();
            let may_be = may_be_abandoned(
                &listed,
                &self.advertised.borrow().resource,
                self.kubelet.directory.path(),
            );
            if is_taken && abandoned.check(Instant::now().into_std(), may_be) {
                warn!(
                    resource = self.name,
                    devices = listed.len(),
                    "the kubelet has kept the devices of a plugin that is gone; registering the resource"
                );
                let others = &self.kubelet.registered;
                others.send_if_modified(|registered| registered.others.remove(&self.name));
                return Ok(());
            }
        }
    }

    /// Waits until the registration is lost. Leaves the resource to a plugin that registers it later: this agent's stream
    /// stays open, because kubelets up to 1.36 take its end for the end of the other plugin.
    async fn until_lost(
        &mut self,
        server: &PluginServer,
        streams: &mut watch::Receiver<StreamCounts>,
    ) -> RegistrationLost {
        let mut changes = self.kubelet.directory.changes();
        let mut observations = self.kubelet.manager.observed();
        observations.mark_unchanged();
        loop {
            if !server.is_reachable() {
                return RegistrationLost::retry("the socket is gone");
            }
            if self.has_other_socket(self.kubelet_id) {
                return RegistrationLost::retry("the kubelet restarted");
            }
            let StreamCounts { opened, ended } = *streams.borrow_and_update();
            if opened == ended {
                return RegistrationLost::retry("the kubelet ended the device list stream");
            }
            tokio::select! {
                _ = changes.changed() => {}
                _ = streams.changed() => {}
                _ = observations.changed() => {
                    let lost = self.lost_by(&observations.borrow_and_update());
                    if let Some(reason) = lost {
                        return RegistrationLost::retry(reason);
                    }
                }
                () = until_stopped(self.stop.clone()) => return RegistrationLost::Stopped,
            }
        }
    }

    /// Returns the reason to register again after an observation of the kubelet, which may also show another plugin.
    fn lost_by(&mut self, observation: &ObservationState) -> Option<&'static str> {
        let other = self.kubelet.manager.other_plugin(&self.name);
        let is_left = other.is_some();
        let changes = self.kubelet.registered.send_if_modified(|registered| {
            let (from, to) = (&mut registered.taken, &mut registered.others);
            let (from, to) = if is_left { (from, to) } else { (to, from) };
            from.remove(&self.name) && to.insert(self.name.clone())
        });
        match other {
            Some(evidence) if changes => {
                let reason = "ServedByAnother";
                warn!(
                    resource = self.name,
                    reason, %evidence, "another plugin on this node registered the resource after gpunode; leaving it to that plugin"
                );
            }
            None if changes => info!(resource = self.name, "no other plugin serves the resource any more"),
            _ => {}
        }
        if !is_left {
            let is_forgotten = self.is_forgotten(observation);
            return is_forgotten.then_some("the kubelet has forgotten the resource");
        }
        let allocatable = observation.allocatable.as_ref();
        let has_ended = allocatable.is_some_and(|allocatable| !allocatable.names.contains(&self.name));
        has_ended.then_some("the other plugin has ended")
    }

    fn is_forgotten(&mut self, observation: &ObservationState) -> bool {
        let Some(allocatable) = &observation.allocatable else {
            return false;
        };
        let is_missing = self.kubelet.manager.is_missing(&self.name);
        let is_listed = allocatable.names.contains(&self.name);
        self.forgotten.check(allocatable.started, is_missing, is_listed)
    }

    /// Waits until the next try is due, or until the kubelet restarts or the server's socket is gone. Returns true if
    /// the agent stops advertising the resource.
    async fn pause(&self, pause: Duration, server: Option<&PluginServer>, kubelet_id: Option<FileId>) -> bool {
        let due = Instant::now() + pause;
        let mut changes = self.kubelet.directory.changes();
        loop {
            if self.has_other_socket(kubelet_id) || server.is_some_and(|server| !server.is_reachable()) {
                return false;
            }
            tokio::select! {
                () = sleep_until(due) => return false,
                _ = changes.changed() => {}
                () = until_stopped(self.stop.clone()) => return true,
            }
        }
    }

    /// Returns true if the kubelet has created its socket again. No socket means that it shuts down: its stream will
    /// end.
    fn has_other_socket(&self, kubelet_id: Option<FileId>) -> bool {
        FileId::of(&self.kubelet_socket).is_some_and(|id| Some(id) != kubelet_id)
    }
}
