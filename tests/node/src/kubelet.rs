//! A fake kubelet: the device manager's side of the device plugin API, with the rules of a real one (1.31 to 1.36).
//!
//! It calls back inside Register, ignores the options of the request, removes every socket when it starts, never
//! reconnects, and lets the newest registration of a resource win: the streams of earlier ones stay open, their lists
//! count, and the end of any of them ends the newest, as soon as that is in the table of clients. What containers hold outlives
//! a restart, as with a kubelet's checkpoint.

mod admission;
mod endpoint;
mod evidence;
mod pod_resources;
mod pods;
mod registration;
#[cfg(test)]
mod tests;

pub use admission::{Admitted, Rejection};
pub use endpoint::{Endpoint, ListMessage};
pub use pod_resources::PodResourcesAnswer;

use crate::api::{
    AllocateRequest, ContainerAllocateRequest, ContainerAllocateResponse, device_plugin_client::DevicePluginClient,
    pod_resources::pod_resources_lister_server::PodResourcesListerServer, registration_server::RegistrationServer,
};
use anyhow::{Context as _, Result};
use pods::{ContainerKind, Pods};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    os::unix::fs::FileTypeExt as _,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};
use tokio::{net::UnixListener, task::JoinHandle};
use tokio_stream::wrappers::UnixListenerStream;
use tonic::{
    Code, Status,
    transport::{Channel, Server},
};

type Client = DevicePluginClient<Channel>;

/// A connection to a plugin.
#[derive(Debug)]
enum Connection {
    /// The kubelet is about to connect: there is nothing to close yet.
    Dialling,
    /// Without device list stream.
    Dialled,
    /// With its device list stream, which may have ended.
    Streaming(JoinHandle<()>),
}

#[derive(Debug, Default)]
struct State {
    endpoints: BTreeMap<String, Endpoint>,
    /// Number of the connection of each resource's newest plugin: `clients` of plugin/v1beta1/server.go.
    clients: BTreeMap<String, u64>,
    /// Connections by number. One that is not here is closed.
    connections: BTreeMap<u64, Connection>,
    /// Connections since the test began.
    dials: u64,
    /// Plugins that are asked for devices, by resource: `endpoints` of manager.go without those that are stopped.
    plugins: BTreeMap<String, Client>,
    /// Time from the end of a stream until the kubelet takes it in.
    notice_pause: Duration,
    messages: BTreeMap<String, Vec<ListMessage>>,
    /// Times at which streams ended, by resource.
    ends: BTreeMap<String, Vec<Instant>>,
    refusals: usize,
    pods: Pods,
    pod_resources: PodResourcesAnswer,
    pod_resources_calls: usize,
    /// Answers of List.
    pod_lists: usize,
}

impl State {
    /// Disconnects the newest plugin of a resource: `disconnectClient` of plugin/v1beta1/handler.go, up to
    /// `PluginDisconnected` of manager.go. Without a plugin in the table the devices stay healthy.
    fn disconnect(&mut self, resource: &str) {
        let Some(number) = self.clients.remove(resource) else {
            return;
        };
        let is_dialling = matches!(self.connections.get(&number), Some(Connection::Dialling));
        if !is_dialling && let Some(Connection::Streaming(stream)) = self.connections.remove(&number) {
            stream.abort();
        }
        self.plugins.remove(resource);
        if let Some(endpoint) = self.endpoints.get_mut(resource) {
            endpoint.connected = false;
        }
    }
}

/// The kubelet's device manager.
#[derive(Debug)]
pub struct FakeKubelet {
    folder: PathBuf,
    state: Arc<Mutex<State>>,
    servers: Vec<JoinHandle<()>>,
    admitting: tokio::sync::Mutex<()>,
}

impl FakeKubelet {
    /// Starts on a folder of device plugins; PodResources is in the folder `pod-resources` beside it.
    pub fn start(folder: PathBuf) -> Result<Self> {
        let mut kubelet = Self {
            folder,
            state: Arc::default(),
            servers: Vec::new(),
            admitting: tokio::sync::Mutex::default(),
        };
        kubelet.serve()?;
        Ok(kubelet)
    }

    /// Ends every connection and leaves `kubelet.sock` behind, as a killed kubelet does.
    pub fn stop(&mut self) {
        for server in self.servers.drain(..) {
            server.abort();
        }
        let mut state = self.lock();
        state.clients.clear();
        state.plugins.clear();
        for connection in std::mem::take(&mut state.connections).into_values() {
            if let Connection::Streaming(stream) = connection {
                stream.abort();
            }
        }
        for endpoint in state.endpoints.values_mut() {
            endpoint.connected = false;
        }
    }

    /// Stops and starts again; whoever was registered has to come again.
    pub fn restart(&mut self) -> Result<()> {
        self.stop();
        self.serve()
    }

    /// Refuses the next registrations.
    pub fn refuse(&self, registrations: usize) {
        self.lock().refusals = registrations;
    }

    /// Says how PodResources answers from now on.
    pub fn answer_pod_resources(&self, answer: PodResourcesAnswer) {
        self.lock().pod_resources = answer;
    }

    /// Calls of PodResources since the test began.
    pub fn pod_resources_calls(&self) -> usize {
        self.lock().pod_resources_calls
    }

    /// Ends the device list stream of a resource.
    pub fn end_stream(&self, resource: &str) {
        self.lock().disconnect(resource);
    }

    /// Takes the end of each stream in this long after it, as a busy kubelet does. Until then its devices count as healthy.
    pub fn notices_after(&self, pause: Duration) {
        self.lock().notice_pause = pause;
    }

    /// Forgets which plugin has the resource: the end of its stream changes nothing, and its devices stay healthy.
    pub fn lose_client(&self, resource: &str) {
        self.lock().clients.remove(resource);
    }

    /// Forgets a resource while its plugin goes on with its stream.
    pub fn forget(&self, resource: &str) {
        if let Some(endpoint) = self.lock().endpoints.get_mut(resource) {
            endpoint.connected = false;
        }
    }

    /// Names of the resources with an open stream and a list.
    pub fn connected(&self) -> Vec<String> {
        let state = self.lock();
        let connected = state
            .endpoints
            .iter()
            .filter(|(_, endpoint)| endpoint.connected && !endpoint.devices.is_empty());
        connected.map(|(name, _)| name.clone()).collect()
    }

    /// Returns the state of a resource.
    pub fn endpoint(&self, resource: &str) -> Endpoint {
        self.lock().endpoints.get(resource).cloned().unwrap_or_default()
    }

    /// Every list of a resource since the test began.
    pub fn messages(&self, resource: &str) -> Vec<ListMessage> {
        self.lock().messages.get(resource).cloned().unwrap_or_default()
    }

    /// Returns the times at which the plugin of a resource ended its stream, since the test began.
    pub fn ends(&self, resource: &str) -> Vec<Instant> {
        self.lock().ends.get(resource).cloned().unwrap_or_default()
    }

    /// Ids of a resource that containers hold.
    pub fn in_use(&self, resource: &str) -> BTreeSet<String> {
        self.lock().pods.in_use(resource)
    }

    /// Notes that a DRA driver has given a device to a container.
    pub fn claim(&self, pod: &str, container: &str, driver: &str, device: &str) {
        self.lock().pods.claim(pod, container, driver, device);
    }

    /// Returns the number that the scheduler takes for free: the node's allocatable less the requests of pods.
    pub fn schedulable(&self, resource: &str) -> usize {
        self.endpoint(resource)
            .healthy()
            .len()
            .saturating_sub(self.in_use(resource).len())
    }

    /// Allocates devices for a container.
    pub async fn allocate(&self, resource: &str, ids: &[&str]) -> Result<ContainerAllocateResponse, Status> {
        let devices_ids = ids.iter().map(|id| (*id).to_owned()).collect();
        let request = AllocateRequest {
            container_requests: vec![ContainerAllocateRequest { devices_ids }],
        };
        let answer = self.client(resource)?.allocate(request).await?.into_inner();
        answer
            .container_responses
            .into_iter()
            .next()
            .ok_or_else(|| Status::unknown("no container response"))
    }

    /// Asks which devices a container had best get.
    pub async fn preferred(&self, resource: &str, available: &[String], size: usize) -> Result<Vec<String>, Status> {
        self.request_preferred(resource, available.to_vec(), &BTreeSet::new(), size)
            .await
    }

    /// Makes the call before the start of a container, if the plugin asks for it.
    pub async fn pre_start(&self, resource: &str, id: &str) -> Result<(), Status> {
        let request = crate::api::PreStartContainerRequest {
            devices_ids: vec![id.to_owned()],
        };
        self.client(resource)?.pre_start_container(request).await.map(drop)
    }

    fn client(&self, resource: &str) -> Result<Client, Status> {
        let client = self.lock().plugins.get(resource).cloned();
        client.ok_or_else(|| Status::new(Code::Unavailable, format!("{resource} is not registered")))
    }

    fn serve(&mut self) -> Result<()> {
        for entry in fs::read_dir(&self.folder).context("read the folder of device plugins")? {
            let entry = entry?;
            if entry.file_type()?.is_socket() {
                remove_if_there(&entry.path())?;
            }
        }
        let plugins = UnixListener::bind(self.folder.join("kubelet.sock")).context("bind kubelet.sock")?;
        let pod_resources = self.folder.with_file_name("pod-resources");
        fs::create_dir_all(&pod_resources)?;
        let pod_resources = pod_resources.join("kubelet.sock");
        remove_if_there(&pod_resources)?;
        let pods = UnixListener::bind(pod_resources).context("bind the socket of PodResources")?;

        let registrar = registration::Registrar {
            folder: self.folder.clone(),
            state: self.state.clone(),
        };
        let registration = Server::builder()
            .add_service(RegistrationServer::new(registrar))
            .serve_with_incoming(UnixListenerStream::new(plugins));
        let lister = pod_resources::Lister(self.state.clone());
        let lister = Server::builder()
            .add_service(PodResourcesListerServer::new(lister))
            .serve_with_incoming(UnixListenerStream::new(pods));
        self.servers = vec![
            tokio::spawn(async { _ = registration.await }),
            tokio::spawn(async { _ = lister.await }),
        ];
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

impl Drop for FakeKubelet {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Removes a file as a kubelet does (`os.RemoveAll`): the agent may have removed its socket a moment before.
fn remove_if_there(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result,
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}
