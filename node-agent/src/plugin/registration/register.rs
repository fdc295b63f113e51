//! The call that registers a plugin with the kubelet.

use crate::kubelet::device_plugin_api::{
    DevicePluginOptions, RegisterRequest, VERSION, registration_client::RegistrationClient,
};
use std::{
    path::{Path, PathBuf},
    time::Duration,
};
use tokio::time::timeout;
use tonic::transport::Endpoint;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum wait for the kubelet's answer. The kubelet first calls back, for up to 10 s.
const REGISTER_TIMEOUT: Duration = Duration::from_secs(15);

/// Error of a registration.
#[derive(Debug, thiserror::Error)]
pub enum RegisterError {
    /// The socket does not exist.
    #[error("{0} does not exist; is the kubelet running?")]
    NoKubelet(PathBuf),
    /// The connection fails.
    #[error("connect to {path}: {source:?}")]
    Connect {
        /// The socket.
        path: PathBuf,
        /// The cause.
        source: tonic::transport::Error,
    },
    /// The kubelet does not answer.
    #[error("no answer within {REGISTER_TIMEOUT:?}")]
    NoAnswer,
    /// The kubelet refuses.
    #[error("{}", .0.message())]
    Refused(tonic::Status),
}

/// Registers the plugin on `socket` with the kubelet on `kubelet_socket`.
pub async fn register(kubelet_socket: &Path, resource: &str, socket: &Path) -> Result<(), RegisterError> {
    let path = kubelet_socket;
    if !path.exists() {
        return Err(RegisterError::NoKubelet(path.to_owned()));
    }
    let connect = |source| RegisterError::Connect {
        path: path.to_owned(),
        source,
    };
    let endpoint = Endpoint::from_shared(format!("unix://{}", path.display())).map_err(connect)?;
    let channel = endpoint
        .connect_timeout(CONNECT_TIMEOUT)
        .connect()
        .await
        .map_err(connect)?;
    let request = RegisterRequest {
        version: VERSION.to_owned(),
        endpoint: socket.file_name().unwrap_or_default().to_string_lossy().into_owned(),
        resource_name: resource.to_owned(),
        options: Some(DevicePluginOptions {
            pre_start_required: false,
            get_preferred_allocation_available: true,
        }),
    };
    let mut client = RegistrationClient::new(channel);
    match timeout(REGISTER_TIMEOUT, client.register(request)).await {
        Ok(answer) => answer.map(drop).map_err(RegisterError::Refused),
        Err(_) => Err(RegisterError::NoAnswer),
    }
}
