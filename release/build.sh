#!/usr/bin/env bash
# `make release VERSION=x`: builds everything that a release publishes, from the commit that is checked out, into target/releases/VERSION.
# Builds it twice, in two folders, and fails if any file differs: whoever builds that commit with the same tools gets the same digests.
# docs/release.md has the whole procedure.
#   REGISTRY=registry.example.com/team   where gpunode-operator and gpunode-agent will be; the manifest and the chart name them there
#   HOMEPAGE=https://... DOWNLOADS=https://...   for the manifest of the kubectl plugin; without them it keeps these words
set -euo pipefail
cd "$(dirname "$0")/.."
. release/tools.sh

version=${1:-}
fail() { echo "release: $*" >&2; exit 1; }
[[ $version =~ ^(0|[1-9][0-9]*)(\.(0|[1-9][0-9]*)){2}(-[0-9A-Za-z.-]+)?$ ]] || fail "'$version' is no version; for example: make release VERSION=0.2.0"
[ -z "$(git status --porcelain)" ] || fail "the tree has changes; commit or remove them, so that others can build the same"
[ "$(release/version.sh)" = "$version" ] || fail "the tree has version $(release/version.sh); run: make version VERSION=$version, and commit the result"
case $(release/notes.sh "$version") in
  "" | "Nothing yet.") fail "CHANGELOG.md says nothing of this version below '## $version'; make version VERSION=$version cuts it" ;;
esac
need_release_tools

SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH
releases=$PWD/target/releases
rm -rf "$releases/$version" "$releases/first" "$releases/second"
for turn in first second; do
  echo "== $turn build"
  mkdir -p "$releases/$turn/source"
  git archive HEAD | tar -x -C "$releases/$turn/source"
  (cd "$releases/$turn/source" && release/artifacts.sh "$version" "$releases/$turn/target" "$releases/$turn/files")
done
diff -r "$releases/first/files" "$releases/second/files" \
  || fail "two builds of the same commit differ, see above; they are in $releases/first and $releases/second"
mv "$releases/first/files" "$releases/$version"
rm -rf "$releases/first" "$releases/second"
echo "== both builds are equal: target/releases/$version"
cat "$releases/$version/SHA256SUMS"
