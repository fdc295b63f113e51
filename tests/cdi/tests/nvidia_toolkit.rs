//! NVIDIA's container runtime on the containers that gpunode's answers make: by the variable, by mounts, by CDI, and by several of
//! them at once.

use anyhow::Result;
use gpunode_cdi_tests::{Bundle, CdiLibrary, RuntimeMode, ToolkitConfig, read_cdi_files};
use serde_json::{Value, json};
use std::fs;

/// Value of the variable where devices are in mounts.
const IN_MOUNTS: &str = "NVIDIA_VISIBLE_DEVICES=/var/run/nvidia-container-devices";
const VOID: &str = "NVIDIA_VISIBLE_DEVICES=void";

/// The OCI spec of a container with these variables.
fn container(variables: &[&str]) -> Value {
    json!({
        "ociVersion": "1.0.2",
        "process": {
            "user": {"uid": 0, "gid": 0},
            "args": ["sleep"],
            "cwd": "/",
            "env": variables,
            "capabilities": {"bounding": ["CAP_CHOWN"]},
        },
        "root": {"path": "rootfs"},
    })
}

fn with_mounted(mut container: Value, device: &str) -> Value {
    let destination = format!("/var/run/nvidia-container-devices/{device}");
    container["mounts"] = json!([{"destination": destination, "type": "bind", "source": "/dev/null"}]);
    container
}

fn privileged(mut container: Value) -> Value {
    container["process"]["capabilities"]["bounding"] = json!(["CAP_SYS_ADMIN"]);
    container
}

/// Arguments of `nvidia-container-cli` that say which devices and parts of the driver a container gets.
fn decision(container: &Value, config: &ToolkitConfig) -> Result<Option<Vec<String>>> {
    const FIELDS: [&str; 5] = [
        "--device=",
        "--mig-config=",
        "--mig-monitor=",
        "--imex-channel=",
        "--require=",
    ];
    const PARTS: [&str; 7] = [
        "--compute",
        "--compat32",
        "--graphics",
        "--utility",
        "--video",
        "--display",
        "--ngx",
    ];
    let folder = tempfile::tempdir()?;
    let arguments = Bundle::write(folder.path(), container)?.container_cli_arguments(config)?;
    let is_told = |argument: &String| {
        FIELDS.iter().any(|field| argument.starts_with(field)) || PARTS.contains(&argument.as_str())
    };
    Ok(arguments.map(|arguments| arguments.into_iter().filter(is_told).collect()))
}

struct LegacyCase {
    what: &'static str,
    container: Value,
    config: ToolkitConfig,
    /// The decision; none if the container is left as it is.
    decision: Option<&'static [&'static str]>,
}

#[test]
#[ignore = "needs Go: make test"]
fn legacy_mode_decides_field_by_field_as_answers_of_allocate_expect() -> Result<()> {
    let legacy = || ToolkitConfig::new(RuntimeMode::Legacy);
    let strict = || ToolkitConfig {
        accepts_variable: false,
        ..legacy()
    };
    let with_mounts = || ToolkitConfig {
        accepts_mounts: true,
        ..legacy()
    };
    let one = || container(&["NVIDIA_VISIBLE_DEVICES=GPU-1"]);
    let case = |what, container, config, decision| LegacyCase {
        what,
        container,
        config,
        decision,
    };
    let cases = [
        case(
            "Envvar: the GPU of the answer",
            one(),
            legacy(),
            Some(&["--device=GPU-1", "--compute", "--utility"][..]),
        ),
        case(
            "Envvar: several GPUs",
            container(&["NVIDIA_VISIBLE_DEVICES=GPU-1,GPU-2"]),
            legacy(),
            Some(&["--device=GPU-1,GPU-2", "--compute", "--utility"]),
        ),
        case(
            "Envvar: a MIG device",
            container(&["NVIDIA_VISIBLE_DEVICES=MIG-1"]),
            legacy(),
            Some(&["--device=MIG-1", "--compute", "--utility"]),
        ),
        case(
            "Envvar: an IMEX channel",
            container(&["NVIDIA_VISIBLE_DEVICES=GPU-1", "NVIDIA_IMEX_CHANNELS=0"]),
            legacy(),
            Some(&["--device=GPU-1", "--imex-channel=0", "--compute", "--utility"]),
        ),
        case(
            "Envvar: the parts of the driver that the image wants",
            container(&[
                "NVIDIA_VISIBLE_DEVICES=GPU-1",
                "NVIDIA_DRIVER_CAPABILITIES=compute,graphics",
            ]),
            legacy(),
            Some(&["--device=GPU-1", "--compute", "--graphics"]),
        ),
        case(
            "Envvar: the requirement of the image",
            container(&["NVIDIA_VISIBLE_DEVICES=GPU-1", "NVIDIA_REQUIRE_CUDA=cuda>=99"]),
            legacy(),
            Some(&["--device=GPU-1", "--compute", "--utility", "--require=cuda>=99"]),
        ),
        case(
            "Envvar where the variable counts in privileged containers alone: no GPU",
            one(),
            strict(),
            None,
        ),
        case(
            "the same, privileged",
            privileged(one()),
            strict(),
            Some(&["--device=GPU-1", "--compute", "--utility"]),
        ),
        case(
            "CDI and Envvar, as containerd has applied the CDI file: nothing is left to do",
            container(&[VOID]),
            legacy(),
            None,
        ),
        case(
            "CDI and Envvar: other variables of the image change nothing",
            container(&[
                VOID,
                "NVIDIA_DRIVER_CAPABILITIES=all",
                "NVIDIA_REQUIRE_CUDA=cuda>=99",
                "NVIDIA_IMEX_CHANNELS=0",
                "CUDA_VERSION=13.0",
            ]),
            legacy(),
            None,
        ),
        case(
            "VolumeMounts: the GPU of the answer",
            with_mounted(container(&[IN_MOUNTS]), "GPU-1"),
            with_mounts(),
            Some(&["--device=GPU-1", "--compute", "--utility"]),
        ),
        case(
            "VolumeMounts where the variable counts in privileged containers alone",
            with_mounted(container(&[IN_MOUNTS]), "GPU-1"),
            ToolkitConfig {
                accepts_variable: false,
                ..with_mounts()
            },
            Some(&["--device=GPU-1", "--compute", "--utility"]),
        ),
        case(
            "VolumeMounts where the runtime does not read mounts: a GPU that nobody has, so that the container fails",
            with_mounted(container(&[IN_MOUNTS]), "GPU-1"),
            legacy(),
            Some(&["--device=/var/run/nvidia-container-devices", "--compute", "--utility"]),
        ),
        case(
            "VolumeMounts beside CDI, which gpunode refuses: the GPU is added twice",
            with_mounted(container(&[VOID]), "GPU-1"),
            with_mounts(),
            Some(&["--device=GPU-1", "--compute", "--utility"]),
        ),
        case(
            "a pod that asks for no GPU, with an image that wants all: it gets them",
            container(&["NVIDIA_VISIBLE_DEVICES=all"]),
            legacy(),
            Some(&["--device=all", "--compute", "--utility"]),
        ),
        case(
            "the same where the variable counts in privileged containers alone",
            container(&["NVIDIA_VISIBLE_DEVICES=all"]),
            strict(),
            None,
        ),
        case("a pod that asks for no GPU", container(&["A=1"]), legacy(), None),
    ];
    let mut wrong = Vec::new();
    for case in cases {
        let found = decision(&case.container, &case.config)?.map(|mut fields| {
            fields.sort();
            fields
        });
        let expected = case.decision.map(|fields| {
            let mut fields: Vec<String> = fields.iter().map(|field| (*field).to_owned()).collect();
            fields.sort();
            fields
        });
        if found != expected {
            wrong.push(format!("{}: expected {expected:?}, found {found:?}", case.what));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    Ok(())
}

#[test]
#[ignore = "needs Go: make test"]
fn a_container_with_a_cdi_device_is_left_as_it_is_in_every_mode() -> Result<()> {
    let before = container(&["A=1", VOID]);
    for mode in RuntimeMode::ALL {
        let folder = tempfile::tempdir()?;
        let mut after = Bundle::write(folder.path(), &before)?.created(&ToolkitConfig::new(mode))?;
        if mode == RuntimeMode::Legacy {
            // This hook then leaves the container as it is: see the test of the legacy mode.
            let hooks = after["hooks"]["prestart"].as_array().map_or(0, Vec::len);
            assert_eq!(hooks, 1, "{after}");
            after.as_object_mut().unwrap().remove("hooks");
        }
        assert_eq!(after, before, "{mode:?}");
    }
    Ok(())
}

/// A CDI file with one device, like gpunode's, of device nodes that every machine has.
fn cdi_file() -> Value {
    let hook = |name: &str| json!({"hookName": "createContainer", "path": "/usr/bin/nvidia-cdi-hook", "args": ["nvidia-cdi-hook", name]});
    let node = json!({"path": "/dev/nvidia0", "hostPath": "/dev/null"});
    let mount = json!({"hostPath": "/etc/hostname", "containerPath": "/usr/lib/libcuda.so.1", "options": ["ro"]});
    json!({
        "cdiVersion": "0.5.0",
        "kind": "gpunode.dev/gpu",
        "devices": [{"name": "GPU-1", "containerEdits": {"deviceNodes": [node]}}],
        "containerEdits": {
            "env": [VOID],
            "mounts": [mount],
            "hooks": [hook("update-ldcache"), hook("enable-cuda-compat")],
        },
    })
}

/// containerd takes the annotation for a request, and so does NVIDIA's runtime after it.
#[test]
#[ignore = "needs Go: make test"]
fn an_annotation_that_both_runtimes_read_adds_nothing_twice_but_hooks() -> Result<()> {
    const DEVICE: &str = "gpunode.dev/gpu=GPU-1";
    let folder = tempfile::tempdir()?;
    let cdi_folder = folder.path().join("cdi");
    fs::create_dir(&cdi_folder)?;
    fs::write(cdi_folder.join("gpunode.dev-gpu.json"), cdi_file().to_string())?;
    let mut before = container(&["NVIDIA_VISIBLE_DEVICES=GPU-1"]);
    before["annotations"] = json!({"cdi.k8s.io/gpunode_GPU-1": DEVICE});
    let by_containerd = read_cdi_files(CdiLibrary::Current, &cdi_folder, &[DEVICE], &before)?.spec;
    let config = ToolkitConfig {
        cdi_folder,
        ..ToolkitConfig::new(RuntimeMode::Auto)
    };
    let after = Bundle::write(&folder.path().join("bundle"), &by_containerd)?.created(&config)?;
    for part in ["/linux/devices", "/mounts"] {
        assert_eq!(after.pointer(part), by_containerd.pointer(part), "{part}");
    }
    let visible = |spec: &Value| spec["process"]["env"].as_array().and_then(|env| env.last().cloned());
    assert_eq!(
        (visible(&after), visible(&by_containerd)),
        (Some(json!(VOID)), Some(json!(VOID)))
    );
    let hooks = |spec: &Value| spec["hooks"]["createContainer"].as_array().map_or(0, Vec::len);
    assert_eq!((hooks(&by_containerd), hooks(&after)), (2, 4), "hooks can run twice");
    Ok(())
}

/// In its mode `cdi`, NVIDIA's runtime takes the variable for a device of NVIDIA's own CDI file.
#[test]
#[ignore = "needs Go: make test"]
fn the_variable_alone_needs_nvidias_own_file_in_mode_cdi() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let cdi_folder = folder.path().join("cdi");
    fs::create_dir(&cdi_folder)?;
    fs::write(cdi_folder.join("gpunode.dev-gpu.json"), cdi_file().to_string())?;
    let config = ToolkitConfig {
        cdi_folder: cdi_folder.clone(),
        ..ToolkitConfig::new(RuntimeMode::Cdi)
    };
    let by_variable = container(&["NVIDIA_VISIBLE_DEVICES=GPU-1"]);
    let bundle = Bundle::write(&folder.path().join("without"), &by_variable)?;
    assert!(
        bundle.created(&config).is_err(),
        "nobody describes nvidia.com/gpu=GPU-1"
    );

    let mut nvidias = cdi_file();
    nvidias["kind"] = json!("nvidia.com/gpu");
    fs::write(cdi_folder.join("nvidia.json"), nvidias.to_string())?;
    let after = Bundle::write(&folder.path().join("with"), &by_variable)?.created(&config)?;
    assert_eq!(after["linux"]["devices"][0]["path"], "/dev/nvidia0");
    Ok(())
}
