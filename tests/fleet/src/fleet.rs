//! The fleet on its cluster: nodes, policies, operators, and waiting for what they do.

use crate::{
    api::{ApiClient, GPU_NODES, LEASE, NODES, Named, POLICIES, PatchForm, refusal},
    audit::OperatorRequests,
    objects::{AgentReport, gpu_node, node, node_name},
    operator_process::{OperatorProcess, OperatorSettings},
    progress::{WaitProgress, with_progress},
    simulated_agents::{AgentBehaviour, SimulatedAgents, send_report},
};
use anyhow::{Context, Result, ensure};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use gpunode_cluster::Cluster;
use gpunode_crds::OWNED_ANNOTATION;
use serde::{Deserialize, de::IgnoredAny};
use serde_json::{Value, json};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::time::sleep;

/// Requests that run at the same time while the fleet is created or deleted.
const CONCURRENCY: usize = 16;
/// Parts into which labels of the nodes divide the fleet.
const PARTS: [usize; 2] = [6, 30];
/// Time between two looks at the audit log.
const LOOK: Duration = Duration::from_millis(200);
/// Time between two looks at the status of all policies.
const LOOK_AT_STATUSES: Duration = Duration::from_secs(1);
/// Longest wait for anything that does not depend on the number of nodes.
const LIMIT: Duration = Duration::from_mins(4);
/// The same for each node of the fleet.
const LIMIT_PER_NODE: Duration = Duration::from_millis(60);
/// The user of writes that are compared with those of the operators.
const RAW_CLIENT: &str = "fleet-raw";
/// Names of the operators' pods.
const PODS: [&str; 2] = ["fleet-operator-a", "fleet-operator-b"];

/// A fleet of simulated nodes on a control plane.
pub struct Fleet {
    cluster: Arc<Cluster>,
    binary: PathBuf,
    admin: ApiClient,
    account: ApiClient,
    agents: SimulatedAgents,
    size: usize,
}

/// Two replicas of the operator.
pub struct OperatorPair {
    processes: Vec<OperatorProcess>,
}

impl Fleet {
    /// Installs gpunode without its pods on a running cluster, and leaves as many nodes there as asked for.
    pub async fn on_cluster(name: &str, size: usize) -> Result<Self> {
        let cluster = Cluster::attach(name).with_context(|| format!("find the cluster {name} of the fleet"))?;
        let repository = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..");
        println!("        installing gpunode's objects");
        let manifests = repository.join("manifests/default").to_string_lossy().into_owned();
        cluster.kubectl_output(["apply", "-k", manifests.as_str()])?;
        cluster.kubectl_output(["wait", "--for=condition=Established", "crd", "--all", "--timeout=60s"])?;
        for user in PODS.into_iter().chain([RAW_CLIENT]) {
            write_kubeconfig(&cluster, &kubeconfig(&cluster, user))?;
        }
        let admin = ApiClient::connect(&cluster.kubeconfig(), "gpunode-fleet-admin").await?;
        let account = ApiClient::connect(&kubeconfig(&cluster, RAW_CLIENT), "gpunode-fleet").await?;
        let binary = repository.join("target/release/gpunode-operator");
        // The policies of an earlier run would make the operators write at once.
        let mut fleet = Self {
            cluster: Arc::new(cluster),
            binary,
            agents: SimulatedAgents::start(admin.clone()),
            admin,
            account,
            size: 0,
        };
        fleet.delete_policies().await?;
        fleet.resize(size).await?;
        Ok(fleet)
    }

    /// Number of nodes.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Requests as the administrator, as kubelets and agents send them.
    pub fn admin(&self) -> &ApiClient {
        &self.admin
    }

    /// Requests with the operator's account, which the API server treats as those of the operator.
    pub fn account(&self) -> &ApiClient {
        &self.account
    }

    /// The agents.
    pub fn agents(&self) -> &SimulatedAgents {
        &self.agents
    }

    /// Sends heartbeats of all nodes from now on.
    pub fn send_heartbeats(&mut self) {
        self.agents.send_heartbeats(self.size);
    }

    /// Follows the operators' requests from now on.
    pub fn requests(&self) -> Result<OperatorRequests> {
        OperatorRequests::from_now(self.cluster.audit_log())
    }

    /// Process id of the API server.
    pub fn api_server_pid(&self) -> Result<i32> {
        let process = self.cluster.control_plane_process("kube-apiserver")?;
        Ok(process.context("find the process of the API server")?.pid())
    }

    /// Restarts the API server, after which the versions of all watches are too old.
    pub async fn restart_api_server(&self) -> Result<()> {
        // A watch continues only where nothing was written since its last event or bookmark.
        for round in 0..3 {
            let path = "/api/v1/namespaces/default/configmaps/fleet-version?fieldManager=fleet&force=true";
            let object = json!({
                "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "fleet-version"},
                "data": {"round": format!("{round} {}", jiff::Timestamp::now())},
            });
            self.admin.patch::<IgnoredAny>(path, PatchForm::Apply, &object).await?;
        }
        let cluster = self.cluster.clone();
        let restart = tokio::task::spawn_blocking(move || cluster.restart_api_server());
        with_progress("the API server restarts", restart)
            .await
            .context("restart the API server")?
    }

    /// Address of the API server.
    pub fn api_server_address(&self) -> Result<SocketAddr> {
        let document = read_document(&self.cluster.kubeconfig())?;
        let server = document["clusters"][0]["cluster"]["server"]
            .as_str()
            .unwrap_or_default();
        let address = server.strip_prefix("https://").and_then(|text| text.parse().ok());
        address.with_context(|| format!("find an address in {server:?}"))
    }

    /// Creates or deletes nodes until the fleet has this size.
    pub async fn resize(&mut self, size: usize) -> Result<()> {
        let names = |objects: Vec<Named>| -> BTreeSet<String> {
            objects.into_iter().map(|object| object.metadata.name).collect()
        };
        let list = |path: &'static str| Box::pin(self.admin.list::<Named>(path, ""));
        let nodes = names(with_progress("the nodes of an earlier run are listed", list(NODES)).await?);
        // The last that is created of a node.
        let whole = names(with_progress("the GpuNodes of an earlier run are listed", list(GPU_NODES)).await?);
        let wanted: BTreeMap<String, usize> = (0..size).map(|index| (node_name(index), index)).collect();
        let fleet = &*self;
        let deletions = stream::iter(nodes.iter().filter(|name| !wanted.contains_key(*name)))
            .map(|name| fleet.delete_named(name))
            .buffer_unordered(CONCURRENCY)
            .try_collect::<Vec<()>>();
        with_progress("nodes beyond this size are deleted", Box::pin(deletions)).await?;
        let missing = wanted
            .iter()
            .filter(|(name, _)| !nodes.contains(*name) || !whole.contains(*name));
        let missing: Vec<usize> = missing.map(|(_, index)| *index).collect();
        let (mut progress, count) = (WaitProgress::start(), missing.len());
        let mut created = 0;
        let mut creations = stream::iter(missing)
            .map(|index| fleet.create_node(index))
            .buffer_unordered(CONCURRENCY);
        while let Some(creation) = creations.next().await {
            creation?;
            created += 1;
            progress.tick(|| format!("{created} of {count} nodes are created"));
        }
        drop(creations);
        self.size = size;
        Ok(())
    }

    /// Creates a node, its `GpuNode` and the status of a discovery agent, as far as they are missing.
    pub async fn create_node(&self, index: usize) -> Result<()> {
        let name = node_name(index);
        let path = format!("{NODES}?fieldManager=kubelet");
        let created = self.admin.create::<Named>(&path, &node(index, &PARTS)).await;
        let uid = match created {
            Ok(created) => created.metadata.uid,
            Err(error) if refusal(&error) == Some(409) => {
                let existing: Named = self.admin.get(&format!("{NODES}/{name}")).await?;
                existing.metadata.uid
            }
            Err(error) => return Err(error),
        };
        let path = format!("{GPU_NODES}?fieldManager=gpunode-agent");
        match self.admin.create::<IgnoredAny>(&path, &gpu_node(&name, &uid)).await {
            Ok(_) => send_report(&self.admin, &name, None, &AgentReport::default())
                .await
                .map(drop),
            Err(error) if refusal(&error) == Some(409) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Deletes a node with its `GpuNode`.
    pub async fn delete_node(&self, index: usize) -> Result<()> {
        self.delete_named(&node_name(index)).await
    }

    async fn delete_named(&self, name: &str) -> Result<()> {
        self.admin.delete(&format!("{NODES}/{name}")).await?;
        self.admin.delete(&format!("{GPU_NODES}/{name}")).await
    }

    /// Applies a policy.
    pub async fn apply_policy(&self, name: &str, spec: &Value) -> Result<()> {
        let path = format!("{POLICIES}/{name}?fieldManager=fleet&force=true");
        let policy = json!({
            "apiVersion": "gpunode.dev/v1alpha1", "kind": "GpuNodePolicy", "metadata": {"name": name}, "spec": spec,
        });
        self.admin
            .patch::<IgnoredAny>(&path, PatchForm::Apply, &policy)
            .await
            .map(drop)
    }

    /// Deletes all policies.
    pub async fn delete_policies(&self) -> Result<()> {
        let policies: Vec<Named> = self.admin.list(POLICIES, "").await?;
        for policy in policies {
            self.admin
                .delete(&format!("{POLICIES}/{}", policy.metadata.name))
                .await?;
        }
        Ok(())
    }

    /// Deletes all policies and makes every node anew that operators have written. No operator may run.
    pub async fn clean(&self) -> Result<()> {
        self.agents.behave(AgentBehaviour::default());
        self.delete_policies().await?;
        let list = Box::pin(self.admin.list::<WrittenObject>(NODES, ""));
        let mut objects = with_progress("all nodes are read", list).await?;
        let list = Box::pin(self.admin.list::<WrittenObject>(GPU_NODES, ""));
        objects.extend(with_progress("all GpuNodes are read", list).await?);
        let written: BTreeSet<String> = objects
            .into_iter()
            .filter(WrittenObject::is_of_operator)
            .map(|object| object.metadata.name)
            .collect();
        let replacements = stream::iter((0..self.size).filter(|index| written.contains(&node_name(*index))))
            .map(async |index| {
                self.delete_node(index).await?;
                self.create_node(index).await
            })
            .buffer_unordered(CONCURRENCY)
            .try_collect::<Vec<()>>();
        with_progress("nodes are made anew", Box::pin(replacements))
            .await
            .map(drop)
    }

    /// Starts an operator with this pod name; call it on the thread of the test or of `main`.
    pub fn start_operator(&self, pod: &str) -> Result<OperatorProcess> {
        self.start_with(pod, kubeconfig(&self.cluster, pod), 0)
    }

    fn start_with(&self, pod: &str, kubeconfig: PathBuf, client_qps: u32) -> Result<OperatorProcess> {
        let settings = OperatorSettings {
            binary: self.binary.clone(),
            kubeconfig,
            logs: self.cluster.logs(),
            client_qps,
        };
        OperatorProcess::start(&settings, pod)
    }

    /// Starts two operators and waits until one of them leads, both are ready, and nothing is left to write.
    pub async fn start_pair(&self) -> Result<OperatorPair> {
        self.start_settled_pair(|pod| self.start_operator(pod)).await
    }

    /// The same with operators that send at most so many requests a second.
    pub async fn start_limited_pair(&self, client_qps: u32) -> Result<OperatorPair> {
        self.start_settled_pair(|pod| self.start_with(pod, kubeconfig(&self.cluster, pod), client_qps))
            .await
    }

    /// Starts two operators that reach the API server through a relay on this machine, and waits as
    /// [`Fleet::start_pair`] does.
    pub async fn start_pair_through(&self, relay: SocketAddr) -> Result<OperatorPair> {
        self.start_settled_pair(|pod| {
            let mut document = read_document(&kubeconfig(&self.cluster, pod))?;
            // The certificate of the API server names the loopback address too.
            document["clusters"][0]["cluster"]["server"] = format!("https://{relay}").into();
            let path = kubeconfig(&self.cluster, &format!("{pod}-relay"));
            write_document(&path, &document)?;
            self.start_with(pod, path, 0)
        })
        .await
    }

    async fn start_settled_pair(&self, start: impl Fn(&str) -> Result<OperatorProcess>) -> Result<OperatorPair> {
        let mut requests = self.requests()?;
        let processes = PODS.map(start).into_iter().collect::<Result<Vec<_>>>()?;
        let mut pair = OperatorPair { processes };
        self.await_settled(&mut pair).await?;
        self.await_quiet(&mut requests, Duration::from_secs(5)).await?;
        Ok(pair)
    }

    /// Starts two operators and waits for nothing.
    pub fn start_unsettled_pair(&self) -> Result<OperatorPair> {
        let processes = PODS.map(|pod| self.start_operator(pod));
        let processes = processes.into_iter().collect::<Result<Vec<_>>>()?;
        Ok(OperatorPair { processes })
    }

    /// Waits until one of the pair leads and both are ready.
    pub async fn await_settled(&self, pair: &mut OperatorPair) -> Result<()> {
        let (end, mut progress) = (Instant::now() + self.limit(), WaitProgress::start());
        for index in 0..pair.processes.len() {
            while !is_ready(&pair.processes[index]).await {
                pair.processes[index].ensure_running()?;
                let state = || format!("{} is not ready", pair.processes[index].pod());
                ensure!(Instant::now() < end, state());
                progress.tick(state);
                sleep(LOOK).await;
            }
        }
        loop {
            let holder = self.lease_holder().await?;
            if pair
                .processes
                .iter()
                .any(|process| Some(process.pod()) == holder.as_deref())
            {
                return Ok(());
            }
            let state = || format!("the Lease is not with this pair: its holder is {holder:?}");
            ensure!(Instant::now() < end, state());
            progress.tick(state);
            sleep(LOOK).await;
        }
    }

    /// Name of the pod that holds the Lease.
    pub async fn lease_holder(&self) -> Result<Option<String>> {
        match self.admin.get::<Value>(LEASE).await {
            Ok(lease) => Ok(lease["spec"]["holderIdentity"].as_str().map(str::to_owned)),
            Err(error) if refusal(&error) == Some(404) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Positions of the leader and of the standby in the pair.
    pub async fn leader_and_standby(&self, pair: &OperatorPair) -> Result<(usize, usize)> {
        let holder = self.lease_holder().await?;
        let leader = pair
            .processes
            .iter()
            .position(|process| Some(process.pod()) == holder.as_deref());
        let leader = leader.with_context(|| format!("{holder:?} holds the Lease, none of the pair"))?;
        Ok((leader, 1 - leader))
    }

    /// Waits until the operators have written nothing for a time.
    pub async fn await_quiet(&self, requests: &mut OperatorRequests, quiet: Duration) -> Result<()> {
        let (end, mut progress) = (Instant::now() + self.limit(), WaitProgress::start());
        let (mut seen, mut since) = (requests.writes()?.count(), Instant::now());
        while since.elapsed() < quiet {
            ensure!(Instant::now() < end, "the operators still write: {seen} writes so far");
            progress.tick(|| format!("{seen} writes; waiting for {quiet:?} without any"));
            sleep(LOOK).await;
            let now = requests.writes()?.count();
            if now != seen {
                (seen, since) = (now, Instant::now());
            }
        }
        Ok(())
    }

    /// Waits until so many objects of a resource have been written.
    pub async fn await_written(&self, requests: &mut OperatorRequests, resource: &str, objects: usize) -> Result<()> {
        let (end, mut progress) = (Instant::now() + self.limit(), WaitProgress::start());
        loop {
            let written = requests.writes_by_name(resource)?.len();
            if written >= objects {
                return Ok(());
            }
            let state = || format!("{written} of {objects} {resource} are written");
            ensure!(Instant::now() < end, state());
            progress.tick(state);
            sleep(LOOK).await;
        }
    }

    /// Waits until so many nodes count as ready in the status of a policy's current generation.
    pub async fn await_ready_nodes(&self, policy: &str, nodes: usize) -> Result<()> {
        let ready = u64::try_from(nodes)?;
        let is_reached = |status: &Value| status["nodes"]["ready"].as_u64() == Some(ready);
        let what = format!("{nodes} nodes are ready");
        self.await_status(policy, &what, is_reached).await.map(drop)
    }

    /// Waits until the status of a policy's current generation is as awaited, and returns it.
    pub async fn await_status(&self, policy: &str, what: &str, is_reached: impl Fn(&Value) -> bool) -> Result<Value> {
        let (end, mut progress) = (Instant::now() + self.limit(), WaitProgress::start());
        loop {
            let mut object: Value = self.admin.get(&format!("{POLICIES}/{policy}")).await?;
            let status = object["status"].take();
            if is_current(&object["metadata"], &status) && is_reached(&status) {
                return Ok(status);
            }
            ensure!(
                Instant::now() < end,
                "policy {policy} never said: {what}; its status: {status}"
            );
            let ready = status["nodes"]["ready"].as_u64().unwrap_or_default();
            progress.tick(|| format!("{ready} nodes are ready; waiting until {what}"));
            sleep(LOOK).await;
        }
    }

    /// Waits until the status of every policy is about its current spec: previews are computed then, too.
    pub async fn await_current_statuses(&self) -> Result<()> {
        let (end, mut progress) = (Instant::now() + self.limit(), WaitProgress::start());
        loop {
            let policies: Vec<Value> = self.admin.list(POLICIES, "").await?;
            let is_late = |policy: &&Value| !is_current(&policy["metadata"], &policy["status"]);
            let late = policies.iter().filter(is_late).count();
            if late == 0 {
                return Ok(());
            }
            let state = || format!("{late} of {} policies have an earlier status", policies.len());
            ensure!(Instant::now() < end, state());
            progress.tick(state);
            sleep(LOOK_AT_STATUSES).await;
        }
    }

    /// Longest wait for a change of the whole fleet.
    pub fn limit(&self) -> Duration {
        LIMIT + LIMIT_PER_NODE * u32::try_from(self.size).unwrap_or(u32::MAX)
    }
}

impl OperatorPair {
    /// One of the processes.
    pub fn get(&self, index: usize) -> &OperatorProcess {
        &self.processes[index]
    }

    /// One of the processes, to kill it.
    pub fn get_mut(&mut self, index: usize) -> &mut OperatorProcess {
        &mut self.processes[index]
    }

    /// Puts a new process in the place of one that has ended.
    pub fn replace(&mut self, index: usize, process: OperatorProcess) {
        self.processes[index] = process;
    }

    /// Process ids.
    pub fn pids(&self) -> Vec<i32> {
        self.processes.iter().map(OperatorProcess::pid).collect()
    }
}

async fn is_ready(process: &OperatorProcess) -> bool {
    crate::probes::probe(process.address(), "/readyz")
        .await
        .is_ok_and(|answer| answer.contains(" 200 "))
}

/// A Node or a `GpuNode`, as far as it shows what operators have written.
#[derive(Deserialize)]
struct WrittenObject {
    metadata: WrittenMetadata,
    #[serde(default)]
    spec: WrittenSpec,
}

#[derive(Deserialize)]
struct WrittenMetadata {
    name: String,
    #[serde(default)]
    annotations: BTreeMap<String, String>,
}

#[derive(Default, Deserialize)]
struct WrittenSpec {
    config: Option<IgnoredAny>,
}

impl WrittenObject {
    fn is_of_operator(&self) -> bool {
        self.spec.config.is_some() || self.metadata.annotations.contains_key(OWNED_ANNOTATION)
    }
}

/// Returns true if a status is about the spec that the policy has.
fn is_current(metadata: &Value, status: &Value) -> bool {
    status["observedGeneration"].is_number() && status["observedGeneration"] == metadata["generation"]
}

fn kubeconfig(cluster: &Cluster, user: &str) -> PathBuf {
    cluster.folder().join(format!("{user}.kubeconfig"))
}

/// Writes a kubeconfig with a token of the operator's account. The audit log tells tokens apart.
fn write_kubeconfig(cluster: &Cluster, path: &Path) -> Result<()> {
    let token = cluster.kubectl_output([
        "-n",
        "gpunode-system",
        "create",
        "token",
        "gpunode-operator",
        "--duration=24h",
    ])?;
    let mut document = read_document(&cluster.kubeconfig())?;
    document["users"][0]["user"] = json!({"token": token.trim()});
    write_document(path, &document)
}

/// Reads a kubeconfig that is JSON.
fn read_document(path: &Path) -> Result<Value> {
    let text = fs::read_to_string(path).with_context(|| format!("read {}", path.display()))?;
    serde_json::from_str(&text).with_context(|| format!("parse {}", path.display()))
}

fn write_document(path: &Path, document: &Value) -> Result<()> {
    fs::write(path, document.to_string()).with_context(|| format!("write {}", path.display()))
}
