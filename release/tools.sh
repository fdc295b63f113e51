# Sourced: the programs that a release needs, by version.
# shellcheck shell=bash

cargo_auditable_version=0.7.7
auditable2cdx_version=0.1.0

# Installs the ones that cargo builds, and names the others that are missing. Exports KUBECTL, and HELM where there is one: the copies of the
# tree that are built have no target folder.
need_release_tools() {
  local missing=() program
  for program in rustup umoci jq go git tar gzip ldd dpkg-query; do
    command -v "$program" > /dev/null || missing+=("$program")
  done
  [ ${#missing[@]} = 0 ] || { echo "release: install ${missing[*]}" >&2; exit 1; }
  KUBECTL=$(found kubectl)
  HELM=$(found helm)
  [ -n "$KUBECTL" ] || { echo "release: install kubectl, or run make kubernetes" >&2; exit 1; }
  export KUBECTL HELM
  has_version cargo-auditable "$cargo_auditable_version" || cargo install --locked --debug --version "$cargo_auditable_version" cargo-auditable
  has_version auditable2cdx "$auditable2cdx_version" || cargo install --locked --debug --version "$auditable2cdx_version" auditable2cdx
}

# Prints the path of a program, of the PATH or of `make kubernetes`; nothing without it.
found() { # PROGRAM
  command -v "$1" || { [ ! -x "$PWD/target/cluster/bin/$1" ] || echo "$PWD/target/cluster/bin/$1"; }
}

has_version() { # CRATE VERSION
  cargo install --list | grep -x "$1 v$2:" > /dev/null
}
