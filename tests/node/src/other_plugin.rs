//! A device plugin that is not gpunode's.

use crate::api::{
    AllocateRequest, AllocateResponse, ContainerAllocateResponse, ContainerPreferredAllocationResponse, Device,
    DevicePluginOptions, Empty, ListAndWatchResponse, PreStartContainerRequest, PreStartContainerResponse,
    PreferredAllocationRequest, PreferredAllocationResponse, RegisterRequest,
    device_plugin_server::{DevicePlugin, DevicePluginServer},
    registration_client::RegistrationClient,
};
use anyhow::Result;
use std::path::{Path, PathBuf};
use tokio::{net::UnixListener, sync::watch, task::JoinHandle};
use tokio_stream::{
    StreamExt as _,
    wrappers::{UnixListenerStream, WatchStream},
};
use tonic::{
    Request, Response, Status,
    transport::{Endpoint, Server},
};

/// Prefers the last ids, and refuses the id `refused`.
pub(crate) struct Plugin(pub watch::Receiver<Vec<Device>>);

#[tonic::async_trait]
impl DevicePlugin for Plugin {
    type ListAndWatchStream =
        std::pin::Pin<Box<dyn tokio_stream::Stream<Item = Result<ListAndWatchResponse, Status>> + Send>>;

    async fn get_device_plugin_options(&self, _: Request<Empty>) -> Result<Response<DevicePluginOptions>, Status> {
        Ok(Response::new(DevicePluginOptions {
            get_preferred_allocation_available: true,
            ..Default::default()
        }))
    }

    async fn list_and_watch(&self, _: Request<Empty>) -> Result<Response<Self::ListAndWatchStream>, Status> {
        let lists = WatchStream::new(self.0.clone()).map(|devices| Ok(ListAndWatchResponse { devices }));
        Ok(Response::new(Box::pin(lists)))
    }

    async fn get_preferred_allocation(
        &self,
        request: Request<PreferredAllocationRequest>,
    ) -> Result<Response<PreferredAllocationResponse>, Status> {
        let request = request.into_inner().container_requests.remove(0);
        let size = usize::try_from(request.allocation_size).unwrap_or_default();
        let mut ids = request.available_device_i_ds;
        ids.sort_by(|a, b| b.cmp(a));
        // One that was never available is among them.
        let ids = ["foreign".to_owned()].into_iter().chain(ids).take(size + 1).collect();
        let response = ContainerPreferredAllocationResponse { device_i_ds: ids };
        Ok(Response::new(PreferredAllocationResponse {
            container_responses: vec![response],
        }))
    }

    async fn allocate(&self, request: Request<AllocateRequest>) -> Result<Response<AllocateResponse>, Status> {
        let ids = request.into_inner().container_requests.remove(0).devices_ids;
        if ids.contains(&"refused".to_owned()) {
            return Err(Status::invalid_argument("it is refused"));
        }
        let response = ContainerAllocateResponse::default();
        Ok(Response::new(AllocateResponse {
            container_responses: vec![response],
        }))
    }

    async fn pre_start_container(
        &self,
        _: Request<PreStartContainerRequest>,
    ) -> Result<Response<PreStartContainerResponse>, Status> {
        Err(Status::unimplemented("not asked for"))
    }
}

/// A plugin that serves healthy devices of a resource, until it is dropped.
#[derive(Debug)]
pub struct OtherPlugin {
    server: JoinHandle<()>,
    socket: PathBuf,
    _devices: watch::Sender<Vec<Device>>,
}

impl OtherPlugin {
    /// Registers it with the kubelet of a folder of device plugins, with one device `another`.
    pub async fn register(folder: &Path, resource: &str) -> Result<Self> {
        Self::register_ids(folder, resource, &["another".to_owned()]).await
    }

    /// Registers it with these devices.
    pub async fn register_ids(folder: &Path, resource: &str, ids: &[String]) -> Result<Self> {
        let device = |id: &String| Device {
            id: id.clone(),
            health: "Healthy".to_owned(),
            topology: None,
        };
        let (devices, listed) = watch::channel(ids.iter().map(device).collect());
        let socket = folder.join("another.sock");
        _ = std::fs::remove_file(&socket);
        let incoming = UnixListenerStream::new(UnixListener::bind(&socket)?);
        let server = Server::builder().add_service(DevicePluginServer::new(Plugin(listed)));
        let server = tokio::spawn(async move { _ = server.serve_with_incoming(incoming).await });
        let other = Self {
            server,
            socket,
            _devices: devices,
        };
        let kubelet = Endpoint::from_shared(format!("unix://{}", folder.join("kubelet.sock").display()))?;
        let request = RegisterRequest {
            version: "v1beta1".to_owned(),
            endpoint: "another.sock".to_owned(),
            resource_name: resource.to_owned(),
            options: None,
        };
        RegistrationClient::new(kubelet.origin("http://localhost".parse()?).connect().await?)
            .register(request)
            .await?;
        Ok(other)
    }
}

impl Drop for OtherPlugin {
    fn drop(&mut self) {
        self.server.abort();
        // As a plugin in Go does.
        _ = std::fs::remove_file(&self.socket);
    }
}
