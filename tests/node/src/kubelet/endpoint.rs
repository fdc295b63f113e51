//! State of one resource in the kubelet.

use crate::api::Device;
use std::{collections::BTreeSet, time::Instant};

/// State of one resource in the kubelet.
#[derive(Clone, Debug, Default)]
pub struct Endpoint {
    /// File name of the plugin's socket.
    pub socket: String,
    /// Registrations since the test began.
    pub registrations: usize,
    /// Lists received since the test began.
    pub lists: usize,
    /// The last list.
    pub devices: Vec<Device>,
    /// True while its stream is open; otherwise nothing is allocatable.
    pub connected: bool,
}

impl Endpoint {
    /// Ids of the last list.
    pub fn ids(&self) -> Vec<String> {
        self.devices.iter().map(|device| device.id.clone()).collect()
    }

    /// Ids that the kubelet may allocate.
    pub fn healthy(&self) -> BTreeSet<String> {
        self.healthy_devices().map(|device| device.id.clone()).collect()
    }

    /// Returns the number of shares of a device that the kubelet may allocate.
    pub fn healthy_of(&self, device: &str) -> usize {
        self.healthy_devices()
            .filter(|share| share.id.starts_with(device))
            .count()
    }

    pub(super) fn healthy_devices(&self) -> impl Iterator<Item = &Device> {
        self.devices
            .iter()
            .filter(|device| self.connected && device.health == "Healthy")
    }

    pub(super) fn device(&self, id: &str) -> Option<&Device> {
        self.devices.iter().find(|device| device.id == id)
    }
}

/// One list that a plugin sent.
#[derive(Clone, Debug)]
pub struct ListMessage {
    /// Time of arrival.
    pub at: Instant,
    /// The whole list.
    pub devices: Vec<Device>,
}
