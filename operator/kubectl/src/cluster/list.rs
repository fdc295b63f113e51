//! Lists of a kind's objects, in pages. An object that cannot be read hides no other one.

use super::{
    connection::TIMEOUT,
    request_error::{ForbiddenRequest, explain},
};
use crate::output::{TextWidth, plain, style, wrapped};
use anyhow::anyhow;
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{ApiResource, DynamicObject, ListParams},
};
use serde::{Serialize, de::DeserializeOwned};
use std::fmt;

/// Role of `manifests/default` that allows every list of the subcommands but `uninstall`.
const VIEWER: &str = "gpunode-viewer";

/// Objects in one page of a list.
const PAGE: u32 = 500;

/// Most pages of a list: half a million objects are more than any cluster has nodes.
const MAX_PAGES: usize = 1000;

/// The objects of a kind, and those that cannot be read.
#[derive(Debug)]
pub struct ListedObjects<K> {
    /// Readable objects. One whose status alone is unreadable is here without it.
    pub objects: Vec<K>,
    /// Unreadable objects and statuses.
    pub unreadable: Vec<UnreadableObject>,
}

/// Stands for every object of a kind in [`UnreadableObject::name`], as in rules of RBAC.
const EVERY: &str = "*";

/// An object that cannot be read, or whose status cannot be read; or a kind whose objects the caller may not list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct UnreadableObject {
    pub kind: String,
    /// Name of the object, or `*` for every object of the kind.
    pub name: String,
    /// The part that cannot be read, the reason, and what to do.
    pub message: String,
}

impl UnreadableObject {
    /// Stands for a kind that the caller may not list; `message` is the reason. `without` says what the output lacks or assumes.
    pub fn forbidden(kind: &str, message: &str, without: &str) -> Self {
        Self {
            kind: kind.to_owned(),
            name: EVERY.to_owned(),
            message: format!("{message}; ask for the ClusterRole {VIEWER}{without}"),
        }
    }

    /// Returns true if it stands for a kind that the caller may not list.
    pub fn is_every(&self) -> bool {
        self.name == EVERY
    }
}

impl fmt::Display for UnreadableObject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, name, message } = self;
        if self.is_every() {
            let stem = kind.strip_suffix('y');
            let kinds = stem.map_or_else(|| format!("{kind}s"), |stem| format!("{stem}ies"));
            write!(f, "you may not list {kinds}: {message}")
        } else {
            write!(f, "{kind} {name}: {message}")
        }
    }
}

/// Lists every object of a kind. An object that cannot be read does not fail the list.
///
/// # Errors
/// When the cluster cannot be reached, forbids the list, or does not know the kind.
pub async fn list<K>(client: &Client) -> anyhow::Result<ListedObjects<K>>
where
    K: Resource<DynamicType = ()> + DeserializeOwned,
{
    list_some(client, ListParams::default()).await
}

/// Lists the objects of a kind that `params` selects. A list that the caller may not have is empty and says so.
///
/// # Errors
/// When the cluster cannot be reached, or does not know the kind.
pub async fn list_permitted<K>(client: &Client, params: ListParams) -> anyhow::Result<ListedObjects<K>>
where
    K: Resource<DynamicType = ()> + DeserializeOwned,
{
    permitted(list_some(client, params).await)
}

/// Returns a forbidden list as an empty one.
fn permitted<K>(list: anyhow::Result<ListedObjects<K>>) -> anyhow::Result<ListedObjects<K>>
where
    K: Resource<DynamicType = ()>,
{
    let error = match list {
        Ok(list) => return Ok(list),
        Err(error) => error,
    };
    let ForbiddenRequest { message, .. } = error.downcast()?;
    Ok(ListedObjects {
        objects: Vec::new(),
        unreadable: vec![UnreadableObject::forbidden(&K::kind(&()), &message, "")],
    })
}

/// Lists the objects of a kind that `params` selects.
///
/// # Errors
/// As of [`list`].
pub async fn list_some<K>(client: &Client, params: ListParams) -> anyhow::Result<ListedObjects<K>>
where
    K: Resource<DynamicType = ()> + DeserializeOwned,
{
    let api = Api::<DynamicObject>::all_with(client.clone(), &ApiResource::erase::<K>(&()));
    let kind = K::plural(&());
    let mut listed = ListedObjects::default();
    let mut params = params.limit(PAGE);
    for _ in 0..MAX_PAGES {
        let page = tokio::time::timeout(TIMEOUT, api.list(&params))
            .await
            .map_err(|_| anyhow!("list {kind}: no answer within {} s", TIMEOUT.as_secs()))?
            .map_err(|error| explain(&format!("list {kind}"), error))?;
        page.items.into_iter().for_each(|object| listed.add(object));
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params = params.continue_token(&token),
            None => break,
        }
    }
    Ok(listed)
}

impl<K> Default for ListedObjects<K> {
    fn default() -> Self {
        Self {
            objects: Vec::new(),
            unreadable: Vec::new(),
        }
    }
}

impl<K> ListedObjects<K> {
    /// Returns true if the caller may not list this kind.
    pub fn is_forbidden(&self) -> bool {
        self.unreadable.iter().any(UnreadableObject::is_every)
    }
}

impl<K: Resource<DynamicType = ()> + DeserializeOwned> ListedObjects<K> {
    /// Adds an object.
    pub fn add(&mut self, mut object: DynamicObject) {
        let (kind, name) = (K::kind(&()).into_owned(), object.name_any());
        let error = match parse(&object) {
            Ok(object) => return self.objects.push(object),
            Err(error) => error,
        };
        if let Some(fields) = object.data.as_object_mut() {
            fields.remove("status");
        }
        let message = match parse(&object) {
            Ok(object) => {
                self.objects.push(object);
                format!("its status cannot be read: {error}; {}", remedy(&kind, &name))
            }
            Err(error) => format!("it cannot be read: {error}; see `kubectl get {kind} {name} -o yaml`"),
        };
        self.unreadable.push(UnreadableObject { kind, name, message });
    }
}

/// Checks that the caller may list these kinds, without which `what` says nothing. The error names every one that is forbidden.
///
/// # Errors
/// When one is among the unreadable objects.
pub fn require(unreadable: &[UnreadableObject], kinds: &[&str], what: &str) -> anyhow::Result<()> {
    let forbidden = unreadable
        .iter()
        .filter(|it| it.is_every() && kinds.contains(&it.kind.as_str()));
    let reasons: Vec<String> = forbidden.map(ToString::to_string).collect();
    anyhow::ensure!(reasons.is_empty(), "{what}: {}", reasons.join("; "));
    Ok(())
}

/// Returns the names of the objects of this kind that exist and are not among the readable `objects`.
pub fn unreadable_names<K>(objects: &[K], unreadable: &[UnreadableObject]) -> impl Iterator<Item = String>
where
    K: Resource<DynamicType = ()>,
{
    let is_unreadable = move |it: &&UnreadableObject| {
        it.kind == K::kind(&()) && !it.is_every() && !objects.iter().any(|object| object.name_any() == it.name)
    };
    unreadable.iter().filter(is_unreadable).map(|it| it.name.clone())
}

/// Returns a sentence for each unreadable object.
pub fn unreadable_lines(objects: &[UnreadableObject], width: TextWidth) -> String {
    let bad = style::BAD;
    let line = |object: &UnreadableObject| {
        let text = format!("! {}", plain(&object.to_string()));
        format!("{bad}{}{bad:#}\n", wrapped(&text, width, 2))
    };
    objects.iter().map(line).collect::<Vec<_>>().concat()
}

/// Prints an unreadable object on standard error.
#[allow(clippy::print_stderr, reason = "a command line program")]
pub fn warn(object: &UnreadableObject) {
    anstream::eprintln!("{}", plain(&object.to_string()));
}

fn parse<K: DeserializeOwned>(object: &DynamicObject) -> serde_json::Result<K> {
    serde_json::from_value(serde_json::to_value(object)?)
}

/// Returns the step that repairs a status. Deleting a policy is none: that would remove its labels from the nodes.
fn remedy(kind: &str, name: &str) -> String {
    match kind {
        "GpuNode" => "delete the GpuNode and the agent writes it again".to_owned(),
        "GpuNodePolicy" => format!("fix it with `kubectl edit {kind} {name} --subresource=status`"),
        _ => format!("see `kubectl get {kind} {name} -o yaml`"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpunode_crds::GpuNode;
    use serde_json::json;

    fn listed(objects: &[serde_json::Value]) -> ListedObjects<GpuNode> {
        let mut listed = ListedObjects {
            objects: Vec::new(),
            unreadable: Vec::new(),
        };
        for object in objects {
            listed.add(serde_json::from_value(object.clone()).expect("an object"));
        }
        listed
    }

    fn gpu_node(name: &str, spec: &serde_json::Value, time: &str) -> serde_json::Value {
        let condition =
            json!({"type": "Ready", "status": "True", "reason": "R", "message": "", "lastTransitionTime": time});
        json!({
            "apiVersion": "gpunode.dev/v1alpha1", "kind": "GpuNode", "metadata": {"name": name}, "spec": spec,
            "status": {"hardware": "8 x A", "conditions": [condition]},
        })
    }

    #[test]
    fn list_that_is_forbidden_is_empty_and_names_the_role() {
        let list = |code: u16| {
            let status = kube::core::Status::failure("gpunodes is forbidden: User \"a\" cannot list it", "Reason");
            let error = kube::Error::Api(Box::new(status.with_code(code)));
            permitted::<GpuNode>(Err(explain("list gpunodes", error)))
        };
        let forbidden = list(403).expect("an empty list");
        assert!(forbidden.objects.is_empty() && forbidden.is_forbidden());
        let text = "you may not list GpuNodes: gpunodes is forbidden: User \"a\" cannot list it; ask for the ClusterRole gpunode-viewer";
        assert_eq!(forbidden.unreadable[0].to_string(), text);
        for code in [401, 404, 500] {
            assert!(list(code).is_err(), "{code}");
        }
        assert!(!listed(&[]).is_forbidden());

        assert!(require(&forbidden.unreadable, &["Node"], "plan").is_ok());
        let error = require(&forbidden.unreadable, &["Node", "GpuNode"], "plan").expect_err("it is needed");
        assert_eq!(error.to_string(), format!("plan: {text}"));
    }

    #[test]
    fn one_status_that_cannot_be_read_hides_no_other_object() {
        let config = json!({"config": {"policy": "p", "version": 1, "hash": "h", "document": "{}"}});
        let listed = listed(&[
            gpu_node("offset", &config, "2026-01-01T00:00:00+99:99"),
            gpu_node("good", &config, "2026-01-01T00:00:00Z"),
            gpu_node("digits", &config, "2026-01-01T00:00:00.1234567890Z"),
            gpu_node("spec", &json!({"config": {"version": "one"}}), "2026-01-01T00:00:00Z"),
        ]);
        let read: Vec<_> = listed
            .objects
            .iter()
            .map(|object| (object.name_any(), object.status.is_some()))
            .collect();
        assert_eq!(
            read,
            [
                ("offset".into(), false),
                ("good".into(), true),
                ("digits".into(), false)
            ]
        );
        let unreadable: Vec<_> = listed.unreadable.iter().map(|object| object.name.as_str()).collect();
        assert_eq!(unreadable, ["offset", "digits", "spec"]);
        let message = &listed.unreadable[0].message;
        assert!(message.starts_with("its status cannot be read: "), "{message}");
        assert!(
            message.ends_with("; delete the GpuNode and the agent writes it again"),
            "{message}"
        );
    }
}
