//! DaemonSets. An edited one is replaced as a whole and not by server-side apply, which leaves in place what others add to
//! lists and maps.

use super::{ApplyError, Writer, post_params};
use crate::{
    index::{cache::Write, work::DaemonSetWork},
    metrics::Kind,
    reconcile::Controller,
};
use k8s_openapi::api::apps::v1::DaemonSet;
use kube::{
    Api,
    api::{DeleteParams, Preconditions},
};

impl Writer {
    /// Creates, repairs or deletes a DaemonSet.
    pub async fn apply_daemonset(
        &self,
        controller: &Controller,
        name: &str,
        work: DaemonSetWork,
    ) -> Result<(), ApplyError> {
        let daemonsets: Api<DaemonSet> = Api::namespaced(self.client.clone(), controller.namespace());
        match work {
            DaemonSetWork::Create(written) => {
                let created = daemonsets.create(&post_params(), &written).await;
                let daemonset = created.map_err(ApplyError::creation(format!("create daemonset {name}")))?;
                controller.with_index(|index, now, effects| {
                    index.update_daemonset(daemonset, Write::Create, &written, now, effects);
                });
            }
            DaemonSetWork::Replace(written) => {
                let replaced = daemonsets.replace(name, &post_params(), &written).await;
                let daemonset = replaced.map_err(ApplyError::request(format!("update daemonset {name}")))?;
                controller.with_index(|index, now, effects| {
                    index.update_daemonset(daemonset, Write::Change, &written, now, effects);
                });
            }
            DaemonSetWork::Delete { uid, version } => {
                let guard = Preconditions {
                    uid: Some(uid),
                    resource_version: Some(version),
                };
                let params = DeleteParams::background().preconditions(guard);
                let deleted = daemonsets.delete(name, &params).await;
                deleted.map_err(ApplyError::request(format!("delete daemonset {name}")))?;
            }
        }
        self.wrote(Kind::DaemonSet);
        tracing::info!(name, "wrote DaemonSet");
        Ok(())
    }
}
