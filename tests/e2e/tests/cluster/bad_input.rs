//! Bad policies are refused at apply, with a message that names the field and what to do.

use anyhow::Result;
use gpunode_e2e::Lab;

fn refusal(lab: &Lab, spec: &str) -> Result<String> {
    let manifest =
        format!("apiVersion: gpunode.dev/v1alpha1\nkind: GpuNodePolicy\nmetadata: {{name: bad}}\nspec: {spec}\n");
    lab.refusal(&manifest)
}

#[test]
#[ignore = "needs the local cluster: make test"]
fn invalid_policies_are_refused_at_apply_with_the_field_and_the_fix() -> Result<()> {
    let lab = Lab::enter()?;
    let cases = [
        ("{nodeSelector: {}, colour: red}", vec!["unknown field \"spec.colour\""]),
        (
            "{labels: {a: b}}",
            vec![
                "spec.nodeSelector",
                "Required value",
                "`nodeSelector: {}` selects every node",
            ],
        ),
        ("{gpuSelector: {}}", vec!["spec.gpuSelector", "minCount: 1"]),
        (
            "{nodeSelector: {}, labels: {node.kubernetes.io/a: b}}",
            vec!["spec.labels", "use your own prefix"],
        ),
        (
            "{nodeSelector: {}, taints: [{key: gpunode.dev/a, effect: NoSchedule}]}",
            vec!["spec.taints[0].key", "use your own prefix"],
        ),
        (
            "{nodeSelector: {}, taints: [{key: a, effect: Sometimes}]}",
            vec!["spec.taints[0].effect", "NoSchedule"],
        ),
        (
            "{nodeSelector: {}, devicePlugin: {resources: [{name: nvidia.com/gpu, sharing: {strategy: TimeSlicing}}]}}",
            vec![
                "spec.devicePlugin.resources[0].sharing.replicas",
                "required when sharing.strategy is TimeSlicing",
            ],
        ),
        (
            "{nodeSelector: {}, drain: {timeout: 5m}}",
            vec!["spec.drain.policy", "need `policy: Evict`"],
        ),
        (
            "{nodeSelector: {}, drain: {policy: Evict, evict: [{namespace: monitoring, podSelector: {}}]}}",
            vec!["spec.drain.evict[0].podSelector", "a selector of every pod is refused"],
        ),
    ];
    for (spec, expected) in cases {
        let message = refusal(&lab, spec)?;
        for part in expected {
            assert!(message.contains(part), "{spec}: {message:?} does not say {part:?}");
        }
    }
    Ok(())
}

#[test]
#[ignore = "needs the local cluster: make test"]
fn a_policy_in_force_cannot_become_a_preview() -> Result<()> {
    let lab = Lab::enter()?;
    let manifest = |mode: &str| {
        format!(
            "apiVersion: gpunode.dev/v1alpha1\nkind: GpuNodePolicy\nmetadata: {{name: modes}}\nspec: {{nodeSelector: {{matchLabels: {{pool: none}}}}, mode: {mode}}}\n"
        )
    };
    lab.apply(&manifest("Preview"))?;
    lab.apply(&manifest("Enforce"))?;
    let message = lab.refusal(&manifest("Preview"))?;
    assert!(message.contains("kubectl gpunode plan"), "{message}");
    Ok(())
}
