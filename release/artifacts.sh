#!/usr/bin/env bash
# Builds the files of a release from the tree that it lies in, once:
#   artifacts.sh VERSION TARGET FILES
# TARGET is cargo's target folder, FILES gets what is published. With PROGRAMS=folder it packs the programs there and builds none.
set -euo pipefail
cd "$(dirname "$0")/.."
version=$1 target=$2 files=$3
: "${SOURCE_DATE_EPOCH:?}"
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

# Programs do not name the folders of the machine that built them.
export RUSTFLAGS="--remap-path-prefix=$PWD=/gpunode --remap-path-prefix=$target=/target --remap-path-prefix=${CARGO_HOME:-$HOME/.cargo}=/cargo"
export CARGO_INCREMENTAL=0

# Packs a program so that equal programs make equal archives.
pack() { # ARCHIVE.tar.gz FOLDER
  tar --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner --mode=u=rwX,go=rX -C "$2" -cf - . | gzip -n9 > "$1"
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
VERSION=$version REGISTRY=${REGISTRY:-gpunode.dev} release/manifest.sh "$files" > "$files/gpunode.yaml"
if [ -d manifests/helm/gpunode ]; then
  pack "$files/gpunode-$version.tgz" manifests/helm
fi
manifests/krew/fill.sh "${HOMEPAGE:-HOMEPAGE}" "${DOWNLOADS:-DOWNLOADS}" "$files" > "$files/gpunode-krew.yaml"
release/notes.sh "$version" > "$files/RELEASE-NOTES.md"
printf '%s\n' "${left_out[@]}" > "$files/left-out-platforms.txt"
[ ${#left_out[@]} = 0 ] || say "left out, for lack of Rust's library or a linker here: ${left_out[*]}"
(cd "$files" && LC_ALL=C sha256sum -- * > "$work/SHA256SUMS" && mv "$work/SHA256SUMS" SHA256SUMS)
