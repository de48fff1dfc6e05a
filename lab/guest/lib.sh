#!/usr/bin/env bash
# What virtual machines of the lab share: a Debian kernel with the modules that are wanted, busybox, and programs of ours.
# To be sourced by bash in the repository's root.

# Ends with 77, and the reason: the machine lacks what it takes.
skip() {
    echo "skipped: $1" >&2
    exit 77
}

# need TOOL:PACKAGE...   Has tools installed in CI; elsewhere says which packages they need.
need() {
    local tool lacking=() as_root=()
    PATH=$PATH:/usr/sbin:/sbin
    for tool in "$@"; do
        command -v "${tool%%:*}" >/dev/null || lacking+=("${tool##*:}")
    done
    [ ${#lacking[@]} -gt 0 ] || return 0
    if [ -n "${CI:-}" ] && command -v apt-get >/dev/null; then
        [ "$(id -u)" = 0 ] || as_root=(sudo -n)
        "${as_root[@]}" apt-get update -qq >&2 &&
            DEBIAN_FRONTEND=noninteractive "${as_root[@]}" apt-get install -y -qq --no-install-recommends "${lacking[@]}" >&2 ||
            skip "${lacking[*]} cannot be installed"
    else
        skip "needs the packages ${lacking[*]}"
    fi
}

# Options of apt by which it knows the suite of Debian that FARMEM_GUEST_KERNEL names. "bookworm-backports" has a newer
# kernel than Debian 12. Without it, apt as it is. Nothing of the system's apt is changed.
apt_options() {
    local own=$target/guest-apt suite=${FARMEM_GUEST_KERNEL:-} mirror
    [ -n "$suite" ] || return 0
    mirror=$(apt-get indextargets --format '$(REPO_URI) $(SUITE)' 'Created-By: Packages' 2>/dev/null |
        awk '$2 !~ /-security/ { print $1; exit }')
    [ -n "$mirror" ] || skip "apt knows no mirror"
    mkdir -p "$own"/{lists,archives}/partial
    echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror $suite main" >"$own/sources.list"
    APT=(-o "Dir::Etc::SourceList=$own/sources.list" -o Dir::Etc::SourceParts=/dev/null
        -o "Dir::State::Lists=$own/lists" -o "Dir::Cache=$own")
    apt-get "${APT[@]}" update -qq >"$own/log" 2>&1 || { tail -3 "$own/log" >&2; skip "apt cannot be told of $suite"; }
}
APT=()

# The release of the kernel that Debian's linux-image-amd64 stands for.
kernel_release() {
    [ "$(uname -m)" = x86_64 ] || skip "the guest is x86-64"
    local image
    image=$(apt-cache "${APT[@]}" depends linux-image-amd64 2>/dev/null |
        sed -n 's/.*Depends: \(linux-image-[0-9][^ ]*-amd64\)$/\1/p' | head -1)
    [ -n "$image" ] || skip "apt knows no linux-image-amd64: not a Debian machine"
    echo "${image#linux-image-}"
}

# unpack CACHE PACKAGE...   Downloads packages once, and extracts them to CACHE/tree. True if they are new.
unpack() {
    local cache=$1 package
    shift
    [ "$(cat "$cache/packages" 2>/dev/null)" != "$*" ] || return 1
    rm -rf "$cache"
    mkdir -p "$cache/debs" "$cache/tree"
    (cd "$cache/debs" && apt-get "${APT[@]}" download -qq "$@") >"$cache/log" 2>&1 ||
        { tail -3 "$cache/log" >&2; skip "the guest's packages cannot be downloaded"; }
    for package in "$cache"/debs/*.deb; do dpkg-deb --extract "$package" "$cache/tree"; done
    echo "$*" >"$cache/packages"
}

# put ROOT FILE...   Copies files into a tree, each with the libraries it needs, to the places they have here.
# Libraries that the guest's own packages bring (LIBRARIES) are left out.
put() {
    local root=$1 file library
    shift
    for file in "$@"; do
        install -D "$file" "$root$(realpath -s "$file")"
        # What ldd prints for a file that is static is of no interest.
        for library in $(LD_LIBRARY_PATH=${LIBRARIES:-} ldd "$file" 2>/dev/null |
            sed -n 's/.*=> \(\/[^ ]*\).*/\1/p; s/^\t\(\/[^ ]*ld-[^ ]*\).*/\1/p'); do
            [ -z "${LIBRARIES:-}" ] || case $library in "$LIBRARIES"/*) continue ;; esac
            [ -e "$root$library" ] || install -D "$library" "$root$library"
        done
    done
}

# base ROOT   A tree with busybox in it.
base() {
    local root=$1 applet
    rm -rf "$root"
    mkdir -p "$root"/{bin,dev,proc,sys,tmp,run,etc,usr/bin,usr/lib/x86_64-linux-gnu}
    cp "$(command -v busybox)" "$root/bin/busybox"
    for applet in $("$root/bin/busybox" --list | grep -vx busybox); do ln -s busybox "$root/bin/$applet"; done
}

# modules TREE RELEASE ROOT MODULE...   Copies modules, with those that they need, from a package's tree.
modules() {
    local tree=$1 release=$2 root=$3 module
    shift 3
    depmod -b "$tree" "$release"
    for module in "$@"; do
        modprobe -d "$tree" -S "$release" --show-depends "$module"
    done | sed -n 's/^insmod \([^ ]*\).*/\1/p' | sort -u | while read -r module; do
        install -D "$module" "$root${module#"$tree"}"
    done
    mkdir -p "$root/lib/modules/$release"
    cp "$tree/lib/modules/$release"/modules.{order,builtin,builtin.modinfo} "$root/lib/modules/$release/"
    depmod -b "$root" "$release"
}

# pack DIRECTORY   The archive that the kernel unpacks into its first file system.
pack() { (cd "$1" && find . -print0 | cpio --null -o -H newc --quiet); }

# Whether this kernel boots within 20 s by the CPU's own virtualization, to where it wants a file system. Not each
# /dev/kvm can: one that emulates instructions takes minutes, or ends.
boots_by_kvm() {
    timeout --foreground 20 qemu-system-x86_64 -accel kvm -cpu max -m 256 -kernel "$1" -append "console=ttyS0 panic=-1" \
        -display none -serial stdio -monitor none -no-reboot </dev/null 2>/dev/null | grep -q 'Unable to mount root'
}

# choose_accelerator KERNEL   Sets how guests are run: by the CPU's own virtualization where a boot by it succeeds, else by
# emulation. THREADS: single or multi, QEMU's for emulated processors.
choose_accelerator() {
    [ -z "${ACCELERATOR:-}" ] || return 0
    ACCELERATOR=tcg,thread=${THREADS:-multi}
    [ ! -w /dev/kvm ] || ! grep -qE '^flags.* (vmx|svm)' /proc/cpuinfo || ! boots_by_kvm "$1" || ACCELERATOR=kvm
}

# Options of QEMU for MONITOR.
monitor() { [ -z "${MONITOR:-}" ] && echo "-monitor none" || echo "-chardev pipe,id=monitor,path=$MONITOR -mon monitor"; }

# stands_still   Says where the processors of a machine are that says nothing any more, and which of its tasks wait: by
# MONITOR, and by the keys that its kernel obeys. What the kernel says comes by its console. The machine may end meanwhile.
stands_still() (
    trap '' PIPE
    set +e
    echo "the machine has said nothing for a while:"
    : >"$MONITOR.said"
    cat "$MONITOR.out" >"$MONITOR.said" &
    exec 3<>"$MONITOR.in"
    for _ in 1 2 3; do echo "info registers -a" >&3 && sleep 1; done
    grep -aoE '^(CPU#|[RE]IP=).*' "$MONITOR.said" | sed 's/^/    /'
    for key in 9 w l; do echo "sendkey alt-sysrq-$key" >&3 && sleep 3; done
    kill $!
    rm "$MONITOR.said"
)

# boot SECONDS MEMORY_MIB KERNEL IMAGE [OPTION...]   Runs a guest. Its console is the output. APPEND: for its kernel.
# FARMEM_GUEST_NICE: the guest's, 0 to 19. MONITOR: two pipes, MONITOR.in and MONITOR.out, by which the machine is asked.
# Lines come as they are said: what reads them may act on them.
boot() {
    local limit=$1 memory=$2 kernel=$3 image=$4
    shift 4
    choose_accelerator "$kernel"
    nice -n "${FARMEM_GUEST_NICE:-0}" timeout --foreground "$limit" qemu-system-x86_64 -accel "$ACCELERATOR" -cpu max -smp 2 -m "$memory" \
        -kernel "$kernel" -initrd "$image" -append "console=ttyS0 quiet panic=-1 no_timer_check rdinit=/init ${APPEND:-}" \
        -display none -serial stdio -no-reboot $(monitor) "$@" </dev/null | sed -u 's,\r,,g'
}
