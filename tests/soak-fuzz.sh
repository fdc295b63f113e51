#!/usr/bin/env bash
# Runs every fuzz test under libFuzzer, one after the other, each for SOAK_SECONDS; SOAK_ONLY is a part of their names. Needs neither
# root nor a cluster. Inputs that reach new code stay in target/fuzz/corpus for the next run; an input that breaks a property is in
# target/fuzz/found.
set -euo pipefail
cd "$(dirname "$0")/.."

seconds=${SOAK_SECONDS:-1800}
filter=${SOAK_ONLY:-}
packages=(gpunode-config gpunode-gpu gpunode-agent kubectl-gpunode)
# What `cargo fuzz` passes for coverage without a sanitizer; the language's own checks are on. These flags are stable.
coverage=(-Cpasses=sancov-module)
for option in level=4 inline-8bit-counters pc-table trace-compares; do coverage+=("-Cllvm-args=-sanitizer-coverage-$option"); done
host=$(rustc -vV | sed -n 's/^host: //p')

folder=$PWD/target/fuzz
mkdir -p "$folder/found"
echo "building the fuzz tests for libFuzzer"
# With --target, programs that run during the build are not instrumented.
RUSTFLAGS="--cfg fuzzing ${coverage[*]}" cargo test --locked --profile fuzz --target "$host" --target-dir "$folder/build" \
  "${packages[@]/#/--package=}" --lib --bin gpunode-agent --no-run --message-format=json-render-diagnostics > "$folder/built.json"

failed=0 guided=0
while IFS=$'\t' read -r program crate; do
  while read -r test; do
    name=$(basename "$crate")-${test##*::}
    mkdir -p "$folder/corpus/$name"
    printf '\n######## %s, %s s\n' "$test" "$seconds"
    # A bound for the memory and for the time of one input, besides the test's own.
    arguments="$folder/corpus/$name -artifact_prefix=$folder/found/$name- -max_total_time=$seconds -max_len=1024 -timeout=20
      -rss_limit_mb=1024 -print_final_stats=1"
    if (cd "$crate" && GPUNODE_FUZZ_ARGUMENTS=$arguments RUST_BACKTRACE=1 "$program" --exact "$test" --nocapture) < /dev/null > "$folder/$name.log" 2>&1; then
      # A test of the documents that the fuzz tests damage has no figures.
      if grep -E '^stat::(number_of_executed_units|average_exec_per_sec|peak_rss_mb)|DONE' "$folder/$name.log"; then
        guided=$((guided + 1))
      fi
    else
      failed=1
      tail -n 60 "$folder/$name.log"
      echo "FAILED: $test; the input is in target/fuzz/found, the output in target/fuzz/$name.log"
    fi
  done < <("$program" --list --format=terse "fuzz::" | sed -n 's/: test$//p' | grep -F -- "$filter")
done < <(jq -r 'select(.reason == "compiler-artifact" and .profile.test and .executable)
  | [.executable, (.manifest_path | rtrimstr("/Cargo.toml"))] | @tsv' "$folder/built.json")
[ "$guided" -gt 0 ] || { echo "FAILED: no test ran under libFuzzer"; failed=1; }
exit "$failed"
