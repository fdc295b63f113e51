//! Fuzz tests: properties of code that reads what others wrote, for whatever they wrote.
//!
//! A fuzz test is an ordinary test in a module `fuzz` that calls [`fuzz`]. `cargo test` gives it input for 0.1 s, `make test` for 10 s: the
//! same inputs in the same order each time, so that a test fails because of a change and not by chance. `make soak` builds it under
//! libFuzzer, whose input follows what the code does with it, and runs it for `SOAK_SECONDS`; with `GPUNODE_FUZZ_RANDOM` set, the input is
//! random.
//!
//! | module | what it does |
//! |---|---|
//! | `mutation` | damaged documents, made of good ones |
//! | `guided` | a property under libFuzzer |

#[cfg(fuzzing)]
mod guided;
mod mutation;

use rustix::time::{ClockId, clock_gettime};
#[cfg(not(fuzzing))]
use std::{env, time::Instant};
use std::{
    panic::resume_unwind,
    thread::{self, ScopedJoinHandle},
    time::Duration,
};

pub use arbitrary::{Arbitrary, Result, Unstructured};
pub use mutation::Mutation;

/// Minimum number of random bytes of one input.
#[cfg(not(fuzzing))]
const MIN_INPUT: u32 = 32;

/// Maximum number of random bytes of one input, enough for several mutations.
#[cfg(not(fuzzing))]
const MAX_INPUT: u32 = 1024;

/// Milliseconds for which inputs are tried unless `ARBTEST_BUDGET_MS` is set; arbtest has the same default.
#[cfg(not(fuzzing))]
const DEFAULT_BUDGET_MS: u64 = 100;

/// Maximum processor time of one input; the slowest that is known takes a tenth of it.
const MAX_TIME: Duration = Duration::from_secs(5);

/// Most memory that the process may have had, in KiB, all tests that run beside it included.
const MAX_MEMORY: u64 = 1024 * 1024;

/// Size of the stack in bytes.
const STACK: usize = 8 * 1024 * 1024;

/// Calls `property` with one input after another until `ARBTEST_BUDGET_MS` milliseconds are over. A property that does not hold
/// panics, as does one that takes long; the report has a seed that repeats the input, as `ARBTEST_SEED`.
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
    if env::var_os("GPUNODE_FUZZ_RANDOM").is_some() || env::var_os("ARBTEST_SEED").is_some() {
        arbtest::arbtest(on_input).size_max(MAX_INPUT).run();
    } else {
        in_order(on_input);
    }
    #[cfg(fuzzing)]
    guided::run(on_input);
}

/// Calls `property` with the same inputs in the same order each time, until the budget is over.
#[cfg(not(fuzzing))]
fn in_order(mut property: impl FnMut(&mut Unstructured<'_>) -> Result<()>) {
    let budget = env::var("ARBTEST_BUDGET_MS")
        .ok()
        .and_then(|budget| budget.parse().ok());
    let budget = Duration::from_millis(budget.unwrap_or(DEFAULT_BUDGET_MS));
    let started = Instant::now();
    for number in 1_u32.. {
        if started.elapsed() > budget {
            break;
        }
        arbtest::arbtest(&mut property).seed(seed(number)).run();
    }
}

/// Returns the seed of an input as arbtest reads it: the length in the lower half, what the bytes are made of in the upper half. The lengths
/// take turns, so that short inputs, which are simpler, are among the first.
#[cfg(not(fuzzing))]
fn seed(number: u32) -> u64 {
    let doublings = number % ((MAX_INPUT / MIN_INPUT).ilog2() + 1);
    // Odd, so that no two numbers give one value, and zero, from which arbtest makes only zeros, comes last.
    let random = number.wrapping_mul(0x9e37_79b9);
    u64::from(random) << u32::BITS | u64::from(MIN_INPUT << doublings)
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
