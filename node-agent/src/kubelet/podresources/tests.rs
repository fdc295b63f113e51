use super::*;
use crate::kubelet::pod_resources_api::{
    AllocatableResourcesResponse, ClaimResource, ContainerResources, ListPodResourcesResponse,
    pod_resources_lister_server::{PodResourcesLister, PodResourcesListerServer},
};
use tokio::{net::UnixListener, time::sleep};
use tokio_stream::wrappers::UnixListenerStream;
use tonic::{Request, transport::Server};

/// Delay of a kubelet that answers late: longer than plugins wait for it to notice an end.
pub const LATE: Duration = Duration::from_millis(1100);

/// Answer of the test's kubelet.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kubelet {
    /// An error to List.
    Refuses,
    /// An error to every call.
    RefusesAll,
    /// A pod holds GPU-1 and GPU-2; healthy devices are answered [`LATE`].
    Late,
    /// A pod holds GPU-1 and GPU-2.
    Held,
    /// A second container of that pod has a device of each of two DRA drivers.
    Claimed,
    /// No holders and no allocatable devices.
    Idle,
}

fn devices(resource: &str, ids: &[&str]) -> ContainerDevices {
    ContainerDevices {
        resource_name: resource.to_owned(),
        device_ids: ids.iter().map(|id| (*id).to_owned()).collect(),
    }
}

#[tonic::async_trait]
impl PodResourcesLister for Kubelet {
    async fn list(&self, _: Request<ListPodResourcesRequest>) -> Result<Response<ListPodResourcesResponse>, Status> {
        match self {
            Self::Refuses | Self::RefusesAll => return Err(Status::resource_exhausted("rejected by rate limit")),
            Self::Idle => return Ok(Response::new(ListPodResourcesResponse::default())),
            Self::Held | Self::Claimed | Self::Late => {}
        }
        let main = ContainerResources {
            name: "main".to_owned(),
            devices: vec![devices("a.b/c", &["GPU-1", "GPU-2"])],
            ..ContainerResources::default()
        };
        let device = |driver: &str, name: &str| ClaimResource {
            driver_name: driver.to_owned(),
            device_name: name.to_owned(),
        };
        let claim = (*self == Self::Claimed).then(|| DynamicResource {
            claim_resources: vec![
                device("gpu.nvidia.com", "gpu-3"),
                device("compute-domain.nvidia.com", "channel-0"),
            ],
        });
        let claiming = ContainerResources {
            name: "claiming".to_owned(),
            dynamic_resources: claim.into_iter().collect(),
            ..ContainerResources::default()
        };
        let idle = ContainerResources {
            name: "idle".to_owned(),
            ..ContainerResources::default()
        };
        let pod = Pod {
            name: "train".to_owned(),
            namespace: "team".to_owned(),
            containers: vec![main, claiming, idle],
        };
        Ok(Response::new(ListPodResourcesResponse {
            pod_resources: vec![pod],
        }))
    }

    async fn get_allocatable_resources(
        &self,
        _: Request<AllocatableResourcesRequest>,
    ) -> Result<Response<AllocatableResourcesResponse>, Status> {
        match self {
            Self::Idle => return Ok(Response::new(AllocatableResourcesResponse::default())),
            Self::RefusesAll => return Err(Status::resource_exhausted("rejected by rate limit")),
            Self::Late => sleep(LATE).await,
            Self::Refuses | Self::Held | Self::Claimed => {}
        }
        let devices = vec![devices("a.b/c", &["GPU-2"]), devices("a.b/c", &["GPU-1"])];
        Ok(Response::new(AllocatableResourcesResponse { devices }))
    }
}

/// Serves a kubelet in `folder`.
pub fn serve(folder: &Path, kubelet: Kubelet) -> PodResources {
    let socket = folder.join("kubelet.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    let server = Server::builder()
        .add_service(PodResourcesListerServer::new(kubelet))
        .serve_with_incoming(UnixListenerStream::new(listener));
    tokio::spawn(server);
    PodResources::new(socket, folder.to_owned(), PodFolders::default())
}

#[tokio::test]
async fn holders_and_what_can_be_given_out_are_observed() {
    let folder = tempfile::tempdir().unwrap();
    let checkpoint =
        r#"{"Data":{"PodDeviceEntries":[{"PodUID":"a","ResourceName":"a.b/c","DeviceIDs":{"0":["GPU-3"]}}]}}"#;
    std::fs::write(folder.path().join(checkpoint::CHECKPOINT_FILE), checkpoint).unwrap();
    let observation = serve(folder.path(), Kubelet::Held).observe().await.unwrap();
    let [holding] = observation.holders.as_slice() else {
        panic!("{observation:?}")
    };
    assert_eq!(
        (
            holding.namespace.as_str(),
            holding.pod.as_str(),
            holding.container.as_str()
        ),
        ("team", "train", "main")
    );
    assert_eq!(
        (holding.resource.as_str(), holding.ids.as_slice()),
        ("a.b/c", &["GPU-1".to_owned(), "GPU-2".to_owned()][..])
    );
    let pair = |id: &str| ("a.b/c".to_owned(), id.to_owned());
    assert_eq!(observation.allocatable, [pair("GPU-1"), pair("GPU-2")].into());
    assert_eq!(observation.checkpoint, [pair("GPU-3")].into());
}

#[tokio::test]
async fn claims_of_nvidias_dra_driver_are_observed_and_those_of_others_are_not() {
    let folder = tempfile::tempdir().unwrap();
    let observation = serve(folder.path(), Kubelet::Claimed).observe().await.unwrap();
    let [_, claimed] = observation.holders.as_slice() else {
        panic!("{observation:?}")
    };
    assert_eq!(
        (
            claimed.container.as_str(),
            claimed.resource.as_str(),
            claimed.ids.as_slice()
        ),
        ("claiming", "gpu.nvidia.com", &["gpu-3".to_owned()][..])
    );
}

#[tokio::test]
async fn what_the_kubelet_does_not_say_is_an_error_that_names_the_socket() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("none.sock");
    let nobody = PodResources::new(socket, folder.path().to_owned(), PodFolders::default());
    let message = nobody.observe().await.unwrap_err().to_string();
    assert!(message.contains("none.sock does not exist; start"), "{message}");
    let message = serve(folder.path(), Kubelet::Refuses)
        .observe()
        .await
        .unwrap_err()
        .to_string();
    assert!(
        message.contains("List on ") && message.ends_with("rejected by rate limit"),
        "{message}"
    );
}

#[tokio::test]
async fn a_damaged_checkpoint_is_no_proof_that_nothing_is_held() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join(checkpoint::CHECKPOINT_FILE), "{").unwrap();
    let error = serve(folder.path(), Kubelet::Held).observe().await.unwrap_err();
    assert!(matches!(error, PodResourcesError::Checkpoint(_)), "{error}");
    let socket = folder.path().join("kubelet.sock");
    let elsewhere = PodResources::new(socket, "/nonexistent".into(), PodFolders::default());
    assert!(matches!(
        elsewhere.observe().await.unwrap_err(),
        PodResourcesError::NoFolder(_)
    ));
}
