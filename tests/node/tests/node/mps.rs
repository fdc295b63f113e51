//! The supervisor of MPS control daemons. The daemon is a stand-in: nothing here was run with NVIDIA's.

use anyhow::{Context as _, Result};
use gpunode_node_tests::{MpsNode, PodResourcesAnswer, Stopwatch, until};
use gpunode_scenario::ComputeMode;
use rustix::process::{Signal, kill_process};
use std::{fs, os::unix::fs::MetadataExt as _, time::Duration};

#[tokio::test]
#[ignore = "needs root: make test"]
async fn each_device_has_a_daemon_of_its_own_in_exclusive_mode() -> Result<()> {
    let mps = MpsNode::new()?;
    let (one, two) = (mps.gpu(1)?, mps.gpu(2)?);
    mps.assign(&[&one, &two])?;
    let agent = mps.supervisor()?;
    assert_ne!(mps.answers(&one).await?, mps.answers(&two).await?);
    assert!(agent.readyz().await?.starts_with("HTTP/1.1 200"));
    let modes = [0, 1, 2].map(|gpu| mps.compute_mode(gpu));
    let expected = [
        ComputeMode::Default,
        ComputeMode::ExclusiveProcess,
        ComputeMode::ExclusiveProcess,
    ];
    for (mode, expected) in modes.into_iter().zip(expected) {
        assert_eq!(mode?, expected);
    }
    // The daemon sees what is mounted there as its /dev/shm.
    assert!(mps.path(&one, "shm/nvidia-mps-stand-in").exists());
    // It goes on being asked.
    let first = fs::read_to_string(mps.path(&one, "answered"))?;
    until("a later answer", || {
        (fs::read_to_string(mps.path(&one, "answered")).ok()? != first).then_some(())
    })
    .await
}

#[tokio::test]
#[ignore = "needs root: make test"]
async fn a_client_gets_the_smaller_of_the_daemons_and_its_own_limit() -> Result<()> {
    let (mps, gpu, _agent) = MpsNode::supervised()?;
    mps.answers(&gpu).await?;
    for (percentage, memory) in [("10", "0=3276M"), ("50", "0=16384M")] {
        let client = mps.client(&gpu, percentage, memory)?;
        let expected =
            format!("active_thread_percentage={percentage} pinned_device_mem_limit={memory} shared_memory=true");
        assert_eq!(client.limits.trim(), expected);
    }
    Ok(())
}

#[tokio::test]
#[ignore = "needs root: make test"]
async fn clients_of_several_users_are_served_at_once_where_the_daemon_can() -> Result<()> {
    let (mps, gpu, _agent) = MpsNode::supervised()?;
    mps.answers(&gpu).await?;
    let mut first = mps.client(&gpu, "10", "0=3276M")?;
    let mut second = mps.client_of(1000, &gpu, "10", "0=3276M")?;
    assert!(first.is_served()? && second.is_served()?);
    Ok(())
}

#[tokio::test]
#[ignore = "needs root: make test"]
async fn an_older_daemon_serves_one_user_after_the_other() -> Result<()> {
    let mps = MpsNode::new()?;
    mps.install_older_program()?;
    let gpu = mps.gpu(0)?;
    mps.assign(&[&gpu])?;
    let agent = mps.supervisor()?;
    let daemon = mps.answers(&gpu).await?;
    let command = fs::read(format!("/proc/{}/cmdline", daemon.as_raw_nonzero()))?;
    assert!(command.ends_with(b"\0-d\0"), "{}", String::from_utf8_lossy(&command));
    let first = mps.client(&gpu, "10", "0=3276M")?;
    let mut second = mps.waiting_client(1000, &gpu, "10", "0=3276M")?;
    assert!(second.await_limits(Duration::from_secs(1)).is_err());
    drop(first);
    second.await_limits(Duration::from_mins(1))?;
    assert!(second.is_served()?);
    assert_eq!(agent.logged("cannot bring the MPS control daemon"), 0);
    Ok(())
}

#[tokio::test]
#[ignore = "needs root: make test"]
async fn the_compute_mode_is_set_again_after_a_driver_reload_and_after_a_death() -> Result<()> {
    let (mps, gpu, agent) = MpsNode::supervised()?;
    let daemon = mps.answers(&gpu).await?;
    let is_set = || (mps.compute_mode(0).ok()? == ComputeMode::ExclusiveProcess).then_some(());
    until("the mode is set", is_set).await?;
    // A driver that is loaded again has forgotten what was set.
    mps.node.state()?.reboot()?;
    mps.node.load_module()?;
    until("the mode is set for the same daemon", is_set).await?;
    assert_eq!(mps.daemon(&gpu), Some(daemon));
    assert_eq!(agent.logged("MPS control daemon started"), 1);
    // So has one whose GPU was reset, which ends the daemon.
    mps.node.state()?.reboot()?;
    kill_process(daemon, Signal::KILL)?;
    until("the mode is set for the next daemon", is_set).await?;
    assert_ne!(mps.answers(&gpu).await?, daemon);
    // What is restored later is what was before.
    assert_eq!(fs::read_to_string(mps.path(&gpu, "compute-mode"))?, "Default");
    Ok(())
}

#[tokio::test]
#[ignore = "needs root: make test"]
async fn no_daemon_uses_a_driver_whose_container_is_not_ready() -> Result<()> {
    let mps = MpsNode::new()?;
    let validations = mps.node.host_root().join("run/nvidia/validations");
    fs::create_dir(&validations)?;
    let gpu = mps.gpu(0)?;
    mps.assign(&[&gpu])?;
    let agent = mps.supervisor()?;
    agent.logs("the driver's container is not ready").await?;
    assert_eq!(mps.compute_mode(0)?, ComputeMode::Default);
    assert_eq!(mps.daemon(&gpu), None);
    fs::write(validations.join(".driver-ctr-ready"), "")?;
    mps.answers(&gpu).await?;
    assert_eq!(mps.compute_mode(0)?, ComputeMode::ExclusiveProcess);
    Ok(())
}

#[tokio::test]
#[ignore = "needs root: make test"]
async fn a_daemon_that_lives_is_asked_once_a_minute() -> Result<()> {
    let (mps, gpu, _agent) = MpsNode::supervised()?;
    mps.answers(&gpu).await?;
    // Every question needs the program: without it, the answer of the process that lives counts.
    let program = mps
        .node
        .host_root()
        .join("run/nvidia/driver/usr/bin/nvidia-cuda-mps-control");
    fs::rename(&program, program.with_extension("away"))?;
    for _ in 0..3 {
        let before = fs::read_to_string(mps.path(&gpu, "answered"))?;
        until("a later answer", || {
            (fs::read_to_string(mps.path(&gpu, "answered")).ok()? != before).then_some(())
        })
        .await?;
    }
    Ok(())
}

#[tokio::test]
#[ignore = "needs root: make test"]
async fn a_killed_supervisor_takes_no_client_with_it() -> Result<()> {
    let (mps, gpu, mut agent) = MpsNode::supervised()?;
    let daemon = mps.answers(&gpu).await?;
    let mut client = mps.client(&gpu, "10", "0=3276M")?;
    agent.kill().await?;

    fs::remove_file(mps.path(&gpu, "answered"))?;
    let agent = mps.supervisor()?;
    assert_eq!(mps.answers(&gpu).await?, daemon);
    agent.logs("MPS control daemon answers").await?;
    assert_eq!(agent.logged("MPS control daemon started"), 0);
    assert!(client.is_served()?);
    assert_eq!(mps.compute_mode(0)?, ComputeMode::ExclusiveProcess);
    // What it restores later is what was before the first of the two.
    assert_eq!(fs::read_to_string(mps.path(&gpu, "compute-mode"))?, "Default");
    Ok(())
}

#[tokio::test]
#[ignore = "needs root: make test"]
async fn a_killed_daemon_is_started_again_in_the_same_folder() -> Result<()> {
    let (mps, gpu, agent) = MpsNode::supervised()?;
    let first = mps.answers(&gpu).await?;
    let inode = fs::metadata(mps.path(&gpu, "pipe"))?.ino();
    let mut client = mps.client(&gpu, "10", "0=3276M")?;
    for starts in 2..4 {
        let daemon = mps.answers(&gpu).await?;
        kill_process(daemon, Signal::KILL)?;
        let again = || agent.logged("MPS control daemon started") == starts;
        // With a fast supervisor, the next daemon answers before this test checks.
        until("it no longer answers", || {
            (!mps.path(&gpu, "answered").exists() || again()).then_some(())
        })
        .await?;
        until("it was started again", || again().then_some(())).await?;
    }
    assert_ne!(mps.answers(&gpu).await?, first);
    assert!(!client.is_served()?);
    assert_eq!(fs::metadata(mps.path(&gpu, "pipe"))?.ino(), inode);
    assert!(mps.client(&gpu, "10", "0=3276M")?.is_served()?);
    Ok(())
}

#[tokio::test]
#[ignore = "needs root: make test"]
async fn daemon_and_supervisor_killed_together_come_back() -> Result<()> {
    let (mps, gpu, mut agent) = MpsNode::supervised()?;
    let daemon = mps.answers(&gpu).await?;
    agent.kill().await?;
    kill_process(daemon, Signal::KILL)?;
    let inode = fs::metadata(mps.path(&gpu, "pipe"))?.ino();

    let agent = mps.supervisor()?;
    agent.logs("MPS control daemon answers").await?;
    assert_ne!(mps.answers(&gpu).await?, daemon);
    assert_eq!(fs::metadata(mps.path(&gpu, "pipe"))?.ino(), inode);
    Ok(())
}

#[tokio::test]
#[ignore = "needs root: make test"]
async fn a_device_that_is_no_longer_shared_by_mps_is_as_it_was() -> Result<()> {
    let mps = MpsNode::new()?;
    let (one, two) = (mps.gpu(0)?, mps.gpu(1)?);
    mps.assign(&[&one, &two])?;
    let agent = mps.supervisor()?;
    mps.answers(&one).await?;
    let other = mps.answers(&two).await?;

    mps.assign(&[&two])?;
    mps.is_gone(&one).await?;
    agent.logs("MPS control daemon told to quit").await?;
    assert_eq!(mps.compute_mode(0)?, ComputeMode::Default);
    assert_eq!(mps.answers(&two).await?, other);
    assert_eq!(mps.compute_mode(1)?, ComputeMode::ExclusiveProcess);

    mps.assign(&[&one, &two])?;
    mps.answers(&one).await?;
    assert_eq!(mps.compute_mode(0)?, ComputeMode::ExclusiveProcess);
    Ok(())
}

#[tokio::test]
#[ignore = "needs root: make test"]
async fn a_process_of_another_container_that_carries_the_mark_is_no_daemon() -> Result<()> {
    let mps = MpsNode::new()?;
    let gpu = mps.gpu(0)?;
    mps.assign(&[&gpu])?;
    let mut foreign = mps.foreign(&gpu)?;
    let agent = mps.supervisor()?;
    agent.logs("MPS control daemon answers").await?;
    // Its daemon's death is seen in spite of the other.
    let ours = mps.daemons(&gpu).into_iter().find(|pid| *pid != foreign.pid());
    kill_process(ours.context("the daemon")?, Signal::KILL)?;
    let again = || (agent.logged("MPS control daemon started") == 2).then_some(());
    until("it was started again", again).await?;
    // And nothing waits for the other, or ends it.
    mps.assign(&[])?;
    agent.logs("MPS control daemon gone").await?;
    assert!(foreign.is_alive()?);
    assert_eq!(mps.daemons(&gpu), [foreign.pid()]);
    Ok(())
}

#[tokio::test]
#[ignore = "needs root: make test"]
async fn what_an_earlier_supervisor_left_is_cleaned_up() -> Result<()> {
    let (mps, gpu, mut agent) = MpsNode::supervised()?;
    mps.answers(&gpu).await?;
    agent.kill().await?;

    mps.assign(&[])?;
    let _agent = mps.supervisor()?;
    mps.is_gone(&gpu).await?;
    assert_eq!(mps.compute_mode(0)?, ComputeMode::Default);
    Ok(())
}

#[tokio::test]
#[ignore = "needs root: make test"]
async fn a_file_that_cannot_be_read_ends_no_daemon() -> Result<()> {
    let (mps, gpu, mut agent) = MpsNode::supervised()?;
    let daemon = mps.answers(&gpu).await?;

    for (text, problem) in [
        ("{", "EOF while parsing"),
        (r#"{"version":7,"devices":{}}"#, "version 7 is not 1"),
    ] {
        mps.write_assignments(text)?;
        agent.logs(problem).await?;
    }
    // Not even at a start.
    agent.kill().await?;
    let agent = mps.supervisor()?;
    agent.logs("MPS control daemon answers").await?;
    assert_eq!(mps.daemon(&gpu), Some(daemon));

    mps.assign(&["../../outside", "GPU-../../outside", &gpu])?;
    agent.logs("is not the UUID of a device").await?;
    assert_eq!(mps.answers(&gpu).await?, daemon);
    assert!(!mps.node.mps_dir().join("../../outside").exists());
    let entries = fs::read_dir(mps.node.mps_dir())?.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
    let mut entries: Vec<String> = entries.collect::<Result<_>>()?;
    entries.sort();
    assert_eq!(entries, [gpu, "lock".to_owned()]);
    Ok(())
}

#[tokio::test]
#[ignore = "needs root: make test"]
async fn assignments_that_are_lost_end_no_daemon_that_somebody_uses() -> Result<()> {
    let mps = MpsNode::new()?;
    let (used, free) = (mps.gpu(0)?, mps.gpu(1)?);
    mps.assign(&[&used, &free])?;
    let mut agent = mps.supervisor()?;
    let daemon = mps.answers(&used).await?;
    mps.answers(&free).await?;
    let mut client = mps.client(&used, "10", "0=3276M")?;
    mps.hold(&[&used])?;

    // Nor when another supervisor has never seen them.
    for _ in 0..2 {
        fs::remove_file(mps.node.state_dir().join("assignments.json")).ok();
        agent.logs("stays until no container holds the device").await?;
        mps.is_gone(&free).await?;
        assert!(client.is_served()?);
        assert_eq!(mps.compute_mode(0)?, ComputeMode::ExclusiveProcess);
        agent.kill().await?;
        agent = mps.supervisor()?;
    }
    mps.assign(&[&used])?;
    agent.logs("MPS control daemon answers").await?;
    assert_eq!(mps.answers(&used).await?, daemon);
    assert!(client.is_served()?);
    Ok(())
}

#[tokio::test]
#[ignore = "needs root: make test"]
async fn no_daemon_ends_while_the_kubelet_does_not_say_who_uses_it() -> Result<()> {
    let (mps, gpu, agent) = MpsNode::supervised()?;
    let daemon = mps.answers(&gpu).await?;
    mps.kubelet.answer_pod_resources(PodResourcesAnswer::Unavailable);
    mps.assign(&[])?;
    agent.logs("unavailable by the test").await?;
    assert_eq!(mps.daemon(&gpu), Some(daemon));
    // What a dead one left stays as well: containers have it mounted.
    kill_process(daemon, Signal::KILL)?;
    until("the daemon has ended", || mps.daemon(&gpu).is_none().then_some(())).await?;
    mps.kubelet.answer_pod_resources(PodResourcesAnswer::Truth);
    mps.is_gone(&gpu).await
}

#[tokio::test]
#[ignore = "needs root: make test"]
async fn a_driver_without_the_programs_is_named_and_waited_for() -> Result<()> {
    let mps = MpsNode::new()?;
    let program = mps
        .node
        .host_root()
        .join("run/nvidia/driver/usr/bin/nvidia-cuda-mps-control");
    let away = program.with_extension("away");
    fs::rename(&program, &away)?;
    let gpu = mps.gpu(0)?;
    mps.assign(&[&gpu])?;
    let agent = mps.supervisor()?;
    agent.logs("compute utilities").await?;
    fs::rename(&away, &program)?;
    mps.answers(&gpu).await?;
    Ok(())
}

#[tokio::test]
#[ignore = "needs root: make test"]
async fn sigterm_ends_daemons_that_nobody_uses() -> Result<()> {
    let (mps, gpu, mut agent) = MpsNode::supervised()?;
    mps.answers(&gpu).await?;
    let (status, took) = agent.stop().await?;
    assert!(
        status.success() && took < Duration::from_secs(15),
        "{status} after {took:?}"
    );
    mps.is_gone(&gpu).await?;
    assert_eq!(mps.compute_mode(0)?, ComputeMode::Default);
    Ok(())
}

#[tokio::test]
#[ignore = "needs root: make test"]
async fn sigterm_leaves_daemons_that_may_be_in_use_and_restores_the_compute_mode() -> Result<()> {
    let (mps, gpu, mut agent) = MpsNode::supervised()?;
    let daemon = mps.answers(&gpu).await?;
    let mut client = mps.client(&gpu, "10", "0=3276M")?;
    mps.kubelet.answer_pod_resources(PodResourcesAnswer::Unavailable);
    let start = Stopwatch::start();
    agent.signal(Signal::TERM)?;
    until("nobody takes it for answering", || {
        (!mps.path(&gpu, "answered").exists()).then_some(())
    })
    .await?;
    let restored = || (mps.compute_mode(0).ok()? == ComputeMode::Default).then_some(());
    until("the mode is restored", restored).await?;
    assert!(agent.end().await?.success());
    assert!(start.elapsed() < Duration::from_secs(30), "{:?}", start.elapsed());
    assert!(client.is_served()?);
    assert_eq!(mps.daemon(&gpu), Some(daemon));

    let _agent = mps.supervisor()?;
    assert_eq!(mps.answers(&gpu).await?, daemon);
    until("the mode is set again", || {
        (mps.compute_mode(0).ok()? == ComputeMode::ExclusiveProcess).then_some(())
    })
    .await
}

#[tokio::test]
#[ignore = "a measurement: make bench"]
async fn measure_the_probes_of_8_daemons() -> Result<()> {
    let mps = MpsNode::new()?;
    let gpus: Vec<String> = (0..8).map(|gpu| mps.gpu(gpu)).collect::<Result<_>>()?;
    mps.assign(&gpus.iter().map(String::as_str).collect::<Vec<_>>())?;
    let agent = mps.supervisor()?;
    for gpu in &gpus {
        mps.answers(gpu).await?;
    }
    // After a start the probes follow each other faster.
    tokio::time::sleep(Duration::from_secs(10)).await;
    let before = agent.processor_time()?;
    tokio::time::sleep(Duration::from_mins(1)).await;
    let share = agent.processor_time()?.saturating_sub(before).as_secs_f64() / 60.0;
    println!("figure: mps-cpu | {:.3} | %", share * 100.0);
    Ok(())
}
