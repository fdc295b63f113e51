//! The audit log of the API server: who wrote what.

use anyhow::{Context, Result};
use gpunode_cluster::end_of_whole_lines;
use jiff::Timestamp;
use serde_json::Value;
use std::{
    fs::File,
    io::{Read, Seek, SeekFrom},
    path::PathBuf,
};

/// A view of the audit log from one moment on.
#[derive(Debug, Clone)]
pub struct AuditLog {
    path: PathBuf,
    from: u64,
}

/// One finished request.
#[derive(Debug, Clone)]
pub struct AuditEvent(Value);

impl AuditLog {
    /// Follows the log from now on.
    pub fn from_now(path: PathBuf) -> Result<Self> {
        let from = end_of_whole_lines(&path)?;
        Ok(Self { path, from })
    }

    /// All that was ever logged.
    pub fn entire(path: PathBuf) -> Self {
        Self { path, from: 0 }
    }

    /// The finished requests, in order.
    pub fn events(&self) -> Result<Vec<AuditEvent>> {
        let mut file = File::open(&self.path).with_context(|| format!("open {}", self.path.display()))?;
        file.seek(SeekFrom::Start(self.from))
            .context("skip what was logged before")?;
        let mut text = String::new();
        file.read_to_string(&mut text).context("read the audit log")?;
        // The last line may be half written.
        let whole_lines = text.rfind('\n').map_or("", |end| &text[..end]);
        whole_lines
            .lines()
            .map(|line| {
                Ok(AuditEvent(
                    serde_json::from_str(line).context("parse a line of the audit log")?,
                ))
            })
            .collect()
    }

    /// Accepted writes of gpunode's accounts; the Lease is left out.
    pub fn gpunode_writes(&self) -> Result<Vec<AuditEvent>> {
        Ok(self
            .events()?
            .into_iter()
            .filter(|event| {
                event.is_gpunode() && event.is_write() && event.is_accepted() && event.resource() != "leases"
            })
            .collect())
    }
}

impl AuditEvent {
    fn text(&self, pointer: &str) -> &str {
        self.0.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
    }

    /// The account.
    pub fn user(&self) -> &str {
        self.text("/user/username")
    }

    /// The pod whose token was used.
    pub fn pod(&self) -> &str {
        self.text("/user/extra/authentication.kubernetes.io~1pod-name/0")
    }

    /// The verb that RBAC saw.
    pub fn verb(&self) -> &str {
        self.text("/verb")
    }

    /// API group, empty for the core.
    pub fn group(&self) -> &str {
        self.text("/objectRef/apiGroup")
    }

    /// The resource, with its subresource where one was named: `nodes`, `gpunodes/status`.
    pub fn resource(&self) -> String {
        match self.text("/objectRef/subresource") {
            "" => self.text("/objectRef/resource").to_owned(),
            subresource => format!("{}/{subresource}", self.text("/objectRef/resource")),
        }
    }

    /// Name of the object.
    pub fn name(&self) -> &str {
        self.text("/objectRef/name")
    }

    /// Namespace of the object, empty where it has none.
    pub fn namespace(&self) -> &str {
        self.text("/objectRef/namespace")
    }

    /// Body of the request, if the audit policy keeps it.
    pub fn request(&self) -> Option<&Value> {
        self.0.get("requestObject")
    }

    /// Returns the record in a patch of a node.
    pub fn record(&self) -> Option<&str> {
        let mut operations = self.request()?.as_array()?.iter();
        let record = operations.find(|operation| operation["path"] == "/metadata/annotations/gpunode.dev~1owned")?;
        record["value"].as_str()
    }

    /// Time of the answer.
    pub fn time(&self) -> Result<Timestamp> {
        self.text("/stageTimestamp")
            .parse()
            .context("parse the time of an audit event")
    }

    /// Status code of the answer.
    pub fn code(&self) -> u64 {
        self.0
            .pointer("/responseStatus/code")
            .and_then(Value::as_u64)
            .unwrap_or_default()
    }

    /// Returns true if the request succeeded.
    pub fn is_accepted(&self) -> bool {
        (200..300).contains(&self.code())
    }

    /// Returns true if an account of gpunode sent it.
    pub fn is_gpunode(&self) -> bool {
        self.user().starts_with("system:serviceaccount:gpunode-system:")
    }

    /// Returns true if it changes nothing but the record of a node, or the node's status as a result. Tests leave stale
    /// resources behind, whose keys are removed some minutes later: such a write says nothing about the test that runs
    /// then.
    pub fn is_of_record_alone(&self) -> bool {
        let is_record = |operation: &Value| {
            let path = operation["path"].as_str().unwrap_or_default();
            operation["op"] == "test" || path.starts_with("/metadata/annotations")
        };
        let is_patch = |patch: &Vec<Value>| patch.iter().all(is_record);
        let is_of_record = || self.request().and_then(Value::as_array).is_some_and(is_patch);
        self.resource() == "nodes/status" || (self.resource() == "nodes" && is_of_record())
    }

    /// Returns true if kubectl changed the spec of a policy.
    pub fn is_policy_change(&self) -> bool {
        let is_kubectl =
            self.text("/userAgent").starts_with("kubectl/") && !self.text("/requestURI").contains("dryRun=");
        let is_change = matches!(self.verb(), "create" | "update" | "patch") && self.is_accepted();
        self.resource() == "gpunodepolicies" && is_kubectl && is_change
    }

    /// Returns true for a request to change something.
    pub fn is_write(&self) -> bool {
        matches!(
            self.verb(),
            "create" | "update" | "patch" | "delete" | "deletecollection"
        )
    }
}

impl std::fmt::Display for AuditEvent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{} {} {} {} {} by {} ({})",
            self.text("/stageTimestamp"),
            self.code(),
            self.verb(),
            self.resource(),
            self.name(),
            self.user(),
            self.pod()
        )
    }
}
