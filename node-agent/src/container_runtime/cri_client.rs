//! Client of the container runtime: asks for its version and status over the socket that the kubelet uses.
//!
//! The agent sees the socket below the host's root, which is mounted read-only: Linux lets a process connect to a socket on
//! a read-only mount.

use crate::{
    container_runtime::{
        cri_api::{StatusRequest, VersionRequest, runtime_service_client::RuntimeServiceClient},
        settings::settings,
    },
    store::file_id::FileId,
};
use gpunode_crds::RuntimeStatus;
use std::{
    error::Error,
    iter,
    path::{Path, PathBuf},
    time::Duration,
};
use tokio::time::timeout;
use tonic::{
    Response, Status,
    transport::{Channel, Endpoint},
};

/// Sockets of container runtimes below the host's root. Those of one distribution or runtime come before containerd's own, which
/// may belong to a Docker that the kubelet does not use. `/var/run` is a link to `/run`, which would lead out of the host's root.
const SOCKETS: [&str; 6] = [
    "run/k3s/containerd/containerd.sock",
    "run/k0s/containerd.sock",
    "var/snap/microk8s/common/run/containerd.sock",
    "run/crio/crio.sock",
    "run/cri-dockerd.sock",
    "run/containerd/containerd.sock",
];

const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
const CALL_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum size of an answer. A verbose status has some ten kilobytes.
const MAX_ANSWER_BYTES: usize = 4 * 1024 * 1024;

/// Error of asking the container runtime.
#[derive(Debug, thiserror::Error)]
pub enum CriError {
    /// No known socket exists.
    #[error("ask the container runtime: found no socket below {}; known are {}", .0.display(), SOCKETS.join(", "))]
    NoSocket(PathBuf),
    /// The connection fails.
    #[error("ask the container runtime: connect to {path}: {}", innermost(.source))]
    Connect {
        /// The socket.
        path: PathBuf,
        /// The cause.
        source: tonic::transport::Error,
    },
    /// The runtime answers with an error.
    #[error("ask the container runtime: {call} on {path}: {}", .status.message())]
    Refused {
        /// The call.
        call: &'static str,
        /// The socket.
        path: PathBuf,
        /// The runtime's answer.
        status: Box<Status>,
    },
    /// The runtime does not answer.
    #[error("ask the container runtime: no answer to {call} on {path} within {CALL_TIMEOUT:?}")]
    NoAnswer {
        /// The call.
        call: &'static str,
        /// The socket.
        path: PathBuf,
    },
}

/// Returns the cause of all: an error of the transport says itself no more than that it is one.
fn innermost<'a>(error: &'a (dyn Error + 'static)) -> &'a (dyn Error + 'static) {
    iter::successors(Some(error), |&error| error.source())
        .last()
        .unwrap_or(error)
}

/// Returns the identity of each known socket. Blocks.
pub fn socket_ids(host_root: &Path) -> [Option<FileId>; SOCKETS.len()] {
    SOCKETS.map(|socket| FileId::of(&host_root.join(socket)))
}

/// Returns the settings of the first runtime that answers. One that answers with its version alone has a `problem`.
pub async fn runtime_settings(host_root: &Path) -> Result<RuntimeStatus, CriError> {
    let mut error = CriError::NoSocket(host_root.to_owned());
    for socket in SOCKETS.map(|socket| host_root.join(socket)) {
        if FileId::of(&socket).is_none() {
            continue;
        }
        match ask(&socket).await {
            Ok(status) => return Ok(status),
            Err(failed) => error = failed,
        }
    }
    Err(error)
}

async fn ask(socket: &Path) -> Result<RuntimeStatus, CriError> {
    let mut client = connect(socket).await?;
    // The version of the kubelet's API that the kubelet sends too.
    let request = VersionRequest {
        version: "0.1.0".to_owned(),
    };
    let version = answer("Version", socket, client.version(request)).await?;
    let status = answer("Status", socket, client.status(StatusRequest { verbose: true })).await;
    match status {
        Ok(status) => Ok(settings(&version, Some(&status))),
        Err(error) => Ok(RuntimeStatus {
            problem: Some(error.to_string()),
            ..settings(&version, None)
        }),
    }
}

async fn connect(socket: &Path) -> Result<RuntimeServiceClient<Channel>, CriError> {
    let failed = |source| CriError::Connect {
        path: socket.to_owned(),
        source,
    };
    let endpoint = Endpoint::from_shared(format!("unix://{}", socket.display())).map_err(failed)?;
    let channel = endpoint
        .connect_timeout(CONNECT_TIMEOUT)
        .connect()
        .await
        .map_err(failed)?;
    Ok(RuntimeServiceClient::new(channel).max_decoding_message_size(MAX_ANSWER_BYTES))
}

async fn answer<T>(
    call: &'static str,
    socket: &Path,
    request: impl Future<Output = Result<Response<T>, Status>>,
) -> Result<T, CriError> {
    let path = || socket.to_owned();
    match timeout(CALL_TIMEOUT, request).await {
        Ok(answer) => {
            let refused = |status| CriError::Refused {
                call,
                path: path(),
                status: Box::new(status),
            };
            answer.map(Response::into_inner).map_err(refused)
        }
        Err(_) => Err(CriError::NoAnswer { call, path: path() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_socket_that_nobody_serves_is_said_with_the_cause() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("containerd.sock");
        drop(std::os::unix::net::UnixListener::bind(&socket).unwrap());
        let error = ask(&socket).await.unwrap_err().to_string();
        assert!(error.contains("containerd.sock: Connection refused"), "{error}");
    }
}
