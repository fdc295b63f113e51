#!/usr/bin/env bash
# Prints the bill of materials of an image as CycloneDX: the crates of its programs, which `cargo auditable` wrote into them, and the Debian
# packages of its libraries:
#   sbom.sh agent|operator VERSION PROGRAMS IMAGE.tar
set -euo pipefail
cd "$(dirname "$0")/.."
name=$1 version=$2 programs=$3 archive=$4
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

layer=$(tar -xOf "$archive" ./index.json | jq -r '.manifests[0].digest')
layer=$(tar -xOf "$archive" "./blobs/sha256/${layer#sha256:}" | jq -r '.layers[0].digest')
tar -xOf "$archive" "./blobs/sha256/${layer#sha256:}" | tar -tzf - > "$work/content"
lines() { # PATTERN: of the content; none is an error, because an image without a program or a library is none of ours
  grep -E "$1" "$work/content" || { echo "release: $archive has no file like $1" >&2; exit 1; }
}
# Programs lie at the root; gpunode's folders of mount points end in a slash.
lines '^(\./)?[^/]*gpunode[^/]*$' > "$work/names"
while read -r program; do
  program=${program#./}
  [ -f "$programs/$program" ] || { echo "release: $archive has $program, and $programs has not" >&2; exit 1; }
  auditable2cdx "$programs/$program"
done < "$work/names" > "$work/programs"
# Libraries are copied from the machine that builds: the file that a package of it has there, by the name that the package has for it: /lib
# is a link to /usr/lib on most machines.
lines '\.so(\.[0-9]+)*$' > "$work/files"
while read -r library; do
  library=/${library#./}
  package=$(dpkg-query -S "$library" "/usr$library" "$(readlink -f "$library")" 2> /dev/null | head -n 1 | cut -d: -f1 || true)
  [ -n "$package" ] || { echo "release: no package has $library" >&2; exit 1; }
  dpkg-query -W -f '${binary:Package} ${Version} ${Architecture}\n' "$package"
done < "$work/files" | sort -u > "$work/packages"
jq -R 'split(" ") | {type: "library", name: (.[0] | split(":")[0]), version: .[1],
  purl: "pkg:deb/debian/\(.[0] | split(":")[0])@\(.[1] | @uri)?arch=\(.[2])"}' < "$work/packages" | jq -s . > "$work/libraries"
jq -s --slurpfile libraries "$work/libraries" '
  {bomFormat: "CycloneDX", specVersion: .[0].specVersion, version: 1,
    components: (([.[].components[]] + $libraries[0]) | unique_by(.purl // .name))}' "$work/programs" \
  | release/normalise-sbom.sh "gpunode-$name" "$version"
