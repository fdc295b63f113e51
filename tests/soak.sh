#!/usr/bin/env bash
# `make soak`: runs the test that kills the agent at random moments for SOAK_SECONDS (default 1800).
set -euo pipefail
cd "$(dirname "$0")/.."
cluster=soak
trap 'target/release/gpunode-cluster down --name "$cluster"' EXIT
target/release/gpunode-cluster up --name "$cluster" --cluster tests/e2e/cluster.yaml
tests/cluster/install-gpunode.sh "$cluster"
export GPUNODE_E2E_CLUSTER=$cluster GPUNODE_SOAK_SECONDS=${SOAK_SECONDS:-1800}
cargo test --workspace --locked --test cluster -- --ignored --nocapture killed_at_random
