#!/usr/bin/env bash
# `make function-order`: writes node-agent/function-order.txt, by which the linker puts the functions side by side that the agent
# of a node executes. target/release has the programs. To be repeated when the figure agent-rss-companions of docs/benchmarks.md
# has grown.
set -euo pipefail
cd "$(dirname "$0")/../.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

cargo build --locked --quiet -p gpunode-function-order
tool=$PWD/target/debug/gpunode-function-order
agent=$PWD/target/release/gpunode-agent
# The scheduler decides which of two tasks waits for the other, so no two runs execute the same functions.
rounds=4
mkdir "$work/built"
cp target/release/libgpunode_fake_nvml.so target/release/gpunode-hook "$work/built"
records=()
for scenario in companions_alone gpus_and_an_api_server; do
  echo "recording $scenario, $rounds times at once: 80 s"
  record=$work/$scenario
  printf '#!/bin/sh\nexec "%s" record --to "%s" "%s" "$@"\n' "$tool" "$record" "$agent" > "$work/built/gpunode-agent"
  chmod 755 "$work/built/gpunode-agent"
  runs=()
  for _ in $(seq "$rounds"); do
    GPUNODE_BUILT=$work/built cargo test --locked --quiet -p gpunode-node-tests --test node -- --ignored "record_$scenario" &
    runs+=($!)
  done
  for run in "${runs[@]}"; do wait "$run"; done
  records+=("$record")
done
"$tool" patterns "$agent" "${records[@]}" > "$work/patterns"
mv "$work/patterns" node-agent/function-order.txt
echo "wrote node-agent/function-order.txt: $(wc -l < node-agent/function-order.txt) lines for $(cat "${records[@]}" | sort -u | wc -l) functions"
