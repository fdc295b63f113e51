#!/usr/bin/env bash
# `make bench`: measures the figures of docs/benchmarks.md on this machine and prints them.
set -euo pipefail
cd "$(dirname "$0")/.."
cluster=bench

echo "== images"
ls -l --block-size=1 target/images/*.tar | awk '{printf "%-40s %.1f MB\n", $NF, $5 / 1e6}'

echo "== agent on its own: release build, simulated GPUs, a kubelet's double"
cargo test --release --locked -q -p gpunode-node-tests --test lifecycle --test figures -- --ignored --nocapture \
    --test-threads=1 measure | grep -v '^{"timestamp"'
cargo test --release --locked -q -p gpunode-agent -- --ignored --nocapture --test-threads=1 measure
cargo test --release --locked -q -p gpunode-gpu -- --ignored --nocapture --test-threads=1 measure

echo "== operator on its own: release build, events fed to its index"
cargo test --release --locked -q -p gpunode-operator -- --ignored --nocapture measure

echo "== local cluster: five nodes from warm to Ready"
trap 'target/release/gpunode-cluster down --name "$cluster"' EXIT
target/release/gpunode-cluster up --name "$cluster" --cluster tests/e2e/cluster.yaml
tests/cluster/install-gpunode.sh "$cluster"

echo "== gpunode on it"
GPUNODE_E2E_CLUSTER=$cluster cargo test --locked -q -p gpunode-e2e --test figures -- --ignored --nocapture
