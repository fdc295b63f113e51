//! Fuzz tests: properties of code that reads what others wrote, for whatever they wrote.
//!
//! A fuzz test is an ordinary test in a module `fuzz` that calls [`fuzz`]. `cargo test` gives it random input for 0.1 s, `make test` for
//! 10 s. `make soak` builds it under libFuzzer, whose input follows what the code does with it, and runs it for `SOAK_SECONDS`.
//!
//! | module | what it does |
//! |---|---|
//! | `mutation` | damaged documents, made of good ones |
//! | `guided` | a property under libFuzzer |

#[cfg(fuzzing)]
mod guided;
mod mutation;

use rustix::time::{ClockId, clock_gettime};
use std::{
    panic::resume_unwind,
    thread::{self, ScopedJoinHandle},
    time::Duration,
};

pub use arbitrary::{Arbitrary, Result, Unstructured};
pub use mutation::Mutation;

/// Maximum number of random bytes of one input, enough for several mutations.
#[cfg(not(fuzzing))]
const MAX_INPUT: u32 = 1024;

/// Maximum processor time of one input; the slowest that is known takes a tenth of it.
const MAX_TIME: Duration = Duration::from_secs(5);

/// Most memory that the process may have had, in KiB, all tests that run beside it included.
const MAX_MEMORY: u64 = 1024 * 1024;

/// Size of the stack in bytes.
const STACK: usize = 8 * 1024 * 1024;

/// Calls `property` with one input after another until `ARBTEST_BUDGET_MS` milliseconds are over. A property that does not hold
/// panics, as does one that takes long; the report has a seed that repeats the input.
///
/// # Panics
/// If the property does not hold for an input, or no thread can be started.
#[allow(clippy::panic, reason = "a test")]
pub fn fuzz<T: for<'a> Arbitrary<'a>>(property: impl FnMut(T) + Send) {
    // As large as that of a program's main thread; those of tests are smaller.
    let thread = thread::Builder::new().stack_size(STACK);
    let ended = thread::scope(|scope| thread.spawn_scoped(scope, || run(property)).map(ScopedJoinHandle::join));
    match ended {
        Ok(Ok(())) => {}
        Ok(Err(panic)) => resume_unwind(panic),
        Err(error) => panic!("start a thread for a fuzz test: {error}"),
    }
}

fn run<T: for<'a> Arbitrary<'a>>(mut property: impl FnMut(T)) {
    let on_input = |input: &mut Unstructured<'_>| {
        let input = input.arbitrary()?;
        let started = processor_time();
        property(input);
        let taken = processor_time().saturating_sub(started);
        assert!(taken <= MAX_TIME, "an input takes {taken:?}");
        let memory = peak_memory();
        assert!(memory <= MAX_MEMORY, "{memory} KiB of memory after an input");
        Ok(())
    };
    #[cfg(not(fuzzing))]
    arbtest::arbtest(on_input).size_max(MAX_INPUT).run();
    #[cfg(fuzzing)]
    guided::run(on_input);
}

/// Returns the most memory that the process has had, in KiB.
fn peak_memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let peak = peak.and_then(|peak| peak.trim().trim_end_matches(" kB").parse().ok());
    peak.unwrap_or_default()
}

/// Returns the processor time of this thread: other programs do not slow it down.
fn processor_time() -> Duration {
    clock_gettime(ClockId::ThreadCPUTime).try_into().unwrap_or_default()
}
