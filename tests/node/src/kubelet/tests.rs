//! The rules of admission, tried with a plugin that prefers the last ids and refuses `refused`.

use super::{Connection, FakeKubelet, PodResourcesAnswer, Rejection};
use crate::{
    api::{
        Device, RegisterRequest,
        device_plugin_server::DevicePluginServer,
        pod_resources::{
            AllocatableResourcesRequest, ContainerDevices, ListPodResourcesRequest,
            pod_resources_lister_client::PodResourcesListerClient,
        },
        registration_client::RegistrationClient,
    },
    other_plugin::{OtherPlugin, Plugin},
    until,
};
use anyhow::Result;
use std::{collections::BTreeSet, path::Path, time::Duration};
use tempfile::TempDir;
use tokio::{net::UnixListener, sync::watch, task::JoinHandle};
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::{Channel, Endpoint, Server};

const RESOURCE: &str = "a.b/c";

struct Bench {
    folder: TempDir,
    kubelet: FakeKubelet,
    lists: watch::Sender<Vec<Device>>,
    server: JoinHandle<()>,
}

impl Bench {
    async fn with(ids: &[&str]) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let plugins = folder.path().join("device-plugins");
        std::fs::create_dir(&plugins)?;
        let kubelet = FakeKubelet::start(plugins.clone())?;
        let (lists, receiver) = watch::channel(devices(ids));
        let incoming = UnixListenerStream::new(UnixListener::bind(plugins.join("plugin.sock"))?);
        let server = Server::builder()
            .add_service(DevicePluginServer::new(Plugin(receiver)))
            .serve_with_incoming(incoming);
        let server = tokio::spawn(async { _ = server.await });
        register(&plugins.join("kubelet.sock"), "plugin.sock").await?;
        kubelet.has(RESOURCE, |_| true).await?;
        Ok(Self {
            folder,
            kubelet,
            lists,
            server,
        })
    }

    async fn pod_resources(&self) -> Result<PodResourcesListerClient<Channel>> {
        let socket = self.folder.path().join("pod-resources/kubelet.sock");
        Ok(PodResourcesListerClient::new(connect(&socket).await?))
    }

    /// Pod, container and id of everything that is listed.
    async fn listed(&self) -> Result<Vec<(String, String, String)>> {
        let pods = self
            .pod_resources()
            .await?
            .list(ListPodResourcesRequest {})
            .await?
            .into_inner()
            .pod_resources;
        let of_pods = pods.into_iter().flat_map(|pod| {
            let of = move |id| (pod.name.clone(), id);
            pod.containers.into_iter().map(of).collect::<Vec<_>>()
        });
        let ids = of_pods.flat_map(|(pod, container)| {
            let name = container.name;
            ids(container.devices)
                .into_iter()
                .map(move |id| (pod.clone(), name.clone(), id))
                .collect::<Vec<_>>()
        });
        Ok(ids.collect())
    }

    async fn allocatable(&self) -> Result<BTreeSet<String>> {
        let mut client = self.pod_resources().await?;
        let answer = client.get_allocatable_resources(AllocatableResourcesRequest {}).await?;
        Ok(ids(answer.into_inner().devices).into_iter().collect())
    }

    fn checkpoint(&self) -> String {
        let file = self.folder.path().join("device-plugins/kubelet_internal_checkpoint");
        std::fs::read_to_string(file).unwrap_or_default()
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        self.server.abort();
    }
}

/// Registers the plugin on the socket of that name.
async fn register(kubelet: &Path, endpoint: &str) -> Result<()> {
    let request = RegisterRequest {
        version: "v1beta1".to_owned(),
        endpoint: endpoint.to_owned(),
        resource_name: RESOURCE.to_owned(),
        options: None,
    };
    RegistrationClient::new(connect(kubelet).await?)
        .register(request)
        .await?;
    Ok(())
}

async fn connect(socket: &Path) -> Result<Channel> {
    Ok(Endpoint::from_shared(format!("unix://{}", socket.display()))?
        .connect()
        .await?)
}

fn devices(ids: &[&str]) -> Vec<Device> {
    let device = |id: &&str| {
        let (id, healthy) = id.strip_prefix('!').map_or((*id, true), |id| (id, false));
        let health = if healthy { "Healthy" } else { "Unhealthy" };
        Device {
            id: id.to_owned(),
            health: health.to_owned(),
            topology: None,
        }
    };
    ids.iter().map(device).collect()
}

fn ids(devices: Vec<ContainerDevices>) -> Vec<String> {
    devices.into_iter().flat_map(|devices| devices.device_ids).collect()
}

fn owned(ids: &[&str]) -> BTreeSet<String> {
    ids.iter().map(|id| (*id).to_owned()).collect()
}

#[tokio::test]
async fn what_the_plugin_prefers_is_given_and_listed_until_the_pod_ends() -> Result<()> {
    let bench = Bench::with(&["1", "2", "3", "4", "!5"]).await?;
    let kubelet = &bench.kubelet;
    assert_eq!(kubelet.admit("a", "main", RESOURCE, 2).await?.ids, ["3", "4"]);
    assert_eq!(kubelet.admit("b", "main", RESOURCE, 1).await?.ids, ["2"]);
    let held = |pod: &str, id: &str| (pod.to_owned(), "main".to_owned(), id.to_owned());
    assert_eq!(bench.listed().await?, [held("a", "3"), held("a", "4"), held("b", "2")]);
    assert_eq!(
        bench.allocatable().await?,
        owned(&["1", "2", "3", "4"]),
        "held or not, and healthy"
    );
    assert_eq!(kubelet.schedulable(RESOURCE), 1);

    kubelet.release("a");
    assert_eq!(bench.listed().await?, [held("b", "2")]);
    assert!(
        bench.checkpoint().contains(r#""PodUID":"a""#),
        "written at the next allocation or list"
    );
    assert_eq!(kubelet.admit("c", "main", RESOURCE, 3).await?.ids, ["1", "3", "4"]);
    assert!(!bench.checkpoint().contains(r#""PodUID":"a""#));
    Ok(())
}

#[tokio::test]
async fn what_cannot_be_given_is_refused_and_nothing_is_kept_of_it() -> Result<()> {
    let bench = Bench::with(&["1", "refused"]).await?;
    let kubelet = &bench.kubelet;
    let refused = |answer: Result<_, Rejection>| answer.map(|admitted: super::Admitted| admitted.ids).unwrap_err();
    let error = refused(kubelet.admit("a", "main", "x.y/z", 1).await).to_string();
    assert_eq!(error, "cannot allocate unregistered device x.y/z");
    let error = refused(kubelet.admit("a", "main", RESOURCE, 3).await).to_string();
    assert_eq!(
        error,
        "requested number of devices unavailable for a.b/c. Requested: 3, Available: 2"
    );
    let error = refused(kubelet.admit("a", "main", RESOURCE, 1).await).to_string();
    assert_eq!(error, "rpc error: code = InvalidArgument desc = it is refused");
    assert!(kubelet.in_use(RESOURCE).is_empty() && bench.listed().await?.is_empty());

    bench.lists.send(devices(&["!1", "!refused"]))?;
    kubelet.has(RESOURCE, |endpoint| endpoint.healthy().is_empty()).await?;
    let error = refused(kubelet.admit("a", "main", RESOURCE, 1).await).to_string();
    assert_eq!(
        error,
        "no healthy devices present; cannot allocate unhealthy devices a.b/c"
    );
    Ok(())
}

#[tokio::test]
async fn what_init_containers_hold_is_taken_first_and_never_listed() -> Result<()> {
    let bench = Bench::with(&["1", "2", "3", "4"]).await?;
    let kubelet = &bench.kubelet;
    assert_eq!(kubelet.admit_init("a", "init", RESOURCE, 2).await?.ids, ["3", "4"]);
    assert!(bench.listed().await?.is_empty());
    assert!(
        bench.checkpoint().contains(r#""DeviceIDs":{"-1":["3","4"]}"#),
        "{}",
        bench.checkpoint()
    );
    assert_eq!(kubelet.admit("a", "main", RESOURCE, 3).await?.ids, ["2", "3", "4"]);
    assert_eq!(bench.listed().await?.len(), 3);
    assert_eq!(
        kubelet.admit("a", "beside", RESOURCE, 1).await?.ids,
        ["1"],
        "nothing is left to be taken again"
    );
    Ok(())
}

#[tokio::test]
async fn without_its_plugin_nothing_is_allocatable_and_what_is_held_stays_held() -> Result<()> {
    let bench = Bench::with(&["1", "2"]).await?;
    bench.kubelet.admit("a", "main", RESOURCE, 1).await?;
    bench.kubelet.end_stream(RESOURCE);
    assert!(bench.allocatable().await?.is_empty());
    assert_eq!(bench.listed().await?.len(), 1);
    Ok(())
}

#[tokio::test]
async fn pod_resources_fails_on_demand() -> Result<()> {
    let bench = Bench::with(&["1"]).await?;
    bench.kubelet.answer_pod_resources(PodResourcesAnswer::RateLimited);
    let status = bench
        .pod_resources()
        .await?
        .list(ListPodResourcesRequest {})
        .await
        .unwrap_err();
    assert_eq!(
        (status.code(), status.message()),
        (tonic::Code::ResourceExhausted, "rejected by rate limit")
    );
    bench.kubelet.answer_pod_resources(PodResourcesAnswer::Truth);
    bench.allocatable().await?;
    assert_eq!(bench.kubelet.pod_resources_calls(), 2);
    Ok(())
}

#[tokio::test]
async fn a_second_plugin_takes_a_resource_over_and_the_first_keeps_its_stream() -> Result<()> {
    let bench = Bench::with(&["1"]).await?;
    let kubelet = &bench.kubelet;
    let other = OtherPlugin::register(&bench.folder.path().join("device-plugins"), RESOURCE).await?;
    kubelet.has(RESOURCE, |endpoint| endpoint.ids() == ["another"]).await?;
    bench.lists.send(devices(&["2"]))?;
    kubelet.has(RESOURCE, |endpoint| endpoint.ids() == ["2"]).await?;
    assert!(kubelet.ends(RESOURCE).is_empty());
    drop(other);
    kubelet.is_gone(RESOURCE).await?;
    assert!(bench.allocatable().await?.is_empty());
    Ok(())
}

#[tokio::test]
async fn the_end_of_an_earlier_stream_ends_the_newest_plugin() -> Result<()> {
    let bench = Bench::with(&["1"]).await?;
    let folder = bench.folder.path().join("device-plugins");
    let first = OtherPlugin::register(&folder, RESOURCE).await?;
    let _second = OtherPlugin::register(&folder, RESOURCE).await?;
    bench
        .kubelet
        .has(RESOURCE, |endpoint| endpoint.ids() == ["another"])
        .await?;
    drop(first);
    bench.kubelet.is_gone(RESOURCE).await?;
    assert!(bench.allocatable().await?.is_empty());
    Ok(())
}

#[tokio::test]
async fn the_end_of_a_stream_is_taken_in_late_on_demand() -> Result<()> {
    let bench = Bench::with(&["1"]).await?;
    let (kubelet, pause) = (&bench.kubelet, Duration::from_millis(300));
    kubelet.notices_after(pause);
    let other = OtherPlugin::register(&bench.folder.path().join("device-plugins"), RESOURCE).await?;
    kubelet.has(RESOURCE, |endpoint| endpoint.ids() == ["another"]).await?;
    drop(other);
    kubelet.is_gone(RESOURCE).await?;
    let ended = kubelet.ends(RESOURCE)[0];
    assert!(ended.elapsed() >= pause, "{:?}", ended.elapsed());
    Ok(())
}

#[tokio::test]
async fn a_late_end_closes_the_connection_to_a_plugin_that_is_just_registering() -> Result<()> {
    let bench = Bench::with(&["1"]).await?;
    let (kubelet, folder) = (&bench.kubelet, bench.folder.path().join("device-plugins"));
    let other = OtherPlugin::register(&folder, RESOURCE).await?;
    kubelet.has(RESOURCE, |endpoint| endpoint.ids() == ["another"]).await?;
    // One that does not answer yet.
    let silent = UnixListener::bind(folder.join("silent.sock"))?;
    let registering = tokio::spawn(async move { register(&folder.join("kubelet.sock"), "silent.sock").await });
    until("the kubelet is connected to it", || {
        matches!(kubelet.lock().connections.get(&3), Some(Connection::Dialled)).then_some(())
    })
    .await?;
    drop(other);
    kubelet.is_gone(RESOURCE).await?;
    let (_lists, listed) = watch::channel(devices(&["2"]));
    let server = Server::builder()
        .add_service(DevicePluginServer::new(Plugin(listed)))
        .serve_with_incoming(UnixListenerStream::new(silent));
    let server = tokio::spawn(async { _ = server.await });
    let error = registering.await?.unwrap_err().to_string();
    assert!(error.contains("the client connection is closing"), "{error}");
    assert!(bench.allocatable().await?.is_empty());
    server.abort();
    Ok(())
}

#[tokio::test]
async fn the_devices_of_a_plugin_that_the_kubelet_has_lost_stay_healthy_after_its_end() -> Result<()> {
    let bench = Bench::with(&["1"]).await?;
    let (kubelet, folder) = (&bench.kubelet, bench.folder.path().join("device-plugins"));
    let other = OtherPlugin::register(&folder, RESOURCE).await?;
    kubelet.has(RESOURCE, |endpoint| endpoint.ids() == ["another"]).await?;
    kubelet.lose_client(RESOURCE);
    drop(other);
    until("its stream has ended", || {
        (!kubelet.ends(RESOURCE).is_empty()).then_some(())
    })
    .await?;
    assert_eq!(bench.allocatable().await?, owned(&["another"]));
    Ok(())
}
