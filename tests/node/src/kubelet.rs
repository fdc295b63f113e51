//! A fake kubelet: the device manager's side of the device plugin API, with the rules of a real one (1.31 to 1.36).
//!
//! It calls back inside Register, ignores the options of the request, removes every socket when it starts, never
//! reconnects, and lets the newest registration of a resource win.

use crate::{
    api::{
        AllocateRequest, ContainerAllocateRequest, ContainerAllocateResponse, ContainerPreferredAllocationRequest,
        Device, Empty, PreferredAllocationRequest, RegisterRequest,
        device_plugin_client::DevicePluginClient,
        registration_server::{Registration, RegistrationServer},
    },
    until,
};
use anyhow::{Context as _, Result};
use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::FileTypeExt as _,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::{net::UnixListener, task::JoinHandle};
use tokio_stream::wrappers::UnixListenerStream;
use tonic::{
    Code, Request, Response, Status,
    transport::{Channel, Server},
};

type Client = DevicePluginClient<Channel>;

/// What the kubelet knows of one resource.
#[derive(Clone, Debug, Default)]
pub struct Endpoint {
    /// File name of the plugin's socket.
    pub socket: String,
    /// Registrations since the test began.
    pub registrations: usize,
    /// Lists received since the test began.
    pub lists: usize,
    /// The last list.
    pub devices: Vec<Device>,
    /// Whether its stream is open; when it is not, nothing is allocatable.
    pub connected: bool,
}

impl Endpoint {
    /// Ids of the last list.
    pub fn ids(&self) -> Vec<String> {
        self.devices.iter().map(|device| device.id.clone()).collect()
    }
}

#[derive(Debug, Default)]
struct State {
    endpoints: BTreeMap<String, Endpoint>,
    clients: BTreeMap<String, (Client, JoinHandle<()>)>,
    refusals: usize,
}

/// The kubelet's device manager.
#[derive(Debug)]
pub struct FakeKubelet {
    folder: PathBuf,
    state: Arc<Mutex<State>>,
    server: Option<JoinHandle<()>>,
}

impl FakeKubelet {
    /// Starts on a folder.
    pub fn start(folder: PathBuf) -> Result<Self> {
        let mut kubelet = Self { folder, state: Arc::default(), server: None };
        kubelet.serve()?;
        Ok(kubelet)
    }

    /// Ends every connection and leaves `kubelet.sock` behind, as a killed kubelet does.
    pub fn stop(&mut self) {
        if let Some(server) = self.server.take() {
            server.abort();
        }
        let mut state = self.lock();
        for (_, stream) in std::mem::take(&mut state.clients).into_values() {
            stream.abort();
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

    /// Ends the device list stream of a resource.
    pub fn end_stream(&self, resource: &str) {
        let mut state = self.lock();
        if let Some((_, stream)) = state.clients.remove(resource) {
            stream.abort();
        }
        if let Some(endpoint) = state.endpoints.get_mut(resource) {
            endpoint.connected = false;
        }
    }

    /// Names of the resources with an open stream and a list.
    pub fn connected(&self) -> Vec<String> {
        let state = self.lock();
        let connected =
            state.endpoints.iter().filter(|(_, endpoint)| endpoint.connected && !endpoint.devices.is_empty());
        connected.map(|(name, _)| name.clone()).collect()
    }

    /// What is known of a resource.
    pub fn endpoint(&self, resource: &str) -> Endpoint {
        self.lock().endpoints.get(resource).cloned().unwrap_or_default()
    }

    /// Waits until a resource has an open stream with a list, and `condition` holds.
    pub async fn has(&self, resource: &str, condition: impl Fn(&Endpoint) -> bool) -> Result<Endpoint> {
        let ready = || {
            let endpoint = self.endpoint(resource);
            (endpoint.connected && !endpoint.devices.is_empty() && condition(&endpoint)).then_some(endpoint)
        };
        until(&format!("{resource} is as expected"), ready)
            .await
            .with_context(|| format!("it is {:?}", self.endpoint(resource)))
    }

    /// Allocates devices for a container.
    pub async fn allocate(&self, resource: &str, ids: &[&str]) -> Result<ContainerAllocateResponse, Status> {
        let devices_ids = ids.iter().map(|id| (*id).to_owned()).collect();
        let request = AllocateRequest { container_requests: vec![ContainerAllocateRequest { devices_ids }] };
        let answer = self.client(resource)?.allocate(request).await?.into_inner();
        answer.container_responses.into_iter().next().ok_or_else(|| Status::unknown("no container response"))
    }

    /// Asks which devices a container had best get.
    pub async fn preferred(&self, resource: &str, available: &[String], size: i32) -> Result<Vec<String>, Status> {
        let request = PreferredAllocationRequest {
            container_requests: vec![ContainerPreferredAllocationRequest {
                available_device_i_ds: available.to_vec(),
                must_include_device_i_ds: Vec::new(),
                allocation_size: size,
            }],
        };
        let answer = self.client(resource)?.get_preferred_allocation(request).await?.into_inner();
        Ok(answer.container_responses.into_iter().flat_map(|response| response.device_i_ds).collect())
    }

    /// What a kubelet calls before a container starts, where a plugin asks for it.
    pub async fn pre_start(&self, resource: &str, id: &str) -> Result<(), Status> {
        let request = crate::api::PreStartContainerRequest { devices_ids: vec![id.to_owned()] };
        self.client(resource)?.pre_start_container(request).await.map(drop)
    }

    fn client(&self, resource: &str) -> Result<Client, Status> {
        let state = self.lock();
        let client = state.clients.get(resource).map(|(client, _)| client.clone());
        client.ok_or_else(|| Status::new(Code::Unavailable, format!("{resource} is not registered")))
    }

    fn serve(&mut self) -> Result<()> {
        for entry in fs::read_dir(&self.folder).context("read the folder of device plugins")? {
            let entry = entry?;
            if entry.file_type()?.is_socket() {
                fs::remove_file(entry.path())?;
            }
        }
        let listener = UnixListener::bind(self.folder.join("kubelet.sock")).context("bind kubelet.sock")?;
        let service = Service { folder: self.folder.clone(), state: self.state.clone() };
        let server = Server::builder()
            .add_service(RegistrationServer::new(service))
            .serve_with_incoming(UnixListenerStream::new(listener));
        self.server = Some(tokio::spawn(async move {
            _ = server.await;
        }));
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

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Service {
    folder: PathBuf,
    state: Arc<Mutex<State>>,
}

#[tonic::async_trait]
impl Registration for Service {
    async fn register(&self, request: Request<RegisterRequest>) -> Result<Response<Empty>, Status> {
        let request = request.into_inner();
        {
            let mut state = lock(&self.state);
            if state.refusals > 0 {
                state.refusals -= 1;
                return Err(Status::unknown("refused by the test"));
            }
        }
        if request.version != "v1beta1" || !request.resource_name.contains('/') || request.endpoint.contains('/') {
            return Err(Status::unknown(format!("invalid registration {request:?}")));
        }
        let mut client =
            dial(&self.folder.join(&request.endpoint)).await.map_err(|e| Status::unknown(format!("{e:#}")))?;
        client.get_device_plugin_options(Empty {}).await?;
        let stream = tokio::spawn(list_and_watch(client.clone(), request.clone(), self.state.clone()));
        let mut state = lock(&self.state);
        let endpoint = state.endpoints.entry(request.resource_name.clone()).or_default();
        endpoint.registrations += 1;
        endpoint.socket = request.endpoint;
        // The newest wins.
        if let Some((_, old)) = state.clients.insert(request.resource_name, (client, stream)) {
            old.abort();
        }
        Ok(Response::new(Empty {}))
    }
}

async fn dial(socket: &Path) -> Result<Client> {
    let endpoint = tonic::transport::Endpoint::from_shared(format!("unix://{}", socket.display()))?
        .origin("http://localhost".parse()?)
        .connect_timeout(Duration::from_secs(10));
    let channel = endpoint.connect().await.with_context(|| format!("connect to {}", socket.display()))?;
    Ok(DevicePluginClient::new(channel))
}

async fn list_and_watch(mut client: Client, registration: RegisterRequest, state: Arc<Mutex<State>>) {
    let Ok(answer) = client.list_and_watch(Empty {}).await else { return };
    let mut lists = answer.into_inner();
    while let Ok(Some(list)) = lists.message().await {
        let mut state = lock(&state);
        let endpoint = state.endpoints.entry(registration.resource_name.clone()).or_default();
        endpoint.connected = true;
        endpoint.lists += 1;
        endpoint.devices = list.devices;
    }
    let mut state = lock(&state);
    if let Some(endpoint) = state.endpoints.get_mut(&registration.resource_name)
        && endpoint.socket == registration.endpoint
    {
        endpoint.connected = false;
    }
}
