#!/bin/sh
# Runs a test program that prints the duration of each test. Cargo calls this script (tests/report.sh).
program=$1
shift
case $program in
  # Only test programs of a nightly compiler accept the option; this variable makes them count as such.
  */deps/*) RUSTC_BOOTSTRAP=1 exec "$program" "$@" -Z unstable-options --report-time ;;
  *) exec "$program" "$@" ;;
esac
