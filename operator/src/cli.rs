//! Command line arguments.

use clap::Parser;
use gpunode_config::{CompanionRootList, DriverRootList, HostPath, HostPathError};
use jiff::SignedDuration;
use std::{net::SocketAddr, time::Duration};

/// Labels, taints and configures GPU nodes as `GpuNodePolicy` objects say.
#[derive(Debug, Parser)]
#[command(version)]
pub struct OperatorArgs {
    /// Image of the agent, unless a policy names one.
    #[arg(long, env = "AGENT_IMAGE")]
    pub agent_image: String,

    /// Registries and repositories, separated by commas, whose images policies may use in `spec.image`. If empty: the
    /// repository of the agent's image.
    #[arg(long, env = "AGENT_IMAGES", value_delimiter = ',')]
    pub agent_images: Vec<String>,

    /// Folders of the nodes below which agents look for the NVIDIA driver, separated by commas, in this order; at most 16. A change
    /// of this or of the next two options replaces the pods of all agents, as a new image does.
    #[arg(long, env = "DRIVER_ROOTS", default_value_t)]
    pub driver_roots: DriverRootList,

    /// Folder of the nodes that has `dev` with the device nodes of the GPUs. Agents search nodes that it lacks below the driver's root
    /// and below /.
    #[arg(long, env = "DEV_ROOT", default_value_t = HostPath::root(), value_parser = dev_root)]
    pub dev_root: HostPath,

    /// The kubelets' --root-dir, with the folders `pod-resources` and `pods`.
    #[arg(long, env = "KUBELET_ROOT", default_value_t = HostPath::kubelet_root(), value_parser = kubelet_root)]
    pub kubelet_root: HostPath,

    /// Folders of the nodes whose files policies may hand out as companions, separated by commas, such as /dev/infiniband, or starts of
    /// names, such as /dev/xclmgmt*. Who may write a policy can give pods every file in them. Default: none. A change of this
    /// replaces the pods of all agents too.
    #[arg(long, env = "COMPANION_ROOTS", default_value_t)]
    pub companion_roots: CompanionRootList,

    /// Namespace of the agents and of the operator's Lease.
    #[arg(long, env = "POD_NAMESPACE", default_value = "gpunode-system")]
    pub namespace: String,

    /// Name of this pod, the holder identity in the Lease.
    #[arg(long, env = "POD_NAME")]
    pub pod_name: String,

    /// Adds GPU fact labels to nodes, with the keys of GPU feature discovery. False removes those that gpunode wrote.
    #[arg(long, env = "GPU_LABELS", default_value_t = true, action = clap::ArgAction::Set)]
    pub gpu_labels: bool,

    /// Writes, evictions and events per second, with the reads of single objects and pods that belong to them. Lists and
    /// watches of the caches and requests for the Lease do not count. 0: no limit, since the API server itself limits its
    /// clients by priority and fairness.
    #[arg(long, env = "CLIENT_QPS", default_value_t = 0)]
    pub client_qps: u32,

    /// Number of these requests that may go at once after a pause, if --client-qps is set. 0: as many as in one second.
    #[arg(long, env = "CLIENT_BURST", default_value_t = 0)]
    pub client_burst: u32,

    /// Time without a renewal of the Lease after which another replica leads, in whole seconds, at most 300s.
    #[arg(long, env = "LEASE_DURATION", default_value = "15s", value_parser = duration)]
    pub lease_duration: Duration,

    /// Time after a renewal of the Lease in which the leader may begin writes; shorter than --lease-duration. The
    /// leader renews the Lease after half of this time.
    #[arg(long, env = "RENEW_DEADLINE", default_value = "10s", value_parser = duration)]
    pub renew_deadline: Duration,

    /// Pause between a standby's reads of the Lease, and between tries of a failed Lease request; shorter than
    /// --renew-deadline / 1.2.
    #[arg(long, env = "RETRY_PERIOD", default_value = "2s", value_parser = duration)]
    pub retry_period: Duration,

    /// Address of /livez, /readyz and /metrics.
    #[arg(long, default_value = "0.0.0.0:8080")]
    pub admin_address: SocketAddr,
}

/// Text of a flag that is no duration.
#[derive(Debug, thiserror::Error)]
#[error("{0:?} is no duration; write a number with its unit, such as 15s or 500ms")]
struct FlagDurationError(String);

/// Reads a duration with its unit.
fn duration(text: &str) -> Result<Duration, FlagDurationError> {
    let duration = text.trim().parse::<SignedDuration>().ok();
    duration
        .and_then(|duration| Duration::try_from(duration).ok())
        .ok_or_else(|| FlagDurationError(text.to_owned()))
}

/// Reads a path; empty text, as of a variable that a chart leaves empty, is the default.
fn dev_root(text: &str) -> Result<HostPath, HostPathError> {
    path_or(text, HostPath::root)
}

fn kubelet_root(text: &str) -> Result<HostPath, HostPathError> {
    path_or(text, HostPath::kubelet_root)
}

fn path_or(text: &str, default: fn() -> HostPath) -> Result<HostPath, HostPathError> {
    if text.trim().is_empty() {
        return Ok(default());
    }
    text.parse()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(arguments: &[&str]) -> Result<OperatorArgs, String> {
        let required = ["gpunode-operator", "--agent-image=a", "--pod-name=b"];
        OperatorArgs::try_parse_from(required.iter().chain(arguments)).map_err(|error| error.to_string())
    }

    #[test]
    fn requests_have_no_limit_unless_it_is_set() {
        let args = parse(&[]).unwrap();
        assert_eq!((args.client_qps, args.client_burst), (0, 0));
        let args = parse(&["--client-qps=50", "--client-burst=100"]).unwrap();
        assert_eq!((args.client_qps, args.client_burst), (50, 100));
        assert!(parse(&["--client-qps=-1"]).is_err());
    }

    #[test]
    fn durations_of_the_lease_have_a_unit() {
        let seconds = Duration::from_secs;
        let args = parse(&[]).unwrap();
        assert_eq!(
            [args.lease_duration, args.renew_deadline, args.retry_period],
            [seconds(15), seconds(10), seconds(2)]
        );
        let args = parse(&["--lease-duration=1m", "--renew-deadline=40s", "--retry-period=1500ms"]).unwrap();
        assert_eq!(
            [args.lease_duration, args.renew_deadline, args.retry_period],
            [seconds(60), seconds(40), Duration::from_millis(1500)]
        );
        for flag in ["--lease-duration=15", "--renew-deadline=", "--retry-period=-2s"] {
            let error = parse(&[flag]).unwrap_err();
            let (name, _) = flag.split_once('=').unwrap();
            assert!(error.contains(name) && error.contains("such as 15s"), "{error}");
        }
    }

    #[test]
    fn folders_of_the_nodes_are_checked_at_the_start() {
        let args = parse(&["--driver-roots=/opt/nvidia/,/", "--kubelet-root=/data/kubelet"]).unwrap();
        assert_eq!(args.driver_roots.to_string(), "/opt/nvidia,/");
        assert_eq!(args.kubelet_root.to_string(), "/data/kubelet");
        assert_eq!(args.dev_root, HostPath::root());
        assert_eq!(args.companion_roots, CompanionRootList::default());
        let args = parse(&["--companion-roots=/dev/infiniband,/dev/xclmgmt*"]).unwrap();
        assert_eq!(args.companion_roots.to_string(), "/dev/infiniband,/dev/xclmgmt*");
        let empty = parse(&["--driver-roots=", "--dev-root=", "--kubelet-root="]).unwrap();
        assert_eq!(
            (empty.driver_roots, empty.dev_root, empty.kubelet_root),
            (DriverRootList::default(), HostPath::root(), HostPath::kubelet_root())
        );
        for flag in [
            "--driver-roots=/a,",
            "--companion-roots=/dev",
            "--dev-root=dev",
            "--kubelet-root=/data/../kubelet",
        ] {
            let error = parse(&[flag]).unwrap_err();
            let (name, _) = flag.split_once('=').unwrap();
            let has_remedy = error.contains("write the") || error.contains("name a folder in it");
            assert!(error.contains(name) && has_remedy, "{error}");
        }
    }
}
