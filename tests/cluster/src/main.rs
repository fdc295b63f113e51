//! The local cluster on the command line.

#![forbid(unsafe_code)]
#![allow(clippy::print_stderr, reason = "a command line tool talks to its caller")]

use std::{
    fmt,
    io::{self, Write},
    path::PathBuf,
    process::ExitCode,
};

use anyhow::Result;
use clap::{Args, Parser, Subcommand};
use gpunode_cluster::{Cluster, ClusterFile, DEFAULT_NAME, Options, Progress, ROOT_VARIABLE, default_root, missing};

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
    #[arg(long, default_value = DEFAULT_NAME)]
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
