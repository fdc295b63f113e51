//! Probes of an operator's `/livez`, each on a connection of its own, from a thread that does nothing else.

use anyhow::{Context, Result, anyhow};
use std::{
    net::SocketAddr,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    task::JoinSet,
    time::{MissedTickBehavior, interval, timeout},
};

/// Time between two probes.
const EVERY: Duration = Duration::from_millis(20);
/// Longest wait for an answer; a probe without one counts with this time.
const LIMIT: Duration = Duration::from_secs(10);

/// Probes that go on until [`LivenessProbes::finish`].
pub struct LivenessProbes {
    is_over: Arc<AtomicBool>,
    thread: JoinHandle<Result<Vec<Duration>>>,
}

impl LivenessProbes {
    /// Begins to probe.
    pub fn start(address: SocketAddr) -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let flag = is_over.clone();
        Self {
            is_over,
            thread: thread::spawn(move || probe_until(address, &flag)),
        }
    }

    /// Ends the probes and returns how long each took.
    pub fn finish(self) -> Result<Vec<Duration>> {
        self.is_over.store(true, Ordering::Relaxed);
        self.thread
            .join()
            .map_err(|_| anyhow!("the thread of the probes panicked"))?
    }
}

fn probe_until(address: SocketAddr, is_over: &AtomicBool) -> Result<Vec<Duration>> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("start a runtime for probes")?;
    let times = Arc::new(Mutex::new(Vec::new()));
    runtime.block_on(async {
        let mut ticks = interval(EVERY);
        // A slow answer does not keep the next probe from its time.
        ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
        let mut probes = JoinSet::new();
        while !is_over.load(Ordering::Relaxed) {
            ticks.tick().await;
            let times = times.clone();
            probes.spawn(async move {
                let begin = Instant::now();
                let is_answered = matches!(timeout(LIMIT, probe(address, "/livez")).await, Ok(Ok(_)));
                let took = if is_answered { begin.elapsed() } else { LIMIT };
                times.lock().unwrap_or_else(PoisonError::into_inner).push(took);
            });
        }
        while probes.join_next().await.is_some() {}
    });
    let times = times.lock().unwrap_or_else(PoisonError::into_inner).clone();
    Ok(times)
}

/// Sends one request and returns the whole answer.
pub async fn probe(address: SocketAddr, path: &str) -> Result<String> {
    let mut stream = TcpStream::connect(address).await.context("connect to the operator")?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream
        .write_all(request.as_bytes())
        .await
        .context("send a request to the operator")?;
    let mut answer = String::new();
    stream
        .read_to_string(&mut answer)
        .await
        .context("read the operator's answer")?;
    Ok(answer)
}

/// Returns the value below which this share of the values is, such as 0.99; zero without values.
pub fn quantile(values: &[f64], share: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let rank = sorted
        .iter()
        .enumerate()
        .find(|(index, _)| number(index + 1) >= share * number(sorted.len()));
    rank.map_or(0.0, |(_, value)| *value)
}

/// Returns a count as a number to calculate with.
pub fn number(count: usize) -> f64 {
    f64::from(u32::try_from(count).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantile_is_one_of_the_values() {
        let values: Vec<f64> = (1..=100).rev().map(f64::from).collect();
        let found = [0.5, 0.99, 1.0].map(|share| quantile(&values, share));
        assert!(
            found.iter().zip([50.0, 99.0, 100.0]).all(|(a, b)| (a - b).abs() < 1e-9),
            "{found:?}"
        );
        assert!(quantile(&[], 0.5).abs() < 1e-9);
    }
}
