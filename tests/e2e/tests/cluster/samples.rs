//! The sample policies and pods, as `manifests/samples` has them, and simple ones with other numbers.

use anyhow::{Context, Result};
use gpunode_e2e::{Lab, T4};

/// Image of test pods.
const LOCAL_IMAGE: &str = "gpunode.test/cuda:1";

/// The StatefulSet of gpushare's user guide, with another image and the command that it needs.
pub const BINPACK: &str = "apiVersion: apps/v1
kind: StatefulSet
metadata:
  name: binpack-1
  labels:
    app: binpack-1
spec:
  replicas: 3
  serviceName: binpack-1
  podManagementPolicy: Parallel
  selector:
    matchLabels:
      app: binpack-1
  template:
    metadata:
      labels:
        app: binpack-1
    spec:
      terminationGracePeriodSeconds: 0
      containers:
      - name: binpack-1
        image: gpunode.test/cuda:1
        command: [sleep, '100000']
        resources:
          limits:
            # GiB
            aliyun.com/gpu-mem: 3
";

/// A file of `manifests/samples`.
pub fn policy(name: &str) -> Result<String> {
    let path = Lab::repository().join("manifests/samples").join(format!("{name}.yaml"));
    std::fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))
}

/// The policy `sharing` for the nodes of a pool, with a `devicePlugin` in YAML's flow style.
pub fn sharing(pool: &str, device_plugin: &str) -> String {
    format!(
        "apiVersion: gpunode.dev/v1alpha1
kind: GpuNodePolicy
metadata: {{name: sharing}}
spec:
  nodeSelector: {{matchLabels: {{pool: {pool}}}}}
  devicePlugin: {device_plugin}
"
    )
}

/// Puts the policy `sharing` in force, which offers the four T4s whole, with more of a `spec` where there is some.
pub fn advertise_four_t4(lab: &Lab, more: &str) -> Result<()> {
    lab.apply(&(sharing("inference", "{}") + more))?;
    lab.await_allocatable(T4, "nvidia.com/gpu", 4)?;
    lab.await_ready("sharing").map(drop)
}

/// A folder of sample pods, unchanged.
pub fn pods(lab: &Lab, folder: &str) -> Result<String> {
    let path = Lab::repository().join("manifests/samples").join(folder);
    lab.kubectl(&["kustomize", &path.to_string_lossy()])
}

/// A Deployment of pods that hold one `nvidia.com/gpu` each on the nodes of a pool.
pub fn deployment(name: &str, pool: &str, replicas: usize) -> String {
    holding(name, pool, replicas, "nvidia.com/gpu", 1)
}

/// A Deployment of pods that hold `count` of a resource each on the nodes of a pool.
pub fn holding(name: &str, pool: &str, replicas: usize, resource: &str, count: usize) -> String {
    format!(
        "---
apiVersion: apps/v1
kind: Deployment
metadata: {{name: {name}}}
spec:
  replicas: {replicas}
  selector: {{matchLabels: {{app: {name}}}}}
  template:
    metadata: {{labels: {{app: {name}}}}}
    spec:
      nodeSelector: {{pool: {pool}}}
      tolerations: [{{operator: Exists}}]
      terminationGracePeriodSeconds: 0
      containers:
      - name: main
        image: {LOCAL_IMAGE}
        command: [sh, -c, 'nvidia-smi; exec sleep 100000']
        env:
        - {{name: POD_NAME, valueFrom: {{fieldRef: {{fieldPath: metadata.name}}}}}}
        - {{name: POD_UID, valueFrom: {{fieldRef: {{fieldPath: metadata.uid}}}}}}
        resources: {{limits: {{{resource}: {count}}}}}
        volumeMounts: [{{name: driver, mountPath: /opt/driver, readOnly: true}}]
      # In the place of NVIDIA's container runtime, which brings the driver's programs into a container.
      volumes: [{{name: driver, hostPath: {{path: /run/nvidia/driver/usr/bin}}}}]
"
    )
}
