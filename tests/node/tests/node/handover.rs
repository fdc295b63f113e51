//! An agent is replaced without a gap that anybody could see, and a successor that does not work changes nothing.

use anyhow::{Context as _, Result, ensure};
use gpunode_node_tests::{Agent, FakeKubelet, Image, Node, Stopwatch, until};
use rustix::process::Signal;
use std::{
    fs::{self, File},
    io::{BufRead as _, BufReader, Write as _},
    os::unix::{fs::PermissionsExt as _, net::UnixStream},
    time::Duration,
};
use tokio::time::{Instant, sleep, timeout};

const GPU: &str = "nvidia.com/gpu";
/// From the end of the old stream to the new first list.
const GAP: Duration = Duration::from_millis(100);
const REPLACEMENTS: usize = 20;
/// An agent that has handed over takes a lock that is free at two looks in a row, which are this far apart.
const LOOKS: Duration = Duration::from_millis(200);

async fn serving() -> Result<(Node, FakeKubelet, Agent)> {
    let node = Node::with_v100()?;
    node.configure("")?;
    let kubelet = FakeKubelet::start(node.device_plugins())?;
    let agent = Agent::run_in_pod(&node, "first", Image::Good)?;
    agent.await_ready().await?;
    served_again(&kubelet, 0).await?;
    Ok((node, kubelet, agent))
}

/// A node whose lock somebody holds, without an agent.
fn locked() -> Result<(Node, FakeKubelet, File)> {
    let node = Node::with_v100()?;
    node.configure("")?;
    let kubelet = FakeKubelet::start(node.device_plugins())?;
    fs::create_dir_all(node.state_dir())?;
    let lock = File::create(node.state_dir().join("agent.lock"))?;
    lock.lock()?;
    Ok((node, kubelet, lock))
}

/// Waits until the kubelet has all GPUs from a registration after so many.
async fn served_again(kubelet: &FakeKubelet, registrations: usize) -> Result<()> {
    kubelet
        .has(GPU, |it| it.registrations > registrations && it.healthy().len() == 8)
        .await
        .map(drop)
}

#[tokio::test]
async fn a_successor_takes_over_and_the_one_before_only_waits_for_its_end() -> Result<()> {
    let (node, kubelet, first) = serving().await?;
    kubelet.admit("pod", "main", GPU, 2).await?;
    let second = Agent::run_in_pod(&node, "second", Image::Good)?;
    second.await_ready().await?;
    first.logs("the successor serves the node").await?;
    assert!(
        first
            .readyz()
            .await?
            .contains("LetGo: another agent of this node has taken over")
    );
    assert!(first.get("/livez").await?.starts_with("HTTP/1.1 200"));
    let endpoint = kubelet
        .has(GPU, |it| it.registrations == 2 && it.healthy().len() == 8)
        .await?;
    assert_eq!((kubelet.in_use(GPU).len(), node.sockets()?), (2, vec![endpoint.socket]));
    // Its socket takes the place of that of the one before.
    let socket = until("its socket", || fs::metadata(node.state_dir().join("agent.sock")).ok()).await?;
    let mode = socket.permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    Ok(())
}

/// The figure of `docs/benchmarks.md` is measured at a real kubelet (`tests/e2e`).
#[tokio::test]
async fn twenty_replacements_in_a_row_leave_gaps_of_less_than_100_ms() -> Result<()> {
    let (node, kubelet, mut agent) = serving().await?;
    let mut gaps = Vec::new();
    for round in 1..=REPLACEMENTS {
        let lists = kubelet.messages(GPU).len();
        let round_start = Stopwatch::start();
        let next = Agent::run_in_pod(&node, &format!("pod-{round}"), Image::Good)?;
        next.await_ready().await?;
        let message = until("the new first list", || kubelet.messages(GPU).into_iter().nth(lists)).await?;
        let ended = *kubelet.ends(GPU).get(round - 1).context("the end of the old stream")?;
        let gap = message.at.saturating_duration_since(ended);
        gaps.push(gap.saturating_sub(round_start.stalled()));
        let healthy = message
            .devices
            .iter()
            .filter(|device| device.health == "Healthy")
            .count();
        ensure!(healthy == 8, "the first list has {healthy} healthy GPUs");
        agent.logs("the successor serves the node").await?;
        agent.stop().await?;
        agent = next;
        ensure!(
            kubelet.endpoint(GPU).healthy().len() == 8,
            "it stays served when the old pod ends"
        );
    }
    ensure!(
        kubelet.endpoint(GPU).registrations == REPLACEMENTS + 1,
        "nobody registered twice"
    );
    ensure!(gaps.iter().all(|gap| *gap <= GAP), "gaps {gaps:?}");
    Ok(())
}

#[tokio::test]
async fn an_image_that_does_not_find_the_driver_never_takes_over() -> Result<()> {
    let (node, kubelet, first) = serving().await?;
    let broken = Agent::run_in_pod(&node, "broken", Image::WithoutDriver)?;
    broken
        .logs("the successor could not serve the devices that this agent serves")
        .await?;
    assert!(broken.readyz().await?.contains("WaitingForPredecessor"));
    first.await_ready().await?;
    let endpoint = kubelet.endpoint(GPU);
    assert_eq!((endpoint.registrations, endpoint.healthy().len()), (1, 8));
    Ok(())
}

#[tokio::test]
async fn an_agent_without_driver_lets_a_successor_without_driver_take_over() -> Result<()> {
    let node = Node::with_v100()?;
    node.configure("")?;
    let _kubelet = FakeKubelet::start(node.device_plugins())?;
    let first = Agent::run_in_pod(&node, "first", Image::WithoutDriver)?;
    first.await_ready().await?;
    let second = Agent::run_in_pod(&node, "second", Image::WithoutDriver)?;
    second.await_ready().await?;
    first.logs("the successor serves the node").await?;
    Ok(())
}

#[tokio::test]
async fn a_successor_that_cannot_register_gives_back_and_the_one_before_takes_back() -> Result<()> {
    let (node, kubelet, first) = serving().await?;
    let broken = Agent::run_in_pod(&node, "broken", Image::WithoutKubelet)?;
    broken.logs("asking the agent that holds the lock").await?;
    kubelet.is_gone(GPU).await?;
    // It tries for 20 s.
    broken.logs("returning the lock").await?;
    first.logs("taking over again").await?;
    served_again(&kubelet, 1).await?;
    first.await_ready().await?;
    let record = fs::read_to_string(node.state_dir().join("handover.json"))?;
    assert!(record.contains(r#""pod":"broken"},"times":1"#), "{record}");
    let asked = broken.logged("asking the agent that holds the lock");
    assert_eq!(
        (asked, kubelet.endpoint(GPU).registrations),
        (1, 2),
        "it asks again after a pause alone"
    );
    Ok(())
}

#[tokio::test]
async fn a_kill_of_the_successor_at_any_step_leaves_the_node_served() -> Result<()> {
    let (node, kubelet, first) = serving().await?;
    for (round, step) in [
        "hardware found",
        "asking the agent that holds",
        "registered with the kubelet",
        "took over from the previous agent",
    ]
    .into_iter()
    .enumerate()
    {
        let mut killed = Agent::run_in_pod(&node, &format!("pod-{round}"), Image::Good)?;
        killed.logs(step).await?;
        killed.kill().await?;
        let serving = || {
            let endpoint = kubelet.endpoint(GPU);
            let sockets = node.sockets().ok()?;
            (endpoint.healthy().len() == 8 && sockets == [endpoint.socket]).then_some(())
        };
        until(&format!("the node is served after a kill at {step:?}"), serving).await?;
        first.await_ready().await?;
    }
    // Nobody's state is left in a way that keeps a good one out.
    let good = Agent::run_in_pod(&node, "good", Image::Good)?;
    good.await_ready().await?;
    first.logs("the successor serves the node").await.map(drop)
}

#[tokio::test]
async fn a_kill_of_the_one_before_at_any_step_leaves_the_node_served() -> Result<()> {
    let (node, kubelet, mut agent) = serving().await?;
    for (round, step) in [
        "hardware found",
        "asking the agent that holds",
        "registered with the kubelet",
        "took over from the previous agent",
    ]
    .into_iter()
    .enumerate()
    {
        let next = Agent::run_in_pod(&node, &format!("pod-{round}"), Image::Good)?;
        next.logs(step).await?;
        agent.kill().await?;
        next.await_ready()
            .await
            .with_context(|| format!("after a kill at {step:?}"))?;
        served_again(&kubelet, round + 1).await?;
        agent = next;
    }
    Ok(())
}

#[tokio::test]
async fn of_two_successors_at_once_one_is_served_and_nobody_fights() -> Result<()> {
    let (node, kubelet, first) = serving().await?;
    let second = Agent::run_in_pod(&node, "second", Image::Good)?;
    let third = Agent::run_in_pod(&node, "third", Image::Good)?;
    // Each of them takes over once; the last one stays.
    first.logs("handing over to a successor").await?;
    let settled = || {
        let took = second.logged("registered with the kubelet") + third.logged("registered with the kubelet");
        (took == 2 && kubelet.endpoint(GPU).healthy().len() == 8).then_some(())
    };
    until("both have had their turn", settled).await?;
    // That nobody takes the node from the last one can only be waited for.
    sleep(Duration::from_secs(2)).await;
    assert_eq!((kubelet.endpoint(GPU).registrations, node.sockets()?.len()), (3, 1));
    let mut ready = 0;
    for agent in [&first, &second, &third] {
        ready += usize::from(agent.readyz().await?.starts_with("HTTP/1.1 200"));
    }
    assert_eq!(ready, 1);
    Ok(())
}

#[tokio::test]
async fn the_container_of_a_pod_that_has_handed_over_sends_no_request_when_it_restarts() -> Result<()> {
    let (node, kubelet, mut first) = serving().await?;
    let mut second = Agent::run_in_pod(&node, "second", Image::Good)?;
    second.await_ready().await?;
    let record = || {
        fs::read_to_string(node.state_dir().join("handover.json"))
            .ok()?
            .contains("first")
            .then_some(())
    };
    until("the record says who has let go", record).await?;
    first.kill().await?;
    let again = Agent::run_in_pod(&node, "first", Image::Good)?;
    again.logs("configuration in force").await?;
    sleep(Duration::from_secs(1)).await;
    assert_eq!(
        (again.logged("asking the agent"), kubelet.endpoint(GPU).registrations),
        (0, 2)
    );
    // Where nobody is at work it is better than nothing.
    second.stop().await?;
    served_again(&kubelet, 2).await
}

#[tokio::test]
async fn an_agent_without_a_socket_is_waited_for() -> Result<()> {
    let (node, kubelet, older) = locked()?;
    // An older version: it has the lock and no socket; and a socket that one left that was killed.
    drop(std::os::unix::net::UnixListener::bind(
        node.state_dir().join("agent.sock"),
    )?);
    let successor = Agent::run_in_pod(&node, "second", Image::Good)?;
    successor.logs("WaitingForPredecessor").await?;
    successor.logs("hardware found").await?;
    sleep(Duration::from_secs(1)).await;
    assert_eq!(kubelet.endpoint(GPU).registrations, 0);
    drop(older);
    successor.await_ready().await
}

#[tokio::test]
async fn what_the_driver_reported_long_before_a_take_over_is_not_the_successors() -> Result<()> {
    let (node, kubelet, holder) = locked()?;
    let successor = Agent::run_in_pod(&node, "second", Image::Good)?;
    successor.logs("following driver events").await?;
    node.state()?.inject_xid(3, 46)?;
    // The time is what is tried: what came within some seconds may have come between the two.
    sleep(Duration::from_secs(8)).await;
    node.state()?.inject_xid(5, 46)?;
    drop(holder);
    successor.logs("device is faulty").await?;
    let broken = node.uuids()?[5].clone();
    kubelet
        .has(GPU, |it| it.healthy().len() == 7 && !it.healthy().contains(&broken))
        .await?;
    assert_eq!(successor.logged("device is faulty"), 1);
    Ok(())
}

#[tokio::test]
async fn whoever_talks_nonsense_to_the_holder_changes_nothing() -> Result<()> {
    let (node, kubelet, first) = serving().await?;
    let socket = node.state_dir().join("agent.sock");
    let say = |text: &str| -> Result<String> {
        let mut stream = UnixStream::connect(&socket)?;
        stream.set_read_timeout(Some(Duration::from_secs(10)))?;
        stream.write_all(text.as_bytes())?;
        let mut answer = String::new();
        BufReader::new(stream).read_line(&mut answer)?;
        Ok(answer)
    };
    assert_eq!(say("{\"ping\":{}}\n")?, "{\"holding\":{}}\n");
    for nonsense in ["\n", "{}\n", "{\"serving\":{}}\n", "{\"sing\":{}}\n", &"a".repeat(2000)] {
        let answer = say(nonsense).unwrap_or_default();
        assert!(answer.is_empty() || answer.contains("refused"), "{answer}");
    }
    // Silent ones do not keep a successor out for long.
    let silent: Vec<_> = (0..10)
        .map(|_| UnixStream::connect(&socket))
        .collect::<Result<_, _>>()?;
    assert_eq!(kubelet.endpoint(GPU).registrations, 1);
    let second = Agent::run_in_pod(&node, "second", Image::Good)?;
    second.await_ready().await?;
    drop(silent);
    first.logs("the successor serves the node").await.map(drop)
}

#[tokio::test]
async fn one_that_asks_and_goes_away_leaves_the_node_served() -> Result<()> {
    let (node, kubelet, first) = serving().await?;
    let ask = || -> Result<(UnixStream, String)> {
        let mut stream = UnixStream::connect(node.state_dir().join("agent.sock"))?;
        stream.write_all(b"{\"letGo\":{\"version\":\"9\",\"pod\":\"x\"}}\n")?;
        let mut answer = String::new();
        BufReader::new(&stream).read_line(&mut answer)?;
        Ok((stream, answer))
    };
    // It goes without the lock.
    let (stream, answer) = ask()?;
    assert_eq!(answer, "{\"released\":{\"pod\":\"first\"}}\n");
    drop(stream);
    served_again(&kubelet, 1).await?;
    until("its socket is back", || {
        UnixStream::connect(node.state_dir().join("agent.sock")).ok()
    })
    .await?;
    // It takes the lock, and keeps it for a while after it has gone.
    let (stream, _) = ask()?;
    let lock = File::options().write(true).open(node.state_dir().join("agent.lock"))?;
    lock.lock()?;
    drop(stream);
    until("it is noticed", || {
        (first.logged("the successor has not taken over") == 2).then_some(())
    })
    .await?;
    kubelet.is_gone(GPU).await?;
    drop(lock);
    served_again(&kubelet, 2).await?;
    first.await_ready().await
}

#[tokio::test]
async fn a_holder_that_was_stopped_lets_go_to_nobody_who_has_given_up_meanwhile() -> Result<()> {
    let (node, kubelet, first) = serving().await?;
    let socket = node.state_dir().join("agent.sock");
    first.signal(Signal::STOP)?;
    let mut gone = UnixStream::connect(&socket)?;
    gone.write_all(b"{\"letGo\":{\"version\":\"9\",\"pod\":\"x\"}}\n")?;
    drop(gone);
    first.signal(Signal::CONT)?;
    // It has read what came before.
    let mut ping = UnixStream::connect(&socket)?;
    ping.write_all(b"{\"ping\":{}}\n")?;
    let mut answer = String::new();
    BufReader::new(ping).read_line(&mut answer)?;
    sleep(Duration::from_secs(1)).await;
    assert_eq!(
        (
            first.logged("handing over to a successor"),
            kubelet.endpoint(GPU).registrations
        ),
        (0, 1),
        "{answer}"
    );
    first.await_ready().await
}

#[tokio::test]
async fn an_agent_that_has_handed_over_does_not_come_between_two_others() -> Result<()> {
    let (node, kubelet, first) = serving().await?;
    let mut stream = UnixStream::connect(node.state_dir().join("agent.sock"))?;
    stream.write_all(b"{\"letGo\":{\"version\":\"9\",\"pod\":\"x\"}}\n")?;
    BufReader::new(&stream).read_line(&mut String::new())?;
    let lock = File::options().write(true).open(node.state_dir().join("agent.lock"))?;
    lock.lock()?;
    stream.write_all(b"{\"serving\":{}}\n")?;
    first.logs("the successor serves the node").await?;
    for _ in 0..12 {
        sleep(Duration::from_secs(1)).await;
        lock.unlock()?;
        let unlocked = Instant::now();
        sleep(Duration::from_millis(20)).await;
        // A look at the lock holds it for a moment.
        let mut is_taken = lock.try_lock().is_err();
        let free = unlocked.elapsed();
        if is_taken {
            let again = until("the lock is free", || lock.try_lock().ok());
            is_taken = timeout(Duration::from_secs(2), again).await.is_err();
        }
        if is_taken {
            // A lock that is free for longer, because the machine is busy, belongs to an agent that looks twice.
            assert!(free >= LOOKS, "it took a lock that was free for {free:?}");
            return served_again(&kubelet, 1).await;
        }
    }
    drop(lock);
    served_again(&kubelet, 1).await
}

#[tokio::test]
async fn a_socket_that_somebody_removed_is_made_again() -> Result<()> {
    let (node, _kubelet, first) = serving().await?;
    fs::remove_file(node.state_dir().join("agent.sock"))?;
    let second = Agent::run_in_pod(&node, "second", Image::Good)?;
    second.await_ready().await?;
    first.logs("the successor serves the node").await.map(drop)
}

#[tokio::test]
async fn sigterm_of_the_holder_hands_over_to_one_that_stands_by() -> Result<()> {
    let (node, kubelet, mut first) = serving().await?;
    // One that is refused goes on standing by.
    let broken = Agent::run_in_pod(&node, "second", Image::WithoutDriver)?;
    broken.logs("the successor could not serve").await?;
    let start = Stopwatch::start();
    first.stops_at_once().await?;
    broken.await_ready().await?;
    assert!(start.elapsed() < Duration::from_secs(2));
    // It has no driver, and offers nothing but what is assigned.
    kubelet
        .has(GPU, |it| it.registrations == 2 && it.healthy().is_empty())
        .await
        .map(drop)
}

#[tokio::test]
async fn sigterm_in_the_midst_of_a_hand_over_ends_either_within_a_second() -> Result<()> {
    let (node, kubelet, mut first) = serving().await?;
    let mut broken = Agent::run_in_pod(&node, "second", Image::WithoutKubelet)?;
    first.logs("handing over to a successor").await?;
    broken.stops_at_once().await?;
    served_again(&kubelet, 1).await?;
    let _third = Agent::run_in_pod(&node, "third", Image::WithoutKubelet)?;
    until("it lets go again", || {
        (first.logged("handing over to a successor") == 2).then_some(())
    })
    .await?;
    first.signal(Signal::HUP)?;
    first.stops_at_once().await?;
    Ok(())
}
