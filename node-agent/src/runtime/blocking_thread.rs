//! Runs blocking work that may hang with a file system on one thread at most, however often callers give up and retry.

use std::sync::Arc;
use tokio::{
    sync::Semaphore,
    task::{JoinError, spawn_blocking},
};

/// Queue of blocking work. Work runs one at a time, in the order of the calls.
#[derive(Clone, Debug)]
pub struct BlockingThread(Arc<Semaphore>);

impl Default for BlockingThread {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(1)))
    }
}

impl BlockingThread {
    /// Runs the work after all earlier work has ended. Dropping the future cancels queued work; running work finishes on its
    /// thread.
    pub async fn run<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> Result<T, JoinError> {
        // The semaphore is never closed, so this cannot fail.
        let turn = self.0.clone().acquire_owned().await;
        spawn_blocking(move || {
            let _turn = turn;
            work()
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{sync::mpsc, time::Duration};
    use tokio::time::timeout;

    #[tokio::test]
    async fn work_that_hangs_takes_one_thread_and_what_was_given_up_is_not_begun() {
        let one = BlockingThread::default();
        let (release, hangs) = mpsc::channel::<()>();
        let (says, said) = mpsc::channel();
        let soon = Duration::from_millis(20);
        let first = says.clone();
        let hanging = one.run(move || (first.send("first"), hangs.recv()).1);
        assert!(timeout(soon, hanging).await.is_err());
        for _ in 0..3 {
            let next = says.clone();
            assert!(timeout(soon, one.run(move || next.send("given up"))).await.is_err());
        }
        drop(release);
        one.run(move || says.send("last")).await.unwrap().unwrap();
        assert_eq!(said.iter().collect::<Vec<_>>(), ["first", "last"]);
    }
}
