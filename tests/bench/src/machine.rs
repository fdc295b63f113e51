//! Machine and date of the measurements.

use jiff::Zoned;
use std::{fs, thread::available_parallelism};

/// One sentence. What the system does not tell is left out.
pub fn describe() -> String {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let field = |text: &str, name: &str| {
        let line = text.lines().find(|line| line.starts_with(name))?;
        Some(line.split_once(':')?.1.trim().to_owned())
    };
    let kib = |line: String| line.trim_end_matches("kB").trim().parse::<u64>().ok();
    let cores = available_parallelism().ok().map(|cores| format!("{cores} cores"));
    let model = field(&read("/proc/cpuinfo"), "model name");
    let memory = field(&read("/proc/meminfo"), "MemTotal")
        .and_then(kib)
        .map(|kib| format!("{} GiB", kib.div_ceil(1 << 20)));
    let kernel = read("/proc/sys/kernel/osrelease");
    let kernel = Some(format!("kernel {}", kernel.trim()));
    let parts: Vec<String> = [cores, model, memory, kernel].into_iter().flatten().collect();
    format!("{}; release builds; {}.", parts.join(", "), Zoned::now().date())
}
