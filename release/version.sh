#!/usr/bin/env bash
# Prints the version of the tree. `make version VERSION=x` calls `version.sh x`, which writes it everywhere, and cuts CHANGELOG.md: what is
# below "Unreleased" is below the version then.
set -euo pipefail
cd "$(dirname "$0")/.."

old=$(sed -n '/^\[workspace\.package\]/,/^\[/ s/^version = "\(.*\)"$/\1/p' Cargo.toml)
new=${1:-}
if [ -z "$new" ]; then
  echo "$old"
  exit
fi
[[ $new =~ ^(0|[1-9][0-9]*)(\.(0|[1-9][0-9]*)){2}(-[0-9A-Za-z.-]+)?$ ]] || { echo "version: '$new' is no version, such as 0.2.0" >&2; exit 1; }

# Every place that names gpunode's own version, and nothing else that looks like it.
dots=${old//./\\.}
sed -i "/^\[workspace\.package\]/,/^\[/ s/^version = \"$dots\"$/version = \"$new\"/" Cargo.toml
sed -i "/^name = \".*gpunode.*\"$/ { n; s/^version = \"$dots\"$/version = \"$new\"/ }" Cargo.lock
sed -i -E "s#(gpunode\.dev/(agent|operator):)$dots\$#\1$new#" manifests/default/operator.yaml
sed -i "s/^  version: v$dots$/  version: v$new/" manifests/krew/gpunode.yaml
sed -i "s/VERSION:-$dots}/VERSION:-$new}/" manifests/images/build.sh
sed -i -E "s/^((version|appVersion): \"?)$dots(\"?)$/\1$new\3/" manifests/helm/gpunode/Chart.yaml
# A tree without such a place has nothing to change.
{ grep -rlE "(gpunode-(agent|operator)|gpunode\.dev/(agent|operator)|\\\$name):$dots|newTag: $dots" README.md docs || true; } \
  | xargs -r sed -i -E "s#((gpunode-(agent|operator)|gpunode\.dev/(agent|operator)|\\\$name):|newTag: )$dots#\1$new#g"
if ! grep -q "^## $new " CHANGELOG.md; then
  sed -i "s/^## Unreleased$/## Unreleased\n\nNothing yet.\n\n## $new - $(date -u +%F)/" CHANGELOG.md
fi
echo "$old is $new now. Review the changes (git diff), run make test, and commit them."
