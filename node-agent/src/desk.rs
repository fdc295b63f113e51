//! The one place where devices are given out: the books behind a lock, and the waiting and asking that goes with them.

use crate::{
    allocate::{control_nodes, response},
    books::{Books, Page},
    device_plugin_api::ContainerAllocateResponse,
    mps::seen,
    node_allocatable::NodeReader,
    podresources::PodResources,
    utilisation::Utilisation,
};
use gpunode_gpu::{Granted, Refusal};
use std::{
    collections::BTreeMap,
    path::PathBuf,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};
use tokio::{
    sync::{Notify, watch},
    task::spawn_blocking,
    time::{sleep, timeout},
};
use tracing::{info, warn};

/// Pause between two observations while something waits for their result.
const OBSERVE_BUSY: Duration = Duration::from_millis(500);
/// The same otherwise.
const OBSERVE_IDLE: Duration = Duration::from_secs(10);
/// Least pause: the kubelet takes 100 calls a second from all its clients together, and an observation is two.
const OBSERVE_MIN: Duration = Duration::from_millis(100);
/// Pause between an allocation and the observation that is to show it: a kubelet that is asked before it has written the
/// allocation down may forget it.
const GRANT_PAUSE: Duration = Duration::from_millis(200);
/// How long a refusal waits for a fresh observation.
const OBSERVE_TIMEOUT: Duration = Duration::from_secs(3);
/// Pause between two looks at the MPS control daemons while there are some.
const DAEMONS_BUSY: Duration = Duration::from_secs(1);
/// The same while there are none.
const DAEMONS_IDLE: Duration = Duration::from_secs(5);
/// How long such a look may take before the daemons count as silent.
const DAEMONS_TIMEOUT: Duration = Duration::from_secs(3);
/// How long a refusal waits for the Node to show it, and other admissions on the node with it: one and a half updates of
/// node status, which a kubelet writes every 10 s.
const NODE_TIMEOUT: Duration = Duration::from_secs(15);
/// Pause between two looks at the Node.
const NODE_POLL: Duration = Duration::from_millis(500);
/// How long a refusal waits where the Node cannot be looked at.
const NODE_UNSEEN: Duration = Duration::from_secs(11);

/// What the desk works with.
pub struct Place {
    /// Root of the host.
    pub host_root: PathBuf,
    /// Where the MPS control daemons have their folders.
    pub mps_dir: PathBuf,
    /// How busy the GPUs are.
    pub utilisation: Utilisation,
    /// What the scheduler sees; none without API server.
    pub node: Option<NodeReader>,
}

/// Gives devices out.
pub struct Desk {
    books: Mutex<Books>,
    place: Place,
    pass_device_specs: AtomicBool,
    /// Number of changes of the books.
    changes: watch::Sender<u64>,
    /// Number of changes that the kubelet has been told of.
    published: watch::Sender<u64>,
    /// When the last observation that succeeded was started.
    observed: watch::Sender<Option<Instant>>,
    observe_now: Notify,
    granted: Notify,
}

impl Desk {
    /// A desk that knows nothing and gives nothing.
    pub fn new(place: Place) -> Self {
        Self {
            books: Mutex::default(),
            place,
            pass_device_specs: AtomicBool::default(),
            changes: watch::Sender::default(),
            published: watch::Sender::default(),
            observed: watch::Sender::default(),
            observe_now: Notify::new(),
            granted: Notify::new(),
        }
    }

    /// Takes over `books`, before anything is given out.
    pub async fn open(&self, books: Books) {
        self.change(|mine| *mine = books);
        if let Err(error) = self.look_at_daemons().await {
            warn!(error, "look at the MPS control daemons; trying again");
        }
    }

    /// Changes with the books.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Changes the books.
    pub fn change<T>(&self, change: impl FnOnce(&mut Books) -> T) -> T {
        let mut books = self.books();
        let result = change(&mut books);
        self.changes.send_modify(|number| *number += 1);
        result
    }

    /// What the books say, and the number of the change up to which they say it.
    pub fn page(&self) -> (Page, u64) {
        let books = self.books();
        let changes = *self.changes.borrow();
        (books.page(), changes)
    }

    /// The kubelet is told what the books said after so many changes.
    pub fn published(&self, changes: u64) {
        self.published.send_replace(changes);
    }

    /// Whether allocations from now on name device nodes.
    pub fn pass_device_specs(&self, pass: bool) {
        self.pass_device_specs.store(pass, Ordering::Relaxed);
    }

    /// Asks the kubelet soon, and not when it is due.
    pub fn observe_now(&self) {
        self.observe_now.notify_one();
    }

    fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Which of the `available` ids a container had best get. There is always an answer.
    pub async fn preferred(&self, resource: &str, available: &[String], must: &[String], size: usize) -> Vec<String> {
        let tie = self.books().ledger.has_tie(resource, available, size);
        let busy = if tie { self.place.utilisation.ask().await } else { BTreeMap::new() };
        self.books().ledger.preferred(resource, available, must, size, &busy)
    }

    /// Gives a container the shares that the kubelet picked.
    pub async fn allocate(&self, resource: &str, ids: &[String]) -> Result<ContainerAllocateResponse, Refusal> {
        if self.books().ledger.is_doubtful(resource, ids) {
            self.observe_afresh().await;
        }
        let mut given = self.give(resource, ids);
        if matches!(given, Err(Refusal::Split { .. })) {
            // What was freed since the last observation changes what there is to say.
            self.observe_afresh().await;
            given = self.give(resource, ids);
        }
        if matches!(given, Err(Refusal::Split { .. })) {
            self.withhold(resource).await;
        }
        let granted = given?;
        self.granted.notify_one();
        Ok(self.response(&granted))
    }

    /// No change that is told at once: the pod waits for this, and what it changes for others can wait for the observation
    /// that follows.
    fn give(&self, resource: &str, ids: &[String]) -> Result<Granted, Refusal> {
        self.books().ledger.allocate(resource, ids, Instant::now())
    }

    fn response(&self, granted: &Granted) -> ContainerAllocateResponse {
        let control = self.pass_device_specs.load(Ordering::Relaxed).then(|| control_nodes(&self.place.host_root));
        response(granted, control.as_deref(), &self.place.mps_dir)
    }

    /// Before a container is refused whose shares are free, though not on one device: makes the scheduler see that, so
    /// that a ReplicaSet does not try for ever.
    async fn withhold(&self, resource: &str) {
        let (limit, change) = self.change(|books| (books.ledger.withhold(resource), *self.changes.borrow() + 1));
        info!(resource, limit, "free units of other GPUs are withheld");
        let shown = async {
            self.is_published(change).await;
            let Some(node) = &self.place.node else {
                sleep(NODE_UNSEEN).await;
                return;
            };
            let mut last_error = String::new();
            loop {
                match node.allocatable(resource).await {
                    Ok(allocatable) if allocatable <= limit.into() => return,
                    Ok(_) => {}
                    Err(error) => {
                        let error = error.to_string();
                        if error != last_error {
                            warn!(error, "see what the scheduler sees; trying again");
                            last_error = error;
                        }
                    }
                }
                sleep(NODE_POLL).await;
            }
        };
        if timeout(NODE_TIMEOUT, shown).await.is_err() {
            warn!(resource, limit, "the Node does not show yet what can be given out; refusing all the same");
        }
    }

    /// Without an answer, what was observed before has to do.
    async fn observe_afresh(&self) {
        let now = Instant::now();
        self.observe_now();
        _ = timeout(OBSERVE_TIMEOUT, self.observed.subscribe().wait_for(|at| *at >= Some(now))).await;
    }

    async fn is_published(&self, change: u64) {
        // Cannot fail: the sender is in this desk.
        _ = self.published.subscribe().wait_for(|published| *published >= change).await;
    }

    /// Follows who holds what. Does not end.
    pub async fn watch_holders(self: Arc<Self>, kubelet: PodResources) {
        let mut last_error = String::new();
        loop {
            match kubelet.observe().await {
                Ok(observation) => {
                    let started = observation.started;
                    self.change(|books| books.observe(observation));
                    self.observed.send_replace(Some(started));
                    if !last_error.is_empty() {
                        info!("the kubelet says again which pod holds which device");
                        last_error.clear();
                    }
                }
                Err(error) => {
                    let error = error.to_string();
                    if error != last_error {
                        warn!(error, "holders are not known; trying again");
                        self.change(|books| books.not_observed(error.clone()));
                        last_error = error;
                    }
                }
            }
            sleep(OBSERVE_MIN).await;
            let pause = if self.books().is_busy() { OBSERVE_BUSY } else { OBSERVE_IDLE };
            tokio::select! {
                () = sleep(pause.saturating_sub(OBSERVE_MIN)) => {}
                () = self.observe_now.notified() => {}
                () = self.granted.notified() => sleep(GRANT_PAUSE).await,
            }
        }
    }

    /// Follows which MPS control daemons answer. Does not end.
    pub async fn watch_daemons(self: Arc<Self>) {
        let mut last_error = String::new();
        loop {
            let pause = if self.books().has_daemons() { DAEMONS_BUSY } else { DAEMONS_IDLE };
            sleep(pause).await;
            let error = self.look_at_daemons().await.err().unwrap_or_default();
            if error != last_error && !error.is_empty() {
                warn!(error, "look at the MPS control daemons; trying again");
            }
            last_error = error;
        }
    }

    async fn look_at_daemons(&self) -> Result<(), String> {
        let folder = self.place.mps_dir.clone();
        let seen = timeout(DAEMONS_TIMEOUT, spawn_blocking(move || seen::read(&folder))).await;
        let of_folder = |error: &dyn std::fmt::Display| format!("{}: {error}", self.place.mps_dir.display());
        let seen = match seen {
            Ok(Ok(Ok(seen))) => Ok(seen),
            Ok(Ok(Err(error))) => Err(of_folder(&error)),
            Ok(Err(error)) => Err(of_folder(&error)),
            Err(_) => Err(of_folder(&format_args!("no answer within {DAEMONS_TIMEOUT:?}"))),
        };
        let mut books = self.books();
        let changes = match &seen {
            Ok((answers, now)) => books.see(answers.clone(), *now),
            Err(_) => books.not_seen(),
        };
        if changes {
            self.changes.send_modify(|number| *number += 1);
        }
        seen.map(drop)
    }
}

#[cfg(test)]
mod tests;
