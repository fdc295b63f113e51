#!/usr/bin/env bash
# `make oldest`: tests on the oldest Kubernetes that gpunode supports, beside the newest one that `make test` runs on. FILTER picks tests of
# tests/e2e/tests/cluster; the Makefile has a short set that touches each kind of request. Without it all of them run, as in `make soak`:
# first those of tests/e2e/cluster.yaml, then those of tests/e2e/mig.yaml.
set -euo pipefail
cd "$(dirname "$0")/.."
. tests/e2e/mig-modules.sh

# shellcheck disable=SC2086 # several filters
selected=$(cargo test --workspace --locked --test cluster -- --ignored --list ${FILTER:-} | sed -n 's/: test$//p')
[ -n "$selected" ] || { echo "oldest: FILTER='${FILTER:-}' selects no test of tests/e2e/tests/cluster" >&2; exit 1; }
of_mig="^(${on_mig// /|})"
mapfile -t mig < <(grep -E "$of_mig" <<< "$selected")
mapfile -t others < <(grep -vE "$of_mig" <<< "$selected")

export GPUNODE_CLUSTER_ROOT=$PWD/target/cluster-oldest
mkdir -p "$GPUNODE_CLUSTER_ROOT/bin" "$GPUNODE_CLUSTER_ROOT/images"
# Everything else is the same, and not built once more.
for file in target/cluster/bin/* target/cluster/bin/.built-*; do
  case $(basename "$file") in kube* | .built-kubernetes | gpunode-*) continue ;; esac
  ln -f "$file" "$GPUNODE_CLUSTER_ROOT/bin/"
done
OLDEST=1 tests/cluster/build/build.sh "$GPUNODE_CLUSTER_ROOT/bin"

# Runs tests on a cluster of their own, and takes it down.
run() { # NAME CLUSTER-FILE TEST...
  [ $# -gt 2 ] || return 0
  name=$1
  trap 'target/release/gpunode-cluster down --name "$name"' EXIT
  target/release/gpunode-cluster up --name "$name" --cluster "tests/e2e/$2"
  tests/cluster/install-gpunode.sh "$name"
  target/cluster/bin/kubectl --kubeconfig "$GPUNODE_CLUSTER_ROOT/$name/admin.kubeconfig" version
  GPUNODE_E2E_CLUSTER=$name cargo test --workspace --locked --test cluster -- --ignored --test-threads=1 --exact "${@:3}"
  target/release/gpunode-cluster down --name "$name"
  trap - EXIT
}
run oldest cluster.yaml "${others[@]}"
run oldest-mig mig.yaml "${mig[@]}"
