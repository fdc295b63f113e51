//! `gpunode-agent mps`: one MPS control daemon for each device whose assignment is MPS.
//!
//! It has no API server. Agents say in `assignments.json` which devices are shared by MPS, and read in the folder of each
//! device whether its daemon answers ([`seen`]). The daemons are processes of their own: another supervisor takes over those
//! that it finds.

mod compute_mode;
mod control;
mod daemon;
mod device;
mod exec;
mod holders;
mod memory;
mod place;
mod processes;
pub mod seen;
mod shutdown;

pub use exec::exec;

use crate::{
    admin,
    assignments::{self, Assignments},
    checkpoint::PodFolders,
    cli::MpsArgs,
    podresources::PodResources,
    signals::{Asked, Signals},
};
use anyhow::{Context as _, Result, bail};
use control::Control;
use daemon::Want;
use device::Care;
use gpunode_gpu::DeviceSharing;
use holders::Holders;
use place::Place;
use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, File},
    path::Path,
    time::Duration,
};
use tokio::{
    sync::watch,
    task::{JoinSet, spawn_blocking},
    time::{MissedTickBehavior, interval},
};
use tracing::{info, warn};

/// How often the assignments are read.
const INTERVAL: Duration = Duration::from_secs(1);
/// Held by the supervisor, beside the folders of the devices.
const LOCK: &str = "lock";
/// The kubelet's folder of device plugins on the host, where none is named.
const DEVICE_PLUGINS: &str = "var/lib/kubelet/device-plugins";

/// The daemons that are looked after.
#[derive(Debug)]
struct Supervisor {
    args: MpsArgs,
    control: Control,
    holders: Holders,
    /// Devices that are shared by MPS, as far as is known.
    wanted: Option<BTreeSet<String>>,
    daemons: BTreeMap<String, (Care, watch::Sender<Want>)>,
    tasks: JoinSet<String>,
    problem: String,
}

/// Runs until SIGTERM.
pub async fn supervise(args: MpsArgs) -> Result<()> {
    let mut signals = Signals::new().context("take over the signals")?;
    let (readiness, ready) = watch::channel(Err("the assignments have not been read yet".to_owned()));
    let listener = admin::bind(args.host.admin_address).await?;
    let serving = tokio::spawn(admin::serve(listener, ready));

    let mps_dir = args.host.mps_dir.clone();
    let locked = spawn_blocking(move || lock(&mps_dir));
    let _lock = tokio::select! {
        locked = locked => locked??,
        () = stop(&mut signals) => return Ok(()),
    };
    let mut supervisor = Supervisor::new(args);
    let mut tick = interval(INTERVAL);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            asked = signals.next() => match asked {
                Asked::Stop => break,
                Asked::Reload => {}
            },
            _ = tick.tick() => {}
        }
        supervisor.follow().await?;
        _ = readiness.send_replace(Ok(()));
        if serving.is_finished() {
            bail!("/livez and /readyz are no longer served");
        }
    }
    info!("stopping");
    supervisor.shut_down().await
}

async fn stop(signals: &mut Signals) {
    while signals.next().await != Asked::Stop {}
}

/// Waits until no other supervisor works on the folder; blocks. The lock goes with the process.
fn lock(mps_dir: &Path) -> Result<File> {
    fs::create_dir_all(mps_dir).with_context(|| format!("make {}; is it mounted writable?", mps_dir.display()))?;
    let path = mps_dir.join(LOCK);
    let file = File::options().create(true).truncate(false).write(true).open(&path);
    let file = file.with_context(|| format!("open {}", path.display()))?;
    file.lock().with_context(|| format!("lock {}", path.display()))?;
    Ok(file)
}

impl Supervisor {
    fn new(args: MpsArgs) -> Self {
        let control = Control { host_root: args.host.host_root.clone(), driver_root: args.host.driver_root.clone() };
        let holders = Holders::new(PodResources {
            socket: args.host.pod_resources_socket.clone(),
            device_plugin_dir: args
                .device_plugin_dir
                .clone()
                .unwrap_or_else(|| args.host.host_root.join(DEVICE_PLUGINS)),
            pods: PodFolders::default(),
        });
        Self {
            args,
            control,
            holders,
            wanted: None,
            daemons: BTreeMap::new(),
            tasks: JoinSet::new(),
            problem: String::new(),
        }
    }

    /// Brings what is looked after in line with the assignments, and with what an earlier supervisor left.
    async fn follow(&mut self) -> Result<()> {
        self.forget_ended()?;
        let (state_dir, mps_dir) = (self.args.host.state_dir.clone(), self.args.host.mps_dir.clone());
        let read = spawn_blocking(move || {
            processes::reap();
            (assignments::read(&state_dir), Place::all(&mps_dir))
        });
        let (assignments, left) = read.await?;
        let left = left.with_context(|| format!("look into {}", self.args.host.mps_dir.display()))?;
        let mut problem = String::new();
        match assignments {
            Ok(assignments) => self.wanted = Some(mps_devices(&assignments)),
            // No daemon ends because a file is damaged.
            Err(error) => {
                self.wanted.get_or_insert_with(|| left.iter().map(|place| place.uuid().to_owned()).collect());
                problem = error.to_string();
            }
        }
        let wanted = self.wanted.clone().unwrap_or_default();
        let known: BTreeSet<String> = left.iter().map(|place| place.uuid().to_owned()).collect();
        for uuid in wanted.union(&known) {
            match Place::of(&self.args.host.mps_dir, uuid) {
                Some(place) if !self.daemons.contains_key(uuid) => self.add(place),
                Some(_) => {}
                None => problem = format!("{uuid:?} in the assignments is no UUID of a device"),
            }
        }
        self.report(problem);
        for (uuid, (_, want)) in &self.daemons {
            set(want, if wanted.contains(uuid) { Want::Run } else { Want::Gone });
        }
        Ok(())
    }

    fn add(&mut self, place: Place) {
        let uuid = place.uuid().to_owned();
        let care = Care { place, control: self.control.clone(), holders: self.holders.clone() };
        // Nothing is done before the first word.
        let (want, receiver) = watch::channel(Want::Rest);
        let (looking, device) = (care.clone(), uuid.clone());
        self.tasks.spawn(async move {
            looking.look_after(receiver).await;
            device
        });
        self.daemons.insert(uuid, (care, want));
    }

    fn forget_ended(&mut self) -> Result<()> {
        while let Some(ended) = self.tasks.try_join_next() {
            self.daemons.remove(&ended.context("look after a daemon")?);
        }
        Ok(())
    }

    fn report(&mut self, problem: String) {
        if !problem.is_empty() && problem != self.problem {
            warn!(problem, "not all daemons can be looked after");
        }
        self.problem = problem;
    }
}

fn set(want: &watch::Sender<Want>, wanted: Want) {
    want.send_if_modified(|want| std::mem::replace(want, wanted) != wanted);
}

fn mps_devices(assignments: &Assignments) -> BTreeSet<String> {
    let mps = assignments.iter().filter(|(_, assignment)| matches!(assignment.sharing, DeviceSharing::Mps { .. }));
    mps.map(|(uuid, _)| uuid.clone()).collect()
}
