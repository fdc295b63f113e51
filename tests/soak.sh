#!/usr/bin/env bash
# `make soak`: what `make test` runs for seconds, each for SOAK_SECONDS (default 1800): the test that kills the agent at random
# moments, damaged policies against an API server, and every fuzz test under libFuzzer (tests/soak-fuzz.sh), one after the other. At the end
# all tests of tests/e2e/tests/cluster on the oldest Kubernetes that gpunode supports (tests/oldest.sh), which compiles for longer than
# `make test` has.
# Before them the cases of the alerts with promtool, which compiles for over three minutes of a processor; `make test` runs them with
# Prometheus' engine alone.
set -euo pipefail
cd "$(dirname "$0")/.."
export SOAK_SECONDS=${SOAK_SECONDS:-1800}
GPUNODE_PROMTOOL=1 cargo test --workspace --locked --test alerts -- --ignored
cluster=soak
trap 'target/release/gpunode-cluster down --name "$cluster"' EXIT
target/release/gpunode-cluster up --name "$cluster" --cluster tests/e2e/cluster.yaml
tests/cluster/install-gpunode.sh "$cluster"
export GPUNODE_E2E_CLUSTER=$cluster GPUNODE_TEST_KUBECONFIG=$PWD/target/cluster/$cluster/admin.kubeconfig
GPUNODE_SOAK_SECONDS=$SOAK_SECONDS \
  cargo test --workspace --locked --test cluster -- --ignored --nocapture killed_at_random
GPUNODE_FUZZ_RANDOM=1 ARBTEST_BUDGET_MS=$((SOAK_SECONDS * 1000)) \
  cargo test --workspace --locked --test api_server -- --ignored --nocapture damaged
# The others need no cluster, and every processor.
target/release/gpunode-cluster down --name "$cluster"
trap - EXIT
tests/soak-fuzz.sh
# Last, since it builds another Kubernetes.
tests/oldest.sh
