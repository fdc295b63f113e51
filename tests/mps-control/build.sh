#!/usr/bin/env bash
# Builds the stand-in for NVIDIA's MPS programs, statically linked: a driver root has no libraries for them.
# Usage: build.sh [FOLDER]; FOLDER (default target/mps-control of the repository) gets nvidia-cuda-mps-control and mps-client.
set -euo pipefail
cd "$(dirname "$0")"
folder=${1:-../../target/mps-control}
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)
host=$(rustc -vV | sed -n 's/^host: //p')
# With an explicit target, the flag does not apply to build scripts.
RUSTFLAGS="-C target-feature=+crt-static" cargo build --quiet --locked --target "$host" --target-dir "$folder/build" -p gpunode-mps-control
for program in nvidia-cuda-mps-control mps-client; do
  # Replaced in one step, because a test may be copying it.
  cp "$folder/build/$host/debug/$program" "$folder/$program.new"
  mv "$folder/$program.new" "$folder/$program"
done
