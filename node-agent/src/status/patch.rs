//! The change from one status to another as a JSON merge patch (RFC 7396). Pure.

use serde_json::{Map, Value};

/// Returns the smallest patch that makes `new` of `old`; none if they are equal.
///
/// It has null for each field that vanishes, also one that this version does not know, and the whole of each array that
/// changes. A field that is null counts as absent.
pub fn merge_patch(old: &Value, new: &Value) -> Option<Value> {
    let (Value::Object(old), Value::Object(new)) = (old, new) else {
        return (old != new).then(|| new.clone());
    };
    let gone = old.keys().filter(|key| has(old, key) && !has(new, key));
    let mut patch: Map<String, Value> = gone.map(|key| (key.clone(), Value::Null)).collect();
    for (key, value) in new.iter().filter(|(_, value)| !value.is_null()) {
        let before = old.get(key).unwrap_or(&Value::Null);
        patch.extend(merge_patch(before, value).map(|change| (key.clone(), change)));
    }
    (!patch.is_empty()).then_some(Value::Object(patch))
}

/// Adds to the conditions of `status` those of others in `live`, since a merge patch replaces the list as a whole. If
/// the agent's own are the same in both, the list becomes that of `live`, in its order.
pub fn keep_foreign_conditions(status: &mut Value, live: &Value, is_foreign: impl Fn(&str) -> bool) {
    let (foreign, before): (Vec<Value>, Vec<Value>) = conditions(live)
        .cloned()
        .partition(|condition| is_foreign(type_of(condition)));
    let own: Vec<Value> = conditions(status).cloned().collect();
    let is_same = own.len() == before.len() && own.iter().all(|condition| before.contains(condition));
    let kept: Vec<Value> = if is_same {
        conditions(live).cloned().collect()
    } else {
        own.into_iter().chain(foreign).collect()
    };
    if let Value::Object(status) = status
        && !kept.is_empty()
    {
        status.insert("conditions".to_owned(), Value::Array(kept));
    }
}

fn has(object: &Map<String, Value>, key: &str) -> bool {
    object.get(key).is_some_and(|value| !value.is_null())
}

fn conditions(status: &Value) -> impl Iterator<Item = &Value> {
    status.get("conditions").and_then(Value::as_array).into_iter().flatten()
}

fn type_of(condition: &Value) -> &str {
    condition.get("type").and_then(Value::as_str).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// Applies a patch as the API server does.
    fn patched(target: &Value, patch: &Value) -> Value {
        let Value::Object(patch) = patch else {
            return patch.clone();
        };
        let mut object = target.as_object().cloned().unwrap_or_default();
        for (key, change) in patch {
            if change.is_null() {
                object.remove(key);
            } else {
                let before = object.get(key).cloned().unwrap_or_default();
                object.insert(key.clone(), patched(&before, change));
            }
        }
        Value::Object(object)
    }

    #[test]
    fn equal_statuses_need_no_patch() {
        let status = json!({"agent": {"pod": "a"}, "gpus": [{"index": 0}], "configHash": "x"});
        assert_eq!(merge_patch(&status, &status), None);
        assert_eq!(merge_patch(&json!({}), &json!({})), None);
        assert_eq!(merge_patch(&json!({"a": null}), &json!({"b": null})), None);
    }

    #[test]
    fn patch_has_the_changes_alone() {
        let old = json!({
            "agent": {"pod": "a", "policy": "p", "version": "1"},
            "gpus": [{"index": 0}, {"index": 1}],
            "inUse": "x 1/2",
        });
        let new =
            json!({"agent": {"pod": "b", "version": "1"}, "gpus": [{"index": 0}], "inUse": "x 1/2", "heldBy": "ml/a"});
        let patch = merge_patch(&old, &new).unwrap();
        assert_eq!(
            patch,
            json!({"agent": {"pod": "b", "policy": null}, "gpus": [{"index": 0}], "heldBy": "ml/a"})
        );
        assert_eq!(patched(&old, &patch), new);
    }

    #[test]
    fn field_of_another_version_goes() {
        let old = json!({"configHash": "x", "telepathy": {"range": 3}, "agent": {"pod": "a", "mood": "good"}});
        let new = json!({"configHash": "x", "agent": {"pod": "a"}});
        let patch = merge_patch(&old, &new).unwrap();
        assert_eq!(patch, json!({"telepathy": null, "agent": {"mood": null}}));
        assert_eq!(patched(&old, &patch), new);
    }

    #[test]
    fn value_of_another_kind_is_replaced() {
        for (old, new) in [
            (json!({"a": 1}), json!({"a": {"b": 1}})),
            (json!({"a": {"b": 1}}), json!({"a": [1]})),
            (json!({}), json!({"a": {"b": {"c": []}}})),
        ] {
            let patch = merge_patch(&old, &new).unwrap();
            assert_eq!(patched(&old, &patch), new);
        }
    }

    #[test]
    fn conditions_of_others_stay() {
        let condition = |name: &str, holds: &str| json!({"type": name, "status": holds});
        let is_foreign = |name: &str| name == "Conflict";
        let live = json!({
            "conditions": [
                condition("Conflict", "True"),
                condition("Waiting", "True"),
                condition("Ready", "True"),
            ],
        });

        let mut same = json!({"conditions": [condition("Ready", "True"), condition("Waiting", "True")]});
        keep_foreign_conditions(&mut same, &live, is_foreign);
        assert_eq!(same, live, "in the order that it has");

        let mut changed = json!({"conditions": [condition("Ready", "False")]});
        keep_foreign_conditions(&mut changed, &live, is_foreign);
        assert_eq!(
            changed,
            json!({"conditions": [condition("Ready", "False"), condition("Conflict", "True")]})
        );

        let mut none = json!({});
        keep_foreign_conditions(&mut none, &json!({}), is_foreign);
        assert_eq!(none, json!({}));
    }
}
