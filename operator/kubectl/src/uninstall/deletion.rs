//! The wait for deleted objects to disappear, and why one stays.

use super::{
    installed::InstalledObject,
    removal::{Removal, pause},
    requests::request,
};
use kube::core::DynamicObject;
use std::time::Instant;

/// Waits until deleted objects no longer exist.
pub async fn await_gone(removal: &mut Removal, step: &str, objects: &[InstalledObject]) {
    loop {
        let mut remaining = Vec::new();
        for object in objects {
            match removal.requests.metadata(object).await {
                Ok(None) => {}
                Ok(Some(_)) => remaining.push(object),
                Err(error) => return removal.leave(&object.to_string(), format!("{error:#}")),
            }
        }
        let Some(first) = remaining.first() else {
            return removal.progress.done(step, "deleted");
        };
        if Instant::now() >= removal.end {
            for object in remaining {
                let why = why_it_stays(removal, object).await;
                removal.leave(&object.to_string(), why);
            }
            return;
        }
        removal
            .progress
            .doing(step, &format!("waiting for the deletion of {first}"));
        pause().await;
    }
}

/// Explains why an object stays, from its finalizers and conditions.
async fn why_it_stays(removal: &Removal, object: &InstalledObject) -> String {
    let see = format!("see `kubectl get {} {} -o yaml`", object.kind.plural, object.name);
    let Ok(Some(live)) = read(removal, object).await else {
        return see;
    };
    let Some(deleted) = live.metadata.deletion_timestamp else {
        return format!("it is not being deleted, or something recreates it; {see}");
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
        (None, Some(finalizers)) => format!("; blocked by finalizers: {}", finalizers.join(", ")),
        (None, None) => String::new(),
    };
    format!("its deletion began at {}{hindrance}; {see}", deleted.0)
}

async fn read(removal: &Removal, object: &InstalledObject) -> anyhow::Result<Option<DynamicObject>> {
    let api = kube::Api::<DynamicObject>::all_with(removal.requests.client.clone(), &object.kind);
    request("read", api.get(&object.name)).await
}
