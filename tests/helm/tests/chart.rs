//! The Helm chart beside the manifests: what it renders, and what it refuses.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use gpunode_helm_tests::{ObjectSet, chart, differences, generated_files, kustomize, objects, repository, template};
use serde::Deserialize;
use serde_json::{Value, json};

const NAMESPACE: &str = "gpunode-system";

/// Objects of the chart without those of hooks.
fn rendered(namespace: &str, arguments: &[&str]) -> ObjectSet {
    let all = [arguments, &["--no-hooks"]].concat();
    objects(&template(namespace, &all).unwrap()).unwrap()
}

fn assert_equal(expected: &ObjectSet, seen: &ObjectSet) {
    let differences = differences(expected, seen);
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}

fn variables(objects: &ObjectSet) -> Value {
    let operator = &objects["Deployment gpunode-system/gpunode-operator"];
    operator["spec"]["template"]["spec"]["containers"][0]["env"].clone()
}

#[test]
fn generated_files_are_up_to_date() {
    for file in generated_files().unwrap() {
        let seen = std::fs::read_to_string(chart().join(&file.path)).unwrap_or_default();
        let differs = seen
            .lines()
            .zip(file.text.lines())
            .position(|(seen, expected)| seen != expected);
        assert!(
            seen == file.text,
            "{} is out of date from line {} on: run `make chart` and commit the result",
            file.path,
            differs.unwrap_or_default() + 1
        );
    }
}

#[test]
fn version_is_that_of_the_programs() {
    let text = std::fs::read_to_string(chart().join("Chart.yaml")).unwrap();
    let chart: Value = serde_yaml::from_str(&text).unwrap();
    assert_eq!(
        (&chart["version"], &chart["appVersion"]),
        (&json!(env!("CARGO_PKG_VERSION")), &json!(env!("CARGO_PKG_VERSION")))
    );
}

#[test]
#[ignore = "needs helm and kubectl: make test"]
fn chart_installs_the_objects_of_the_manifests() {
    let mut expected = kustomize("manifests/default").unwrap();
    assert_equal(&expected, &rendered(NAMESPACE, &["--set", "namespace.create=true"]));
    expected.remove("Namespace /gpunode-system").unwrap();
    assert_equal(&expected, &rendered(NAMESPACE, &[]));
}

#[test]
#[ignore = "needs helm and kubectl: make test"]
fn each_option_adds_the_objects_of_its_component() {
    for (option, component) in [
        ("apiPriority.enabled", "api-priority"),
        ("networkPolicy.enabled", "network-policy"),
        ("openshift.enabled", "openshift"),
        ("priorityQuota.enabled", "priority-quota"),
    ] {
        let mut expected = rendered(NAMESPACE, &[]);
        expected.extend(kustomize(&format!("manifests/components/{component}")).unwrap());
        let mut seen = rendered(NAMESPACE, &["--set", &format!("{option}=true")]);
        // Only the chart has hooks.
        let of_hooks = seen.remove("NetworkPolicy gpunode-system/gpunode-hooks");
        assert_eq!(of_hooks.is_some(), component == "network-policy");
        assert_equal(&expected, &seen);
    }
}

#[test]
#[ignore = "needs helm and kubectl: make test"]
fn monitoring_is_that_of_the_manifests_or_of_the_documentation() {
    let on = "monitoring.podMonitor.enabled=true";
    if repository().join("manifests/monitoring").exists() {
        let mut expected = rendered(NAMESPACE, &[]);
        expected.extend(kustomize("manifests/monitoring").unwrap());
        let all = format!("{on},monitoring.rules.enabled=true,monitoring.dashboards.enabled=true");
        assert_equal(&expected, &rendered(NAMESPACE, &["--set", &all]));
        return;
    }
    let document = std::fs::read_to_string(repository().join("docs/metrics.md")).unwrap();
    let block = document
        .split("```yaml\n")
        .find(|block| block.contains("kind: PodMonitor"))
        .unwrap();
    let expected: Value = serde_yaml::from_str(block.split("```").next().unwrap()).unwrap();
    let seen = rendered(NAMESPACE, &["--set", on]);
    assert_eq!(seen["PodMonitor gpunode-system/gpunode"]["spec"], expected["spec"]);
    for option in ["rules", "dashboards"] {
        let output = template(NAMESPACE, &["--set", &format!("monitoring.{option}.enabled=true")]).unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(
            !output.status.success() && errors.contains("this chart has no"),
            "{option}: {errors}"
        );
    }
}

#[test]
#[ignore = "needs helm: make test"]
fn runbooks_of_alerts_are_where_the_chart_is_told() {
    let links = |arguments: &[&str]| -> Vec<String> {
        let seen = rendered(
            NAMESPACE,
            &[arguments, &["--set", "monitoring.rules.enabled=true"]].concat(),
        );
        let groups = seen["PrometheusRule gpunode-system/gpunode"]["spec"]["groups"].clone();
        let rules = groups
            .as_array()
            .unwrap()
            .iter()
            .flat_map(|group| group["rules"].as_array().unwrap());
        rules
            .map(|rule| rule["annotations"]["runbook_url"].as_str().unwrap().to_owned())
            .collect()
    };
    let address = "https://git.example.com/gpunode/docs/runbooks.md";
    let moved = links(&["--set", &format!("monitoring.rules.runbookURL={address}")]);
    let expected: Vec<String> = links(&[])
        .iter()
        .map(|link| link.replace("docs/runbooks.md#", &format!("{address}#")))
        .collect();
    assert_eq!(moved, expected);
    assert!(moved.iter().all(|link| link.starts_with(address)), "{moved:?}");
}

#[test]
#[ignore = "needs helm: make test"]
fn no_object_names_another_namespace_than_that_of_the_release() {
    let on = [
        "apiPriority.enabled",
        "networkPolicy.enabled",
        "openshift.enabled",
        "priorityQuota.enabled",
        "monitoring.podMonitor.enabled",
        "namespace.create",
        "agent.refuseOtherImages",
        "uninstall.restoreNodes",
    ];
    let options: Vec<String> = on.iter().map(|option| format!("{option}=true")).collect();
    let arguments: Vec<&str> = options.iter().flat_map(|option| ["--set", option.as_str()]).collect();
    let elsewhere = objects(&template("gpus", &arguments).unwrap()).unwrap();
    let text = serde_json::to_string(&elsewhere).unwrap();
    assert!(!text.contains(NAMESPACE), "{text}");
    let here = objects(&template(NAMESPACE, &arguments).unwrap()).unwrap();
    let moved = serde_json::to_string(&here).unwrap().replace(NAMESPACE, "gpus");
    assert_eq!(serde_json::from_str::<Value>(&moved).unwrap(), json!(elsewhere));
    // A namespace may be a number.
    let number = rendered("123", &[]);
    assert!(
        number.contains_key("Deployment 123/gpunode-operator"),
        "{:?}",
        number.keys()
    );
}

#[test]
#[ignore = "needs helm: make test"]
fn options_of_the_operator_become_its_variables() {
    let options = [
        "agent.image.repository=registry.example/gpunode/agent",
        "agent.image.digest=sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
        "agent.allowedImages={registry.example/gpunode,registry.example/try}",
        "agent.driverRoots={/opt/nvidia,/}",
        "agent.devRoot=/dev-root",
        "agent.kubeletRoot=/data/kubelet",
        "agent.companionRoots={/dev/infiniband,/dev/xclmgmt*}",
        "operator.gpuLabels=false",
        "operator.client.qps=5000000",
        "operator.client.burst=100",
        "operator.lease.duration=60s",
        "operator.lease.renewDeadline=40s",
        "operator.lease.retryPeriod=5s",
        "operator.logLevel=debug",
    ];
    let arguments: Vec<&str> = options.iter().flat_map(|option| ["--set", option]).collect();
    let seen = variables(&rendered(NAMESPACE, &arguments));
    let mut expected = variables(&rendered(NAMESPACE, &[]));
    let image =
        "registry.example/gpunode/agent@sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
    expected[2]["value"] = json!(image);
    let added = [
        ("AGENT_IMAGES", "registry.example/gpunode,registry.example/try"),
        ("DRIVER_ROOTS", "/opt/nvidia,/"),
        ("DEV_ROOT", "/dev-root"),
        ("KUBELET_ROOT", "/data/kubelet"),
        ("COMPANION_ROOTS", "/dev/infiniband,/dev/xclmgmt*"),
        ("GPU_LABELS", "false"),
        ("CLIENT_QPS", "5000000"),
        ("CLIENT_BURST", "100"),
        ("LEASE_DURATION", "60s"),
        ("RENEW_DEADLINE", "40s"),
        ("RETRY_PERIOD", "5s"),
        ("RUST_LOG", "debug"),
    ];
    expected
        .as_array_mut()
        .unwrap()
        .extend(added.map(|(name, value)| json!({"name": name, "value": value})));
    assert_eq!(seen, expected);
}

#[test]
#[ignore = "needs helm: make test"]
fn admission_policy_allows_the_images_that_the_operator_allows() {
    let allowed = |arguments: &[&str]| {
        let objects = rendered(
            NAMESPACE,
            &[arguments, &["--set", "agent.refuseOtherImages=true"]].concat(),
        );
        objects["ValidatingAdmissionPolicy /gpunode-images"]["spec"]["variables"][0]["expression"].clone()
    };
    assert_eq!(allowed(&[]), "['gpunode.dev/agent']");
    assert_eq!(
        allowed(&["--set", "agent.image.repository=r.example/agent"]),
        "['r.example/agent']"
    );
    assert_eq!(
        allowed(&["--set", "agent.allowedImages={a.example/x,b.example}"]),
        "['a.example/x', 'b.example']"
    );
    let file = std::fs::read_to_string(repository().join("manifests/admission/allowed-images.yaml")).unwrap();
    let manifests = serde_yaml::Deserializer::from_str(&file).map(|document| Value::deserialize(document).unwrap());
    let rendered = rendered(NAMESPACE, &["--set", "agent.refuseOtherImages=true"]);
    for manifest in manifests {
        let name = format!("{} /gpunode-images", manifest["kind"].as_str().unwrap());
        assert_eq!(rendered[&name]["spec"], manifest["spec"], "{name}");
    }
}

#[test]
#[ignore = "needs helm: make test"]
fn options_of_pods_and_accounts_reach_them() {
    let values = "
imagePullSecrets: [{name: registry}]
commonLabels: {team: gpus}
operator:
  replicas: 3
  priorityClassName: ''
  podAnnotations: {a: b}
  podLabels: {c: d}
  nodeSelector: {pool: infra}
  tolerations: [{key: infra, operator: Exists}]
  affinity: {nodeAffinity: {}}
  resources: {requests: {memory: 64Mi}, limits: {memory: null}}
  serviceAccountAnnotations: {e: f}
  podDisruptionBudget: false
agent:
  serviceAccountAnnotations: {g: h}
";
    let folder = repository().join("target/helm");
    std::fs::create_dir_all(&folder).unwrap();
    let file = folder.join("options.yaml");
    std::fs::write(&file, values).unwrap();
    let seen = rendered(NAMESPACE, &["--values", &file.to_string_lossy()]);
    let operator = &seen["Deployment gpunode-system/gpunode-operator"];
    let pod = &operator["spec"]["template"];
    assert_eq!(operator["spec"]["replicas"], 3);
    assert_eq!(operator["metadata"]["labels"]["team"], "gpus");
    assert_eq!(pod["metadata"]["annotations"], json!({"a": "b"}));
    assert_eq!(
        pod["metadata"]["labels"],
        json!({"app.kubernetes.io/name": "gpunode-operator", "c": "d"})
    );
    assert_eq!(
        pod["spec"]["nodeSelector"],
        json!({"kubernetes.io/os": "linux", "pool": "infra"})
    );
    assert_eq!(pod["spec"]["tolerations"][0]["key"], "infra");
    assert_eq!(pod["spec"]["tolerations"].as_array().unwrap().len(), 6);
    assert_eq!(pod["spec"]["affinity"], json!({"nodeAffinity": {}}));
    assert!(pod["spec"].get("priorityClassName").is_none());
    assert_eq!(
        pod["spec"]["containers"][0]["resources"]["requests"],
        json!({"cpu": "20m", "memory": "64Mi"})
    );
    for (account, annotation) in [
        ("gpunode-operator", json!({"e": "f"})),
        ("gpunode-agent", json!({"g": "h"})),
    ] {
        let account = &seen[&format!("ServiceAccount gpunode-system/{account}")];
        assert_eq!(account["imagePullSecrets"], json!([{"name": "registry"}]));
        assert_eq!(account["metadata"]["annotations"], annotation);
    }
    assert!(!seen.keys().any(|name| name.starts_with("PodDisruptionBudget")));
}

#[test]
#[ignore = "needs helm: make test"]
fn hooks_are_there_when_they_are_wanted_and_pull_their_image_with_the_same_secrets() {
    let hooks = |arguments: &[&str]| {
        let all = objects(&template(NAMESPACE, arguments).unwrap()).unwrap();
        let is_hook = |object: &Value| !object["metadata"]["annotations"]["helm.sh/hook"].is_null();
        all.into_iter()
            .filter(|(_, object)| is_hook(object))
            .collect::<ObjectSet>()
    };
    let names = |set: &ObjectSet| set.keys().cloned().collect::<Vec<_>>();
    let tests = [
        "ClusterRoleBinding /gpunode-test",
        "Pod gpunode-system/gpunode-test",
        "ServiceAccount gpunode-system/gpunode-test",
    ];
    assert_eq!(names(&hooks(&[])), tests);
    let all = hooks(&["--set", "uninstall.restoreNodes=true,imagePullSecrets[0].name=registry"]);
    let removal = [
        "ClusterRole /",
        "ClusterRoleBinding /",
        "Job gpunode-system/",
        "Role gpunode-system/",
        "RoleBinding gpunode-system/",
        "ServiceAccount gpunode-system/",
    ];
    for kind in removal {
        assert!(
            all.contains_key(&format!("{kind}gpunode-restore-nodes")),
            "{kind} of {:?}",
            names(&all)
        );
    }
    assert_eq!(all.len(), tests.len() + removal.len());
    for account in ["gpunode-test", "gpunode-restore-nodes"] {
        assert_eq!(
            all[&format!("ServiceAccount gpunode-system/{account}")]["imagePullSecrets"][0]["name"],
            "registry"
        );
    }
}

#[test]
#[ignore = "needs helm: make test"]
fn hooks_keep_away_from_the_nodes_that_the_operator_avoids() {
    let term = "operator.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0]";
    let own = format!("{term}.matchExpressions[0].key=infra,{term}.matchExpressions[0].operator=Exists");
    for arguments in [&[][..], &["--set", &own]] {
        let arguments = [&["--set", "uninstall.restoreNodes=true"], arguments].concat();
        let all = objects(&template(NAMESPACE, &arguments).unwrap()).unwrap();
        let affinity = |object: &str, path: &str| all[object].pointer(path).cloned().unwrap_or_default();
        let operator = affinity(
            "Deployment gpunode-system/gpunode-operator",
            "/spec/template/spec/affinity",
        );
        assert!(operator.is_object(), "{operator}");
        assert_eq!(affinity("Pod gpunode-system/gpunode-test", "/spec/affinity"), operator);
        assert_eq!(
            affinity(
                "Job gpunode-system/gpunode-restore-nodes",
                "/spec/template/spec/affinity"
            ),
            operator
        );
        let pod = &all["Pod gpunode-system/gpunode-test"]["spec"];
        let of_operator = &all["Deployment gpunode-system/gpunode-operator"]["spec"]["template"]["spec"];
        assert_eq!(pod["tolerations"], of_operator["tolerations"]);
        assert_eq!(
            pod["containers"][0]["resources"],
            of_operator["containers"][0]["resources"]
        );
    }
}

#[test]
#[ignore = "needs helm: make test"]
fn values_that_the_chart_does_not_know_are_refused() {
    for (option, place, message) in [
        ("replicas=3", "at ''", "additional properties 'replicas' not allowed"),
        (
            "operator.image.tags=1",
            "at '/operator/image'",
            "additional properties 'tags' not allowed",
        ),
        (
            "operator.replicas=two",
            "at '/operator/replicas'",
            "got string, want integer",
        ),
        ("operator.replicas=-1", "at '/operator/replicas'", "minimum"),
        (
            "operator.image.pullPolicy=Sometimes",
            "at '/operator/image/pullPolicy'",
            "value must be one of",
        ),
        (
            "operator.lease.duration=15",
            "at '/operator/lease/duration'",
            "got number, want string",
        ),
        (
            "agent.allowedImages={it's}",
            "at '/agent/allowedImages/0'",
            "does not match pattern",
        ),
        (
            "agent.kubeletRoot=data/kubelet",
            "at '/agent/kubeletRoot'",
            "does not match pattern",
        ),
        (
            "imagePullSecrets[0]=registry",
            "at '/imagePullSecrets/0'",
            "got string, want object",
        ),
        (
            "monitoring.rules.runbookURL=docs/runbooks.md",
            "at '/monitoring/rules/runbookURL'",
            "does not match pattern",
        ),
        ("enabled=false", "at '/enabled'", "value must be true"),
    ] {
        let output = template(NAMESPACE, &["--set", option]).unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success(), "{option} is accepted");
        assert!(errors.contains(place) && errors.contains(message), "{option}: {errors}");
    }
}
