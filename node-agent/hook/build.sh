#!/usr/bin/env bash
# Builds gpunode-hook, statically linked: the program runs on hosts with any C library or none, and no variable of a container can
# make the loader bring something into it.
# Usage: build.sh TARGET [ARGUMENT of cargo...]; TARGET is cargo's target folder. A release has GPUNODE_CARGO=auditable, for cargo to list
# the crates in the program.
set -euo pipefail
cd "$(dirname "$0")"
target=$1
shift
# The flag is for the program alone: build scripts and procedural macros need the dynamic C library.
cargo ${GPUNODE_CARGO:-} rustc --quiet --locked --target-dir "$target" -p gpunode-hook --bin gpunode-hook "$@" -- -C target-feature=+crt-static
