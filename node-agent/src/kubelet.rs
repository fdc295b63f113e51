//! Keeps one resource registered with the kubelet: bind, serve, register, and again when the kubelet restarted, when the
//! socket vanished, or when the kubelet ended the device list stream.

use crate::{
    desk::Desk,
    device_plugin_api::{DevicePluginOptions, RegisterRequest, VERSION, registration_client::RegistrationClient},
    directory::Directory,
    file_id::FileId,
    metrics::Method,
    plugin::{Offer, PluginServer, Streams, until_stopped},
    socket::{MAX_SOCKET_PATH, socket_path},
};
use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};
use tokio::{
    sync::watch,
    time::{Instant, sleep_until, timeout},
};
use tonic::transport::Endpoint;
use tracing::{info, warn};

const MIN_RETRY: Duration = Duration::from_millis(100);
const MAX_RETRY: Duration = Duration::from_secs(5);
/// A registration that held this long was a good one, and the next failure starts with a short pause again.
const STABLE_AFTER: Duration = Duration::from_secs(30);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// The kubelet calls back before it answers, and gives that call 10 s.
const REGISTER_TIMEOUT: Duration = Duration::from_secs(15);
/// From the answer of the kubelet until it opens the device list stream.
const STREAM_TIMEOUT: Duration = Duration::from_secs(10);

/// Names of the resources that the kubelet has taken the list of.
pub type Registered = BTreeSet<String>;

/// The kubelet of this node, as far as a device plugin sees it.
#[derive(Clone)]
pub struct Kubelet {
    /// Its folder of device plugin sockets.
    pub directory: Directory,
    /// Who answers its questions.
    pub desk: Arc<Desk>,
    /// Where the state machines say which resources are registered.
    pub registered: watch::Sender<Registered>,
}

/// Why a server is no longer registered.
#[derive(Debug)]
enum Lost {
    /// The agent stops offering the resource.
    Stopped,
    /// Something that another try can cure.
    Again(String),
}

impl Lost {
    fn again(reason: &str) -> Self {
        Self::Again(reason.to_owned())
    }
}

/// Why a registration did not come about.
#[derive(Debug, thiserror::Error)]
enum RegisterError {
    #[error("{0} does not exist; is the kubelet running?")]
    NoKubelet(PathBuf),
    #[error("connect to {path}: {source:?}")]
    Connect { path: PathBuf, source: tonic::transport::Error },
    #[error("no answer within {REGISTER_TIMEOUT:?}")]
    NoAnswer,
    #[error("{}", .0.message())]
    Refused(tonic::Status),
}

/// Growing pauses.
#[derive(Debug)]
struct Backoff(Duration);

impl Backoff {
    fn next(&mut self) -> Duration {
        let pause = self.0;
        self.0 = (pause * 2).min(MAX_RETRY);
        pause
    }
}

/// Keeps a resource registered until `stop` is set. What is offered may change while it is registered.
pub async fn keep_registered(kubelet: Kubelet, offer: watch::Receiver<Offer>, stop: watch::Receiver<bool>) {
    let name = offer.borrow().list.name.clone();
    let kubelet_socket = kubelet.directory.path().join("kubelet.sock");
    let mut machine = Machine { kubelet, kubelet_socket, name, offer, stop, backoff: Backoff(MIN_RETRY) };
    while let Lost::Again(reason) = machine.serve_once().await {
        warn!(resource = machine.name, reason, "not registered; registering again");
    }
}

struct Machine {
    kubelet: Kubelet,
    kubelet_socket: PathBuf,
    name: String,
    offer: watch::Receiver<Offer>,
    stop: watch::Receiver<bool>,
    backoff: Backoff,
}

impl Machine {
    /// One server, from bind to the end of its registration.
    async fn serve_once(&mut self) -> Lost {
        let socket = socket_path(self.kubelet.directory.path(), &self.name);
        let server = match self.bind(&socket) {
            Ok(server) => server,
            Err(error) => {
                let now = FileId::of(&self.kubelet_socket);
                let stopped = self.pause(None, now).await;
                return if stopped {
                    Lost::Stopped
                } else {
                    Lost::Again(format!("bind {}: {error}", socket.display()))
                };
            }
        };
        let lost = self.registration(&server).await;
        self.kubelet.registered.send_if_modified(|registered| registered.remove(&self.name));
        // Before the next one: kubelets up to 1.36 take the end of an old stream for the end of the new one.
        server.stop().await;
        lost
    }

    fn bind(&self, socket: &Path) -> Result<PluginServer, String> {
        if socket.as_os_str().len() > MAX_SOCKET_PATH {
            return Err(format!(
                "the path has more than {MAX_SOCKET_PATH} bytes; choose a shorter --device-plugin-dir"
            ));
        }
        PluginServer::bind(socket, self.offer.clone(), self.kubelet.desk.clone()).map_err(|error| error.to_string())
    }

    /// Registers, and returns when the registration is over.
    async fn registration(&mut self, server: &PluginServer) -> Lost {
        let kubelet_id = match self.register_until_taken(server).await {
            Ok(kubelet_id) => kubelet_id,
            Err(lost) => return lost,
        };
        let mut streams = server.streams();
        let opened = tokio::select! {
            opened = timeout(STREAM_TIMEOUT, streams.wait_for(|streams| streams.opened > streams.ended)) => opened.is_ok(),
            () = until_stopped(self.stop.clone()) => return Lost::Stopped,
        };
        if !opened {
            return Lost::again("the kubelet did not open the device list stream");
        }
        let shares = self.offer.borrow().list.shares.len();
        info!(resource = self.name, shares, socket = %server.socket().display(), "registered with the kubelet");
        self.kubelet.registered.send_if_modified(|registered| registered.insert(self.name.clone()));
        let since = Instant::now();
        let lost = self.until_lost(server, &mut streams, kubelet_id).await;
        self.kubelet.registered.send_if_modified(|registered| registered.remove(&self.name));
        if since.elapsed() >= STABLE_AFTER {
            self.backoff = Backoff(MIN_RETRY);
        }
        // A kubelet that drops every registration must not be asked in a hot loop.
        let stopped = matches!(lost, Lost::Stopped) || self.pause(Some(server), kubelet_id).await;
        if stopped { Lost::Stopped } else { lost }
    }

    /// Asks the kubelet until it takes the registration, and tells which kubelet that was.
    async fn register_until_taken(&mut self, server: &PluginServer) -> Result<Option<FileId>, Lost> {
        let mut last_error = String::new();
        loop {
            // Before the call: a kubelet that restarts in between is another one afterwards.
            let kubelet_id = FileId::of(&self.kubelet_socket);
            let result = tokio::select! {
                result = self.register(server.socket()) => result,
                () = until_stopped(self.stop.clone()) => return Err(Lost::Stopped),
            };
            self.kubelet.desk.metrics().registered(&self.name, result.is_ok());
            let error = match result {
                Ok(()) => return Ok(kubelet_id),
                Err(error) => error.to_string(),
            };
            if error != last_error {
                warn!(resource = self.name, error, "register with the kubelet; trying again");
                last_error = error;
            }
            if self.pause(Some(server), kubelet_id).await {
                return Err(Lost::Stopped);
            }
            if !server.is_reachable() {
                return Err(Lost::again("the socket is gone"));
            }
        }
    }

    async fn register(&self, socket: &Path) -> Result<(), RegisterError> {
        let path = &self.kubelet_socket;
        if !path.exists() {
            return Err(RegisterError::NoKubelet(path.clone()));
        }
        let connect = |source| RegisterError::Connect { path: path.clone(), source };
        let endpoint = Endpoint::from_shared(format!("unix://{}", path.display())).map_err(connect)?;
        let channel = endpoint.connect_timeout(CONNECT_TIMEOUT).connect().await.map_err(connect)?;
        let request = RegisterRequest {
            version: VERSION.to_owned(),
            endpoint: socket.file_name().unwrap_or_default().to_string_lossy().into_owned(),
            resource_name: self.name.clone(),
            options: Some(DevicePluginOptions { pre_start_required: false, get_preferred_allocation_available: true }),
        };
        let mut client = RegistrationClient::new(channel);
        let _timer = self.kubelet.desk.metrics().timer(Method::Register);
        match timeout(REGISTER_TIMEOUT, client.register(request)).await {
            Ok(answer) => answer.map(drop).map_err(RegisterError::Refused),
            Err(_) => Err(RegisterError::NoAnswer),
        }
    }

    /// Waits while the registration holds.
    async fn until_lost(
        &self,
        server: &PluginServer,
        streams: &mut watch::Receiver<Streams>,
        kubelet_id: Option<FileId>,
    ) -> Lost {
        let mut changes = self.kubelet.directory.changes();
        loop {
            if !server.is_reachable() {
                return Lost::again("the socket is gone");
            }
            if self.has_other_socket(kubelet_id) {
                return Lost::again("the kubelet restarted");
            }
            let Streams { opened, ended } = *streams.borrow_and_update();
            if opened == ended {
                return Lost::again("the kubelet ended the device list stream");
            }
            tokio::select! {
                _ = changes.changed() => {}
                _ = streams.changed() => {}
                () = until_stopped(self.stop.clone()) => return Lost::Stopped,
            }
        }
    }

    /// Waits until the next try is due, or sooner when there is another kubelet or the server's socket is gone. Returns
    /// whether the agent stops offering the resource.
    async fn pause(&mut self, server: Option<&PluginServer>, kubelet_id: Option<FileId>) -> bool {
        let due = Instant::now() + self.backoff.next();
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

    /// Whether the kubelet has made its socket again. Without a socket it is on its way down: its stream will end.
    fn has_other_socket(&self, kubelet_id: Option<FileId>) -> bool {
        FileId::of(&self.kubelet_socket).is_some_and(|id| Some(id) != kubelet_id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_up_to_a_limit() {
        let mut backoff = Backoff(MIN_RETRY);
        let pauses: Vec<Duration> = (0..8).map(|_| backoff.next()).collect();
        assert_eq!(pauses.first(), Some(&MIN_RETRY));
        assert_eq!(pauses.last(), Some(&MAX_RETRY));
    }
}
