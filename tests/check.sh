#!/usr/bin/env bash
# `make check`: formatting, clippy, and the tests that need neither root nor a cluster. Prints the number of tests at the end.
set -euo pipefail
cd "$(dirname "$0")/.."
. tests/report.sh

stage "formatting" cargo fmt --all --check
stage "clippy" cargo clippy --workspace --all-targets --locked -- -D warnings
needed "build of the tests" build_tests
# More threads than processors: the tests of the agent's process mostly wait.
stage "tests" cargo test --workspace --locked --no-fail-fast -- --test-threads=8
summary
