//! Taking a cluster away, whole, half started or half dead.

use std::{fs, io::ErrorKind, time::Duration};

use anyhow::{Context, Result};
use rustix::process::Signal;

use crate::{
    cgroup::{self, Trees},
    layout::Layout,
    network, process,
    sandbox::{HOLDER, Sandbox},
    state::State,
    wait,
};

const TIMEOUT: Duration = Duration::from_mins(2);
/// Kept for people and tests who ask what happened.
const KEPT: [&str; 2] = ["logs", "audit.log"];

/// Ends every process of the cluster and removes what it had outside its folder. Needs nothing but the folder's name.
pub(crate) fn stop(layout: &Layout) -> Result<()> {
    // Nodes first, lest the control plane's end makes them busy. A kubelet is ended before its node so that it
    // restarts nothing; the end of a node's first process ends all others in it.
    if let Some(state) = State::load(layout).ok().flatten() {
        for node in &state.cluster.nodes {
            let sandbox = Sandbox::new(layout.folder(), &layout.logs(), format!("nodes/{}", node.name));
            for program in ["kubelet", HOLDER] {
                if let Some(process) = sandbox.process(program)? {
                    process.signal(Signal::KILL)?;
                }
            }
        }
    }
    // Whatever carries the cluster's mark, also of a start that was killed before it wrote a state.
    wait::until("the cluster's processes to end", TIMEOUT, || {
        let processes = process::of_cluster(layout.folder())?;
        for process in &processes {
            process.signal(Signal::KILL)?;
        }
        for process in &processes {
            process.wait(TIMEOUT)?;
        }
        Ok(processes.is_empty().then_some(()))
    })?;
    let name = cgroup::group(layout.folder());
    network::disconnect_machine(&name)?;
    if let Ok(trees) = Trees::find() {
        trees.remove(&name)?;
    }
    Ok(())
}

/// Removes the files of a stopped cluster except its logs.
pub(crate) fn forget(layout: &Layout) -> Result<()> {
    remove_except(layout, &KEPT)
}

/// Removes all files of a stopped cluster, before it starts anew.
pub(crate) fn clear(layout: &Layout) -> Result<()> {
    remove_except(layout, &[])
}

fn remove_except(layout: &Layout, kept: &[&str]) -> Result<()> {
    let folder = layout.folder();
    let lock = layout.lock();
    let entries = fs::read_dir(folder).with_context(|| format!("list {}", folder.display()))?;
    for entry in entries {
        let entry = entry.with_context(|| format!("list {}", folder.display()))?;
        let path = entry.path();
        if path == lock || kept.iter().any(|name| entry.file_name() == *name) {
            continue;
        }
        let removed = if path.is_dir() && !path.is_symlink() {
            fs::remove_dir_all(&path)
        } else {
            fs::remove_file(&path)
        };
        match removed {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                return Err(error).with_context(|| format!("remove {}", path.display()));
            }
            _ => {}
        }
    }
    Ok(())
}
