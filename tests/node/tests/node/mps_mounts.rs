//! Mounts of the MPS supervisor on the host; none stays.

use anyhow::{Context as _, Result};
use gpunode_node_tests::{MpsNode, until};
use gpunode_scenario::ComputeMode;
use rustix::{
    fs::{Mode, OFlags, mkdirat, openat},
    io::Errno,
    process::{Signal, kill_process},
};
use std::{
    fs,
    os::unix::fs::{MetadataExt as _, symlink},
    path::Path,
    time::Duration,
};

#[tokio::test]
#[ignore = "needs root: make test"]
async fn what_containers_write_to_is_no_memory_of_the_hosts_run() -> Result<()> {
    let (mps, gpu, mut agent) = MpsNode::supervised()?;
    mps.answers(&gpu).await?;
    let mounts = mps.host.mounts(&gpu)?;
    assert_eq!(mounts.len(), 2, "{mounts:?}");
    assert!(
        mounts
            .iter()
            .all(|mount| mount.contains(" rw,nosuid,nodev,noexec,") && mount.contains("nosymfollow")),
        "{mounts:?}"
    );
    for (name, mode) in [("shm", 0o1777), ("pipe", 0o755)] {
        let (folder, mounted) = (fs::metadata(mps.path(&gpu, ""))?, fs::metadata(mps.path(&gpu, name))?);
        assert_ne!(mounted.dev(), folder.dev(), "{name}");
        assert_eq!(mounted.mode() & 0o7777, mode, "{name}");
    }
    let file_system = |name| -> Result<(u64, u64)> {
        let found = rustix::fs::statvfs(mps.path(&gpu, name))?;
        Ok((found.f_blocks * found.f_frsize, found.f_files))
    };
    assert_eq!(file_system("pipe")?, (16 * 1024 * 1024, 512));
    assert_eq!(file_system("shm")?, (shm_size()?, 16 * 1024));
    // Another supervisor mounts nothing over it.
    fs::write(mps.path(&gpu, "shm/of-a-client"), "")?;
    agent.kill().await?;
    let agent = mps.supervisor()?;
    agent.logs("MPS control daemon answers").await?;
    assert_eq!(mps.host.mounts(&gpu)?, mounts);
    assert!(mps.path(&gpu, "shm/of-a-client").exists());
    Ok(())
}

/// An eighth of the memory, in whole pages.
fn shm_size() -> Result<u64> {
    let text = fs::read_to_string("/proc/meminfo")?;
    let total = text
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:"))
        .context("MemTotal")?;
    let bytes = total.trim().trim_end_matches(" kB").parse::<u64>()? * 1024 / 8;
    Ok(bytes.max(64 * 1024 * 1024).next_multiple_of(4096))
}

#[tokio::test]
#[ignore = "needs root: make test"]
async fn what_a_client_left_keeps_no_daemon_from_starting_and_leads_nowhere() -> Result<()> {
    let (mps, gpu, agent) = MpsNode::supervised()?;
    let daemon = mps.answers(&gpu).await?;
    // A daemon that follows it writes to a file of the host.
    let (file, link) = (mps.node.state_dir().join("of-the-host"), mps.path(&gpu, "pipe/link"));
    fs::write(&file, "")?;
    symlink(&file, &link)?;
    assert_eq!(
        fs::read(&link).err().and_then(|error| error.raw_os_error()),
        Some(Errno::LOOP.raw_os_error())
    );
    // Folders in folders, until there can be no more.
    for name in ["pipe", "shm"] {
        let mut folder = fs::File::open(mps.path(&gpu, name))?;
        while mkdirat(&folder, "d", Mode::RWXU).is_ok() {
            folder = openat(&folder, "d", OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?.into();
        }
    }
    kill_process(daemon, Signal::KILL)?;
    let again = || (agent.logged("MPS control daemon started") == 2).then_some(());
    until("it was started again", again).await?;
    for name in ["pipe/d", "pipe/link", "shm/d"] {
        assert!(mps.path(&gpu, name).symlink_metadata().is_err(), "{name}");
    }
    assert!(mps.client(&gpu, "10", "0=3276M")?.is_served()?);
    Ok(())
}

#[tokio::test]
#[ignore = "needs root: make test"]
async fn a_removal_leaves_no_mount_behind_though_containers_still_have_it() -> Result<()> {
    let (mps, gpu, _supervisor) = MpsNode::supervised()?;
    mps.answers(&gpu).await?;
    let (shm, dev_shm) = (mps.place(&gpu, "shm"), Path::new("/dev/shm"));
    let client = mps.host.of_container("private", &shm, dev_shm)?;
    // An agent that sees what the host mounts, and a container that sees what was mounted when it started.
    let agent = mps.host.of_container("slave", &shm, Path::new("/mnt"))?;
    let other = mps.host.of_container("private", &shm, Path::new("/mnt"))?;
    let file = client.path(&dev_shm.join("of-a-client"));
    fs::write(&file, "kept")?;
    // A process of the host keeps it busy.
    let _open = fs::File::open(mps.path(&gpu, "shm/of-a-client"))?;

    mps.assign(&[])?;
    mps.is_gone(&gpu).await?;
    for namespace in [&mps.host, &agent, &client, &other] {
        let mounts = namespace.mounts(&shm.display().to_string())?;
        assert!(mounts.is_empty(), "{mounts:?}");
    }
    // A container that has not ended yet keeps what it has.
    assert_eq!(fs::read_to_string(&file)?, "kept");

    mps.assign(&[&gpu])?;
    mps.answers(&gpu).await?;
    assert_eq!(mps.host.mounts(&gpu)?.len(), 2);
    assert!(!mps.path(&gpu, "shm/of-a-client").exists());
    Ok(())
}

#[tokio::test]
#[ignore = "needs root: make test"]
async fn a_supervisor_killed_while_it_mounts_or_unmounts_leaves_nothing_that_the_next_does_not_end() -> Result<()> {
    let mps = MpsNode::new()?;
    let gpu = mps.gpu(0)?;
    // Folders made and nothing mounted, then one of two mounted or unmounted.
    for name in ["pipe", "shm"] {
        for mounted in [false, true] {
            let folder = mps.place(&gpu, name);
            fs::create_dir_all(&folder)?;
            if mounted {
                let mut mount = mps.host.command("mount");
                let status = mount.args(["-t", "tmpfs", "gpunode-mps"]).arg(&folder).status()?;
                assert!(status.success());
            }
            mps.assign(&[])?;
            let mut agent = mps.supervisor()?;
            mps.is_gone(&gpu).await?;
            assert!(mps.host.mounts(&gpu)?.is_empty());
            agent.kill().await?;
        }
        fs::create_dir_all(mps.place(&gpu, name))?;
        mps.assign(&[&gpu])?;
        let mut agent = mps.supervisor()?;
        mps.answers(&gpu).await?;
        assert_eq!(mps.host.mounts(&gpu)?.len(), 2);
        mps.assign(&[])?;
        mps.is_gone(&gpu).await?;
        agent.kill().await?;
    }
    Ok(())
}

#[tokio::test]
#[ignore = "needs root: make test"]
async fn a_supervisor_killed_at_any_time_leaves_nothing_that_the_next_does_not_end() -> Result<()> {
    let mps = MpsNode::new()?;
    let gpu = mps.gpu(0)?;
    for step in 0..16_u64 {
        let wanted: &[&str] = if step % 2 == 0 { &[&gpu] } else { &[] };
        mps.assign(wanted)?;
        let mut agent = mps.supervisor()?;
        agent.logs("serving /livez").await?;
        // No wait for anything: the moment of the kill is what differs.
        tokio::time::sleep(Duration::from_millis(5 * step)).await;
        agent.kill().await?;
        assert!(mps.host.mounts(&gpu)?.len() <= 2);
    }
    mps.assign(&[&gpu])?;
    let agent = mps.supervisor()?;
    agent.logs("MPS control daemon answers").await?;
    assert_eq!(mps.host.mounts(&gpu)?.len(), 2);
    assert!(
        mps.client(&gpu, "10", "0=3276M")?
            .limits
            .trim()
            .ends_with("shared_memory=true")
    );
    mps.assign(&[])?;
    mps.is_gone(&gpu).await?;
    assert!(mps.host.mounts(&gpu)?.is_empty());
    assert_eq!(mps.compute_mode(0)?, ComputeMode::Default);
    Ok(())
}
