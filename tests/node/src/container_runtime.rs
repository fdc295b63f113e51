//! A container runtime's double, ruder than any real one.

use crate::{
    Node,
    api::cri::{
        RuntimeHandler, StatusRequest, StatusResponse, VersionRequest, VersionResponse,
        runtime_service_server::{RuntimeService, RuntimeServiceServer},
    },
};
use anyhow::{Context as _, Result};
use serde_json::Value;
use std::{collections::HashMap, fs, path::PathBuf};
use tokio::{net::UnixListener, task::JoinHandle};
use tokio_stream::wrappers::UnixListenerStream;
use tonic::{Request, Response, Status, transport::Server};

/// Behaviour of a container runtime.
#[derive(Clone, Debug)]
pub enum CriAnswer {
    /// It tells this configuration.
    Config(Value),
    /// Its configuration is no JSON.
    Junk,
    /// Its configuration has this many bytes.
    Huge(usize),
    /// It answers to `Version` alone.
    StatusNever,
    /// It refuses `Status`.
    StatusRefused,
    /// It answers to nothing.
    Never,
    /// It knows no call, as a containerd without its CRI plugin.
    Unimplemented,
}

/// A running double; it ends when dropped.
#[derive(Debug)]
pub struct FakeRuntime {
    socket: PathBuf,
    server: JoinHandle<()>,
}

#[derive(Clone, Debug)]
struct Runtime {
    name: String,
    version: String,
    answer: CriAnswer,
}

impl FakeRuntime {
    /// Starts a runtime of this name and version on a socket below the node's root.
    pub fn start(node: &Node, socket: &str, (name, version): (&str, &str), answer: CriAnswer) -> Result<Self> {
        let socket = node.host_root().join(socket);
        fs::create_dir_all(socket.parent().context("find the socket's folder")?)?;
        let listener = UnixListener::bind(&socket).with_context(|| format!("bind {}", socket.display()))?;
        let runtime = Runtime {
            name: name.to_owned(),
            version: version.to_owned(),
            answer,
        };
        let server = Server::builder().add_service(RuntimeServiceServer::new(runtime));
        let server = tokio::spawn(async move {
            // It ends with the test.
            _ = server.serve_with_incoming(UnixListenerStream::new(listener)).await;
        });
        Ok(Self { socket, server })
    }
}

impl Drop for FakeRuntime {
    fn drop(&mut self) {
        self.server.abort();
        // A test may have removed the folder.
        _ = fs::remove_file(&self.socket);
    }
}

#[tonic::async_trait]
impl RuntimeService for Runtime {
    async fn version(&self, _: Request<VersionRequest>) -> Result<Response<VersionResponse>, Status> {
        match self.answer {
            CriAnswer::Never => std::future::pending().await,
            CriAnswer::Unimplemented => Err(Status::unimplemented("unknown service runtime.v1.RuntimeService")),
            _ => Ok(Response::new(VersionResponse {
                version: "0.1.0".to_owned(),
                runtime_name: self.name.clone(),
                runtime_version: self.version.clone(),
                runtime_api_version: "v1".to_owned(),
            })),
        }
    }

    async fn status(&self, request: Request<StatusRequest>) -> Result<Response<StatusResponse>, Status> {
        let config = match &self.answer {
            CriAnswer::Config(config) => config.to_string(),
            CriAnswer::Junk => "{\"enableCDI\": tru".to_owned(),
            CriAnswer::Huge(bytes) => "x".repeat(*bytes),
            CriAnswer::StatusNever | CriAnswer::Never => std::future::pending().await,
            CriAnswer::StatusRefused => return Err(Status::permission_denied("refused by the test")),
            CriAnswer::Unimplemented => return Err(Status::unimplemented("unknown service runtime.v1.RuntimeService")),
        };
        let is_verbose = request.into_inner().verbose;
        let info: HashMap<_, _> = is_verbose.then(|| ("config".to_owned(), config)).into_iter().collect();
        let handlers = ["", "runc"].map(|name| RuntimeHandler { name: name.to_owned() });
        Ok(Response::new(StatusResponse {
            info,
            runtime_handlers: handlers.into(),
        }))
    }
}
