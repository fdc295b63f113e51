#!/usr/bin/env bash
# Records what a Prometheus would scrape while GPUs, rollouts, agents and operators fail on the local cluster NAME, which has
# gpunode installed (tests/e2e/cluster.yaml) and no policy, and never had a MIG layout. Takes about 20 minutes; replaces
# tests/monitoring/recordings.
#   make cluster-up NAME=monitoring CLUSTER=tests/e2e/cluster.yaml
#   tests/monitoring/record.sh monitoring
# CLUSTER_TARGET names the folder with the cluster's programs if it is not target.
set -euo pipefail
cd "$(dirname "$0")/../.."

name=$1 target=${CLUSTER_TARGET:-target}
interval=15
raw=$(mktemp -d)
export GPUNODE_CLUSTER_ROOT=$PWD/$target/cluster
[ "${target#/}" = "$target" ] || GPUNODE_CLUSTER_ROOT=$target/cluster
export KUBECONFIG=$target/cluster/$name/admin.kubeconfig KUBECACHEDIR=$target/cluster/$name/kubectl-cache
kubectl() { "$target/cluster/bin/kubectl" "$@"; }
gpu() { "$target/release/gpunode-cluster" gpu --name "$name" "$@"; }
folder=tests/monitoring

# One scrape of all pods, as files POD~NODE~PORT below the number of the scrape. A pod that does not answer leaves an empty file.
scrape() {
  local at=$1 pod node kind port
  mkdir "$raw/$at"
  while read -r pod node kind; do
    port=8081
    [ "$kind" != gpunode-operator ] || port=8080
    timeout 10 "$target/cluster/bin/kubectl" get --raw "/api/v1/namespaces/gpunode-system/pods/$pod:$port/proxy/metrics" \
      > "$raw/$at/$pod~$node~$port" 2> /dev/null || : > "$raw/$at/$pod~$node~$port" &
  done < <(kubectl -n gpunode-system get pods --field-selector status.phase=Running \
    -l 'app.kubernetes.io/name in (gpunode-agent, gpunode-operator)' \
    -o jsonpath='{range .items[*]}{.metadata.name} {.spec.nodeName} {.metadata.labels.app\.kubernetes\.io/name}{"\n"}{end}')
  wait
}
scrapes() {
  local at=0 begun=$EPOCHSECONDS pause
  while [ ! -e "$raw/end" ]; do
    scrape "$at"
    at=$((at + 1))
    echo "$at" > "$raw/next"
    pause=$((begun + at * interval - EPOCHSECONDS))
    [ "$pause" -le 0 ] || sleep "$pause"
  done
}
scene() { # NAME: the following scrapes are of this scene
  printf '%4ds %s\n' "$SECONDS" "$*"
  echo "$(($(cat "$raw/next" 2> /dev/null || echo 0))) $1" >> "$raw/scenes"
}
awaited() { # NUMBER: waits for so many scrapes more
  local end=$(($(cat "$raw/next" 2> /dev/null || echo 0) + $1))
  until [ "$(cat "$raw/next" 2> /dev/null || echo 0)" -ge "$end" ]; do sleep 1; done
}
ready() { kubectl wait gpunodepolicy "$1" --for=condition=Ready --timeout=3m > /dev/null; }

scrapes &
scraper=$!
finish() {
  touch "$raw/end"
  wait "$scraper" || true
  # Whatever was changed goes back; most of it is gone after a run that succeeded.
  [ -z "${stopped:-}" ] || kill -CONT "$stopped" 2> /dev/null || true
  for at in "gpu-t4 1" "gpu-v100 0" "gpu-v100 3" "gpu-v100 5" "gpu-a100 4"; do
    # shellcheck disable=SC2086 # node and index
    gpu $at recover > /dev/null || true
  done
  gpu gpu-a100 4 let-go > /dev/null || true
  kubectl -n gpunode-system scale deployment gpunode-operator --replicas 2 > /dev/null || true
  kubectl delete deployments,pods --all --wait=false > /dev/null || true
  kubectl delete gpunodepolicies --all > /dev/null || true
  kubectl delete -f "$folder/story/refuse-nodes.yaml" --ignore-not-found > /dev/null || true
  kubectl label node gpu-mixed example.com/team- > /dev/null || true
}
trap finish EXIT

scene discovery
awaited 4

scene healthy
kubectl apply -f "$folder/story/policies.yaml" > /dev/null
for policy in training inference a100 mixed; do ready "$policy"; done
kubectl apply -f "$folder/story/pods.yaml" > /dev/null
for app in train serve notebooks; do kubectl rollout status "deployment/$app" --timeout 2m > /dev/null; done
awaited 8

scene faults
gpu gpu-t4 1 xid 79
gpu gpu-v100 3 lose
gpu gpu-v100 5 fail nvmlDeviceGetMemoryInfo UNKNOWN
for _ in 1 2 3; do
  gpu gpu-v100 0 xid 13
  awaited 2
done

scene recovered
gpu gpu-t4 1 recover
gpu gpu-v100 3 recover
gpu gpu-v100 5 recover
awaited 6

scene refused
for at in 1 2 3; do
  sed "s/REPLACED/$at/" "$folder/story/greedy.yaml" | kubectl apply -f - > /dev/null
  awaited 2
done
kubectl delete pod greedy-1 greedy-2 greedy-3 --wait=false > /dev/null

scene mig-stuck
gpu gpu-a100 4 hold dcgm
kubectl patch gpunodepolicy a100 --type json \
  -p '[{"op": "add", "path": "/spec/devicePlugin/mig/layout/-", "value": {"devices": {"indices": [4]}, "instances": {"7g.80gb": 1}}}]' > /dev/null
awaited 6

scene mig-done
gpu gpu-a100 4 let-go
# Any change of the configuration lets the agent try at once.
kubectl patch gpunodepolicy a100 --type merge -p '{"spec": {"devicePlugin": {"passDeviceSpecs": true}}}' > /dev/null
ready a100
awaited 2

scene stopped-rollout
# No T4 has a unit of that size.
kubectl delete deployment serve > /dev/null
kubectl patch gpunodepolicy inference --type json -p '[{"op": "replace", "path": "/spec/devicePlugin/resources",
  "value": [{"name": "example.com/gpu-mem", "sharing": {"strategy": "Memory", "unit": "24Gi"}}]}]' > /dev/null
kubectl wait gpunodepolicy inference --for=condition=Stalled --timeout=3m > /dev/null
awaited 4
kubectl apply -f "$folder/story/policies.yaml" > /dev/null
ready inference

scene conflict
kubectl label node gpu-mixed example.com/team=vision > /dev/null
kubectl patch gpunodepolicy mixed --type merge -p '{"spec": {"labels": {"example.com/team": "speech"}}}' > /dev/null
awaited 5
kubectl label node gpu-mixed example.com/team- > /dev/null
kubectl patch gpunodepolicy mixed --type merge -p '{"spec": {"labels": null}}' > /dev/null
ready mixed

scene refused-writes
kubectl apply -f "$folder/story/refuse-nodes.yaml" > /dev/null
awaited 1
kubectl patch gpunodepolicy mixed --type merge -p '{"spec": {"labels": {"example.com/team": "speech"}}}' > /dev/null
awaited 6
kubectl delete -f "$folder/story/refuse-nodes.yaml" > /dev/null
kubectl patch gpunodepolicy mixed --type merge -p '{"spec": {"labels": null}}' > /dev/null
awaited 1
ready mixed

scene silent-agent
pod=$(kubectl -n gpunode-system get pods -l app.kubernetes.io/component=device-plugin --field-selector spec.nodeName=gpu-v100 \
  -o jsonpath='{.items[0].status.containerStatuses[0].containerID}')
stopped=
for process in /proc/[0-9]*; do
  if grep -qs "${pod#containerd://}" "$process/cgroup" && grep -qs gpunode-agent "$process/cmdline"; then stopped=${process#/proc/}; fi
done
[ -n "$stopped" ]
kill -STOP "$stopped"
awaited 3
kill -CONT "$stopped" 2> /dev/null || true
awaited 2

scene no-leader
kubectl -n gpunode-system scale deployment gpunode-operator --replicas 0 > /dev/null
awaited 6

scene policy-gone
# Nobody sees the deletion.
kubectl delete gpunodepolicy mixed > /dev/null
kubectl -n gpunode-system scale deployment gpunode-operator --replicas 2 > /dev/null
awaited 3

scene standby-leads
awaited 4

touch "$raw/end"
wait "$scraper"
rm -f "$folder/recordings/"*.yaml
cargo run --quiet --locked -p gpunode-monitoring-tests -- "$raw" "$interval" "$folder/recordings/story.yaml"
rm -rf "$raw"
