//! Policies, permissions, kinds and the namespace.

use super::{Installed, Removal, installed};
use crate::output::plural;
use gpunode_crds::GpuNodePolicy;
use k8s_openapi::api::{
    apps::v1::{DaemonSet, Deployment, StatefulSet},
    batch::v1::{CronJob, Job},
    core::v1::{Namespace, PersistentVolumeClaim, Pod},
};
use kube::core::DynamicObject;
use std::time::Instant;

impl Removal {
    /// Deletes every policy. It need not be waited for: nobody acts on them any more.
    pub async fn delete_policies(&mut self) {
        let names = match self.names::<GpuNodePolicy>(None, "").await {
            Ok(names) => names,
            Err(error) => return self.leave("policies", format!("{error:#}")),
        };
        let mut deleted = 0;
        for name in &names {
            let policy = Installed::cluster_scoped::<GpuNodePolicy>(name);
            deleted += usize::from(self.delete(&policy).await);
        }
        self.progress.done("policies", &format!("{} deleted", plural(deleted, "policy", "policies")));
    }

    /// Deletes what was installed beside the operator: permissions and rules of admission.
    pub async fn delete_installed(&mut self, objects: &[Installed]) {
        let mut deleted = 0;
        for object in objects {
            deleted += usize::from(self.delete(object).await);
        }
        self.progress.done("permissions", &format!("{} deleted", plural(deleted, "object", "objects")));
    }

    /// Deletes the kinds, and with them every `GpuNode`.
    pub async fn delete_kinds(&mut self) {
        let kinds = installed::definitions();
        for kind in &kinds {
            self.delete(kind).await;
        }
        self.await_gone("kinds", &kinds).await;
    }

    /// Deletes the namespace, unless something in it is not gpunode's.
    pub async fn delete_namespace(&mut self) {
        let namespace = Installed::cluster_scoped::<Namespace>(&self.namespace.clone());
        match self.strangers().await {
            Ok(strangers) if strangers.is_empty() => {
                self.delete(&namespace).await;
                self.await_gone("namespace", &[namespace]).await;
            }
            Ok(strangers) => {
                let named = strangers.iter().take(5).cloned().collect::<Vec<_>>().join(", ");
                self.leave(&namespace.to_string(), format!("it holds what is not gpunode's: {named}"));
            }
            Err(error) => self.leave(&namespace.to_string(), format!("{error:#}")),
        }
    }

    /// What runs or is stored in the namespace once everything of gpunode is gone.
    async fn strangers(&self) -> anyhow::Result<Vec<String>> {
        let namespace = Some(self.namespace.as_str());
        let mut strangers = Vec::new();
        let lists = [
            ("Deployment", self.names::<Deployment>(namespace, "").await?),
            ("StatefulSet", self.names::<StatefulSet>(namespace, "").await?),
            ("DaemonSet", self.names::<DaemonSet>(namespace, "app.kubernetes.io/managed-by!=gpunode-operator").await?),
            ("Job", self.names::<Job>(namespace, "").await?),
            ("CronJob", self.names::<CronJob>(namespace, "").await?),
            (
                "Pod",
                self.names::<Pod>(namespace, "app.kubernetes.io/name notin (gpunode-agent,gpunode-operator)").await?,
            ),
            ("PersistentVolumeClaim", self.names::<PersistentVolumeClaim>(namespace, "").await?),
        ];
        for (kind, names) in lists {
            strangers.extend(names.into_iter().map(|name| format!("{kind} {name}")));
        }
        Ok(strangers)
    }

    /// Waits until objects are gone that were deleted.
    async fn await_gone(&mut self, step: &str, objects: &[Installed]) {
        loop {
            let mut remaining = Vec::new();
            for object in objects {
                match self.look_at(object).await {
                    Ok(None) => {}
                    Ok(Some(_)) => remaining.push(object),
                    Err(error) => return self.leave(&object.to_string(), format!("{error:#}")),
                }
            }
            let Some(first) = remaining.first() else { return self.progress.done(step, "gone") };
            if Instant::now() >= self.end {
                for object in remaining {
                    let why = self.why_it_stays(object).await;
                    self.leave(&object.to_string(), why);
                }
                return;
            }
            self.progress.doing(step, &format!("waiting for {first} to go"));
            self.pause().await;
        }
    }

    /// What Kubernetes says of an object that does not go.
    async fn why_it_stays(&self, object: &Installed) -> String {
        let see = format!("`kubectl get {} {} -o yaml` shows it", object.kind.plural, object.name);
        let Ok(Some(live)) = self.read(object).await else { return see };
        let Some(deleted) = live.metadata.deletion_timestamp else {
            return format!("it is not deleted, or something creates it again; {see}");
        };
        let conditions = live.data["status"]["conditions"].as_array().cloned().unwrap_or_default();
        let hindrance = conditions.iter().filter(|condition| condition["status"] == "True").find_map(|condition| {
            let kind = condition["type"].as_str()?;
            let hinders =
                kind == "Terminating" || (kind.starts_with("Namespace") && kind != "NamespaceDeletionCompleted");
            hinders.then(|| condition["message"].as_str().map(str::to_owned)).flatten()
        });
        let hindrance = match (hindrance, live.metadata.finalizers) {
            (Some(message), _) => format!("; {message}"),
            (None, Some(finalizers)) => format!("; its finalizers hold it: {}", finalizers.join(", ")),
            (None, None) => String::new(),
        };
        format!("Kubernetes deletes it since {}{hindrance}; {see}", deleted.0)
    }

    async fn read(&self, object: &Installed) -> anyhow::Result<Option<DynamicObject>> {
        let api = kube::Api::<DynamicObject>::all_with(self.client.clone(), &object.kind);
        super::requests::request("read", api.get(&object.name)).await
    }
}
