#!/usr/bin/env bash
# `make test`: everything that CI runs. Ends with the summary of the tests on the cluster.
set -euo pipefail
cd "$(dirname "$0")/.."
started=$SECONDS
# Tests mostly wait, so two clusters share the machine. Nodes and agents break on the second one.
clusters="e2e e2e-breaking"
breaking="evicted:: health:: kills:: policy_hand_over:: rejected:: release:: startup_taint:: staying_up:: unhealthy_taint::"

# A failure says what was awaited and what was seen; where in the code hides it among a hundred lines.
export RUST_BACKTRACE=0

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

stage "gpunode on local clusters"
pids=()
stop() {
  if [ ${#pids[@]} -gt 0 ]; then kill "${pids[@]}" 2> /dev/null || true; fi
  # Its tests end with their cluster.
  for cluster in $clusters; do target/release/gpunode-cluster down --name "$cluster" > /dev/null || true; done
  wait
}
trap stop EXIT
for cluster in $clusters; do
  target/release/gpunode-cluster up --name "$cluster" --cluster tests/e2e/cluster.yaml
  tests/cluster/install-gpunode.sh "$cluster"
done
export GPUNODE_E2E_CLUSTERS=$clusters GPUNODE_E2E_CLUSTER=e2e
export GPUNODE_TEST_KUBECONFIG=$PWD/target/cluster/e2e/admin.kubeconfig
cargo test --locked -p gpunode-e2e --no-run

others=()
for module in $breaking; do others+=(--skip "$module"); done
on_the_first() {
  cargo test --locked -p kubectl-gpunode -- --ignored
  # Before anything is left behind that goes minutes later, for which it would have to wait.
  cargo test --locked -p gpunode-e2e --test cluster -- --ignored quiet
  # Begun first and awaited last: the kubelet keeps a key for five minutes.
  cargo test --locked -p gpunode-e2e --test retired -- --ignored begin
  cargo test --locked -p gpunode-e2e --test cluster -- --ignored --test-threads=1 --skip quiet "${others[@]}"
  cargo test --locked -p gpunode-e2e --test retired -- --ignored end
}
on_the_second() {
  export GPUNODE_E2E_CLUSTER=e2e-breaking
  # shellcheck disable=SC2086 # several filters
  cargo test --locked -p gpunode-e2e --test cluster -- --ignored --test-threads=1 $breaking
  cargo test --locked -p gpunode-e2e --test uninstall -- --ignored
  cargo test --locked -p gpunode-e2e --test plans -- --ignored --nocapture
}
on_the_first &
pids+=($!)
on_the_second > >(sed -u 's/^/[e2e-breaking] /') 2>&1 &
pids+=($!)
# What fails on one cluster is no reason not to hear what the other has to say.
failed=
for pid in "${pids[@]}"; do wait "$pid" || failed=yes; done
pids=()
[ -z "$failed" ] || exit 1
# Last: they look at what all the others did.
cargo test --locked -p gpunode-e2e --test permissions -- --ignored
cargo test --locked -p gpunode-e2e --test plans -- --ignored --nocapture
