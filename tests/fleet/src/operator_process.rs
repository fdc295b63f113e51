//! Operator processes beside the cluster: the release binary with the operator's own account.

use crate::objects::NODE_PREFIX;
use anyhow::{Context, Result, ensure};
use gpunode_cluster::{Process, Signal};
use std::{
    fs::{self, File},
    io::{BufRead as _, BufReader, Seek as _, SeekFrom},
    net::{Ipv4Addr, SocketAddr, TcpListener},
    path::PathBuf,
    process::{Child, Command, Stdio},
    time::Duration,
};

/// Clock ticks of `/proc/PID/stat` in a second: `USER_HZ` of Linux on every architecture that gpunode supports.
const TICKS_PER_SECOND: f64 = 100.0;
const END_TIMEOUT: Duration = Duration::from_secs(20);

/// Settings of an operator process.
#[derive(Clone, Debug)]
pub struct OperatorSettings {
    /// The program.
    pub binary: PathBuf,
    /// Kubeconfig of the operator's account.
    pub kubeconfig: PathBuf,
    /// Folder of the log files.
    pub logs: PathBuf,
    /// Its `--client-qps`; 0 is no limit.
    pub client_qps: u32,
}

/// A running operator; it is killed when the value is dropped.
#[derive(Debug)]
pub struct OperatorProcess {
    pod: String,
    address: SocketAddr,
    log: PathBuf,
    /// Length of the log when the process started: others of its name wrote before.
    log_start: u64,
    child: Child,
    process: Process,
}

/// Memory of a process, in MiB.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ProcessMemory {
    /// Resident now.
    pub resident: f64,
    /// Most that was resident since the start or since [`reset_peak`].
    pub peak: f64,
}

impl OperatorProcess {
    /// Starts an operator with the name of its pod. The kernel kills it when the calling thread ends, so call this on the
    /// thread of the test or of `main`, not in a spawned task.
    pub fn start(settings: &OperatorSettings, pod: &str) -> Result<Self> {
        ensure!(
            settings.binary.exists(),
            "{} is missing: run make programs",
            settings.binary.display()
        );
        let address = free_address()?;
        let path = settings.logs.join(format!("{pod}.log"));
        let log = File::options()
            .create(true)
            .append(true)
            .open(&path)
            .with_context(|| format!("open {}", path.display()))?;
        let log_start = log.metadata().context("read the length of the log")?.len();
        let child = Command::new("setpriv")
            .args(["--pdeathsig", "KILL", "--"])
            .arg(&settings.binary)
            .args(["--agent-image", "gpunode.dev/agent:0.1.0", "--pod-name", pod])
            .args(["--admin-address", &address.to_string()])
            .args(["--client-qps", &settings.client_qps.to_string()])
            .env_clear()
            // As in the image of the operator.
            .env("MALLOC_ARENA_MAX", "1")
            .env("KUBECONFIG", &settings.kubeconfig)
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            .stdin(Stdio::null())
            .stdout(log.try_clone().context("share the log")?)
            .stderr(log)
            .spawn()
            .context("start setpriv")?;
        let pid = i32::try_from(child.id()).context("read a process id")?;
        // A child that nobody has waited for keeps its id.
        let process = Process::open(pid)?.context("find the operator's process")?;
        Ok(Self {
            pod: pod.to_owned(),
            address,
            log: path,
            log_start,
            child,
            process,
        })
    }

    /// Name of its pod, the holder identity in the Lease.
    pub fn pod(&self) -> &str {
        &self.pod
    }

    /// Address of `/livez`, `/readyz` and `/metrics`.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Its process id.
    pub fn pid(&self) -> i32 {
        self.process.pid()
    }

    /// Counts the lines of its log at the level info that name a simulated node.
    pub fn node_lines(&self) -> Result<usize> {
        self.count_lines(is_info_about_a_node)
    }

    fn count_lines(&self, is_counted: impl Fn(&str) -> bool) -> Result<usize> {
        let mut log = File::open(&self.log).with_context(|| format!("open {}", self.log.display()))?;
        log.seek(SeekFrom::Start(self.log_start)).context("skip earlier logs")?;
        let mut lines = BufReader::new(log).lines();
        lines.try_fold(0, |count, line| {
            let line = line.context("read the log")?;
            Ok(count + usize::from(is_counted(&line)))
        })
    }

    /// Counts the lines of its log at the level info with the numbers of nodes of a policy.
    pub fn policy_lines(&self) -> Result<usize> {
        self.count_lines(|line| line.contains(r#""message":"nodes of the policy""#))
    }

    /// Kills it as the kernel does when memory is short.
    pub fn kill(&mut self) -> Result<()> {
        self.process.signal(Signal::KILL)?;
        self.child.wait().context("wait for the operator")?;
        Ok(())
    }

    /// Stops it as the kubelet does, without waiting for its end.
    pub fn terminate(&self) -> Result<()> {
        self.process.signal(Signal::TERM)
    }

    /// Waits until it has ended.
    pub fn wait(&mut self) -> Result<()> {
        self.process.wait(END_TIMEOUT)?;
        self.child.wait().context("wait for the operator")?;
        Ok(())
    }

    /// Fails if the process has ended by itself.
    pub fn ensure_running(&mut self) -> Result<()> {
        let ended = self.child.try_wait().context("look at the operator's process")?;
        ensure!(
            ended.is_none(),
            "operator {} ended with {ended:?}; see its log",
            self.pod
        );
        Ok(())
    }
}

impl Drop for OperatorProcess {
    fn drop(&mut self) {
        // One that is stopped gives the Lease away, and the next one need not wait for its end.
        let ended = self.terminate().and_then(|()| self.process.wait(END_TIMEOUT));
        let _ = ended.or_else(|_| self.process.signal(Signal::KILL));
        let _ = self.child.wait();
    }
}

/// Returns true for a line at the level info with the name of a simulated node.
fn is_info_about_a_node(line: &str) -> bool {
    let mut names = line.split(NODE_PREFIX).skip(1);
    line.contains(r#""level":"INFO""#) && names.any(|rest| rest.starts_with(|first: char| first.is_ascii_digit()))
}

fn free_address() -> Result<SocketAddr> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("find a free port")?;
    listener.local_addr().context("read a free port")
}

/// Returns the processor time that a process has used so far, in seconds.
pub fn processor_seconds(pid: i32) -> Result<f64> {
    let path = format!("/proc/{pid}/stat");
    let stat = fs::read_to_string(&path).with_context(|| format!("read {path}"))?;
    let ticks = processor_ticks(&stat).with_context(|| format!("read the times in {path}"))?;
    Ok(f64::from(ticks) / TICKS_PER_SECOND)
}

/// Returns the sum of `utime` and `stime`, the fields 14 and 15.
fn processor_ticks(stat: &str) -> Option<u32> {
    // The program's name, in parentheses, may contain anything; the next field is the third.
    let (_, fields) = stat.rsplit_once(')')?;
    let mut times = fields.split_ascii_whitespace().skip(11).map(str::parse::<u32>);
    Some(times.next()?.ok()? + times.next()?.ok()?)
}

/// Returns the memory of a process.
pub fn memory(pid: i32) -> Result<ProcessMemory> {
    let path = format!("/proc/{pid}/status");
    let status = fs::read_to_string(&path).with_context(|| format!("read {path}"))?;
    let mebibytes = |field| mebibytes(&status, field).with_context(|| format!("find {field} in {path}"));
    Ok(ProcessMemory {
        resident: mebibytes("VmRSS:")?,
        peak: mebibytes("VmHWM:")?,
    })
}

fn mebibytes(status: &str, field: &str) -> Option<f64> {
    let line = status.lines().find_map(|line| line.strip_prefix(field))?;
    let kibibytes: f64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kibibytes / 1024.0)
}

/// Lets the peak of a process begin anew at what is resident now.
pub fn reset_peak(pid: i32) -> Result<()> {
    let path = format!("/proc/{pid}/clear_refs");
    fs::write(&path, "5").with_context(|| format!("write {path}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_at_the_level_info_that_name_a_node_are_found() {
        let line = |level: &str, text: &str| format!(r#"{{"timestamp":"x","level":"{level}","message":"{text}"}}"#);
        let about = format!("wrote {}", crate::objects::node_name(7));
        assert!(is_info_about_a_node(&line("INFO", &about)));
        assert!(!is_info_about_a_node(&line("DEBUG", &about)));
        assert!(!is_info_about_a_node(&line("INFO", "fleet-operator leads")));
    }

    #[test]
    fn times_of_a_process_are_found_behind_any_name() {
        let stat = "7 (a) b) S 1 7 7 0 -1 4194560 1 0 0 0 250 50 0 0 20 0 4 0 1 1 1";
        assert_eq!(processor_ticks(stat), Some(300));
        assert_eq!(processor_ticks("7 (a) S 1"), None);
    }

    #[test]
    fn memory_of_this_process_is_readable() {
        let pid = i32::try_from(std::process::id()).unwrap();
        let memory = memory(pid).unwrap();
        assert!(memory.resident > 0.0 && memory.peak >= memory.resident, "{memory:?}");
        assert!(processor_seconds(pid).unwrap() >= 0.0);
    }
}
