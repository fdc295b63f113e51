#!/usr/bin/env bash
# Writes the two images of gpunode as OCI archives, without a registry and without a container engine:
#   manifests/images/build.sh PROGRAMS OUTPUT
# PROGRAMS is the folder with the built gpunode-agent, gpunode-hook, gpunode-operator and kubectl-gpunode, OUTPUT gets gpunode-agent.tar
# and gpunode-operator.tar. Each image is FROM scratch: the programs and the shared libraries that they need, no shell.
set -euo pipefail
# Debian has ldconfig where only root looks.
PATH=$PATH:/usr/sbin:/sbin

for program in umoci jq; do
  command -v "$program" > /dev/null || { echo "manifests/images/build.sh needs $program: apt-get install $program" >&2; exit 1; }
done
programs=$1
output=$2
version=${VERSION:-0.1.0}
# Equal programs make equal images: every time in them is that of the release's commit.
epoch=${SOURCE_DATE_EPOCH:-0}
created=$(date -u -d "@$epoch" +%Y-%m-%dT%H:%M:%SZ)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$output"

# Parts of glibc that the driver library needs, which the agent loads at run time.
driver_libraries=(libc.so.6 libm.so.6 libdl.so.2 libpthread.so.0 librt.so.1)

copy_program() { # PROGRAM ROOT: with its shared libraries
  local library
  # Cargo does not strip programs whose package has a profile of its own.
  install -D -m 755 --strip "$programs/$1" "$2/$1"
  while read -r library; do copy_library "$library" "$2"; done < <(ldd "$programs/$1" | grep -o '/[^ ]*')
}

copy_library() { # PATH ROOT: copies the file that a link names to the path at which the loader looks
  install -D -m 755 "$(readlink -f "$1")" "$2$1"
}

build() { # NAME USER
  local name=$1 user=$2 root=$work/$1/root layout=$work/$1/layout
  mkdir -p "$root"
  copy_program "gpunode-$name" "$root"
  # For the hooks of the Helm chart.
  [ "$name" != operator ] || copy_program kubectl-gpunode "$root"
  if [ "$name" = agent ]; then
    # The agent copies it to hosts, whose C library may be another or none.
    if ldd "$programs/gpunode-hook" 2> /dev/null | grep '/'; then
      echo "$programs/gpunode-hook needs shared libraries: build it with node-agent/hook/build.sh" >&2
      exit 1
    fi
    install -D -m 755 "$programs/gpunode-hook" "$root/gpunode-hook"
    for library in "${driver_libraries[@]}"; do
      copy_library "$(ldconfig -p | awk -v l="$library" '$1 == l && /x86-64|AArch64/ {print $NF; exit}')" "$root"
    done
  fi
  # Mount points: a running image has a read-only root file system.
  mkdir -p "$root/host" "$root/var/lib/kubelet/device-plugins" "$root/var/lib/gpunode" "$root/proc" "$root/sys" "$root/dev" "$root/etc" "$root/tmp"
  if [ "$name" = agent ]; then
    # NVML looks here for the socket of nvidia-persistenced; the agent lets the other link lead to it.
    mkdir -p "$root/var/run"
    ln -s /var/lib/gpunode/nvidia-persistenced "$root/var/run/nvidia-persistenced"
  fi
  find "$root" -exec touch -h -d "@$epoch" {} +

  umoci init --layout "$layout"
  umoci new --image "$layout:$version"
  umoci insert --image "$layout:$version" --history.created "$created" "$root" /
  # Memory that one thread gives back is of use to all; glibc would keep some for each.
  umoci config --image "$layout:$version" --config.entrypoint "/gpunode-$name" --config.user "$user" --config.env MALLOC_ARENA_MAX=1 \
    --created "$created" --no-history
  umoci gc --layout "$layout"
  # containerd reads the name of an image from this annotation.
  jq --arg image "gpunode.dev/$name:$version" \
    '.manifests[0].annotations += {"io.containerd.image.name": $image}' "$layout/index.json" > "$layout/index.json.new"
  mv "$layout/index.json.new" "$layout/index.json"
  tar --sort=name --mtime="@$epoch" --owner=0 --group=0 -C "$layout" -cf "$work/$name.tar" .
  mv "$work/$name.tar" "$output/gpunode-$name.tar"
  printf '%-12s %-32s %6.1f MB  %s\n' image "gpunode.dev/$name:$version" \
    "$(stat -c %s "$output/gpunode-$name.tar" | awk '{print $1/1e6}')" "$output/gpunode-$name.tar"
}

build agent 0:0
build operator 65532:65532
