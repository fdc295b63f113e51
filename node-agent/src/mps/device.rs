//! Looks after the MPS control daemon of one device: sees, asks [`Daemon`] what to do, and does it.

use super::{
    compute_mode,
    control::Control,
    daemon::{Daemon, Seen, Step, Want},
    holders::Holders,
    memory,
    place::{Place, since_boot},
    processes,
};
use crate::{atomic_file, driver_root};
use anyhow::{Context as _, Result, bail};
use std::{fs, io, time::Duration};
use tokio::{
    sync::watch,
    task::spawn_blocking,
    time::{Instant, timeout},
};
use tracing::{info, warn};

/// How often a daemon is asked.
const INTERVAL: Duration = Duration::from_secs(1);
/// How often a daemon is looked at that is starting or quitting.
const SHORT_INTERVAL: Duration = Duration::from_millis(100);
/// How long a daemon takes at most to start or quit, as a rule.
const SETTLES_WITHIN: Duration = Duration::from_secs(3);
/// A file system or driver call that hangs must not keep this process from ending.
const CALL_TIMEOUT: Duration = Duration::from_secs(30);
/// Bytes of each log file that are kept: they are in memory, and each question to a daemon writes lines.
const MAX_LOG: u64 = 1024 * 1024;

/// What looking after a daemon needs.
#[derive(Clone, Debug)]
pub struct Care {
    /// The device's folder.
    pub place: Place,
    /// The program.
    pub control: Control,
    /// Who holds devices.
    pub holders: Holders,
}

impl Care {
    /// Ends when the daemon and its folder are gone and not wanted, or when `want` is.
    pub async fn look_after(self, mut want: watch::Receiver<Want>) {
        let mut daemon = Daemon::default();
        let mut state = State::default();
        let mut short_until = Instant::now();
        loop {
            let wanted = *want.borrow_and_update();
            let seen = self.see(wanted, &mut state).await;
            let mut asked = seen.map(|seen| (seen, daemon.next(wanted, seen, std::time::Instant::now())));
            // What was prepared is used at once.
            while let Ok((seen, Some(step))) = asked {
                let done = self.carry_out(step, &mut daemon).await;
                state.report(&self.place, done.as_ref().err().map(|error| format!("{error:#}")));
                match (step, done) {
                    (Step::Clean, Ok(())) if *want.borrow() != Want::Run => return,
                    (Step::Prepare, Ok(())) => daemon.prepared(),
                    _ => short_until = Instant::now() + SETTLES_WITHIN,
                }
                asked = Ok((seen, daemon.next(wanted, seen, std::time::Instant::now())));
                if step != Step::Prepare {
                    break;
                }
            }
            if let Err(error) = asked {
                state.report(&self.place, Some(format!("{error:#}")));
            }
            let pause = if Instant::now() < short_until { SHORT_INTERVAL } else { INTERVAL };
            if let Ok(Err(_)) = timeout(pause, want.changed()).await {
                return;
            }
        }
    }

    async fn see(&self, want: Want, state: &mut State) -> Result<Seen> {
        if want == Want::Run {
            match self.control.ask(&self.place).await {
                Ok(()) => {
                    self.record_answer().await?;
                    state.answers(&self.place);
                    return Ok(Seen::Answers);
                }
                Err(error) => state.silent(&self.place, &error.to_string()),
            }
        }
        let place = self.place.clone();
        blocking(move || {
            let running = !processes::of(&place)?.is_empty();
            let answered = place.answered().exists();
            // Nobody may take the answer of a daemon that has gone, or of one that nobody may start to use, for news.
            if answered && (want != Want::Run || !running) {
                fs::remove_file(place.answered())?;
            }
            Ok(if running { Seen::Silent { answered } } else { Seen::Gone })
        })
        .await
        .with_context(|| format!("look for the MPS control daemon of {}", self.place.uuid()))
    }

    async fn record_answer(&self) -> Result<()> {
        let place = self.place.clone();
        blocking(move || {
            atomic_file::replace(&place.answered(), since_boot().as_millis().to_string().as_bytes())?;
            bound_logs(&place)
        })
        .await
        .with_context(|| format!("record in {} that the daemon answers", self.place.folder().display()))
    }

    async fn carry_out(&self, step: Step, daemon: &mut Daemon) -> Result<()> {
        let device = self.place.uuid();
        match step {
            Step::Prepare => self.prepare().await,
            Step::Start => {
                let place = self.place.clone();
                blocking(move || empty(&place.pipe())).await.context("remove what a dead daemon left")?;
                self.control.start(&self.place).await?;
                info!(device, "MPS control daemon started");
                Ok(())
            }
            Step::Quit | Step::QuitUnlessHeld => {
                if step == Step::QuitUnlessHeld {
                    self.is_free().await.inspect_err(|_| daemon.not_told())?;
                }
                self.control.quit(&self.place).await?;
                info!(device, "MPS control daemon told to quit");
                Ok(())
            }
            Step::KillUnlessHeld if self.holders.hold(device).await? => {
                warn!(device, "the MPS control daemon is not wanted and does not quit; a container holds the device");
                Ok(())
            }
            Step::Kill | Step::KillUnlessHeld => {
                warn!(device, "the MPS control daemon does not answer; killing it");
                let place = self.place.clone();
                blocking(move || processes::kill(&place)).await.with_context(|| format!("kill the daemon of {device}"))
            }
            Step::Clean => {
                self.restore_compute_mode().await?;
                let place = self.place.clone();
                let remove =
                    move || memory::remove(&place).and_then(|()| ignore_missing(fs::remove_dir_all(place.folder())));
                blocking(remove).await.with_context(|| format!("remove {}", self.place.folder().display()))?;
                info!(device, "MPS control daemon gone, compute mode restored");
                Ok(())
            }
        }
    }

    async fn is_free(&self) -> Result<()> {
        let device = self.place.uuid();
        if self.holders.hold(device).await? {
            bail!("{device} is held by a container again: its MPS control daemon goes on");
        }
        Ok(())
    }

    async fn prepare(&self) -> Result<()> {
        let place = self.place.clone();
        let folders = blocking(move || make_folders(&place).and_then(|()| memory::provide(&place)));
        folders.await.with_context(|| {
            let folder = self.place.folder().display();
            format!("make the folders in {folder}, and mount a tmpfs on two; does the container run privileged?")
        })?;
        self.compute_mode(compute_mode::set).await
    }

    /// Restores the compute mode, whatever the daemon does.
    pub async fn restore_compute_mode(&self) -> Result<()> {
        self.compute_mode(compute_mode::restore).await
    }

    async fn compute_mode(
        &self,
        change: fn(&Place, &[std::path::PathBuf]) -> Result<(), compute_mode::Error>,
    ) -> Result<()> {
        let place = self.place.clone();
        let roots = driver_root::roots(&self.control.host_root, self.control.driver_root.as_deref());
        let change = spawn_blocking(move || change(&place, &roots));
        Ok(timeout(CALL_TIMEOUT, change).await.context("set the compute mode: NVML does not answer")???)
    }
}

/// What was logged last, so that the same is not logged every second.
#[derive(Default)]
struct State {
    answering: bool,
    problem: Option<String>,
}

impl State {
    fn answers(&mut self, place: &Place) {
        if !std::mem::replace(&mut self.answering, true) {
            info!(device = place.uuid(), "MPS control daemon answers");
        }
    }

    fn silent(&mut self, place: &Place, error: &str) {
        if std::mem::replace(&mut self.answering, false) {
            warn!(device = place.uuid(), error, "MPS control daemon does not answer");
        }
    }

    fn report(&mut self, place: &Place, problem: Option<String>) {
        if let Some(problem) = &problem
            && self.problem.as_ref() != Some(problem)
        {
            warn!(device = place.uuid(), problem, "MPS");
        }
        self.problem = problem;
    }
}

/// Runs what touches files or processes: the runtime has one thread.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> io::Result<T> + Send + 'static) -> Result<T> {
    Ok(timeout(CALL_TIMEOUT, spawn_blocking(work)).await.context("no answer from the file system")???)
}

/// Folders that are there stay what they are. What clients see of them is mounted on them.
fn make_folders(place: &Place) -> io::Result<()> {
    for folder in [place.pipe(), place.log(), place.shm()] {
        fs::create_dir_all(&folder)?;
    }
    Ok(())
}

/// Removes what is in a folder, and follows no link: clients may have put anything there.
fn empty(folder: &std::path::Path) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let removed =
            if entry.file_type()?.is_dir() { fs::remove_dir_all(entry.path()) } else { fs::remove_file(entry.path()) };
        ignore_missing(removed)?;
    }
    Ok(())
}

fn ignore_missing(result: io::Result<()>) -> io::Result<()> {
    result.or_else(|error| if error.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(error) })
}

/// Cuts off log files; the daemon goes on writing to them.
fn bound_logs(place: &Place) -> io::Result<()> {
    use std::os::unix::fs::MetadataExt as _;
    for entry in fs::read_dir(place.log())? {
        let entry = entry?;
        let meta = entry.metadata()?;
        // Blocks and not the length, which a writer that does not append keeps.
        if meta.is_file() && meta.blocks() * 512 > MAX_LOG {
            fs::File::options().write(true).open(entry.path())?.set_len(0)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{MetadataExt as _, symlink};

    #[test]
    fn folders_that_are_there_stay_and_links_of_clients_lead_nowhere() {
        let folder = tempfile::tempdir().unwrap();
        let place = Place::of(folder.path(), "GPU-1").unwrap();
        make_folders(&place).unwrap();
        let inode = fs::metadata(place.pipe()).unwrap().ino();
        let other = folder.path().join("other");
        fs::create_dir(&other).unwrap();
        fs::write(other.join("file"), "").unwrap();
        symlink(&other, place.pipe().join("link")).unwrap();
        fs::create_dir_all(place.pipe().join("a/b")).unwrap();
        empty(&place.pipe()).unwrap();
        make_folders(&place).unwrap();
        assert_eq!(fs::read_dir(place.pipe()).unwrap().count(), 0);
        assert!(other.join("file").exists());
        assert_eq!(fs::metadata(place.pipe()).unwrap().ino(), inode);
    }

    #[test]
    fn a_long_log_is_cut_off() {
        let folder = tempfile::tempdir().unwrap();
        let place = Place::of(folder.path(), "GPU-1").unwrap();
        make_folders(&place).unwrap();
        let (long, short) = (place.log().join("control.log"), place.log().join("server.log"));
        fs::write(&long, vec![b'a'; 2 * 1024 * 1024]).unwrap();
        fs::write(&short, "a").unwrap();
        bound_logs(&place).unwrap();
        assert_eq!([long, short].map(|path| fs::metadata(path).unwrap().len()), [0, 1]);
    }
}
