#!/usr/bin/env bash
# `make bench-fleet`: measures gpunode on a fleet of simulated nodes on a real etcd and API server, compares the figures
# with their targets, and fills docs/scale.md. The part `index` needs no cluster.
#   NODES=5000 ONLY=index,labels,policies SILENT=500 TABLE=1 KEEP=1 tests/bench-fleet.sh
set -euo pipefail
cd "$(dirname "$0")/.."
cluster=bench-fleet
log=target/bench-fleet-index.log
nodes=${NODES:-5000}
bench=target/release/gpunode-bench-fleet
# The document has figures of whole runs with 5,000 nodes.
document=()
if [ -n "${TABLE:-}" ] || [ "$nodes" = 5000 ]; then document=(--document docs/scale.md); fi

say() { printf '\n######## %s (at %d s)\n' "$*" "$SECONDS"; }
# True if a part is asked for, by name or as one of all.
is_wanted() { [ -z "${TABLE:-}" ] && { [ -z "${ONLY:-}" ] || [[ ",$ONLY," == *",$1,"* ]]; }; }

say "build"
mkdir -p target
cargo build --release --locked -p gpunode-fleet-tests
if is_wanted index; then
  cargo test --release --locked -p gpunode-operator --bins --no-run
  say "20,000 nodes in the index alone"
  # One arena, as in the image of the operator.
  MALLOC_ARENA_MAX=1 cargo test --release --locked -q -p gpunode-operator --bins -- \
    --ignored --exact --nocapture index::tests::scale::index_of_20000_nodes_and_50_policies | tee "$log"
  "$bench" --index "$log" "${document[@]}"
fi
# The parts that need a cluster.
only=,${ONLY:-},
only=${only/,index,/,}
only=${only#,}
only=${only%,}
[ -z "${ONLY:-}" ] || [ -n "${TABLE:-}" ] || [ -n "$only" ] || exit 0

say "build of the operator and of the cluster"
cargo build --release --locked -p gpunode-operator -p gpunode-cluster
arguments=(--cluster "$cluster" --nodes "$nodes" --silent-one-in "${SILENT:-500}" "${document[@]}")
[ -z "$only" ] || arguments+=(--only "$only")
[ -z "${TABLE:-}" ] || arguments+=(--table)
stop() { [ -n "${KEEP:-}" ] || target/release/gpunode-cluster down --name "$cluster"; }
trap stop EXIT
say "cluster"
target/release/gpunode-cluster up --name "$cluster" --cluster tests/fleet/cluster.yaml
"$bench" "${arguments[@]}"
