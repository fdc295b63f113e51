//! Registration of plugins, and what they send: pkg/kubelet/cm/devicemanager/plugin/v1beta1.

use super::{Client, Connection, ListMessage, State, lock};
use crate::api::{Empty, RegisterRequest, device_plugin_client::DevicePluginClient, registration_server::Registration};
use anyhow::{Context as _, Result};
use std::{
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};
use tokio::time::sleep;
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
        let resource = request.resource_name;
        let number = self.add_client(&resource);
        let connected = self.connect(number, &request.endpoint).await;
        // Before the first list.
        let mut state = lock(&self.state);
        let client = match connected {
            Ok(client) if state.connections.contains_key(&number) => client,
            failed => {
                // Also that of a plugin that has registered since.
                state.clients.remove(&resource);
                state.connections.remove(&number);
                let closed = || Status::cancelled("the client connection is closing");
                return Err(failed.err().unwrap_or_else(closed));
            }
        };
        let stream = tokio::spawn(list_and_watch(
            client.clone(),
            resource.clone(),
            number,
            self.state.clone(),
            self.folder.clone(),
        ));
        state.connections.insert(number, Connection::Streaming(stream));
        let endpoint = state.endpoints.entry(resource.clone()).or_default();
        endpoint.registrations += 1;
        endpoint.socket = request.endpoint;
        // The newest is called from now on. The stream of the one before stays open.
        state.plugins.insert(resource, client);
        Ok(Response::new(Empty {}))
    }
}

impl Registrar {
    /// Notes the newest plugin of a resource before the kubelet connects to it: `registerClient` of handler.go. Returns the
    /// number of its connection.
    fn add_client(&self, resource: &str) -> u64 {
        let mut state = lock(&self.state);
        state.dials += 1;
        let number = state.dials;
        state.clients.insert(resource.to_owned(), number);
        state.connections.insert(number, Connection::Dialling);
        number
    }

    /// Connects to a plugin and asks for its options: `Connect` of client.go.
    async fn connect(&self, number: u64, socket: &str) -> Result<Client, Status> {
        let mut client = dial(&self.folder.join(socket))
            .await
            .map_err(|e| Status::unknown(format!("{e:#}")))?;
        lock(&self.state).connections.insert(number, Connection::Dialled);
        client.get_device_plugin_options(Empty {}).await?;
        Ok(client)
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

async fn list_and_watch(mut client: Client, resource: String, number: u64, state: Arc<Mutex<State>>, folder: PathBuf) {
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
    let pause = {
        let mut state = lock(&state);
        state.ends.entry(resource.clone()).or_default().push(Instant::now());
        state.notice_pause
    };
    if !pause.is_zero() {
        sleep(pause).await;
    }
    let mut state = lock(&state);
    state.connections.remove(&number);
    // Up to 1.36 clients have the name of their resource only: the end of an old stream ends the newest plugin's
    // (`runClient` of handler.go).
    state.disconnect(&resource);
}
