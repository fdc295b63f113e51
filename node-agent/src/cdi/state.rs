//! State of the CDI file.

use super::demand::{CdiDemand, CdiOptions};
use crate::driver::hardware::Hardware;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

/// State of the CDI file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CdiState {
    /// Inputs of this state; none as long as it only tells what an earlier agent left on disk.
    pub inputs: Option<CdiInputs>,
    /// UUIDs of the devices that containers can get by the file, which is on disk.
    pub described: BTreeSet<String>,
    /// Reasons why other devices cannot be described, by UUID.
    pub left_out: BTreeMap<String, String>,
    /// Reason why containers can get no device by the file.
    pub problem: Option<String>,
}

/// Inputs that decide how the file describes the devices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CdiInputs {
    hardware: Arc<Hardware>,
    options: Option<CdiOptions>,
    unread: Option<String>,
}

impl CdiInputs {
    /// Returns the inputs of that hardware and use of the file.
    pub fn new(hardware: Arc<Hardware>, demand: &CdiDemand) -> Self {
        Self {
            hardware,
            options: demand.options.clone(),
            unread: demand.unread.clone(),
        }
    }
}

impl CdiState {
    /// Returns the state where no allocation names a device by the file: no strategy uses it, or the container runtime does not read
    /// it. None where the file counts.
    pub fn unused(demand: &CdiDemand) -> Option<Self> {
        (demand.options.is_none() || demand.unread.is_some()).then(|| Self {
            problem: demand.unread.clone(),
            ..Self::default()
        })
    }

    /// Returns true if it is known for each of the devices how the file describes it, on that hardware and for that use. Before, no
    /// list with it is advertised. Lists of an earlier agent wait for no file while the driver has not answered: nothing is allocated by
    /// them then.
    pub fn knows<'a>(
        &self,
        hardware: Option<Arc<Hardware>>,
        demand: Option<&CdiDemand>,
        mut devices: impl Iterator<Item = &'a String>,
    ) -> bool {
        let Some(hardware) = hardware.filter(|hardware| hardware.is_known()) else {
            return true;
        };
        let Some(demand) = demand else { return false };
        let is_current = self.inputs.as_ref() == Some(&CdiInputs::new(hardware, demand));
        let is_known = |uuid: &String| self.described.contains(uuid) || self.left_out.contains_key(uuid);
        is_current && (self.problem.is_some() || devices.all(is_known))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::hardware::DriverState;

    fn known() -> Hardware {
        Hardware {
            driver: DriverState::NotNeeded,
            ..Hardware::default()
        }
    }

    #[test]
    fn a_device_is_known_when_it_is_described_or_there_is_a_reason() {
        let devices = ["GPU-0", "GPU-1"].map(str::to_owned);
        let (hardware, demand) = (Arc::new(known()), CdiDemand::default());
        let inputs = CdiInputs::new(hardware.clone(), &demand);
        let knows = |state: &CdiState| state.knows(Some(hardware.clone()), Some(&demand), devices.iter());
        let mut state = CdiState {
            inputs: Some(inputs.clone()),
            ..CdiState::default()
        };
        assert!(!knows(&state));
        state.described.insert("GPU-0".to_owned());
        assert!(!knows(&state));
        state.left_out.insert("GPU-1".to_owned(), "no node".to_owned());
        assert!(knows(&state));
        let broken = CdiState {
            inputs: Some(inputs),
            problem: Some("no driver".to_owned()),
            ..CdiState::default()
        };
        assert!(knows(&broken));
    }

    #[test]
    fn the_state_for_other_hardware_or_another_use_tells_nothing() {
        let device = "GPU-0".to_owned();
        let (hardware, demand) = (Arc::new(known()), CdiDemand::default());
        let state = CdiState {
            inputs: Some(CdiInputs::new(hardware.clone(), &demand)),
            described: [device.clone()].into(),
            left_out: BTreeMap::new(),
            problem: Some("no entry of deviceListStrategy uses CDI".to_owned()),
        };
        let knows = |hardware, demand| state.knows(Some(hardware), Some(demand), [&device].into_iter());
        assert!(knows(hardware.clone(), &demand));
        let other = Hardware {
            functions: 1,
            ..known()
        };
        assert!(!knows(other.into(), &demand));
        let used = CdiDemand {
            options: Some(CdiOptions::default()),
            ..CdiDemand::default()
        };
        assert!(!knows(hardware.clone(), &used));
        let unread = CdiDemand {
            unread: Some("another folder".to_owned()),
            ..CdiDemand::default()
        };
        assert!(!knows(hardware, &unread));
    }

    #[test]
    fn until_the_driver_answers_the_list_of_an_earlier_agent_waits_for_no_file() {
        let (device, state) = ("GPU-0".to_owned(), CdiState::default());
        let knows = |hardware| state.knows(hardware, None, [&device].into_iter());
        assert!(knows(None));
        let waiting = Hardware {
            driver: DriverState::Waiting("no answer yet".to_owned()),
            ..Hardware::default()
        };
        assert!(knows(Some(waiting.into())));
        assert!(!knows(Some(known().into())), "the runtime has not answered");
    }
}
