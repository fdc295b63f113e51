//! The agent is killed at random moments while pods come and go. What kubelet, kernel, agent and GpuNode say agrees at the end,
//! and no unit was given out twice on the way.

use crate::{samples, sharing::await_holders};
use anyhow::{Context, Result, ensure};
use gpunode_cluster::Signal;
use gpunode_e2e::{HeldRecorder, Lab, NAMESPACE, T4, eventually};
use std::{
    env,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

/// Seconds of killing; `make soak` sets more.
const DURATION: &str = "GPUNODE_SOAK_SECONDS";
/// Variable with the seed of an earlier run, which repeats its moments as far as the kernel allows.
const SEED: &str = "GPUNODE_SOAK_SEED";
/// A kubelet starts a container that died often again only after minutes, so that most agents are started in a new pod.
const LIMIT: Duration = Duration::from_mins(3);
const RESOURCE: &str = "nvidia.com/gpu";
const REPLICAS: usize = 4;
const UNITS: u64 = 16;
const AT_THE_END: usize = 6;

/// Steele, Lea and Flood's SplitMix64.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % end
    }
}

fn number(name: &str) -> Result<Option<u64>> {
    let value = env::var(name).ok();
    value
        .map(|value| value.parse().with_context(|| format!("read {name}: {value:?}")))
        .transpose()
}

/// Kills the agent; returns false if none runs.
fn kill_agent(lab: &Lab) -> bool {
    // Between two lives there is no pod, or no process in it.
    let kill = || {
        let pod = lab.agent_pod(T4, "device-plugin")?;
        lab.cluster()
            .node(T4)?
            .container_process(NAMESPACE, &pod, "agent")?
            .signal(Signal::KILL)
    };
    kill().is_ok()
}

#[test]
#[ignore = "needs the local cluster: make test, make soak"]
fn an_agent_killed_at_random_moments_never_gives_a_unit_out_twice() -> Result<()> {
    let lab = Lab::enter()?;
    let nanos = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .context("read the clock")?
        .subsec_nanos();
    let seed = number(SEED)?.unwrap_or(nanos.into());
    let duration = Duration::from_secs(number(DURATION)?.unwrap_or(60));
    println!("{SEED}={seed}, {duration:?}");
    let mut random = Random(seed);
    lab.apply(&samples::sharing(
        "inference",
        &format!("{{resources: [{{name: {RESOURCE}, sharing: {{strategy: TimeSlicing, replicas: {REPLICAS}}}}}]}}"),
    ))?;
    lab.await_allocatable(T4, RESOURCE, UNITS)?;
    lab.apply(&samples::holding("restless", "inference", AT_THE_END, RESOURCE, 1))?;
    let scale = |pods: u64| lab.kubectl(&["scale", "deployment/restless", &format!("--replicas={pods}")]);
    let recorder = HeldRecorder::start(&lab, T4)?;
    let (start, mut kills) = (Instant::now(), 0);
    while start.elapsed() < duration {
        scale(random.below(UNITS + 1))?;
        // Not a wait for something: the moment is what varies.
        std::thread::sleep(Duration::from_millis(random.below(1500)));
        kills += u32::from(kill_agent(&lab));
        if random.below(2) == 0 {
            let selector = "app.kubernetes.io/component=device-plugin";
            let delete = ["delete", "pods", "-n", NAMESPACE, "-l", selector, "--field-selector"];
            let rest = [
                &format!("spec.nodeName={T4}"),
                "--grace-period=0",
                "--force",
                "--wait=false",
            ];
            lab.kubectl(&[&delete[..], &rest[..]].concat())?;
        }
    }
    println!("{kills} kills");
    ensure!(kills > 0, "no agent was ever found to kill");

    scale(u64::try_from(AT_THE_END)?)?;
    eventually("the agent runs again", LIMIT, || lab.await_plugin(T4))?;
    lab.await_allocatable(T4, RESOURCE, UNITS)?;
    eventually("the pods run", LIMIT, || lab.await_running("restless", AT_THE_END))?;
    await_holders(&lab, T4, AT_THE_END)?;
    eventually("GpuNode.status counts what is in use", LIMIT, || {
        let in_use = lab.get(&["gpunode", T4])?["status"]["inUse"].clone();
        ensure!(in_use == format!("{RESOURCE} {AT_THE_END}/{UNITS}"), "it says {in_use}");
        Ok(())
    })?;
    recorder.finish()?.check_never_overcommitted(REPLICAS)
}
