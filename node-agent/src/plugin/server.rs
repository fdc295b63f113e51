//! One device plugin server: serves one resource on one socket, with its list from a watch channel.

use crate::{
    admin::metrics::{AgentMetrics, PluginMethod},
    devices::{advertised::AdvertisedList, manager::DeviceManager, served::ListHold},
    kubelet::device_plugin_api::{
        AllocateRequest, AllocateResponse, ContainerPreferredAllocationResponse, Device, DevicePluginOptions, Empty,
        HEALTHY, ListAndWatchResponse, NumaNode, PreStartContainerRequest, PreStartContainerResponse,
        PreferredAllocationRequest, PreferredAllocationResponse, TopologyInfo, UNHEALTHY,
        device_plugin_server::{DevicePlugin, DevicePluginServer},
    },
    store::file_id::FileId,
};
use futures::{Stream, stream};
use gpunode_gpu::{AdvertisedResource, AdvertisedShare};
use std::{
    fs, io,
    path::{Path, PathBuf},
    pin::Pin,
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::{
    net::UnixListener,
    sync::watch,
    task::JoinHandle,
    time::{sleep, timeout},
};
use tokio_stream::wrappers::UnixListenerStream;
use tonic::{Request, Response, Status, transport::Server};
use tracing::{debug, info, warn};

/// Maximum time for calls in progress when a server stops: SIGTERM leaves a second for everything.
const STOP_TIMEOUT: Duration = Duration::from_millis(300);

/// Maximum number of ids in a log line.
const MAX_LOGGED: usize = 4;

/// Numbers of device list streams that the kubelet has opened, and that have ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StreamCounts {
    /// Streams that sent their first list.
    pub opened: u64,
    /// Those of them that ended.
    pub ended: u64,
}

/// A running server and its socket.
#[derive(Debug)]
pub struct PluginServer {
    socket: PathBuf,
    id: Option<FileId>,
    streams: watch::Receiver<StreamCounts>,
    hold: watch::Sender<Option<ListHold>>,
    stop: watch::Sender<bool>,
    task: JoinHandle<()>,
}

impl PluginServer {
    /// Serves on `socket`, which must not exist.
    pub fn bind(
        socket: &Path,
        advertised: watch::Receiver<AdvertisedList>,
        manager: Arc<DeviceManager>,
    ) -> io::Result<Self> {
        let listener = UnixListener::bind(socket)?;
        let (stop, stopped) = watch::channel(false);
        let (hold, list_hold) = watch::channel(None);
        let (streams, stream_counts) = watch::channel(StreamCounts::default());
        let service = DevicePluginService {
            advertised,
            streams,
            hold: list_hold,
            stopped: stopped.clone(),
            manager,
        };
        let server = Server::builder()
            .add_service(DevicePluginServer::new(service))
            .serve_with_incoming_shutdown(UnixListenerStream::new(listener), until_stopped(stopped));
        let task = tokio::spawn(async move {
            if let Err(error) = server.await {
                // The state machine notices the lost streams and binds again.
                warn!(%error, "device plugin server ended");
            }
        });
        Ok(Self {
            socket: socket.to_owned(),
            id: FileId::without_time(socket),
            streams: stream_counts,
            hold,
            stop,
            task,
        })
    }

    /// Returns true if the kubelet can still reach this server by its socket.
    pub fn is_reachable(&self) -> bool {
        self.id.is_some() && FileId::without_time(&self.socket) == self.id && !self.task.is_finished()
    }

    /// Returns the path of the server's socket.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Returns the numbers of streams, as they change.
    pub fn streams(&self) -> watch::Receiver<StreamCounts> {
        self.streams.clone()
    }

    /// Returns a switch that holds new lists back. When a proven hold ends, the list is sent again.
    pub fn hold(&self) -> watch::Sender<Option<ListHold>> {
        self.hold.clone()
    }

    /// Removes the socket, ends the streams and waits briefly for calls in progress.
    pub async fn stop(mut self) {
        if FileId::without_time(&self.socket) == self.id
            && let Err(error) = fs::remove_file(&self.socket)
            && error.kind() != io::ErrorKind::NotFound
        {
            warn!(socket = %self.socket.display(), %error, "cannot remove the socket");
        }
        self.stop.send_replace(true);
        if timeout(STOP_TIMEOUT, &mut self.task).await.is_err() {
            self.task.abort();
        }
    }
}

/// Removes the socket, so that an aborted task leaves nothing behind.
impl Drop for PluginServer {
    fn drop(&mut self) {
        self.task.abort();
        if self.id.is_some() && FileId::without_time(&self.socket) == self.id {
            _ = fs::remove_file(&self.socket);
        }
    }
}

/// Waits until `stopped` is set.
pub async fn until_stopped(mut stopped: watch::Receiver<bool>) {
    // An error means that the server was dropped, which also stops it.
    _ = stopped.wait_for(|stopped| *stopped).await;
}

/// Implements the five calls of the device plugin API.
struct DevicePluginService {
    advertised: watch::Receiver<AdvertisedList>,
    streams: watch::Sender<StreamCounts>,
    hold: watch::Receiver<Option<ListHold>>,
    stopped: watch::Receiver<bool>,
    manager: Arc<DeviceManager>,
}

/// One `ListAndWatch` stream.
struct ListStream {
    advertised: watch::Receiver<AdvertisedList>,
    /// Reason to hold lists back.
    hold: watch::Receiver<Option<ListHold>>,
    /// True if a proven hold began since the last list: the kubelet may have the list of another plugin.
    was_replaced: bool,
    stopped: watch::Receiver<bool>,
    streams: watch::Sender<StreamCounts>,
    sent: Option<AdvertisedList>,
    metrics: AgentMetrics,
}

impl ListStream {
    /// Returns the first list, and then each that differs from the last one sent, unless lists are held back; none when the
    /// server stops.
    async fn next(&mut self) -> Option<ListAndWatchResponse> {
        loop {
            let hold = *self.hold.borrow_and_update();
            let is_replaced = hold.is_some_and(|hold| hold.is_proven);
            self.was_replaced |= is_replaced;
            let rest = hold.map_or(Duration::ZERO, |hold| {
                hold.until.saturating_duration_since(Instant::now())
            });
            let advertised = self.advertised.borrow_and_update().clone();
            let is_new =
                |sent: &AdvertisedList| sent.resource != advertised.resource || sent.resend < advertised.resend;
            let is_due = self
                .sent
                .as_ref()
                .is_none_or(|sent| rest.is_zero() && (is_new(sent) || (self.was_replaced && !is_replaced)));
            if is_due {
                self.was_replaced = is_replaced;
                if self.sent.is_none() {
                    self.streams.send_modify(|streams| streams.opened += 1);
                }
                debug!(
                    resource = advertised.resource.name,
                    shares = advertised.resource.shares.len(),
                    "send the device list"
                );
                let _timer = self.metrics.timer(PluginMethod::ListAndWatch);
                let response = device_list(&advertised.resource);
                self.sent = Some(advertised);
                return Some(response);
            }
            if !rest.is_zero() && self.sent.as_ref().is_some_and(is_new) {
                debug!(resource = advertised.resource.name, ?rest, "hold the device list back");
            }
            tokio::select! {
                changed = self.advertised.changed() => changed.ok()?,
                changed = self.hold.changed() => changed.ok()?,
                () = sleep(rest), if !rest.is_zero() => {}
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

fn device_list(list: &AdvertisedResource) -> ListAndWatchResponse {
    let device = |share: &AdvertisedShare| Device {
        id: share.id.clone(),
        health: if share.healthy { HEALTHY } else { UNHEALTHY }.to_owned(),
        topology: share.numa_node.map(|node| TopologyInfo {
            nodes: vec![NumaNode { id: node.into() }],
        }),
    };
    ListAndWatchResponse {
        devices: list.shares.iter().map(device).collect(),
    }
}

impl DevicePluginService {
    fn resource(&self) -> String {
        self.advertised.borrow().resource.name.clone()
    }
}

#[tonic::async_trait]
impl DevicePlugin for DevicePluginService {
    type ListAndWatchStream = Pin<Box<dyn Stream<Item = Result<ListAndWatchResponse, Status>> + Send>>;

    async fn get_device_plugin_options(&self, _: Request<Empty>) -> Result<Response<DevicePluginOptions>, Status> {
        let options = DevicePluginOptions {
            pre_start_required: false,
            get_preferred_allocation_available: true,
        };
        Ok(Response::new(options))
    }

    async fn list_and_watch(&self, _: Request<Empty>) -> Result<Response<Self::ListAndWatchStream>, Status> {
        let state = ListStream {
            advertised: self.advertised.clone(),
            hold: self.hold.clone(),
            was_replaced: false,
            stopped: self.stopped.clone(),
            streams: self.streams.clone(),
            sent: None,
            metrics: self.manager.metrics().clone(),
        };
        let manager = self.manager.clone();
        let lists = stream::unfold((state, manager), |(mut state, manager)| async move {
            let list = state.next().await?;
            if let Some(sent) = &state.sent {
                manager.list_sent(&sent.resource);
            }
            Some((Ok(list), (state, manager)))
        });
        Ok(Response::new(Box::pin(lists)))
    }

    async fn get_preferred_allocation(
        &self,
        request: Request<PreferredAllocationRequest>,
    ) -> Result<Response<PreferredAllocationResponse>, Status> {
        let _timer = self.manager.metrics().timer(PluginMethod::GetPreferredAllocation);
        let resource = self.resource();
        let mut container_responses = Vec::new();
        for container in request.into_inner().container_requests {
            let size = usize::try_from(container.allocation_size).unwrap_or_default();
            let (available, must) = (&container.available_device_i_ds, &container.must_include_device_i_ds);
            let device_i_ds = self.manager.preferred(&resource, available, must, size).await;
            container_responses.push(ContainerPreferredAllocationResponse { device_i_ds });
        }
        Ok(Response::new(PreferredAllocationResponse { container_responses }))
    }

    async fn allocate(&self, request: Request<AllocateRequest>) -> Result<Response<AllocateResponse>, Status> {
        let _timer = self.manager.metrics().timer(PluginMethod::Allocate);
        let resource = self.resource();
        let mut container_responses = Vec::new();
        for container in request.into_inner().container_requests {
            let ids = container.devices_ids;
            let response = self.manager.allocate(&resource, &ids).await.map_err(|refusal| {
                warn!(reason = %refusal, "allocation refused");
                Status::invalid_argument(refusal.to_string())
            })?;
            info!(resource, shares = ids.len(), first = ?ids.get(..MAX_LOGGED).unwrap_or(&ids), "allocated");
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

#[cfg(test)]
mod tests;
