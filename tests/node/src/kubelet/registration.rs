//! Registration of plugins, and what they send: pkg/kubelet/cm/devicemanager/plugin/v1beta1.

use super::{Client, ListMessage, State, lock};
use crate::api::{Empty, RegisterRequest, device_plugin_client::DevicePluginClient, registration_server::Registration};
use anyhow::{Context as _, Result};
use std::{
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};
use tonic::{Request, Response, Status};

pub(super) struct Registrar {
    pub folder: PathBuf,
    pub state: Arc<Mutex<State>>,
}

#[tonic::async_trait]
impl Registration for Registrar {
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
        let mut client = dial(&self.folder.join(&request.endpoint))
            .await
            .map_err(|e| Status::unknown(format!("{e:#}")))?;
        client.get_device_plugin_options(Empty {}).await?;
        // Before the first list.
        let mut state = lock(&self.state);
        let stream = tokio::spawn(list_and_watch(
            client.clone(),
            request.resource_name.clone(),
            self.state.clone(),
            self.folder.clone(),
        ));
        let endpoint = state.endpoints.entry(request.resource_name.clone()).or_default();
        endpoint.registrations += 1;
        endpoint.socket = request.endpoint;
        // The newest is called from now on. The stream of the one before stays open.
        if let Some((_, old)) = state.clients.insert(request.resource_name, (client, stream)) {
            state.replaced.retain(|stream| !stream.is_finished());
            state.replaced.push(old);
        }
        Ok(Response::new(Empty {}))
    }
}

async fn dial(socket: &Path) -> Result<Client> {
    let endpoint = tonic::transport::Endpoint::from_shared(format!("unix://{}", socket.display()))?
        .origin("http://localhost".parse()?)
        .connect_timeout(Duration::from_secs(10));
    let channel = endpoint
        .connect()
        .await
        .with_context(|| format!("connect to {}", socket.display()))?;
    // tonic takes messages of at most 4 MiB, as gRPC for Go does.
    Ok(DevicePluginClient::new(channel))
}

async fn list_and_watch(mut client: Client, resource: String, state: Arc<Mutex<State>>, folder: PathBuf) {
    let Ok(answer) = client.list_and_watch(Empty {}).await else {
        return;
    };
    let mut lists = answer.into_inner();
    while let Ok(Some(list)) = lists.message().await {
        let mut state = lock(&state);
        let message = ListMessage {
            at: Instant::now(),
            devices: list.devices.clone(),
        };
        state.messages.entry(resource.clone()).or_default().push(message);
        let endpoint = state.endpoints.entry(resource.clone()).or_default();
        endpoint.connected = true;
        endpoint.lists += 1;
        endpoint.devices = list.devices;
        if state.pods.save(&folder).is_err() {
            break;
        }
    }
    let mut state = lock(&state);
    state.ends.entry(resource.clone()).or_default().push(Instant::now());
    // Up to 1.36 clients have the name of their resource only: the end of an old stream ends the newest plugin's
    // (`runClient` of handler.go).
    if let Some((_, newest)) = state.clients.remove(&resource) {
        newest.abort();
        if let Some(endpoint) = state.endpoints.get_mut(&resource) {
            endpoint.connected = false;
        }
    }
}
