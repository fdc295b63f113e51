//! Several policies on the nodes of one cluster, keys that are taken over, and a policy that pauses.

use anyhow::{Context, Result, ensure};
use gpunode_e2e::{A100, AuditEvent, Lab, MIXED, T4, V100, condition, eventually, node_snapshot, taints};
use jiff::{SignedDuration, Timestamp};
use serde_json::Value;
use std::time::Duration;

const LIMIT: Duration = Duration::from_mins(3);
/// Time for which a label is away in a flap. With the starts of two kubectl it is less than the 5 s below, on a busy machine
/// too.
const FLAP: Duration = Duration::from_secs(1);
/// The operator's 5 s until a moment goes into the record, and 30 s until the node leaves, which it counts in whole seconds.
const RECORDED_AFTER: SignedDuration = SignedDuration::from_secs(4);
const GRACE: SignedDuration = SignedDuration::from_secs(29);

fn manifest(name: &str, spec: &str) -> String {
    format!("---\napiVersion: gpunode.dev/v1alpha1\nkind: GpuNodePolicy\nmetadata: {{name: {name}}}\nspec: {spec}\n")
}

fn label(lab: &Lab, node: &str, key: &str) -> Result<Value> {
    Ok(lab.node(node)?["metadata"]["labels"][key].clone())
}

/// Labels that a person set on a node; undone when the value is dropped.
struct HandSet<'a>(&'a Lab, &'a str, &'a [&'a str]);

impl Drop for HandSet<'_> {
    fn drop(&mut self) {
        let undo = [&["label", "node", self.1, "--overwrite"], self.2].concat();
        let _ = self.0.try_kubectl(&undo);
    }
}

#[test]
#[ignore = "needs the local cluster: make test"]
fn policies_over_different_nodes_compose_and_a_conflict_stops_one_key_alone() -> Result<()> {
    let lab = Lab::enter()?;
    let volta = manifest(
        "volta",
        "{gpuSelector: {products: ['Tesla-V100*']}, labels: {tier: volta, generation: old}, taints: [{key: dedicated, value: v100, effect: PreferNoSchedule}]}",
    );
    let large = manifest(
        "large",
        "{priority: 10, gpuSelector: {minMemory: 30Gi, minCount: 3}, labels: {tier: large}}",
    );
    let ampere = manifest(
        "ampere",
        "{gpuSelector: {architectures: [ampere]}, labels: {generation: new}}",
    );
    let preview = manifest(
        "later",
        "{mode: Preview, gpuSelector: {minCount: 1}, labels: {later: 'yes'}}",
    );
    // The mixed node has V100 and A100: `volta` and `ampere` have equal priority and disagree about `generation`.
    lab.apply(&volta)?;
    eventually("the first policy is in force on the mixed node", LIMIT, || {
        ensure!(
            label(&lab, MIXED, "generation")? == "old",
            "the label is {}",
            label(&lab, MIXED, "generation")?
        );
        Ok(())
    })?;
    // One after the other, as kubectl writes the policies of one file: what a node is left as depends on that.
    lab.apply(&large)?;
    lab.apply(&format!("{ampere}{preview}"))?;
    let messages = eventually("the conflict is reported by both policies", LIMIT, || {
        let mut messages = Vec::new();
        for name in ["volta", "ampere"] {
            let policy = lab.get(&["gpunodepolicy", name])?;
            let nodes = &policy["status"]["nodes"];
            ensure!(
                nodes["matched"] == 2 && nodes["ready"] == 1 && nodes["conflicted"] == 1,
                "{name}: {nodes}"
            );
            let failure = &policy["status"]["failures"][0];
            ensure!(
                failure["node"] == MIXED && failure["reason"] == "EqualPriority",
                "{name}: {failure}"
            );
            messages.push(failure["message"].clone());
        }
        let gpu_node = lab.get(&["gpunode", MIXED])?;
        let conflict = condition(&gpu_node, "Conflict");
        ensure!(
            conflict["status"] == "True",
            "GpuNode: {}",
            gpu_node["status"]["conditions"]
        );
        messages.push(conflict["message"].clone());
        Ok(messages)
    })?;
    for message in &messages {
        let message = message.as_str().unwrap_or_default();
        for part in ["label generation", "ampere wants \"new\"", "volta wants \"old\""] {
            assert!(message.contains(part), "{message} does not say {part}");
        }
    }
    assert_eq!(label(&lab, MIXED, "generation")?, "old", "the key is left as it is");
    assert_eq!(label(&lab, MIXED, "tier")?, "large", "other keys are not");
    assert_eq!(
        (label(&lab, V100, "tier")?, label(&lab, V100, "generation")?),
        ("large".into(), "old".into())
    );
    assert_eq!(
        (label(&lab, A100, "tier")?, label(&lab, A100, "generation")?),
        ("large".into(), "new".into())
    );
    assert_eq!(taints(&lab.node(V100)?), ["dedicated=v100:PreferNoSchedule"]);
    let later = lab.get(&["gpunodepolicy", "later"])?;
    assert_eq!(later["status"]["nodes"]["matched"], 4);
    assert_eq!(label(&lab, T4, "later")?, Value::Null, "a preview writes nothing");

    lab.apply(&manifest(
        "ampere",
        "{priority: 1, gpuSelector: {architectures: [ampere]}, labels: {generation: new}}",
    ))?;
    eventually("the conflict has healed", LIMIT, || {
        ensure!(
            label(&lab, MIXED, "generation")? == "new",
            "the label is {}",
            label(&lab, MIXED, "generation")?
        );
        let gpu_node = lab.get(&["gpunode", MIXED])?;
        let conditions = gpu_node["status"]["conditions"].as_array().cloned().unwrap_or_default();
        ensure!(
            conditions.iter().all(|it| it["type"] != "Conflict"),
            "GpuNode still has {conditions:?}"
        );
        Ok(())
    })?;
    for name in ["volta", "ampere", "large"] {
        lab.await_ready(name)?;
    }
    Ok(())
}

#[test]
#[ignore = "needs the local cluster: make test"]
fn a_key_that_was_taken_over_is_given_back_with_its_old_value() -> Result<()> {
    let lab = Lab::enter()?;
    let _label = HandSet(&lab, V100, &["tier-"]);
    lab.kubectl(&["label", "node", V100, "tier=theirs"])?;
    let before = node_snapshot(&lab.node(V100)?);
    let spec = |on_conflict: &str| {
        let spec = "gpuSelector: {products: ['Tesla-V100-SXM2-32GB']}, labels: {tier: ours}";
        manifest("taker", &format!("{{onConflict: {on_conflict}, {spec}}}"))
    };
    lab.apply(&spec("Report"))?;
    eventually("the key is a conflict", LIMIT, || {
        let policy = lab.get(&["gpunodepolicy", "taker"])?;
        let conflict = condition(&policy, "Conflict");
        let message = conflict["message"].as_str().unwrap_or_default();
        ensure!(
            message.contains("kubectl-label") && message.contains("theirs"),
            "{conflict}"
        );
        Ok(())
    })?;
    lab.apply(&spec("TakeOver"))?;
    lab.await_ready("taker")?;
    assert_eq!(label(&lab, V100, "tier")?, "ours");
    eventually("an event says what was taken over", LIMIT, || {
        let selector = "involvedObject.name=taker,reason=KeysTakenOver";
        let events = lab.get(&["events", "--field-selector", selector])?;
        let message = events["items"][0]["message"].as_str().unwrap_or_default();
        let expected = format!("took over label tier on node {V100} from another owner");
        ensure!(message == expected, "{events}");
        Ok(())
    })?;
    lab.kubectl(&["delete", "gpunodepolicy", "taker", "--timeout=30s"])?;
    eventually("the node is as it was before", LIMIT, || {
        let seen = node_snapshot(&lab.node(V100)?);
        ensure!(seen == before, "before: {before}\n   now: {seen}");
        Ok(())
    })
}

#[test]
#[ignore = "needs the local cluster: make test"]
fn a_paused_policy_keeps_its_nodes_as_they_are_until_it_is_deleted() -> Result<()> {
    let lab = Lab::enter()?;
    let _pools = (HandSet(&lab, V100, &["pause-"]), HandSet(&lab, T4, &["pause-"]));
    let before = node_snapshot(&lab.node(V100)?);
    lab.kubectl(&["label", "node", V100, "pause=a"])?;
    let spec = |mode: &str, value: &str| {
        let spec =
            format!("nodeSelector: {{matchLabels: {{pause: a}}}}, labels: {{look: {value}}}, devicePlugin: {{}}");
        manifest("pausing", &format!("{{mode: {mode}, {spec}}}"))
    };
    lab.apply(&spec("Enforce", "one"))?;
    lab.await_ready("pausing")?;
    lab.await_plugin(V100)?;

    lab.apply(&spec("Paused", "two"))?;
    lab.kubectl(&["label", "node", T4, "pause=a"])?;
    lab.kubectl(&["label", "node", V100, "pause-"])?;
    eventually("the policy says that it is paused", LIMIT, || {
        let policy = lab.get(&["gpunodepolicy", "pausing"])?;
        let ready = condition(&policy, "Ready");
        ensure!(ready["status"] == "True" && ready["reason"] == "Paused", "{ready}");
        ensure!(
            policy["status"]["nodes"]["matched"] == 1,
            "{}",
            policy["status"]["nodes"]
        );
        Ok(())
    })?;
    // Another policy of the same operator shows that it has worked through everything that was said before.
    lab.apply(&manifest(
        "after",
        "{nodeSelector: {matchLabels: {pause: a}}, labels: {after: 'yes'}}",
    ))?;
    lab.await_ready("after")?;
    assert_eq!(
        label(&lab, V100, "look")?,
        "one",
        "neither its new spec nor its leaving changes the node"
    );
    assert_eq!(label(&lab, T4, "look")?, Value::Null, "no node is added");
    lab.await_plugin(V100)?;
    // A paused policy cannot become a preview.
    lab.refusal(&spec("Preview", "two"))?;

    lab.kubectl(&["delete", "gpunodepolicy", "pausing", "after", "--timeout=30s"])?;
    eventually("the node is as it was before", LIMIT, || {
        let seen = node_snapshot(&lab.node(V100)?);
        ensure!(seen == before, "before: {before}\n   now: {seen}");
        Ok(())
    })
}

#[test]
#[ignore = "needs the local cluster: make test"]
fn a_label_that_flaps_writes_nothing_and_one_that_stays_away_is_waited_for() -> Result<()> {
    let lab = Lab::enter()?;
    let _label = HandSet(&lab, V100, &["flaps-"]);
    lab.kubectl(&["label", "node", V100, "flaps=here"])?;
    lab.apply(&manifest(
        "flapping",
        "{nodeSelector: {matchLabels: {flaps: here}}, labels: {flapped: 'yes'}}",
    ))?;
    lab.await_ready("flapping")?;
    assert_eq!(label(&lab, V100, "flapped")?, "yes");
    let audit = lab.audit()?;
    lab.kubectl(&["label", "node", V100, "flaps-"])?;
    // What is tested, and no wait for anything.
    std::thread::sleep(FLAP);
    lab.kubectl(&["label", "node", V100, "flaps=here"])?;
    let left = Timestamp::now();
    lab.kubectl(&["label", "node", V100, "flaps-"])?;
    eventually("the node leaves the policy", LIMIT, || {
        let flapped = label(&lab, V100, "flapped")?;
        ensure!(flapped.is_null(), "the label is {flapped}");
        Ok(())
    })?;
    let mut writes = audit.gpunode_writes()?;
    writes.retain(|write| write.resource() == "nodes" && write.name() == V100);
    // Stale resources of earlier tests go from the record meanwhile.
    let (recorded, mut others): (Vec<_>, Vec<_>) = writes.iter().partition(|write| write.is_of_record_alone());
    let is_moment = |write: &&&AuditEvent| {
        let request = write.request().map(ToString::to_string);
        request.is_some_and(|request| request.contains("deselected"))
    };
    let moment = recorded
        .iter()
        .find(is_moment)
        .context("the moment goes into the record")?;
    let label = others.pop().context("then the label goes")?;
    ensure!(others.is_empty(), "{others:?}");
    for (write, after) in [(*moment, RECORDED_AFTER), (label, GRACE)] {
        let time = write.time()?.duration_since(left);
        ensure!(time >= after, "after {time:#}: {write}");
    }
    Ok(())
}
