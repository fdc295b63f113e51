//! Arguments and help. Every subcommand shows examples and exit codes.

use clap::{Args, Parser, Subcommand, ValueEnum};
use std::path::PathBuf;

const VALIDATE_EXIT_CODES: &str = "Exit codes:
  0  every document is valid
  1  a document is invalid, none is of a gpunode kind, a file cannot be read,
     or an argument is wrong";

const STATUS_EXIT_CODES: &str = "Exit codes:
  0  the state is shown, problems included; scripts find problems with -o json
  1  the cluster cannot be read, or an argument is wrong; with --check also if
     gpunode does not run";

const PLAN_EXIT_CODES: &str = "Exit codes:
  0  the change disrupts no running pod and meets no obstacle
  1  a policy is invalid, the cluster or a file cannot be read, or an argument is
     wrong
  2  the change disrupts running pods (a taint or `drain` evicts them, or a device
     that they hold changes or loses its plugin), or it meets an obstacle (a
     conflict, or a node that would fail and stop the rollout)";

const EXPLAIN_EXIT_CODES: &str = "Exit codes:
  0  the node is explained
  1  the node does not exist, the cluster or a file cannot be read, or an argument
     is wrong";

const DOCTOR_EXIT_CODES: &str = "Exit codes:
  0  pods get their GPUs on every examined node, as far as the agents can tell
  1  pods would get no GPU on a node; or no agent reports a GPU on the node, the
     cluster or a file cannot be read, or an argument is wrong";

const TOPO_EXIT_CODES: &str = "Exit codes:
  0  the links are shown, and the answer to --request, even if no GPU can be
     chosen
  1  the node or resource does not exist, the cluster or a file cannot be read, or
     an argument is wrong";

const MIG_EXIT_CODES: &str = "Exit codes:
  0  the layout fits, or the profiles of the board are listed
  1  the layout does not fit, or an argument is wrong";

const IMPORT_EXIT_CODES: &str = "Exit codes:
  0  the policies, or the part of one, are printed
  1  a file cannot be read or has no counterpart, something is ignored with --strict,
     or an argument is wrong";

const EXPORT_EXIT_CODES: &str = "Exit codes:
  0  the layout is printed
  1  the node does not exist or has no GPU with MIG, the cluster or a file cannot be
     read, or an argument is wrong";

const IMPORT_EXAMPLES: &str = "Examples:
  kubectl gpunode import mig-parted config.yaml > policies.yaml
  kubectl gpunode import mig-parted config.yaml --config all-1g.10gb --node-selector pool=mig
  kubectl gpunode import mig-parted config.yaml --config all-balanced -o layout
  kubectl gpunode import nvidia-plugin config.yaml > policy.yaml
  kubectl get configmap plugin-configs -n gpu-operator -o yaml | kubectl gpunode import nvidia-plugin -
  kubectl gpunode import nvidia-plugin config.yaml --from-daemonset plugin.yaml --strict";

const EXPORT_EXAMPLES: &str = "Examples:
  kubectl gpunode export mig gpu-17
  kubectl gpunode export mig gpu-17 -o mig-parted
  kubectl gpunode export mig gpu-17 --nodes cluster.yaml    # without a cluster";

const DUMP_EXIT_CODES: &str = "Exit codes:
  0  the dump is written
  1  the cluster cannot be read, or an argument is wrong";

const UNINSTALL_EXIT_CODES: &str = "Exit codes:
  0  nothing of gpunode is left (with --nodes-only: on the nodes), or you answered
     no
  1  something is left, and the output names it; or the cluster cannot be read, or
     an argument is wrong";

/// Inspect GPU nodes and their policies, and preview policies before you apply them
#[derive(Debug, Parser)]
#[command(name = "kubectl-gpunode", bin_name = "kubectl gpunode", version)]
pub struct Cli {
    /// The subcommand to run.
    #[command(subcommand)]
    pub command: PluginCommand,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub enum PluginCommand {
    /// Show GPU nodes, the progress of their policies, and problems
    ///
    /// RESOURCES shows `NAME A/C (H held, W withheld)`. The node has C shares; a
    /// share is a whole device, a replica or a unit of memory. Pods can have A of
    /// them, including the H shares that containers hold. W free shares are withheld
    /// because a request could fit the node's total but no single device; they return
    /// when a share is freed. With a NODE, HELD shows how many of a device's shares
    /// each container holds, such as `2/10`.
    ///
    /// IN USE sums what containers hold: MEMORY of whole GPUs, MIG devices, memory
    /// units and MPS shares; GPU CORES of whole GPUs and MPS shares; SHARES of each
    /// GPU. Time-slicing limits neither memory nor cores, so it counts in SHARES
    /// only.
    ///
    /// FAULT names faults of GPUs. ROLLOUT lists policies whose configuration is not in
    /// force on every node yet.
    ///
    /// Tables fit the terminal, or COLUMNS if it is set: a column that does not fit goes
    /// below its row, and a long name ends with `…`. `-o wide` shows every column in
    /// its row.
    #[command(verbatim_doc_comment, after_help = format!("Examples:
  kubectl gpunode status
  kubectl gpunode status gpu-17     # the pods that hold each GPU of a node
  kubectl gpunode status --watch    # follow a rollout
  kubectl gpunode status --check    # after an installation
  kubectl gpunode status -o wide    # rows as long as they are
  kubectl gpunode status -o json | jq '.nodes[] | select(.ready != \"True\")'

{STATUS_EXIT_CODES}"))]
    Status(StatusArgs),
    /// Check policies as the API server and gpunode do, without a cluster
    #[command(verbatim_doc_comment, after_help = format!("Examples:
  kubectl gpunode validate -f policy.yaml
  kubectl gpunode validate -f policies/ -o json
  kustomize build . | kubectl gpunode validate -f -
  kubectl gpunode validate --agent-config agent.yaml

{VALIDATE_EXIT_CODES}"))]
    Validate(ValidateArgs),
    /// Show what applying or deleting policies would change on each node
    ///
    /// Nothing is changed. A policy in a file replaces the cluster's policy of the
    /// same name. The plan compares the nodes before and after, with the operator's
    /// own functions. A policy in mode Preview is planned as if it were enforced.
    #[command(verbatim_doc_comment, after_help = format!("Examples:
  kubectl gpunode plan -f policy.yaml
  kubectl gpunode plan -f policies/ -o json
  kubectl gpunode plan --delete v100-reserved
  kubectl gpunode plan -f policies/ --nodes cluster.yaml    # without a cluster

{PLAN_EXIT_CODES}"))]
    Plan(PlanArgs),
    /// Show why a node has its labels, taints and configuration
    ///
    /// Each line names the policy and field that set a value, and the values of other
    /// policies that it overrides. For a policy that does not match, WHY shows the
    /// first condition that fails.
    #[command(verbatim_doc_comment, after_help = format!("Examples:
  kubectl gpunode explain gpu-17
  kubectl gpunode explain gpu-17 --all    # each label with a fact about GPUs
  kubectl gpunode explain gpu-17 -o json | jq '.entries[] | select(.state.is != \"inPlace\")'

{EXPLAIN_EXIT_CODES}"))]
    Explain(ExplainArgs),
    /// Say on which nodes pods would get no GPU, and what to do
    ///
    /// With a NODE: every finding about it, the worst first. Without: a line for each
    /// problem, with the number of nodes and examples. It reads what the agents
    /// reported last: driver, GPUs, container runtime with CDI and its handlers,
    /// SELinux and other device plugins; and the RuntimeClasses of the cluster.
    #[command(verbatim_doc_comment, after_help = format!("Examples:
  kubectl gpunode doctor
  kubectl gpunode doctor gpu-17
  kubectl gpunode doctor -o json | jq '.problems[] | select(.severity == \"noGpu\")'

{DOCTOR_EXIT_CODES}"))]
    Doctor(DoctorArgs),
    /// Show how the GPUs of a node are linked, and which GPUs a container would get
    ///
    /// The table looks like `nvidia-smi topo -m` and adds the pods that hold each
    /// GPU. It shows the agent's last report. The answer to --request comes from the
    /// function that the agent uses. The kubelet may have fewer GPUs to choose from
    /// when its Topology Manager wants all of them on one NUMA node.
    #[command(verbatim_doc_comment, after_help = format!("Examples:
  kubectl gpunode topo gpu-17
  kubectl gpunode topo gpu-17 --request 4
  kubectl gpunode topo gpu-17 --request 2 --resource nvidia.com/gpu.shared -o json | jq .request.choices[0]

{TOPO_EXIT_CODES}"))]
    Topo(TopoArgs),
    /// Draw the slices that a MIG layout takes on a board, without a cluster
    ///
    /// A layout names numbers of GPU instances by profile, such as
    /// `1g.10gb:3,4g.40gb:1`, or a preset of mig-parted, such as `all-balanced`. Without
    /// LAYOUT: the profiles and presets of the board. With --in-use, a new layout is
    /// placed around instances that stay. If a layout does not fit, the answer says
    /// why, and names the nearest one that does.
    ///
    /// MEMORY shows the memory slices of each instance, COMPUTE its number of compute
    /// slices, of which the driver chooses the place.
    #[command(verbatim_doc_comment, after_help = format!("Examples:
  kubectl gpunode mig --board A100-80GB
  kubectl gpunode mig --board A100-80GB 1g.10gb:3,4g.40gb:1
  kubectl gpunode mig --board H200 all-balanced -o json
  kubectl gpunode mig --board A100-80GB 1g.10gb:1,2g.20gb:1 --in-use 1g.10gb@6

{MIG_EXIT_CODES}"))]
    Mig(MigArgs),
    /// Turn configurations of NVIDIA's programs into policies, without a cluster
    #[command(verbatim_doc_comment, after_help = format!("{IMPORT_EXAMPLES}

{IMPORT_EXIT_CODES}"))]
    Import(ImportArgs),
    /// Show what a node has in the form of a configuration
    #[command(verbatim_doc_comment, after_help = format!("{EXPORT_EXAMPLES}

{EXPORT_EXIT_CODES}"))]
    Export(ExportArgs),
    /// Write what `plan`, `explain`, `topo`, `doctor` and `export` read of a cluster, as one list
    ///
    /// The list holds the policies, the GpuNodes with their holders, the operator's
    /// settings, the fields of each Node that a plan reads, and the names and
    /// tolerations of the pods on nodes with a GpuNode. It holds no RuntimeClasses:
    /// from a dump, `doctor` does not tell if one exists that pods have to name.
    #[command(verbatim_doc_comment, after_help = format!("Examples:
  kubectl gpunode dump > cluster.yaml
  kubectl gpunode plan -f policies/ --nodes cluster.yaml
  kubectl gpunode dump -o json | jq '.items[] | select(.kind == \"GpuNode\") | .status.holders'

{DUMP_EXIT_CODES}"))]
    Dump(DumpArgs),
    /// Generate a completion script for a shell
    ///
    /// The script completes `kubectl-gpunode`. To complete `kubectl gpunode` too, put
    /// an executable named `kubectl_complete-gpunode` beside it that contains
    /// `#!/bin/sh` and `exec kubectl-gpunode complete "$@"`.
    #[command(
        verbatim_doc_comment,
        after_help = "Examples:
  source <(kubectl gpunode completion bash)
  kubectl gpunode completion zsh > \"${fpath[1]}/_kubectl-gpunode\"
  kubectl gpunode completion fish > ~/.config/fish/completions/kubectl-gpunode.fish"
    )]
    Completion(CompletionArgs),
    /// Answer kubectl's request to complete `kubectl gpunode`
    #[command(hide = true)]
    Complete(CompleteArgs),
    /// Remove gpunode from the cluster and restore every node
    ///
    /// Stops the operator, deletes the policies, restores the labels and taints of
    /// every node, and deletes the installed objects. Works without an operator and
    /// after a partial removal, and can be repeated. Takes at most 2 minutes.
    /// Containers keep the whole GPUs and replicas that they hold; containers that
    /// use MPS lose their daemon.
    #[command(verbatim_doc_comment, after_help = format!("Examples:
  kubectl gpunode uninstall --dry-run
  kubectl gpunode uninstall
  kubectl gpunode uninstall --yes --wait-resources    # also cleans node status
  kubectl gpunode uninstall --yes --nodes-only        # before other tools delete the rest
  kubectl gpunode uninstall --yes -o json | jq .left

{UNINSTALL_EXIT_CODES}"))]
    Uninstall(UninstallArgs),
}

/// The cluster to use.
#[derive(Clone, Debug, Default, Args)]
pub struct ClusterArgs {
    /// Kubeconfig to use instead of $KUBECONFIG or ~/.kube/config
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// Kubeconfig context to use instead of the current one
    #[arg(long, value_name = "NAME")]
    pub context: Option<String>,
}

/// Arguments of `status`.
#[derive(Debug, Args)]
pub struct StatusArgs {
    /// Show only these nodes, with every device, the pods that hold it and what they use
    #[arg(value_name = "NODE")]
    pub nodes: Vec<String>,
    /// Show the state again when it changes, until Ctrl-C; a terminal shows only the latest state
    #[arg(short, long)]
    pub watch: bool,
    /// Wait half a minute at most until the operator and its agents run, and exit with code 1 if they do not
    #[arg(long, conflicts_with = "watch")]
    pub check: bool,
    /// The cluster to use.
    #[command(flatten)]
    pub cluster: ClusterArgs,
    /// Output format
    #[arg(short, long, value_enum, default_value_t)]
    pub output: OutputFormat,
}

/// Arguments of `validate`.
#[derive(Debug, Args)]
pub struct ValidateArgs {
    /// File with policies, - for standard input, or a folder with .yaml, .yml and .json files (subfolders are not searched);
    /// can be repeated
    #[arg(
        short,
        long = "filename",
        value_name = "FILE",
        required_unless_present = "agent_configs"
    )]
    pub filenames: Vec<PathBuf>,
    /// Configuration file for `gpunode-agent run --config FILE`; can be repeated
    #[arg(long = "agent-config", value_name = "FILE")]
    pub agent_configs: Vec<PathBuf>,
    /// Output format
    #[arg(short, long, value_enum, default_value_t)]
    pub output: OutputFormat,
}

/// The source of the cluster state: a cluster or a file.
#[derive(Debug, Args)]
pub struct SourceArgs {
    /// Read this output of `kubectl gpunode dump` instead of a cluster
    #[arg(long, value_name = "FILE", conflicts_with_all = ["kubeconfig", "context"])]
    pub nodes: Option<PathBuf>,
    /// The cluster to use.
    #[command(flatten)]
    pub cluster: ClusterArgs,
}

/// Arguments of `explain`.
#[derive(Debug, Args)]
pub struct ExplainArgs {
    /// Name of the node
    #[arg(value_name = "NODE")]
    pub node: String,
    /// List every label with a fact about the GPUs, and not only their number
    #[arg(long)]
    pub all: bool,
    /// The source of the cluster state.
    #[command(flatten)]
    pub source: SourceArgs,
    /// Output format
    #[arg(short, long, value_enum, default_value_t)]
    pub output: OutputFormat,
}

/// Arguments of `doctor`.
#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// Show every finding about this node
    #[arg(value_name = "NODE")]
    pub node: Option<String>,
    /// The source of the cluster state.
    #[command(flatten)]
    pub source: SourceArgs,
    /// Output format
    #[arg(short, long, value_enum, default_value_t)]
    pub output: OutputFormat,
}

/// Arguments of `topo`.
#[derive(Debug, Args)]
pub struct TopoArgs {
    /// Name of the node
    #[arg(value_name = "NODE")]
    pub node: String,
    /// Show which GPUs a container that requests N of a resource would get, and why
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub request: Option<u32>,
    /// Resource to request [default: nvidia.com/gpu, or the node's only resource]
    #[arg(long, value_name = "NAME", requires = "request")]
    pub resource: Option<String>,
    /// The source of the cluster state.
    #[command(flatten)]
    pub source: SourceArgs,
    /// Output format
    #[arg(short, long, value_enum, default_value_t)]
    pub output: OutputFormat,
}

/// Arguments of `mig`.
#[derive(Debug, Args)]
pub struct MigArgs {
    /// Layout to place: PROFILE:COUNT,..., a preset, or {} for no instance
    #[arg(value_name = "LAYOUT")]
    pub layout: Option<String>,
    /// Board, such as A100-80GB, or its PCI id, such as 0x20B210DE
    #[arg(long, value_name = "NAME")]
    pub board: String,
    /// Instance that stays, such as 4g.40gb@0 for one that begins at memory slice 0; can be repeated
    #[arg(long, value_name = "PROFILE@START")]
    pub in_use: Vec<String>,
    /// Output format
    #[arg(short, long, value_enum, default_value_t)]
    pub output: OutputFormat,
}

/// Arguments of `import`.
#[derive(Debug, Args)]
pub struct ImportArgs {
    /// The program whose configuration is read.
    #[command(subcommand)]
    pub format: ImportFormat,
}

/// Programs whose configuration can be read.
#[derive(Debug, Subcommand)]
pub enum ImportFormat {
    /// Turn the named configurations of a mig-parted file into policies with a MIG layout
    ///
    /// Each configuration becomes a policy for the nodes whose label
    /// `nvidia.com/mig.config` names it. The policies are in mode Preview: applied,
    /// they show in their status what they would change, and change nothing. To
    /// enforce one, remove its `mode`.
    #[command(verbatim_doc_comment, after_help = format!("{IMPORT_EXAMPLES}

{IMPORT_EXIT_CODES}"))]
    MigParted(ImportMigPartedArgs),
    /// Turn the configuration of NVIDIA's device plugin into a policy, or into the agent's configuration
    ///
    /// FILE is the plugin's file, or the ConfigMap with several: each becomes a policy
    /// for the nodes whose label `nvidia.com/device-plugin.config` names it, and the
    /// default one is for all others that have a GPU. The policies are in mode Preview:
    /// applied, they show in their status what they would change, and change nothing.
    /// To enforce one, remove its `mode`. The meaning is that of version 0.20: what it
    /// ignores, and what has no counterpart, is a warning.
    #[command(verbatim_doc_comment, after_help = format!("{IMPORT_EXAMPLES}

{IMPORT_EXIT_CODES}"))]
    NvidiaPlugin(ImportNvidiaPluginArgs),
}

/// Arguments of `import mig-parted`.
#[derive(Debug, Args)]
pub struct ImportMigPartedArgs {
    /// The file, or - for standard input
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// Import only this configuration
    #[arg(long, value_name = "NAME")]
    pub config: Option<String>,
    /// With --config: label of the nodes to select instead of nvidia.com/mig.config; can be repeated, and a node needs all
    /// of them
    #[arg(long, value_name = "KEY=VALUE", value_delimiter = ',', value_parser = label)]
    pub node_selector: Vec<(String, String)>,
    /// MIG strategy of the policies
    #[arg(long, value_enum, ignore_case = true, default_value_t)]
    pub strategy: ImportedStrategy,
    /// Output
    #[arg(short, long, value_enum, default_value_t)]
    pub output: ImportOutput,
}

/// Arguments of `import nvidia-plugin`.
#[derive(Debug, Args)]
pub struct ImportNvidiaPluginArgs {
    /// The plugin's file or a ConfigMap with such files, or - for standard input. Without it: no file
    #[arg(value_name = "FILE", required_unless_present = "from_daemonset")]
    pub file: Option<PathBuf>,
    /// DaemonSet or pod of the plugin: its arguments and environment come before the file, and its nodeSelector counts
    #[arg(long, value_name = "FILE")]
    pub from_daemonset: Option<PathBuf>,
    /// Import only this configuration of a ConfigMap
    #[arg(long, value_name = "NAME")]
    pub config: Option<String>,
    /// Configuration of nodes without the label. Default: DEFAULT_CONFIG of the DaemonSet, then the one called default,
    /// then the only one
    #[arg(long, value_name = "NAME")]
    pub default_config: Option<String>,
    /// Additional label of the nodes; can be repeated, and a node needs all of them
    #[arg(long, value_name = "KEY=VALUE", value_delimiter = ',', value_parser = label)]
    pub node_selector: Vec<(String, String)>,
    /// Take names, renames and devices as the file says, where the plugin discards them
    #[arg(long)]
    pub as_written: bool,
    /// Refuse what the plugin ignores instead of warning of it
    #[arg(long)]
    pub strict: bool,
    /// Output
    #[arg(short, long, value_enum, default_value_t)]
    pub output: ImportedPluginOutput,
}

/// Forms of an imported configuration of NVIDIA's device plugin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum ImportedPluginOutput {
    /// A policy for each configuration, as YAML documents
    #[default]
    Policy,
    /// One configuration, for `gpunode-agent run --config` or `devicePlugin` of a policy
    AgentConfig,
}

fn label(text: &str) -> anyhow::Result<(String, String)> {
    let parts = text.split_once('=').filter(|(key, _)| !key.is_empty());
    let (key, value) = parts.ok_or_else(|| anyhow::anyhow!("write KEY=VALUE, such as pool=mig"))?;
    Ok((key.to_owned(), value.to_owned()))
}

/// MIG strategies that advertise instances.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum ImportedStrategy {
    /// As nvidia.com/mig-PROFILE
    #[default]
    #[value(name = "Mixed")]
    Mixed,
    /// As nvidia.com/gpu; all instances of a node must be equal
    #[value(name = "Single")]
    Single,
}

/// Forms of an imported configuration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum ImportOutput {
    /// A policy for each configuration, as YAML documents
    #[default]
    Policy,
    /// The block `mig` of one configuration, for `devicePlugin` of a policy
    Layout,
}

/// Arguments of `export`.
#[derive(Debug, Args)]
pub struct ExportArgs {
    /// The configuration to write.
    #[command(subcommand)]
    pub subject: ExportSubject,
}

/// Configurations that can be written.
#[derive(Debug, Subcommand)]
pub enum ExportSubject {
    /// Show the MIG layout that the GPUs of a node have
    ///
    /// It shows the agent's last report. GPUs with the same instances are one group.
    #[command(verbatim_doc_comment, after_help = format!("{EXPORT_EXAMPLES}

{EXPORT_EXIT_CODES}"))]
    Mig(ExportMigArgs),
}

/// Arguments of `export mig`.
#[derive(Debug, Args)]
pub struct ExportMigArgs {
    /// Name of the node
    #[arg(value_name = "NODE")]
    pub node: String,
    /// The source of the cluster state.
    #[command(flatten)]
    pub source: SourceArgs,
    /// Output
    #[arg(short, long, value_enum, default_value_t)]
    pub output: ExportOutput,
}

/// Forms of an exported layout.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum ExportOutput {
    /// The block `mig` for `devicePlugin` of a policy
    #[default]
    Layout,
    /// A file of NVIDIA's mig-parted with one configuration, named `current`
    MigParted,
}

/// Arguments of `dump`.
#[derive(Debug, Args)]
pub struct DumpArgs {
    /// The cluster to use.
    #[command(flatten)]
    pub cluster: ClusterArgs,
    /// Output format
    #[arg(short, long, value_enum, default_value_t)]
    pub output: DocumentFormat,
}

/// Arguments of `plan`.
#[derive(Debug, Args)]
pub struct PlanArgs {
    /// File with policies, - for standard input, or a folder with .yaml, .yml and .json files (subfolders are not searched);
    /// can be repeated
    #[arg(short, long = "filename", value_name = "FILE", required_unless_present = "deletions")]
    pub filenames: Vec<PathBuf>,
    /// Plan as if this policy were deleted; can be repeated
    #[arg(long = "delete", value_name = "POLICY")]
    pub deletions: Vec<String>,
    /// The source of the cluster state.
    #[command(flatten)]
    pub source: SourceArgs,
    /// Output format
    #[arg(short, long, value_enum, default_value_t)]
    pub output: OutputFormat,
}

/// Arguments of `completion`.
#[derive(Debug, Args)]
pub struct CompletionArgs {
    /// Shell to generate the script for
    #[arg(value_enum)]
    pub shell: clap_complete::Shell,
}

/// Arguments of `complete`.
#[derive(Debug, Args)]
pub struct CompleteArgs {
    /// Words after `kubectl gpunode`; the last one is completed
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    pub words: Vec<String>,
}

/// Arguments of `uninstall`.
#[derive(Debug, Args)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of the command line")]
pub struct UninstallArgs {
    /// Namespace that gpunode is installed in
    #[arg(short, long, value_name = "NAME", default_value = "gpunode-system")]
    pub namespace: String,
    /// Show what would be removed, and change nothing
    #[arg(long)]
    pub dry_run: bool,
    /// List every node, object and label with a fact about GPUs, and not only groups of them
    #[arg(long)]
    pub all: bool,
    /// Do not ask for confirmation; without a terminal, uninstall never asks
    #[arg(short, long)]
    pub yes: bool,
    /// Also remove resources without a plugin from node status; kubelets allow this after 5 to 7 minutes
    #[arg(long)]
    pub wait_resources: bool,
    /// Only stop the operator, end the agents and restore every node; keep policies, CRDs, permissions and the namespace
    #[arg(long)]
    pub nodes_only: bool,
    /// The cluster to use.
    #[command(flatten)]
    pub cluster: ClusterArgs,
    /// Output format; json and yaml write progress to standard error, and need --yes on a terminal
    #[arg(short, long, value_enum, default_value_t)]
    pub output: OutputFormat,
}

/// Formats of a dump.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum DocumentFormat {
    /// With a comment that says when it was written
    #[default]
    Yaml,
    /// Without a comment
    Json,
}

/// Output formats.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum OutputFormat {
    /// Tables for people, fitted to $COLUMNS or the terminal
    #[default]
    Table,
    /// Tables with every column in its row
    Wide,
    /// For programs
    Json,
    /// For programs and people
    Yaml,
}

impl OutputFormat {
    /// Returns true for text that people read.
    pub(crate) fn is_text(self) -> bool {
        matches!(self, Self::Table | Self::Wide)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_arguments_fit_together() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_subcommand_shows_examples_that_it_understands() {
        for subcommand in Cli::command().get_subcommands().filter(|it| !it.is_hide_set()) {
            let name = subcommand.get_name();
            let help = subcommand.get_after_help().map(ToString::to_string).unwrap_or_default();
            let begin = format!("kubectl gpunode {name}");
            let examples: Vec<&str> = help.lines().filter(|line| line.contains(&begin)).collect();
            assert!(!examples.is_empty(), "{name}: {help}");
            for example in examples {
                let command = example.split_once("kubectl gpunode").expect("a command").1;
                let command = command.split(['|', '>', '#', ')']).next().expect("its words");
                let words = std::iter::once("kubectl-gpunode").chain(command.split_whitespace());
                assert!(Cli::try_parse_from(words).is_ok(), "{example}");
            }
        }
    }
}
