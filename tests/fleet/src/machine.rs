//! Machine and date of the measurements.

use jiff::Timestamp;
use std::{fs, thread::available_parallelism};

/// Returns one sentence. It leaves out what the system does not tell.
pub fn describe_machine() -> String {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let field = |text: &str, name: &str| {
        let line = text.lines().find(|line| line.starts_with(name))?;
        Some(line.split_once(':')?.1.trim().to_owned())
    };
    let kib = |text: String| text.trim_end_matches("kB").trim().parse::<u64>().ok();
    let cores = available_parallelism().ok().map(|cores| format!("{cores} cores"));
    let model = field(&read("/proc/cpuinfo"), "model name");
    let memory = field(&read("/proc/meminfo"), "MemTotal")
        .and_then(kib)
        .map(|kib| format!("{} GiB", kib.div_ceil(1 << 20)));
    let parts: Vec<String> = [cores, model, memory].into_iter().flatten().collect();
    let date: String = Timestamp::now().to_string().chars().take(10).collect();
    format!("{}; release builds; {date}.", parts.join(", "))
}
