# Creates the file system of a sandbox, then holds its namespaces as its process 1.
#
# Runs in new mount, network, PID, UTS and IPC namespaces with:
#   ROOT HOSTNAME TUNABLES NVIDIA_DEVICES [MODE SOURCE TARGET]...
# ROOT is the folder that becomes `/`; the machine's programs are visible read-only, and nothing of the machine is writable.
# NVIDIA_DEVICES is the number of /dev/nvidiaN nodes, or `none` for no NVIDIA device. Those of MIG come from gpunode-kernel-files.
set -eu
root=$1 hostname=$2 tunables=$3 nvidia_devices=$4
shift 4

# pivot_root wants a mount point.
mount --bind "$root" "$root"
cd "$root"
mkdir -p usr etc/alternatives proc sys dev run tmp root opt var/lib var/log var/tmp

read_only() {
  mount --bind "$1" "$2"
  mount -o remount,bind,ro "$2"
}

read_only /usr usr
[ ! -d /etc/alternatives ] || read_only /etc/alternatives etc/alternatives
for dir in bin sbin lib lib32 lib64 libx32; do
  if [ -L /$dir ]; then
    ln -sfn "$(readlink /$dir)" $dir
  elif [ -d /$dir ]; then
    mkdir -p $dir
    read_only /$dir $dir
  fi
done
ln -sfn ../run var/run
ln -sfn ../run/lock var/lock

mount -t proc proc proc
echo "$hostname" >proc/sys/kernel/hostname
# Connections to a sandbox that has ended would keep the network namespace for minutes.
echo 1 >proc/sys/net/ipv4/tcp_orphan_retries
# The kubelet would set these for the whole machine: it gets files to write to instead.
for area in kernel vm fs; do
  mount --bind proc/sys/$area proc/sys/$area
  mount -o remount,bind,ro proc/sys/$area
done
for name in vm/overcommit_memory vm/panic_on_oom kernel/panic kernel/panic_on_oops \
  kernel/keys/root_maxkeys kernel/keys/root_maxbytes; do
  [ -e proc/sys/$name ] || continue
  copy=$tunables/$(echo $name | tr / .)
  cat proc/sys/$name >"$copy"
  mount --bind "$copy" proc/sys/$name
done
# Each start of a sandbox is the boot of a machine.
cat proc/sys/kernel/random/uuid >"$tunables/boot_id"
mount --bind "$tunables/boot_id" proc/sys/kernel/random/boot_id

# A sysfs of its own shows the namespace's network devices, but no control groups.
mount -t sysfs sysfs sys
mount --rbind /sys/fs/cgroup sys/fs/cgroup

mount -t tmpfs -o mode=755,size=1m dev dev
mkdir dev/pts dev/shm dev/mqueue
mount -t devpts -o newinstance,ptmxmode=0666,mode=620,gid=5 devpts dev/pts
mount -t tmpfs -o mode=1777 shm dev/shm
mount -t mqueue mqueue dev/mqueue
ln -s pts/ptmx dev/ptmx
ln -s /proc/self/fd dev/fd
ln -s fd/0 dev/stdin
ln -s fd/1 dev/stdout
ln -s fd/2 dev/stderr
mknod -m 666 dev/null c 1 3
mknod -m 666 dev/zero c 1 5
mknod -m 666 dev/full c 1 7
mknod -m 666 dev/random c 1 8
mknod -m 666 dev/urandom c 1 9
mknod -m 644 dev/kmsg c 1 11
mknod -m 666 dev/tty c 5 0
if [ "$nvidia_devices" != none ]; then
  # The number of NVIDIA's driver, and two that it gets when it is loaded. The machine has no such driver: an open fails with
  # ENXIO, and with EPERM where a control group does not allow the device.
  mknod -m 666 dev/nvidiactl c 195 255
  mknod -m 666 dev/nvidia-modeset c 195 254
  mknod -m 666 dev/nvidia-uvm c 400 0
  mknod -m 666 dev/nvidia-uvm-tools c 400 1
  number=0
  while [ $number -lt "$nvidia_devices" ]; do
    mknod -m 666 dev/nvidia$number c 195 $number
    number=$((number + 1))
  done
fi

while [ $# -gt 0 ]; do
  mode=$1 source=$2 target=$root$3
  shift 3
  [ -e "$target" ] || if [ -d "$source" ]; then mkdir -p "$target"; else : >"$target"; fi
  case $mode in
    ro) read_only "$source" "$target" ;;
    rw) mount --bind "$source" "$target" ;;
  esac
done

ip link set lo up

mkdir -p .old
pivot_root . .old
cd /
umount -l /.old
rmdir /.old
# Later mounts reach the containers that ask for propagation, and theirs reach the sandbox.
mount --make-rshared /
exec /opt/cluster/bin/pause
