#!/bin/sh
# Runs a test program that prints the duration of each test, and ends one that hangs. Cargo calls this script (tests/report.sh).
program=$1
shift
case $program in
  # Only test programs of a nightly compiler accept the option; this variable makes them count as such.
  # In the foreground it stays in the group of processes that is ended with all others.
  */deps/*) RUSTC_BOOTSTRAP=1 exec timeout --foreground --verbose 2400 "$program" "$@" -Z unstable-options --report-time ;;
  *) exec "$program" "$@" ;;
esac
