//! Requests that the admission policies deny to agents and kubelets, with real tokens.

use crate::samples;
use anyhow::{Context, Result, ensure};
use gpunode_e2e::{CPU, Lab, NAMESPACE, T4, V100, eventually};
use std::{path::PathBuf, process::Command, time::Duration};

const LIMIT: Duration = Duration::from_mins(3);

/// The token of the agent that runs on a node, taken from its pod.
fn agent_token(lab: &Lab, node: &str) -> Result<String> {
    let pod = lab.await_plugin(node)?;
    let process = lab.cluster().node(node)?.container_process(NAMESPACE, &pod, "agent")?;
    let path = format!(
        "/proc/{}/root/var/run/secrets/kubernetes.io/serviceaccount/token",
        process.pid()
    );
    std::fs::read_to_string(&path).with_context(|| format!("read {path}"))
}

/// Writes a kubeconfig with a token instead of the administrator's certificate.
pub fn token_kubeconfig(lab: &Lab, name: &str, token: &str) -> Result<PathBuf> {
    let kubeconfig = std::fs::read_to_string(lab.cluster().kubeconfig())?;
    let mut config: serde_yaml::Value = serde_yaml::from_str(&kubeconfig)?;
    let user = config
        .get_mut("users")
        .and_then(|users| users.get_mut(0))
        .and_then(|user| user.get_mut("user"))
        .context("find the user of the kubeconfig")?;
    *user = serde_yaml::from_str(&format!("token: {token}"))?;
    let path = lab.cluster().folder().join(format!("{name}.kubeconfig"));
    std::fs::write(&path, serde_yaml::to_string(&config)?)?;
    Ok(path)
}

/// kubectl with the agent's token.
fn as_agent(lab: &Lab, token: &str, arguments: &[&str]) -> Result<std::process::Output> {
    let path = token_kubeconfig(lab, "agent", token)?;
    let kubectl = lab.cluster().kubectl_command();
    Command::new(kubectl.get_program())
        .arg("--kubeconfig")
        .arg(&path)
        .arg("--cache-dir")
        .arg(lab.cluster().folder().join("kubectl-cache"))
        .args(arguments)
        .output()
        .context("start kubectl")
}

fn refused(what: &str, output: &std::process::Output, expected: &str) -> Result<()> {
    let message = String::from_utf8_lossy(&output.stderr);
    ensure!(
        !output.status.success() && message.to_lowercase().contains("forbidden"),
        "{what} was not refused: {message}"
    );
    ensure!(
        message.contains(expected),
        "{what}: {message:?} does not say {expected:?}"
    );
    Ok(())
}

#[test]
#[ignore = "needs the local cluster: make test"]
fn an_agent_writes_the_status_of_its_own_gpunode_and_nothing_else() -> Result<()> {
    let lab = Lab::enter()?;
    lab.apply(&samples::policy("v100-reserved")?)?;
    lab.await_allocatable(V100, "nvidia.com/gpu", 8)?;
    let token = agent_token(&lab, V100)?;
    // Server-side apply: kubectl reads nothing first, so what is refused is the write.
    let apply = |what: &str, node: &str, arguments: &[&str], body: &str| -> Result<std::process::Output> {
        let manifest = lab.cluster().folder().join("agent-writes.yaml");
        std::fs::write(
            &manifest,
            format!("apiVersion: gpunode.dev/v1alpha1\nkind: GpuNode\nmetadata: {{name: {node}}}\n{body}\n"),
        )?;
        let manifest = manifest.to_string_lossy().into_owned();
        let common = [
            "apply",
            "--server-side",
            "--force-conflicts",
            "--validate=false",
            "-f",
            &manifest,
        ];
        as_agent(&lab, &token, &[&common, arguments].concat()).context(what.to_owned())
    };
    let status = "status: {hardware: 8 x Tesla-V100-SXM2-32GB}";
    let own = apply("write its own status", V100, &["--subresource=status"], status)?;
    ensure!(
        own.status.success(),
        "its own status: {}",
        String::from_utf8_lossy(&own.stderr)
    );

    let other = apply("write another status", T4, &["--subresource=status"], status)?;
    refused(
        "the status of another node's GpuNode",
        &other,
        "only the GpuNode of its own node",
    )?;
    let spec = apply(
        "write its own spec",
        V100,
        &[],
        "spec: {config: {policy: x, version: 1, hash: x, document: x}}",
    )?;
    refused(
        "the spec of its own GpuNode",
        &spec,
        "cannot patch resource \"gpunodes\"",
    )?;
    let manifest = lab.cluster().folder().join("forged-gpunode.yaml");
    std::fs::write(
        &manifest,
        "apiVersion: gpunode.dev/v1alpha1\nkind: GpuNode\nmetadata: {name: forged}\nspec: {}\n",
    )?;
    let forged = as_agent(&lab, &token, &["create", "-f", &manifest.to_string_lossy()])?;
    refused("a GpuNode of another name", &forged, "only the GpuNode of its own node")?;
    let node = as_agent(&lab, &token, &["label", "node", V100, "forged=true"])?;
    refused("a Node", &node, "cannot patch resource \"nodes\"")?;
    Ok(())
}

#[test]
#[ignore = "needs the local cluster: make test"]
fn a_kubelet_cannot_forge_what_gpunode_owns() -> Result<()> {
    let lab = Lab::enter()?;
    lab.apply(&samples::policy("v100-reserved")?)?;
    lab.await_ready("v100-reserved")?;
    let before = gpunode_e2e::node_snapshot(&lab.node(V100)?);
    let kubeconfig = lab.cluster().node(V100)?.kubelet_kubeconfig();
    let as_kubelet = |arguments: &[&str]| {
        let kubectl = lab.cluster().kubectl_command();
        Command::new(kubectl.get_program())
            .arg("--kubeconfig")
            .arg(&kubeconfig)
            .args(arguments)
            .output()
            .context("start kubectl")
    };
    let record = r#"gpunode.dev/owned={"version":1,"labels":{"pool":"training"}}"#;
    refused(
        "the record",
        &as_kubelet(&["annotate", "node", V100, "--overwrite", record])?,
        "annotations under gpunode.dev/",
    )?;
    refused(
        "its removal",
        &as_kubelet(&["annotate", "node", V100, "gpunode.dev/owned-"])?,
        "annotations under gpunode.dev/",
    )?;
    refused(
        "a label",
        &as_kubelet(&["label", "node", V100, "gpunode.dev/ignore=true"])?,
        "labels under gpunode.dev/",
    )?;
    refused(
        "its removal",
        &as_kubelet(&["label", "node", V100, "gpunode.dev/governed-"])?,
        "labels under gpunode.dev/",
    )?;
    let output = raw_status_patch(&lab, V100, &kubeconfig)?;
    refused(
        "the record through nodes/status",
        &output,
        "annotations under gpunode.dev/",
    )?;
    let manifest = lab.cluster().folder().join("forged-node.yaml");
    for label in [
        "gpunode.dev/governed",
        "gpunode.dev/mps",
        "gpunode.dev/policy.v100-reserved",
    ] {
        let node = format!("{{apiVersion: v1, kind: Node, metadata: {{name: {V100}, labels: {{{label}: 'true'}}}}}}");
        std::fs::write(&manifest, node)?;
        let output = as_kubelet(&["create", "--validate=false", "-f", &manifest.to_string_lossy()])?;
        refused(
            &format!("{label} at registration"),
            &output,
            "a kubelet may not register its node with",
        )?;
    }
    assert_eq!(gpunode_e2e::node_snapshot(&lab.node(V100)?), before);
    Ok(())
}

/// A patch of `nodes/status` as kubelets send it; kubectl reads the object first, which a kubelet may not do there.
fn raw_status_patch(lab: &Lab, node: &str, kubeconfig: &std::path::Path) -> Result<std::process::Output> {
    let mut object = lab.node(node)?;
    object["metadata"]["annotations"]["gpunode.dev/owned"] = "{}".into();
    // With a version, the API server would refuse the patch of a node that has changed meanwhile, and not ask the rules.
    let metadata = object["metadata"].as_object_mut().context("find the node's metadata")?;
    metadata.remove("resourceVersion");
    let manifest = lab.cluster().folder().join("forged-node.json");
    std::fs::write(&manifest, object.to_string())?;
    let kubectl = lab.cluster().kubectl_command();
    Command::new(kubectl.get_program())
        .arg("--kubeconfig")
        .arg(kubeconfig)
        .args(["replace", "--raw", &format!("/api/v1/nodes/{node}/status"), "-f"])
        .arg(&manifest)
        .output()
        .context("start kubectl")
}

/// The kubelet of this node runs with `--node-labels` and `--register-with-taints` of gpunode's prefix
/// (`tests/e2e/cluster.yaml`), as nodes do that join with the startup taint.
#[test]
#[ignore = "needs the local cluster: make test"]
fn a_kubelet_joins_with_labels_and_taints_of_gpunode() -> Result<()> {
    let lab = Lab::enter()?;
    let node = lab.cluster().node(CPU)?;
    node.stop_kubelet()?;
    lab.kubectl(&["delete", "node", CPU, "--timeout=90s"])?;
    node.start_kubelet()?;
    joined(&lab)?;
    node.restart_kubelet()?;
    joined(&lab)
}

fn joined(lab: &Lab) -> Result<()> {
    eventually("the node has joined with its labels and taints", LIMIT, || {
        let node = lab.node(CPU)?;
        let ready = gpunode_e2e::condition(&node, "Ready");
        let taints = gpunode_e2e::taints(&node);
        ensure!(ready["status"] == "True", "it is {ready}");
        ensure!(
            node["metadata"]["labels"]["gpunode.dev/joined"] == "true",
            "labels are {}",
            node["metadata"]["labels"]
        );
        ensure!(
            taints.contains(&"gpunode.dev/joining=:PreferNoSchedule".to_owned()),
            "taints are {taints:?}"
        );
        Ok(())
    })
}

#[test]
#[ignore = "needs the local cluster: make test"]
fn a_kubelet_restarts_under_the_admission_rules() -> Result<()> {
    let lab = Lab::enter()?;
    lab.apply(&samples::policy("v100-reserved")?)?;
    lab.await_ready("v100-reserved")?;
    let before = gpunode_e2e::node_snapshot(&lab.node(V100)?);
    lab.cluster().node(V100)?.restart_kubelet()?;
    eventually("the node is Ready again", LIMIT, || {
        let node = lab.node(V100)?;
        let ready = gpunode_e2e::condition(&node, "Ready");
        ensure!(ready["status"] == "True", "it is {ready}");
        Ok(())
    })?;
    lab.await_allocatable(V100, "nvidia.com/gpu", 8)?;
    assert_eq!(gpunode_e2e::node_snapshot(&lab.node(V100)?), before);
    Ok(())
}

/// An event of `events.k8s.io` about an object.
fn event(name: &str, kind: &str, about: &str) -> String {
    format!(
        "apiVersion: events.k8s.io/v1\nkind: Event\nmetadata: {{name: {name}, namespace: default}}\neventTime: \
         2026-01-01T00:00:00.000000Z\nreportingController: gpunode-agent\nreportingInstance: forged\naction: Forge\nreason: \
         Forged\ntype: Warning\nnote: forged\nregarding: {{apiVersion: v1, kind: {kind}, name: {about}}}\n"
    )
}

#[test]
#[ignore = "needs the local cluster: make test"]
fn an_agent_sends_events_about_its_own_node_and_about_nothing_else() -> Result<()> {
    let lab = Lab::enter()?;
    lab.apply(&samples::policy("v100-reserved")?)?;
    lab.await_allocatable(V100, "nvidia.com/gpu", 8)?;
    let token = agent_token(&lab, V100)?;
    let manifest = lab.cluster().folder().join("forged-event.yaml");
    let send = |kind: &str, about: &str| {
        std::fs::write(
            &manifest,
            event(&format!("forged-{}", about.to_lowercase()), kind, about),
        )?;
        as_agent(
            &lab,
            &token,
            &["create", "--validate=false", "-f", &manifest.to_string_lossy()],
        )
    };
    let own = send("Node", V100)?;
    ensure!(
        own.status.success(),
        "its own: {}",
        String::from_utf8_lossy(&own.stderr)
    );
    lab.kubectl(&["delete", "events", "-n", "default", &format!("forged-{V100}")])?;
    let refusal = "an agent may send events only about its own node";
    refused("an event about another node", &send("Node", T4)?, refusal)?;
    refused("an event about a pod", &send("Pod", V100)?, refusal)
}

#[test]
#[ignore = "needs the local cluster: make test"]
fn who_may_edit_one_namespace_cannot_write_the_lease_of_an_operator() -> Result<()> {
    let lab = Lab::enter()?;
    let account = "--serviceaccount=default:tenant";
    lab.kubectl(&["create", "rolebinding", "tenant", "--clusterrole=edit", account])?;
    let create = |name: &str| {
        let lease = format!(
            "apiVersion: coordination.k8s.io/v1\nkind: Lease\nmetadata: {{name: {name}, namespace: default}}\nspec: {{holderIdentity: \
             x, leaseDurationSeconds: 60}}\n"
        );
        let tenant = "--as=system:serviceaccount:default:tenant";
        lab.kubectl_with_input(&["create", tenant, "-f", "-"], &lease)
    };
    let own = eventually("the tenant may write a Lease", LIMIT, || {
        let output = create("tenant")?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Ok(())
    });
    let forged = create("gpunode-operator");
    let leftovers = ["rolebinding/tenant", "lease/tenant", "lease/gpunode-operator"];
    lab.kubectl(&[&["delete", "-n", "default", "--ignore-not-found"][..], &leftovers].concat())?;
    own?;
    refused(
        "the Lease of an operator",
        &forged?,
        "only somebody who may patch nodes may write it",
    )
}

#[test]
#[ignore = "needs the local cluster: make test"]
fn a_policy_with_an_image_that_is_not_allowed_is_refused_in_status_and_by_the_sample_at_apply() -> Result<()> {
    let lab = Lab::enter()?;
    let policy = |image: &str| {
        format!(
            "apiVersion: gpunode.dev/v1alpha1\nkind: GpuNodePolicy\nmetadata: {{name: image}}\nspec: {{nodeSelector: {{matchLabels: \
             {{pool: none}}}}, devicePlugin: {{}}, image: '{image}'}}\n"
        )
    };
    // What a plan makes of it is no difference of nodes.
    let applied = lab.unplanned("image", || {
        lab.kubectl_with_input(&["apply", "-f", "-"], &policy("gpunode.dev/agent-evil:1"))
    })?;
    ensure!(applied.status.success(), "{applied:?}");
    eventually("the policy is refused", LIMIT, || {
        let status = lab.get(&["gpunodepolicy", "image"])?;
        let stalled = gpunode_e2e::condition(&status, "Stalled");
        let message = stalled["message"].as_str().unwrap_or_default();
        ensure!(
            stalled["reason"] == "InvalidSpec" && message.contains("gpunode.dev/agent-evil:1 is not allowed"),
            "it is {stalled}"
        );
        Ok(())
    })?;
    let daemonset = eventually("the policy has its DaemonSet", LIMIT, || {
        lab.get(&["daemonset", "-n", NAMESPACE, "gpunode-agent-image"])
    })?;
    let image = &daemonset["spec"]["template"]["spec"]["containers"][0]["image"];
    assert_eq!(
        image, "gpunode.dev/agent:0.1.0",
        "the image that is not allowed runs nowhere"
    );

    let sample = Lab::repository().join("manifests/admission/allowed-images.yaml");
    let sample = sample.to_string_lossy();
    lab.kubectl(&["apply", "-f", &sample])?;
    let judged = images_at_apply(&lab, policy);
    lab.kubectl(&["delete", "-f", &sample])?;
    judged
}

#[test]
#[ignore = "needs the local cluster: make test"]
fn requests_of_gpunode_have_levels_of_their_own_with_the_component() -> Result<()> {
    let lab = Lab::enter()?;
    let component = Lab::repository().join("manifests/components/api-priority");
    let component = component.to_string_lossy();
    lab.kubectl(&["apply", "-k", &component])?;
    let judged = ["gpunode-lease", "gpunode-operator", "gpunode-agents"]
        .iter()
        .try_for_each(|schema| {
            eventually("the schema leads to its level", Duration::from_secs(20), || {
                let object = lab.get(&["flowschema", schema])?;
                let dangling = gpunode_e2e::condition(&object, "Dangling");
                ensure!(dangling["status"] == "False", "{schema}: {dangling}");
                Ok(())
            })
        })
        .and_then(|()| {
            // The operator writes a label and a GpuNode, whose agent answers; the Lease is renewed all the time.
            lab.apply(&samples::sharing(
                "inference",
                "{resources: [{name: nvidia.com/gpu, sharing: {strategy: TimeSlicing, replicas: 2}}]}",
            ))?;
            eventually("the API server counts requests in each level", LIMIT, || {
                let metrics = lab.kubectl(&["get", "--raw", "/metrics"])?;
                for (schema, level) in [
                    ("gpunode-lease", "leader-election"),
                    ("gpunode-operator", "gpunode-operator"),
                    ("gpunode-agents", "gpunode-agents"),
                ] {
                    let counted = format!(
                        r#"apiserver_flowcontrol_dispatched_requests_total{{flow_schema="{schema}",priority_level="{level}"}} "#
                    );
                    ensure!(metrics.contains(&counted), "no request of {schema} in {level}");
                }
                Ok(())
            })
        });
    lab.kubectl(&["delete", "-k", &component])?;
    judged
}

/// Applies a manifest that the API server must refuse, and returns its words.
fn refused_at_apply(lab: &Lab, manifest: &str) -> Result<String> {
    let output = lab.kubectl_with_input(&["apply", "--dry-run=server", "-f", "-"], manifest)?;
    ensure!(!output.status.success(), "it was accepted: {manifest}");
    Ok(String::from_utf8_lossy(&output.stderr).into_owned())
}

fn images_at_apply(lab: &Lab, policy: impl Fn(&str) -> String) -> Result<()> {
    // Admission policies take effect a moment after they are created.
    eventually("the sample is in force", LIMIT, || {
        let message = refused_at_apply(lab, &policy("gpunode.dev/agent-other:1"))?;
        ensure!(
            message.contains("is not allowed; use an image of gpunode.dev/agent"),
            "{message}"
        );
        Ok(())
    })?;
    for refused in [
        "gpunode.dev/agent:1/evil",
        "gpunode.dev:443/agent:1",
        "agent:1",
        "evil/gpunode.dev/agent",
    ] {
        let message = refused_at_apply(lab, &policy(refused))?;
        ensure!(message.contains("is not allowed"), "{refused}: {message}");
    }
    for allowed in [
        "gpunode.dev/agent:2",
        "gpunode.dev/agent@sha256:00",
        "gpunode.dev/agent/debug:1",
        "gpunode.dev/agent",
    ] {
        lab.apply(&policy(allowed))?;
    }
    Ok(())
}

#[test]
#[ignore = "needs the local cluster: make test"]
fn status_with_values_of_a_newer_agent_is_accepted() -> Result<()> {
    let lab = Lab::enter()?;
    let created = lab.kubectl_with_input(
        &["create", "-f", "-"],
        "apiVersion: gpunode.dev/v1alpha1\nkind: GpuNode\nmetadata: {name: newer}\nspec: {}\n",
    )?;
    ensure!(created.status.success(), "{created:?}");
    let patch = r#"{"status":{"migStrategy":"Newer","mpsDaemons":[{"device":"GPU-0","state":"Newer"}]}}"#;
    let patched = lab.try_kubectl(&[
        "patch",
        "gpunode",
        "newer",
        "--subresource=status",
        "--type=merge",
        "-p",
        patch,
    ])?;
    lab.kubectl(&["delete", "gpunode", "newer", "--timeout=30s"])?;
    ensure!(patched.status.success(), "{}", String::from_utf8_lossy(&patched.stderr));
    Ok(())
}

/// Namespace whose pods may name GPUs by the variable.
const EXEMPT: &str = "visible-devices-exempt";

/// A pod with more in its spec, that no node runs.
fn idle_pod(name: &str, container: &str, more: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec: {{nodeSelector: {{pool: none}}, containers: [{{name: main, \
         image: gpunode.test/cuda:1{container}}}]{more}}}\n"
    )
}

#[test]
#[ignore = "needs the local cluster: make test"]
fn a_pod_that_names_gpus_by_the_variable_is_refused_by_the_sample_at_apply() -> Result<()> {
    let lab = Lab::enter()?;
    let sample = Lab::repository().join("manifests/admission/visible-devices.yaml");
    let sample = sample.to_string_lossy();
    lab.kubectl(&["create", "namespace", EXEMPT])?;
    lab.kubectl(&["label", "namespace", EXEMPT, "gpunode.dev/allow-visible-devices=true"])?;
    lab.apply(&idle_pod("debugged", "", ""))?;
    lab.kubectl(&["apply", "-f", &sample])?;
    let judged = visible_devices_at_apply(&lab);
    lab.kubectl(&["delete", "-f", &sample])?;
    lab.kubectl(&["delete", "pod", "debugged", "--now", "--timeout=60s"])?;
    lab.kubectl(&["delete", "namespace", EXEMPT, "--timeout=120s"])?;
    judged
}

fn visible_devices_at_apply(lab: &Lab) -> Result<()> {
    let variable = |value: &str| format!(", env: [{{name: A, value: b}}, {{name: NVIDIA_VISIBLE_DEVICES, {value}}}]");
    let all = idle_pod("all", &variable("value: all"), "");
    eventually("the sample is in force", LIMIT, || {
        let message = refused_at_apply(lab, &all)?;
        ensure!(
            message.contains("NVIDIA_VISIBLE_DEVICES of container main would take GPUs"),
            "{message}"
        );
        Ok(())
    })?;
    let field = variable("valueFrom: {fieldRef: {fieldPath: metadata.name}}");
    let init = format!(
        ", initContainers: [{{name: first, image: gpunode.test/cuda:1{}}}]",
        variable("value: GPU-0")
    );
    for (pod, container) in [
        (idle_pod("empty", &variable("value: ''"), ""), "main"),
        (idle_pod("field", &field, ""), "main"),
        (idle_pod("init", "", &init), "first"),
    ] {
        let message = refused_at_apply(lab, &pod)?;
        ensure!(
            message.contains(&format!("of container {container} would")),
            "{message}"
        );
    }
    let env = |name: &str, value: &str| format!("{{name: {name}, value: '{value}'}}");
    let (legacy, none) = (env("CUDA_VERSION", "12.8"), env("NVIDIA_VISIBLE_DEVICES", "none"));
    let with = |env: &str| format!(", env: [{env}]");
    let limits = |count: u32| format!(", env: [{legacy}], resources: {{limits: {{nvidia.com/gpu: {count}}}}}");
    let mount = |folder: &str| {
        idle_pod(
            "mount",
            &format!(", volumeMounts: [{{name: a, mountPath: {folder}}}]"),
            ", volumes: [{name: a, hostPath: {path: /dev/null}}]",
        )
    };
    for (pod, expected) in [
        (idle_pod("legacy", &with(&legacy), ""), "CUDA_VERSION or"),
        (idle_pod("nothing", &limits(0), ""), "CUDA_VERSION or"),
        (
            idle_pod("require", &with(&env("NVIDIA_REQUIRE_CUDA", "")), ""),
            "CUDA_VERSION or",
        ),
        (
            mount("/var/run/nvidia-container-devices/all"),
            "a mount at nvidia-container-devices of container main",
        ),
    ] {
        let message = refused_at_apply(lab, &pod)?;
        ensure!(message.contains(expected), "{message}");
    }
    let from = ", envFrom: [{configMapRef: {name: variables}}]";
    for pod in [
        idle_pod("plain", "", ""),
        idle_pod("none", &variable("value: none"), ""),
        idle_pod("void", &variable("value: void"), ""),
        idle_pod("both", &with(&format!("{legacy}, {none}")), ""),
        idle_pod("require", &with(&env("NVIDIA_REQUIRE_CUDA", "cuda>=12")), ""),
        idle_pod("request", &limits(1), ""),
        mount("/data"),
        // It cannot see these variables, as the documentation says.
        idle_pod("from", from, ""),
    ] {
        let output = lab.kubectl_with_input(&["apply", "--dry-run=server", "-f", "-"], &pod)?;
        ensure!(output.status.success(), "{pod}: {output:?}");
    }
    let exempt = lab.kubectl_with_input(&["apply", "--dry-run=server", "-n", EXEMPT, "-f", "-"], &all)?;
    ensure!(exempt.status.success(), "{exempt:?}");
    let debug = |name: &str, variable: &str| {
        let (container, variable) = (format!("--container={name}"), format!("--env={variable}"));
        lab.try_kubectl(&[
            "debug",
            "debugged",
            "--image=gpunode.test/cuda:1",
            &container,
            &variable,
        ])
    };
    let refused = debug("taking", "NVIDIA_VISIBLE_DEVICES=all")?;
    let message = String::from_utf8_lossy(&refused.stderr);
    ensure!(
        !refused.status.success() && message.contains("of container taking would take GPUs"),
        "{message}"
    );
    let other = debug("other", "A=b")?;
    ensure!(other.status.success(), "{other:?}");
    Ok(())
}
