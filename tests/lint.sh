#!/usr/bin/env bash
# `make lint`: finds the mistakes that tools can find, so that reviewers need not.
set -euo pipefail
cd "$(dirname "$0")/.."

step() { printf '\n== %s\n' "$*"; }

step "formatting"
cargo fmt --all --check

step "clippy"
cargo clippy --workspace --all-targets --locked -- -D warnings

step "documentation"
RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --locked --quiet

step "dependencies: bans, licences, sources"
cargo deny --all-features check bans licenses sources

step "unused dependencies"
cargo machete --skip-target-dir .

step "generated CRDs are up to date"
generated=$(mktemp -d)
trap 'rm -rf "$generated"' EXIT
cargo build --workspace --locked --quiet --bin gpunode-crds
target/debug/gpunode-crds "$generated"
for file in "$generated"/*.yaml; do
  diff -u "manifests/crds/$(basename "$file")" "$file" || { echo "run 'make crds' and commit the result"; exit 1; }
done

step "generated documentation is up to date"
cargo build --workspace --locked --quiet --bin gpunode-docs --bin kubectl-gpunode --bin gpunode-operator --bin gpunode-agent
target/debug/gpunode-docs references "$generated/docs"
for folder in reference pictures; do
  diff -ru --exclude='*.yaml' --exclude='*.png' "docs/$folder" "$generated/docs/$folder" || { echo "run 'make docs' and commit the result"; exit 1; }
done

step "documentation site"
tests/docs/book.sh

step "pure crates depend on no runtime and no client"
for crate in gpunode-config gpunode-crds gpunode-gpu gpunode-cdi gpunode-mig gpunode-plan; do
  if cargo tree --locked -e normal -p "$crate" --prefix none | grep -E '^(tokio|kube-client|kube-runtime|hyper|tonic) '; then
    echo "$crate does no IO: remove the dependency above"; exit 1
  fi
  echo "$crate"
done
