#!/usr/bin/env bash
# Prints what CHANGELOG.md says about a version: notes.sh VERSION
set -euo pipefail
cd "$(dirname "$0")/.."
awk -v version="${1:?VERSION}" '
  /^## / { inside = $2 == version; next }
  inside { print }
' CHANGELOG.md | sed -e '/./,$!d'
