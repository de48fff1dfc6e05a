#!/usr/bin/env bash
# Builds a small Linux for guests from Debian's package of its source: the least that swaps to a
# node (kernel.config), with allocations that fail on purpose, which Debian's own kernels cannot.
# Prints the image's path; a second time it is there. It is not compressed: QEMU starts it by its PVH note.
#
#   lab/guest/kernel.sh [PACKAGE]      linux-source-6.1, if it is not said
#
# Some minutes of two CPUs that do nothing else, at nice 10. Ends with 77, naming the reason, where something lacks.
set -euo pipefail
cd "$(dirname "$0")/../.."
. lab/guest/lib.sh
need make:make gcc:gcc flex:flex bison:bison bc:bc xz:xz-utils apt-get:apt dpkg-deb:dpkg
# A header, not a tool; the kernel checks its own code with it.
[ -e /usr/include/libelf.h ] || need libelf.h:libelf-dev
package=${1:-linux-source-6.1}
target=$(cargo metadata --no-deps --format-version 1 | sed 's/.*"target_directory":"\([^"]*\)".*/\1/')
cache=$target/guest-own
image=$cache/$package.$(sha256sum <lab/guest/kernel.config | cut -c1-16)
if [ ! -e "$image" ]; then
    unpack "$cache" "$package" >&2 || true
    source=$cache/$package
    rm -rf "$source"
    mkdir -p "$source"
    nice -n 10 tar -C "$source" --strip-components=1 -xf "$cache/tree/usr/src/$package.tar.xz"
    # It is large: for another configuration it is downloaded again.
    rm -rf "$cache/tree" "$cache/debs" "$cache/packages"
    # Linux offers this filter on x86-64 from 6.2 on. 6.1 has the same code, and an unwinder that it can rely on (ORC).
    sed -i '/^config FAULT_INJECTION_STACKTRACE_FILTER/,/^config /{/depends on !X86_64/d}' "$source/lib/Kconfig.debug"
    {
        nice -n 10 make -C "$source" tinyconfig &&
            (cd "$source" && scripts/kconfig/merge_config.sh -m .config "$OLDPWD/lab/guest/kernel.config") &&
            nice -n 10 make -C "$source" olddefconfig &&
            nice -n 10 make -C "$source" -j"$(nproc)" vmlinux
    } >"$cache/log" 2>&1 || { tail -20 "$cache/log" >&2; skip "the kernel cannot be built"; }
    for wanted in BLK_DEV_NBD SWAP MEMCG PVH VIRTIO_NET FAILSLAB FAIL_PAGE_ALLOC \
        FAULT_INJECTION_STACKTRACE_FILTER UNWINDER_ORC KEYBOARD_ATKBD; do
        grep -q "^CONFIG_$wanted=y" "$source/.config" || skip "the kernel has no CONFIG_$wanted"
    done
    strip -o "$image.new" "$source/vmlinux"
    mv "$image.new" "$image"
    rm -rf "$source"
fi
echo "$image"
