//! Layouts of nodes.

use super::*;
use crate::cli::{Cli, PluginCommand};
use clap::Parser;
use gpunode_config::mig_parted_layouts;
use serde_json::{Value, json};

fn gpu(index: u32, product: &str, mode: &Value, profiles: &[&str]) -> Value {
    let devices = profiles.iter().zip(1..).map(|(profile, instance)| {
        json!({"uuid": format!("MIG-{index}-{instance}"), "profile": profile, "gpuInstance": instance, "computeInstance": 0,
            "memoryMiB": 1})
    });
    json!({"index": index, "uuid": format!("GPU-{index}"), "product": product, "memoryMiB": 81920, "migMode": mode,
        "migDevices": devices.collect::<Vec<_>>()})
}

/// Returns the export of a node, below its warnings.
fn export(gpus: &[Value], output: &str) -> anyhow::Result<String> {
    let gpu_node = serde_json::from_value(json!({"apiVersion": "gpunode.dev/v1alpha1", "kind": "GpuNode",
        "metadata": {"name": "n"}, "spec": {}, "status": {"gpus": gpus}}))?;
    let words = ["kubectl-gpunode", "export", "mig", "n", "-o", output];
    let PluginCommand::Export(ExportArgs {
        subject: ExportSubject::Mig(args),
    }) = Cli::try_parse_from(words)?.command
    else {
        panic!("{words:?}")
    };
    let (text, warnings) = exported(&gpu_node, &args)?;
    let warnings = warnings.iter().map(|warning| format!("! {warning}"));
    Ok(warnings.chain([text]).collect::<Vec<_>>().join("\n"))
}

fn node() -> Vec<Value> {
    let (on, off) = (json!("Enabled"), json!("Disabled"));
    vec![
        gpu(0, "NVIDIA-A100-SXM4-80GB", &on, &["4g.40gb", "1g.10gb", "1g.10gb"]),
        gpu(1, "NVIDIA-A100-SXM4-80GB", &on, &["1g.10gb", "1g.10gb", "4g.40gb"]),
        gpu(2, "NVIDIA-A30", &off, &[]),
    ]
}

#[test]
fn equal_gpus_are_one_group_by_product_where_that_tells_them_apart() {
    insta::assert_snapshot!(export(&node(), "layout").expect("a layout"), @r"
    mig:
      strategy: Mixed
      layout:
      - devices:
          products:
          - NVIDIA-A100-SXM4-80GB
        instances:
          1g.10gb: 2
          4g.40gb: 1
      - devices:
          products:
          - NVIDIA-A30
        disabled: true
    ");
    let mut other = node();
    other[1] = gpu(1, "NVIDIA-A100-SXM4-80GB", &json!("Enabled"), &[]);
    insta::assert_snapshot!(export(&other, "layout").expect("a layout"), @r"
    mig:
      strategy: Mixed
      layout:
      - devices:
          indices:
          - 0
        instances:
          1g.10gb: 2
          4g.40gb: 1
      - devices:
          indices:
          - 1
        instances: {}
      - devices:
          indices:
          - 2
        disabled: true
    ");
}

#[test]
fn a_node_of_equal_gpus_is_one_group_without_a_selector() {
    let text = export(&node()[..2], "layout").expect("a layout");
    assert!(text.contains("layout:\n  - instances:\n"), "{text}");
    assert!(gpunode_config::load(&text).is_ok(), "{text}");
    let off = export(&node()[2..], "layout").expect("a layout");
    assert_eq!(off, "mig:\n  strategy: None\n  layout:\n  - disabled: true\n");
}

#[test]
fn a_file_of_mig_parted_gives_the_same_layout_back() {
    let text = export(&node(), "mig-parted").expect("a file");
    insta::assert_snapshot!(text, @r"
    version: v1
    mig-configs:
      current:
      - devices:
        - 2
        mig-enabled: false
        mig-devices: {}
      - devices:
        - 0
        - 1
        mig-enabled: true
        mig-devices:
          1g.10gb: 2
          4g.40gb: 1
    ");
    let gpus: Vec<gpunode_crds::GpuDevice> = serde_json::from_value(Value::Array(node())).expect("GPUs");
    let groups = node_layout(&gpus, GroupSelection::Indices).groups;
    assert_eq!(mig_parted_layouts(&text).expect("a file")[CURRENT], groups);
    let whole = export(&node()[..2], "mig-parted").expect("a file");
    assert!(whole.contains("- devices: all\n"), "{whole}");
}

#[test]
fn what_a_layout_cannot_say_is_a_warning() {
    let mut gpus = node();
    gpus[0] = gpu(0, "NVIDIA-A100-SXM4-80GB", &json!("Enabled"), &["1c.3g.40gb"]);
    gpus[2]["missingSince"] = json!("2026-01-02T03:04:05Z");
    let text = export(&gpus[..], "layout").expect("a layout");
    let warnings: Vec<&str> = text.lines().take_while(|line| line.starts_with('!')).collect();
    assert_eq!(
        warnings,
        [
            "! missing, so not in the layout: GPU 2",
            "! a layout has only whole GPU instances, and these are compute instances on part of one: 1c.3g.40gb on GPU 0"
        ]
    );
    assert!(text.contains("3g.40gb: 1"), "{text}");
    let none = export(&[gpu(0, "Tesla-V100-SXM2-32GB", &json!(null), &[])], "layout");
    assert_eq!(
        none.expect_err("no MIG").to_string(),
        "export MIG of node n: none of its GPUs has MIG"
    );
}
