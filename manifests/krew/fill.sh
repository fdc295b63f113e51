#!/usr/bin/env bash
# Prints the manifest for the kubectl plugin index with the checksums of a release. docs/kubectl.md describes the archives.
#   fill.sh HOMEPAGE DOWNLOADS FOLDER > gpunode.yaml
# HOMEPAGE and DOWNLOADS are https URLs; FOLDER has the archives that are published below DOWNLOADS.
set -euo pipefail
homepage=${1:?HOMEPAGE} downloads=${2:?DOWNLOADS} folder=${3:?FOLDER}

text=$(grep -v '^#' "$(dirname "$0")/gpunode.yaml")
text=${text//HOMEPAGE/"$homepage"}
text=${text//DOWNLOADS/"${downloads%/}"}
for platform in $(grep -o 'SHA256-[a-z0-9-]*' <<< "$text"); do
  archive="$folder/kubectl-gpunode-${platform#SHA256-}.tar.gz"
  tar -tzf "$archive" | grep -qxE '(\./)?kubectl-gpunode' || { echo "$archive has no kubectl-gpunode" >&2; exit 1; }
  sum=$(sha256sum "$archive")
  text=${text//"$platform"/"${sum%% *}"}
done
printf '%s\n' "$text"
