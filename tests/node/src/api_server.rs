//! An API server with the GpuNode of one node, as far as an agent needs one: list, watch, and changes of its status, over TLS.

use crate::node::NAME;
use anyhow::{Context as _, Result};
use gpunode_config::{CONFIG_VERSION, ConfigDocument};
use rcgen::{CertifiedKey, generate_simple_self_signed};
use serde_json::{Value, json};
use std::{
    io,
    net::{Ipv4Addr, SocketAddr},
    sync::Arc,
};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, BufReader},
    net::TcpListener,
    sync::watch,
    task::JoinHandle,
};
use tokio_rustls::{TlsAcceptor, rustls::ServerConfig};

/// Path of the GpuNodes.
const GPU_NODES: &str = "/apis/gpunode.dev/v1alpha1/gpunodes";

/// The API server; ends when dropped.
#[derive(Debug)]
pub struct ApiServer {
    address: SocketAddr,
    certificate: String,
    gpu_node: Arc<watch::Sender<Value>>,
    server: JoinHandle<()>,
}

impl ApiServer {
    /// Starts with a GpuNode that has no configuration.
    pub async fn start() -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await.context("bind the API server")?;
        let address = listener.local_addr()?;
        let names = [Ipv4Addr::LOCALHOST.to_string()];
        let CertifiedKey { cert, signing_key } = generate_simple_self_signed(names).context("make a certificate")?;
        let tls = ServerConfig::builder()
            .with_no_client_auth()
            .with_single_cert(vec![cert.der().clone()], signing_key.into())
            .context("use the certificate")?;
        let tls = TlsAcceptor::from(Arc::new(tls));
        let gpu_node = json!({"apiVersion": "gpunode.dev/v1alpha1", "kind": "GpuNode", "spec": {},
            "metadata": {"name": NAME, "uid": "6f1a5f1e-0d51-4f9a-8d1c-1f6a1d0c8a77", "resourceVersion": "1"}});
        let gpu_node = Arc::new(watch::Sender::new(gpu_node));
        let object = gpu_node.clone();
        let server = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (tls, object) = (tls.clone(), object.clone());
                // A connection that breaks is the agent's business.
                tokio::spawn(async move { serve(tls.accept(stream).await?, object).await });
            }
        });
        Ok(Self {
            address,
            certificate: cert.pem(),
            gpu_node,
            server,
        })
    }

    /// Its address for a kubeconfig.
    pub fn url(&self) -> String {
        format!("https://{}", self.address)
    }

    /// Its certificate, which signs itself; PEM.
    pub fn certificate(&self) -> &str {
        &self.certificate
    }

    /// Sets fields of the GpuNode's specification.
    pub fn set_spec(&self, fields: &Value) {
        change(&self.gpu_node, &json!({"spec": fields}));
    }

    /// Gives the node a configuration. What it needs is approved once its GPUs await that, as by the operator.
    pub fn configure(&self, document: &str) {
        self.set_spec(&json!({"config": config(document), "change": null}));
    }

    /// Gives the node a configuration, with a change in this state.
    pub fn request(&self, state: &str, document: &str) {
        let config = config(document);
        let change = change_to(&self.gpu_node.borrow(), state, &config["hash"]);
        self.set_spec(&json!({"config": config, "change": change}));
    }

    /// Returns a field of the GpuNode's specification.
    pub fn spec(&self, pointer: &str) -> Option<Value> {
        self.gpu_node.borrow()["spec"].pointer(pointer).cloned()
    }

    /// Returns a field of the GpuNode's status.
    pub fn status(&self, pointer: &str) -> Option<Value> {
        self.gpu_node.borrow()["status"].pointer(pointer).cloned()
    }

    /// Returns the reason of a condition of the GpuNode.
    pub fn reason(&self, condition: &str) -> Option<String> {
        let object = self.gpu_node.borrow();
        let mut conditions = object["status"]["conditions"].as_array().into_iter().flatten();
        let found = conditions.find(|found| found["type"] == condition)?;
        found["reason"].as_str().map(str::to_owned)
    }
}

impl Drop for ApiServer {
    fn drop(&mut self) {
        self.server.abort();
    }
}

/// Applies a merge patch, which makes a new version. Returns the object.
fn change(gpu_node: &watch::Sender<Value>, patch: &Value) -> Value {
    gpu_node.send_modify(|object| {
        let version = version(object);
        json_patch::merge(object, patch);
        object["metadata"]["resourceVersion"] = Value::String((version + 1).to_string());
    });
    gpu_node.borrow().clone()
}

fn config(document: &str) -> Value {
    json!({"policy": "layouts", "version": CONFIG_VERSION, "hash": ConfigDocument::hash_of(document), "document": document})
}

fn change_to(object: &Value, state: &str, hash: &Value) -> Value {
    let version = version(object);
    // Each change has a second of its own.
    let since = format!("2026-01-01T00:{:02}:{:02}Z", version / 60 % 60, version % 60);
    let reason = (state == "Failed").then_some("DrainTimedOut");
    json!({"state": state, "hash": hash, "since": since, "reason": reason})
}

/// Approves the change that GPUs await, unless one is under way.
fn approve(gpu_node: &watch::Sender<Value>) {
    let object = gpu_node.borrow().clone();
    let (spec, status) = (&object["spec"], &object["status"]);
    let is_open = !spec["change"].is_null() && spec["change"]["since"] != status["finishedChange"];
    let mut gpus = status["gpus"].as_array().into_iter().flatten();
    let awaits = gpus.any(|gpu| gpu["mig"]["phase"] == "AwaitingApproval");
    if awaits && !is_open && status["configHash"] == spec["config"]["hash"] {
        let approved = change_to(&object, "Approved", &spec["config"]["hash"]);
        change(gpu_node, &json!({"spec": {"change": approved}}));
    }
}

fn version(object: &Value) -> u64 {
    let version = object["metadata"]["resourceVersion"].as_str();
    version.and_then(|version| version.parse().ok()).unwrap_or_default()
}

struct Request {
    method: String,
    path: String,
    query: String,
    body: Vec<u8>,
}

impl Request {
    /// Reads the next request; none at the end of the connection.
    async fn read(stream: &mut BufReader<impl AsyncRead + Unpin>) -> io::Result<Option<Self>> {
        let mut line = String::new();
        if stream.read_line(&mut line).await? == 0 {
            return Ok(None);
        }
        let mut words = line.split_whitespace();
        let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let mut request = Self {
            method: method.to_owned(),
            path: path.to_owned(),
            query: query.to_owned(),
            body: Vec::new(),
        };
        let mut length = 0;
        loop {
            let mut header = String::new();
            stream.read_line(&mut header).await?;
            let Some((name, value)) = header.trim_end().split_once(':') else {
                break;
            };
            if name.eq_ignore_ascii_case("content-length") {
                length = value.trim().parse().unwrap_or_default();
            }
        }
        request.body.resize(length, 0);
        stream.read_exact(&mut request.body).await?;
        Ok(Some(request))
    }

    fn parameter(&self, name: &str) -> Option<&str> {
        let mut parameters = self.query.split('&').filter_map(|pair| pair.split_once('='));
        parameters.find_map(|(key, value)| (key == name).then_some(value))
    }

    /// Returns status and body of the answer.
    fn answer(&self, gpu_node: &watch::Sender<Value>) -> (u16, Value) {
        let body = || serde_json::from_slice::<Value>(&self.body).unwrap_or_default();
        let (own, status) = (format!("{GPU_NODES}/{NAME}"), format!("{GPU_NODES}/{NAME}/status"));
        match (self.method.as_str(), self.path.as_str()) {
            ("GET", GPU_NODES) => {
                let object = gpu_node.borrow().clone();
                let metadata = json!({"resourceVersion": object["metadata"]["resourceVersion"]});
                let list = json!({"apiVersion": "gpunode.dev/v1alpha1", "kind": "GpuNodeList", "metadata": metadata,
                    "items": [object]});
                (200, list)
            }
            ("GET", path) if path == own => (200, gpu_node.borrow().clone()),
            ("PATCH", path) if path == status => {
                let mut changes = body();
                let named = changes.as_object_mut().and_then(|changes| changes.remove("metadata"));
                let named = named.filter(|metadata| !metadata["resourceVersion"].is_null());
                let is_stale = |metadata: Value| version(&json!({"metadata": metadata})) != version(&gpu_node.borrow());
                if named.is_some_and(is_stale) {
                    return failure(409, "Conflict");
                }
                let after = change(gpu_node, &changes);
                approve(gpu_node);
                (200, after)
            }
            ("GET", path) if path == format!("/api/v1/nodes/{NAME}") => (
                200,
                json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": NAME}}),
            ),
            ("POST", path) if path.ends_with("/events") => (201, body()),
            _ => failure(404, "NotFound"),
        }
    }
}

fn failure(code: u16, reason: &str) -> (u16, Value) {
    let status = json!({"apiVersion": "v1", "kind": "Status", "status": "Failure", "code": code, "reason": reason,
        "message": reason});
    (code, status)
}

async fn serve(stream: impl AsyncRead + AsyncWrite + Unpin, gpu_node: Arc<watch::Sender<Value>>) -> io::Result<()> {
    let mut stream = BufReader::new(stream);
    while let Some(request) = Request::read(&mut stream).await? {
        if request.method == "GET" && request.path == GPU_NODES && request.parameter("watch").is_some() {
            return stream_changes(stream.into_inner(), &request, gpu_node.subscribe()).await;
        }
        let (status, body) = request.answer(&gpu_node);
        let body = body.to_string();
        let head = format!(
            "HTTP/1.1 {status} -\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        stream.write_all((head + &body).as_bytes()).await?;
        stream.flush().await?;
    }
    Ok(())
}

/// Sends the GpuNode whenever it has another version than the agent knows.
async fn stream_changes(
    mut stream: impl AsyncWrite + Unpin,
    request: &Request,
    mut object: watch::Receiver<Value>,
) -> io::Result<()> {
    let head = "HTTP/1.1 200 -\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n";
    stream.write_all(head.as_bytes()).await?;
    stream.flush().await?;
    let known = request.parameter("resourceVersion");
    let mut known: u64 = known.and_then(|known| known.parse().ok()).unwrap_or_default();
    loop {
        let now = object.borrow_and_update().clone();
        if version(&now) != known {
            known = version(&now);
            let line = format!("{}\n", json!({"type": "MODIFIED", "object": now}));
            stream
                .write_all(format!("{:x}\r\n{line}\r\n", line.len()).as_bytes())
                .await?;
            stream.flush().await?;
        }
        if object.changed().await.is_err() {
            return Ok(());
        }
    }
}
