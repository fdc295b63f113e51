#!/usr/bin/env bash
# `make test`: everything that CI runs. Ends with the summary of the tests on the cluster.
set -euo pipefail
cd "$(dirname "$0")/.."
started=$SECONDS
cluster=e2e

stage() { printf '\n######## %s (%ds)\n' "$*" "$((SECONDS - started))"; }

stage "packages, Kubernetes, gpunode, images"
make kubernetes images

stage "lint"
make lint

stage "unit tests, and the agent against simulated NVML"
cargo test --workspace --locked

stage "simulated NVML under other people's bindings, and the life of local clusters"
cargo test --locked -p gpunode-fake-nvml -p gpunode-cluster -- --ignored --test-threads=1

stage "GitOps: what kstatus and Argo CD make of policies, samples as kustomize builds them"
cargo test --locked -p gpunode-gitops-tests -- --ignored

stage "demo"
tests/e2e/demo.sh

stage "gpunode on the local cluster"
stop() { target/release/gpunode-cluster down --name "$cluster" > /dev/null; }
trap stop EXIT
target/release/gpunode-cluster up --name "$cluster" --cluster tests/e2e/cluster.yaml
tests/cluster/install-gpunode.sh "$cluster"
export GPUNODE_E2E_CLUSTER=$cluster
export GPUNODE_TEST_KUBECONFIG=$PWD/target/cluster/$cluster/admin.kubeconfig
cargo test --locked -p kubectl-gpunode -- --ignored
# Before anything is left behind that goes minutes later, for which it would have to wait.
cargo test --locked -p gpunode-e2e --test cluster -- --ignored quiet
# Begun first and awaited last: the kubelet keeps a key for five minutes.
cargo test --locked -p gpunode-e2e --test retired -- --ignored begin
cargo test --locked -p gpunode-e2e --test cluster -- --ignored --test-threads=1 --skip quiet
cargo test --locked -p gpunode-e2e --test retired -- --ignored end
cargo test --locked -p gpunode-e2e --test uninstall -- --ignored
cargo test --locked -p gpunode-e2e --test permissions -- --ignored
# Last: it looks at what all the others did.
cargo test --locked -p gpunode-e2e --test plans -- --ignored --nocapture
