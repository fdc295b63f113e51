//! Cases of the decision, and a model in which everything happens in any order.

mod figures;
mod model;

use super::*;
use crate::{ComputeInstance, MigAttempt, MigDevice, MigInstance, MigMode};
use gpunode_mig::{MigBoard, MigGeometry, parse_instances};

const GPU: &str = "GPU-0";
const HASH: &str = "one";

fn geometry() -> MigGeometry {
    MigBoard::named("A100-80GB").unwrap().geometry
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn run(boot: &str) -> RunId {
    RunId {
        boot: boot.to_owned(),
        driver: "580".to_owned(),
    }
}

fn layout(names: &[&str]) -> GpuLayout {
    GpuLayout {
        enabled: true,
        instances: parse_instances(names, &geometry()).unwrap(),
    }
}

/// Returns a GPU whose MIG devices have the UUIDs `MIG-` and the names of their instances.
fn divided(names: &[&str]) -> Gpu {
    let instances = (1..).zip(layout(names).instances).zip(names);
    let instances = instances.map(|((id, placed), name)| GpuInstance {
        id,
        placed,
        compute: vec![ComputeInstance {
            id: 0,
            uuid: Some(format!("MIG-{name}")),
            fills: true,
        }],
    });
    gpu_with(true, instances.collect())
}

fn undivided() -> Gpu {
    gpu_with(false, Vec::new())
}

fn gpu_with(enabled: bool, instances: Vec<GpuInstance>) -> Gpu {
    let device = |(index, (gpu_instance, compute)): (u32, (u32, &ComputeInstance))| MigInstance {
        index,
        facts: MigDevice {
            uuid: compute.uuid.clone().unwrap(),
            gpu_instance,
            compute_instance: compute.id,
            ..MigDevice::default()
        },
        ..MigInstance::default()
    };
    let compute = instances
        .iter()
        .flat_map(|instance| instance.compute.iter().map(|compute| (instance.id, compute)));
    Gpu {
        uuid: GPU.to_owned(),
        mig_mode: Some(if enabled { MigMode::Enabled } else { MigMode::Disabled }),
        mig_devices: (0..).zip(compute).map(device).collect(),
        mig_state: Some(GpuMigState {
            enabled,
            pending: enabled,
            mode_needs_reset: true,
            virtualization: GpuVirtualization::None,
            geometry: geometry(),
            instances,
        }),
        ..Gpu::default()
    }
}

fn target(counts: &[(&str, u32)]) -> LayoutTarget {
    LayoutTarget::Instances(
        counts
            .iter()
            .map(|(name, count)| ((*name).to_owned(), *count))
            .collect(),
    )
}

/// A GPU and what is known of it. Everything is free, healthy and not approved; the GPU has no record.
struct Case {
    gpu: Gpu,
    target: Option<LayoutTarget>,
    usage: UsedDevices,
    fault: Option<&'static str>,
    approved: bool,
    is_drained: bool,
    record: Option<MigRecord>,
    attempts: AttemptHistory,
    now: Timestamp,
}

impl Case {
    fn new(gpu: Gpu, target: LayoutTarget) -> Self {
        Self {
            gpu,
            target: Some(target),
            usage: UsedDevices {
                is_known: true,
                devices: BTreeMap::new(),
            },
            fault: None,
            approved: false,
            is_drained: false,
            record: None,
            attempts: AttemptHistory::default(),
            now: at(100),
        }
    }

    /// Lets pods hold devices.
    fn held(mut self, devices: &[(&str, &str)]) -> Self {
        for (device, pod) in devices {
            let pod = DeviceUse::Held(vec![(*pod).to_owned()]);
            self.usage.devices.insert(format!("MIG-{device}"), pod);
        }
        self
    }

    fn recorded(mut self, record: MigRecord) -> Self {
        self.record = Some(record);
        self
    }

    fn decide(&self) -> Option<MigDecision> {
        decide(&MigInputs {
            gpu: &self.gpu,
            target: self.target.as_ref(),
            hash: HASH,
            usage: &self.usage,
            fault: self.fault,
            approved: self.approved,
            is_drained: self.is_drained,
            failed_drain: None,
            record: self.record.as_ref(),
            run: &run("first"),
            attempts: &self.attempts,
            now: self.now,
        })
    }

    /// Takes the result of the work that the decision asks for, `second` seconds after the start.
    fn answer(mut self, second: i64, result: AttemptResult) -> Self {
        self.now = at(100 + second);
        let work = self.decide().unwrap().work.unwrap();
        for result in [AttemptResult::Running, result] {
            let work = work.clone();
            self.attempts
                .observe(Some(&MigAttempt { work, result }), false, self.now);
        }
        self
    }

    /// Returns phase and reason, what is held, and the work.
    fn decided(&self) -> String {
        let Some(decision) = self.decide() else {
            return "nothing".to_owned();
        };
        let MigStatus { phase, reason, .. } = &decision.progress;
        let reason = reason.map(|reason| format!("/{}", reason.as_str())).unwrap_or_default();
        let mut held: Vec<&str> = decision.hold.gpu.then_some("GPU").into_iter().collect();
        held.extend(
            decision
                .hold
                .devices
                .iter()
                .map(|device| device.trim_start_matches("MIG-")),
        );
        let held = if held.is_empty() {
            String::new()
        } else {
            format!(" holds {}", held.join(" "))
        };
        let work = decision.work.map(|work| {
            let names = work
                .layout
                .instances
                .iter()
                .map(|placed| geometry().instance_name(placed));
            let names: Vec<_> = names.collect();
            format!(
                " {:?} {}[{}]",
                work.kind,
                if work.layout.enabled { "" } else { "off" },
                names.join(" ")
            )
        });
        let later = decision
            .look_again
            .map(|again| format!(" again at {}", again.as_second() - 100));
        format!(
            "{}{reason}{held}{}{}",
            phase.as_str(),
            work.unwrap_or_default(),
            later.unwrap_or_default()
        )
    }

    fn message(&self) -> String {
        self.decide().unwrap().progress.message.unwrap_or_default()
    }
}

fn blocked(message: &str) -> AttemptResult {
    AttemptResult::Blocked {
        reason: MigReason::InUse,
        message: message.to_owned(),
    }
}

fn failed() -> AttemptResult {
    AttemptResult::Failed {
        message: "create 2g.20gb@4: insufficient resources".to_owned(),
    }
}

const BEFORE: [&str; 4] = ["4g.40gb@0", "1g.10gb@4", "1g.10gb@5", "1g.10gb@6"];

/// From 3 x 1g and 4g to 1g, 2g and 4g.
fn change() -> Case {
    let record = MigRecord {
        run: run("first"),
        applied: Some(layout(&BEFORE)),
        ..MigRecord::default()
    };
    let wanted = target(&[("1g.10gb", 1), ("2g.20gb", 1), ("4g.40gb", 1)]);
    Case::new(divided(&BEFORE), wanted).recorded(record)
}

/// That change in its midst: what goes is gone, and nothing has come.
fn half_done() -> Case {
    Case {
        gpu: divided(&["4g.40gb@0", "1g.10gb@6"]),
        ..change()
    }
}

/// Returns the record of a change that goes to a layout from now on.
fn begin(kind: MigWorkKind, layout: GpuLayout, begun: Option<&ChangeRecord>, gpu: &Gpu) -> ChangeRecord {
    let work = MigWork {
        gpu: GPU.to_owned(),
        hash: HASH.to_owned(),
        layout,
        kind,
        gives_up: None,
    };
    ChangeRecord::begin(&work, begun, gpu.mig_state.as_ref().unwrap())
}

/// Returns the record in the middle of that change, in which the pods of 4g.40gb@0 and 1g.10gb@6 stay.
fn begun(failure: Option<(u32, i64)>) -> MigRecord {
    MigRecord {
        change: Some(ChangeRecord {
            hash: HASH.to_owned(),
            before: layout(&BEFORE),
            wanted: layout(&["4g.40gb@0", "1g.10gb@6", "2g.20gb@4"]),
            ..ChangeRecord::default()
        }),
        failure: failure.map(|(attempts, second)| MigFailure {
            hash: HASH.to_owned(),
            attempts,
            at: at(100 + second),
            message: "create 2g.20gb@4: insufficient resources".to_owned(),
            rolled_back: false,
        }),
        ..change().record.unwrap()
    }
}

#[test]
fn gpu_that_no_group_selects_stays_as_it_is() {
    let mut case = Case::new(divided(&BEFORE), LayoutTarget::Off);
    case.target = None;
    assert_eq!(case.decided(), "nothing");
    let mut unread = change();
    unread.gpu.mig_state = None;
    assert_eq!(unread.decided(), "nothing", "the driver has not told its instances yet");
    unread.record = Some(begun(None));
    assert_eq!(
        unread.decided(),
        "Blocked/DriverError holds GPU",
        "nothing half made is offered"
    );
    // As after a boot, before the instances are back.
    unread.record = change().record;
    unread.record.as_mut().unwrap().run = run("zeroth");
    assert_eq!(unread.decided(), "Blocked/DriverError holds GPU");
    let message = unread.message();
    assert!(
        message.contains("may have lost them with a boot or a reset; see the kernel log of the node"),
        "{message}"
    );
    unread.target = None;
    assert_eq!(unread.decided(), "nothing");
}

#[test]
fn record_of_a_gpu_is_forgotten_once_and_again_after_a_pause() {
    let none = AttemptHistory::default();
    let decision = forget(GPU, &none, at(0));
    let work = decision.work.unwrap();
    assert_eq!((work.gpu.as_str(), work.kind), (GPU, MigWorkKind::Forget));
    let mut history = AttemptHistory::default();
    let attempt = MigAttempt { work, result: failed() };
    history.observe(Some(&attempt), false, at(0));
    let decision = forget(GPU, &history, at(1));
    assert_eq!((decision.work, decision.look_again), (None, Some(at(10))));
    assert!(forget(GPU, &history, at(10)).work.is_some());
}

#[test]
fn gpu_with_its_layout_is_applied_and_recorded_once() {
    let wanted = || target(&[("1g.10gb", 3), ("4g.40gb", 1)]);
    let new = Case::new(divided(&BEFORE), wanted());
    let remember = "Applied Remember [4g.40gb@0 1g.10gb@4 1g.10gb@5 1g.10gb@6]";
    assert_eq!(new.decided(), remember);
    // The order of the record is the one in which the instances came.
    let order = ["1g.10gb@4", "4g.40gb@0", "1g.10gb@5", "1g.10gb@6"];
    let record = MigRecord {
        run: run("first"),
        applied: Some(layout(&order)),
        ..MigRecord::default()
    };
    assert_eq!(
        Case::new(divided(&BEFORE), wanted()).recorded(record.clone()).decided(),
        "Applied"
    );
    let earlier = MigRecord {
        run: run("zeroth"),
        ..record
    };
    assert_eq!(
        Case::new(divided(&BEFORE), wanted()).recorded(earlier).decided(),
        "Applied Remember [1g.10gb@4 4g.40gb@0 1g.10gb@5 1g.10gb@6]"
    );
    let failed = new.answer(0, failed());
    assert_eq!(failed.decided(), "Applied again at 10", "a full disk");
    assert_eq!(
        Case::new(undivided(), LayoutTarget::Off).decided(),
        "Applied Remember off[]"
    );
    assert_eq!(Case::new(divided(&[]), target(&[])).decided(), "Applied Remember []");
}

#[test]
fn gpu_that_cannot_have_a_layout_says_why_and_offers_what_it_has() {
    let no_mig = Gpu {
        mig_mode: None,
        mig_state: None,
        ..undivided()
    };
    assert_eq!(Case::new(no_mig.clone(), target(&[])).decided(), "Unsupported/NoMig");
    assert_eq!(Case::new(no_mig, LayoutTarget::Off).decided(), "Applied");
    let mut guest = Case::new(undivided(), target(&[]));
    guest.gpu.mig_state.as_mut().unwrap().virtualization = GpuVirtualization::Virtual;
    assert_eq!(guest.decided(), "Unsupported/Virtual");
    let unknown = Case::new(undivided(), target(&[("1g.5gb", 7)]));
    assert_eq!(unknown.decided(), "Blocked/DoesNotFit");
    assert!(
        unknown
            .message()
            .starts_with("the board has no profile `1g.5gb`; it has 1g.10gb, ")
    );
    let large = Case::new(divided(&BEFORE), target(&[("4g.40gb", 2)])).held(&[("4g.40gb@0", "ml/a")]);
    assert_eq!(large.decided(), "Blocked/DoesNotFit");
    assert_eq!(
        large.message(),
        "a GPU has at most 1 x 4g.40gb, and 2 are wanted; the nearest layout that fits is 3g.40gb:1,4g.40gb:1"
    );
}

#[test]
fn what_has_to_go_is_held_until_its_pods_end() {
    let case = change().held(&[("4g.40gb@0", "ml/a"), ("1g.10gb@6", "ml/b"), ("1g.10gb@4", "ml/c")]);
    assert_eq!(case.decided(), "Waiting holds 1g.10gb@4 1g.10gb@5");
    assert_eq!(
        case.message(),
        "waits until pods ml/c end, which hold 1g.10gb@4, 1g.10gb@5"
    );
    assert!(case.decide().unwrap().waits_for_pods);
    let mut unnamed = change();
    let device = "MIG-1g.10gb@4".to_owned();
    unnamed.usage.devices.insert(device, DeviceUse::Held(Vec::new()));
    assert_eq!(
        unnamed.message(),
        "waits until the pods end that hold 1g.10gb@4, 1g.10gb@5; the kubelet does not name them"
    );
    assert!(unnamed.decide().unwrap().waits_for_pods);
    let mut assigned = change().held(&[("4g.40gb@0", "ml/a"), ("1g.10gb@6", "ml/b")]);
    assigned
        .usage
        .devices
        .insert("MIG-1g.10gb@5".to_owned(), DeviceUse::Assigned);
    assert_eq!(assigned.decided(), "Waiting holds 1g.10gb@4 1g.10gb@5");
    assert_eq!(
        assigned.message(),
        "waits until the kubelet can allocate nothing of 1g.10gb@4, 1g.10gb@5"
    );
    assert!(!assigned.decide().unwrap().waits_for_pods, "what is free soon");
    assigned.usage.is_known = false;
    assert_eq!(
        assigned.message(),
        "waits for the kubelet to report which pod holds which device"
    );
    assert!(!assigned.decide().unwrap().waits_for_pods);
}

#[test]
fn instances_in_use_stay_where_the_rest_fits_around_them() {
    for (held, decided) in [
        // The 2g begins at 4 only, so that the 1g at 6 is the one to stay.
        (["1g.10gb@4"].as_slice(), "Waiting holds 1g.10gb@4 1g.10gb@5"),
        (
            &["1g.10gb@6"],
            "Waiting holds 1g.10gb@4 1g.10gb@5 Check [4g.40gb@0 1g.10gb@6 2g.20gb@4]",
        ),
        (
            &[],
            "Waiting holds 1g.10gb@4 1g.10gb@5 Check [4g.40gb@0 1g.10gb@6 2g.20gb@4]",
        ),
    ] {
        let held: Vec<_> = held.iter().map(|device| (*device, "ml/a")).collect();
        assert_eq!(change().held(&held).decided(), decided, "{held:?}");
    }
    let fewer = Case::new(divided(&BEFORE), target(&[("1g.10gb", 2)]));
    let fewer = fewer.held(&[("1g.10gb@5", "ml/a"), ("1g.10gb@6", "ml/b"), ("4g.40gb@0", "ml/c")]);
    assert_eq!(fewer.decided(), "Waiting holds 1g.10gb@4 4g.40gb@0");
}

#[test]
fn change_is_checked_approved_and_applied() {
    let checked = change().answer(0, AttemptResult::Clear);
    assert_eq!(checked.decided(), "AwaitingApproval holds 1g.10gb@4 1g.10gb@5");
    assert_eq!(
        checked.message(),
        "waits for the node's turn in rollout.maxUnavailable of the policy; then: destroys 1g.10gb@4, 1g.10gb@5, creates \
         2g.20gb@4"
    );
    let mut approved = Case {
        approved: true,
        ..checked
    };
    let apply = "Applying holds 1g.10gb@4 1g.10gb@5 Apply [4g.40gb@0 1g.10gb@6 2g.20gb@4]";
    assert_eq!(approved.decided(), apply);
    let work = approved.decide().unwrap().work.unwrap();
    let running = MigAttempt {
        work,
        result: AttemptResult::Running,
    };
    approved.attempts.observe(Some(&running), false, at(101));
    approved.approved = false;
    approved.target = Some(LayoutTarget::Off);
    assert_eq!(
        approved.decided(),
        format!("{apply} again at 301"),
        "what runs is listed until it ends"
    );
}

#[test]
fn done_change_waits_for_a_reading_of_the_gpu() {
    let mut case = change().answer(0, AttemptResult::Clear);
    case.approved = true;
    let mut done = case.answer(1, AttemptResult::Done);
    done.record.as_mut().unwrap().applied = Some(layout(&["4g.40gb@0", "1g.10gb@6", "2g.20gb@4"]));
    assert_eq!(done.decided(), "Applying holds 1g.10gb@4 1g.10gb@5 again at 11");
    done.gpu = divided(&["4g.40gb@0", "1g.10gb@6", "2g.20gb@4"]);
    assert_eq!(done.decided(), "Applied");
}

#[test]
fn blocked_change_is_checked_again_after_a_pause() {
    let case = change().answer(0, blocked("process 7 (dcgm) has 1g.10gb@4 open"));
    assert_eq!(case.decided(), "Blocked/InUse holds 1g.10gb@4 1g.10gb@5 again at 2");
    assert_eq!(case.message(), "process 7 (dcgm) has 1g.10gb@4 open");
    let case = Case { now: at(102), ..case };
    let check = " Check [4g.40gb@0 1g.10gb@6 2g.20gb@4]";
    assert_eq!(
        case.decided(),
        format!("Blocked/InUse holds 1g.10gb@4 1g.10gb@5{check}")
    );
    let case = case.answer(2, blocked("process 7 (dcgm) has 1g.10gb@4 open"));
    assert_eq!(case.decided(), "Blocked/InUse holds 1g.10gb@4 1g.10gb@5 again at 6");
    let case = case.answer(6, AttemptResult::Clear);
    assert_eq!(case.decided(), "AwaitingApproval holds 1g.10gb@4 1g.10gb@5");
}

#[test]
fn only_a_healthy_gpu_is_changed() {
    let mut case = change();
    case.fault = Some("XID 79");
    assert_eq!(case.decided(), "Blocked/Unhealthy holds 1g.10gb@4 1g.10gb@5");
    assert_eq!(
        case.message(),
        "repair the GPU first, only a healthy GPU is divided: XID 79"
    );
    case.record = Some(begun(None));
    assert!(case.decided().starts_with("Blocked/Unhealthy holds 1g.10gb@4"));
}

#[test]
fn mode_changes_only_on_a_gpu_of_which_nobody_has_anything() {
    let off = || Case::new(divided(&["1g.10gb@0"]), LayoutTarget::Off);
    assert_eq!(off().decided(), "Waiting holds GPU 1g.10gb@0 Check off[]");
    assert_eq!(
        off().held(&[("1g.10gb@0", "ml/a")]).decided(),
        "Waiting holds GPU 1g.10gb@0"
    );
    let mut on = Case::new(undivided(), target(&[("7g.80gb", 1)]));
    assert_eq!(on.decided(), "Waiting holds GPU Check [7g.80gb@0]");
    on.usage
        .devices
        .insert(GPU.to_owned(), DeviceUse::Held(vec!["ml/a".to_owned()]));
    assert_eq!(on.decided(), "Waiting holds GPU");
    assert_eq!(on.message(), "waits until pods ml/a end, which hold GPU 0");
}

#[test]
fn pending_mode_of_somebody_else_blocks_and_the_wanted_one_needs_a_reboot() {
    let mut case = Case::new(undivided(), target(&[]));
    case.gpu.mig_state.as_mut().unwrap().pending = true;
    assert_eq!(case.decided(), "RebootRequired");
    // A virtual machine in which MIG was to be turned off, and is wanted again before the boot.
    let mut kept = Case::new(divided(&["7g.80gb@0"]), target(&[("7g.80gb", 1)]));
    kept.gpu.mig_state.as_mut().unwrap().pending = false;
    assert_eq!(kept.decided(), "Blocked/ModePending");
    assert!(
        kept.message().contains("`nvidia-smi -i 0 -mig 1`"),
        "{}",
        kept.message()
    );
    let mut case = change();
    case.gpu.mig_state.as_mut().unwrap().pending = false;
    assert_eq!(case.decided(), "Blocked/ModePending");
    case.record = Some(begun(None));
    assert!(
        case.decided().starts_with("Applying "),
        "the change under way may be the reason"
    );
    let mut case = Case::new(undivided(), target(&[])).answer(0, AttemptResult::Clear);
    case.approved = true;
    let message = "a guest cannot reset the GPU".to_owned();
    let case = case.answer(1, AttemptResult::RebootRequired { message });
    assert_eq!(case.decided(), "RebootRequired holds GPU");
}

#[test]
fn change_under_way_goes_on_without_approval_and_holds_all_that_does_not_stay() {
    let middle = ["4g.40gb@0", "1g.10gb@6", "1g.10gb@5"];
    let mut case = Case {
        gpu: divided(&middle),
        ..change()
    }
    .held(&[("4g.40gb@0", "ml/a"), ("1g.10gb@6", "ml/b")])
    .recorded(begun(None));
    let goal = "[4g.40gb@0 1g.10gb@6 2g.20gb@4]";
    assert_eq!(case.decided(), format!("Applying holds 1g.10gb@5 Apply {goal}"));
    case.target = None;
    assert_eq!(case.decided(), format!("Applying holds 1g.10gb@5 Apply {goal}"));
    assert_eq!(case.decide().unwrap().progress.wanted, "1g.10gb:1,2g.20gb:1,4g.40gb:1");
    // The 2g is there, and held until the change is over.
    case.gpu = divided(&["4g.40gb@0", "1g.10gb@6", "2g.20gb@4"]);
    assert_eq!(case.decided(), format!("Applying holds 2g.20gb@4 Apply {goal}"));
}

#[test]
fn change_under_way_goes_to_the_layout_of_a_new_configuration() {
    let mut case = half_done().recorded(begun(None));
    case.record.as_mut().unwrap().change.as_mut().unwrap().hash = "other".to_owned();
    case.target = Some(target(&[("1g.10gb", 2)]));
    let own = "Applying Apply [4g.40gb@0 1g.10gb@6 2g.20gb@4]";
    assert_eq!(case.decided(), own, "a layout that nobody has approved");
    case.approved = true;
    assert_eq!(case.decided(), "Applying holds 4g.40gb@0 Apply [1g.10gb@6 1g.10gb@4]");
    let case = case.held(&[("4g.40gb@0", "ml/a")]);
    assert_eq!(case.decided(), "Waiting holds 4g.40gb@0");
    let case = Case {
        target: Some(target(&[("4g.40gb", 2)])),
        ..case
    };
    assert_eq!(
        case.decided(),
        own,
        "a layout that does not fit does not leave the GPU half done"
    );
}

#[test]
fn change_under_way_that_does_not_get_on_awaits_the_approval_of_another_layout() {
    let mut case = half_done().recorded(begun(None));
    case.record.as_mut().unwrap().change.as_mut().unwrap().hash = "other".to_owned();
    case.target = Some(target(&[("1g.10gb", 2), ("4g.40gb", 1)]));
    let own = "[4g.40gb@0 1g.10gb@6 2g.20gb@4]";
    let mut case = case.answer(0, blocked("leaked handle"));
    assert_eq!(case.decided(), "AwaitingApproval again at 2");
    let message = case.message();
    assert!(
        message.contains("creates 1g.10gb@4; ") && message.ends_with("leaked handle"),
        "{message}"
    );
    case.now = at(102);
    assert_eq!(
        case.decided(),
        format!("AwaitingApproval Apply {own}"),
        "it is tried meanwhile"
    );
    case.approved = true;
    assert_eq!(case.decided(), "Applying Apply [4g.40gb@0 1g.10gb@6 1g.10gb@4]");
}

#[test]
fn layout_of_a_record_is_not_made_again_where_somebody_else_has_divided_the_gpu() {
    let seven = [0, 1, 2, 3, 4, 5, 6].map(|start| format!("1g.10gb@{start}"));
    let record = MigRecord {
        run: run("zeroth"),
        applied: Some(layout(&seven.each_ref().map(String::as_str))),
        ..MigRecord::default()
    };
    let halves = || divided(&["3g.40gb@0", "3g.40gb@4"]);
    let case = |gpu, wanted| Case::new(gpu, wanted).recorded(record.clone());
    assert_eq!(
        case(halves(), target(&[("3g.40gb", 2)])).decided(),
        "Applied Remember [3g.40gb@0 3g.40gb@4]"
    );
    assert_eq!(
        case(halves(), target(&[("7g.80gb", 1)])).decided(),
        "Waiting holds 3g.40gb@0 3g.40gb@4 Check [7g.80gb@0]",
        "the way of every change"
    );
    assert_eq!(case(undivided(), LayoutTarget::Off).decided(), "Applied Remember off[]");
    assert_eq!(case(divided(&[]), target(&[])).decided(), "Applied Remember []");
}

#[test]
fn change_that_somebody_else_has_overtaken_is_no_change_any_more() {
    let halves = || divided(&["3g.40gb@0", "3g.40gb@4"]);
    let mut case = Case {
        gpu: halves(),
        ..change()
    }
    .recorded(begun(None));
    assert_eq!(
        case.decided(),
        "Waiting holds 3g.40gb@0 3g.40gb@4 Check [4g.40gb@0 2g.20gb@4 1g.10gb@6]",
        "the way of every change"
    );
    case.target = None;
    assert_eq!(case.decided(), "nothing");
    case.target = Some(target(&[("3g.40gb", 2)]));
    assert_eq!(case.decided(), "Applied Remember [3g.40gb@0 3g.40gb@4]");
    // What the change itself has left on its way is no other's.
    case.gpu = divided(&["4g.40gb@0", "2g.20gb@4"]);
    let begun = begun(None).change.unwrap();
    let back = begin(MigWorkKind::RollBack, begun.before.clone(), Some(&begun), &case.gpu);
    assert_eq!(back.passed, layout(&["2g.20gb@4"]).instances);
    case.record.as_mut().unwrap().change = Some(back);
    case.target = None;
    assert_eq!(
        case.decided(),
        "Applying holds 2g.20gb@4 RollBack [4g.40gb@0 1g.10gb@4 1g.10gb@5 1g.10gb@6]"
    );
}

#[test]
fn gpu_stays_held_while_a_change_of_the_mode_goes_back_on_its_way() {
    let on = begin(MigWorkKind::Apply, layout(&BEFORE), None, &undivided());
    // MIG is on by now, and the first instance was refused. The next configuration wants no MIG.
    let off = begin(MigWorkKind::Apply, GpuLayout::default(), Some(&on), &divided(&[]));
    let mut case = Case::new(undivided(), LayoutTarget::Off).recorded(MigRecord {
        change: Some(off),
        ..MigRecord::default()
    });
    case.approved = true;
    assert_eq!(
        case.decided(),
        "Applying holds GPU Apply off[]",
        "this reading is from before the change"
    );
}

#[test]
fn layout_that_comes_back_half_is_tried_for_ever_and_offers_nothing() {
    let lost = layout(&["1g.10gb@4", "4g.40gb@0"]);
    let mut record = MigRecord {
        run: run("zeroth"),
        applied: Some(lost.clone()),
        change: Some(ChangeRecord {
            hash: HASH.to_owned(),
            before: lost.clone(),
            wanted: lost,
            restores: true,
            ..ChangeRecord::default()
        }),
        ..MigRecord::default()
    };
    let wanted = target(&[("1g.10gb", 1), ("4g.40gb", 1)]);
    let case = |record: &MigRecord| Case::new(divided(&["1g.10gb@4"]), wanted.clone()).recorded(record.clone());
    let restore = "Restore [1g.10gb@4 4g.40gb@0]";
    assert_eq!(case(&record).decided(), format!("Applying holds GPU {restore}"));
    assert!(
        case(&record).decide().unwrap().is_restored,
        "the first devices wait for it"
    );
    for (attempts, second, decided) in [
        (1, 0, "Failed/DriverError holds GPU again at 10".to_owned()),
        (3, -40, format!("Failed/DriverError holds GPU {restore}")),
        (9, -300, format!("Failed/DriverError holds GPU {restore}")),
    ] {
        record.restore_failure = begun(Some((attempts, second))).failure;
        let case = case(&record);
        assert_eq!(case.decided(), decided);
        assert!(
            case.message()
                .ends_with("offers nothing until it has its instances again")
        );
        assert!(!case.decide().unwrap().is_restored);
    }
    // Another layout is the way out.
    let mut other = case(&record);
    other.record.as_mut().unwrap().change.as_mut().unwrap().hash = "other".to_owned();
    other.target = Some(target(&[("1g.10gb", 2)]));
    assert_eq!(other.decided(), format!("AwaitingApproval holds GPU {restore}"));
    other.approved = true;
    assert!(other.decided().contains(" Apply [1g.10gb@4 "), "{}", other.decided());
}

#[test]
fn mode_comes_first_where_the_driver_tells_no_profiles_before() {
    let mut case = Case::new(undivided(), target(&[("1g.10gb", 7)]));
    let geometry = &mut case.gpu.mig_state.as_mut().unwrap().geometry;
    geometry.profiles.clear();
    (geometry.memory_slices, geometry.compute_slices) = (0, 0);
    assert_eq!(case.decided(), "Waiting holds GPU Check []");
    assert_eq!(case.decide().unwrap().progress.wanted, "1g.10gb:7");
    case.target = Some(LayoutTarget::Preset("all-balanced".to_owned()));
    assert_eq!(case.decided(), "Waiting holds GPU Check []");
    let mut lost = Case {
        target: Some(target(&[("4g.40gb", 1)])),
        ..case
    };
    lost.record = Some(MigRecord {
        run: run("zeroth"),
        applied: Some(layout(&["4g.40gb@0"])),
        ..MigRecord::default()
    });
    assert_eq!(lost.decided(), "Applying holds GPU Restore [4g.40gb@0]");
    lost.target = Some(LayoutTarget::Off);
    assert_eq!(lost.decided(), "Applied Remember off[]");
}

#[test]
fn change_that_is_refused_although_its_check_was_clear_is_not_tried_every_minute() {
    let mut case = change();
    case.approved = true;
    let case = case.answer(0, AttemptResult::Clear).answer(1, blocked("somebody"));
    assert_eq!(case.decided(), "Blocked/InUse holds 1g.10gb@4 1g.10gb@5 again at 61");
    let case = Case { now: at(161), ..case };
    let case = case.answer(61, AttemptResult::Clear).answer(62, blocked("somebody"));
    assert_eq!(case.decided(), "Blocked/InUse holds 1g.10gb@4 1g.10gb@5 again at 182");
}

#[test]
fn failed_change_is_tried_thrice_and_then_taken_back() {
    let apply = "Apply [4g.40gb@0 1g.10gb@6 2g.20gb@4]";
    let roll_back = "RollBack [4g.40gb@0 1g.10gb@4 1g.10gb@5 1g.10gb@6]";
    for (failure, decided) in [
        ((1, 0), "Failed/DriverError again at 10".to_owned()),
        ((1, -10), format!("Failed/DriverError {apply}")),
        ((2, -19), "Failed/DriverError again at 1".to_owned()),
        ((3, -1), "Failed/DriverError again at 39".to_owned()),
        ((3, -40), format!("Failed/DriverError {roll_back}")),
        ((9, -300), format!("Failed/DriverError {roll_back}")),
        ((1, 7), format!("Failed/DriverError {apply}")),
    ] {
        assert_eq!(
            half_done().recorded(begun(Some(failure))).decided(),
            decided,
            "{failure:?}"
        );
    }
    let text = "create 2g.20gb@4: insufficient resources";
    for (failure, message) in [
        ((1, 0), format!("{text}; attempt 1 of 3, the next one follows")),
        (
            (3, -1),
            format!("goes back to the layout from before, after 3 attempts: {text}"),
        ),
        (
            (4, -1),
            format!("cannot go back to the layout from before either, tries again: {text}; repair the GPU"),
        ),
    ] {
        assert_eq!(half_done().recorded(begun(Some(failure))).message(), message);
    }
    let mut record = begun(Some((3, -40)));
    record.failure.as_mut().unwrap().rolled_back = true;
    record.change = None;
    let mut back = change().recorded(record);
    assert_eq!(back.decided(), "Failed/RolledBack");
    assert_eq!(
        back.message(),
        format!(
            "the GPU has its layout from before again, after 3 attempts: {text}; repair the GPU, or change devicePlugin in the \
             policy, to try again"
        )
    );
    assert_eq!(back.decide().unwrap().progress.attempts, 3);
    back.record.as_mut().unwrap().failure.as_mut().unwrap().hash = "other".to_owned();
    assert!(back.decided().starts_with("Waiting holds 1g.10gb@4 1g.10gb@5 Check"));
}

/// A change in its midst that was blocked a first time, every two minutes since, and again so many seconds later.
fn blocked_for(seconds: i64) -> Case {
    let mut case = half_done().recorded(begun(None)).answer(0, blocked("leaked handle"));
    for second in [120, 240].into_iter().filter(|second| *second < seconds) {
        case = case.answer(second, blocked("leaked handle"));
    }
    case.answer(seconds, blocked("dcgm"))
}

#[test]
fn change_that_something_keeps_from_its_end_goes_back_after_five_minutes_of_attempts() {
    let roll_back = "RollBack [4g.40gb@0 1g.10gb@4 1g.10gb@5 1g.10gb@6]";
    let mut case = blocked_for(299);
    assert_eq!(case.decided(), "Blocked/InUse again at 315");
    case.now = at(9000);
    let apply = "Apply [4g.40gb@0 1g.10gb@6 2g.20gb@4]";
    assert_eq!(
        case.decided(),
        format!("Blocked/InUse {apply}"),
        "while nothing was tried, nobody knows"
    );
    let mut back = blocked_for(300);
    assert_eq!(back.decided(), format!("Applying {roll_back}"));
    let why = "for over 5 minutes something kept the change from its end: dcgm";
    assert_eq!(back.message(), format!("goes back to the layout from before: {why}"));
    back.is_drained = true;
    assert_eq!(
        back.decided(),
        "Blocked/InUse again at 316",
        "pods that are evicted may be in the way"
    );
    back.is_drained = false;
    let mut back = back.answer(300, blocked("leaked handle"));
    back.is_drained = true;
    assert_eq!(back.decided(), "Blocked/InUse again at 302", "it does not alternate");
    assert_eq!(
        back.message(),
        "cannot go back to the layout from before yet: leaked handle"
    );
    back.now = at(402);
    assert_eq!(back.decided(), format!("Blocked/InUse {roll_back}"));
    let back = back.answer(302, failed());
    assert_eq!(
        back.decided(),
        "Failed/DriverError again at 322",
        "its record was not saved"
    );
}

#[test]
fn retry_of_what_is_blocked_is_blocked_until_it_is_over() {
    let mut case = blocked_for(10);
    case.now = at(200);
    let work = case.decide().unwrap().work.unwrap();
    let running = MigAttempt {
        work,
        result: AttemptResult::Running,
    };
    case.attempts.observe(Some(&running), false, case.now);
    let decided = case.decided();
    assert!(decided.starts_with("Blocked/InUse Apply "), "{decided}");
    assert_eq!(case.message(), "dcgm");
}

#[test]
fn errors_of_the_driver_are_the_reason_once_there_are_three() {
    let mut case = blocked_for(300);
    case.record = Some(begun(Some((3, 300))));
    assert_eq!(
        case.message(),
        "goes back to the layout from before, after 3 attempts: create 2g.20gb@4: insufficient resources"
    );
}

#[test]
fn way_back_is_kept_with_its_reason_across_a_restart() {
    let case = blocked_for(300);
    let work = case.decide().unwrap().work.unwrap();
    let before = case.record.as_ref().and_then(|record| record.change.as_ref());
    let going_back = ChangeRecord::begin(&work, before, case.gpu.mig_state.as_ref().unwrap());
    let mut record = case.record.clone().unwrap();
    record.change = Some(going_back.clone());
    let restarted = half_done().recorded(record.clone());
    assert_eq!(
        restarted.decided(),
        "Applying RollBack [4g.40gb@0 1g.10gb@4 1g.10gb@5 1g.10gb@6]"
    );
    assert_eq!(restarted.message(), case.message());

    // Errors from before it was blocked are not the reason.
    let failure = begun(Some((2, 0))).failure;
    record.failure = Some(MigFailure::rolled_back(HASH, failure, Some(&going_back), at(400)));
    record.change = None;
    let back = change().recorded(record);
    assert_eq!(back.decided(), "Failed/RolledBack");
    assert_eq!(
        back.message(),
        "the GPU has its layout from before again: for over 5 minutes something kept the change from its end: dcgm; once that \
         is gone, change devicePlugin in the policy to try again"
    );
}

#[test]
fn layout_that_is_made_again_after_a_boot_is_never_given_up_for_what_blocks_it() {
    let mut record = begun(None);
    let change = record.change.as_mut().unwrap();
    (change.restores, change.before) = (true, change.wanted.clone());
    let case = half_done()
        .recorded(record)
        .answer(0, blocked("dcgm"))
        .answer(2, blocked("dcgm"));
    let case = Case { now: at(1000), ..case };
    assert_eq!(
        case.decided(),
        "Blocked/InUse holds GPU Restore [4g.40gb@0 1g.10gb@6 2g.20gb@4]"
    );
}

#[test]
fn driver_that_does_not_come_to_an_end_with_a_change_is_told_after_five_minutes() {
    let mut case = half_done().recorded(begun(None));
    let work = case.decide().unwrap().work.unwrap();
    let running = MigAttempt {
        work,
        result: AttemptResult::Running,
    };
    case.attempts.observe(Some(&running), false, at(100));
    let apply = "Apply [4g.40gb@0 1g.10gb@6 2g.20gb@4]";
    assert_eq!(case.decided(), format!("Applying {apply} again at 300"));
    case.now = at(399);
    case.attempts.observe(Some(&running), false, case.now);
    assert_eq!(case.decided(), format!("Applying {apply} again at 300"));
    case.now = at(400);
    assert_eq!(case.decided(), format!("Failed/DriverError {apply}"));
    assert!(
        case.message()
            .starts_with("the driver has not answered for over 5 minutes (creates 2g.20gb@4)"),
        "{}",
        case.message()
    );
}

#[test]
fn layout_lost_by_a_reboot_comes_back_before_anything_else_and_without_approval() {
    let order = ["1g.10gb@4", "4g.40gb@0"];
    let record = MigRecord {
        run: run("zeroth"),
        applied: Some(layout(&order)),
        ..MigRecord::default()
    };
    let case = |gpu, counts: &[(&str, u32)]| Case::new(gpu, target(counts)).recorded(record.clone());
    let restore = "Applying holds GPU Restore [1g.10gb@4 4g.40gb@0]";
    assert_eq!(case(divided(&[]), &[("7g.80gb", 1)]).decided(), restore);
    assert_eq!(
        case(undivided(), &[("7g.80gb", 1)]).decided(),
        restore,
        "the mode is lost, too"
    );
    let mut half = case(divided(&["1g.10gb@4"]), &[("1g.10gb", 1), ("4g.40gb", 1)]);
    half.record.as_mut().unwrap().change = Some(ChangeRecord {
        hash: HASH.to_owned(),
        before: layout(&order),
        wanted: layout(&order),
        restores: true,
        ..ChangeRecord::default()
    });
    assert_eq!(
        half.decided(),
        "Applying holds GPU Restore [1g.10gb@4 4g.40gb@0]",
        "killed in the middle"
    );
    assert!(half.decide().unwrap().is_restored);
    let mut reset = case(divided(&[]), &[("1g.10gb", 1), ("4g.40gb", 1)]);
    reset.record.as_mut().unwrap().run = run("first");
    assert_eq!(reset.decided(), restore, "a reset in the same boot");
    // The first devices of the node wait for it, also while the kubelet does not answer.
    let mut lost_mode = case(undivided(), &[("7g.80gb", 1)]);
    assert!(lost_mode.decide().unwrap().is_restored);
    lost_mode.usage.is_known = false;
    assert_eq!(lost_mode.decided(), "Waiting holds GPU");
    assert!(lost_mode.decide().unwrap().is_restored);
    // Nothing is free before the kubelet answers, and nothing has to be: there is no device.
    let mut early = case(divided(&[]), &[("1g.10gb", 1), ("4g.40gb", 1)]);
    early.usage.is_known = false;
    assert_eq!(early.decided(), restore);
}

#[test]
fn layout_that_cannot_come_back_leaves_the_gpu_without_devices() {
    let record = MigRecord {
        run: run("zeroth"),
        applied: Some(layout(&["4g.40gb@0"])),
        ..MigRecord::default()
    };
    let case = Case::new(divided(&[]), target(&[("4g.40gb", 1)])).recorded(record);
    let mut case = case.answer(0, failed());
    assert_eq!(case.decided(), "Failed/DriverError holds GPU again at 10");
    assert!(!case.decide().unwrap().is_restored, "the other GPUs do not wait for it");
    assert_eq!(
        case.message(),
        "create 2g.20gb@4: insufficient resources; the GPU offers nothing until it has its instances again"
    );
    case.now = at(110);
    assert_eq!(case.decided(), "Failed/DriverError holds GPU Restore [4g.40gb@0]");
    // Another layout is the way out.
    case.record.as_mut().unwrap().restore_failure = begun(Some((3, 0))).failure;
    case.target = Some(target(&[("1g.10gb", 1)]));
    assert_eq!(case.decided(), "Waiting Check [1g.10gb@6]");
    // Its own failures count anew.
    let case = case.answer(11, AttemptResult::Clear);
    assert_eq!(case.decide().unwrap().progress.attempts, 0);
}

#[test]
fn instance_without_or_with_several_compute_instances_is_made_whole() {
    let mut gpu = divided(&["1g.10gb@6", "2g.20gb@4"]);
    let instances = &mut gpu.mig_state.as_mut().unwrap().instances;
    instances[0].compute.clear();
    gpu.mig_devices.remove(0);
    let case = Case::new(gpu.clone(), target(&[("1g.10gb", 1), ("2g.20gb", 1)]));
    assert_eq!(case.decided(), "Waiting Check [2g.20gb@4 1g.10gb@6]");
    assert_eq!(case.decide().unwrap().progress.observed, "2g.20gb:1");
    let instances = &mut gpu.mig_state.as_mut().unwrap().instances;
    let mut other = instances[1].compute[0].clone();
    other.uuid = Some("MIG-other".to_owned());
    instances[1].compute.push(other);
    instances[1]
        .compute
        .iter_mut()
        .for_each(|compute| compute.fills = false);
    let case = Case::new(gpu, target(&[("1g.10gb", 1), ("2g.20gb", 1)]));
    let case = case.held(&[("other", "ml/a")]);
    assert_eq!(case.decided(), "Waiting holds 2g.20gb@4 other");
}

#[test]
fn texts_are_bounded() {
    assert_eq!(bounded("äbc".to_owned(), 2), "äb");
    assert_eq!(bounded("äbc".to_owned(), 3), "äbc");
    let pods: BTreeSet<String> = (0..7).map(|number| format!("ml/p{number}")).collect();
    assert_eq!(listed(&pods), "ml/p0, ml/p1, ml/p2, ml/p3, ml/p4 and 2 more");
}
