//! Arguments. Help is part of the product: every subcommand shows examples.

use clap::{Args, Parser, Subcommand, ValueEnum};
use std::path::PathBuf;

const VALIDATE_EXIT_CODES: &str = "Exit codes:
  0  everything is valid
  1  something would be refused, nothing of gpunode's is there, a file could not be read, or the arguments are wrong";

const STATUS_EXIT_CODES: &str = "Exit codes:
  0  the state could be shown, problems included; programs find them with -o json
  1  the cluster could not be read, or the arguments are wrong";

const PLAN_EXIT_CODES: &str = "Exit codes:
  0  the plan could be made, running pods would not notice, and nothing would be in the way
  1  a policy would be refused, the cluster or a file could not be read, or the arguments are wrong
  2  running pods would notice: a taint evicts them, or what they hold changes or goes; or something would be in the way:
     a conflict, or a node that would fail and stop the rollout";

const EXPLAIN_EXIT_CODES: &str = "Exit codes:
  0  the node could be explained
  1  there is no such node, the cluster or a file could not be read, or the arguments are wrong";

const TOPO_EXIT_CODES: &str = "Exit codes:
  0  the links could be shown, and what would be chosen, if anything
  1  there is no such node or resource, the cluster or a file could not be read, or the arguments are wrong";

const DUMP_EXIT_CODES: &str = "Exit codes:
  0  written
  1  the cluster could not be read, or the arguments are wrong";

const UNINSTALL_EXIT_CODES: &str = "Exit codes:
  0  nothing of gpunode is left, or you said no
  1  something is left, and what it is was said; the cluster could not be read, or the arguments are wrong";

/// See what GPU nodes and their policies are doing, and what a policy would do before it is applied.
#[derive(Debug, Parser)]
#[command(name = "kubectl-gpunode", bin_name = "kubectl gpunode", version)]
pub struct PluginCli {
    /// What to do.
    #[command(subcommand)]
    pub command: PluginCommand,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub enum PluginCommand {
    /// Show the GPU nodes of the cluster, how far their policies are, and what stands in their way
    ///
    /// RESOURCES has `NAME A/C (H held, W withheld)`: of C shares on the node pods can have A, counting the H that are held;
    /// a share is a whole device, a replica or a unit of memory. W free ones are withheld, since a request would fit the
    /// node's sum and no single device; they come back when something is freed. For single nodes, HELD has how many of a
    /// device's shares a container holds, as `2/10`.
    ///
    /// IN USE sums up what containers hold: MEMORY of whole GPUs, MIG devices, units of memory and MPS shares; GPU CORES of
    /// whole GPUs and MPS shares; SHARES, GPU by GPU. Time-slicing limits neither, so of it SHARES alone says something.
    /// ROLLOUT is about policies whose configuration is not on every node yet.
    #[command(after_help = format!("Examples:
  kubectl gpunode status
  kubectl gpunode status gpu-17     # who holds which GPU of that node
  kubectl gpunode status --watch    # a rollout as it goes on
  kubectl gpunode status -o json | jq '.nodes[] | select(.ready != \"True\")'

{STATUS_EXIT_CODES}"))]
    Status(StatusArgs),
    /// Say whether the API server and gpunode would accept policies, without a cluster
    #[command(after_help = format!("Examples:
  kubectl gpunode validate -f policy.yaml
  kubectl gpunode validate -f policies/ -o json
  kustomize build . | kubectl gpunode validate -f -
  kubectl gpunode validate --agent-config agent.yaml

{VALIDATE_EXIT_CODES}"))]
    Validate(ValidateArgs),
    /// Show node by node what applying policies, or deleting some, would change; changes nothing
    ///
    /// The policies of the files take the place of those of the same name in the cluster, and both worlds are planned as
    /// the operator would. A policy of the files in mode Preview is planned as if it were in force.
    #[command(after_help = format!("Examples:
  kubectl gpunode plan -f policy.yaml
  kubectl gpunode plan -f policies/ -o json
  kubectl gpunode plan --delete v100-reserved
  kubectl gpunode plan -f policies/ --nodes cluster.yaml    # without a cluster, for pull requests

{PLAN_EXIT_CODES}"))]
    Plan(PlanArgs),
    /// Say why a node has its labels, taints and configuration
    ///
    /// Each line names the policy, the field of it, and what other policies want instead. Policies that do not match say which
    /// condition fails first.
    #[command(after_help = format!("Examples:
  kubectl gpunode explain gpu-17
  kubectl gpunode explain gpu-17 -o json | jq '.entries[] | select(.state.is != \"inPlace\")'

{EXPLAIN_EXIT_CODES}"))]
    Explain(ExplainArgs),
    /// Show how the GPUs of a node are linked, and which of them a container would get
    ///
    /// The table is that of `nvidia-smi topo -m`, from what the node's agent has reported, and says who holds which GPU. A
    /// request is answered by the function that the agent uses; the kubelet may have fewer GPUs to choose from, when its
    /// Topology Manager wants all of one NUMA node.
    #[command(after_help = format!("Examples:
  kubectl gpunode topo gpu-17
  kubectl gpunode topo gpu-17 --request 4
  kubectl gpunode topo gpu-17 --request 2 --resource nvidia.com/gpu.shared -o json | jq .request.choices[0]

{TOPO_EXIT_CODES}"))]
    Topo(TopoArgs),
    /// Write what `plan` reads of the cluster to standard output, as one list
    ///
    /// Nodes without what a plan does not read, GpuNodes with who holds what, policies, and how the operator runs.
    #[command(after_help = format!("Examples:
  kubectl gpunode dump > cluster.yaml
  kubectl gpunode plan -f policies/ --nodes cluster.yaml
  kubectl gpunode dump -o json | jq '.items[] | select(.kind == \"GpuNode\") | .status.holders'

{DUMP_EXIT_CODES}"))]
    Dump(DumpArgs),
    /// Write a script that completes arguments in a shell
    ///
    /// It completes `kubectl-gpunode`. For `kubectl gpunode`, put an executable `kubectl_complete-gpunode` beside it that holds
    /// `#!/bin/sh` and `exec kubectl-gpunode complete "$@"`.
    #[command(after_help = "Examples:
  source <(kubectl gpunode completion bash)
  kubectl gpunode completion zsh > \"${fpath[1]}/_kubectl-gpunode\"
  kubectl gpunode completion fish > ~/.config/fish/completions/kubectl-gpunode.fish")]
    Completion(CompletionArgs),
    /// Print what kubectl asks for when somebody completes `kubectl gpunode`
    #[command(hide = true)]
    Complete(CompleteArgs),
    /// Undo everything that gpunode did in the cluster, and remove it
    ///
    /// Stops the operator, deletes the policies, gives every node back what it had, and deletes what was installed. Works
    /// without an operator and after a partial removal, and may be repeated. Takes at most 2 minutes. Containers keep whole
    /// GPUs and replicas that they hold; those that use MPS lose their daemon.
    #[command(after_help = format!("Examples:
  kubectl gpunode uninstall --dry-run
  kubectl gpunode uninstall
  kubectl gpunode uninstall --yes --wait-resources    # for scripts, and until nvidia.com/gpu has left node status
  kubectl gpunode uninstall --yes -o json | jq .left

{UNINSTALL_EXIT_CODES}"))]
    Uninstall(UninstallArgs),
}

/// Which cluster.
#[derive(Clone, Debug, Default, Args)]
pub struct ClusterArgs {
    /// Kubeconfig to use instead of $KUBECONFIG or ~/.kube/config
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig to use instead of the current one
    #[arg(long, value_name = "NAME")]
    pub context: Option<String>,
}

/// Arguments of `status`.
#[derive(Debug, Args)]
pub struct StatusArgs {
    /// Show these nodes alone, with every device and who holds it
    #[arg(value_name = "NODE")]
    pub nodes: Vec<String>,
    /// Show it again whenever it changes, until Ctrl-C; on a terminal in the place of what was there
    #[arg(short, long)]
    pub watch: bool,
    /// Which cluster.
    #[command(flatten)]
    pub cluster: ClusterArgs,
    /// Form of the output
    #[arg(short, long, value_enum, default_value_t)]
    pub output: OutputFormat,
}

/// Arguments of `validate`.
#[derive(Debug, Args)]
pub struct ValidateArgs {
    /// File with policies, - for standard input, or a folder of .yaml, .yml and .json files (subfolders are not searched); may
    /// be repeated
    #[arg(
        short,
        long = "filename",
        value_name = "FILE",
        required_unless_present = "agent_configs"
    )]
    pub filenames: Vec<PathBuf>,
    /// File as `gpunode-agent run --config FILE` takes it; may be repeated
    #[arg(long = "agent-config", value_name = "FILE")]
    pub agent_configs: Vec<PathBuf>,
    /// Form of the output
    #[arg(short, long, value_enum, default_value_t)]
    pub output: OutputFormat,
}

/// What is read: a cluster or a file.
#[derive(Debug, Args)]
pub struct SourceArgs {
    /// File that `kubectl gpunode dump` wrote, in the place of a cluster
    #[arg(long, value_name = "FILE", conflicts_with_all = ["kubeconfig", "context"])]
    pub nodes: Option<PathBuf>,
    /// Which cluster.
    #[command(flatten)]
    pub cluster: ClusterArgs,
}

/// Arguments of `explain`.
#[derive(Debug, Args)]
pub struct ExplainArgs {
    /// Name of the node
    #[arg(value_name = "NODE")]
    pub node: String,
    /// What to read.
    #[command(flatten)]
    pub source: SourceArgs,
    /// Form of the output
    #[arg(short, long, value_enum, default_value_t)]
    pub output: OutputFormat,
}

/// Arguments of `topo`.
#[derive(Debug, Args)]
pub struct TopoArgs {
    /// Name of the node
    #[arg(value_name = "NODE")]
    pub node: String,
    /// Say which GPUs a container that asks for so many would get, and why
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub request: Option<u32>,
    /// Resource that it asks for [default: nvidia.com/gpu, or the only one of the node]
    #[arg(long, value_name = "NAME", requires = "request")]
    pub resource: Option<String>,
    /// What to read.
    #[command(flatten)]
    pub source: SourceArgs,
    /// Form of the output
    #[arg(short, long, value_enum, default_value_t)]
    pub output: OutputFormat,
}

/// Arguments of `dump`.
#[derive(Debug, Args)]
pub struct DumpArgs {
    /// Which cluster.
    #[command(flatten)]
    pub cluster: ClusterArgs,
    /// Form of the output
    #[arg(short, long, value_enum, default_value_t)]
    pub output: DocumentFormat,
}

/// Arguments of `plan`.
#[derive(Debug, Args)]
pub struct PlanArgs {
    /// File with policies, - for standard input, or a folder of .yaml, .yml and .json files (subfolders are not searched); may
    /// be repeated
    #[arg(short, long = "filename", value_name = "FILE", required_unless_present = "deletions")]
    pub filenames: Vec<PathBuf>,
    /// Plan as if this policy were deleted; may be repeated
    #[arg(long = "delete", value_name = "POLICY")]
    pub deletions: Vec<String>,
    /// What to read.
    #[command(flatten)]
    pub source: SourceArgs,
    /// Form of the output
    #[arg(short, long, value_enum, default_value_t)]
    pub output: OutputFormat,
}

/// Arguments of `completion`.
#[derive(Debug, Args)]
pub struct CompletionArgs {
    /// Which shell
    #[arg(value_enum)]
    pub shell: clap_complete::Shell,
}

/// Arguments of `complete`.
#[derive(Debug, Args)]
pub struct CompleteArgs {
    /// The words after `kubectl gpunode`; the last one is to be completed
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    pub words: Vec<String>,
}

/// Arguments of `uninstall`.
#[derive(Debug, Args)]
pub struct UninstallArgs {
    /// Namespace that gpunode was installed in
    #[arg(short, long, value_name = "NAME", default_value = "gpunode-system")]
    pub namespace: String,
    /// Say what would be removed and change nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Do not ask; without a terminal nothing is asked
    #[arg(short, long)]
    pub yes: bool,
    /// Also take resources out of node status that nobody serves any more; kubelets allow that after 5 to 7 minutes
    #[arg(long)]
    pub wait_resources: bool,
    /// Which cluster.
    #[command(flatten)]
    pub cluster: ClusterArgs,
    /// Form of the output; json and yaml write progress to standard error and ask nothing
    #[arg(short, long, value_enum, default_value_t)]
    pub output: OutputFormat,
}

/// Forms of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum DocumentFormat {
    /// With a heading that says when it was written
    #[default]
    Yaml,
    /// Without
    Json,
}

/// Forms of output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum OutputFormat {
    /// For people
    #[default]
    Table,
    /// For programs
    Json,
    /// For programs and people
    Yaml,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_arguments_fit_together() {
        PluginCli::command().debug_assert();
    }

    #[test]
    fn every_subcommand_shows_examples_that_it_understands() {
        for subcommand in PluginCli::command().get_subcommands().filter(|it| !it.is_hide_set()) {
            let name = subcommand.get_name();
            let help = subcommand.get_after_help().map(ToString::to_string).unwrap_or_default();
            let begin = format!("kubectl gpunode {name}");
            let examples: Vec<&str> = help.lines().filter(|line| line.contains(&begin)).collect();
            assert!(!examples.is_empty(), "{name}: {help}");
            for example in examples {
                let command = example.split_once("kubectl gpunode").expect("a command").1;
                let command = command.split(['|', '>', '#', ')']).next().expect("its words");
                let words = std::iter::once("kubectl-gpunode").chain(command.split_whitespace());
                assert!(PluginCli::try_parse_from(words).is_ok(), "{example}");
            }
        }
    }
}
