#!/bin/sh
# Builds the programs of the local cluster into target/cluster/bin (or the folder given as the first argument). With OLDEST=1 Kubernetes
# is the oldest version that gpunode supports, which v1.34.mod names, instead of the newest one.
#
# A program is built again only when what it is made of has changed: the go.mod, go.sum and sources of its module, the
# compiler, or this script.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
bin=${1:-$here/../../../target/cluster/bin}
mkdir -p "$bin"
bin=$(cd "$bin" && pwd)

# Both versions have the same source beside them; what differs is the file of modules.
kubernetes_mod=go.mod
[ -z "${OLDEST:-}" ] || kubernetes_mod=v1.34.mod
kubernetes_version=$(sed -n 's/^\tk8s.io\/kubernetes \(v[0-9.]*\)$/\1/p' "$here/kubernetes/$kubernetes_mod")
started=$(date +%s)

say() { printf '%4ds  %s\n' "$(($(date +%s) - started))" "$*"; }

need() {
  if ! command -v "$1" >/dev/null; then
    echo "build: $1 is missing; install $2" >&2
    exit 1
  fi
}
need go "Go 1.26"
need gcc "the packages of tests/cluster/install-packages.sh"
need busybox "the packages of tests/cluster/install-packages.sh"

# Two builds at once would write the same files.
exec 9>"$bin/.lock"
flock 9

# is_current STAMP FILE...: was STAMP left by a build from exactly these files? Sets $key for `done_with`.
is_current() {
  stamp=$bin/.built-$1
  shift
  key=$(cat "$@" "$here/build.sh" | sha256sum | cut -d' ' -f1)-$(go env GOVERSION)
  [ "$stamp" != "$bin/.built-kubernetes" ] || key=$key-$kubernetes_version
  [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$key" ]
}
done_with() { echo "$key" >"$stamp.new" && mv "$stamp.new" "$stamp"; }

# Runs a command and says every 15 seconds that it is still at it.
with_progress() {
  what=$1
  shift
  say "$what: building"
  "$@" &
  pid=$!
  trap 'kill $pid 2>/dev/null || true' INT TERM
  (
    n=0
    while kill -0 $pid 2>/dev/null; do
      sleep 1
      n=$((n + 1))
      [ $((n % 15)) != 0 ] || say "$what: still building"
    done
  ) &
  ticker=$!
  status=0
  wait $pid || status=$?
  wait $ticker || true
  trap - INT TERM
  if [ $status != 0 ]; then
    echo "build: $what failed with status $status, see above" >&2
    exit 1
  fi
  say "$what: done"
}

# The outputs appear under their names only when they are whole.
go_build() {
  module=$1
  output=$2
  shift 2
  (cd "$here/$module" && CGO_ENABLED=${cgo:-0} go build -trimpath -buildvcs=false -o "$output.new" "$@") && mv "$output.new" "$output"
}

build_etcd() { go_build etcd "$bin/etcd" -ldflags '-s -w' go.etcd.io/etcd/server/v3; }

build_containerd() {
  for program in containerd containerd-shim-runc-v2 ctr; do
    go_build containerd "$bin/$program" -ldflags '-s -w' -tags no_btrfs "github.com/containerd/containerd/v2/cmd/$program" || return
  done
}

build_kubernetes() {
  minor=${kubernetes_version#v1.}
  flags="-s -w"
  # Without a version the server calls itself v0.0.0 and the version checks of clients fail.
  for package in k8s.io/component-base/version k8s.io/client-go/pkg/version; do
    flags="$flags -X $package.gitVersion=$kubernetes_version -X $package.gitMajor=1 -X $package.gitMinor=${minor%%.*}"
  done
  go_build kubernetes "$bin/kubernetes" -modfile "$kubernetes_mod" -ldflags "$flags" . || return
  for name in kube-apiserver kube-controller-manager kube-scheduler kubelet kube-proxy; do
    ln -sfn kubernetes "$bin/$name"
  done
  go_build kubernetes "$bin/kubectl" -modfile "$kubernetes_mod" -ldflags "$flags" ./kubectl
}

build_helm() { go_build helm "$bin/helm" -ldflags '-s -w' helm.sh/helm/v4/cmd/helm; }

# NVIDIA's container runtime, its hook program, and its generator of CDI files. They load NVML when they run, so they are C programs.
build_toolkit() {
  (
    cgo=1
    # NVML's header marks old functions that the binding still wraps.
    export CGO_CFLAGS="-O2 -g -Wno-deprecated-declarations"
    toolkit=github.com/NVIDIA/nvidia-container-toolkit
    version=$(cd "$here/../../cdi/toolkit" && go list -m -f '{{.Version}}' $toolkit) || exit
    flags="-s -w -extldflags=-Wl,-z,lazy -X $toolkit/internal/info.version=${version#v}"
    for program in nvidia-container-runtime nvidia-cdi-hook; do
      go_build ../../cdi/toolkit "$bin/$program" -ldflags "$flags" $toolkit/cmd/$program || exit
    done
    go_build ../../cdi/toolkit "$bin/nvcdi" -ldflags "$flags" .
  )
}

build_pause() {
  gcc -Os -static -o "$bin/pause.new" "$here/pause/pause.c"
  mv "$bin/pause.new" "$bin/pause"
}

# Into images, where no shared library is: it has to be the static one.
build_busybox() {
  cp "$(command -v busybox)" "$bin/busybox.new"
  if ldd "$bin/busybox.new" >/dev/null 2>&1; then
    echo "build: $(command -v busybox) is not static; install the Debian package busybox-static" >&2
    exit 1
  fi
  mv "$bin/busybox.new" "$bin/busybox"
}

built=
for module in etcd containerd kubernetes helm toolkit; do
  folder=$here/$module
  [ $module != toolkit ] || folder=$here/../../cdi/toolkit
  sources=$(find "$folder" -name 'go.*' -o -name '*.mod' -o -name '*.sum' -o -name '*.go' | LC_ALL=C sort)
  # shellcheck disable=SC2086 # one argument per file
  if ! is_current "$module" $sources; then
    with_progress "$module" "build_$module"
    done_with
    built="$built $module"
  fi
done
if ! is_current pause "$here/pause/pause.c"; then
  build_pause
  done_with
  built="$built pause"
fi
if ! is_current busybox "$(command -v busybox)"; then
  build_busybox
  done_with
  built="$built busybox"
fi
if [ -z "$built" ]; then
  say "programs of the cluster: nothing to build"
else
  say "programs of the cluster: built$built"
fi
