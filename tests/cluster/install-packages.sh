#!/bin/sh
# Installs the missing Debian packages that the local cluster needs.
set -eu

packages="runc containernetworking-plugins nftables conntrack iptables busybox-static iproute2 util-linux gcc libc6-dev umoci jq"

missing=
for package in $packages; do
  if ! dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'ok installed'; then
    missing="$missing $package"
  fi
done
if [ -z "$missing" ]; then
  echo "install-packages: nothing is missing"
  exit 0
fi
if [ "$(id -u)" != 0 ]; then
  echo "install-packages: needs root to install:$missing" >&2
  exit 1
fi
echo "install-packages: installing$missing"

install() {
  # shellcheck disable=SC2086 # one argument per package
  DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends $missing
}
# A fresh machine has empty or old package lists: read them only if needed.
if ! install; then
  echo "install-packages: reading the package lists again"
  apt-get update -qq
  install
fi
