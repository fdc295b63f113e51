//! Kubeconfig documents.

use std::net::Ipv4Addr;

use anyhow::Result;
use base64::{Engine, engine::general_purpose::STANDARD};
use serde_json::json;

use crate::pki::{Authority, Credential};

/// Port of the API server.
pub(crate) const API_PORT: u16 = 6443;

/// A document that holds all it needs, so that it can be copied anywhere. JSON, which is also YAML.
pub(crate) fn document(server: Ipv4Addr, authority: &Authority, user: &str, credential: &Credential) -> Result<String> {
    let document = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "gpunode", "cluster": {
            "server": format!("https://{server}:{API_PORT}"),
            "certificate-authority-data": STANDARD.encode(authority.certificate()),
        }}],
        "users": [{"name": user, "user": {
            "client-certificate-data": STANDARD.encode(&credential.certificate),
            "client-key-data": STANDARD.encode(&credential.key),
        }}],
        "contexts": [{"name": "gpunode", "context": {"cluster": "gpunode", "user": user}}],
        "current-context": "gpunode",
    });
    Ok(serde_json::to_string_pretty(&document)?)
}
