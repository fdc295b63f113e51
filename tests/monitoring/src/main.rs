//! Writes a recording from the raw scrapes of `record.sh`: `gpunode-recording RAW-FOLDER INTERVAL OUTPUT`.

use anyhow::{Context, Result};
use gpunode_monitoring_tests::compact;
use std::{env::args, path::Path};

fn main() -> Result<()> {
    let arguments: Vec<String> = args().skip(1).collect();
    let [raw, interval, output] = &arguments[..] else {
        anyhow::bail!("usage: gpunode-recording RAW-FOLDER INTERVAL OUTPUT");
    };
    let recording = compact(Path::new(raw), interval.parse().context("read the interval")?)?;
    let text = serde_yaml::to_string(&recording).context("write the recording")?;
    let head = "# Written by tests/monitoring/record.sh. Values are in promtool's notation, one for each scrape.\n";
    std::fs::write(output, format!("{head}{text}")).with_context(|| format!("write {output}"))
}
