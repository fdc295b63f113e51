#!/usr/bin/env bash
# Records what a Prometheus would scrape while GPUs, rollouts, agents and operators fail on the local cluster NAME, which has
# gpunode installed (tests/e2e/cluster.yaml) and no policy, and never had a MIG layout. Takes about 20 minutes; replaces
# tests/monitoring/recordings.
#   make cluster-up NAME=monitoring CLUSTER=tests/e2e/cluster.yaml
#   tests/monitoring/record.sh monitoring
# Needs jq and Debian's yq. CLUSTER_TARGET names the folder with the cluster's programs if it is not target.
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
# Writes the containers that hold devices as objects, one a line: pod, app, node, gpu, process and, of a MIG device, its instance.
holders() {
  local pod app container place process
  kubectl get gpunodes -o json > "$raw/gpunodes.json"
  while read -r pod app container; do
    # Other processes end meanwhile.
    place=$(grep -ls "${container#containerd://}" /proc/[0-9]*/cgroup | head -n 1 || true)
    # Its ids on this machine, in the node and in the container.
    process=$(awk '/^NSpid:/ {print $3}' "${place%/cgroup}/status")
    jq -c --arg pod "$pod" --arg app "$app" --argjson process "$process" '.items[] | .metadata.name as $node | .status
      | .gpus as $gpus | .holders[]? | select(.pod == $pod) | .device as $device | $gpus[] | .index as $gpu
      | {pod: $pod, app: $app, node: $node, gpu: $gpu, process: $process} + (
          (select(.uuid == $device) | {}),
          (.migDevices[]? | select(.uuid == $device) | {instance: [.gpuInstance, .computeInstance]}))' "$raw/gpunodes.json"
  done < <(kubectl get pods -o json | jq -r '.items[] | "\(.metadata.name) \(.metadata.labels.app) \(.status.containerStatuses[0].containerID)"')
}
# Gives the containers of an app work on their GPUs, in the order of these: MEMORY:SM in MiB and percent of the time, `-` for none.
# After SM 0 they keep their memory; those without an argument end their work.
work() { # APP [MEMORY:SM...]
  local app=$1
  shift
  touch "$raw/work"
  (
    flock 8
    jq -c --arg app "$app" 'select(.app != $app)' "$raw/work" > "$raw/work.new"
    jq -c -s --arg app "$app" '[.[] | select(.app == $app)] | sort_by(.gpu, .instance, .pod)
      | [group_by(.pod)[]] | sort_by(.[0].gpu, .[0].instance) | to_entries[]
      | ($ARGS.positional[.key] // "-") as $work | select($work != "-") | ($work | split(":") | map(tonumber)) as [$memory, $sm]
      | .value[] | . + {memory: $memory, sm: $sm}' --args "$@" < "$raw/holders" >> "$raw/work.new"
    mv "$raw/work.new" "$raw/work"
  ) 8> "$raw/work.lock"
  worked
}
# Writes what containers use into the states of the simulated GPUs, SMs with some noise. The lock is that of gpunode-cluster.
worked() {
  local node state
  for node in gpu-v100 gpu-t4 gpu-a100; do
    state=$target/cluster/$name/nodes/$node/driver/usr/lib/x86_64-linux-gnu/gpunode-state
    (
      flock 9
      [ -s "$state.yaml" ] || echo '{}' > "$state.yaml"
      yq -y --arg node "$node" --argjson time "$SECONDS" --argjson users "$(jq -s . "$raw/work")" '
        .gpus = ((.gpus // {}) | map_values(.processes = [] | .smPercent = {}))
        | reduce ($users[] | select(.node == $node)) as $user (.;
            .gpus["\($user.gpu)"] |= (
              .processes += [{pid: $user.process, memoryMib: $user.memory} + (if $user.instance then {instance: $user.instance} else {} end)]
              | if $user.sm > 0 then .smPercent["\($user.process)"] = $user.sm + ($user.process * 7 + $time) % 9 - 4 else . end))' \
        "$state.yaml" | sed -E "s/^( *)'([0-9]+)':/\1\2:/" > "$state.yaml.new"   # numbers as keys
      mv "$state.yaml.new" "$state.yaml"
    ) 9> "$state.lock"
  done
}
works() {
  while [ ! -e "$raw/end" ]; do
    sleep 10
    [ ! -e "$raw/work" ] || worked
  done
}
ready() { kubectl wait gpunodepolicy "$1" --for=condition=Ready --timeout=3m > /dev/null; }

scrapes &
scraper=$!
works &
finish() {
  touch "$raw/end"
  wait
  # Whatever was changed goes back; most of it is gone after a run that succeeded.
  [ -z "${stopped:-}" ] || kill -CONT "$stopped" 2> /dev/null || true
  for at in "gpu-t4 1" "gpu-v100 0" "gpu-v100 3" "gpu-v100 5" "gpu-a100 4"; do
    # shellcheck disable=SC2086 # node and index
    gpu $at recover > /dev/null || true
  done
  gpu gpu-a100 4 let-go > /dev/null || true
  : > "$raw/work"
  worked
  kubectl -n gpunode-system scale deployment gpunode-operator --replicas 2 > /dev/null || true
  kubectl delete deployments,pods --all --wait=false > /dev/null || true
  kubectl delete gpunodepolicies --all > /dev/null || true
  kubectl delete -f "$folder/story/refuse-nodes.yaml" --ignore-not-found > /dev/null || true
  kubectl label node gpu-mixed example.com/team- > /dev/null || true
  [ -z "${recorded:-}" ] || rm -rf "$raw"
}
trap finish EXIT

scene discovery
awaited 4

scene healthy
kubectl apply -f "$folder/story/policies.yaml" > /dev/null
for policy in training inference a100 mixed; do ready "$policy"; done
kubectl apply -f "$folder/story/pods.yaml" > /dev/null
for app in train serve notebooks; do kubectl rollout status "deployment/$app" --timeout 2m > /dev/null; done
# The agents report who holds a device within ten seconds.
awaited 1
holders > "$raw/holders"
[ "$(jq -s length "$raw/holders")" = 19 ]
# One train and one notebook hold their devices without a process, two of `serve` only keep memory.
train=(29000:91 21500:68)
serve=(4700:55 2300:14 900:0 3800:31 3000:22 4600:38 1500:8 4300:46 400:0)
work train "${train[@]}"
work serve "${serve[@]}"
work notebooks 6200:0 1100:0 300:0
awaited 8

scene faults
work train "${train[0]}" "${train[1]/:*/:0}"
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

scene idle
# All keep their memory.
work train "${train[@]/%:*/:0}"
work serve "${serve[@]/%:*/:0}"
awaited 8

scene busy-again
work train "${train[@]}"
work serve "${serve[@]}"
awaited 2

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
work serve
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
wait
cargo build --quiet --workspace --locked --bin gpunode-recording
rm -f "$folder/recordings/"*.yaml
"${CARGO_TARGET_DIR:-target}/debug/gpunode-recording" "$raw" "$interval" "$folder/recordings/story.yaml"
recorded=true
