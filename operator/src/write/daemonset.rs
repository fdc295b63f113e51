//! Writes DaemonSets. An edited one is replaced as a whole: server-side apply would leave what others add to lists and maps.

use crate::{
    index::{cache::WriteKind, message::WrittenObject, work::DaemonSetWrite},
    metrics::WorkKind,
    write::{
        cluster_writer::{ClusterWriter, post_params},
        error::WriteError,
    },
};
use k8s_openapi::api::apps::v1::DaemonSet;
use kube::{
    Api,
    api::{DeleteParams, Preconditions},
};

/// Creates, repairs or deletes a DaemonSet.
pub async fn write_daemonset(writer: &ClusterWriter, name: &str, write: DaemonSetWrite) -> Result<(), WriteError> {
    let daemonsets: Api<DaemonSet> = Api::namespaced(writer.client.clone(), &writer.namespace);
    let slot = writer.results.reserve().await?;
    let object = match write {
        DaemonSetWrite::Create(sent) => {
            let created = daemonsets.create(&post_params(), &sent).await;
            let returned = created.map_err(WriteError::creation(format!("create daemonset {name}")))?;
            Some(written(returned, WriteKind::Create, sent))
        }
        DaemonSetWrite::Replace(sent) => {
            let replaced = daemonsets.replace(name, &post_params(), &sent).await;
            let returned = replaced.map_err(WriteError::request(format!("update daemonset {name}")))?;
            Some(written(returned, WriteKind::Update, sent))
        }
        DaemonSetWrite::Delete { uid, version } => {
            let only_this = Preconditions {
                uid: Some(uid),
                resource_version: Some(version),
            };
            let params = DeleteParams::background().preconditions(only_this);
            let deleted = daemonsets.delete(name, &params).await;
            deleted.map_err(WriteError::request(format!("delete daemonset {name}")))?;
            None
        }
    };
    slot.accepted(WorkKind::DaemonSet, object);
    tracing::info!(name, "wrote DaemonSet");
    Ok(())
}

fn written(returned: DaemonSet, kind: WriteKind, sent: Box<DaemonSet>) -> WrittenObject {
    let returned = Box::new(returned);
    WrittenObject::DaemonSet { returned, kind, sent }
}
