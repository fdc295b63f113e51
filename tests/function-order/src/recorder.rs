//! Runs a program and records which of its functions are executed.
//!
//! The first byte of each function is a breakpoint until the function is called. So each costs one stop, and the program
//! runs at nearly its own speed. A second process sets them; the program has the process id of the one that was started, so
//! signals, limits and the end are its own.

use crate::functions::{self, Function};
use anyhow::{Context as _, Result, bail, ensure};
use nix::{
    errno::Errno,
    libc,
    sys::{
        ptrace::{self, Options},
        signal::Signal,
        wait::{WaitPidFlag, WaitStatus, waitpid},
    },
    unistd::Pid,
};
use std::{
    collections::BTreeMap,
    env,
    ffi::OsString,
    fs::{self, File, OpenOptions},
    io::{BufRead as _, BufReader, Write as _},
    os::unix::{fs::FileExt as _, process::CommandExt as _},
    path::Path,
    process::{self, Command, Stdio},
};

/// The instruction `int3` of x86-64.
const BREAKPOINT: u8 = 0xcc;
/// Said by the second process once the program may start.
const ATTACHED: &str = "attached";

/// Becomes a program, with a second process that records it. Returns if that fails.
pub fn record(to: &Path, program: &Path, arguments: &[OsString]) -> Result<()> {
    ensure!(cfg!(target_arch = "x86_64"), "functions are recorded on x86-64 only");
    let program = fs::canonicalize(program).with_context(|| format!("find {}", program.display()))?;
    let own = env::current_exe().context("find this program")?;
    let mut recorder = Command::new(own)
        .arg("attach")
        .arg("--to")
        .args([to, &program])
        .arg(process::id().to_string())
        .stdout(Stdio::piped())
        .spawn()
        .context("start the second process")?;
    let said = recorder.stdout.take().context("hear the second process")?;
    let mut line = String::new();
    BufReader::new(said)
        .read_line(&mut line)
        .context("hear the second process")?;
    ensure!(line.trim() == ATTACHED, "cannot record: see the error above");
    let error = Command::new(&program).args(arguments).exec();
    Err(error).with_context(|| format!("start {}", program.display()))
}

/// Appends the names of functions that a process executes, once it has become this program, to a file. Returns at its end.
#[expect(clippy::print_stdout, reason = "the first process waits for it")]
pub fn attach(to: &Path, program: &Path, pid: i32) -> Result<()> {
    let functions = functions::read(program)?;
    let log = OpenOptions::new().create(true).append(true).open(to);
    let log = log.with_context(|| format!("open {}", to.display()))?;
    let pid = Pid::from_raw(pid);
    let options = Options::PTRACE_O_TRACEEXEC | Options::PTRACE_O_TRACECLONE | Options::PTRACE_O_EXITKILL;
    ptrace::seize(pid, options).with_context(|| format!("trace process {pid}"))?;
    println!("{ATTACHED}");
    let mut functions = Some(functions);
    let mut breakpoints = None;
    loop {
        let status = match waitpid(None, Some(WaitPidFlag::__WALL)) {
            Err(Errno::EINTR) => continue,
            status => status.context("wait for the program")?,
        };
        let (thread, signal) = match status {
            WaitStatus::Exited(ended, _) | WaitStatus::Signaled(ended, ..) if ended == pid => return Ok(()),
            WaitStatus::PtraceEvent(thread, _, libc::PTRACE_EVENT_EXEC) => {
                let functions = functions.take().context("the program started another")?;
                breakpoints = Some(Breakpoints::set(pid, program, functions)?);
                (thread, None)
            }
            WaitStatus::PtraceEvent(thread, ..) => (thread, None),
            WaitStatus::Stopped(thread, Signal::SIGTRAP) => {
                let breakpoints = breakpoints.as_mut().context("a breakpoint before the first")?;
                breakpoints.pass(thread, &log)?;
                (thread, None)
            }
            WaitStatus::Stopped(thread, signal) => (thread, Some(signal)),
            _ => continue,
        };
        match ptrace::cont(thread, signal) {
            // It was killed.
            Ok(()) | Err(Errno::ESRCH) => {}
            Err(error) => return Err(error).context("let the program go on"),
        }
    }
}

/// Breakpoints of a process.
struct Breakpoints {
    memory: File,
    /// Address of the program in memory.
    base: u64,
    /// Names by address in the program, and the byte that the breakpoint replaces; without it if the function was called.
    functions: BTreeMap<u64, (Vec<String>, Option<u8>)>,
}

impl Breakpoints {
    fn set(pid: Pid, program: &Path, functions: Vec<Function>) -> Result<Self> {
        let memory = OpenOptions::new()
            .read(true)
            .write(true)
            .open(format!("/proc/{pid}/mem"));
        let memory = memory.context("open the program's memory")?;
        let base = base(pid, program)?;
        let mut by_address: BTreeMap<u64, (Vec<String>, Option<u8>)> = BTreeMap::new();
        for function in functions {
            by_address.entry(function.address).or_default().0.push(function.name);
        }
        for (address, (_, replaced)) in &mut by_address {
            let mut byte = [0];
            memory
                .read_exact_at(&mut byte, base + address)
                .context("read the program's memory")?;
            memory
                .write_all_at(&[BREAKPOINT], base + address)
                .context("set a breakpoint")?;
            *replaced = Some(byte[0]);
        }
        Ok(Self {
            memory,
            base,
            functions: by_address,
        })
    }

    /// Records the function at whose breakpoint a thread is, removes that, and lets the thread begin with the function.
    fn pass(&mut self, thread: Pid, mut log: &File) -> Result<()> {
        let Some(at) = step_back(thread)? else { return Ok(()) };
        let address = at - self.base;
        let Some((names, replaced)) = self.functions.get_mut(&address) else {
            bail!("the program stopped at {address:#x}, where no function begins");
        };
        // Another thread may have come to it before the breakpoint was gone.
        if let Some(byte) = replaced.take() {
            self.memory
                .write_all_at(&[byte], self.base + address)
                .context("remove a breakpoint")?;
            log.write_all(format!("{}\n", names.join("\n")).as_bytes())
                .context("write the record")?;
        }
        Ok(())
    }
}

/// Lets a thread go back to the breakpoint that it has passed, and returns where that is; none for a thread that was killed.
#[cfg(target_arch = "x86_64")]
fn step_back(thread: Pid) -> Result<Option<u64>> {
    let back = ptrace::getregs(thread).and_then(|mut registers| {
        registers.rip -= 1;
        ptrace::setregs(thread, registers)?;
        Ok(registers.rip)
    });
    match back {
        Ok(address) => Ok(Some(address)),
        Err(Errno::ESRCH) => Ok(None),
        Err(error) => Err(error).context("go back to the start of a function"),
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn step_back(_: Pid) -> Result<Option<u64>> {
    bail!("functions are recorded on x86-64 only")
}

/// Returns where a program is in the memory of a process.
fn base(pid: Pid, program: &Path) -> Result<u64> {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).context("read what is in memory")?;
    let mut lines = maps.lines().filter(|line| line.ends_with(&*program.to_string_lossy()));
    let start = lines.next().and_then(|line| line.split('-').next());
    let start = start.with_context(|| format!("{} is not in memory", program.display()))?;
    u64::from_str_radix(start, 16).context("read the address of the program")
}
