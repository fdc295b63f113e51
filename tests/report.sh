# Sourced by tests/check.sh and tests/run.sh: stages and their times, the slowest tests, and one summary.
# shellcheck shell=bash

report=$PWD/target/test-report/$(basename "$0" .sh)
rm -rf "$report"
mkdir -p "$report"

# Cargo starts every test program through tests/timed.sh, which makes each test say how long it took.
host=$(rustc -vV | sed -n 's/^host: //p' | tr 'a-z-' 'A-Z_')
runner=$PWD/tests/timed.sh
export "CARGO_TARGET_${host}_RUNNER=$runner"
# A failure names what was awaited and what was seen. A backtrace hides that among a hundred lines.
export RUST_BACKTRACE=0

# Lets through what a person looks for: failures, slow tests, all that is out of the ordinary. Of the lines that thousands have
# in common it shows one in ten seconds, so that the output moves and still fits a terminal. The log of the stage has them all.
brief() {
  # Not awk, some of which hold lines back.
  perl -ne '
    BEGIN { $| = 1; $next = 0 }
    my $usual = /^ *(Compiling|Checking|Documenting|Download(ing|ed)|Locking|Adding|Blocking|Fresh|Running|Doc-tests|Executable) /
      || /^(running \d+ tests?|test result: ok.*|test .* \.\.\. ignored.*|)$/
      || (/^test .* \.\.\. ok <([\d.]+)s>$/ && $1 < 10);
    next if $usual && time < $next;
    $next = time + 10 if $usual;
    print;
  '
}

# Runs a command, shows what it prints, and notes its time. A failure is noted too, and what follows still runs.
stage() { # TITLE COMMAND...
  local title=$1 begin=$SECONDS log result
  shift
  log=$report/${title//[^[:alnum:]]/-}.log
  printf '\n######## %s (at %d s)\n' "$title" "$SECONDS"
  # Not `if` nor `||`, under which bash would go on after an error inside of the command.
  set +e
  (set -e; "$@") 2>&1 | tee "$log" | brief
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
# would compile some crates once more for another set of features. The report keeps what cargo prints.
build_tests() { # ARGUMENT of cargo...
  cargo test --workspace --locked --no-run "$@" > "$report/built.json"
  cargo build --workspace --locked --lib --bin gpunode-agent --bin gpunode-hook --test node
  node-agent/hook/build.sh "$PWD/target/hook"
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
    /^test .* has been running for over/ { slow[program " " $2] }
    /^test .* \.\.\. / { delete slow[program " " $2] }
    END { for (test in slow) print "HANGS: " test }
  ' "$report"/*.log > "$report/failures"
  # Their words once more, where the reader looks first.
  [ ! -s "$report/failures" ] || awk '
    /^failures:$/ { inside = !inside; next }
    /^test result: / { inside = 0 }
    inside
  ' "$report"/*.log | cut -c 1-300 | awk 'NR <= 200'
  [ ! -s "$report/failures" ] || printf '\n%s\n' "$(cat "$report/failures")"
  local result=0
  ! grep -q 'FAILED' "$report/stages" || result=1
  printf '\n'
  awk '/^test result: / { passed += $4; failed += $6 } END { printf "%d passed, %d failed\n", passed, failed }' "$report"/*.log
  exit "$result"
}
