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
# takes. FARMEM_RXE_CLOCK=instructions: the guest's clock counts what its processor carries out; so the check "mirror"
# ends alike on a busy machine. FARMEM_GUEST_KERNEL as for lab/guest/swap/run.sh: the check "swap" needs bookworm-backports.
set -euo pipefail
cd "$(dirname "$0")/../.."
begun=$SECONDS
. lab/guest/lib.sh

need qemu-system-x86_64:qemu-system-x86 busybox:busybox-static cpio:cpio depmod:kmod ip:iproute2 rdma:iproute2 \
    apt-get:apt dpkg-deb:dpkg
target=$(cargo metadata --no-deps --format-version 1 | sed 's/.*"target_directory":"\([^"]*\)".*/\1/')
apt_options
release=$(kernel_release)

profile=${FARMEM_RXE_PROFILE:-debug}
programs=(farmem farmem-rxe)
# Only the check that measures needs the lab's binary.
case " ${*:-pages} " in *" pages "*) programs+=(farmem-lab) ;; esac
[ -n "${FARMEM_GUEST_BUILT:-}" ] ||
    cargo build --locked --quiet -p farmem-rxe -p farmem-cli -p farmem-lab $([ "$profile" = debug ] || echo "--$profile")

# The guest's own packages: a kernel with its modules, and rdma-core's libraries.
cache=$target/rxe${FARMEM_GUEST_KERNEL:+-$FARMEM_GUEST_KERNEL}
unpack "$cache" "linux-image-$release" || true
APT=()
unpack "$target/rxe-libraries" libibverbs1 ibverbs-providers libnl-3-200 libnl-route-3-200 || true
LIBRARIES=$target/rxe-libraries/tree/usr/lib/x86_64-linux-gnu

# The scripts themselves are part of what the base is made by.
if [ ! -e "$cache/base.cpio" ] || [ lab/rxe/run.sh -nt "$cache/base.cpio" ] || [ lab/guest/lib.sh -nt "$cache/base.cpio" ]; then
    root=$cache/root
    base "$root"
    put "$root" "$(command -v ip)" "$(command -v rdma)"
    # Busybox has an ip of its own, which its shell prefers.
    ln -s "$(command -v ip)" "$root/usr/bin/ip-link"
    # The dynamic linker where a second link namespace looks for it.
    install -D /lib64/ld-linux-x86-64.so.2 "$root/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2"
    # Debian's 6.1 has no ublk.
    ublk=
    [ -z "$(find "$cache/tree/lib/modules" -name 'ublk_drv.ko*')" ] || ublk=ublk_drv
    modules "$cache/tree" "$release" "$root" crc32_generic veth ib_uverbs rdma_rxe $ublk
    libraries=usr/lib/x86_64-linux-gnu
    find "$target/rxe-libraries/tree" \( -name 'libibverbs.so.*' -o -name 'libnl-*.so.*' \) -exec cp -a {} "$root/$libraries/" \;
    mkdir -p "$root/$libraries/libibverbs" "$root/etc/libibverbs.d"
    cp "$LIBRARIES"/libibverbs/librxe-* "$root/$libraries/libibverbs/"
    cp "$target/rxe-libraries/tree/etc/libibverbs.d/rxe.driver" "$root/etc/libibverbs.d/"
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
cc -O1 -o "$new/usr/bin/holds" lab/rxe/holds.c
cc -O2 -static -o "$new/usr/bin/words" lab/guest/swap/pages.c
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
# A node that has not answered for 200 ms is given up where there is another copy: by the machine's clock an emulated one
# on a busy machine is given up again and again.
clock=()
[ "${FARMEM_RXE_CLOCK:-}" != instructions ] || { ACCELERATOR=tcg,thread=single; clock=(-smp 1 -icount shift=1,sleep=off); }
boot "${FARMEM_RXE_LIMIT:-300}" 1536 "$cache/tree/boot/vmlinuz-$release" "$new.img" -nic none "${clock[@]}" |
    tee "$cache/console" || status=$?
echo "guest: $((SECONDS - begun)) s in all"
[ $status -eq 0 ] || { echo "the virtual machine did not end by itself (status $status)" >&2; exit 1; }
grep -q '^GUEST failed: 0$' "$cache/console" || { echo "checks failed, or did not all run" >&2; exit 1; }
