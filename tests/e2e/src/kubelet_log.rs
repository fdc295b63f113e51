//! Log lines of a kubelet about device plugins.

use crate::Lab;
use anyhow::{Context, Result};
use std::{
    fs::{self, File},
    io::{Read, Seek, SeekFrom},
    path::PathBuf,
    time::Duration,
};

const LOST: &str = "\"Endpoint became unhealthy\"";
const LISTED: &str = "\"Processed device updates for resource\"";
const DAY: Duration = Duration::from_hours(24);

/// The kubelet's log of one node from one moment on.
#[derive(Debug, Clone)]
pub struct KubeletLog {
    path: PathBuf,
    from: u64,
}

impl KubeletLog {
    /// Follows the log from now on.
    pub fn from_now(lab: &Lab, node: &str) -> Result<Self> {
        let path = lab.cluster().node(node)?.kubelet_log();
        let from = fs::metadata(&path)
            .with_context(|| format!("find {}", path.display()))?
            .len();
        Ok(Self { path, from })
    }

    /// Lines that say that the stream of a plugin has ended: an admission at that moment would have failed, though node
    /// status may never have shown it.
    pub fn lost_endpoints(&self) -> Result<Vec<String>> {
        Ok(self
            .text()?
            .lines()
            .filter(|line| line.contains(LOST))
            .map(str::to_owned)
            .collect())
    }

    /// Returns the gaps of a resource: each from the end of its plugin's stream to the next list. A gap that has not ended
    /// does not count.
    pub fn gaps(&self, resource: &str) -> Result<Vec<Duration>> {
        gaps(&self.text()?, resource)
    }

    fn text(&self) -> Result<String> {
        let mut file = File::open(&self.path).with_context(|| format!("open {}", self.path.display()))?;
        file.seek(SeekFrom::Start(self.from))
            .context("skip what was logged before")?;
        let mut text = Vec::new();
        file.read_to_end(&mut text).context("read the kubelet's log")?;
        Ok(String::from_utf8_lossy(&text).into_owned())
    }
}

fn gaps(log: &str, resource: &str) -> Result<Vec<Duration>> {
    let name = format!("resourceName=\"{resource}\"");
    let (mut lost, mut gaps) = (None, Vec::new());
    for line in log.lines().filter(|line| line.contains(&name)) {
        if line.contains(LOST) {
            lost.get_or_insert(time_of(line)?);
        } else if line.contains(LISTED)
            && let Some(lost) = lost.take()
        {
            // Over midnight the day has gone round.
            let time = time_of(line)?;
            let listed = if time < lost { time + DAY } else { time };
            gaps.push(listed.saturating_sub(lost));
        }
    }
    Ok(gaps)
}

/// The time of day in the header of a line of klog, `I1121 00:03:39.930235`.
fn time_of(line: &str) -> Result<Duration> {
    let time = line
        .split_whitespace()
        .nth(1)
        .with_context(|| format!("find the time in {line:?}"))?;
    let read = |text: Option<&str>| -> Result<f64> { Ok(text.context("a part of the time is missing")?.parse()?) };
    let mut parts = time.split(':');
    let [hours, minutes, seconds] = [read(parts.next()), read(parts.next()), read(parts.next())];
    let seconds = hours? * 3600.0 + minutes? * 60.0 + seconds?;
    Duration::try_from_secs_f64(seconds).with_context(|| format!("read the time {time}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    // As kubelet 1.36.3 logs it.
    const LOG: &str = r#"
I1121 00:03:39.930038     132 handler.go:119] "Deregistered client" name="nvidia.com/gpu"
I1121 00:03:39.930235     132 manager.go:253] "Endpoint became unhealthy" resourceName="nvidia.com/gpu"
I1121 00:03:39.940102     132 server.go:161] "Got registration request from device plugin with resource" resourceName="nvidia.com/gpu"
I1121 00:03:39.941000     132 manager.go:319] "Processed device updates for resource" resourceName="a.b/c" totalCount=8 healthyCount=8
I1121 00:03:39.943235     132 manager.go:319] "Processed device updates for resource" resourceName="nvidia.com/gpu" totalCount=8 healthyCount=8
I1121 00:04:16.331679     132 manager.go:319] "Processed device updates for resource" resourceName="nvidia.com/gpu" totalCount=8 healthyCount=8
I1121 23:59:59.900000     132 manager.go:253] "Endpoint became unhealthy" resourceName="nvidia.com/gpu"
I1122 00:00:00.100000     132 manager.go:319] "Processed device updates for resource" resourceName="nvidia.com/gpu" totalCount=8 healthyCount=8
"#;

    #[test]
    fn a_gap_lasts_from_the_end_of_a_stream_to_the_next_list() {
        let millis: Vec<u128> = gaps(LOG, "nvidia.com/gpu")
            .unwrap()
            .iter()
            .map(Duration::as_millis)
            .collect();
        assert_eq!(millis, [13, 200]);
        assert!(gaps(LOG, "a.b/c").unwrap().is_empty());
    }
}
