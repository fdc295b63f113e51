//! Shows the GPUs and MIG instances of a simulated node in its files, in the place of the kernel module and of `nvidia-modprobe`:
//! `gpunode-kernel-files LIBRARY_FOLDER PROC_DRIVER DEV...`. Each node of a cluster with GPUs runs one.

#![forbid(unsafe_code)]
#![allow(clippy::print_stderr, reason = "it is a program with a log")]

use std::{env, path::PathBuf, process::ExitCode};

use gpunode_cluster::kernel_files;

fn main() -> ExitCode {
    let mut paths = env::args_os().skip(1).map(PathBuf::from);
    let (Some(library), Some(proc_driver)) = (paths.next(), paths.next()) else {
        eprintln!("usage: gpunode-kernel-files LIBRARY_FOLDER PROC_DRIVER DEV...");
        return ExitCode::FAILURE;
    };
    // It ends with the node.
    kernel_files(proc_driver, paths.collect()).follow(&library, || false);
    ExitCode::SUCCESS
}
