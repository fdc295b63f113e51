//! One device plugin server: it offers one resource on one socket, over a watch channel of what it offers.

use crate::{
    allocate::{self, allocate, control_nodes},
    device_plugin_api::{
        AllocateRequest, AllocateResponse, ContainerPreferredAllocationResponse, Device, DevicePluginOptions, Empty,
        HEALTHY, ListAndWatchResponse, NumaNode, PreStartContainerRequest, PreStartContainerResponse,
        PreferredAllocationRequest, PreferredAllocationResponse, TopologyInfo,
        device_plugin_server::{DevicePlugin, DevicePluginServer},
    },
    file_id::FileId,
};
use futures::{Stream, stream};
use gpunode_gpu::Resource;
use std::{
    fs, io,
    path::{Path, PathBuf},
    pin::Pin,
    sync::Arc,
    time::Duration,
};
use tokio::{net::UnixListener, sync::watch, task::JoinHandle, time::timeout};
use tokio_stream::wrappers::UnixListenerStream;
use tonic::{Request, Response, Status, transport::Server};
use tracing::{debug, info, warn};

/// How long calls in progress may take when a server stops; SIGTERM leaves a second for everything.
const STOP_TIMEOUT: Duration = Duration::from_millis(300);

/// What is offered under a resource name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    /// The GPUs and how they are shared.
    pub resource: Arc<Resource>,
    /// Whether device nodes are named in each allocation.
    pub pass_device_specs: bool,
}

/// How many device list streams the kubelet has opened, and how many of them have ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Streams {
    /// Streams that got their first list.
    pub opened: u64,
    /// Those of them that ended.
    pub ended: u64,
}

/// A server on its socket.
#[derive(Debug)]
pub struct PluginServer {
    socket: PathBuf,
    id: Option<FileId>,
    streams: watch::Receiver<Streams>,
    stop: watch::Sender<bool>,
    task: JoinHandle<()>,
}

impl PluginServer {
    /// Serves on `socket`, which must not exist.
    pub fn bind(socket: &Path, offer: watch::Receiver<Offer>, host_root: Arc<Path>) -> io::Result<Self> {
        let listener = UnixListener::bind(socket)?;
        let (stop, stopped) = watch::channel(false);
        let (streams, streams_seen) = watch::channel(Streams::default());
        let service = Service { offer, streams, stopped: stopped.clone(), host_root };
        let server = Server::builder()
            .add_service(DevicePluginServer::new(service))
            .serve_with_incoming_shutdown(UnixListenerStream::new(listener), until_stopped(stopped));
        let task = tokio::spawn(async move {
            if let Err(error) = server.await {
                // The state machine sees that the streams are gone and binds again.
                warn!(%error, "device plugin server ended");
            }
        });
        Ok(Self { socket: socket.to_owned(), id: FileId::without_time(socket), streams: streams_seen, stop, task })
    }

    /// Whether the kubelet can still reach this server by its socket.
    pub fn is_reachable(&self) -> bool {
        self.id.is_some() && FileId::without_time(&self.socket) == self.id && !self.task.is_finished()
    }

    /// Where this server listens.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// The streams of this server.
    pub fn streams(&self) -> watch::Receiver<Streams> {
        self.streams.clone()
    }

    /// Removes the socket, ends the streams and waits shortly for calls in progress.
    pub async fn stop(mut self) {
        if FileId::without_time(&self.socket) == self.id
            && let Err(error) = fs::remove_file(&self.socket)
            && error.kind() != io::ErrorKind::NotFound
        {
            warn!(socket = %self.socket.display(), %error, "remove the socket");
        }
        self.stop.send_replace(true);
        if timeout(STOP_TIMEOUT, &mut self.task).await.is_err() {
            self.task.abort();
        }
    }
}

/// A server that is dropped takes its socket with it: nothing is left behind when a task is aborted.
impl Drop for PluginServer {
    fn drop(&mut self) {
        self.task.abort();
        if self.id.is_some() && FileId::without_time(&self.socket) == self.id {
            _ = fs::remove_file(&self.socket);
        }
    }
}

/// Returns when `stopped` is set.
pub async fn until_stopped(mut stopped: watch::Receiver<bool>) {
    // An error means that the server was dropped, which stops it too.
    _ = stopped.wait_for(|stopped| *stopped).await;
}

/// The five calls of the device plugin API.
struct Service {
    offer: watch::Receiver<Offer>,
    streams: watch::Sender<Streams>,
    stopped: watch::Receiver<bool>,
    host_root: Arc<Path>,
}

/// One `ListAndWatch` stream.
struct ListStream {
    offer: watch::Receiver<Offer>,
    stopped: watch::Receiver<bool>,
    streams: watch::Sender<Streams>,
    sent: Option<Arc<Resource>>,
}

impl ListStream {
    /// The next list, when it differs from the one before; none when the server stops.
    async fn next(&mut self) -> Option<ListAndWatchResponse> {
        loop {
            let resource = self.offer.borrow_and_update().resource.clone();
            if self.sent.as_ref().is_none_or(|sent| !same_list(sent, &resource)) {
                if self.sent.is_none() {
                    self.streams.send_modify(|streams| streams.opened += 1);
                }
                debug!(resource = resource.name, devices = resource.len(), "send the device list");
                let response = device_list(&resource);
                self.sent = Some(resource);
                return Some(response);
            }
            tokio::select! {
                changed = self.offer.changed() => changed.ok()?,
                () = until_stopped(self.stopped.clone()) => return None,
            }
        }
    }
}

impl Drop for ListStream {
    fn drop(&mut self) {
        if self.sent.is_some() {
            self.streams.send_modify(|streams| streams.ended += 1);
        }
    }
}

/// Whether two resources give the kubelet the same list.
fn same_list(one: &Resource, other: &Resource) -> bool {
    one.gpus == other.gpus && one.replicas == other.replicas
}

fn device_list(resource: &Resource) -> ListAndWatchResponse {
    let devices = resource.devices().map(|device| Device {
        id: device.id,
        health: HEALTHY.to_owned(),
        topology: device.numa_node.map(|node| TopologyInfo { nodes: vec![NumaNode { id: node.into() }] }),
    });
    ListAndWatchResponse { devices: devices.collect() }
}

impl From<allocate::Error> for Status {
    fn from(error: allocate::Error) -> Self {
        Self::invalid_argument(error.to_string())
    }
}

#[tonic::async_trait]
impl DevicePlugin for Service {
    type ListAndWatchStream = Pin<Box<dyn Stream<Item = Result<ListAndWatchResponse, Status>> + Send>>;

    async fn get_device_plugin_options(&self, _: Request<Empty>) -> Result<Response<DevicePluginOptions>, Status> {
        let options = DevicePluginOptions { pre_start_required: false, get_preferred_allocation_available: true };
        Ok(Response::new(options))
    }

    async fn list_and_watch(&self, _: Request<Empty>) -> Result<Response<Self::ListAndWatchStream>, Status> {
        let state = ListStream {
            offer: self.offer.clone(),
            stopped: self.stopped.clone(),
            streams: self.streams.clone(),
            sent: None,
        };
        let lists = stream::unfold(state, |mut state| async move { Some((Ok(state.next().await?), state)) });
        Ok(Response::new(Box::pin(lists)))
    }

    async fn get_preferred_allocation(
        &self,
        request: Request<PreferredAllocationRequest>,
    ) -> Result<Response<PreferredAllocationResponse>, Status> {
        let resource = self.offer.borrow().resource.clone();
        let choose = |wanted: crate::device_plugin_api::ContainerPreferredAllocationRequest| {
            let size = usize::try_from(wanted.allocation_size).unwrap_or_default();
            let ids = resource.preferred(&wanted.available_device_i_ds, &wanted.must_include_device_i_ds, size);
            ContainerPreferredAllocationResponse { device_i_ds: ids }
        };
        let container_responses = request.into_inner().container_requests.into_iter().map(choose).collect();
        Ok(Response::new(PreferredAllocationResponse { container_responses }))
    }

    async fn allocate(&self, request: Request<AllocateRequest>) -> Result<Response<AllocateResponse>, Status> {
        let Offer { resource, pass_device_specs } = self.offer.borrow().clone();
        let control_nodes = pass_device_specs.then(|| control_nodes(&self.host_root));
        let mut container_responses = Vec::new();
        for container in request.into_inner().container_requests {
            let response = allocate(&resource, control_nodes.as_deref(), &container.devices_ids)
                .inspect_err(|error| warn!(%error, "allocation refused"))?;
            info!(resource = resource.name, devices = ?container.devices_ids, "allocated");
            container_responses.push(response);
        }
        Ok(Response::new(AllocateResponse { container_responses }))
    }

    async fn pre_start_container(
        &self,
        _: Request<PreStartContainerRequest>,
    ) -> Result<Response<PreStartContainerResponse>, Status> {
        Ok(Response::new(PreStartContainerResponse {}))
    }
}
