//! The time of decisions.

use super::*;
use std::time::Instant;

/// The time for 8 GPUs of 7 instances, for each set of instances in use and several layouts.
#[test]
#[ignore = "a measurement: make bench"]
fn measure_decisions_about_eight_gpus() {
    let all: Vec<String> = (0..7).map(|start| format!("1g.10gb@{start}")).collect();
    let names: Vec<&str> = all.iter().map(String::as_str).collect();
    let mut slowest = Vec::new();
    for (text, target) in [
        ("all-1g.10gb", LayoutTarget::Preset("all-1g.10gb".to_owned())),
        ("all-balanced", LayoutTarget::Preset("all-balanced".to_owned())),
        ("1g.10gb:3,4g.40gb:1", target(&[("1g.10gb", 3), ("4g.40gb", 1)])),
        ("1g.10gb:4,3g.40gb:1", target(&[("1g.10gb", 4), ("3g.40gb", 1)])),
        ("1g.10gb:5,2g.20gb:1", target(&[("1g.10gb", 5), ("2g.20gb", 1)])),
        ("4g.40gb:2", target(&[("4g.40gb", 2)])),
    ] {
        for set in 0..1_u32 << names.len() {
            let held: Vec<(&str, &str)> = names
                .iter()
                .enumerate()
                .filter(|(at, _)| set >> at & 1 == 1)
                .map(|(_, name)| (*name, "ml/a"))
                .collect();
            let case = Case::new(divided(&names), target.clone()).held(&held);
            let start = Instant::now();
            for _ in 0..8 {
                assert!(case.decide().is_some());
            }
            slowest.push((start.elapsed(), text, held.len()));
        }
    }
    slowest.sort();
    println!("median {:?}", slowest[slowest.len() / 2].0);
    let (time, ..) = slowest.last().unwrap();
    println!("slowest {:?}", slowest.last());
    println!("figure: mig-decision | {:.3} | ms", time.as_secs_f64() * 1000.0);
}
