#!/usr/bin/env bash
# Builds the files of a release from the tree that it lies in, once:
#   artifacts.sh VERSION TARGET FILES
# TARGET is cargo's target folder, FILES gets what is published. With PROGRAMS=folder it packs the programs there and builds none; these are
# for this machine's platform alone.
set -euo pipefail
cd "$(dirname "$0")/.."
version=$1 target=$2 files=$3
: "${SOURCE_DATE_EPOCH:?}"
[ -z "${PROGRAMS:-}" ] || [ -z "${CROSS:-}" ] || { echo "release: set PROGRAMS or CROSS: programs of one folder are for one platform" >&2; exit 1; }
registry=${REGISTRY:-gpunode.dev}
mkdir -p "$target" "$files"
target=$(realpath "$target") files=$(realpath "$files")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
say() { printf '%5ds  %s\n' "$SECONDS" "$*"; }

# Rust's name of each platform for which people may want a program. Container images are for Linux.
platforms="linux/amd64=x86_64-unknown-linux-gnu linux/arm64=aarch64-unknown-linux-gnu darwin/arm64=aarch64-apple-darwin
darwin/amd64=x86_64-apple-darwin"
libraries=$(rustc --print sysroot)/lib/rustlib
host=$(rustc -vV | sed -n 's/^host: //p')

# Programs do not name the folders of the machine that built them. The separator lets a folder have a space in its name.
printf -v CARGO_ENCODED_RUSTFLAGS '%s\x1f%s\x1f%s' "--remap-path-prefix=$PWD=/gpunode" "--remap-path-prefix=$target=/target" \
  "--remap-path-prefix=${CARGO_HOME:-$HOME/.cargo}=/cargo"
export CARGO_ENCODED_RUSTFLAGS
export CARGO_INCREMENTAL=0

# Packs files so that equal files make equal archives.
pack() { # ARCHIVE.tar.gz FOLDER [NAME]: all of FOLDER, or NAME in it
  tar --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner --mode=u=rwX,go=rX -C "$2" -cf - "${3:-.}" \
    | gzip -n9 > "$1"
}

# Writes the chart as users get it: its images are those of the release, by digest, in its registry.
chart() { # ARCHIVE.tgz
  local folder=$work/chart values=$work/chart/gpunode/values.yaml image place
  mkdir "$folder"
  cp -r manifests/helm/gpunode "$folder/gpunode"
  for image in agent operator; do
    place="    repository: $registry/gpunode-$image"
    sed -i -e "s|^    repository: gpunode\.dev/$image\$|$place|" \
      -e "/^    repository: .*$image\$/,/^    digest:/ s|^    digest: .*|    digest: $(cat "$files/gpunode-$image.digest")|" "$values"
    sed -n "\|^$place\$|,/^    digest:/p" "$values" | grep -qxF "    digest: $(cat "$files/gpunode-$image.digest")" \
      || { echo "release: values.yaml of the chart has no image gpunode.dev/$image to replace" >&2; exit 1; }
  done
  # Helm looks for gpunode/Chart.yaml, and finds nothing in ./gpunode.
  pack "$1" "$folder" gpunode
  tar -tzf "$1" > "$work/chart.files"
  grep -qx gpunode/Chart.yaml "$work/chart.files" || { echo "release: $1 has no gpunode/Chart.yaml" >&2; exit 1; }
  [ -z "${HELM:-}" ] || "$HELM" show chart "$1" > /dev/null
}

images=()
left_out=()
for entry in $platforms; do
  platform=${entry%=*} triple=${entry#*=}
  suffix=${platform/\//-}
  if [ ! -d "$libraries/$triple" ] || { [ "$triple" != "$host" ] && [ -z "${CROSS:-}" ]; }; then
    left_out+=("$platform")
    continue
  fi
  programs=${PROGRAMS:-$target/$triple/release}
  if [ -z "${PROGRAMS:-}" ]; then
    say "$platform: programs"
    packages=(-p kubectl-gpunode)
    [ "${platform%/*}" != linux ] || packages+=(-p gpunode-agent -p gpunode-operator)
    cargo auditable build --quiet --release --locked --target "$triple" --target-dir "$target" "${packages[@]}"
    [ "${platform%/*}" != linux ] || GPUNODE_CARGO=auditable node-agent/hook/build.sh "$target" --release --target "$triple"
  fi
  if [ "${platform%/*}" = linux ]; then
    say "$platform: images"
    VERSION=$version manifests/images/build.sh "$programs" "$work/$suffix"
    images+=("$suffix")
    for image in agent operator; do
      release/sbom.sh "$image" "$version" "$programs" "$work/$suffix/gpunode-$image.tar" > "$files/gpunode-$image-$suffix.cdx.json"
    done
  fi
  plugin=$work/plugin-$suffix
  install -D -m 755 "$programs/kubectl-gpunode" "$plugin/kubectl-gpunode"
  install -m 644 LICENSE "$plugin/LICENSE"
  pack "$files/kubectl-gpunode-$suffix.tar.gz" "$plugin"
  auditable2cdx "$programs/kubectl-gpunode" | release/normalise-sbom.sh kubectl-gpunode "$version" > "$files/kubectl-gpunode-$suffix.cdx.json"
done
[ ${#images[@]} -gt 0 ] || { echo "release: Rust has no library for any of the platforms here" >&2; exit 1; }

say "one index for each image"
(cd release/oci && CGO_ENABLED=0 go build -trimpath -buildvcs=false -o "$work/oci" .)
for image in agent operator; do
  "$work/oci" index "$files/gpunode-$image.tar" "gpunode.dev/$image:$version" "${images[@]/#/$work/}" > "$files/gpunode-$image.digest"
done

say "manifests, chart, notes"
VERSION=$version REGISTRY=$registry release/manifest.sh "$files" > "$files/gpunode.yaml"
chart "$files/gpunode-$version.tgz"
manifests/krew/fill.sh "${HOMEPAGE:-HOMEPAGE}" "${DOWNLOADS:-DOWNLOADS}" "$files" > "$files/gpunode-krew.yaml"
release/notes.sh "$version" > "$files/RELEASE-NOTES.md"
: > "$files/left-out-platforms.txt"
[ ${#left_out[@]} = 0 ] || printf '%s\n' "${left_out[@]}" > "$files/left-out-platforms.txt"
[ ${#left_out[@]} = 0 ] || say "left out, for lack of Rust's library or a linker here: ${left_out[*]}"
(cd "$files" && LC_ALL=C sha256sum -- * > "$work/SHA256SUMS" && mv "$work/SHA256SUMS" SHA256SUMS)
