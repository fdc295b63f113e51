#!/usr/bin/env bash
# `make book`: builds the documentation site into target/book. A warning of mdBook is an error.
set -euo pipefail
cd "$(dirname "$0")/../.."

cargo build --workspace --locked --quiet --bin gpunode-docs
target/debug/gpunode-docs site target/book-source
log=$(mktemp)
trap 'rm -f "$log"' EXIT
mdbook build target/book-source --dest-dir "$PWD/target/book" 2>&1 | tee "$log"
if grep -q -E 'WARN|ERROR' "$log"; then
  echo "mend what mdBook warns of" >&2
  exit 1
fi
