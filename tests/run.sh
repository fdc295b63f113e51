#!/usr/bin/env bash
# `make test`: everything that CI runs. Builds first, then runs tests on up to four clusters side by side, and all others beside
# them: most tests wait most of the time. Ends with the number of tests.
set -euo pipefail
cd "$(dirname "$0")/.."
. tests/report.sh

# Runs one test program from the folder of its crate, as cargo does. Cargo itself would hold a lock that the other clusters wait for.
program() { # TARGET ARGUMENT...
  local target=$1 path folder
  shift
  IFS=$'\t' read -r path folder < <(jq -r --arg target "$target" '
    select(.reason == "compiler-artifact" and .target.name == $target and .profile.test and .executable)
    | [.executable, (.manifest_path | rtrimstr("/Cargo.toml"))] | @tsv' "$report/built.json")
  printf '     Running %s (%s)\n' "$target" "$path"
  (cd "$folder" && "$runner" "$path" "$@")
}

pids=() names=() watcher=
stop() {
  [ -z "$watcher" ] || kill -- "-$watcher" 2> /dev/null || true
  # First whatever may start a cluster.
  if [ ${#pids[@]} -gt 0 ]; then kill -- "${pids[@]/#/-}" 2> /dev/null || true; fi
  wait
  [ -x target/release/gpunode-cluster ] || return 0
  for cluster in $clusters e2e-fleet; do target/release/gpunode-cluster down --name "$cluster" > /dev/null || true; done
}
trap stop EXIT
# Runs a function beside others, with a name before each of its lines.
beside() { # NAME FUNCTION
  # A process group each: `stop` ends it with all that it has started.
  set -m
  { "$2" < /dev/null 2>&1 | sed -u "s/^/[$1] /"; } &
  set +m
  pids+=($!) names+=("$1")
}
# Waits for all of them.
awaited() {
  local at
  for at in "${!pids[@]}"; do
    wait "${pids[at]}" || printf '0\tFAILED\t%s ended early\n' "${names[at]}" >> "$report/stages"
  done
  pids=() names=()
}

clusters="e2e e2e-agents e2e-removal e2e-mig e2e-late"
# Modules of tests/e2e/tests/cluster by their cluster; those that are not named here run on the first. Each takes as long as the
# others, so that nobody waits for the last.
on_agents="evicted:: from_nvidia_plugin:: health:: inside_containers:: kills:: memory:: mps:: rejected:: release:: startup_taint:: switching:: unhealthy_taint::"
on_removal="companions:: dra:: from_gpushare_and_gpu_manager:: staying_up::"
# Those of another cluster, on_mig, and those that follow them on one like the others.
. tests/e2e/mig-modules.sh
on_late="admission:: contention:: leadership:: policy_hand_over::"

# A full disk stops API servers in the middle of a request, and everything waits. A build takes 12 GiB, clusters and logs the rest.
disk() {
  local free least=8
  [ -x target/release/gpunode-cluster ] || least=20
  free=$(($(df --output=avail --block-size=1M . | tail -1) / 1024))
  echo "$free GiB of disk are free"
  [ "$free" -ge "$least" ] || { echo "free at least $least GiB: cargo clean drops earlier builds" >&2; return 1; }
}
needed "disk" disk
# What a later build could use again takes twice the disk. In CI none follows, and a first build is slower with it.
if [ -n "${CI:-}" ] || [ ! -d target/debug ]; then export CARGO_INCREMENTAL=0; fi
needed "packages" make packages
# The last crates of the release build keep one processor busy for minutes; lint and the tests take the other.
images() { stage "build of Kubernetes, gpunode and images" make kubernetes images; }
beside images images
stage "lint" make lint
needed "build of the tests" build_tests --message-format=json-render-diagnostics
awaited
if grep -q 'FAILED.*\(build of\|images\)' "$report/stages"; then
  tail -n 40 "$report"/build-of-Kubernetes*.log
  summary
fi

on_cluster() { # TARGET [FILTER...]
  program "$1" --ignored --test-threads=1 "${@:2}"
}
start() { # CLUSTER-FILE: a cluster with gpunode
  # Tests beside it judge an agent by the second, so they go before the programs of a cluster.
  nice -n 5 target/release/gpunode-cluster up --name "$GPUNODE_E2E_CLUSTER" --cluster "tests/e2e/$1"
  tests/cluster/install-gpunode.sh "$GPUNODE_E2E_CLUSTER"
}

e2e() {
  local others=() module
  for module in $on_agents $on_removal $on_mig $on_late; do others+=(--skip "$module"); done
  ARBTEST_BUDGET_MS=10000 GPUNODE_TEST_KUBECONFIG=$PWD/target/cluster/e2e/admin.kubeconfig stage "manifests at an API server" program api_server --ignored
  # Before anything is left behind that goes minutes later, for which it would have to wait.
  stage "an unchanged world" on_cluster cluster quiet::
  # Begun first and awaited last: a kubelet keeps the key of a resource for five minutes.
  stage "a resource that goes: its beginning" on_cluster retired begin
  stage "policies" on_cluster cluster --skip quiet:: "${others[@]}"
  stage "a resource that goes: its end" on_cluster retired end
}
e2e_agents() {
  # shellcheck disable=SC2086 # several filters
  stage "agents and nodes that fail" on_cluster cluster $on_agents
  stage "commands of the documentation" on_cluster documentation --nocapture
}
e2e_removal() {
  # First, because it waits for the kubelet's five minutes too.
  stage "removal and uninstallation" on_cluster uninstall
  stage "installation with Helm" on_cluster helm
  # Begun first and awaited last: the operator waits for two minutes.
  stage "a DRA driver: its GPUs" on_cluster cluster dra::gpus_of_a_dra_driver
  stage "devices that are files" on_cluster cluster companions::
  stage "agents that are replaced" on_cluster cluster from_gpushare_and_gpu_manager:: staying_up::
  stage "a DRA driver that goes" on_cluster cluster dra::gpus_without_a_dra_driver
}
e2e_mig() {
  # shellcheck disable=SC2086 # several filters
  stage "MIG layouts" on_cluster cluster $on_mig
}
e2e_late() {
  # shellcheck disable=SC2086 # several filters
  stage "operators and their rivals" on_cluster cluster $on_late
}
# A control plane without kubelets, whose operators are processes.
fleet() {
  export GPUNODE_FLEET_CLUSTER=e2e-fleet
  stage "start of cluster e2e-fleet" \
    nice -n 5 target/release/gpunode-cluster up --name e2e-fleet --cluster tests/fleet/cluster.yaml
  [ "$failed" = 0 ] || return 0
  stage "a fleet of 500 nodes" on_cluster fleet
}
# Images of a release go to a registry and come back.
registry() {
  local images=$PWD/target/images
  (cd release/oci && GPUNODE_IMAGES=$images go test -count=1 ./...)
}
# What needs root, and none of these clusters.
root() {
  stage "clusters that come and go" program lifecycle --ignored --test-threads=1
  stage "NVML for other programs" program nvml --ignored --test-threads=1
  stage "demo" tests/e2e/demo.sh
  stage "CDI: library of container runtimes" program reference_library --ignored
  stage "CDI: NVIDIA's container runtime" program nvidia_toolkit --ignored
  stage "GitOps tools: phases" program phases --ignored
  stage "GitOps tools: samples" program samples --ignored
  stage "GitOps tools: components" program components --ignored
  stage "alerts: Prometheus' engine and lint" program alerts --ignored
  stage "alerts and dashboards: kustomize" program monitoring --ignored
  stage "Helm chart" program chart --ignored
  stage "images in a registry" registry
  stage "hooks as root: mounts" program gpunode-hook --ignored
  stage "hooks as root: the loader" program hook --ignored --skip measure
  stage "records of functions as root" program recorder --ignored
  stage "changes of MIG as root" program gpunode-agent --ignored --skip measure --test-threads=4
  stage "the agent's process as root" program node --ignored --skip measure --skip record_ --test-threads=4
}
others() {
  # With the features of the whole workspace, as everything is built: cargo compiles nothing again.
  stage "what needs no root" cargo test --workspace --locked --no-fail-fast -- --test-threads=4
  # Last, since it keeps the processors busy: most of the others are over by then.
  fleet
}

lane() { # CLUSTER FUNCTION [CLUSTER-FILE]
  export GPUNODE_E2E_CLUSTER=$1
  stage "start of cluster $1" start "${3:-cluster.yaml}"
  [ "$failed" = 0 ] || return 0
  "$2"
  stage "plans of cluster $1" on_cluster plans --nocapture
  # An idle cluster costs the others a part of a processor.
  stage "end of cluster $1" finish "$1"
}
finish() { # CLUSTER: keeps its audit log, and stops it unless the last test needs it
  ln -L "target/cluster/$1/audit.log" "$audit_logs/$1"
  [ "$1" = e2e ] || target/release/gpunode-cluster down --name "$1"
}
# Programs with fuzz tests. Each test gets its time alone.
fuzz() {
  local target
  # Tests beside it judge an agent by the second; the limit of an input is processor time.
  renice -n 5 "$BASHPID" > /dev/null
  export ARBTEST_BUDGET_MS=10000
  for target in gpunode_config gpunode_gpu kubectl_gpunode gpunode-agent; do
    stage "fuzz tests of $target" program "$target" fuzz:: --test-threads=1
  done
}
lane_e2e() { lane e2e e2e; }
lane_agents() { lane e2e-agents e2e_agents; }
lane_removal() { lane e2e-removal e2e_removal; }
lane_mig() {
  lane e2e-mig e2e_mig mig.yaml
  lane e2e-late e2e_late
}

audit_logs=$report/audit-logs
mkdir "$audit_logs"
# Ends what still runs so long after the start, and says what it was: a program that hangs is a failure with a name.
limit=5000
watch() {
  sleep "$((limit > SECONDS ? limit - SECONDS : 0))"
  printf '\n######## what still runs after %d s\n' "$limit"
  ps -e -o pid,etime,args | grep -E '[/]deps/|[/]tests/|[c]argo ' | cut -c 1-200 || true
  kill -- "${pids[@]/#/-}"
}
beside e2e lane_e2e
beside e2e-agents lane_agents
beside e2e-removal lane_removal
beside e2e-mig lane_mig
beside tests others
beside root root
beside fuzz fuzz
set -m
watch &
watcher=$!
set +m
awaited
kill -- "-$watcher" 2> /dev/null || true

export GPUNODE_E2E_AUDIT_LOGS=$audit_logs GPUNODE_E2E_CLUSTER=e2e
# Last: it looks at what all the others did.
stage "permissions" on_cluster permissions
summary
