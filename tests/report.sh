# Sourced by tests/check.sh and tests/run.sh: stages and their times, the slowest tests, and one summary.
# shellcheck shell=bash

report=$PWD/target/test-report/$(basename "$0" .sh)
rm -rf "$report"
mkdir -p "$report"

# Cargo starts every test program through tests/timed.sh, which makes each test say how long it took.
host=$(rustc -vV | sed -n 's/^host: //p' | tr 'a-z-' 'A-Z_')
export "CARGO_TARGET_${host}_RUNNER=$PWD/tests/timed.sh"
# A failure names what was awaited and what was seen. A backtrace hides that among a hundred lines.
export RUST_BACKTRACE=0

# Runs a command, shows what it prints, and notes its time. A failure is noted too, and what follows still runs.
stage() { # TITLE COMMAND...
  local title=$1 begin=$SECONDS log result
  shift
  log=$report/${title//[^[:alnum:]]/-}.log
  printf '\n######## %s (at %d s)\n' "$title" "$SECONDS"
  # Not `if` nor `||`, under which bash would go on after an error inside of the command.
  set +e
  (set -e; "$@") 2>&1 | tee "$log"
  result=${PIPESTATUS[0]}
  set -e
  printf '%d\t%s\t%s\n' "$((SECONDS - begin))" "$([ "$result" = 0 ] && echo ok || echo FAILED)" "$title" >> "$report/stages"
  failed=$result
}

# The same for what everything after it needs.
needed() { # TITLE COMMAND...
  stage "$@"
  [ "$failed" = 0 ] || summary
}

# Builds every test, and the programs that tests start. They find those in GPUNODE_BUILT and start no cargo of their own, which
# would compile some crates once more for another set of features.
build_tests() {
  cargo test --workspace --locked --no-run
  cargo build --workspace --locked --lib --bin gpunode-agent --test node
}
export GPUNODE_BUILT=$PWD/target/debug

# Prints the times and the tests that failed, and ends the script. The last line is the sum of all tests.
summary() {
  printf '\n######## times\n'
  awk -F '\t' '{ printf "%6d s  %s%s\n", $1, $3, ($2 == "ok" ? "" : "  FAILED") }' "$report/stages"
  printf '%6d s  all\n' "$SECONDS"
  awk '
    /^ +Running / { program = $NF; gsub(/.*deps\/|-[0-9a-f]+\)$/, "", program) }
    /^test .* \.\.\. (ok|FAILED)/ && $NF ~ /^<[0-9.]+s>$/ { time = $NF; gsub(/[<s>]/, "", time); print time "\t" program " " $2 }
  ' "$report"/*.log | sort -rn | awk 'NR <= 10' > "$report/slowest"
  [ ! -s "$report/slowest" ] || printf '\nThe ten slowest tests:\n'
  awk -F '\t' '{ printf "%8.1f s  %s\n", $1, $2 }' "$report/slowest"
  awk '
    /^ +Running / { program = $NF; gsub(/.*deps\/|-[0-9a-f]+\)$/, "", program) }
    /^test .* \.\.\. FAILED/ { print "FAILED: " program " " $2 }
  ' "$report"/*.log > "$report/failures"
  [ ! -s "$report/failures" ] || printf '\n%s\n' "$(cat "$report/failures")"
  local result=0
  ! grep -q 'FAILED' "$report/stages" || result=1
  printf '\n'
  awk '/^test result: / { passed += $4; failed += $6 } END { printf "%d passed, %d failed\n", passed, failed }' "$report"/*.log
  exit "$result"
}
