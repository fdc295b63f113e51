#!/usr/bin/env bash
# `make bench`: measures the figures of docs/benchmarks.md on this machine. Measurements print lines
# `figure: KEY | VALUE | UNIT`; gpunode-bench compares them with the targets and fills the document.
set -euo pipefail
cd "$(dirname "$0")/.."
cluster=bench
log=target/bench.log
: > "$log"

say() { printf '\n######## %s (%ds)\n' "$*" "$SECONDS"; }

# A measurement that fails or hangs prints no figures; a missing figure counts as a missed target.
measure() { # WHAT ARGUMENTS-OF-CARGO-TEST...
  say "$1"
  { timeout --kill-after 10 1200 cargo test --locked -q "${@:2}" || echo "FAILED: $1"; } 2>&1 \
    | grep --line-buffered -v '^{"timestamp"' | tee -a "$log"
}
figure() { echo "figure: $1 | $2 | $3" | tee -a "$log"; }

for image in agent operator; do
  figure "$image-image" "$(stat -c %s "target/images/gpunode-$image.tar" | awk '{printf "%.1f", $1 / 1e6}')" MB
done
# The programs of the images: those that cargo builds for a test alone have fewer features, and other names of functions.
export GPUNODE_BUILT=$PWD/target/release
one=(-- --ignored --nocapture --test-threads=1 measure)
measure "choice of GPUs" --release -p gpunode-gpu "${one[@]}"
measure "agent against a double of the kubelet" --release -p gpunode-node-tests --test node "${one[@]}"
measure "lists" --release -p gpunode-agent --bins "${one[@]}"
measure "operator" --release -p gpunode-operator --bins "${one[@]}"

say "local cluster"
trap 'target/release/gpunode-cluster down --name "$cluster"' EXIT
started=$(date +%s.%N)
target/release/gpunode-cluster up --name "$cluster" --cluster tests/e2e/cluster.yaml
figure cluster-up "$(date +%s.%N | awk -v started="$started" '{printf "%.1f", $1 - started}')" s
tests/cluster/install-gpunode.sh "$cluster"
export GPUNODE_E2E_CLUSTER=$cluster
measure "gpunode on the cluster" --workspace --test figures "${one[@]}"
measure "twenty replacements of the agent" --workspace --test cluster "${one[@]}"

say "figures"
cargo run --locked -q -p gpunode-bench -- "$log" docs/benchmarks.md
