//! GPUs that vanished. A driver upgrade, a GPU reset or a starting agent must not take a node from its policies, so a GPU that
//! is not found stays in status for a while, and one that is not looked for stays as it was. Pure.

use gpunode_crds::{ConditionType, GpuDevice, GpuNodeStatus, MAX_DEVICES, Reason};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

/// Time that a missing GPU stays in status. Containers that install a driver take minutes.
const FACT_GRACE: SignedDuration = SignedDuration::from_mins(15);

/// Adds the GPUs of `before` that `status` lacks, and the driver's facts if `status` has none.
pub fn keep_missing(status: &mut GpuNodeStatus, before: &GpuNodeStatus, now: Timestamp) {
    let any_seen = !status.gpus.is_empty();
    if is_unread(status) {
        // GPUs that are not looked for neither vanish nor come back.
        if !any_seen {
            status.gpus.clone_from(&before.gpus);
        }
        for gpu in &mut status.gpus {
            let known = before.gpus.iter().find(|known| known.uuid == gpu.uuid);
            gpu.missing_since = known.and_then(|known| known.missing_since.clone());
        }
    }
    status.gpus = with_missing(std::mem::take(&mut status.gpus), &before.gpus, now);
    if !any_seen && !status.gpus.is_empty() {
        status.hardware = status.hardware.take().or_else(|| before.hardware.clone());
        status.driver_version = status.driver_version.take().or_else(|| before.driver_version.clone());
        status.cuda_version = status.cuda_version.take().or_else(|| before.cuda_version.clone());
    }
}

/// Returns true while the agent does not read the GPUs: they are released, or a call to the driver has no answer yet.
fn is_unread(status: &GpuNodeStatus) -> bool {
    let unread = [Reason::Released, Reason::DriverNotReady].map(Reason::as_str);
    ConditionType::DriverAvailable
        .find(&status.conditions)
        .is_some_and(|condition| unread.contains(&condition.reason.as_str()))
}

/// Returns the time after `now` at which the next missing GPU leaves the list.
pub fn next_given_up(gpus: &[GpuDevice], now: Timestamp) -> Option<Timestamp> {
    gpus.iter()
        .filter_map(|gpu| gpu.missing_since.as_ref())
        .map(given_up)
        .filter(|at| *at > now)
        .min()
}

/// Returns `seen` and the missing ones of `before`, ordered by index.
fn with_missing(seen: Vec<GpuDevice>, before: &[GpuDevice], now: Timestamp) -> Vec<GpuDevice> {
    let mut gpus = seen;
    for gpu in before {
        // A time in the future comes from a clock that was wrong.
        let since = gpu
            .missing_since
            .clone()
            .filter(|since| since.0 <= now)
            .unwrap_or(Time(now));
        let is_seen = gpus.iter().any(|other| other.uuid == gpu.uuid);
        if !is_seen && given_up(&since) > now && gpus.len() < MAX_DEVICES {
            gpus.push(GpuDevice {
                missing_since: Some(since),
                ..gpu.clone()
            });
        }
    }
    // A GPU that is there may have the index of a missing one.
    gpus.sort_by_key(|gpu| (gpu.index, gpu.missing_since.is_some()));
    gpus
}

fn given_up(since: &Time) -> Timestamp {
    since.0.saturating_add(FACT_GRACE).unwrap_or(Timestamp::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

    fn at(minute: i64) -> Timestamp {
        Timestamp::from_second(minute * 60).unwrap()
    }

    fn gpu(index: u32, missing_since: Option<i64>) -> GpuDevice {
        let missing_since = missing_since.map(|minute| Time(at(minute)));
        GpuDevice {
            index,
            uuid: format!("GPU-{index}"),
            missing_since,
            ..GpuDevice::default()
        }
    }

    fn of(gpus: Vec<GpuDevice>) -> GpuNodeStatus {
        let told = (!gpus.is_empty()).then(|| "580.95.05".to_owned());
        GpuNodeStatus {
            gpus,
            driver_version: told,
            ..GpuNodeStatus::default()
        }
    }

    /// Returns the status at `minute`, with the GPUs in `seen`, after the status `before`.
    fn after(before: &GpuNodeStatus, seen: Vec<GpuDevice>, minute: i64) -> GpuNodeStatus {
        let mut status = of(seen);
        keep_missing(&mut status, before, at(minute));
        status
    }

    #[test]
    fn a_gpu_that_vanishes_stays_for_a_quarter_of_an_hour_since_it_was_last_seen() {
        let before = of(vec![gpu(0, None), gpu(1, None)]);
        let gone = after(&before, vec![gpu(1, None)], 5);
        assert_eq!(gone.gpus, [gpu(0, Some(5)), gpu(1, None)]);
        assert_eq!(next_given_up(&gone.gpus, at(5)), Some(at(20)));
        // What an agent that starts anew reads from its own GpuNode is all that it needs.
        assert_eq!(after(&gone, vec![gpu(1, None)], 19).gpus, gone.gpus);
        assert_eq!(after(&gone, vec![gpu(1, None)], 20).gpus, [gpu(1, None)]);
    }

    #[test]
    fn a_gpu_that_comes_back_is_missing_no_more() {
        let gone = after(&of(vec![gpu(0, None)]), vec![], 5);
        assert_eq!(gone.gpus, [gpu(0, Some(5))]);
        let back = after(&gone, vec![gpu(0, None)], 10);
        assert_eq!(
            (back.gpus.as_slice(), next_given_up(&back.gpus, at(10))),
            ([gpu(0, None)].as_slice(), None)
        );
        assert_eq!(
            after(&back, vec![], 12).gpus,
            [gpu(0, Some(12))],
            "the next absence counts from its own beginning"
        );
    }

    #[test]
    fn the_drivers_version_stays_as_long_as_the_gpus_that_it_drove() {
        let before = of(vec![gpu(0, None)]);
        let gone = after(&before, vec![], 1);
        assert_eq!(gone.driver_version.as_deref(), Some("580.95.05"));
        assert_eq!(after(&gone, vec![], 16), GpuNodeStatus::default());
    }

    #[test]
    fn gpus_that_the_agent_does_not_read_neither_vanish_nor_come_back() {
        let before = of(vec![gpu(0, None), gpu(1, Some(2))]);
        for reason in [Reason::Released, Reason::DriverNotReady] {
            // Without a reading by an agent that starts meanwhile, and with one by the agent that was there before.
            for seen in [vec![], vec![gpu(0, None), gpu(1, None)]] {
                let mut status = of(seen);
                status.conditions.push(Condition {
                    type_: ConditionType::DriverAvailable.as_str().to_owned(),
                    status: "False".to_owned(),
                    reason: reason.as_str().to_owned(),
                    message: String::new(),
                    last_transition_time: Time(at(0)),
                    observed_generation: None,
                });
                keep_missing(&mut status, &before, at(5));
                assert_eq!(status.gpus, before.gpus, "{reason:?}");
                assert_eq!(status.driver_version.as_deref(), Some("580.95.05"));
                keep_missing(&mut status, &before, at(50));
                assert_eq!(next_given_up(&status.gpus, at(50)), None, "{reason:?}");
            }
        }
    }

    #[test]
    fn one_that_was_missing_at_a_time_to_come_is_missing_since_now() {
        assert_eq!(after(&of(vec![gpu(0, Some(99))]), vec![], 5).gpus, [gpu(0, Some(5))]);
    }

    #[test]
    fn another_gpu_with_the_same_index_comes_first_and_the_list_stays_bounded() {
        let new = GpuDevice {
            uuid: "GPU-new".to_owned(),
            ..gpu(0, None)
        };
        let both = after(&of(vec![gpu(0, None)]), vec![new.clone()], 1);
        assert_eq!(both.gpus, [new, gpu(0, Some(1))]);
        let many = (0..u32::try_from(MAX_DEVICES).unwrap())
            .map(|index| gpu(index, None))
            .collect();
        let full = after(&of(vec![gpu(99, None)]), many, 1);
        assert_eq!((full.gpus.len(), next_given_up(&full.gpus, at(1))), (MAX_DEVICES, None));
    }
}
