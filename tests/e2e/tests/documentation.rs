//! The commands of the documentation, run by a reader on the local cluster: each page from its beginning to its end, with names of this
//! cluster in the place of the page's.
//!
//! A command that cannot run here is in [`NOT_HERE`] with its reason, or another test runs it as it stands there.

#![allow(clippy::print_stdout, reason = "a test")]

use anyhow::{Context, Result, ensure};
use gpunode_cluster::CUDA;
use gpunode_e2e::{
    A100, DocumentedCommand, Lab, MIXED, NAMESPACE, T4, V100, documented_commands, eventually, page_file,
};
use serde_json::Value;
use std::{
    fs,
    os::unix::fs::{PermissionsExt, symlink},
    path::PathBuf,
    time::{Duration, Instant},
};
use tempfile::TempDir;

/// Longest run of one command, in seconds.
const MAX_SECONDS: u32 = 180;

/// Policies that the pages apply.
const POLICIES: [&str; 11] = [
    "quick-start",
    "first",
    "second",
    "training",
    "rdma",
    "t4-time-slicing",
    "v100-reserved",
    "a100-mig",
    "inference-gpus",
    "research-gpus",
    "training-gpus",
];

/// Pages, and beginnings of commands, that do not run here, with the reason. A page begins with `docs/`.
const NOT_HERE: [(&str, &str); 42] = [
    ("docs/from-gpu-operator.md", "test from_gpu_operator runs them"),
    (
        "docs/from-gpushare-and-gpu-manager.md",
        "test from_gpushare_and_gpu_manager runs them",
    ),
    ("docs/from-mig-manager.md", "test from_mig_manager runs them"),
    ("docs/from-nvidia-device-plugin.md", "test from_nvidia_plugin runs them"),
    (
        "docs/quick-start/air-gapped.md",
        "needs a registry; the test of release/oci pushes and pulls images",
    ),
    ("docs/release.md", "make release runs for half an hour"),
    ("az ", "needs an account with Azure"),
    ("gcloud ", "needs an account with Google"),
    ("eksctl ", "needs an account with AWS"),
    ("oc ", "needs OpenShift"),
    ("kind ", "needs Docker"),
    ("nvkind ", "needs Docker"),
    ("go install github.com/NVIDIA/nvkind", "needs the internet"),
    ("curl -sfL https://get.k3s.io", "needs the internet"),
    ("k3s ", "needs k3s"),
    ("export KUBECONFIG=/etc/rancher/k3s", "needs k3s"),
    ("sudo ", "changes the machine"),
    ("install target/cluster/bin/kubectl-gpunode", "changes the machine"),
    (
        "skopeo copy ",
        "needs a registry; the test of release/oci pushes and pulls images",
    ),
    ("make ", "other parts of make test run these targets"),
    (
        "export KUBECONFIG=$PWD/target/cluster/default",
        "the cluster of this test has another name",
    ),
    ("nvidia-smi ", "needs a GPU"),
    ("ls /dev/nvidia-uvm", "needs a GPU"),
    ("journalctl ", "the nodes here have no journal"),
    ("kubelet ", "an option of the kubelet; test startup_taint uses it"),
    (
        "gpunode-agent inspect ",
        "on a node; the next command does the same in a pod",
    ),
    ("target/release/gpunode-agent run ", "tests/node runs the agent alone"),
    ("helm ", "test helm runs it"),
    ("kubectl gpunode uninstall\n", "test uninstall runs it"),
    ("kubectl gpunode uninstall --yes", "test uninstall runs it"),
    ("kubectl gpunode uninstall --nodes-only", "test helm runs it"),
    (
        "kubectl create namespace gpunode-system",
        "it exists; test helm creates it",
    ),
    ("cd target/releases/VERSION", "needs a release"),
    ("kubectl krew ", "needs krew; kubectl/tests/krew.rs checks the manifest"),
    ("kubectl top ", "needs the metrics server"),
    (
        "kubectl run check --rm -it ",
        "needs a terminal, and an image of NVIDIA",
    ),
    (
        "kubectl create -f prometheus-rule.yaml",
        "needs the CRDs of the Prometheus operator",
    ),
    ("kubectl patch configmap argocd-cm", "needs Argo CD"),
    ("kubectl apply -f https://", "needs the internet"),
    ("kubectl delete crd gpunodepolicies.gpunode.dev", "test helm runs it"),
    ("kubectl delete namespace gpunode-system", "test helm runs it"),
    ("promtool ", "tests/monitoring runs it"),
];

fn reason(command: &DocumentedCommand) -> Option<usize> {
    let text = format!("{}\n", without_comment(&command.text));
    NOT_HERE.iter().position(|(beginning, _)| {
        if beginning.starts_with("docs/") {
            command.page == *beginning
        } else {
            text.starts_with(beginning)
        }
    })
}

fn without_comment(text: &str) -> &str {
    text.split("  #").next().unwrap_or_default().trim_end()
}

#[test]
fn commands_that_do_not_run_here_are_still_in_the_documentation() -> Result<()> {
    let commands = documented_commands()?;
    for (index, (beginning, _)) in NOT_HERE.iter().enumerate() {
        ensure!(
            commands.iter().any(|command| reason(command) == Some(index)),
            "no command begins with {beginning:?}"
        );
    }
    Ok(())
}

/// A reader in a folder of their own, beside which the repository is `gpunode`.
struct PageReader<'a> {
    lab: &'a Lab,
    /// The reader's folder and what is beside it.
    root: TempDir,
    commands: Vec<DocumentedCommand>,
    failures: Vec<String>,
}

impl<'a> PageReader<'a> {
    fn new(lab: &'a Lab) -> Result<Self> {
        let target = Lab::repository().join("target/tmp");
        fs::create_dir_all(&target).context("create target/tmp")?;
        let reader = Self {
            lab,
            root: TempDir::new_in(target).context("create a folder")?,
            commands: documented_commands()?,
            failures: Vec::new(),
        };
        let repository = Lab::repository().canonicalize()?;
        symlink(&repository, reader.root.path().join("gpunode"))?;
        fs::create_dir_all(reader.folder().join("policies"))?;
        for folder in ["bin", "openshift"] {
            fs::create_dir(reader.root.path().join(folder))?;
        }
        symlink(repository.join("manifests"), reader.folder().join("manifests"))?;
        reader.write_files()?;
        Ok(reader)
    }

    fn folder(&self) -> PathBuf {
        self.root.path().join("reader")
    }

    /// Writes the files that the pages tell their reader to write, or that a reader already has.
    fn write_files(&self) -> Result<()> {
        let samples = Lab::repository().join("manifests");
        let sample = |name: &str| fs::read_to_string(samples.join(name)).with_context(|| format!("read {name}"));
        let policy = |name: &str, priority: u32| {
            format!(
                "apiVersion: gpunode.dev/v1alpha1\nkind: GpuNodePolicy\nmetadata: {{name: {name}}}\nspec:\n  priority: {priority}\n  \
                 nodeSelector: {{matchLabels: {{pool: training}}}}\n  labels: {{accelerator: nvidia-tesla-v100}}\n  devicePlugin: {{}}\n"
            )
        };
        let quick_start = sample("quick-start/policy.yaml")?;
        let own_images = |text: String| {
            text.replace("REGISTRY/gpunode-operator", "gpunode.dev/operator")
                .replace("REGISTRY/gpunode-agent", "gpunode.dev/agent")
        };
        let files = [
            ("kustomization.yaml", own_images(page_file("install.md", "kustomization.yaml")?)),
            (
                "../openshift/kustomization.yaml",
                page_file("quick-start/openshift.md", "kustomization.yaml")?,
            ),
            ("agent.yaml", page_file("install.md", "agent.yaml")?),
            ("training.yaml", policy("training", 0)),
            ("first.yaml", policy("first", 10)),
            ("second.yaml", policy("second", 20)),
            ("policies/kustomization.yaml", "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nresources: [quick-start.yaml]\n".to_owned()),
            ("policies/quick-start.yaml", quick_start.clone()),
            ("policy.yaml", quick_start),
            ("v100-reserved.yaml", sample("samples/v100-reserved.yaml")?),
            ("a100-mig.yaml", sample("samples/a100-mig.yaml")?),
            ("prometheus-rule.yaml", sample("monitoring/prometheus-rule.yaml")?),
            (
                "mig.yaml",
                "version: v1\nmig-configs:\n  all-1g.10gb.me:\n  - {devices: all, mig-enabled: true, mig-devices: {1g.10gb: 6, 1g.10gb+me: 1}}\n"
                    .to_owned(),
            ),
            ("plugin.yaml", "version: v1\nflags: {failOnInitError: true}\n".to_owned()),
        ];
        for (name, text) in files {
            fs::write(self.folder().join(name), text).with_context(|| format!("write {name}"))?;
        }
        // The page's reader has one local cluster, the default.
        let program = Lab::repository()
            .join("target/release/gpunode-cluster")
            .canonicalize()?;
        let cluster = self.lab.cluster().folder();
        let name = cluster.file_name().unwrap_or_default().to_string_lossy();
        let path = self.root.path().join("bin/gpunode-cluster");
        fs::write(
            &path,
            format!(
                "#!/bin/sh\nverb=$1; shift\nexec {} \"$verb\" --name {name} \"$@\"\n",
                program.display()
            ),
        )?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).context("make gpunode-cluster executable")
    }

    /// Runs a command with the programs of the cluster first in `PATH`; gives its exit code, what it printed, and its errors.
    fn shell(&self, command: &str) -> Result<(Option<i32>, String, String)> {
        // In a file, so that no quotes are needed around it.
        fs::write(self.root.path().join("command"), command).context("write the command")?;
        let run = format!("PATH=$PWD/../bin:$PATH exec timeout {MAX_SECONDS} bash ../command");
        let output = self.lab.try_shell(&self.folder(), &run)?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Ok((output.status.code(), text(&output.stdout), text(&output.stderr)))
    }

    /// Runs a command that no page has, for what the next page expects.
    fn prepare(&self, command: &str) -> Result<()> {
        let (code, text, errors) = self.shell(command)?;
        ensure!(code == Some(0), "{command}: {code:?}: {text}{errors}");
        Ok(())
    }

    /// Runs the commands of one page; `node` is the one that it speaks of. Notes what fails, and goes on.
    fn read(&mut self, page: &str, node: &str) -> Result<()> {
        let (begun, mut count) = (Instant::now(), 0);
        let commands: Vec<DocumentedCommand> = self
            .commands
            .iter()
            .filter(|command| command.page == page)
            .cloned()
            .collect();
        ensure!(!commands.is_empty(), "{page} has no command");
        for command in commands {
            if reason(&command).is_some() {
                continue;
            }
            let mut text = self.fill_in(page, &command.text, node)?;
            let (mut code, mut output, mut errors) = self.shell(&text)?;
            if !is_fine(&text, code, &errors) {
                // The pod in it may have ended meanwhile, and has a successor then.
                let again = self.fill_in(page, &command.text, node)?;
                if again != text {
                    (code, output, errors) = self.shell(&again)?;
                    text = again;
                }
            }
            count += 1;
            if !is_fine(&text, code, &errors) {
                let end = output.lines().rev().take(5).collect::<Vec<_>>();
                let failure = format!(
                    "{page}:{}: {text}\n  exit code {code:?}: {errors}{}",
                    command.line,
                    end.into_iter().rev().collect::<Vec<_>>().join("\n  ")
                );
                println!("FAILS: {failure}");
                self.failures.push(failure);
            }
        }
        println!("{page}: {count} commands in {:.0} s", begun.elapsed().as_secs_f64());
        Ok(())
    }

    /// Returns the metadata of a pod of gpunode that runs and stays, on a node or anywhere.
    fn running(&self, name: &str, node: Option<&str>) -> Result<Value> {
        let label = format!("app.kubernetes.io/name={name}");
        eventually("a pod of gpunode runs", Duration::from_mins(1), || {
            let pods = self.lab.get(&["pods", "-n", NAMESPACE, "-l", &label])?;
            let pods = pods["items"].as_array().into_iter().flatten();
            let mut running = pods.filter(|pod| {
                let here = node.is_none_or(|node| pod["spec"]["nodeName"] == node);
                here && pod["status"]["phase"] == "Running" && pod["metadata"]["deletionTimestamp"].is_null()
            });
            let pod = running
                .next()
                .with_context(|| format!("no pod of {name} runs on {node:?}"))?;
            Ok(pod["metadata"].clone())
        })
    }

    /// Puts names of this cluster into a command.
    fn fill_in(&self, page: &str, text: &str, node: &str) -> Result<String> {
        let mut text = text
            .replace("REGISTRY/gpunode-operator", "gpunode.dev/operator")
            .replace("REGISTRY/gpunode-agent", "gpunode.dev/agent");
        let operator = || self.running("gpunode-operator", None);
        let pod = if !text.contains("POD") {
            String::new()
        } else if !text.contains(NAMESPACE) {
            "holder".to_owned()
        } else if without_comment(&text).contains("8080") {
            text_of(&operator()?, "name")
        } else {
            text_of(&self.running("gpunode-agent", Some(node))?, "name")
        };
        let uid = if text.contains("UID") {
            text_of(&operator()?, "uid")
        } else {
            String::new()
        };
        // That page deletes the policy of the quick starts.
        let policy = if page == "docs/install.md" {
            "first"
        } else {
            "quick-start"
        };
        let names = [
            ("NODE", node),
            ("POD", &pod),
            ("UID", &uid),
            ("NAMESPACE", "default"),
            ("CONTAINER", "main"),
            ("POLICY", policy),
            ("GROUP", "team"),
            ("RESOURCE", "nodes"),
            ("BOARD", "A100-80GB"),
            ("gpu-60", A100),
            ("gpu-7", T4),
        ];
        for (name, value) in names {
            text = replace_word(&text, name, value);
        }
        Ok(text)
    }
}

fn text_of(metadata: &Value, field: &str) -> String {
    metadata[field].as_str().unwrap_or_default().to_owned()
}

/// Replaces a word where no letter, digit, dash or underscore is beside it.
fn replace_word(text: &str, word: &str, by: &str) -> String {
    let is_part = |c: char| c.is_ascii_alphanumeric() || "-_".contains(c);
    let mut result = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once(word) {
        let alone = !before.ends_with(is_part) && !after.starts_with(is_part);
        result.push_str(before);
        result.push_str(if alone { by } else { word });
        rest = after;
    }
    result + rest
}

/// Tells whether a command ended as its page says that it may: a plan that disrupts pods, a finding of `doctor`, and a search without a
/// hit are answers, too.
fn is_fine(command: &str, code: Option<i32>, errors: &str) -> bool {
    // A layout that does not fit is refused with the nearest one that does.
    let is_refused = command.contains("kubectl gpunode mig ") && errors.contains("; the nearest layout that fits is ");
    let answers = if is_refused {
        &[1][..]
    } else if command.contains("kubectl gpunode plan") {
        &[0, 2][..]
    } else if command.contains("kubectl gpunode doctor") || (command.contains("| grep") && errors.is_empty()) {
        &[0, 1][..]
    } else {
        &[0][..]
    };
    code.is_some_and(|code| answers.contains(&code))
}

/// Runs `change`, whose changes of policies are compared with no plan.
fn unplanned(lab: &Lab, policies: &[&str], change: &mut dyn FnMut() -> Result<()>) -> Result<()> {
    match policies {
        [] => change(),
        [policy, others @ ..] => lab.unplanned(policy, || unplanned(lab, others, change)),
    }
}

/// Image of `manifests/quick-start/pods.yaml`.
const QUICK_START_IMAGE: &str = "docker.io/nvidia/cuda:12.8.1-base-ubuntu24.04";

const HOLDER: &str = "apiVersion: v1
kind: Pod
metadata: {name: holder}
spec:
  nodeName: gpu-v100
  terminationGracePeriodSeconds: 0
  tolerations: [{operator: Exists}]
  containers:
  - name: main
    image: gpunode.test/cuda:1
    command: [sleep, infinity]
    resources: {limits: {nvidia.com/gpu: 1}}
";

#[test]
#[ignore = "needs the local cluster: make test"]
fn commands_of_the_documentation_run_as_they_stand_there() -> Result<()> {
    let lab = Lab::enter()?;
    let mut reader = PageReader::new(&lab)?;
    let read = unplanned(&lab, &POLICIES, &mut || read_all(&lab, &mut reader));
    lab.install()?;
    read?;
    let failures = &reader.failures;
    ensure!(
        failures.is_empty(),
        "{} commands fail:\n{}",
        failures.len(),
        failures.join("\n")
    );
    Ok(())
}

fn read_all(lab: &Lab, reader: &mut PageReader<'_>) -> Result<()> {
    // It leaves its policy in force for the pages after it.
    reader.read("README.md", MIXED)?;
    lab.await_ready("quick-start")?;
    ensure!(
        lab.kubectl_with_input(&["apply", "-f", "-"], HOLDER)?.status.success(),
        "create the pod holder"
    );
    lab.await_pod("holder", "Running")?;
    for page in [
        "health",
        "kubectl",
        "labels",
        "metrics",
        "monitoring",
        "runbooks",
        "sharing",
        "staying-up",
    ] {
        reader.read(&format!("docs/{page}.md"), V100)?;
    }
    for page in ["threat-model", "topology", "troubleshooting"] {
        reader.read(&format!("docs/{page}.md"), V100)?;
    }
    reader.prepare("kubectl delete gpunodepolicies --all && kubectl delete pod holder")?;
    reader.read("docs/local-cluster.md", V100)?;
    reader.prepare(
        "kubectl delete job/gpu-job gpunodepolicies/t4-time-slicing gpunodepolicies/v100-reserved
         gpunode-cluster gpu gpu-a100 0 recover && gpunode-cluster gpu gpu-a100 0 let-go && gpunode-cluster gpu gpu-t4 1 recover",
    )?;
    reader.prepare("kubectl apply -f first.yaml")?;
    reader.read("docs/policies.md", V100)?;
    reader.prepare("kubectl delete gpunodepolicies --all")?;
    reader.read("docs/gitops.md", V100)?;
    reader.prepare("kubectl delete gpunodepolicies --all")?;
    reader.read("docs/mig.md", A100)?;
    reader.prepare("kubectl label node gpu-a100 nvidia.com/gpu.deploy.dcgm- nvidia.com/gpu.deploy.dcgm-exporter-")?;
    // Nodes without the internet get the image of the quick starts here; its containers print nothing without NVIDIA's program.
    for node in lab.cluster().nodes() {
        node.ctr(["images", "tag", "--force", CUDA, QUICK_START_IMAGE])?;
    }
    for page in ["kind", "k3s", "eks", "gke", "aks", "openshift"] {
        reader.read(&format!("docs/quick-start/{page}.md"), V100)?;
    }
    reader.prepare("kubectl delete gpunodepolicies --all")?;
    reader.prepare("kubectl apply -f first.yaml")?;
    // Its end takes gpunode from the cluster.
    reader.read("docs/install.md", A100)?;
    reader.prepare("kubectl delete clusterrolebindings gpu-oncall gpu-admins")
}
