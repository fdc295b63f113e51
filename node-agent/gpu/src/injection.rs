//! Decides if the container runtime of a node gives containers the GPUs that the kubelet allocates to them.
//!
//! Two ways lead into a container. The kubelet passes the names of CDI devices, and the runtime applies their files itself
//! (containerd from 1.7 with `enable_cdi`, from 2.0 by default, in newer versions always: `internal/cri/config/config.go`,
//! `EnableCDI` and `CDISpecDirs`; CRI-O always: `pkg/config/config.go` has no switch). Or NVIDIA's container runtime runs the
//! container and reads the environment variable or the mounts.

use gpunode_config::{AgentConfig, DeviceListStrategy};
use gpunode_crds::{CdiMode, RuntimeStatus, named};

/// Prefix of annotations that runtimes read; NVIDIA's container runtime reads any.
const RUNTIME_ANNOTATION_PREFIX: &str = "cdi.k8s.io/";

/// Maximum number of handlers and folders that a message names.
const MAX_NAMED: usize = 3;

/// Folder of gpunode's CDI file.
const CDI_DIR: &str = "/var/run/cdi";
/// The same folder: `/var/run` is a link to `/run`.
const SAME_CDI_DIR: &str = "/run/cdi";

/// Ways into a container that the configuration of a node uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InjectionWays {
    /// Names of CDI devices.
    pub cdi: bool,
    /// Environment variable or mounts, which NVIDIA's container runtime reads.
    pub nvidia_runtime: bool,
    /// The variable alone leads through NVIDIA's container runtime.
    pub needs_envvar: bool,
}

impl Default for InjectionWays {
    fn default() -> Self {
        Self {
            cdi: true,
            nvidia_runtime: true,
            needs_envvar: true,
        }
    }
}

impl InjectionWays {
    /// Returns the ways of a configuration.
    pub fn of(config: &AgentConfig) -> Self {
        let strategies = config.effective_device_list_strategy();
        let has = |strategy| strategies.contains(&strategy);
        let annotates = has(DeviceListStrategy::CdiAnnotations);
        let runtime_reads = config.cdi_annotation_prefix() == RUNTIME_ANNOTATION_PREFIX;
        let others = has(DeviceListStrategy::VolumeMounts) || (annotates && !runtime_reads);
        Self {
            cdi: has(DeviceListStrategy::CdiCri) || (annotates && runtime_reads),
            nvidia_runtime: has(DeviceListStrategy::Envvar) || others,
            needs_envvar: has(DeviceListStrategy::Envvar) && !others,
        }
    }

    /// Returns true if NVIDIA's container runtime gives unprivileged containers nothing in these ways.
    pub(crate) fn is_refused(self, runtime: &RuntimeStatus) -> bool {
        self.needs_envvar && runtime.accepts_envvar == Some(false) && !runtime.nvidia_handlers.is_empty()
    }
}

/// Result of the judgement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GpuInjection {
    /// The runtime adds the CDI devices that the kubelet names.
    Cdi,
    /// NVIDIA's container runtime runs every container whose pod names no RuntimeClass.
    DefaultHandler(String),
    /// NVIDIA's container runtime is one of several handlers: only pods whose RuntimeClass has one of these get GPUs.
    NamedHandlers(Vec<String>),
    /// No pod gets a GPU.
    Impossible(InjectionObstacle),
    /// The runtime does not tell, for this reason.
    Unknown(String),
}

/// Obstacle between an allocated GPU and its container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InjectionObstacle {
    /// CDI is off, and no handler runs NVIDIA's container runtime.
    CdiDisabled,
    /// The runtime does not look for CDI files where gpunode writes its own, and no handler runs NVIDIA's container runtime.
    CdiDirMissing,
    /// gpunode's CDI file describes no device, and no handler runs NVIDIA's container runtime.
    CdiFileMissing,
    /// NVIDIA's container runtime takes no variable from unprivileged containers, and no other way is open.
    EnvvarRefused,
    /// The configuration uses no CDI, and no handler runs NVIDIA's container runtime.
    NvidiaRuntimeMissing,
}

/// Judges the runtime of a node, as its agent reported it.
pub fn injection(ways: InjectionWays, runtime: Option<&RuntimeStatus>) -> GpuInjection {
    let Some(runtime) = runtime else {
        return GpuInjection::Unknown("the agent has not reported the container runtime".to_owned());
    };
    // Without a file, or with a runtime that does not read it, containers get no name of a CDI device.
    let names_devices = ways.cdi && runtime.cdi_problem.is_none() && reads_our_folder(runtime);
    if names_devices && runtime.cdi == Some(CdiMode::Enabled) {
        return GpuInjection::Cdi;
    }
    let is_refused = ways.is_refused(runtime);
    if ways.nvidia_runtime && !is_refused && !runtime.nvidia_handlers.is_empty() {
        let default = runtime.default_handler.as_ref();
        return match default.filter(|default| runtime.nvidia_handlers.contains(default)) {
            Some(default) => GpuInjection::DefaultHandler(default.clone()),
            None if names_devices && runtime.cdi.is_none() => unknown(runtime),
            None if default.is_none() => unknown_default(runtime),
            None => GpuInjection::NamedHandlers(runtime.nvidia_handlers.clone()),
        };
    }
    let knows_handlers = !ways.nvidia_runtime || !runtime.handlers.is_empty();
    let obstacle = match runtime.cdi {
        _ if !knows_handlers => return unknown(runtime),
        None if names_devices => return unknown(runtime),
        _ if is_refused => InjectionObstacle::EnvvarRefused,
        _ if !ways.cdi => InjectionObstacle::NvidiaRuntimeMissing,
        Some(CdiMode::Disabled) => InjectionObstacle::CdiDisabled,
        _ if !reads_our_folder(runtime) => InjectionObstacle::CdiDirMissing,
        _ if !names_devices => InjectionObstacle::CdiFileMissing,
        None | Some(CdiMode::Enabled) => return unknown(runtime),
    };
    GpuInjection::Impossible(obstacle)
}

impl GpuInjection {
    /// Returns the sentence about a runtime through which no pod gets a GPU; none for any other judgement.
    pub fn refusal(&self, ways: InjectionWays, runtime: &RuntimeStatus) -> Option<String> {
        let Self::Impossible(obstacle) = self else { return None };
        let (message, action) = (obstacle.message(ways, runtime), obstacle.action(ways, runtime));
        Some(format!("{message}; {action}"))
    }
}

impl InjectionObstacle {
    /// Says what is wrong.
    pub(crate) fn message(self, ways: InjectionWays, runtime: &RuntimeStatus) -> String {
        let name = runtime_name(runtime);
        match self {
            Self::CdiDisabled if ways.nvidia_runtime => {
                format!(
                    "CDI is off in {name}, and none of its handlers runs NVIDIA's container runtime: pods get no GPU"
                )
            }
            Self::CdiDisabled => {
                format!(
                    "CDI is off in {name}, and the configuration hands GPUs over through CDI alone: pods get no GPU"
                )
            }
            Self::CdiDirMissing => format!(
                "{name} looks for CDI files in {}, and gpunode writes its own to {CDI_DIR}: pods get no GPU",
                named(&runtime.cdi_spec_dirs, MAX_NAMED)
            ),
            Self::CdiFileMissing => {
                let problem = runtime.cdi_problem.as_deref().unwrap_or_default();
                let other = if ways.nvidia_runtime {
                    format!(", and no handler of {name} runs NVIDIA's container runtime")
                } else {
                    String::new()
                };
                format!("pods get no GPU: gpunode's CDI file describes none{other}: {problem}")
            }
            Self::EnvvarRefused => {
                let other = match &runtime.cdi_problem {
                    _ if !ways.cdi => "the configuration uses no CDI".to_owned(),
                    Some(problem) if runtime.cdi != Some(CdiMode::Disabled) => {
                        format!("gpunode's CDI file describes none ({problem})")
                    }
                    Some(_) | None => format!("CDI does not work in {name}"),
                };
                format!(
                    "NVIDIA's container runtime ignores the variable of unprivileged containers \
                     (accept-nvidia-visible-devices-envvar-when-unprivileged is off), and {other}: pods get no GPU"
                )
            }
            Self::NvidiaRuntimeMissing => format!(
                "the configuration hands GPUs over through NVIDIA's container runtime alone, which no handler of {name} runs: \
                 pods get no GPU"
            ),
        }
    }

    /// Says what to do.
    pub(crate) fn action(self, ways: InjectionWays, runtime: &RuntimeStatus) -> String {
        let is_containerd = runtime.name.as_deref() == Some("containerd");
        let otherwise = match (ways.nvidia_runtime, runtime.nvidia_handlers.is_empty()) {
            (true, _) => "install NVIDIA's container toolkit",
            (false, true) => "add Envvar to `deviceListStrategy` and install NVIDIA's container toolkit",
            (false, false) => "add Envvar to `deviceListStrategy`",
        };
        match self {
            Self::CdiDisabled if is_containerd => format!(
                "set `enable_cdi = true` for the CRI plugin in containerd's configuration and restart containerd, or \
                 {otherwise}"
            ),
            Self::CdiDisabled => format!("switch CDI on in the container runtime and restart it, or {otherwise}"),
            Self::CdiDirMissing => {
                format!("add {CDI_DIR} to `cdi_spec_dirs` in the runtime's configuration and restart it")
            }
            Self::CdiFileMissing => format!("resolve what the message names, or {otherwise}"),
            Self::EnvvarRefused => "make CDI work, with CdiCri in `deviceListStrategy`, or set \
                 `accept-nvidia-visible-devices-as-volume-mounts = true` and use VolumeMounts"
                .to_owned(),
            Self::NvidiaRuntimeMissing => {
                "add CdiCri to `deviceListStrategy`, or install NVIDIA's container toolkit".to_owned()
            }
        }
    }
}

/// Returns the reason why a runtime with CDI fails each container that it is told one of gpunode's CDI devices for; none if it does not.
pub fn unread_cdi_file(ways: InjectionWays, runtime: &RuntimeStatus) -> Option<String> {
    let fails = ways.cdi && runtime.cdi == Some(CdiMode::Enabled) && !reads_our_folder(runtime);
    fails.then(|| {
        let (name, dirs) = (runtime_name(runtime), named(&runtime.cdi_spec_dirs, MAX_NAMED));
        format!("{name} looks for CDI files in {dirs}, and gpunode writes its own to {CDI_DIR}")
    })
}

/// Returns true if a container of this runtime gets only what the CDI file has, as far as the node tells: the runtime applies the file,
/// no handler of it is NVIDIA's, and NVIDIA's toolkit is not configured on the host, which may bring hooks that read the variable
/// (`defaultConfigMode` of its installer for CRI-O is "hook").
pub fn injects_by_cdi_alone(ways: InjectionWays, runtime: &RuntimeStatus) -> bool {
    let applies_names = ways.cdi && runtime.cdi == Some(CdiMode::Enabled) && reads_our_folder(runtime);
    let has_toolkit = !runtime.nvidia_handlers.is_empty() || runtime.accepts_envvar.is_some();
    applies_names && !runtime.handlers.is_empty() && !has_toolkit
}

/// Returns name and version of a runtime, such as `containerd 2.1.4`.
pub(crate) fn runtime_name(runtime: &RuntimeStatus) -> String {
    let name = runtime.name.as_deref().unwrap_or("the container runtime");
    match &runtime.version {
        Some(version) => format!("{name} {version}"),
        None => name.to_owned(),
    }
}

/// Returns true if the runtime reads gpunode's CDI file; a runtime that does not tell its folders has the usual ones.
fn reads_our_folder(runtime: &RuntimeStatus) -> bool {
    let dirs = &runtime.cdi_spec_dirs;
    dirs.is_empty()
        || dirs
            .iter()
            .any(|dir| [CDI_DIR, SAME_CDI_DIR].contains(&dir.trim_end_matches('/')))
}

fn unknown(runtime: &RuntimeStatus) -> GpuInjection {
    let what = if runtime.cdi.is_none() {
        "if CDI is on"
    } else {
        "its handlers"
    };
    let default = || format!("{} does not report {what}", runtime_name(runtime));
    GpuInjection::Unknown(runtime.problem.clone().unwrap_or_else(default))
}

fn unknown_default(runtime: &RuntimeStatus) -> GpuInjection {
    let name = runtime_name(runtime);
    let handlers = named(&runtime.nvidia_handlers, MAX_NAMED);
    let message = format!("{name} does not report its default handler; with handler {handlers} pods get GPUs");
    GpuInjection::Unknown(runtime.problem.clone().unwrap_or(message))
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOTH: InjectionWays = InjectionWays {
        cdi: true,
        nvidia_runtime: true,
        needs_envvar: true,
    };
    const CDI: InjectionWays = InjectionWays {
        cdi: true,
        nvidia_runtime: false,
        needs_envvar: false,
    };
    const NVIDIA: InjectionWays = InjectionWays { cdi: false, ..BOTH };
    const MOUNTS: InjectionWays = InjectionWays {
        needs_envvar: false,
        ..NVIDIA
    };

    fn runtime(cdi: Option<CdiMode>, dirs: &[&str], default: Option<&str>, handlers: &[&str]) -> RuntimeStatus {
        let owned = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
        RuntimeStatus {
            name: Some("containerd".to_owned()),
            version: Some("1.7.27".to_owned()),
            cdi,
            cdi_spec_dirs: owned(dirs),
            default_handler: default.map(str::to_owned),
            handlers: owned(handlers),
            nvidia_handlers: handlers
                .iter()
                .filter(|handler| handler.starts_with("nvidia"))
                .map(|handler| (*handler).to_owned())
                .collect(),
            ..RuntimeStatus::default()
        }
    }

    #[test]
    fn a_gpu_reaches_its_container_by_the_first_way_that_is_open() {
        use InjectionObstacle::{CdiDirMissing, CdiDisabled, CdiFileMissing, EnvvarRefused, NvidiaRuntimeMissing};
        let (on, off) = (Some(CdiMode::Enabled), Some(CdiMode::Disabled));
        let usual = &["/etc/cdi", "/var/run/cdi"][..];
        let plain = &["runc"][..];
        let toolkit = &["nvidia", "runc"][..];
        let named_only = || GpuInjection::NamedHandlers(vec!["nvidia".to_owned()]);
        let default = || GpuInjection::DefaultHandler("nvidia".to_owned());
        let impossible = GpuInjection::Impossible;
        let no_file = |runtime| RuntimeStatus {
            cdi_problem: Some("no libcuda".to_owned()),
            ..runtime
        };
        let refusing = |runtime| RuntimeStatus {
            accepts_envvar: Some(false),
            ..runtime
        };
        for (ways, runtime, expected) in [
            (
                BOTH,
                refusing(runtime(off, usual, Some("nvidia"), toolkit)),
                impossible(EnvvarRefused),
            ),
            (
                NVIDIA,
                refusing(runtime(on, usual, Some("nvidia"), toolkit)),
                impossible(EnvvarRefused),
            ),
            (
                BOTH,
                refusing(runtime(on, usual, Some("nvidia"), toolkit)),
                GpuInjection::Cdi,
            ),
            (
                MOUNTS,
                refusing(runtime(off, usual, Some("nvidia"), toolkit)),
                default(),
            ),
            (BOTH, runtime(on, usual, Some("runc"), plain), GpuInjection::Cdi),
            (
                BOTH,
                runtime(on, &["/run/cdi/"], Some("runc"), plain),
                GpuInjection::Cdi,
            ),
            (BOTH, runtime(on, &[], None, &[]), GpuInjection::Cdi),
            (BOTH, runtime(on, usual, Some("nvidia"), toolkit), GpuInjection::Cdi),
            (BOTH, runtime(off, usual, Some("runc"), plain), impossible(CdiDisabled)),
            (BOTH, runtime(off, usual, Some("runc"), toolkit), named_only()),
            (BOTH, runtime(off, usual, Some("nvidia"), toolkit), default()),
            (
                BOTH,
                runtime(on, &["/etc/cdi"], Some("runc"), plain),
                impossible(CdiDirMissing),
            ),
            (BOTH, runtime(on, &["/etc/cdi"], Some("runc"), toolkit), named_only()),
            (
                BOTH,
                no_file(runtime(on, usual, Some("runc"), plain)),
                impossible(CdiFileMissing),
            ),
            (
                BOTH,
                no_file(runtime(None, &[], Some("runc"), plain)),
                impossible(CdiFileMissing),
            ),
            (BOTH, no_file(runtime(on, usual, Some("runc"), toolkit)), named_only()),
            (BOTH, no_file(runtime(None, &[], Some("runc"), toolkit)), named_only()),
            (BOTH, no_file(runtime(on, usual, Some("nvidia"), toolkit)), default()),
            (
                CDI,
                no_file(runtime(on, usual, Some("nvidia"), toolkit)),
                impossible(CdiFileMissing),
            ),
            (BOTH, runtime(None, &[], Some("nvidia"), toolkit), default()),
            (
                CDI,
                runtime(off, usual, Some("nvidia"), toolkit),
                impossible(CdiDisabled),
            ),
            (CDI, runtime(on, usual, None, &[]), GpuInjection::Cdi),
            (CDI, runtime(off, usual, None, &[]), impossible(CdiDisabled)),
            (
                NVIDIA,
                runtime(on, usual, Some("runc"), plain),
                impossible(NvidiaRuntimeMissing),
            ),
            (NVIDIA, runtime(on, usual, Some("runc"), toolkit), named_only()),
            (NVIDIA, runtime(on, usual, Some("nvidia"), toolkit), default()),
        ] {
            assert_eq!(injection(ways, Some(&runtime)), expected, "{ways:?} {runtime:?}");
        }
    }

    #[test]
    fn a_refused_variable_comes_with_the_reason_why_cdi_is_no_other_way() {
        let message = |ways, cdi, problem: Option<&str>| {
            let runtime = RuntimeStatus {
                accepts_envvar: Some(false),
                cdi_problem: problem.map(str::to_owned),
                ..runtime(Some(cdi), &[], Some("nvidia"), &["nvidia", "runc"])
            };
            let refusal = injection(ways, Some(&runtime)).refusal(ways, &runtime);
            refusal.unwrap()
        };
        let (on, off) = (CdiMode::Enabled, CdiMode::Disabled);
        let no_file = message(BOTH, on, Some("no libcuda"));
        assert!(
            no_file.contains("and gpunode's CDI file describes none (no libcuda): "),
            "{no_file}"
        );
        let is_off = message(BOTH, off, Some("no libcuda"));
        assert!(
            is_off.contains("and CDI does not work in containerd 1.7.27: "),
            "{is_off}"
        );
        let unused = message(NVIDIA, on, None);
        assert!(unused.contains("and the configuration uses no CDI: "), "{unused}");
    }

    #[test]
    fn cdi_is_the_only_way_where_the_runtime_reads_the_file_and_no_handler_is_nvidias() {
        let (on, off) = (Some(CdiMode::Enabled), Some(CdiMode::Disabled));
        let alone = |ways, cdi, dirs: &[&str], handlers: &[&str]| {
            injects_by_cdi_alone(ways, &runtime(cdi, dirs, Some("runc"), handlers))
        };
        assert!(alone(BOTH, on, &[], &["runc"]));
        assert!(alone(CDI, on, &["/run/cdi"], &["runc"]));
        for (ways, cdi, dirs, handlers) in [
            (NVIDIA, on, &[][..], &["runc"][..]),
            (BOTH, off, &[], &["runc"]),
            (BOTH, None, &[], &["runc"]),
            (BOTH, on, &["/etc/cdi"], &["runc"]),
            (BOTH, on, &[], &["nvidia", "runc"]),
            // Nobody has told its handlers.
            (BOTH, on, &[], &[]),
        ] {
            assert!(
                !alone(ways, cdi, dirs, handlers),
                "{ways:?} {cdi:?} {dirs:?} {handlers:?}"
            );
        }
        let with_hooks = RuntimeStatus {
            accepts_envvar: Some(true),
            ..runtime(on, &[], Some("crun"), &["crun", "runc"])
        };
        assert!(!injects_by_cdi_alone(BOTH, &with_hooks));
    }

    #[test]
    fn a_runtime_that_looks_for_cdi_files_elsewhere_does_not_read_the_file() {
        let (on, off) = (Some(CdiMode::Enabled), Some(CdiMode::Disabled));
        let of = |ways, cdi, dirs: &[&str]| unread_cdi_file(ways, &runtime(cdi, dirs, None, &[]));
        assert_eq!(
            of(BOTH, on, &["/etc/cdi"]).as_deref(),
            Some("containerd 1.7.27 looks for CDI files in /etc/cdi, and gpunode writes its own to /var/run/cdi")
        );
        assert_eq!(of(BOTH, on, &["/etc/cdi", "/run/cdi"]), None);
        assert_eq!(of(BOTH, on, &[]), None, "it does not tell its folders");
        assert_eq!(of(BOTH, off, &["/etc/cdi"]), None, "it ignores the names");
        assert_eq!(of(NVIDIA, on, &["/etc/cdi"]), None);
    }

    #[test]
    fn the_ways_are_those_of_the_strategies() {
        use DeviceListStrategy::{CdiAnnotations, CdiCri, Envvar, VolumeMounts};
        let ways = |strategies: &[DeviceListStrategy], prefix: Option<&str>| {
            InjectionWays::of(&AgentConfig {
                device_list_strategy: strategies.to_vec(),
                cdi_annotation_prefix: prefix.map(str::to_owned),
                ..AgentConfig::default()
            })
        };
        assert_eq!(ways(&[], None), BOTH);
        assert_eq!(ways(&[CdiCri], None), CDI);
        assert_eq!(ways(&[CdiAnnotations], None), CDI);
        assert_eq!(ways(&[CdiAnnotations], Some("nvidia.cdi.k8s.io/")), MOUNTS);
        assert_eq!(ways(&[Envvar], None), NVIDIA);
        assert_eq!(ways(&[VolumeMounts], None), MOUNTS);
        assert_eq!(ways(&[VolumeMounts, Envvar], None), MOUNTS);
        assert_eq!(ways(&[CdiCri, Envvar], None), BOTH);
    }

    #[test]
    fn nothing_is_claimed_about_a_runtime_that_does_not_tell() {
        let is_unknown = |ways, runtime: Option<&RuntimeStatus>| matches!(injection(ways, runtime), GpuInjection::Unknown(reason) if !reason.is_empty());
        assert!(is_unknown(BOTH, None));
        assert!(is_unknown(BOTH, Some(&RuntimeStatus::default())));
        // CDI may be on, so that pods without a RuntimeClass may get GPUs.
        assert!(is_unknown(
            BOTH,
            Some(&runtime(None, &[], Some("runc"), &["runc", "nvidia"]))
        ));
        assert!(is_unknown(
            BOTH,
            Some(&runtime(Some(CdiMode::Disabled), &[], None, &[]))
        ));
        assert!(is_unknown(
            NVIDIA,
            Some(&runtime(Some(CdiMode::Enabled), &[], None, &[]))
        ));
        // Its default handler may be NVIDIA's, as CRI-O's with `default_runtime`.
        assert!(is_unknown(
            NVIDIA,
            Some(&runtime(Some(CdiMode::Enabled), &[], None, &["nvidia"]))
        ));
        let told = RuntimeStatus {
            problem: Some("no answer".to_owned()),
            ..RuntimeStatus::default()
        };
        assert_eq!(
            injection(BOTH, Some(&told)),
            GpuInjection::Unknown("no answer".to_owned())
        );
    }

    #[test]
    fn a_refusal_says_what_is_wrong_and_what_to_do() {
        let refused = runtime(Some(CdiMode::Disabled), &[], Some("runc"), &["runc"]);
        assert_eq!(
            injection(BOTH, Some(&refused)).refusal(BOTH, &refused).as_deref(),
            Some(
                "CDI is off in containerd 1.7.27, and none of its handlers runs NVIDIA's container runtime: pods get no GPU; \
                 set `enable_cdi = true` for the CRI plugin in containerd's configuration and restart containerd, or install \
                 NVIDIA's container toolkit"
            )
        );
        assert_eq!(GpuInjection::Cdi.refusal(BOTH, &refused), None);
        let toolkit = runtime(Some(CdiMode::Disabled), &[], Some("nvidia"), &["nvidia"]);
        let by_cdi = |runtime: &RuntimeStatus| injection(CDI, Some(runtime)).refusal(CDI, runtime);
        for (runtime, remedy) in [
            (&toolkit, "or add Envvar to `deviceListStrategy`"),
            (
                &refused,
                "or add Envvar to `deviceListStrategy` and install NVIDIA's container toolkit",
            ),
        ] {
            let refusal = by_cdi(runtime).unwrap();
            assert!(
                refusal.contains("through CDI alone") && refusal.ends_with(remedy),
                "{refusal}"
            );
        }
        let without_file = RuntimeStatus {
            cdi: Some(CdiMode::Enabled),
            cdi_problem: Some("find libcuda.so.1: not found".to_owned()),
            ..refused
        };
        assert_eq!(
            injection(BOTH, Some(&without_file))
                .refusal(BOTH, &without_file)
                .as_deref(),
            Some(
                "pods get no GPU: gpunode's CDI file describes none, and no handler of containerd 1.7.27 runs NVIDIA's \
                 container runtime: find libcuda.so.1: not found; resolve what the message names, or install NVIDIA's \
                 container toolkit"
            )
        );
    }
}
