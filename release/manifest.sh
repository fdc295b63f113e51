#!/usr/bin/env bash
# Prints everything that installs gpunode as one file, with the images of a release by digest:
#   VERSION=x REGISTRY=registry.example.com/team manifest.sh FILES
set -euo pipefail
cd "$(dirname "$0")/.."
files=$1
kubectl=${KUBECTL:-$(command -v kubectl || echo "$PWD/target/cluster/bin/kubectl")}
[ -x "$kubectl" ] || { echo "release: install kubectl, or run make kubernetes" >&2; exit 1; }
overlay=$(mktemp -d "$PWD/target-overlay.XXXXXX")
trap 'rm -rf "$overlay"' EXIT
cat > "$overlay/kustomization.yaml" << KUSTOMIZATION
apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
resources: [../manifests/default]
images:
- {name: gpunode.dev/operator, newName: $REGISTRY/gpunode-operator, newTag: "$VERSION", digest: $(cat "$files/gpunode-operator.digest")}
patches:
- target: {kind: Deployment, name: gpunode-operator}
  patch: |-
    apiVersion: apps/v1
    kind: Deployment
    metadata: {name: gpunode-operator, namespace: gpunode-system}
    spec:
      template:
        spec:
          containers:
          - name: operator
            env:
            - {name: AGENT_IMAGE, value: "$REGISTRY/gpunode-agent:$VERSION@$(cat "$files/gpunode-agent.digest")"}
KUSTOMIZATION
echo "# gpunode $VERSION. Install: kubectl apply --server-side -f gpunode.yaml"
"$kubectl" kustomize "$overlay"
