#!/bin/sh
# The virtual machine's first process: makes a soft-RoCE device, runs the checks,
# switches off. What the host reads is the console.
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/tmp TMPDIR=/tmp
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
mkdir -p /tmp /run /dev/shm
mount -t tmpfs tmpfs /tmp
mount -t tmpfs tmpfs /run
mount -t tmpfs tmpfs /dev/shm
echo 0 >/proc/sys/kernel/printk

# rdma_rxe wants crc32 from the kernel's crypto, and an Ethernet interface with an address.
for module in crc32_generic veth ib_uverbs rdma_rxe; do
    modprobe "$module" || echo "GUEST modprobe $module failed"
done
# Not every kernel has it.
modprobe ublk_drv 2>/dev/null
ip-link link set lo up
ip-link link add v0 type veth peer name v1
ip-link address add 10.9.0.1/24 dev v0
ip-link link set v0 up
ip-link link set v1 up
rdma link add rxe0 type rxe netdev v0
# Its address enters the device's table a moment later.
tries=0
until grep -q 0a09:0001 /sys/class/infiniband/rxe0/ports/1/gids/* 2>/dev/null || [ $tries -ge 50 ]; do
    tries=$((tries + 1))
    sleep 0.1
done
echo "GUEST up: $(uname -r), $(cut -d' ' -f1 /proc/uptime) s"
sh /checks.sh
echo "GUEST checks ended: $?"
poweroff -f
