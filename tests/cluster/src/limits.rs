//! Limits of the kernel that several clusters on one machine reach.

use std::fs;

use crate::progress::Progress;

/// Inotify instances of one user. Every kubelet, containerd and kube-proxy has some; the usual 128 are not enough for three
/// clusters of five nodes, and a program that gets none fails with "too many open files".
const INSTANCES: &str = "/proc/sys/fs/inotify/max_user_instances";
const ENOUGH: u32 = 1024;

/// Raises a limit that is too low. Says so, because the limit is the machine's and stays.
pub(crate) fn raise(progress: Progress) {
    let Some(limit) = too_low(&fs::read_to_string(INSTANCES).unwrap_or_default()) else {
        return;
    };
    match fs::write(INSTANCES, ENOUGH.to_string()) {
        Ok(()) => progress.print("machine", format_args!("raised {INSTANCES} from {limit} to {ENOUGH}")),
        // One cluster needs no more than there are.
        Err(error) => progress.print(
            "machine",
            format_args!("{INSTANCES} is {limit}, which two clusters exhaust, and cannot be raised: {error}"),
        ),
    }
}

/// The limit, where it is too low.
fn too_low(text: &str) -> Option<u32> {
    text.trim().parse().ok().filter(|limit| *limit < ENOUGH)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_raised_where_it_is_known_to_be_too_low() {
        assert_eq!(too_low("128\n"), Some(128));
        for text in ["1024\n", "8192\n", ""] {
            assert_eq!(too_low(text), None, "{text:?}");
        }
    }
}
