//! Another configuration while containers run: only what it names changes, and nothing is given out twice.

use anyhow::Result;
use gpunode_node_tests::{Agent, Endpoint, Lab, MpsDaemons, Node, Rejection, node_of, until};

const GPU: &str = "nvidia.com/gpu";
const SHARED: &str = "nvidia.com/gpu.shared";
const MEMORY: &str = "aliyun.com/gpu-mem";
const MPS: &str = "nvidia.com/gpu.mps";

const WHOLE: &str = "resources: [{name: nvidia.com/gpu}]";
const TWO: &str = "resources: [{name: nvidia.com/gpu, sharing: {strategy: TimeSlicing, replicas: 2}}]";
const RENAMED: &str =
    "resources: [{name: nvidia.com/gpu, sharing: {strategy: TimeSlicing, replicas: 2, renameByDefault: true}}]";

const UNITS: &str = "resources: [{name: nvidia.com/gpu, sharing: {strategy: Memory}}]";

fn two_t4() -> Result<Node> {
    node_of(&["Tesla T4", "Tesla T4"])
}

#[tokio::test]
async fn resources_that_a_change_does_not_name_keep_their_stream_and_their_list() -> Result<()> {
    let config = |replicas: u32| {
        format!(
            "resources:
- {{name: nvidia.com/gpu, devices: {{indices: [0]}}}}
- {{name: nvidia.com/gpu.shared, devices: {{indices: [1, 2]}}, sharing: {{strategy: TimeSlicing, replicas: {replicas}}}}}
- {{name: aliyun.com/gpu-mem, devices: {{indices: [3]}}, sharing: {{strategy: Memory}}}}
- {{name: nvidia.com/gpu.mps, sharing: {{strategy: Mps, replicas: 10}}}}
"
        )
    };
    let node = node_of(&["Tesla T4"; 5])?;
    let daemons = MpsDaemons::none(&node);
    daemons.start(&node.uuids()?[4])?;
    let lab = Lab::start(node, &config(2))?;
    let kubelet = &lab.kubelet;
    let uuids = lab.node.uuids()?;
    for (resource, shares) in [(GPU, 1), (SHARED, 4), (MEMORY, 15), (MPS, 10)] {
        kubelet
            .has(resource, |endpoint| endpoint.healthy().len() == shares)
            .await?;
    }
    kubelet.admit("whole", "main", GPU, 1).await?;
    let shared = kubelet.admit("shared", "main", SHARED, 1).await?.ids.remove(0);
    kubelet.admit("memory", "main", MEMORY, 9).await?;
    kubelet.admit("mps", "main", MPS, 3).await?;

    // A changed number of replicas, a resource that goes, and one that comes.
    lab.apply(&config(3))?;
    let [held, free] = if shared.starts_with(&uuids[1]) {
        [&uuids[1], &uuids[2]]
    } else {
        [&uuids[2], &uuids[1]]
    };
    kubelet
        .has(SHARED, |endpoint| {
            endpoint.healthy_of(free) == 3 && endpoint.healthy_of(held) == 3
        })
        .await?;
    assert_eq!(kubelet.endpoint(SHARED).devices.len(), 6);
    lab.apply(&config(3).replace("gpu.shared", "gpu.other"))?;
    kubelet
        .has("nvidia.com/gpu.other", |endpoint| endpoint.healthy_of(free) == 3)
        .await?;
    kubelet.release("shared");
    kubelet
        .has("nvidia.com/gpu.other", |endpoint| endpoint.healthy_of(held) == 3)
        .await?;
    until("the old name is gone", || {
        (!kubelet.connected().iter().any(|name| name == SHARED)).then_some(())
    })
    .await?;

    for (resource, devices) in [(GPU, 1), (MEMORY, 15), (MPS, 10)] {
        let lists = kubelet.messages(resource);
        let healths: Vec<usize> = lists
            .iter()
            .map(|list| list.devices.iter().filter(|share| share.health == "Healthy").count())
            .collect();
        assert!(
            healths.iter().all(|healthy| *healthy == devices),
            "{resource}: {healths:?}"
        );
        let endpoint = kubelet.endpoint(resource);
        assert_eq!(
            (lists.len(), endpoint.registrations, endpoint.connected),
            (1, 1, true),
            "{resource}"
        );
    }
    assert_eq!(kubelet.advertised_twice(), None);
    Ok(())
}

#[tokio::test]
async fn a_held_gpu_keeps_its_id_until_it_is_free_and_is_shared_then() -> Result<()> {
    let lab = Lab::start(two_t4()?, WHOLE)?;
    let kubelet = &lab.kubelet;
    let uuids = lab.node.uuids()?;
    let (one, two) = (uuids[0].as_str(), uuids[1].as_str());
    kubelet.has(GPU, |_| true).await?;
    assert_eq!(kubelet.admit("job", "main", GPU, 1).await?.ids, [one]);

    lab.apply(TWO)?;
    let of_two = [format!("{two}::0"), format!("{two}::1")];
    kubelet
        .advertises(GPU, &[(one, true), (&of_two[0], true), (&of_two[1], true)])
        .await?;
    kubelet.is_refused(GPU, two).await?;
    kubelet.is_refused(GPU, &format!("{one}::0")).await?;
    // Others run beside it meanwhile, as many as there is room for.
    kubelet.admit("a", "main", GPU, 1).await?;
    kubelet.admit("b", "main", GPU, 1).await?;
    assert!(matches!(
        kubelet.admit("c", "main", GPU, 1).await,
        Err(Rejection::Kubelet(_))
    ));

    kubelet.release("job");
    let of_one = [format!("{one}::0"), format!("{one}::1")];
    kubelet
        .advertises(
            GPU,
            &[
                (&of_one[0], true),
                (&of_one[1], true),
                (&of_two[0], true),
                (&of_two[1], true),
            ],
        )
        .await?;
    kubelet.is_refused(GPU, one).await?;
    // The id that was freed was withdrawn before the new ones came.
    let lists = kubelet.messages(GPU);
    let withdrawn = |uuid: &str| {
        lists.iter().any(|list| {
            list.devices
                .iter()
                .any(|share| share.id == uuid && share.health != "Healthy")
        })
    };
    assert!(withdrawn(one) && withdrawn(two));
    assert_eq!(kubelet.advertised_twice(), None);
    assert_eq!(kubelet.endpoint(GPU).registrations, 1);
    Ok(())
}

#[tokio::test]
async fn replicas_that_are_freed_are_withdrawn_one_by_one_until_the_gpu_can_be_whole() -> Result<()> {
    let lab = Lab::start(node_of(&["Tesla T4"])?, TWO)?;
    let kubelet = &lab.kubelet;
    let uuid = lab.node.uuids()?.remove(0);
    kubelet.has(GPU, |_| true).await?;
    let first = kubelet.admit("first", "main", GPU, 1).await?.ids.remove(0);
    let second = kubelet.admit("second", "main", GPU, 1).await?.ids.remove(0);
    kubelet.is_listed().await?;

    lab.apply(WHOLE)?;
    until("it is in force", || {
        (lab.agent.logged("configuration in force") == 2).then_some(())
    })
    .await?;
    kubelet.release("first");
    kubelet.advertises(GPU, &[(&first, false), (&second, true)]).await?;
    assert!(matches!(
        kubelet.admit("third", "main", GPU, 1).await,
        Err(Rejection::Kubelet(_))
    ));
    kubelet.release("second");
    kubelet.advertises(GPU, &[(&uuid, true)]).await?;
    kubelet.is_refused(GPU, &first).await?;
    assert_eq!(kubelet.advertised_twice(), None);
    Ok(())
}

#[tokio::test]
async fn a_resource_that_is_renamed_keeps_its_old_name_for_what_is_held() -> Result<()> {
    let lab = Lab::start(two_t4()?, WHOLE)?;
    let kubelet = &lab.kubelet;
    let uuids = lab.node.uuids()?;
    kubelet.has(GPU, |_| true).await?;
    kubelet.admit("job", "main", GPU, 1).await?;

    lab.apply(RENAMED)?;
    kubelet
        .has(SHARED, |endpoint| endpoint.healthy_of(&uuids[1]) == 2)
        .await?;
    kubelet.advertises(GPU, &[(&uuids[0], true)]).await?;
    assert_eq!(kubelet.endpoint(SHARED).devices.len(), 2);
    kubelet.release("job");
    kubelet.has(SHARED, |endpoint| endpoint.healthy().len() == 4).await?;
    until("the old name is gone", || {
        (kubelet.connected() == [SHARED]).then_some(())
    })
    .await?;
    assert_eq!(kubelet.advertised_twice(), None);
    Ok(())
}

#[tokio::test]
async fn a_change_that_is_taken_back_while_a_gpu_is_held_leaves_everything_as_it_was() -> Result<()> {
    let lab = Lab::start(node_of(&["Tesla T4"])?, TWO)?;
    let kubelet = &lab.kubelet;
    kubelet.has(GPU, |_| true).await?;
    let held = kubelet.admit("job", "main", GPU, 1).await?.ids.remove(0);
    lab.apply(WHOLE)?;
    kubelet
        .has(GPU, |endpoint| {
            endpoint.healthy().len() == 1 && endpoint.healthy().contains(&held)
        })
        .await?;
    lab.apply(TWO)?;
    kubelet.has(GPU, |endpoint| endpoint.healthy().len() == 2).await?;
    let always = kubelet.messages(GPU).iter().all(|list| {
        list.devices.len() == 2
            && list
                .devices
                .iter()
                .any(|share| share.id == held && share.health == "Healthy")
    });
    assert!(always, "{:?}", kubelet.messages(GPU));
    Ok(())
}

#[tokio::test]
async fn an_agent_that_is_killed_in_the_middle_of_a_change_goes_on_with_it() -> Result<()> {
    let mut lab = Lab::start(two_t4()?, WHOLE)?;
    let uuids = lab.node.uuids()?;
    let (one, two) = (uuids[0].as_str(), uuids[1].as_str());
    lab.kubelet.has(GPU, |_| true).await?;
    lab.kubelet.admit("job", "main", GPU, 1).await?;
    lab.apply(TWO)?;
    let of_two = [format!("{two}::0"), format!("{two}::1")];
    let half = [(one, true), (&*of_two[0], true), (&*of_two[1], true)];
    lab.kubelet.advertises(GPU, &half).await?;

    for registrations in 2..4 {
        lab.replace_agent().await?;
        lab.kubelet
            .has(GPU, |endpoint| endpoint.registrations == registrations)
            .await?;
        lab.kubelet.advertises(GPU, &half).await?;
    }
    lab.kubelet.is_refused(GPU, two).await?;
    lab.kubelet.release("job");
    lab.kubelet
        .has(GPU, |endpoint| {
            endpoint.healthy_of(one) == 2 && endpoint.healthy_of(two) == 2
        })
        .await?;
    lab.replace_agent().await?;
    lab.kubelet
        .has(GPU, |endpoint| {
            endpoint.registrations == 4 && endpoint.healthy().len() == 4
        })
        .await?;
    lab.kubelet.is_refused(GPU, one).await?;
    assert_eq!(lab.kubelet.advertised_twice(), None);
    Ok(())
}

#[tokio::test]
async fn a_change_between_two_agents_waits_for_holders_too() -> Result<()> {
    let mut lab = Lab::start(node_of(&["Tesla T4"])?, TWO)?;
    let uuid = lab.node.uuids()?.remove(0);
    lab.kubelet.has(GPU, |_| true).await?;
    let held = lab.kubelet.admit("job", "main", GPU, 1).await?.ids.remove(0);
    lab.agent.kill().await?;
    lab.node.configure(WHOLE)?;
    lab.agent = Agent::run(&lab.node)?;
    lab.kubelet
        .has(GPU, |endpoint| {
            endpoint.healthy().contains(&held) && endpoint.healthy().len() == 1
        })
        .await?;
    lab.kubelet.release("job");
    lab.kubelet.advertises(GPU, &[(&uuid, true)]).await?;
    Ok(())
}

#[tokio::test]
async fn a_gpu_that_disappears_while_it_is_held_comes_back_with_its_holder() -> Result<()> {
    let lab = Lab::start(two_t4()?, WHOLE)?;
    let kubelet = &lab.kubelet;
    let uuids = lab.node.uuids()?;
    kubelet.has(GPU, |_| true).await?;
    kubelet.admit("job", "main", GPU, 1).await?;
    lab.node.state()?.lose(0)?;
    lab.agent.signal(rustix::process::Signal::HUP)?;
    kubelet
        .advertises(GPU, &[(&uuids[0], false), (&uuids[1], true)])
        .await?;
    lab.node.state()?.restore(0)?;
    lab.agent.signal(rustix::process::Signal::HUP)?;
    kubelet.advertises(GPU, &[(&uuids[0], true), (&uuids[1], true)]).await?;
    assert_eq!(kubelet.admit("other", "main", GPU, 1).await?.ids, [uuids[1].clone()]);
    Ok(())
}

#[tokio::test]
async fn every_sharing_can_become_every_other_while_a_gpu_is_held() -> Result<()> {
    let ways = [(WHOLE, 1), (TWO, 2), (UNITS, 15)];
    let pairs = ways
        .into_iter()
        .flat_map(|old| ways.into_iter().map(move |new| (old, new)));
    let mut changes = tokio::task::JoinSet::new();
    for ((old, old_shares), (new, new_shares)) in pairs.filter(|(old, new)| old != new) {
        changes.spawn(async move {
            let lab = Lab::start(two_t4()?, old)?;
            let kubelet = &lab.kubelet;
            kubelet
                .has(GPU, |endpoint| endpoint.healthy().len() == 2 * old_shares)
                .await?;
            let held = kubelet.admit("job", "main", GPU, 1).await?.ids.remove(0);
            let uuids = lab.node.uuids()?;
            let (busy, free) = if held.starts_with(&uuids[0]) { (0, 1) } else { (1, 0) };
            kubelet.is_listed().await?;
            lab.apply(new)?;
            kubelet
                .has(GPU, |endpoint| endpoint.healthy_of(&uuids[free]) == new_shares)
                .await?;
            let endpoint = kubelet.endpoint(GPU);
            assert_eq!(endpoint.healthy_of(&uuids[busy]), 1, "{old} to {new}");
            assert!(endpoint.healthy().contains(&held), "{old} to {new}");
            kubelet.release("job");
            let all_new =
                |endpoint: &Endpoint| !endpoint.ids().contains(&held) && endpoint.healthy().len() == 2 * new_shares;
            kubelet.has(GPU, all_new).await?;
            assert_eq!(kubelet.advertised_twice(), None, "{old} to {new}");
            kubelet.is_refused(GPU, &held).await
        });
    }
    while let Some(change) = changes.join_next().await {
        change??;
    }
    Ok(())
}

#[tokio::test]
async fn a_kubelet_that_restarts_in_the_middle_of_a_change_sees_it_as_before() -> Result<()> {
    let mut lab = Lab::start(two_t4()?, WHOLE)?;
    let uuids = lab.node.uuids()?;
    lab.kubelet.has(GPU, |_| true).await?;
    lab.kubelet.admit("job", "main", GPU, 1).await?;
    lab.kubelet.is_listed().await?;
    lab.apply(TWO)?;
    lab.kubelet.has(GPU, |endpoint| endpoint.healthy().len() == 3).await?;
    let half = lab.kubelet.endpoint(GPU).ids();
    lab.kubelet.restart()?;
    lab.kubelet
        .has(GPU, |endpoint| endpoint.registrations == 2 && endpoint.ids() == half)
        .await?;
    lab.kubelet.release("job");
    lab.kubelet
        .has(GPU, |endpoint| endpoint.healthy_of(&uuids[0]) == 2)
        .await?;
    assert_eq!(lab.kubelet.advertised_twice(), None);
    Ok(())
}
