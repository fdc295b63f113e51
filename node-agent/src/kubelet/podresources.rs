//! Client of the kubelet's PodResources API, which adds the holders from the kubelet's checkpoint.

use crate::{
    kubelet::{
        checkpoint::{self, CheckpointAge, PodFolders},
        pod_resources_api::{
            AllocatableResourcesRequest, ContainerDevices, DynamicResource, ListPodResourcesRequest,
            PodResources as Pod, pod_resources_lister_client::PodResourcesListerClient,
        },
    },
    runtime::blocking_thread::BlockingThread,
};
use gpunode_crds::DRA_DRIVER;
use gpunode_gpu::{ContainerShares, KubeletObservation};
use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};
use tokio::time::timeout;
use tonic::{
    Response, Status,
    transport::{Channel, Endpoint},
};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
const CALL_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum size of an answer. A kubelet accepts 4 MiB of devices for each resource, and returns all of them in one
/// answer. Kubernetes' own clients of this API accept 16 MiB, too little for a node with many replicas under several
/// names.
const MAX_ANSWER_BYTES: usize = 64 * 1024 * 1024;

/// Error of asking the kubelet for the holders of devices.
#[derive(Debug, thiserror::Error)]
pub enum PodResourcesError {
    /// The socket does not exist.
    #[error(
        "ask the kubelet which pod holds which device: {0} does not exist; start the kubelet, or give the operator \
         the kubelet's --root-dir as KUBELET_ROOT"
    )]
    NoSocket(PathBuf),
    /// The connection fails.
    #[error("ask the kubelet which pod holds which device: connect to {path}: {source:?}")]
    Connect {
        /// The socket.
        path: PathBuf,
        /// The cause.
        source: tonic::transport::Error,
    },
    /// The kubelet answers with an error.
    #[error("ask the kubelet which pod holds which device: {call} on {path}: {}", .status.message())]
    Refused {
        /// The call.
        call: &'static str,
        /// The socket.
        path: PathBuf,
        /// The kubelet's answer.
        status: Box<Status>,
    },
    /// The kubelet does not answer.
    #[error("ask the kubelet which pod holds which device: no answer to {call} on {path} within {CALL_TIMEOUT:?}")]
    NoAnswer {
        /// The call.
        call: &'static str,
        /// The socket.
        path: PathBuf,
    },
    /// The kubelet's checkpoint cannot be read.
    #[error(transparent)]
    Checkpoint(#[from] checkpoint::CheckpointError),
    /// The kubelet's folder of device plugins does not exist.
    #[error(
        "read the kubelet's checkpoint: {0} is no folder; start the kubelet, which creates \
         /var/lib/kubelet/device-plugins whatever its --root-dir is"
    )]
    NoFolder(PathBuf),
    /// The file system hangs.
    #[error("read the kubelet's checkpoint: no answer within {CALL_TIMEOUT:?}")]
    SlowCheckpoint,
    /// The thread that reads the checkpoint ended.
    #[error("read the kubelet's checkpoint: {0}")]
    Reader(#[from] tokio::task::JoinError),
}

/// The kubelet's healthy devices: the first part of an observation.
#[derive(Debug)]
pub struct AllocatableDevices {
    /// Time before the call.
    pub started: Instant,
    /// Resource and id of every healthy device, of any plugin.
    pub devices: BTreeSet<(String, String)>,
    /// Connection for the other part.
    client: PodResourcesListerClient<Channel>,
}

/// Client of the kubelet's PodResources API and reader of its checkpoint.
#[derive(Clone, Debug)]
pub struct PodResources {
    /// Socket of the PodResources API.
    pub socket: PathBuf,
    /// The kubelet's folder of device plugins, which has the checkpoint.
    pub device_plugin_dir: PathBuf,
    /// The kubelet's folders of pods.
    pods: PodFolders,
    /// Age of the checkpoint.
    unchanged: CheckpointAge,
    /// Thread that reads the files.
    pub files: BlockingThread,
}

impl PodResources {
    /// Returns a client of the kubelet with this socket and these folders.
    pub fn new(socket: PathBuf, device_plugin_dir: PathBuf, pods: PodFolders) -> Self {
        Self {
            socket,
            device_plugin_dir,
            pods,
            unchanged: CheckpointAge::default(),
            files: BlockingThread::default(),
        }
    }

    /// Asks the kubelet for its healthy devices and their holders.
    pub async fn observe(&self) -> Result<KubeletObservation, PodResourcesError> {
        // Reads allocatable devices before holders: no container held an id in between if neither answer has it.
        let allocatable = self.allocatable().await?;
        self.holders(allocatable).await
    }

    /// Asks the kubelet for its healthy devices over a new connection: a kubelet that restarted has another socket.
    pub async fn allocatable(&self) -> Result<AllocatableDevices, PodResourcesError> {
        let started = Instant::now();
        let mut client = self.connect().await?;
        let allocatable = client.get_allocatable_resources(AllocatableResourcesRequest {});
        let devices = self.answer("GetAllocatableResources", allocatable).await?.devices;
        Ok(AllocatableDevices {
            started,
            devices: devices.into_iter().flat_map(pairs).collect(),
            client,
        })
    }

    /// Asks the kubelet for the holders of devices, after its healthy devices.
    pub async fn holders(&self, allocatable: AllocatableDevices) -> Result<KubeletObservation, PodResourcesError> {
        let AllocatableDevices {
            started,
            devices,
            mut client,
        } = allocatable;
        let pods = self
            .answer("List", client.list(ListPodResourcesRequest {}))
            .await?
            .pod_resources;
        let remembered = self.remembered().await?;
        Ok(KubeletObservation {
            started,
            holders: pods.into_iter().flat_map(holdings).collect(),
            allocatable: devices,
            checkpoint: remembered,
        })
    }

    /// Notes the current checkpoint, for callers that rarely observe; blocks.
    pub fn note_checkpoint(&self) {
        checkpoint::notice(&self.device_plugin_dir, &self.unchanged, Instant::now());
    }

    async fn remembered(&self) -> Result<BTreeSet<(String, String)>, PodResourcesError> {
        let (folder, pods, unchanged) = (
            self.device_plugin_dir.clone(),
            self.pods.clone(),
            self.unchanged.clone(),
        );
        let read = self.files.run(move || {
            // A folder without checkpoint means no holders; a missing folder means that holders are unknown.
            if !folder.is_dir() {
                return Err(PodResourcesError::NoFolder(folder));
            }
            Ok(checkpoint::remembered(&folder, &pods, &unchanged, Instant::now())?)
        });
        timeout(CALL_TIMEOUT, read)
            .await
            .map_err(|_| PodResourcesError::SlowCheckpoint)??
    }

    async fn connect(&self) -> Result<PodResourcesListerClient<Channel>, PodResourcesError> {
        let path: &Path = &self.socket;
        if !path.exists() {
            return Err(PodResourcesError::NoSocket(path.to_owned()));
        }
        let failed = |source| PodResourcesError::Connect {
            path: path.to_owned(),
            source,
        };
        let endpoint = Endpoint::from_shared(format!("unix://{}", path.display())).map_err(failed)?;
        let channel = endpoint
            .connect_timeout(CONNECT_TIMEOUT)
            .connect()
            .await
            .map_err(failed)?;
        Ok(PodResourcesListerClient::new(channel).max_decoding_message_size(MAX_ANSWER_BYTES))
    }

    async fn answer<T>(
        &self,
        call: &'static str,
        request: impl Future<Output = Result<Response<T>, Status>>,
    ) -> Result<T, PodResourcesError> {
        let path = || self.socket.clone();
        match timeout(CALL_TIMEOUT, request).await {
            Ok(answer) => {
                let refused = |status| PodResourcesError::Refused {
                    call,
                    path: path(),
                    status: Box::new(status),
                };
                answer.map(Response::into_inner).map_err(refused)
            }
            Err(_) => Err(PodResourcesError::NoAnswer { call, path: path() }),
        }
    }
}

fn holdings(pod: Pod) -> impl Iterator<Item = ContainerShares> {
    let Pod {
        name,
        namespace,
        containers,
    } = pod;
    containers.into_iter().flat_map(move |container| {
        let (namespace, pod) = (namespace.clone(), name.clone());
        let claimed = claimed_devices(container.dynamic_resources);
        let claimed = (!claimed.is_empty()).then(|| (DRA_DRIVER.to_owned(), claimed));
        let devices = container.devices.into_iter();
        let held = devices.map(|devices| (devices.resource_name, devices.device_ids));
        held.chain(claimed).map(move |(resource, ids)| ContainerShares {
            namespace: namespace.clone(),
            pod: pod.clone(),
            container: container.name.clone(),
            resource,
            ids,
        })
    })
}

/// Returns the names of the devices that NVIDIA's DRA driver has allocated for these claims.
fn claimed_devices(claims: Vec<DynamicResource>) -> Vec<String> {
    let devices = claims.into_iter().flat_map(|claim| claim.claim_resources);
    let of_driver = devices.filter(|device| device.driver_name == DRA_DRIVER);
    of_driver.map(|device| device.device_name).collect()
}

fn pairs(devices: ContainerDevices) -> impl Iterator<Item = (String, String)> {
    let resource = devices.resource_name;
    devices.device_ids.into_iter().map(move |id| (resource.clone(), id))
}

#[cfg(test)]
mod fuzz;
#[cfg(test)]
pub mod tests;
