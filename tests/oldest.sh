#!/usr/bin/env bash
# `make oldest`: tests on the oldest Kubernetes that gpunode supports, beside the newest one that `make test` runs on. FILTER picks tests of
# tests/e2e/tests/cluster; the Makefile has a short set that touches each kind of request. Without it all of them run, as in `make soak`.
set -euo pipefail
cd "$(dirname "$0")/.."
export GPUNODE_CLUSTER_ROOT=$PWD/target/cluster-oldest
mkdir -p "$GPUNODE_CLUSTER_ROOT/bin" "$GPUNODE_CLUSTER_ROOT/images"
# Everything else is the same, and not built once more.
for file in target/cluster/bin/* target/cluster/bin/.built-*; do
  case $(basename "$file") in kube* | .built-kubernetes | gpunode-*) continue ;; esac
  ln -f "$file" "$GPUNODE_CLUSTER_ROOT/bin/"
done
OLDEST=1 tests/cluster/build/build.sh "$GPUNODE_CLUSTER_ROOT/bin"

name=oldest
trap 'target/release/gpunode-cluster down --name "$name"' EXIT
target/release/gpunode-cluster up --name "$name" --cluster tests/e2e/cluster.yaml
tests/cluster/install-gpunode.sh "$name"
target/cluster/bin/kubectl --kubeconfig "$GPUNODE_CLUSTER_ROOT/$name/admin.kubeconfig" version
# shellcheck disable=SC2086 # several filters
GPUNODE_E2E_CLUSTER=$name cargo test --workspace --locked --test cluster -- --ignored --test-threads=1 ${FILTER:-}
