#!/usr/bin/env bash
# `make bench`: measures the figures of docs/benchmarks.md on this machine. Measurements print lines
# `figure: KEY | VALUE | UNIT`; gpunode-bench compares them with the targets and fills the document.
set -euo pipefail
cd "$(dirname "$0")/.."
cluster=bench
log=target/bench.log
: > "$log"

# A measurement that fails leaves its figures out, which counts as missed.
measure() { echo "== $*"; { "$@" || echo "FAILED: $*"; } 2>&1 | grep --line-buffered -v '^{"timestamp"' | tee -a "$log"; }
figure() { echo "figure: $1 | $2 | $3" | tee -a "$log"; }

for image in agent operator; do
  figure "$image-image" "$(stat -c %s "target/images/gpunode-$image.tar" | awk '{printf "%.1f", $1 / 1e6}')" MB
done
release=(cargo test --release --locked -q)
measure "${release[@]}" -p gpunode-node-tests -- --ignored --nocapture --test-threads=1 measure
measure "${release[@]}" -p gpunode-agent -p gpunode-gpu -- --ignored --nocapture --test-threads=1 measure
measure "${release[@]}" -p gpunode-operator -- --ignored --nocapture measure

trap 'target/release/gpunode-cluster down --name "$cluster"' EXIT
started=$(date +%s.%N)
target/release/gpunode-cluster up --name "$cluster" --cluster tests/e2e/cluster.yaml
figure cluster-up "$(date +%s.%N | awk -v started="$started" '{printf "%.1f", $1 - started}')" s
tests/cluster/install-gpunode.sh "$cluster"
export GPUNODE_E2E_CLUSTER=$cluster
measure cargo test --locked -q -p gpunode-e2e -- --ignored --nocapture --test-threads=1 measure

cargo run --locked -q -p gpunode-bench -- "$log" docs/benchmarks.md
