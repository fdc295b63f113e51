#!/usr/bin/env bash
# Prints the manifest for the kubectl plugin index with the checksums of a release, for the platforms that the release has. `make release`
# calls it.
#   fill.sh HOMEPAGE DOWNLOADS FOLDER > gpunode.yaml
# HOMEPAGE and DOWNLOADS are https URLs; FOLDER has the archives that are published below DOWNLOADS.
set -euo pipefail
homepage=${1:?HOMEPAGE} downloads=${2:?DOWNLOADS} folder=${3:?FOLDER}

text=$(grep -v '^#' "$(dirname "$0")/gpunode.yaml")
text=${text//HOMEPAGE/"$homepage"}
text=${text//DOWNLOADS/"${downloads%/}"}
filled=0
for platform in $(grep -o 'SHA256-[a-z0-9-]*' <<< "$text"); do
  archive="$folder/kubectl-gpunode-${platform#SHA256-}.tar.gz"
  if [ ! -e "$archive" ]; then
    # Its entry is the line of its selector and the lines up to the next entry.
    text=$(awk -v word="$platform" '
      function flush() { if (index(entry, word) == 0) printf "%s", entry; entry = "" }
      /^  - selector:/ { flush() }
      { entry = entry $0 "\n" }
      END { flush() }' <<< "$text")
    continue
  fi
  tar -tzf "$archive" | grep -qxE '(\./)?kubectl-gpunode' || { echo "$archive has no kubectl-gpunode" >&2; exit 1; }
  sum=$(sha256sum "$archive")
  text=${text//"$platform"/"${sum%% *}"}
  filled=$((filled + 1))
done
[ "$filled" -gt 0 ] || { echo "$folder has no archive kubectl-gpunode-OS-ARCH.tar.gz" >&2; exit 1; }
printf '%s\n' "$text"
