//! `gpunode-agent run`: brings configuration, hardware and kubelet together.

use crate::{
    admin::{self, Readiness},
    channel::send_if_new,
    cli::{NodeArgs, RunArgs},
    directory::Directory,
    gpu_node::{Report, Seen, connect, watch_gpu_node, write_reports},
    handover::NodeLock,
    hardware::{Hardware, Place, watch_hardware},
    in_force::{Candidate, InForce, Instruction},
    kubelet::{Kubelet, Registered},
    operator_config,
    plugin::Offer,
    plugins::Plugins,
    report::{Facts, Identity, Plugin, not_registered, status},
    saved_config::SavedConfig,
    signals::{Asked, Signals},
    socket::remove_stale_sockets,
};
use anyhow::{Context as _, Result, bail};
use gpunode_gpu::Resource;
use std::{fs, path::Path, pin::pin, sync::Arc, time::Duration};
use tokio::{
    sync::{Notify, watch},
    task::JoinSet,
    time::sleep,
};
use tracing::{error, info};

/// Pause after a configuration that could not be saved.
const SAVE_RETRY: Duration = Duration::from_mins(1);

/// Runs until SIGTERM.
pub async fn run(args: RunArgs) -> Result<()> {
    let mut signals = Signals::new().context("take over the signals")?;
    let mut tasks: JoinSet<()> = JoinSet::new();

    let (readiness, ready) = watch::channel(Err("starting".to_owned()));
    let listener = admin::bind(args.node.admin_address)
        .await
        .with_context(|| format!("listen on {}; choose another --admin-address", args.node.admin_address))?;
    tasks.spawn(admin::serve(listener, ready));

    let look_again = Arc::new(Notify::new());
    let (found, mut hardware) = watch::channel(None);
    tasks.spawn(watch_hardware(Place::of(&args.node), found, look_again.clone()));

    let directory = Directory::new(args.device_plugin_dir.clone());
    tasks.spawn(directory.clone().watch());
    let kubelet = Kubelet {
        directory,
        host_root: args.node.host_root.clone().into(),
        registered: watch::Sender::new(Registered::new()),
    };
    let mut plugins = Plugins::new(kubelet);
    let mut registered = plugins.registered();

    let (instructions, mut instructed) = watch::channel(Instruction::Unknown);
    let (reports, to_report) = watch::channel(None);
    let mut saved = None;
    match &args.config {
        Some(path) => _ = instructions.send_replace(read_first(path)?),
        None => saved = Some(follow_operator(&mut tasks, &args.node, instructions.clone(), to_report).await?),
    }

    let mut agent = State { args: &args, in_force: InForce::default(), saved, driver_answered: false };
    let mut lock = pin!(NodeLock::take(&args.node.state_dir));
    let mut held: Option<NodeLock> = None;
    loop {
        tokio::select! {
            asked = signals.next() => match asked {
                Asked::Stop => break,
                Asked::Reload => {
                    info!("reload");
                    look_again.notify_one();
                    if let Some(path) = &args.config {
                        reload(path, &instructions);
                    }
                }
            },
            taken = &mut lock, if held.is_none() => {
                held = Some(taken.context("take the lock of this node")?);
                remove_stale_sockets(&args.device_plugin_dir);
            }
            () = sleep(SAVE_RETRY), if agent.saved.as_ref().is_some_and(SavedConfig::failed) => {}
            _ = hardware.changed() => {}
            _ = instructed.changed() => {}
            _ = registered.changed() => {}
            name = plugins.failed() => bail!("offer {name}: its state machine ended"),
            ended = tasks.join_next() => bail!("a task ended that should not: {ended:?}"),
        }
        let hardware = hardware.borrow_and_update().clone();
        let instruction = instructed.borrow_and_update().clone();
        agent.evaluate(&instruction, hardware.as_deref()).await?;
        if held.is_some() {
            plugins.put(agent.offers());
        }
        let registered = registered.borrow_and_update().clone();
        let plugin = Plugin { in_force: &agent.in_force, registered: &registered };
        // Until then a restarted agent would take back what the one before it reported.
        let config_known = instruction != Instruction::Unknown || agent.in_force.accepted.is_some();
        send_if_new(&readiness, readiness_of(held.is_some(), config_known, hardware.as_deref(), plugin));
        if let (Some(hardware), true) = (hardware, held.is_some() && config_known) {
            send_if_new(&reports, Some(agent.report(&hardware, plugin)));
        }
    }
    info!("stopping");
    plugins.stop().await;
    drop(held);
    Ok(())
}

/// What the agent has decided so far.
struct State<'a> {
    args: &'a RunArgs,
    in_force: InForce,
    saved: Option<SavedConfig>,
    driver_answered: bool,
}

impl State<'_> {
    /// Puts in force what can be put in force, and says what changed.
    async fn evaluate(&mut self, instruction: &Instruction, hardware: Option<&Hardware>) -> Result<()> {
        let inventory = hardware.and_then(Hardware::inventory);
        let before_start = self.saved.as_ref().and_then(SavedConfig::content);
        let next = self.in_force.next_or_saved(instruction, before_start, inventory);
        if next.rejected != self.in_force.rejected
            && let Some(rejected) = &next.rejected
        {
            let kept = next.accepted.as_ref().map(|accepted| accepted.hash.as_str());
            error!(hash = rejected.hash, reason = rejected.message, kept, "configuration rejected");
        }
        if next.accepted != self.in_force.accepted {
            if let Some(accepted) = &next.accepted {
                info!(hash = accepted.hash, "configuration in force");
            } else {
                info!("no configuration: nothing is offered");
            }
        }
        if let Some(saved) = &mut self.saved {
            // Whether a configuration fits is known once the GPUs are.
            let is_sure = inventory.is_some() || *instruction == Instruction::Nothing;
            saved.keep(instruction, is_sure && next.rejected.is_none()).await;
        }
        self.in_force = next;
        self.check_driver(hardware)
    }

    /// `failOnInitError` is about the driver at the start: one that has answered once is only waited for, and a GPU that
    /// cannot be read does not keep the others back.
    fn check_driver(&mut self, hardware: Option<&Hardware>) -> Result<()> {
        let Some(hardware) = hardware else { return Ok(()) };
        match hardware.driver.problem() {
            None => self.driver_answered = true,
            Some(problem) if !self.driver_answered && self.in_force.fail_on_init_error() => {
                bail!("{problem} (failOnInitError is on)")
            }
            Some(_) => {}
        }
        Ok(())
    }

    fn offers(&self) -> Vec<Offer> {
        let pass_device_specs = self.in_force.pass_device_specs();
        let offer = |resource: &Arc<Resource>| Offer { resource: resource.clone(), pass_device_specs };
        self.in_force.resources.iter().map(offer).collect()
    }

    fn report(&self, hardware: &Hardware, plugin: Plugin<'_>) -> Report {
        let facts = Facts { hardware, plugin: Some(plugin) };
        let status = status(&Identity::of(&self.args.node), facts);
        Report { status, create: hardware.has_gpus() }
    }
}

fn readiness_of(holds_lock: bool, config_known: bool, hardware: Option<&Hardware>, plugin: Plugin<'_>) -> Readiness {
    if !holds_lock {
        return Err("WaitingForPredecessor: another agent of this node is registered".to_owned());
    }
    if hardware.is_none() {
        return Err("the hardware has not been looked at yet".to_owned());
    }
    if !config_known {
        return Err("the API server has not said yet what the configuration is".to_owned());
    }
    not_registered(plugin).map_or(Ok(()), Err)
}

async fn follow_operator(
    tasks: &mut JoinSet<()>,
    node: &NodeArgs,
    instructions: watch::Sender<Instruction>,
    reports: watch::Receiver<Option<Report>>,
) -> Result<SavedConfig> {
    let client = connect().await.context("run without --config FILE")?;
    let (seen, gpu_node) = watch::channel(Seen::Unknown);
    let saved = SavedConfig::load(&node.state_dir, &node.node_name);
    tasks.spawn(watch_gpu_node(client.clone(), node.node_name.clone(), seen));
    tasks.spawn(operator_config::follow(gpu_node.clone(), saved.content(), instructions));
    tasks.spawn(write_reports(client, node.node_name.clone(), reports, gpu_node));
    Ok(saved)
}

/// At the start there is no older configuration that could stay in force.
fn read_first(path: &Path) -> Result<Instruction> {
    let candidate = read(path)?;
    let instruction = Instruction::Config(Arc::new(candidate));
    match InForce::default().next(&instruction, None).rejected {
        Some(rejected) => bail!("{}: {}", path.display(), rejected.message),
        None => Ok(instruction),
    }
}

fn read(path: &Path) -> Result<Candidate> {
    let text = fs::read_to_string(path).with_context(|| format!("read the configuration {}", path.display()))?;
    Ok(Candidate::of_file(text))
}

fn reload(path: &Path, instructions: &watch::Sender<Instruction>) {
    match read(path) {
        Ok(candidate) => send_if_new(instructions, Instruction::Config(Arc::new(candidate))),
        Err(error) => error!(reason = format!("{error:#}"), "configuration not read; the one in force stays"),
    }
}

impl Place {
    /// Where this agent looks.
    pub fn of(args: &NodeArgs) -> Self {
        Self { host_root: args.host_root.clone(), driver_root: args.driver_root.clone() }
    }
}

impl Identity {
    /// This agent.
    pub fn of(args: &NodeArgs) -> Self {
        Self { pod: args.pod_name.clone(), pod_uid: args.pod_uid.clone() }
    }
}
