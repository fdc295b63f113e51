#!/usr/bin/env bash
# Installs gpunode from manifests/default on the local cluster NAME, and waits until its agents have reported: over a minute where an
# earlier installation left a record on a node, since its policy has a minute to come back.
#   tests/cluster/install-gpunode.sh NAME
set -euo pipefail
cd "$(dirname "$0")/../.."

name=$1
folder=${GPUNODE_CLUSTER_ROOT:-target/cluster}/$name
kubectl() { target/cluster/bin/kubectl --kubeconfig "$folder/admin.kubeconfig" --cache-dir "$folder/kubectl-cache" "$@"; }

say() { printf '  %-44s %4ss\n' "$1" "$((SECONDS))"; }

target/release/gpunode-cluster import-image --name "$name" target/images/gpunode-agent.tar target/images/gpunode-operator.tar
kubectl apply -k manifests/default > "$folder/install.log"
say "manifests/default applied"
kubectl -n gpunode-system rollout status deployment/gpunode-operator --timeout 120s >> "$folder/install.log"
say "operator ready"

# Discovery runs everywhere; nodes with simulated GPUs have a driver folder, and report.
until kubectl -n gpunode-system get daemonset gpunode-discovery >> "$folder/install.log" 2>&1; do
  [ "$SECONDS" -lt 180 ] || { echo "the operator did not create the discovery DaemonSet: see $folder/install.log" >&2; exit 1; }
  sleep 0.2
done
kubectl -n gpunode-system rollout status daemonset/gpunode-discovery --timeout 120s >> "$folder/install.log"
for node in "$folder"/nodes/*/; do
  [ -d "$node/driver/usr" ] || continue
  kubectl wait gpunode "$(basename "$node")" --for=create --timeout 180s >> "$folder/install.log"
  kubectl wait gpunode "$(basename "$node")" --for=jsonpath='{.status.hardware}' --timeout 180s >> "$folder/install.log"
  kubectl wait node "$(basename "$node")" --for=jsonpath='{.metadata.labels.nvidia\.com/gpu\.product}' --timeout 180s >> "$folder/install.log"
done
say "agents have reported, nodes have their labels"
