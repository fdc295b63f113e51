#!/usr/bin/env bash
# `make demo`: shows gpunode on a local cluster of simulated GPU nodes. Each step names what to look for, shows the output of
# kubectl, and checks the result. Exits with 1 if a check fails. KEEP=1 keeps the cluster.
set -euo pipefail
cd "$(dirname "$0")/../.."

name=${NAME:-demo}
started=$SECONDS
failures=0
bin=$PWD/target/cluster/bin
cluster=target/release/gpunode-cluster
export KUBECONFIG=$PWD/target/cluster/$name/admin.kubeconfig KUBECACHEDIR=$PWD/target/cluster/$name/kubectl-cache
export PATH=$bin:$PATH

if [ -t 1 ]; then bold=$'\e[1m' green=$'\e[32m' red=$'\e[31m' dim=$'\e[2m' plain=$'\e[0m'; else bold= green= red= dim= plain=; fi

title() { printf '\n%s== %s %s%s(%ds)%s\n' "$bold" "$*" "$plain" "$dim" "$((SECONDS - started))" "$plain"; }
look() { printf '%sLook for: %s%s\n' "$dim" "$*" "$plain"; }
show() { # prints the command as a user would type it, then runs it
  local word line=
  for word in "$@"; do
    case $word in *[!A-Za-z0-9_./:=,@%+-]*) word="'$word'" ;; esac
    line+=" $word"
  done
  printf '%s$%s%s\n' "$bold" "$line" "$plain"
  "$@" || true
}

check() { # DESCRIPTION COMMAND...: the command must succeed within 60 s
  local what=$1 end=$((SECONDS + 60)); shift
  until "$@" > /dev/null 2>&1; do
    if [ "$SECONDS" -ge "$end" ]; then
      printf '%s  ✗ %s%s\n' "$red" "$what" "$plain"
      failures=$((failures + 1))
      return 0
    fi
    sleep 0.2
  done
  printf '%s  ✓ %s%s\n' "$green" "$what" "$plain"
}

# Functions for the checks.
is() { [ "$(eval "$1")" = "$2" ]; }
node_field() { kubectl get node "$1" -o jsonpath="$2"; }
advertises() { is "kubectl get node $1 -o json | jq -r '.status.allocatable[\"$2\"]'" "$3"; }
allocatable() { advertises "$1" nvidia.com/gpu "$2"; }
# The record names resources until the kubelet removes them, 5 to 7 minutes after the end of their plugin.
snapshot() { kubectl get node "$1" -o json | jq -S '.metadata.annotations |= ((.["gpunode.dev/owned"] // empty) |= (fromjson | del(.resources))) | {labels: .metadata.labels, annotations: .metadata.annotations, taints: .spec.taints, unschedulable: .spec.unschedulable}'; }
sample_pods() { kubectl kustomize "manifests/samples/$1"; }
pending_because() { kubectl get events --field-selector "involvedObject.name=$1,reason=FailedScheduling" -o jsonpath='{.items[*].message}' | grep -q "$2"; }
visible() { kubectl exec "$1" -- sh -c 'ls /dev | grep -E "^nvidia[0-9]+$"'; }
sees() { [ "$(visible "$1" | wc -l)" = "$2" ]; }
running_slices() { [ "$(kubectl get pods -l app=slices --field-selector status.phase=Running -o name | wc -l)" = 16 ]; }
per_gpu() { for pod in $(kubectl get pods -l app=slices -o name); do visible "$pod"; done | sort | uniq -c; }
four_on_each() { [ "$(per_gpu | awk '{print $1}' | tr '\n' ' ')" = "4 4 4 4 " ]; }
unchanged() { [ "$(snapshot "$1")" = "$2" ]; }
conflicted() { is "kubectl get gpunodepolicy $1 -o jsonpath='{.status.nodes.conflicted}'" "$2"; }
condition() { is "kubectl get gpunodepolicy $1 -o jsonpath='{.status.conditions[?(@.type==\"$2\")].status}'" "$3"; }
sharing_pod() { # NAME RESOURCE COUNT
  kubectl run "$1" --image=gpunode.test/cuda:1 --restart=Never --dry-run=client -o yaml \
    --overrides='{"spec":{"terminationGracePeriodSeconds":0,"nodeSelector":{"pool":"a100"}}}' -- sleep 100000 \
    | kubectl patch --local -f - -o yaml --type=json -p '[{"op":"add","path":"/spec/containers/0/resources","value":{"limits":{"'"$2"'":"'"$3"'"}}}]'
}
variable() { is "kubectl exec $1 -- sh -c 'echo \$$2'" "$3"; }
gone() { ! kubectl get "$@"; }
refused() { ! kubectl apply -f "$1"; }

finish() {
  local status=$?
  if [ -n "${KEEP:-}" ] && [ "$status" = 0 ]; then
    kubectl delete pods,jobs,deployments --all --grace-period=0 --force > /dev/null 2>&1
    kubectl apply -k manifests/samples > /dev/null
    printf '\nThe cluster keeps running, with the sample policies. Apply the pods of manifests/samples, or use the image gpunode.test/cuda:1.\n  export KUBECONFIG=%s\n  export PATH=%s:$PATH\n  kubectl gpunode status\nStop it with\n  make cluster-down NAME=%s\n' "$KUBECONFIG" "$bin" "$name"
  else
    title "stopping the cluster"
    "$cluster" down --name "$name"
  fi
}
trap finish EXIT

title "starting a Kubernetes cluster on this machine"
"$cluster" up --name "$name"
title "installing gpunode from manifests/default"
tests/cluster/install-gpunode.sh "$name"

title "1. gpunode finds the GPUs without a policy"
look "a GpuNode with the hardware of each node with GPUs; none for the node cpu"
show kubectl get gpunodes
check "three nodes have GPUs" is 'kubectl get gpunodes -o name | wc -l' 3
check "cpu has no GpuNode" gone gpunode cpu
look "GPU labels on each of these nodes, without GPU feature discovery"
show kubectl get nodes -L nvidia.com/gpu.product,nvidia.com/gpu.count,nvidia.com/gpu.memory,nvidia.com/gpu.family
check "gpu-v100 has the label of its product" is "node_field gpu-v100 '{.metadata.labels.nvidia\.com/gpu\.product}'" Tesla-V100-SXM2-32GB
before=$(snapshot gpu-v100)

title "2. a policy for the V100 pool: a label, and a taint that keeps other pods away"
show cat manifests/samples/v100-reserved.yaml
show kubectl apply -f manifests/samples/v100-reserved.yaml
check "the policy is Ready" condition v100-reserved Ready True
check "gpu-v100 advertises 8 GPUs" allocatable gpu-v100 8
look "the label accelerator, the taint dedicated and 8 nvidia.com/gpu on gpu-v100, and on no other node"
show kubectl get nodes -o custom-columns='NODE:.metadata.name,ACCELERATOR:.metadata.labels.accelerator,TAINTS:.spec.taints[*].key,GPUS:.status.allocatable.nvidia\.com/gpu'
show kubectl get gpunodepolicies
check "the label is on gpu-v100" is "node_field gpu-v100 '{.metadata.labels.accelerator}'" nvidia-tesla-v100
check "the taint is on gpu-v100" is "node_field gpu-v100 '{.spec.taints[?(@.key==\"dedicated\")].effect}'" NoSchedule
check "no other node has the label" is 'kubectl get nodes -l accelerator -o name' node/gpu-v100
check "the device plugin runs on gpu-v100 only" is "kubectl -n gpunode-system get pods -l app.kubernetes.io/component=device-plugin -o jsonpath='{.items[*].spec.nodeName}'" gpu-v100

title "3. pods that request GPUs, without and with the toleration"
show kubectl cordon gpu-t4 gpu-a100
sample_pods pods | kubectl apply -f - > /dev/null
check "gpu-pod is Pending because of the taint" pending_because gpu-pod 'untolerated taint'
look "the taint in the scheduler's message"
show kubectl get events --field-selector involvedObject.name=gpu-pod,reason=FailedScheduling -o custom-columns=MESSAGE:.message --no-headers
sample_pods pods | kubectl delete --grace-period=0 --force -f - > /dev/null 2>&1
kubectl uncordon gpu-t4 gpu-a100 > /dev/null
sample_pods pods-on-v100 | kubectl apply -f -
check "the job completes" kubectl wait job/gpu-job --for=condition=Complete --timeout=1s
check "gpu-pod sees one GPU" sees gpu-pod 1
check "gpu-pod-2 sees two" sees gpu-pod-2 2
check "gpu-pod-4 sees four" sees gpu-pod-4 4
look "pods on gpu-v100, and the device nodes of the two GPUs in gpu-pod-2"
show kubectl get pods -o wide
show kubectl exec gpu-pod-2 -- nvidia-smi
show kubectl logs job/gpu-job

title "4. a policy for the T4 pool: four pods share each GPU by time-slicing"
show kubectl apply -f manifests/samples/t4-time-slicing.yaml
check "gpu-t4 advertises its 4 GPUs 16 times" allocatable gpu-t4 16
kubectl create deployment slices --image=gpunode.test/cuda:1 --replicas=16 --dry-run=client -o yaml -- sh -c 'nvidia-smi; exec sleep 100000' \
  | kubectl patch --local -f - -o yaml --type=json -p '[
      {"op":"add","path":"/spec/template/spec/nodeSelector","value":{"accelerator":"nvidia-tesla-t4"}},
      {"op":"add","path":"/spec/template/spec/terminationGracePeriodSeconds","value":0},
      {"op":"add","path":"/spec/template/spec/containers/0/resources","value":{"limits":{"nvidia.com/gpu":"1"}}}]' \
  | kubectl apply -f -
check "16 pods run at the same time" running_slices
look "GPUs of the 16 containers, counted: each four times"
per_gpu
check "four pods on each GPU" four_on_each

title "5. one node, three ways to share: whole GPUs, memory units, MPS"
kubectl apply -f - << 'POLICY'
apiVersion: gpunode.dev/v1alpha1
kind: GpuNodePolicy
metadata: {name: a100-sharing}
spec:
  nodeSelector: {matchLabels: {pool: a100}}
  devicePlugin:
    resources:
    - {name: nvidia.com/gpu, devices: {indices: [0, 1, 2, 3]}}
    - {name: nvidia.com/gpu-mem, devices: {indices: [4, 5]}, sharing: {strategy: Memory}}
    - {name: nvidia.com/gpu.mps, sharing: {strategy: Mps, replicas: 10}}
POLICY
check "4 GPUs are whole" advertises gpu-a100 nvidia.com/gpu 4
check "2 GPUs are 160 memory units of 1 GiB" advertises gpu-a100 nvidia.com/gpu-mem 160
check "2 GPUs are 20 MPS shares, and their daemons answer" advertises gpu-a100 nvidia.com/gpu.mps 20
sharing_pod memory nvidia.com/gpu-mem 30 | kubectl apply -f - > /dev/null
sharing_pod shares nvidia.com/gpu.mps 3 | kubectl apply -f - > /dev/null
check "a container has 30 of a GPU's 80 memory units" variable memory ALIYUN_COM_GPU_MEM_CONTAINER 30
check "a container has 3 of 10 MPS shares" variable shares CUDA_MPS_ACTIVE_THREAD_PERCENTAGE 30
look "the limits in the environment of the containers"
show kubectl exec memory -- sh -c 'env | grep -E "^(ALIYUN|NVIDIA_VIS)"'
show kubectl exec shares -- sh -c 'env | grep -E "^(CUDA|NVIDIA_VIS)"'

title "6. the status of the whole fleet"
show kubectl gpunode status

title "7. gpunode restores its own labels and leaves those of others alone"
kubectl label node gpu-v100 team=research accelerator- > /dev/null
check "gpunode restores the removed label" is "node_field gpu-v100 '{.metadata.labels.accelerator}'" nvidia-tesla-v100
look "accelerator (restored by gpunode) and team (set by someone else)"
show kubectl get node gpu-v100 -L accelerator -L team
check "the label of someone else stays" is "node_field gpu-v100 '{.metadata.labels.team}'" research
kubectl label node gpu-v100 team- > /dev/null

title "8. a label that a team set by hand causes a conflict on that node only"
kubectl label node gpu-a100 tier=mine > /dev/null
kubectl apply -f - << 'POLICY'
apiVersion: gpunode.dev/v1alpha1
kind: GpuNodePolicy
metadata: {name: tiers}
spec:
  nodeSelector: {matchExpressions: [{key: pool, operator: Exists}]}
  labels: {tier: gold}
POLICY
check "one node has a conflict" conflicted tiers 1
look "tier=mine stays on gpu-a100; the policy says why"
show kubectl get nodes -l pool -L tier
show kubectl get gpunodepolicy tiers -o jsonpath='{range .status.failures[*]}{.node}: {.reason}: {.message}{"\n"}{end}'
check "the value of the team stays" is "node_field gpu-a100 '{.metadata.labels.tier}'" mine
check "the other nodes have the label" is 'kubectl get nodes -l tier=gold -o name | wc -l' 2
kubectl delete gpunodepolicy tiers > /dev/null; kubectl label node gpu-a100 tier- > /dev/null

title "9. the API server refuses a mistake and names the field"
cat > "target/cluster/$name/mistake.yaml" << 'POLICY'
apiVersion: gpunode.dev/v1alpha1
kind: GpuNodePolicy
metadata: {name: mistake}
spec:
  nodeSelector: {}
  devicePlugin: {resources: [{name: nvidia.com/gpu, sharing: {strategy: TimeSlicing}}]}
POLICY
look "the field and what to do, from the API server and from kubectl gpunode validate, which needs no cluster"
show kubectl apply -f "target/cluster/$name/mistake.yaml"
show kubectl gpunode validate -f "target/cluster/$name/mistake.yaml"
check "the API server refuses it" refused "target/cluster/$name/mistake.yaml"

title "10. without policies, the node is as before"
show kubectl delete gpunodepolicies --all
check "gpu-v100 is restored to the byte" unchanged gpu-v100 "$before"
check "no device plugin pod is left" is "kubectl -n gpunode-system get pods -l app.kubernetes.io/component=device-plugin -o name" ""
look "the sample pods still run with their GPUs"
show kubectl get pods -o custom-columns=POD:.metadata.name,PHASE:.status.phase
check "gpu-pod still runs" is "kubectl get pod gpu-pod -o jsonpath='{.status.phase}'" Running

title "done"
if [ "$failures" != 0 ]; then printf '%s%d checks failed%s\n' "$red" "$failures" "$plain"; exit 1; fi
printf '%sall checks passed%s in %d s\n' "$green" "$plain" "$((SECONDS - started))"
