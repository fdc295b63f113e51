//! The audit log of the API server: the operator's requests, in their order.

use anyhow::{Context, Result};
use gpunode_cluster::end_of_whole_lines;
use jiff::Timestamp;
use serde::Deserialize;
use std::{
    collections::BTreeMap,
    fs::File,
    io::{BufRead as _, BufReader, Seek as _, SeekFrom},
    path::PathBuf,
};

/// Start of the operator's user agent.
const OPERATOR: &str = "gpunode-operator/";
/// Field of a user with the id of the token.
const CREDENTIAL: &str = "authentication.kubernetes.io/credential-id";

/// The operator's requests from one moment on.
#[derive(Debug)]
pub struct OperatorRequests {
    path: PathBuf,
    offset: u64,
    requests: Vec<OperatorRequest>,
}

/// A request of an operator. A watch has an entry when it begins or is refused, and another one when it ends (`WithAudit` in
/// `pkg/endpoints/filters/audit.go` of k8s.io/apiserver).
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OperatorRequest {
    stage: String,
    #[serde(rename = "requestURI")]
    uri: String,
    verb: String,
    #[serde(default)]
    user_agent: String,
    #[serde(default)]
    user: RequestUser,
    #[serde(default)]
    object_ref: ObjectReference,
    #[serde(default)]
    response_status: ResponseStatus,
    /// Time at which the API server had the request.
    pub request_received_timestamp: Timestamp,
    /// Time at which it had answered.
    pub stage_timestamp: Timestamp,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct ObjectReference {
    resource: String,
    subresource: String,
    name: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct RequestUser {
    extra: BTreeMap<String, Vec<String>>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct ResponseStatus {
    code: u16,
}

impl OperatorRequests {
    /// Follows the log from now on.
    pub fn from_now(path: PathBuf) -> Result<Self> {
        Ok(Self {
            offset: end_of_whole_lines(&path)?,
            path,
            requests: Vec::new(),
        })
    }

    /// Reads on and returns all requests so far.
    pub fn read(&mut self) -> Result<&[OperatorRequest]> {
        let mut file = File::open(&self.path).with_context(|| format!("open {}", self.path.display()))?;
        file.seek(SeekFrom::Start(self.offset))
            .context("skip what was read before")?;
        let mut reader = BufReader::new(file);
        let mut line = String::new();
        loop {
            line.clear();
            let length = reader.read_line(&mut line).context("read the audit log")?;
            // The last line may be half written.
            if !line.ends_with('\n') {
                return Ok(&self.requests);
            }
            self.offset += u64::try_from(length)?;
            self.requests.extend(parse(&line)?);
        }
    }

    /// Accepted writes, the Lease and events left out.
    pub fn writes(&mut self) -> Result<impl Iterator<Item = &OperatorRequest>> {
        Ok(self.read()?.iter().filter(|request| request.is_object_write()))
    }

    /// Number of accepted writes to each object of a resource, such as `nodes` or `gpunodes/status`.
    pub fn writes_by_name(&mut self, resource: &str) -> Result<BTreeMap<String, usize>> {
        let mut writes = BTreeMap::new();
        for write in self.writes()?.filter(|write| write.resource() == resource) {
            *writes.entry(write.name().to_owned()).or_default() += 1;
        }
        Ok(writes)
    }

    /// Number of requests to write each object of a resource, those among them that were not accepted.
    pub fn write_requests_by_name(&mut self, resource: &str) -> Result<BTreeMap<String, usize>> {
        let mut requests = BTreeMap::new();
        let of_resource = |request: &&OperatorRequest| request.is_write() && request.resource() == resource;
        for request in self.read()?.iter().filter(of_resource) {
            *requests.entry(request.name().to_owned()).or_default() += 1;
        }
        Ok(requests)
    }
}

fn parse(line: &str) -> Result<Option<OperatorRequest>> {
    // Most lines are of others, and parsing is slow.
    if !line.contains(OPERATOR) {
        return Ok(None);
    }
    let request: OperatorRequest = serde_json::from_str(line).context("parse a line of the audit log")?;
    Ok(request.user_agent.starts_with(OPERATOR).then_some(request))
}

impl OperatorRequest {
    /// The resource, with its subresource where one was named.
    pub fn resource(&self) -> String {
        let of = &self.object_ref;
        if of.subresource.is_empty() {
            of.resource.clone()
        } else {
            format!("{}/{}", of.resource, of.subresource)
        }
    }

    /// Name of the object.
    pub fn name(&self) -> &str {
        &self.object_ref.name
    }

    /// Id of the token, which each replica has its own of.
    pub fn credential(&self) -> &str {
        let ids = self.user.extra.get(CREDENTIAL);
        ids.and_then(|ids| ids.first()).map_or("", String::as_str)
    }

    /// Returns true for an accepted renewal of the Lease.
    pub fn is_renewal(&self) -> bool {
        self.is_of_lease() && matches!(self.verb.as_str(), "update" | "patch" | "create") && self.code() < 300
    }

    /// HTTP status of the answer.
    pub fn code(&self) -> u16 {
        self.response_status.code
    }

    /// Returns true for a list, or for a watch that begins with a list of all objects.
    pub fn is_list(&self) -> bool {
        let is_streaming = self.verb == "watch" && self.uri.contains("sendInitialEvents=true");
        self.verb == "list" || (is_streaming && self.stage == "ResponseStarted")
    }

    /// Returns true for a request about the Lease.
    pub fn is_of_lease(&self) -> bool {
        self.object_ref.resource == "leases"
    }

    /// Returns true for an accepted write, the Lease and events left out.
    pub fn is_object_write(&self) -> bool {
        let is_counted = !["leases", "events"].contains(&self.object_ref.resource.as_str());
        is_counted && self.is_write() && (200..300).contains(&self.code())
    }

    fn is_write(&self) -> bool {
        let is_write = matches!(self.verb.as_str(), "create" | "update" | "patch" | "delete");
        is_write && self.stage == "ResponseComplete"
    }
}

/// Returns the seconds from one moment to another.
pub fn seconds_between(from: Timestamp, to: Timestamp) -> f64 {
    to.duration_since(from).as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(agent: &str, verb: &str, resource: &str, code: u16) -> String {
        format!(
            r#"{{"stage":"ResponseComplete","requestURI":"/x","verb":"{verb}","userAgent":"{agent}","objectRef":{{"resource":"{resource}","name":"a"}},"responseStatus":{{"code":{code}}},"requestReceivedTimestamp":"2026-01-01T00:00:00.000000Z","stageTimestamp":"2026-01-01T00:00:00.500000Z"}}"#
        )
    }

    #[test]
    fn refused_streaming_list_counts_once() {
        let entry = |stage: &str| {
            let watch = line("gpunode-operator/1", "watch", "nodes", 429)
                .replace("/x", "/api/v1/nodes?sendInitialEvents=true&watch=true")
                .replace("ResponseComplete", stage);
            parse(&watch).unwrap().unwrap()
        };
        assert!(entry("ResponseStarted").is_list());
        assert!(!entry("ResponseComplete").is_list());
        assert!(
            parse(&line("gpunode-operator/1", "list", "nodes", 429))
                .unwrap()
                .unwrap()
                .is_list()
        );
    }

    #[test]
    fn accepted_writes_of_the_operator_are_counted_by_object() {
        let parsed = |agent, verb, resource, code| parse(&line(agent, verb, resource, code)).unwrap();
        assert!(parsed("kubectl/1", "patch", "nodes", 200).is_none());
        let write = parsed("gpunode-operator/0.1.0", "patch", "nodes", 200).unwrap();
        assert!(write.is_object_write() && write.name() == "a" && write.resource() == "nodes");
        let took = seconds_between(write.request_received_timestamp, write.stage_timestamp);
        assert!((took - 0.5).abs() < 1e-9, "{took}");
        for (verb, resource, code) in [
            ("patch", "nodes", 409),
            ("update", "leases", 200),
            ("list", "nodes", 200),
        ] {
            let request = parsed("gpunode-operator/0.1.0", verb, resource, code).unwrap();
            assert!(!request.is_object_write(), "{verb} {resource} {code}");
            assert_eq!(request.is_write(), verb != "list");
        }
    }
}
