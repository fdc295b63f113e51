//! Threads with a runtime of their own, for work that must not wait for what other threads do.

use anyhow::{Context, Result, anyhow};
use std::{sync::mpsc::sync_channel, thread};
use tokio::{runtime::Builder, sync::oneshot};

/// A thread that runs until its work ends.
#[derive(Debug)]
pub struct RuntimeThread {
    name: &'static str,
    /// `None` once the result was handed out.
    result: Option<oneshot::Receiver<Result<()>>>,
}

impl RuntimeThread {
    /// Starts a thread that runs `work` on its own runtime, and waits for the moment until `work` is made there: the
    /// thread has its arena of memory then, and the next one gets another (`memory`). Whatever uses the network
    /// has to be made by `work`, or its connections would be driven by another thread.
    pub fn start<W, F>(name: &'static str, work: W) -> Result<Self>
    where
        W: FnOnce() -> F + Send + 'static,
        F: Future<Output = Result<()>> + 'static,
    {
        let (sender, result) = oneshot::channel();
        let (made, is_made) = sync_channel(1);
        let run = move || {
            let runtime = Builder::new_current_thread();
            let result = gpunode_process::run(runtime, async move {
                // Made inside of the runtime, which clients need.
                let work = Box::pin(work());
                // Somebody waits for it.
                let _ = made.send(());
                work.await
            });
            // Nobody asks for it any more: the process ends.
            let _ = sender.send(result);
        };
        thread::Builder::new()
            .name(name.to_owned())
            .spawn(run)
            .with_context(|| format!("start the thread {name}"))?;
        // Fails if there is no runtime, which the result tells.
        let _ = is_made.recv();
        Ok(Self {
            name,
            result: Some(result),
        })
    }

    /// Waits until the work has ended, and returns its result; later calls return `Ok`. May be dropped and called
    /// again.
    pub async fn ended(&mut self) -> Result<()> {
        let Some(result) = &mut self.result else {
            return Ok(());
        };
        let ended = result.await;
        self.result = None;
        ended.unwrap_or_else(|_| Err(anyhow!("the thread {} ended without a result", self.name)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    };

    #[tokio::test]
    async fn thread_has_made_its_work_once_it_is_started() {
        let is_made = Arc::new(AtomicBool::new(false));
        let by_thread = is_made.clone();
        let work = move || {
            by_thread.store(true, Ordering::SeqCst);
            async { Ok(()) }
        };
        let _thread = RuntimeThread::start("test", work).unwrap();
        assert!(is_made.load(Ordering::SeqCst));
    }

    #[tokio::test]
    async fn result_of_a_thread_is_handed_out_once() {
        let mut thread = RuntimeThread::start("test", || async { Err(anyhow!("trouble")) }).unwrap();
        assert_eq!(thread.ended().await.unwrap_err().to_string(), "trouble");
        assert!(thread.ended().await.is_ok());
    }
}
