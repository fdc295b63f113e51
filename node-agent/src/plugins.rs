//! The device plugins of the node: one state machine per resource that is offered.

use crate::{
    kubelet::{Kubelet, Registered, keep_registered},
    plugin::Offer,
};
use std::{collections::BTreeMap, time::Duration};
use tokio::{
    sync::watch,
    task::{Id, JoinSet},
    time::timeout,
};
use tracing::{info, warn};

/// SIGTERM leaves a second for everything.
const STOP_TIMEOUT: Duration = Duration::from_millis(600);

/// The resources that are being offered.
#[derive(Debug)]
pub struct Plugins {
    kubelet: Kubelet,
    running: BTreeMap<String, Running>,
    tasks: JoinSet<()>,
}

#[derive(Debug)]
struct Running {
    offer: watch::Sender<Offer>,
    stop: watch::Sender<bool>,
    task: Id,
}

impl Plugins {
    /// Nothing is offered yet.
    pub fn new(kubelet: Kubelet) -> Self {
        Self { kubelet, running: BTreeMap::new(), tasks: JoinSet::new() }
    }

    /// Offers exactly `offers`. A resource that stays keeps its server and its stream, and gets a new list only where
    /// that differs.
    pub fn put(&mut self, offers: Vec<Offer>) {
        let mut wanted: BTreeMap<String, Offer> =
            offers.into_iter().map(|offer| (offer.resource.name.clone(), offer)).collect();
        // First those that go, so that no GPU is offered under two names.
        self.running.retain(|name, running| {
            let stays = wanted.contains_key(name);
            if !stays {
                info!(resource = name, "resource is no longer offered");
                running.stop.send_replace(true);
            }
            stays
        });
        for (name, running) in &self.running {
            if let Some(offer) = wanted.remove(name) {
                running.offer.send_if_modified(|now| {
                    let changes = *now != offer;
                    if changes {
                        info!(resource = name, devices = offer.resource.len(), "offer changes");
                        *now = offer;
                    }
                    changes
                });
            }
        }
        for (name, offer) in wanted {
            let (offer, offered) = watch::channel(offer);
            let (stop, stopped) = watch::channel(false);
            let task = self.tasks.spawn(keep_registered(self.kubelet.clone(), offered, stopped)).id();
            self.running.insert(name, Running { offer, stop, task });
        }
    }

    /// Which resources the kubelet has taken the list of; follows their state machines.
    pub fn registered(&self) -> watch::Receiver<Registered> {
        self.kubelet.registered.subscribe()
    }

    /// Returns the name of a resource whose state machine ended though it should run.
    pub async fn failed(&mut self) -> String {
        while let Some(ended) = self.tasks.join_next_with_id().await {
            let id = match &ended {
                Ok((id, ())) => *id,
                Err(error) => error.id(),
            };
            if let Some((name, _)) = self.running.iter().find(|(_, running)| running.task == id) {
                return name.clone();
            }
        }
        std::future::pending().await
    }

    /// Stops every server and removes its socket.
    pub async fn stop(mut self) {
        for running in self.running.values() {
            running.stop.send_replace(true);
        }
        let ended = timeout(STOP_TIMEOUT, async { while self.tasks.join_next().await.is_some() {} }).await;
        if ended.is_err() {
            warn!("device plugin servers did not stop in time");
            self.tasks.shutdown().await;
        }
    }
}
