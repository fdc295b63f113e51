//! Compares the agent with nvidia-smi and with the driver's own answers on a machine with GPUs, without a cluster
//! (`docs/real-gpus.md`). It reads, allocates from a kubelet's double, and changes no setting of a GPU. Exits with 1 and names
//! what differs.
//!
//! | module | what it does |
//! |---|---|
//! | `findings` | compares what the three say, pure |
//! | `nvidia_smi` | reads the output of nvidia-smi |
//! | `xml` | parses its XML |
//! | `driver` | makes calls of the driver, in a process of their own |
//! | `raw` | the call that nvml-wrapper lacks, the only unsafe code |
//! | `agent` | runs the agent |
//! | `agent_log` | reads its log |
//! | `limited` | runs programs that may hang |
//! | `table` | rows, and their table |

mod agent;
mod agent_log;
mod driver;
mod findings;
mod limited;
mod nvidia_smi;
mod raw;
mod table;
mod xml;

use agent::AgentProgram;
use anyhow::{Context as _, Result, bail, ensure};
use clap::{Parser, Subcommand};
use findings::Findings;
use nvidia_smi::SmiLog;
use std::{
    env, fs,
    io::{self, Write as _},
    path::{Path, PathBuf},
    process::{Command, exit},
    time::Duration,
};
use tokio::runtime::Builder;

/// Compares gpunode's agent with nvidia-smi on this machine. Changes no setting of a GPU.
#[derive(Debug, Parser)]
#[command(name = "gpunode-gpu-check", version, about)]
struct Cli {
    #[command(subcommand)]
    part: Option<Part>,

    /// The agent. Default: gpunode-agent beside this program.
    #[arg(long)]
    agent: Option<PathBuf>,

    /// Root of the host, below which the agent looks for the driver and for sysfs.
    #[arg(long, default_value = "/")]
    host_root: PathBuf,

    /// Folders of the host below which the agent looks for the driver, such as /usr/local/nvidia, separated by commas.
    #[arg(long)]
    driver_roots: Option<String>,

    /// The driver's library for the calls of this program.
    #[arg(long, default_value = "libnvidia-ml.so.1")]
    library: PathBuf,

    /// Output of `nvidia-smi -q -x`. Default: runs it.
    #[arg(long)]
    nvidia_smi: Option<PathBuf>,

    /// Seconds after which a program or a call counts as hung.
    #[arg(long, default_value = "180")]
    limit: u64,
}

#[derive(Debug, Subcommand)]
enum Part {
    /// Make the calls of the driver; this program runs itself so, because a call that hangs cannot be ended.
    #[command(hide = true)]
    Driver {
        /// The driver's library.
        library: PathBuf,
    },
}

fn main() {
    let result = match Cli::parse() {
        Cli {
            part: Some(Part::Driver { library }),
            ..
        } => driver::answer(&library),
        cli => check(cli),
    };
    if let Err(error) = &result {
        _ = writeln!(io::stderr(), "Error: {error:#}");
    }
    // At once: a process whose call into the driver hangs may still be there.
    exit(i32::from(result.is_err()));
}

fn check(cli: Cli) -> Result<()> {
    let program = env::current_exe().context("find this program")?;
    let limit = Duration::from_secs(cli.limit);
    let text = |error: anyhow::Error| format!("{error:#}");
    let agent = AgentProgram {
        path: cli.agent.unwrap_or_else(|| program.with_file_name("gpunode-agent")),
        host_root: cli.host_root,
        driver_roots: cli.driver_roots,
    };
    // First of all, so that the first session finds the GPUs as they were.
    let driver = driver::ask(&program, &cli.library, limit).map_err(text);
    let smi = read_smi(cli.nvidia_smi.as_deref(), limit).map_err(text);
    let inventory = agent.inventory(limit).map_err(text);
    let run = match Findings::gpus(&smi, &inventory) {
        0 => Err("no GPU is known".to_owned()),
        gpus => {
            let devices = Findings::devices(&smi, &inventory);
            let runtime = Builder::new_current_thread().enable_all().build();
            let runtime = runtime.context("start a runtime")?;
            runtime.block_on(agent.work(gpus, &devices, limit)).map_err(text)
        }
    };
    let findings = Findings {
        smi,
        driver,
        inventory,
        run,
    };
    let rows = findings.rows();
    writeln!(io::stdout(), "### {}\n\n{}", findings.title(), table::markdown(&rows)).context("print the table")?;
    let differences = table::differences(&rows);
    ensure!(
        differences.is_empty(),
        "{} of {} rows differ:\n{}",
        differences.len(),
        rows.len(),
        differences.join("\n")
    );
    Ok(())
}

fn read_smi(file: Option<&Path>, limit: Duration) -> Result<SmiLog> {
    if let Some(file) = file {
        let output = fs::read_to_string(file).with_context(|| format!("read {}", file.display()))?;
        return Ok(SmiLog::parse(&output)?);
    }
    let finished = limited::run(Command::new("nvidia-smi").args(["-q", "-x"]), limit)?;
    let parsed = SmiLog::parse(&finished.stdout);
    if finished.status.success() {
        return Ok(parsed?);
    }
    let errors = limited::last_lines(&finished.stderr);
    match parsed {
        // Such as 14, with a warning about an infoROM after all that it prints otherwise.
        Ok(log) => {
            let remarks = format!("{}: {} {errors}", finished.status, log.remarks);
            Ok(SmiLog {
                remarks: remarks.trim().to_owned(),
                ..log
            })
        }
        // It says on standard output why it fails.
        Err(_) => bail!(
            "{}: {} {errors}",
            finished.status,
            limited::last_lines(&finished.stdout)
        ),
    }
}
