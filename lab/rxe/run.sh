#!/usr/bin/env bash
# Real verbs without RDMA hardware: boots a Debian kernel with soft-RoCE in QEMU,
# runs lab/rxe/checks.sh there, and ends as it ended. (Some checks are of that
# kernel, which is older than most, and have nothing to do with RDMA.)
#
#   lab/rxe/run.sh [check...]      all checks, or those named
#
# Nothing is installed and no privilege is needed, but for a first time without QEMU
# (CI installs it). Debian packages of the guest are downloaded once and kept in the
# target directory. Ends with 77, naming the reason, where the machine lacks what it
# takes.
set -euo pipefail
cd "$(dirname "$0")/../.."
begun=$SECONDS

skip() {
    echo "skipped: $1" >&2
    exit 77
}

lacking=()
for tool in qemu-system-x86_64:qemu-system-x86 busybox:busybox-static cpio:cpio depmod:kmod ip:iproute2 rdma:iproute2 \
    apt-get:apt dpkg-deb:dpkg; do
    PATH=$PATH:/usr/sbin:/sbin command -v "${tool%%:*}" >/dev/null || lacking+=("${tool##*:}")
done
if [ ${#lacking[@]} -gt 0 ]; then
    if [ -n "${CI:-}" ] && command -v apt-get >/dev/null; then
        as_root=()
        [ "$(id -u)" = 0 ] || as_root=(sudo -n)
        "${as_root[@]}" apt-get update -qq >&2 &&
            DEBIAN_FRONTEND=noninteractive "${as_root[@]}" apt-get install -y -qq --no-install-recommends "${lacking[@]}" >&2 ||
            skip "${lacking[*]} cannot be installed"
    else
        skip "needs the packages ${lacking[*]}"
    fi
fi
PATH=$PATH:/usr/sbin:/sbin
[ "$(uname -m)" = x86_64 ] || skip "the guest is x86-64"

target=$(cargo metadata --no-deps --format-version 1 | sed 's/.*"target_directory":"\([^"]*\)".*/\1/')
profile=${FARMEM_RXE_PROFILE:-debug}
programs=(farmem farmem-rxe)
# Only the check that measures needs the lab's binary.
case " ${*:-pages} " in *" pages "*) programs+=(farmem-lab) ;; esac
cargo build --locked --quiet -p farmem-rxe -p farmem-cli -p farmem-lab $([ "$profile" = debug ] || echo "--$profile")

# The guest's own packages: a kernel with its modules, and rdma-core's libraries.
cache=$target/rxe
mkdir -p "$cache"
kernel=$(apt-cache depends linux-image-amd64 2>/dev/null | sed -n 's/.*Depends: \(linux-image-[0-9.]*-[0-9]*-amd64\)$/\1/p' | head -1)
[ -n "$kernel" ] || skip "apt knows no linux-image-amd64: not a Debian machine"
packages=("$kernel" libibverbs1 ibverbs-providers libnl-3-200 libnl-route-3-200)
if [ "$(cat "$cache/packages" 2>/dev/null)" != "${packages[*]}" ]; then
    rm -rf "$cache"
    mkdir -p "$cache/debs" "$cache/tree"
    (cd "$cache/debs" && apt-get download -qq "${packages[@]}") >"$cache/log" 2>&1 ||
        { tail -3 "$cache/log" >&2; skip "the guest's packages cannot be downloaded"; }
    for package in "$cache"/debs/*.deb; do dpkg-deb --extract "$package" "$cache/tree"; done
    echo "${packages[*]}" >"$cache/packages"
    rm -f "$cache/base.cpio"
fi
release=${kernel#linux-image-}

# Copies files into a tree, each with the libraries it needs, to the places they have here.
put() {
    local root=$1 file library
    shift
    for file in "$@"; do
        install -D "$file" "$root$(realpath -s "$file")"
        # What ldd prints for a file that is static is of no interest.
        for library in $(LD_LIBRARY_PATH=$cache/tree/usr/lib/x86_64-linux-gnu ldd "$file" 2>/dev/null |
            sed -n 's/.*=> \(\/[^ ]*\).*/\1/p; s/^\t\(\/[^ ]*ld-[^ ]*\).*/\1/p'); do
            case $library in "$cache"/*) continue ;; esac
            [ -e "$root$library" ] || install -D "$library" "$root$library"
        done
    done
}

pack() { (cd "$1" && find . -print0 | cpio --null -o -H newc --quiet); }

# The script itself is part of what the base is made by.
if [ ! -e "$cache/base.cpio" ] || [ lab/rxe/run.sh -nt "$cache/base.cpio" ]; then
    root=$cache/root
    rm -rf "$root"
    mkdir -p "$root"/{bin,dev,proc,sys,tmp,run,etc,usr/bin,usr/lib/x86_64-linux-gnu}
    cp "$(command -v busybox)" "$root/bin/busybox"
    for applet in $("$root/bin/busybox" --list | grep -vx busybox); do ln -s busybox "$root/bin/$applet"; done
    put "$root" "$(command -v ip)" "$(command -v rdma)"
    # Busybox has an ip of its own, which its shell prefers.
    ln -s "$(command -v ip)" "$root/usr/bin/ip-link"
    # The dynamic linker where a second link namespace looks for it.
    install -D /lib64/ld-linux-x86-64.so.2 "$root/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2"
    depmod -b "$cache/tree" "$release"
    for module in crc32_generic veth ib_uverbs rdma_rxe; do
        modprobe -d "$cache/tree" -S "$release" --show-depends "$module"
    done | sed -n 's/^insmod \([^ ]*\).*/\1/p' | sort -u | while read -r module; do
        install -D "$module" "$root${module#"$cache/tree"}"
    done
    mkdir -p "$root/lib/modules/$release"
    cp "$cache/tree/lib/modules/$release"/modules.{order,builtin,builtin.modinfo} "$root/lib/modules/$release/"
    depmod -b "$root" "$release"
    libraries=usr/lib/x86_64-linux-gnu
    find "$cache/tree" \( -name 'libibverbs.so.*' -o -name 'libnl-*.so.*' \) -exec cp -a {} "$root/$libraries/" \;
    mkdir -p "$root/$libraries/libibverbs" "$root/etc/libibverbs.d"
    cp "$cache/tree/$libraries"/libibverbs/librxe-* "$root/$libraries/libibverbs/"
    cp "$cache/tree/etc/libibverbs.d/rxe.driver" "$root/etc/libibverbs.d/"
    pack "$root" >"$cache/base.cpio.new"
    mv "$cache/base.cpio.new" "$cache/base.cpio"
fi

# What is under test, in an archive of its own behind the other: the kernel unpacks both.
new=$(mktemp -d)
trap 'rm -rf "$new"' EXIT
mkdir -p "$new/usr/bin"
for program in "${programs[@]}"; do
    strip --strip-debug -o "$new/usr/bin/$program" "$target/$profile/$program"
    put "$new/libraries" "$target/$profile/$program"
done
cc -O1 -w -D_GNU_SOURCE -pthread -Itests/programs -o "$new/usr/bin/held_pages" tests/programs/held_pages.c
put "$new/libraries" "$(command -v sort)" "$(command -v xz)" "$(command -v cmp)"
rm -rf "$new/libraries$target"
cp -a "$new/libraries/." "$new/"
rm -rf "$new/libraries"
install lab/rxe/init.sh "$new/init"
install lab/rxe/checks.sh "$new/checks.sh"
echo "$@" >"$new/wanted"
pack "$new" | cat "$cache/base.cpio" - >"$new.img"
trap 'rm -rf "$new" "$new.img"' EXIT

echo "guest: $release, image $(($(stat -c %s "$new.img") >> 20)) MiB, built after $((SECONDS - begun)) s"
status=0
timeout --foreground "${FARMEM_RXE_LIMIT:-300}" qemu-system-x86_64 -accel tcg,thread=multi -cpu max -smp 2 -m 1536 \
    -kernel "$cache/tree/boot/vmlinuz-$release" -initrd "$new.img" \
    -append "console=ttyS0 quiet panic=-1 rdinit=/init" -display none -serial stdio -monitor none -no-reboot -nic none \
    </dev/null | tr -d '\r' | tee "$cache/console" || status=$?
echo "guest: $((SECONDS - begun)) s in all"
[ $status -eq 0 ] || { echo "the virtual machine did not end by itself (status $status)" >&2; exit 1; }
grep -q '^GUEST failed: 0$' "$cache/console" || { echo "checks failed, or did not all run" >&2; exit 1; }
