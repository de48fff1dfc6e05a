# A virtual machine whose RAM the host's kernel swaps to a node (docs/vm.md): QEMU in this machine,
# in a memory group that is smaller than its guest's memory. Sourced by checks.sh. The guest is the
# kernel of lab/guest/kernel.sh, and the program pages is its first process.

machine() {
    on || return 1
    # Emulation in an emulated machine: its translated code takes memory too. The group gets its limit when
    # the guest's kernel begins.
    within 160 qemu-system-x86_64 -accel tcg,tb-size=16 -m 96 -smp 1 -M pc -nodefaults -display none -serial stdio -monitor none \
        -no-reboot -kernel /machine/kernel -initrd /machine/image \
        -append 'console=ttyS0 panic=-1 nokaslr no_timer_check rdinit=/pages -- 40 300' </dev/null >/tmp/machine.log 2>&1 &
    machine=$!
    # What its guest says, as far as it came: it may panic.
    tail -f /tmp/machine.log 2>/dev/null | tr -d '\r' | while read -r line; do echo "  machine: $line"; done &
    await 3000 grep -q 'Command line' /tmp/machine.log || { kill $machine; return 1; }
    echo "  its guest begins at $(cut -d' ' -f1 /proc/uptime) s"
    echo 40M >/cg/small/memory.max
    ended $machine "the virtual machine"
    status=$?
    tr -d '\r' </tmp/machine.log | grep 'words wrong' || { echo "  QEMU ended with $status"; tail -5 /tmp/machine.log; return 1; }
    awk '{ print "  " $3 / 2048, "MiB in,", $7 / 2048, "MiB out" }' /sys/block/nbd0/stat
    # More than the group has room for.
    awk '{ exit $3 < 2048 || $7 < 16 * 2048 }' /sys/block/nbd0/stat || return 1
    tr -d '\r' </tmp/machine.log | grep -q ': 0 words wrong' && off
}
