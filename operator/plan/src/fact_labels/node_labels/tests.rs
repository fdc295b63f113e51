use super::*;
use gpunode_crds::{Agent, GpuNode, GpuNodeSpec, Reason, Vgpu};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use serde_json::json;

fn gpu(index: u32, product: &str) -> GpuDevice {
    GpuDevice {
        index,
        uuid: format!("GPU-{index}"),
        product: product.to_owned(),
        memory_mib: 15360,
        mode: Some(GpuMode::Compute),
        compute_capability: Some("7.5".to_owned()),
        ..GpuDevice::default()
    }
}

fn of(gpus: Vec<GpuDevice>) -> GpuNodeStatus {
    GpuNodeStatus {
        gpus,
        ..GpuNodeStatus::default()
    }
}

fn reported_labels(gpu_node: &GpuNode, owned: &BTreeMap<String, String>) -> NodeFactLabels {
    gpu_labels(Some(&GpuNodeFacts::of(gpu_node.clone())), owned)
}

fn value(status: &GpuNodeStatus, key: &str) -> Option<String> {
    labels_of(status).remove(key)
}

#[test]
fn a_node_without_gpus_has_no_labels_and_one_that_says_nothing_else_has_few() {
    assert_eq!(labels_of(&GpuNodeStatus::default()), BTreeMap::new());
    let bare = labels_of(&of(vec![GpuDevice::default()]));
    assert_eq!(bare["nvidia.com/gpu.machine"], "unknown");
    assert_eq!(bare["nvidia.com/gpu.mode"], "unknown");
    for absent in [
        "gpu.memory",
        "gpu.family",
        "gpu.clique",
        "mig.strategy",
        "cuda.driver.major",
        "gfd.timestamp",
    ] {
        assert!(!bare.contains_key(&format!("nvidia.com/{absent}")), "{absent}");
    }
}

#[test]
fn versions_of_two_parts_have_an_empty_revision_and_others_no_label() {
    let with = |driver: &str| GpuNodeStatus {
        driver_version: Some(driver.to_owned()),
        ..of(vec![gpu(0, "a")])
    };
    assert_eq!(
        value(&with("550.54"), "nvidia.com/cuda.driver.rev").as_deref(),
        Some("")
    );
    assert_eq!(
        value(&with("550.54"), "nvidia.com/cuda.driver-version.full").as_deref(),
        Some("550.54")
    );
    for odd in ["550", "550.54.15.1", "550.beta", ""] {
        assert_eq!(value(&with(odd), "nvidia.com/cuda.driver.major"), None, "{odd}");
    }
}

#[test]
fn the_mode_is_known_where_all_gpus_have_the_same() {
    let graphics = |index| GpuDevice {
        mode: Some(GpuMode::Graphics),
        ..gpu(index, "a")
    };
    let mode = |gpus| value(&of(gpus), "nvidia.com/gpu.mode").unwrap();
    assert_eq!(mode(vec![graphics(0), graphics(1)]), "graphics");
    assert_eq!(mode(vec![graphics(0), gpu(1, "a")]), "unknown");
    assert_eq!(
        mode(vec![
            gpu(0, "a"),
            GpuDevice {
                mode: None,
                ..gpu(1, "a")
            }
        ]),
        "unknown"
    );
}

#[test]
fn the_clique_is_told_where_there_is_one_only() {
    let member = |index, clique_id| {
        let fabric = Some(Fabric {
            cluster_uuid: "u".to_owned(),
            clique_id,
        });
        GpuDevice {
            fabric,
            ..gpu(index, "a")
        }
    };
    let clique = |gpus| value(&of(gpus), "nvidia.com/gpu.clique");
    assert_eq!(clique(vec![member(0, 7), member(1, 7)]).as_deref(), Some("u.7"));
    assert_eq!(
        clique(vec![member(0, 7), gpu(1, "a")]).as_deref(),
        Some("u.7"),
        "the other is in none"
    );
    assert_eq!(clique(vec![member(0, 7), member(1, 8)]), None);
}

#[test]
fn a_virtual_gpu_tells_the_hosts_driver() {
    let vgpu = Vgpu {
        host_driver_version: Some("550.54.16".to_owned()),
        host_driver_branch: None,
    };
    let status = GpuNodeStatus {
        vgpu: Some(vgpu),
        ..of(vec![gpu(0, "a")])
    };
    assert_eq!(value(&status, "nvidia.com/vgpu.present").as_deref(), Some("true"));
    assert_eq!(
        value(&status, "nvidia.com/vgpu.host-driver-version").as_deref(),
        Some("550.54.16")
    );
    assert_eq!(value(&status, "nvidia.com/vgpu.host-driver-branch"), None);
}

#[test]
fn families_are_those_of_gpu_feature_discovery() {
    let family = |capability: &str| {
        let compute_capability = Some(capability.to_owned());
        value(
            &of(vec![GpuDevice {
                compute_capability,
                ..gpu(0, "a")
            }]),
            "nvidia.com/gpu.family",
        )
    };
    for (capability, expected) in [
        ("1.3", "tesla"),
        ("2.0", "fermi"),
        ("3.5", "kepler"),
        ("5.2", "maxwell"),
        ("6.1", "pascal"),
        ("7.2", "volta"),
        ("8.7", "ampere"),
        ("12.0", "blackwell"),
        ("13.0", "rubin"),
        ("4.0", "undefined"),
    ] {
        assert_eq!(family(capability).as_deref(), Some(expected), "{capability}");
    }
    assert_eq!(family("0.0"), None);
}

#[test]
fn a_gpu_that_is_missing_counts_until_it_is_given_up() {
    let status = |missing_since: Option<&str>| {
        let missing_since = missing_since.map(|time| serde_json::from_value(json!(time)).unwrap());
        of(vec![
            GpuDevice {
                missing_since,
                ..gpu(0, "a")
            },
            gpu(1, "a"),
        ])
    };
    assert_eq!(
        labels_of(&status(Some("2026-01-01T00:00:00Z"))),
        labels_of(&status(None))
    );
}

#[test]
fn which_product_speaks_does_not_depend_on_the_order() {
    let mut gpus = vec![gpu(0, "b"), gpu(1, "a"), gpu(2, "a"), gpu(3, "b")];
    assert_eq!(value(&of(gpus.clone()), "nvidia.com/gpu.product").as_deref(), Some("b"));
    gpus.remove(3);
    assert_eq!(value(&of(gpus.clone()), "nvidia.com/gpu.product").as_deref(), Some("a"));
    assert_eq!(value(&of(gpus), "nvidia.com/gpu.count").as_deref(), Some("2"));
}

#[test]
fn long_names_are_cut_where_a_label_ends() {
    let long = format!("NVIDIA-{}-tail", "x".repeat(50));
    let status = of(vec![gpu(0, &long), gpu(1, &format!("{long}s"))]);
    let counts: Vec<_> = labels_of(&status)
        .into_iter()
        .filter(|(key, _)| key.contains("/gpus."))
        .collect();
    assert_eq!(
        counts,
        [(format!("gpunode.dev/gpus.NVIDIA-{}", "x".repeat(50)), "2".to_owned())]
    );
    let divided = GpuDevice {
        mig_mode: Some(MigMode::Enabled),
        ..gpu(0, &long)
    };
    let invalid = GpuNodeStatus {
        mig_strategy: Some(MigStrategy::Single),
        ..of(vec![divided])
    };
    let product = value(&invalid, "nvidia.com/gpu.product").unwrap();
    assert!(product.len() <= 63 && product.ends_with("x-MIG-INVALID"), "{product}");
}

#[test]
fn labels_stay_until_an_agent_that_starts_or_awaits_its_driver_knows_what_is_shared() {
    let mut gpu_node = GpuNode::new("n", GpuNodeSpec::default());
    let condition = |reason: Reason| Condition {
        type_: "DevicesOffered".to_owned(),
        status: "False".to_owned(),
        reason: reason.as_str().to_owned(),
        message: String::new(),
        last_transition_time: serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap(),
        observed_generation: None,
    };
    let owned = |pairs: &[(&str, &str)]| pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
    let owned: BTreeMap<String, String> = owned(&[("accelerator", "t4"), ("nvidia.com/gpu.replicas", "4")]);
    let kept = BTreeMap::from([("nvidia.com/gpu.replicas".to_owned(), "4".to_owned())]);
    for reason in [Reason::HoldersUnknown, Reason::DriverNotReady, Reason::Registering] {
        gpu_node.status = Some(GpuNodeStatus {
            conditions: vec![condition(reason)],
            ..of(vec![gpu(0, "a")])
        });
        assert_eq!(reported_labels(&gpu_node, &owned).labels, kept, "{reason:?}");
    }
    gpu_node.status = Some(GpuNodeStatus {
        agent: Some(Agent::default()),
        conditions: vec![condition(Reason::Registering)],
        ..of(vec![])
    });
    assert_eq!(
        reported_labels(&gpu_node, &owned).labels,
        BTreeMap::new(),
        "no GPU is left"
    );
    gpu_node.status = Some(of(vec![gpu(0, "a")]));
    assert_eq!(
        reported_labels(&gpu_node, &owned).labels["nvidia.com/gpu.replicas"],
        "1"
    );
    assert_eq!(gpu_labels(None, &owned).labels, kept);
}

#[test]
fn labels_stay_while_no_gpu_answers() {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
    let missing = GpuDevice {
        missing_since: Some(Time(jiff::Timestamp::UNIX_EPOCH)),
        ..gpu(0, "Tesla-T4")
    };
    let mut gpu_node = GpuNode::new("n", GpuNodeSpec::default());
    gpu_node.status = Some(of(vec![missing.clone()]));
    let owned = BTreeMap::from([("nvidia.com/gpu.product".to_owned(), "Tesla-T4-SHARED".to_owned())]);
    assert_eq!(reported_labels(&gpu_node, &owned).labels, owned);
    gpu_node.status = Some(of(vec![missing, gpu(1, "Tesla-T4")]));
    assert_eq!(
        reported_labels(&gpu_node, &owned).labels["nvidia.com/gpu.product"],
        "Tesla-T4"
    );
}

proptest::proptest! {
    #[test]
    fn every_label_is_valid_whatever_the_agent_reports(
        product in "\\PC{0,80}", machine in "\\PC{0,80}", profile in "\\PC{0,80}", cluster in "[-a-z/]{0,40}", driver in "[0-9./-]{0,30}",
    ) {
        let mut reported = gpu(0, &product);
        reported.fabric = Some(Fabric { cluster_uuid: cluster, clique_id: 7 });
        reported.mig_devices = vec![gpunode_crds::MigDevice { profile, ..gpunode_crds::MigDevice::default() }];
        let mut gpu_node = GpuNode::new("n", GpuNodeSpec::default());
        gpu_node.status = Some(GpuNodeStatus {
            machine: Some(machine),
            driver_version: Some(driver),
            mig_strategy: Some(MigStrategy::Mixed),
            ..of(vec![reported, gpu(1, "Tesla-T4")])
        });
        for (key, value) in reported_labels(&gpu_node, &BTreeMap::new()).labels {
            proptest::prop_assert!(is_qualified_name(&key) && is_label_value(&value), "{}={}", key, value);
        }
    }
}

#[test]
fn facts_that_do_not_fit_are_written_in_label_form_and_named() {
    let mut gpu_node = GpuNode::new("n", GpuNodeSpec::default());
    gpu_node.status = Some(GpuNodeStatus {
        machine: Some("-bad-".to_owned()),
        ..of(vec![gpu(0, "a/b/c"), gpu(1, "///")])
    });
    let NodeFactLabels { labels, unfit } = reported_labels(&gpu_node, &BTreeMap::new());
    assert_eq!(labels["nvidia.com/gpu.machine"], "bad");
    assert_eq!(
        (
            labels["nvidia.com/gpu.product"].as_str(),
            labels["gpunode.dev/gpus.abc"].as_str()
        ),
        ("abc", "1")
    );
    assert_eq!(
        unfit,
        [
            "machine is \"-bad-\", written as \"bad\"",
            "gpus[0].product is \"a/b/c\", written as \"abc\"",
            "gpus[1].product is \"///\", left out",
        ]
    );
}
