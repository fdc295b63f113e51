//! The local cluster on the command line.

#![forbid(unsafe_code)]
#![allow(clippy::print_stderr, reason = "a command line tool talks to its caller")]

mod gpu_command;

use std::{
    fmt,
    io::{self, Write},
    path::PathBuf,
    process::ExitCode,
};

use anyhow::Result;
use clap::{Args, Parser, Subcommand};
use gpu_command::GpuChange;
use gpunode_cluster::{Cluster, ClusterFile, DEFAULT_NAME, Options, Progress, ROOT_VARIABLE, default_root, missing};
use gpunode_scenario::StateFile;

/// Runs a real Kubernetes cluster with simulated GPU nodes on this machine.
#[derive(Parser)]
#[command(name = "gpunode-cluster")]
struct Cli {
    #[command(subcommand)]
    command: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Start a cluster and wait until its nodes are Ready.
    Up {
        #[command(flatten)]
        which: Which,
        /// Cluster file with nodes and their simulated hardware [default: four nodes].
        #[arg(long, value_name = "FILE")]
        cluster: Option<PathBuf>,
        /// The simulated NVML library [default: target/release/libgpunode_fake_nvml.so].
        #[arg(long, value_name = "SO")]
        nvml_lib: Option<PathBuf>,
        /// Folder of the stand-ins for NVIDIA's MPS programs [default: target/mps-control].
        #[arg(long, value_name = "DIR")]
        mps_programs: Option<PathBuf>,
    },
    /// Stop a cluster, whatever state it is in.
    Down {
        #[command(flatten)]
        which: Which,
    },
    /// Bring image archives into every node.
    ImportImage {
        #[command(flatten)]
        which: Which,
        /// Archives of `docker save`, or OCI.
        #[arg(required = true, value_name = "ARCHIVE")]
        archives: Vec<PathBuf>,
    },
    /// Break a GPU of a node, or mend it: `gpu gpu-t4 1 xid 79`.
    Gpu {
        #[command(flatten)]
        which: Which,
        /// Name of the node.
        node: String,
        /// Index of the GPU.
        index: u32,
        #[command(subcommand)]
        change: GpuChange,
    },
    /// Say which programs of a cluster run.
    Status {
        #[command(flatten)]
        which: Which,
    },
    /// Say in a line each what this machine lacks for a cluster.
    Check {
        #[command(flatten)]
        folder: Folder,
    },
}

#[derive(Args)]
struct Which {
    /// Name of the cluster.
    #[arg(long, global = true, default_value = DEFAULT_NAME)]
    name: String,
    #[command(flatten)]
    folder: Folder,
}

#[derive(Args)]
struct Folder {
    /// Folder of all clusters [default: target/cluster of the checkout].
    #[arg(long, env = ROOT_VARIABLE)]
    root: Option<PathBuf>,
}

impl Folder {
    fn path(self) -> Result<PathBuf> {
        self.root.map_or_else(default_root, Ok)
    }
}

fn main() -> ExitCode {
    match run(Cli::parse().command) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("gpunode-cluster: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(task: Task) -> Result<ExitCode> {
    match task {
        Task::Up {
            which,
            cluster,
            nvml_lib,
            mps_programs,
        } => up(which, cluster, nvml_lib, mps_programs)?,
        Task::Down { which } => {
            let name = which.name;
            Cluster::stop(&which.folder.path()?, &name)?;
            print_line(format_args!("cluster {name} is stopped"));
        }
        Task::ImportImage { which, archives } => {
            let cluster = Cluster::attach_in(&which.folder.path()?, &which.name)?;
            for archive in archives {
                cluster.import_image_everywhere(&archive)?;
                print_line(format_args!("imported {}", archive.display()));
            }
        }
        Task::Gpu {
            which,
            node,
            index,
            change,
        } => {
            let cluster = Cluster::attach_in(&which.folder.path()?, &which.name)?;
            let state = StateFile::open(cluster.node(&node)?.driver_dir()?)?;
            let text = change.apply(&state, index)?;
            print_line(format_args!("GPU {index} of {node}: {text}"));
        }
        Task::Status { which } => status(which)?,
        Task::Check { folder } => {
            let missing = missing(&folder.path()?);
            for line in &missing {
                print_line(format_args!("{line}"));
            }
            if !missing.is_empty() {
                return Ok(ExitCode::FAILURE);
            }
            print_line(format_args!("nothing is missing"));
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn up(which: Which, file: Option<PathBuf>, nvml_lib: Option<PathBuf>, mps_programs: Option<PathBuf>) -> Result<()> {
    let mut options = Options::in_root(which.folder.path()?, which.name)?;
    if let Some(file) = file {
        options.nodes = ClusterFile::load(&file)?;
    }
    if let Some(library) = nvml_lib {
        options.nvml_library = library;
    }
    if let Some(folder) = mps_programs {
        options.mps_programs = folder;
    }
    options.progress = Progress::new(|line| print_line(format_args!("{line}")));
    let cluster = Cluster::up(&options)?;
    print_line(format_args!(
        "cluster {} runs on cgroup {}; use it with\n  export KUBECONFIG={}",
        options.name,
        cluster.cgroup_version(),
        cluster.kubeconfig().display()
    ));
    Ok(())
}

fn status(which: Which) -> Result<()> {
    let cluster = Cluster::attach_in(&which.folder.path()?, &which.name)?;
    let line = |place: &str, program: &str, runs: bool| {
        print_line(format_args!(
            "{place:<16} {program:<24} {}",
            if runs { "runs" } else { "does not run" }
        ));
    };
    for program in ["etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler"] {
        line(
            "control-plane",
            program,
            cluster.control_plane_process(program)?.is_some(),
        );
    }
    for node in cluster.nodes() {
        for program in ["containerd", "kubelet", "kube-proxy"] {
            line(node.name(), program, node.process(program)?.is_some());
        }
    }
    print_line(format_args!(
        "cgroup {}, kubeconfig {}",
        cluster.cgroup_version(),
        cluster.kubeconfig().display()
    ));
    Ok(())
}

/// Prints a line. A closed standard output is no error.
fn print_line(line: fmt::Arguments<'_>) {
    let _ = writeln!(io::stdout(), "{line}");
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpunode_scenario::ReturnCode;

    #[test]
    fn one_line_breaks_a_gpu_of_any_cluster() {
        for (arguments, cluster, expected) in [
            (
                &["gpu-t4", "1", "xid", "79"][..],
                DEFAULT_NAME,
                GpuChange::Xid { number: 79 },
            ),
            (&["gpu-t4", "1", "recover", "--name", "e2e"], "e2e", GpuChange::Recover),
            (&["--name", "e2e", "gpu-t4", "1", "lose"], "e2e", GpuChange::Lose),
            (
                &[
                    "gpu-t4",
                    "1",
                    "fail",
                    "nvmlGpuInstanceDestroy",
                    "IN_USE",
                    "--instances",
                    "2",
                ],
                DEFAULT_NAME,
                GpuChange::Fail {
                    function: "nvmlGpuInstanceDestroy".to_owned(),
                    code: ReturnCode::InUse,
                    instances: Some(2),
                },
            ),
        ] {
            let arguments = [&["gpunode-cluster", "gpu"], arguments].concat();
            let cli = Cli::try_parse_from(&arguments).unwrap();
            let Task::Gpu {
                which,
                node,
                index,
                change,
            } = cli.command
            else {
                panic!("{arguments:?} are those of `gpu`")
            };
            assert_eq!((which.name.as_str(), node.as_str(), index), (cluster, "gpu-t4", 1));
            assert_eq!(change, expected);
        }
        assert!(Cli::try_parse_from(["gpunode-cluster", "gpu", "gpu-t4", "1", "xid"]).is_err());
    }
}
