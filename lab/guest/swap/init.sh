#!/bin/sh
# The virtual machine's first process: modules, network, memory groups; then the checks.
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/tmp TMPDIR=/tmp
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
hostname guest
mkdir -p /tmp /run /cg
mount -t tmpfs -o size=8M tmpfs /tmp
mount -t tmpfs -o size=8M tmpfs /run
mount -t cgroup2 cgroup2 /cg
echo +memory >/cg/cgroup.subtree_control
# Emergencies alone. With 0 a panic would say nothing.
echo 1 >/proc/sys/kernel/printk
# What the other side asks of the kernel by a keyboard, where there is one, when nothing is said (stands_still in lab/guest/lib.sh).
echo 1 >/proc/sys/kernel/sysrq
! grep -q sysrq /proc/bus/input/devices 2>/dev/null || echo "GUEST obeys keys"
for module in virtio_pci virtio_net; do
    [ ! -d /lib/modules ] || modprobe "$module" || echo "GUEST modprobe $module failed"
done
ifconfig lo 127.0.0.1 up
ifconfig eth0 10.0.2.15 netmask 255.255.255.0 up
echo "GUEST up: $(uname -r), $(cut -d' ' -f1 /proc/uptime) s, $(awk '/MemAvailable/ { print int($2 / 1024) }' /proc/meminfo) MiB free"
sh /checks.sh
echo "GUEST checks ended: $?"
poweroff -f
