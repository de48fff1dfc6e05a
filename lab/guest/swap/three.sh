#!/usr/bin/env bash
# Three machines that swap to one node: their jobs have the profiles of programs that were recorded,
# and verify every word.
#
#   lab/guest/swap/three.sh [PART]      one in PART of the recorded slots is taken: 1 to 3, which is the default
#
# It is done twice: with static shares, a third of the node for each machine by a token's quota; and
# with one pool, from which each machine takes as it needs. In each of three phases one machine has
# the largest job; the next phase begins when all jobs have ended, so that the largest do not meet.
# Prints jobs that ended well and jobs that were killed, and how much of the node was live and held.
# Machines are at nice 19, or FARMEM_GUEST_NICE. FARMEM_BIN: the program that is tried; else it is built.
# Ends with 77 where something lacks.
set -euo pipefail
cd "$(dirname "$0")/../../.."
. lab/guest/lib.sh
need qemu-system-x86_64:qemu-system-x86 busybox:busybox-static cpio:cpio depmod:kmod apt-get:apt dpkg-deb:dpkg cc:gcc
export FARMEM_GUEST_NICE=${FARMEM_GUEST_NICE:-19}
part=${1:-3}
# A node lends 64 MiB at least.
[ "$part" -ge 1 ] && [ "$part" -le 3 ] || { echo "PART is 1 to 3" >&2; exit 64; }
target=$(cargo metadata --no-deps --format-version 1 | sed 's/.*"target_directory":"\([^"]*\)".*/\1/')
farmem=${FARMEM_BIN:-$target/debug/farmem}
[ -n "${FARMEM_BIN:-}" ] || cargo build --locked --quiet -p farmem-cli
apt_options
release=$(kernel_release)
cache=$target/guest${FARMEM_GUEST_KERNEL:+-$FARMEM_GUEST_KERNEL}
unpack "$cache" "linux-image-$release" || true
new=$(mktemp -d)
trap 'kill $(jobs -p) $(cat "$new"/*.pid) 2>/dev/null || true; rm -rf "$new"' EXIT

# The memory that the node lends, a share of it, and the memory of a job: in MiB. A part of what it
# lends is promised to no volume.
lend=$((192 / part))
share=$((lend / 3)) promised=$((lend * 31 / 32 / 3))
local=$((8 / part > 2 ? 8 / part : 2))

root=$new/root
base "$root"
modules "$cache/tree" "$release" "$root" virtio_pci virtio_net nbd
strip --strip-all -o "$new/farmem" "$farmem"
put "$new/libraries" "$farmem"
rm -f "$new/libraries$(realpath -s "$farmem")"
cp -a "$new/libraries/." "$root/"
install -D "$new/farmem" "$root/usr/bin/farmem"
cc -O2 -Wall -static -o "$root/usr/bin/replay" lab/guest/swap/replay.c
install lab/guest/swap/init.sh "$root/init"
install lab/guest/swap/jobs.sh "$root/checks.sh"
mkdir "$root/jobs"
cp lab/swap/traces/* "$root/jobs/"
echo "$part $local" >"$root/part"
pack "$root" >"$new/image"

# Tells a machine, beside the image, which it is, where it swaps to, and by which options.
tell() {
    local own=$new/own
    rm -rf "$own"
    mkdir "$own"
    echo "$1" >"$own/machine"
    echo "$2" >"$own/options"
    [ ! -e "$new/token$1" ] || install -m 600 "$new/token$1" "$own/token"
    cat "$new/image" <(pack "$own") >"$new/image$1"
}

# follow MACHINE   Its console. Its answers are files, which it gets by TFTP.
follow() {
    local line
    while IFS= read -r line; do
        echo "  machine $1: $line"
        case $line in
            "HOST ready "*)
                : >"$new/answers/ready.${line#HOST ready }.$1"
                [ "$(ls "$new/answers/ready.${line#HOST ready }".* | wc -l)" -lt 3 ] || : >"$new/answers/go.${line#HOST ready }"
                ;;
            "HOST off") : >"$new/off.$1" ;;
        esac
    done
}

# Live and held of all volumes, in KiB, once in two seconds.
watch_node() {
    while sleep 2; do
        "$farmem" status --json "${asks[@]}" "127.0.0.1:$port" 2>/dev/null |
            sed -n '/"volumes"/,/"windows"/ s/.*"\(live\|held\)": *\([0-9]*\).*/\1 \2/p' |
            awk '{ sum[$1] += $2 } END { printf "%d %d\n", sum["live"] / 1024, sum["held"] / 1024 }' || true
    done
}

# run_all NAME OPTION...   One node with these options, three machines.
run_all() {
    local name=$1 machine node watcher machines=() asks=()
    shift
    rm -rf "$new/answers"
    mkdir -p "$new/answers" "$new/runtime"
    rm -f "$new/console."* "$new/off."*
    RUNTIME_DIRECTORY=$new/runtime "$farmem" node --lend "${lend}M" --listen 127.0.0.1:0 "$@" >"$new/node.log" 2>&1 &
    node=$!
    port=
    local tries=0
    until [ -n "$port" ]; do
        tries=$((tries + 1))
        [ $tries -lt 300 ] || { cat "$new/node.log" >&2; exit 1; }
        sleep 0.1
        port=$(sed -n 's/.* at 127.0.0.1:\([0-9]*\)$/\1/p' "$new/node.log")
    done
    for machine in 1 2 3; do
        case $name in
            shares) asks=(--token "$new/token1") && tell $machine "--size ${promised}M --node 10.0.2.2:$port --token /token" ;;
            pool) tell $machine "--size ${lend}M --node 10.0.2.2:$port --overcommit" ;;
        esac
        (THREADS=single APPEND=rootfstype=ramfs boot "${FARMEM_GUEST_LIMIT:-3600}" "${FARMEM_GUEST_MEMORY:-192}" "$cache/tree/boot/vmlinuz-$release" \
            "$new/image$machine" -pidfile "$new/$machine.pid" -netdev "user,id=n,tftp=$new/answers" -device virtio-net-pci,netdev=n,romfile= |
            follow $machine | tee "$new/console.$machine") &
        machines+=($!)
    done
    watch_node >"$new/use.$name" &
    watcher=$!
    # How jobs ended is in the consoles.
    wait "${machines[@]}" || true
    kill $watcher $node || true
    wait $watcher $node 2>/dev/null || true
    # While anything was held.
    awk -v lend="$lend" -v name="$name" -v jobs="$(cat "$new"/console.* | grep -c 'JOB .* ended with 0 ')" \
        -v killed="$(cat "$new"/console.* | grep -c 'JOB .* ended with 137 ')" \
        -v all="$(cat "$new"/console.* | grep -c 'JOB .* ended with')" \
        -v wrong="$(cat "$new"/console.* | grep -c 'JOB .* ended with 1 ')" '
        $2 > 0 { n++; live += $1; held += $2; if ($1 > most) most = $1 }
        END { if (!n) n = held = 1
              printf "THREE %s: %d of %d jobs ended well, %d were killed, %d had wrong words; live of held %.0f %%, live of %d MiB %.0f %% in the mean, %.0f %% at most\n",
              name, jobs, all, killed, wrong, 100 * live / held, lend, 100 * live / n / 1024 / lend, 100 * most / 1024 / lend }' \
        "$new/use.$name" | tee -a "$new/found"
}

for machine in 1 2 3; do
    # A token that others may read is refused.
    (umask 077 && "$farmem" token create --tenant "machine$machine" --quota "${share}M" --store "$new/tokens" >"$new/token$machine")
done
run_all shares --tokens "$new/tokens"
rm -f "$new"/token?
run_all pool
echo
cat "$new/found"
# Nine jobs each way; every word of those that ended was right, and the pool lost none.
grep -q '^THREE pool: 9 of 9 ' "$new/found" && ! grep -vq ' 0 had wrong words' "$new/found"
