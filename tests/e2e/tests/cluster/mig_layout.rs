//! Layouts of MIG: what changes, what stays, what waits, and what keeps a GPU from its layout.
//!
//! On the cluster of `mig.yaml`. gpunode takes no instances away that nobody asks it to, so each test begins with undivided GPUs.

use crate::samples;
use anyhow::{Context, Result, bail, ensure};
use gpunode_e2e::{Lab, MIG_A100, MIG_H100, MigDevices, NodeWatch, Opened, condition, eventually, names, of_profile};
use gpunode_scenario::{OpenHandle, ReturnCode};
use serde_json::{Value, json};
use std::{
    collections::BTreeSet,
    process::{Child, Command, Stdio},
    time::Duration,
};

const LIMIT: Duration = Duration::from_mins(3);
const GPU: &str = "nvidia.com/gpu";
const SMALL: &str = "nvidia.com/mig-1g.10gb";
const LARGE: &str = "nvidia.com/mig-4g.40gb";
/// Both calls that create a GPU instance.
const CREATE: [&str; 2] = [
    "nvmlDeviceCreateGpuInstance",
    "nvmlDeviceCreateGpuInstanceWithPlacement",
];

/// A `devicePlugin` with MIG devices by profile, and a layout of the first GPU; others stay as they are.
fn first_gpu(instances: &str) -> String {
    format!("{{mig: {{strategy: Mixed, layout: [{{devices: {{indices: [0]}}, instances: {{{instances}}}}}]}}}}")
}

/// Runs pods with one device of a resource each, and checks that these are just the `expected` ones.
fn run(lab: &Lab, app: &str, resource: &str, expected: &BTreeSet<String>) -> Result<Vec<String>> {
    lab.apply(&samples::holding(app, MIG_A100, expected.len(), resource, 1))?;
    let pods = lab.await_running(app, expected.len())?;
    let visible: Vec<BTreeSet<String>> = pods.iter().map(|pod| lab.visible(pod)).collect::<Result<_>>()?;
    if visible.iter().any(|devices| devices.len() != 1) {
        let nodes: Vec<BTreeSet<String>> = pods.iter().map(|pod| lab.device_nodes(pod)).collect::<Result<_>>()?;
        let file = lab.cdi_file(MIG_A100)?;
        bail!("{pods:?} have {visible:?}, and now the nodes {nodes:?} of {file}");
    }
    assert_eq!(
        visible.into_iter().flatten().collect::<BTreeSet<_>>(),
        *expected,
        "{app}"
    );
    Ok(pods)
}

/// Returns the devices in the environments of containers that have one each.
fn told(lab: &Lab, pods: &[String]) -> Result<BTreeSet<String>> {
    let told = |pod: &String| {
        let device = lab.workload_environment(pod)?.remove("NVIDIA_VISIBLE_DEVICES");
        device.with_context(|| format!("{pod} is told no device"))
    };
    pods.iter().map(told).collect()
}

fn end(lab: &Lab, apps: &[&str]) -> Result<()> {
    let command = ["delete", "deployment", "--cascade=foreground", "--timeout=90s"];
    lab.kubectl(&[&command[..], apps].concat()).map(drop)
}

/// Checks that a container has the nodes of a GPU instance and of its compute instance, and may open them.
fn opens_its_instances(lab: &Lab, pod: &str) -> Result<()> {
    let nodes = lab.device_nodes(pod)?;
    let own: Vec<&String> = nodes.iter().filter(|path| path.contains("nvidia-cap")).collect();
    ensure!(own.len() == 2, "a GPU instance and a compute instance: {nodes:?}");
    for path in own {
        let opened = lab.open_in_container(pod, path)?;
        ensure!(opened == Opened::Allowed, "{path} is {opened:?} for {pod}");
    }
    Ok(())
}

#[test]
#[ignore = "needs the local cluster: make test"]
fn a_node_goes_from_whole_gpus_to_mixed_to_single_and_back_with_pods_on_each() -> Result<()> {
    let lab = Lab::enter_undivided()?;
    let gpus: BTreeSet<String> = lab.gpu_uuids(MIG_A100)?.into_iter().collect();
    lab.apply(&samples::sharing(MIG_A100, "{}"))?;
    lab.await_allocatable(MIG_A100, GPU, 3)?;
    run(&lab, "whole", GPU, &gpus)?;
    end(&lab, &["whole"])?;

    // The second A100 and the V100 stay whole.
    lab.put_layout(MIG_A100, &first_gpu("1g.10gb: 3, 4g.40gb: 1"))?;
    let devices = lab.await_layout(MIG_A100, 0, "1g.10gb:3,4g.40gb:1")?;
    for (resource, count) in [(GPU, 2), (SMALL, 3), (LARGE, 1)] {
        lab.await_allocatable(MIG_A100, resource, count)?;
    }
    let first = lab.driver_gpu(MIG_A100, 0)?.uuid;
    let others = gpus.iter().filter(|uuid| **uuid != first).cloned().collect();
    run(&lab, "whole", GPU, &others)?;
    let small = run(&lab, "small", SMALL, &of_profile(&devices, "1g.10gb"))?;
    let large = run(&lab, "large", LARGE, &of_profile(&devices, "4g.40gb"))?;
    for pod in small.iter().chain(&large) {
        opens_its_instances(&lab, pod)?;
    }
    end(&lab, &["whole", "small", "large"])?;

    let single = "{mig: {strategy: Single, layout: [{devices: {products: ['*A100*']}, instances: {3g.40gb: 2}}]},
        deviceListStrategy: [Envvar], resources: [{name: nvidia.com/gpu, devices: {indices: [0, 1]}}]}";
    lab.put_layout(MIG_A100, single)?;
    let mut halves = BTreeSet::new();
    for index in [0, 1] {
        halves.extend(lab.await_layout(MIG_A100, index, "3g.40gb:2")?.into_keys());
    }
    lab.await_allocatable(MIG_A100, GPU, 4)?;
    for resource in [SMALL, LARGE] {
        lab.await_allocatable(MIG_A100, resource, 0)?;
    }
    lab.apply(&samples::holding("halves", MIG_A100, 4, GPU, 1))?;
    let pods = lab.await_running("halves", 4)?;
    // Beside CDI the variable would be `void`.
    assert_eq!(told(&lab, &pods)?, halves);
    end(&lab, &["halves"])?;

    let off = "{mig: {strategy: None, layout: [{devices: {indices: [0, 1]}, disabled: true}]}}";
    lab.put_layout(MIG_A100, off)?;
    for index in [0, 1] {
        assert!(lab.await_layout(MIG_A100, index, "off")?.is_empty());
        assert!(lab.driver_gpu(MIG_A100, index)?.mig.is_none(), "the mode is off");
    }
    lab.await_allocatable(MIG_A100, GPU, 3)?;
    lab.await_ready("sharing")?;
    run(&lab, "whole", GPU, &gpus).map(drop)
}

#[test]
#[ignore = "needs the local cluster: make test"]
fn instances_that_are_wanted_again_keep_their_uuids_and_pods() -> Result<()> {
    let lab = Lab::enter_undivided()?;
    lab.put_layout(MIG_A100, &first_gpu("1g.10gb: 3, 4g.40gb: 1"))?;
    let before = lab.await_layout(MIG_A100, 0, "1g.10gb:3,4g.40gb:1")?;
    lab.await_allocatable(MIG_A100, SMALL, 3)?;
    lab.await_allocatable(MIG_A100, LARGE, 1)?;
    let large = run(&lab, "large", LARGE, &of_profile(&before, "4g.40gb"))?;
    // Around a small one in use, a 2g has room only where that one is the last.
    let mut kept = Vec::new();
    let apps = ["small-0", "small-1", "small-2"];
    for app in apps {
        lab.apply(&samples::holding(app, MIG_A100, 1, SMALL, 1))?;
    }
    for app in apps {
        let pod = lab.await_running(app, 1)?.concat();
        let uuid = lab.visible(&pod)?.pop_first().context("a device")?;
        let (_, start) = before.get(&uuid).with_context(|| format!("{uuid} is in {before:?}"))?;
        if *start == 6 {
            kept.push((pod, uuid));
        } else {
            end(&lab, &[app])?;
        }
    }
    let large_uuid = of_profile(&before, "4g.40gb").pop_first().context("a 4g")?;
    kept.push((large.concat(), large_uuid));
    ensure!(kept.len() == 2, "{kept:?} run, of {before:?}");
    let watch = NodeWatch::start(&lab, MIG_A100)?;

    lab.put_layout(MIG_A100, &first_gpu("1g.10gb: 1, 2g.20gb: 1, 4g.40gb: 1"))?;
    let after = lab.await_layout(MIG_A100, 0, "1g.10gb:1,2g.20gb:1,4g.40gb:1")?;
    lab.await_allocatable(MIG_A100, "nvidia.com/mig-2g.20gb", 1)?;
    lab.await_allocatable(MIG_A100, SMALL, 1)?;
    for (pod, uuid) in &kept {
        assert_eq!(after.get(uuid), before.get(uuid), "of {after:?}");
        assert_eq!(lab.visible(pod)?, [uuid.clone()].into());
        let object = lab.get(&["pod", pod])?;
        assert_eq!(object["status"]["containerStatuses"][0]["restartCount"], 0, "{pod}");
    }
    let counts = watch.allocatable(&lab, LARGE)?;
    assert_eq!(counts, [Some(1)], "a device that stays is advertised all the time");
    run(&lab, "middle", "nvidia.com/mig-2g.20gb", &of_profile(&after, "2g.20gb")).map(drop)
}

/// A pod whose first process does not hear SIGTERM, as none does that has not asked for it.
fn deaf_pod() -> String {
    format!(
        "apiVersion: v1
kind: Pod
metadata: {{name: deaf}}
spec:
  nodeName: {MIG_A100}
  terminationGracePeriodSeconds: 15
  containers:
  - name: main
    image: gpunode.test/cuda:1
    command: [sleep, '100000']
    resources: {{limits: {{{SMALL}: 1}}}}
"
    )
}

#[test]
#[ignore = "needs the local cluster: make test"]
fn a_pod_that_ignores_sigterm_delays_a_change_and_keeps_its_instance_till_its_end() -> Result<()> {
    let lab = Lab::enter_undivided()?;
    lab.put_layout(MIG_A100, &first_gpu("1g.10gb: 1"))?;
    lab.await_layout(MIG_A100, 0, "1g.10gb:1")?;
    lab.await_allocatable(MIG_A100, SMALL, 1)?;
    lab.apply(&deaf_pod())?;
    lab.await_pod("deaf", "Running")?;
    let held = lab.visible("deaf")?.pop_first().context("a device")?;

    lab.put_layout(MIG_A100, &first_gpu("7g.80gb: 1"))?;
    let waiting = lab.await_mig(MIG_A100, 0, "7g.80gb:1", "Waiting")?;
    ensure!(waiting["message"].to_string().contains("default/deaf"), "{waiting}");
    // The held one stays healthy.
    lab.await_allocatable(MIG_A100, SMALL, 1)?;
    lab.kubectl(&["delete", "pod", "deaf", "--wait=false"])?;
    let mut broken_off = false;
    eventually("the pod is gone", LIMIT, || {
        // The driver first: a pod that is there afterwards was there then.
        let has_device = lab.mig_devices(MIG_A100, 0)?.contains_key(&held);
        let is_there = names(&lab.get(&["pods"])?).contains(&"deaf".to_owned());
        broken_off |= is_there && !has_device;
        ensure!(!is_there, "it ends");
        Ok(())
    })?;
    assert!(!broken_off, "its instance went before it");
    lab.await_layout(MIG_A100, 0, "7g.80gb:1")?;
    lab.await_allocatable(MIG_A100, "nvidia.com/mig-7g.80gb", 1)
}

#[test]
#[ignore = "needs the local cluster: make test"]
fn a_layout_that_cannot_fit_changes_nothing_and_names_the_nearest() -> Result<()> {
    let lab = Lab::enter_undivided()?;
    lab.put_layout(MIG_A100, &first_gpu("1g.10gb: 1, 3g.40gb: 2"))?;
    let blocked = lab.await_mig(MIG_A100, 0, "1g.10gb:1,3g.40gb:2", "Blocked")?;
    ensure!(
        blocked["reason"] == "DoesNotFit"
            && blocked["message"]
                .to_string()
                .contains("the nearest layout that fits is"),
        "{blocked}"
    );
    assert!(lab.driver_gpu(MIG_A100, 0)?.mig.is_none(), "the mode is as it was");
    lab.await_allocatable(MIG_A100, GPU, 3)?;
    let layout = condition(&lab.get(&["gpunode", MIG_A100])?, "MigLayout");
    ensure!(layout["status"] == "False", "the condition is {layout}");

    lab.put_layout(MIG_A100, &first_gpu("3g.40gb: 2"))?;
    lab.await_layout(MIG_A100, 0, "3g.40gb:2")?;
    lab.await_allocatable(MIG_A100, "nvidia.com/mig-3g.40gb", 2)
}

#[test]
#[ignore = "needs the local cluster: make test"]
fn a_preview_shows_the_layouts_that_gpus_would_get_and_those_that_they_cannot_have() -> Result<()> {
    let lab = Lab::enter_undivided()?;
    let policy = format!(
        "apiVersion: gpunode.dev/v1alpha1
kind: GpuNodePolicy
metadata: {{name: sharing}}
spec:
  mode: Preview
  nodeSelector: {{matchLabels: {{pool: {MIG_A100}}}}}
  devicePlugin:
    mig:
      strategy: Mixed
      layout:
      - {{devices: {{indices: [0]}}, instances: {{1g.10gb: 3, 4g.40gb: 1}}}}
      - {{instances: {{1g.10gb: 1, 3g.40gb: 2}}}}
"
    );
    lab.unplanned("sharing", || {
        lab.kubectl_with_input(&["apply", "-f", "-"], &policy)
            .and_then(|output| {
                let said = String::from_utf8_lossy(&output.stderr).into_owned();
                ensure!(output.status.success(), "apply {policy}: {said}");
                Ok(())
            })
    })?;
    eventually("the layouts are shown", LIMIT, || {
        let status = lab.get(&["gpunodepolicy", "sharing"])?["status"].clone();
        let layouts = status["preview"][0]["layouts"].as_array().cloned().unwrap_or_default();
        let [fits, does_not] = &layouts[..] else {
            bail!("its status is {status}");
        };
        ensure!(
            *fits == json!({"gpus": [0], "now": "off", "then": "1g.10gb:3,4g.40gb:1"}),
            "{fits}"
        );
        let why = does_not["message"].as_str().unwrap_or_default();
        ensure!(
            does_not["gpus"] == json!([1]) && does_not["then"].is_null(),
            "the V100 stays as it is: {does_not}"
        );
        ensure!(why.contains("the nearest layout that fits is 3g.40gb:2"), "{why}");
        Ok(())
    })?;
    ensure!(lab.driver_gpu(MIG_A100, 0)?.mig.is_none(), "nothing was done");
    lab.kubectl(&["delete", "gpunodepolicy", "sharing"]).map(drop)
}

#[test]
#[ignore = "needs the local cluster: make test"]
fn an_error_of_the_driver_in_the_middle_is_failed_until_it_goes() -> Result<()> {
    let lab = Lab::enter_undivided()?;
    let state = lab.driver_state(MIG_A100)?;
    for function in CREATE {
        state.fail_at(0, 1, function, ReturnCode::Unknown)?;
    }
    lab.put_layout(MIG_A100, &first_gpu("1g.10gb: 2, 2g.20gb: 1"))?;
    let failed = lab.await_mig(MIG_A100, 0, "1g.10gb:2,2g.20gb:1", "Failed")?;
    ensure!(
        failed["attempts"].as_u64().is_some_and(|attempts| attempts > 0) && failed["reason"] == "DriverError",
        "{failed}"
    );
    // Nobody gets a part of what is half done.
    for resource in [SMALL, "nvidia.com/mig-2g.20gb"] {
        assert_eq!(lab.allocatable(MIG_A100, resource)?, 0, "{resource}");
    }
    state.update_gpu(0, |gpu| gpu.failing_at.clear())?;
    let devices = lab.await_layout(MIG_A100, 0, "1g.10gb:2,2g.20gb:1")?;
    lab.await_allocatable(MIG_A100, SMALL, 2)?;
    lab.await_allocatable(MIG_A100, "nvidia.com/mig-2g.20gb", 1)?;
    lab.await_ready("sharing")?;
    run(&lab, "small", SMALL, &of_profile(&devices, "1g.10gb")).map(drop)
}

/// Stage of a node on the way to two halves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Untouched,
    Changing,
    Done,
}

impl Stage {
    fn of(lab: &Lab, node: &str, before: &MigDevices) -> Result<Self> {
        let devices = lab.mig_devices(node, 0)?;
        Ok(if devices == *before {
            Self::Untouched
        } else if devices.len() == 2 && of_profile(&devices, "3g.40gb").len() == 2 {
            Self::Done
        } else {
            Self::Changing
        })
    }
}

/// Nodes with a change that is approved and not finished.
fn approved(lab: &Lab) -> Result<Vec<String>> {
    let list = lab.get(&["gpunodes"])?;
    let nodes = list["items"].as_array().into_iter().flatten();
    let is_open = |node: &&Value| {
        let change = &node["spec"]["change"];
        change["state"] == "Approved" && change["since"] != node["status"]["finishedChange"]
    };
    let open = nodes
        .filter(is_open)
        .filter_map(|node| node["metadata"]["name"].as_str());
    Ok(open.map(str::to_owned).collect())
}

#[test]
#[ignore = "needs the local cluster: make test"]
fn the_second_node_of_a_budget_is_touched_after_the_first_is_back() -> Result<()> {
    let lab = Lab::enter_undivided()?;
    let layout = |instances: &str| format!("{{mig: {{strategy: Mixed, layout: [{{instances: {{{instances}}}}}]}}}}");
    lab.put_layout("mig-h100", &layout("1g.10gb: 7"))?;
    let mut before = Vec::new();
    for node in MIG_H100 {
        before.push(lab.await_layout(node, 0, "1g.10gb:7")?);
        lab.await_allocatable(node, SMALL, 7)?;
        let state = lab.driver_state(node)?;
        // So that nobody misses a change between two looks.
        for function in [CREATE[0], CREATE[1], "nvmlGpuInstanceDestroy"] {
            state.delay(0, function, 300)?;
        }
    }
    lab.await_ready("sharing")?;

    lab.put_layout("mig-h100", &layout("3g.40gb: 2"))?;
    let mut too_early = Vec::new();
    eventually("both nodes have their layout", LIMIT, || {
        let stages = || -> Result<Vec<Stage>> {
            let of_nodes = MIG_H100.iter().zip(&before);
            of_nodes.map(|(node, before)| Stage::of(&lab, node, before)).collect()
        };
        // Who is touched comes first: whoever had to be back for that is back when it is looked at afterwards.
        let (touched, now, open) = (stages()?, stages()?, approved(&lab)?);
        let mut back = 0;
        for (node, stage) in MIG_H100.iter().zip(&now) {
            let halves = lab.allocatable(node, "nvidia.com/mig-3g.40gb")?;
            back += usize::from(*stage == Stage::Done && halves == 2);
        }
        let seen = format!("{touched:?}, then {now:?}; {back} advertise halves; approved are {open:?}");
        if open.len() > 1 || (back == 0 && !touched.contains(&Stage::Untouched)) {
            too_early.push(seen.clone());
        }
        ensure!(back == MIG_H100.len(), "{seen}");
        Ok(())
    })?;
    assert_eq!(too_early, Vec::<String>::new());
    for node in MIG_H100 {
        lab.await_layout(node, 0, "3g.40gb:2")?;
        lab.await_allocatable(node, "nvidia.com/mig-3g.40gb", 2)?;
        lab.await_allocatable(node, SMALL, 0)?;
    }
    lab.await_ready("sharing").map(drop)
}

#[test]
#[ignore = "needs the local cluster: make test"]
fn a_v100_of_the_same_node_is_left_alone_with_a_reason() -> Result<()> {
    let lab = Lab::enter_undivided()?;
    lab.put_layout(
        MIG_A100,
        "{mig: {strategy: Mixed, layout: [{instances: {7g.80gb: 1}}]}}",
    )?;
    let unsupported = lab.await_mig(MIG_A100, 2, "7g.80gb:1", "Unsupported")?;
    ensure!(
        unsupported["reason"] == "NoMig" && unsupported["message"].is_string(),
        "{unsupported}"
    );
    for index in [0, 1] {
        lab.await_layout(MIG_A100, index, "7g.80gb:1")?;
    }
    lab.await_allocatable(MIG_A100, "nvidia.com/mig-7g.80gb", 2)?;
    lab.await_allocatable(MIG_A100, GPU, 1)?;
    let v100 = lab.driver_gpu(MIG_A100, 2)?.uuid;
    run(&lab, "volta", GPU, &[v100].into()).map(drop)
}

#[test]
#[ignore = "needs the local cluster: make test"]
fn a_reboot_brings_the_same_instances_back_before_a_pod_can_have_them() -> Result<()> {
    let lab = Lab::enter_undivided()?;
    lab.put_layout(MIG_A100, &first_gpu("1g.10gb: 2, 4g.40gb: 1"))?;
    let before = lab.await_layout(MIG_A100, 0, "1g.10gb:2,4g.40gb:1")?;
    lab.await_allocatable(MIG_A100, SMALL, 2)?;
    run(&lab, "large", LARGE, &of_profile(&before, "4g.40gb"))?;

    lab.cluster().node(MIG_A100)?.reboot()?;
    eventually("the instances are there again", LIMIT, || {
        let after = lab.mig_devices(MIG_A100, 0)?;
        ensure!(after == before, "there are {after:?}");
        Ok(())
    })?;
    for (resource, count) in [(GPU, 2), (SMALL, 2), (LARGE, 1)] {
        lab.await_allocatable(MIG_A100, resource, count)?;
    }
    // The kubelet rejects a pod that it remembers if it is faster than the agent; another one comes in its place.
    eventually("a pod runs on the large instance after the boot", LIMIT, || {
        let pod = lab.await_running("large", 1)?.concat();
        let visible = lab.visible(&pod)?;
        ensure!(visible == of_profile(&before, "4g.40gb"), "it has {visible:?}");
        opens_its_instances(&lab, &pod)
    })
}

/// Boards from Hopper on forget the mode too, and the second node gives the devices other UUIDs.
#[test]
#[ignore = "needs the local cluster: make test"]
fn a_reboot_brings_mode_and_layout_back_where_boards_forget_both() -> Result<()> {
    let lab = Lab::enter_undivided()?;
    lab.put_layout(
        "mig-h100",
        "{mig: {strategy: Mixed, layout: [{instances: {1g.10gb: 2, 3g.40gb: 1}}]}}",
    )?;
    let node = MIG_H100[1];
    let before = lab.await_layout(node, 0, "1g.10gb:2,3g.40gb:1")?;
    lab.await_allocatable(node, SMALL, 2)?;
    lab.await_ready("sharing")?;
    // On both nodes. After the boot the kubelet's checkpoint names UUIDs that no GPU has any more.
    lab.apply(&samples::holding("held", "mig-h100", 4, SMALL, 1))?;
    lab.await_running("held", 4)?;
    lab.cluster().node(node)?.reboot()?;
    let places = |devices: &MigDevices| devices.values().cloned().collect::<BTreeSet<_>>();
    let after = eventually("the instances are there again", LIMIT, || {
        let after = lab.mig_devices(node, 0)?;
        ensure!(places(&after) == places(&before), "there are {after:?}");
        Ok(after)
    })?;
    assert!(
        after.keys().all(|uuid| !before.contains_key(uuid)),
        "the board gives new UUIDs: {after:?}"
    );
    lab.await_allocatable(node, SMALL, 2)?;
    lab.await_allocatable(node, "nvidia.com/mig-3g.40gb", 1)?;
    lab.await_layout(node, 0, "1g.10gb:2,3g.40gb:1").map(drop)
}

#[test]
#[ignore = "needs the local cluster: make test"]
fn a_reboot_in_the_middle_of_a_change_ends_with_the_layout() -> Result<()> {
    let lab = Lab::enter_undivided()?;
    let state = lab.driver_state(MIG_A100)?;
    for function in CREATE {
        state.delay(0, function, 2000)?;
    }
    lab.put_layout(MIG_A100, &first_gpu("1g.10gb: 3, 4g.40gb: 1"))?;
    eventually("some of the instances are there", LIMIT, || {
        let count = lab.driver_gpu(MIG_A100, 0)?.mig.map_or(0, |instances| instances.len());
        ensure!(count > 0, "there is none");
        Ok(())
    })?;
    lab.cluster().node(MIG_A100)?.power_off()?;
    let count = lab.driver_gpu(MIG_A100, 0)?.mig.map_or(0, |instances| instances.len());
    ensure!(count < 4, "it was over before the power went: {count} instances");
    state.update_gpu(0, |gpu| gpu.call_ms.clear())?;
    lab.cluster().node(MIG_A100)?.power_on()?;
    let devices = lab.await_layout(MIG_A100, 0, "1g.10gb:3,4g.40gb:1")?;
    for (resource, count) in [(GPU, 2), (SMALL, 3), (LARGE, 1)] {
        lab.await_allocatable(MIG_A100, resource, count)?;
    }
    lab.await_ready("sharing")?;
    run(&lab, "small", SMALL, &of_profile(&devices, "1g.10gb")).map(drop)
}

#[test]
#[ignore = "needs the local cluster: make test"]
fn mps_shares_of_an_instance_go_with_their_daemon_before_it_does() -> Result<()> {
    const SHARES: &str = "nvidia.com/half.mps";
    let lab = Lab::enter_undivided()?;
    let config = |instances: &str| {
        format!(
            "{{mig: {{strategy: Mixed, layout: [{{devices: {{indices: [0]}}, instances: {{{instances}}}}}]}}, resources: [
            {{name: {SHARES}, devices: {{migProfiles: [3g.40gb]}}, sharing: {{strategy: Mps, replicas: 4}}}}]}}"
        )
    };
    lab.put_layout(MIG_A100, &config("3g.40gb: 1"))?;
    let device = lab
        .await_layout(MIG_A100, 0, "3g.40gb:1")?
        .into_keys()
        .collect::<Vec<_>>()
        .concat();
    lab.await_allocatable(MIG_A100, SHARES, 4)?;
    lab.apply(&samples::holding("share", MIG_A100, 1, SHARES, 1))?;
    let pod = lab.await_running("share", 1)?.concat();
    let environment = lab.environment(&pod)?;
    let pipe = environment.get("CUDA_MPS_PIPE_DIRECTORY").map(String::as_str);
    ensure!(pipe.is_some_and(|pipe| pipe.contains(&device)), "{environment:?}");
    lab.await_mps_daemon(MIG_A100, &device)?;

    lab.put_layout(MIG_A100, &config("7g.80gb: 1"))?;
    lab.await_mig(MIG_A100, 0, "7g.80gb:1", "Waiting")?;
    // The held one stays healthy.
    lab.await_allocatable(MIG_A100, SHARES, 1)?;
    end(&lab, &["share"])?;
    lab.await_layout(MIG_A100, 0, "7g.80gb:1")?;
    ensure!(
        lab.mps_daemon(MIG_A100, &device)?.is_none(),
        "the daemon of {device} runs on"
    );
    lab.await_allocatable(MIG_A100, "nvidia.com/mig-7g.80gb", 1)
}

/// A program on a node, outside of every pod, that keeps a device node open until this is dropped.
struct Monitor(Child);

impl Monitor {
    /// Name of the program, as `/proc` has it.
    const NAME: &str = "nv-hostengine";

    fn start(lab: &Lab, node: &str, path: &str) -> Result<Self> {
        // O_PATH: no driver is behind the node, so that an ordinary open fails. `$0` is the name that others see.
        let script = "$0 = shift; sysopen(my $node, shift, 010000000) or die $!; $| = 1; print \"open\\n\"; <STDIN>";
        let mut command: Command = lab.cluster().node(node)?.command("perl")?;
        command.args(["-e", script, Self::NAME, path]);
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut monitor = Self(child.context("start a monitor")?);
        let mut line = [0; 5];
        let output = monitor.0.stdout.as_mut().context("read what the monitor says")?;
        std::io::Read::read_exact(output, &mut line).with_context(|| format!("open {path}"))?;
        Ok(monitor)
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        // It ends with its input; a signal would end nsenter alone.
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

#[test]
#[ignore = "needs the local cluster: make test"]
fn a_monitor_on_an_instance_is_named_and_its_leaked_handle_blocks_until_it_goes() -> Result<()> {
    let lab = Lab::enter_undivided()?;
    lab.put_layout(MIG_A100, &first_gpu("2g.20gb: 1"))?;
    lab.await_layout(MIG_A100, 0, "2g.20gb:1")?;
    lab.await_allocatable(MIG_A100, "nvidia.com/mig-2g.20gb", 1)?;
    let gpu = lab.driver_gpu(MIG_A100, 0)?;
    let (instance, _) = gpu.mig_devices().next().context("a MIG device")?;
    let capability = format!("gpu{}/gi{}/access", gpu.minor, instance.id);
    let table = lab
        .cluster()
        .node(MIG_A100)?
        .command("cat")?
        .arg("/proc/driver/nvidia-caps/mig-minors")
        .output()?;
    let table = String::from_utf8(table.stdout)?;
    let minor = table.lines().find_map(|line| line.strip_prefix(&capability));
    let minor = minor.with_context(|| format!("find {capability} in {table}"))?.trim();
    let monitor = Monitor::start(&lab, MIG_A100, &format!("/dev/nvidia-caps/nvidia-cap{minor}"))?;
    let state = lab.driver_state(MIG_A100)?;
    let handle = OpenHandle {
        program: Monitor::NAME.to_owned(),
        gpu_instance: Some(instance.id),
        compute_instance: None,
    };
    state.set_open_handles(0, vec![handle])?;

    lab.put_layout(MIG_A100, &first_gpu("7g.80gb: 1"))?;
    let blocked = |what: &str, is_named: bool| {
        eventually(&format!("{what} blocks the change"), LIMIT, || {
            let status = lab.mig_status(MIG_A100, 0)?;
            let names_it = status["message"].to_string().contains(Monitor::NAME);
            ensure!(
                status["phase"] == "Blocked" && status["reason"] == "InUse" && names_it == is_named,
                "its MIG is {status}"
            );
            Ok(())
        })
    };
    blocked("a monitor", true)?;
    // Nothing of what it is about was destroyed.
    assert_eq!(of_profile(&lab.mig_devices(MIG_A100, 0)?, "2g.20gb").len(), 1);
    // It ends, and has leaked its handle: only the driver knows of that.
    drop(monitor);
    blocked("a leaked handle", false)?;
    state.set_open_handles(0, Vec::new())?;
    lab.await_layout(MIG_A100, 0, "7g.80gb:1")?;
    lab.await_allocatable(MIG_A100, "nvidia.com/mig-7g.80gb", 1)
}
