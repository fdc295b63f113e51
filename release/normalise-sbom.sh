#!/usr/bin/env bash
# Reads a bill of materials and prints it about a component of a release, sorted, without what differs from build to build:
#   normalise-sbom.sh NAME VERSION
set -euo pipefail
jq -S --arg name "$1" --arg version "$2" --arg time "$(date -u -d "@$SOURCE_DATE_EPOCH" +%Y-%m-%dT%H:%M:%SZ)" '
  del(.serialNumber)
  | .metadata = {timestamp: $time, component: {type: "application", name: $name, version: $version, "bom-ref": $name}}
  | .components |= sort_by(.name, .version)'
