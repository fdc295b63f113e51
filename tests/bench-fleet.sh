#!/usr/bin/env bash
# `make bench-fleet`: measures gpunode on a fleet of simulated nodes on a real etcd and API server, compares the figures with
# their targets, and fills docs/scale.md.
#   NODES=5000 ONLY=labels,policies TABLE=1 KEEP=1 tests/bench-fleet.sh
set -euo pipefail
cd "$(dirname "$0")/.."
cluster=bench-fleet
arguments=(--cluster "$cluster" --nodes "${NODES:-5000}")
[ -z "${ONLY:-}" ] || arguments+=(--only "$ONLY")
[ -z "${TABLE:-}" ] || arguments+=(--table)
# The document has figures of a whole run with 5,000 nodes.
if [ -n "${TABLE:-}" ] || [ "${NODES:-5000}" = 5000 ]; then arguments+=(--document docs/scale.md); fi

cargo build --release --locked -p gpunode-operator -p gpunode-cluster
cargo build --release --locked -p gpunode-fleet-tests
stop() { [ -n "${KEEP:-}" ] || target/release/gpunode-cluster down --name "$cluster"; }
trap stop EXIT
target/release/gpunode-cluster up --name "$cluster" --cluster tests/fleet/cluster.yaml
target/release/gpunode-bench-fleet "${arguments[@]}"
