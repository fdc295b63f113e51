#!/bin/sh
# Runs a test program so that the line of each test ends with the time it took. Cargo calls this (tests/report.sh).
program=$1
shift
case $program in
  # Only test programs of nightly compilers know the option, and they take this variable for one.
  */deps/*) RUSTC_BOOTSTRAP=1 exec "$program" "$@" -Z unstable-options --report-time ;;
  *) exec "$program" "$@" ;;
esac
