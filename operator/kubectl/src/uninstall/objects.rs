//! Policies, permissions, kinds and the namespace.

use super::{Installed, Removal, installed};
use crate::output::plural;
use gpunode_crds::GpuNodePolicy;
use k8s_openapi::api::{coordination::v1::Lease, core::v1::Namespace};
use kube::{api::ApiResource, core::DynamicObject};
use std::time::Instant;

/// Most objects that are named of those that are not gpunode's.
const NAMED: usize = 5;

/// Why a namespace is kept that holds these.
pub fn why_it_is_kept(strangers: &[String]) -> String {
    let named = strangers.iter().take(NAMED).cloned().collect::<Vec<_>>().join(", ");
    let more = strangers.len().saturating_sub(NAMED);
    let more = if more > 0 {
        format!(" and {more} more")
    } else {
        String::new()
    };
    format!("it is kept, since it holds what is not gpunode's: {named}{more}; delete it yourself if nobody needs that")
}

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
        self.progress.done(
            "policies",
            &format!("{} deleted", plural(deleted, "policy", "policies")),
        );
    }

    /// Deletes what was installed beside the operator: permissions and rules of admission.
    pub async fn delete_installed(&mut self, objects: &[Installed]) {
        let mut deleted = 0;
        for object in objects {
            deleted += usize::from(self.delete(object).await);
        }
        self.progress.done(
            "permissions",
            &format!("{} deleted", plural(deleted, "object", "objects")),
        );
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
    pub async fn delete_namespace(&mut self, installed: &[Installed]) {
        let namespace = Installed::cluster_scoped::<Namespace>(&self.namespace.clone());
        match self.look_at(&namespace).await {
            Ok(Some(_)) => {}
            Ok(None) => return self.progress.done("namespace", "gone"),
            Err(error) => return self.leave(&namespace.to_string(), format!("{error:#}")),
        }
        let why = match self.strangers(installed).await {
            Ok(strangers) if strangers.is_empty() => {
                self.delete(&namespace).await;
                return self.await_gone("namespace", &[namespace]).await;
            }
            Ok(strangers) => why_it_is_kept(&strangers),
            Err(error) => format!("it is kept, since nobody knows all that is in it: {error:#}"),
        };
        // It would have gone with the namespace.
        let lease = Installed {
            kind: ApiResource::erase::<Lease>(&()),
            namespace: Some(self.namespace.clone()),
            name: "gpunode-operator".to_owned(),
        };
        self.delete(&lease).await;
        self.progress.done("namespace", "kept");
        self.leave(&namespace.to_string(), why);
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
            let Some(first) = remaining.first() else {
                return self.progress.done(step, "gone");
            };
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
        let Ok(Some(live)) = self.read(object).await else {
            return see;
        };
        let Some(deleted) = live.metadata.deletion_timestamp else {
            return format!("it is not deleted, or something creates it again; {see}");
        };
        let conditions = live.data["status"]["conditions"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        let hindrance = conditions
            .iter()
            .filter(|condition| condition["status"] == "True")
            .find_map(|condition| {
                let kind = condition["type"].as_str()?;
                let hinders =
                    kind == "Terminating" || (kind.starts_with("Namespace") && kind != "NamespaceDeletionCompleted");
                hinders
                    .then(|| condition["message"].as_str().map(str::to_owned))
                    .flatten()
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
