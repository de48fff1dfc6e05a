#!/usr/bin/env bash
# farmem swap on a real kernel: boots a small machine in QEMU whose kernel swaps to a node on this side of its network,
# runs lab/guest/swap/checks.sh there, and ends as it ended.
#
#   lab/guest/swap/run.sh [check...]      all checks but the long ones, or those named
#
# As lab/rxe/run.sh: nothing is installed and no privilege is needed, but for a first time without QEMU. Ends with 77,
# naming the reason, where the machine lacks what it takes. FARMEM_GUEST_MEMORY: the machine's, in MiB.
# FARMEM_GUEST_KERNEL: the suite of Debian whose kernel it boots, as bookworm-backports (6.12); else this system's.
# FARMEM_GUEST_IMAGE: a kernel that needs no modules (lab/guest/kernel.sh). FARMEM_BIN: the program that is tried; else it is
# built.
# FARMEM_GUEST_NETWORK=tap: the nodes are in a network namespace with the machine, and the kernel's own TCP is at both ends.
# QEMU's, which is there otherwise, sends a lost packet again after a second at the least. No check works so that asks this
# side for something by TFTP. Nothing is downloaded: it needs FARMEM_GUEST_IMAGE, or a time before without it.
set -euo pipefail
cd "$(dirname "$0")/../../.."
if [ "${FARMEM_GUEST_NETWORK:-}" = tap ] && [ -z "${FARMEM_GUEST_INSIDE:-}" ]; then
    FARMEM_GUEST_INSIDE=1 exec unshare --net $([ "$(id -u)" = 0 ] || echo --map-root-user) "$0" "$@"
fi
begun=$SECONDS
. lab/guest/lib.sh

need qemu-system-x86_64:qemu-system-x86 busybox:busybox-static cpio:cpio depmod:kmod apt-get:apt dpkg-deb:dpkg cc:gcc
target=$(cargo metadata --no-deps --format-version 1 | sed 's/.*"target_directory":"\([^"]*\)".*/\1/')
release=own kernel=${FARMEM_GUEST_IMAGE:-}
[ -n "$kernel" ] || { apt_options; release=$(kernel_release); }
profile=${FARMEM_GUEST_PROFILE:-debug}
farmem=${FARMEM_BIN:-$target/$profile/farmem}
[ -n "${FARMEM_GUEST_BUILT:-}${FARMEM_BIN:-}" ] ||
    cargo build --locked --quiet -p farmem-cli $([ "$profile" = debug ] || echo "--$profile")

cache=$target/guest${FARMEM_GUEST_KERNEL:+-$FARMEM_GUEST_KERNEL}
if [ -z "$kernel" ]; then
    unpack "$cache" "linux-image-$release" || true
    kernel=$cache/tree/boot/vmlinuz-$release
fi
mkdir -p "$cache"
new=$(mktemp -d)
beside=
trap 'kill $beside ${collector:-} $(cat "$new"/*.pid) 2>/dev/null || true; rm -rf "$new" "$new.img"' EXIT

root=$new/root
base "$root"
[ $release = own ] || modules "$cache/tree" "$release" "$root" virtio_pci virtio_net nbd dm_crypt xts ecb aes_generic raid1 \
    $(case " $* " in *" faults "*) echo zram brd lz4 lz4hc ;; esac)
# Its file takes memory that the machine is to be short of.
strip --strip-all -o "$new/farmem" "$farmem"
put "$new/libraries" "$farmem"
rm -f "$new/libraries$(realpath -s "$farmem")"
cp -a "$new/libraries/." "$root/"
install -D "$new/farmem" "$root/usr/bin/farmem"
for program in pages give faults teller; do cc -O2 -Wall -static -o "$root/usr/bin/$program" "lab/guest/swap/$program.c"; done
# The same program with a dynamic loader, for farmem run.
cc -O2 -Wall -o "$root/usr/bin/far-pages" lab/guest/swap/pages.c
install lab/guest/swap/init.sh "$root/init"
install lab/guest/swap/{checks,faults,record,machine}.sh "$root/"
echo "$@" >"$root/wanted"

# The nodes are outside of the guest, which sees this machine's loopback, or its end of the tap device, at 10.0.2.2. All but the first ask for a token.
"$farmem" token create --tenant guest --quota 224M --store "$new/tokens" >"$root/token" 2>"$new/token.log" || { cat "$new/token.log" >&2; exit 1; }
chmod 600 "$root/token"

here=127.0.0.1 open= network=(-netdev "user,id=n,tftp=$new/answers")
if [ -n "${FARMEM_GUEST_INSIDE:-}" ]; then
    here=10.0.2.2 open=--open network=(-netdev tap,id=n,ifname=guest,script=no,downscript=no)
    need ip:iproute2
    ip link set lo up && ip tuntap add guest mode tap && ip addr add $here/24 dev guest && ip link set guest up ||
        skip "a tap device cannot be made"
fi

# start NAME PORT [OPTION...]   Starts a node.
start() {
    local name=$1 port=$2
    shift 2
    mkdir -p "$new/$name"
    RUNTIME_DIRECTORY=$new/$name "$farmem" node --lend 512M --listen "$here:$port" "$@" >"$new/$name.log" 2>&1 &
    echo $! >"$new/$name.pid"
}

# The port that a node says it has.
port() { sed -n "s/.* at $here:\([0-9]*\)$/\1/p" "$new/$1.log"; }

start node 0 $open
start second 0 --tokens "$new/tokens"
start third 0 --tokens "$new/tokens" --grace 600s
tries=0
until [ -n "$(port node)" ] && [ -n "$(port second)" ] && [ -n "$(port third)" ]; do
    tries=$((tries + 1))
    [ $tries -lt 600 ] || { cat "$new"/*.log >&2; exit 1; }
    sleep 0.1
done
node=$(cat "$new/node.pid")
port=$(port node)
echo "$port" >"$root/port"
port second >"$root/guarded"
port third >"$root/third"
cc -O2 -Wall -o "$new/slow" lab/guest/swap/slow.c

# relay NAME PORT FILE   Starts a relay to a node's port, which obeys the file. The guest learns of it by its name.
relay() {
    local tries=0
    "$new/slow" 0 "$2" "$new/$3" >"$new/$1.port" &
    echo $! >"$new/$1.pid"
    until [ -s "$new/$1.port" ]; do
        tries=$((tries + 1))
        [ $tries -lt 600 ] || { echo "the relay did not begin" >&2; exit 1; }
        sleep 0.1
    done
    cp "$new/$1.port" "$root/$1"
}

# Answers of the first come late, or its connections are cut, when the guest asks for that. By the second a node is silent
# about pages alone.
relay slow "$port" delay
relay silent "$(port third)" silence.third
# Beside it, if that is wanted, a server that others wrote, and the plainest there can be.
case " $* " in *" faults "*)
    need nbdkit:nbdkit nbd-client:nbd-client
    echo $((port + 1)) >"$root/nbdkit"
    echo $((port + 3)) >"$root/bare"
    cc -O2 -Wall -pthread -o "$new/bare" lab/guest/swap/bare.c
    nbdkit --foreground --ipaddr 127.0.0.1 --port $((port + 1)) memory 192M >"$new/nbdkit.log" 2>&1 &
    beside=$!
    "$new/bare" $((port + 3)) 192 &
    beside="$beside $!"
    put "$root" "$(command -v nbd-client)"
    ;;
esac
# Real programs, to be recorded, and where what is recorded goes. FARMEM_GUEST_RECORD names some of them: those of
# lab/swap/traces, else; there are also python, and toy, which takes a minute. The files are in traces beside the kernel.
collector=
case " $* " in *" recorded "*)
    need redis-server:redis-server redis-cli:redis-tools sqlite3:sqlite3 gcc:gcc python3.11:python3
    echo "${FARMEM_GUEST_RECORD:-redis sqlite sort gcc}" >"$root/collected"
    mkdir "$root/record"
    cp lab/guest/swap/record/* "$root/record/"
    cp lab/swap/traces/sort "$root/record/profile"
    cc -O2 -Wall -static -o "$root/usr/bin/replay" lab/guest/swap/replay.c
    awk -v COUNT=40 -f lab/guest/swap/record/functions.awk >"$root/record/functions.c"
    awk 'BEGIN { srand(7); for (i = 0; i < 600000; i++) printf "%.9f %d %.9f\n", rand(), i, rand() }' >"$root/record/lines"
    cc -O2 -Wall -static -o "$root/usr/bin/slots" lab/guest/swap/record/slots.c
    cp "$(gcc -print-prog-name=cc1)" "$root/record/cc1"
    put "$new/programs" /usr/bin/python3.11 "$(command -v redis-server)" "$(command -v redis-cli)" \
        "$(command -v sqlite3)" /usr/bin/sort "$root/record/cc1"
    rm -rf "$new/programs$root"
    cp -a "$new/programs/." "$root/"
    rm -rf "$new/programs"
    mkdir -p "$root/usr/lib/python3.11"
    (cd /usr/lib/python3.11 && find . -maxdepth 2 -name '*.py' ! -path './test/*' -print0 | cpio --null -pdm --quiet "$root/usr/lib/python3.11")
    echo $((port + 2)) >"$root/collect"
    # Nothing is ever said to the guest.
    mkfifo "$new/silence"
    exec 7<>"$new/silence"
    (while busybox nc -l -p $((port + 2)) <&7 >"$new/recorded"; do [ ! -s "$new/recorded" ] || tar -C "$cache" -xf "$new/recorded"; done) &
    collector=$!
    # The programs and their data lie in the machine's memory twice while it starts.
    FARMEM_GUEST_MEMORY=${FARMEM_GUEST_MEMORY:-768} FARMEM_GUEST_LIMIT=${FARMEM_GUEST_LIMIT:-7200}
    ;;
esac
# A virtual machine in the virtual machine: QEMU as it is here, with a guest whose only program is pages.
case " $* " in *" machine "*)
    inner=$(lab/guest/kernel.sh)
    mkdir -p "$root/machine" "$new/inner" "$root/usr/share"
    cp "$inner" "$root/machine/kernel"
    cp "$root/usr/bin/pages" "$new/inner/pages"
    pack "$new/inner" >"$root/machine/image"
    # Debian's QEMU loads its emulation from a file of its own.
    put "$root" "$(command -v qemu-system-x86_64)" $(ls /usr/lib/*/qemu/accel-tcg-x86_64.so 2>/dev/null)
    for folder in qemu seabios; do
        mkdir -p "$root/usr/share/$folder"
        cp /usr/share/$folder/{bios-256k,kvmvapic,linuxboot_dma,linuxboot,pvh}.bin "$root/usr/share/$folder/" 2>/dev/null || true
    done
    FARMEM_GUEST_MEMORY=${FARMEM_GUEST_MEMORY:-768} FARMEM_GUEST_LIMIT=${FARMEM_GUEST_LIMIT:-7200}
    ;;
esac
pack "$root" >"$new.img"

# Starts a rack of one node, racked, whose port is the answer.
rack() {
    local tries=0 at=
    RUNTIME_DIRECTORY=$new "$farmem" controller --listen $here:0 $open >"$new/controller.log" 2>&1 &
    echo $! >"$new/controller.pid"
    until at=$(sed -n "s/.*controller is at \([^;]*\);.*/\1/p" "$new/controller.log") && [ -n "$at" ]; do
        tries=$((tries + 1))
        [ $tries -lt 600 ] || { cat "$new/controller.log"; return; }
        sleep 0.1
    done
    echo "$at" >"$new/controller"
    start racked 0 $open --controller "$at" --name racked
    until grep -q 'is of the rack' "$new/racked.log"; do
        tries=$((tries + 1))
        [ $tries -lt 600 ] || { cat "$new/racked.log"; return; }
        sleep 0.1
    done
    port racked >"$new/answers/racked.new"
    mv "$new/answers/racked.new" "$new/answers/racked"
}

# Whether a page of lab/guest/swap/give.c lies in the node's memory as it is.
seek() {
    local file
    for file in /proc/$node/map_files/*; do
        case $(readlink "$file") in *memfd:*) ! grep -aq 'a plain page of farmem' "$file" || { echo found; return; } ;; esac
    done
    echo nothing
}

# What the guest asks of this side, by lines of its console. It is answered by files, which it gets by TFTP.
mkdir "$new/answers"
host() {
    local line ms cuts answer ending code keys= part= still=
    while :; do
        code=0
        IFS= read -r -t "${FARMEM_GUEST_SILENCE:-150}" line || code=$?
        line=$part$line part=
        # Above 128: nothing was said in time, or a part of a line. Else it is the end.
        if [ $code -gt 128 ]; then
            part=$line
            case $still in
                "") stands_still && still=${keys:-told} ;;
                # A kernel answers these keys whatever its programs do.
                asked) : >"$new/stuck" && still=ended && echo quit 1<>"$MONITOR.in" ;;
            esac
            continue
        fi
        [ $code -eq 0 ] || break
        [ "$still" != asked ] || still=answered
        echo "$line"
        case $line in
            "GUEST obeys keys") keys=asked ;;
            "HOST stop")
                kill -STOP $node
                : >"$new/answers/stopped"
                ;;
            "HOST late "*)
                # MILLISECONDS CUTS ANSWER
                read -r _ _ ms cuts answer <<<"$line"
                echo "$ms $cuts" >"$new/delay.new"
                mv "$new/delay.new" "$new/delay"
                : >"$new/answers/$answer"
                ;;
            "HOST silent "*)
                # yes or no, ANSWER
                read -r _ _ ms answer <<<"$line"
                case $ms in yes) echo "-1 0" ;; *) echo "0 0" ;; esac >"$new/silence.new"
                mv "$new/silence.new" "$new/silence.third"
                : >"$new/answers/$answer"
                ;;
            "HOST go") kill -CONT $node ;;
            "HOST pause "*)
                kill -STOP $node
                sleep "${line#HOST pause }"
                kill -CONT $node
                ;;
            "HOST kill "*)
                kill -9 "$(cat "$new/${line#HOST kill }.pid")"
                : >"$new/answers/killed.${line#HOST kill }"
                ;;
            "HOST end third")
                ending=$(cat "$new/third.pid")
                kill -TERM "$ending"
                # Said when it has.
                (while kill -0 "$ending" 2>/dev/null; do sleep 0.2; done; : >"$new/answers/ended.third") &
                ;;
            "HOST rack") rack ;;
            "HOST drain")
                # It ends when the node is empty.
                ("$farmem" drain racked --controller "$(cat "$new/controller")" && : >"$new/answers/drained") &
                ;;
            "HOST again third") start third "$(cat "$root/third")" --tokens "$new/tokens" --grace 600s ;;
            "HOST seek "*)
                echo "GUEST sought ${line#HOST seek }: $(seek)"
                : >"$new/answers/${line#HOST seek }"
                ;;
        esac
    done
}

mkfifo "$new/monitor.in" "$new/monitor.out"
MONITOR=$new/monitor
# Probes and static branches change the kernel's code while it runs. With a thread for each processor QEMU 7.2 may go on with
# code as it was before, for ever (docs/results/2026-11-27-swap-guests.md). It takes about as long with one.
THREADS=single
choose_accelerator "$kernel"
echo "guest: $release by $ACCELERATOR, image $(($(stat -c %s "$new.img") >> 20)) MiB, built after $((SECONDS - begun)) s"
status=0
# A file system of half of the memory would not hold what is under test.
# A processor that is stuck in the kernel for 120 s ends the machine.
APPEND="rootfstype=ramfs nbd.nbds_max=0 watchdog_thresh=60 softlockup_panic=1" boot "${FARMEM_GUEST_LIMIT:-300}" "${FARMEM_GUEST_MEMORY:-224}" "$kernel" "$new.img" \
    "${network[@]}" -device virtio-net-pci,netdev=n,romfile= |
    host | tee "$new/console" || status=$?
# An emulated processor that is stuck in the kernel is no fault of what is tested. Then the machine begins anew, once, with
# the checks that had not passed.
if [ -z "${FARMEM_GUEST_AGAIN:-}" ] && [ "$ACCELERATOR" != kvm ] &&
    { [ -e "$new/stuck" ] || grep -q 'BUG: soft lockup' "$new/console"; }; then
    left=()
    for named in "$@"; do grep -q "^CHECK $named: ok" "$new/console" || left+=("$named"); done
    [ ${#left[@]} -gt 0 ] || left=("$@")
    echo "guest: the emulated processor was stuck in the kernel: a new machine for ${left[*]:-all checks}"
    status=0
    FARMEM_GUEST_AGAIN=1 lab/guest/swap/run.sh "${left[@]}" || status=$?
    exit $status
fi
echo "guest: $((SECONDS - begun)) s in all; the node said:"
sed 's/^/    /' "$new/node.log"
[ $status -eq 0 ] || { echo "the virtual machine did not end by itself (status $status)" >&2; exit 1; }
! grep -qE '^GUEST sought (plain: nothing|crypt: found)$' "$new/console" ||
    { echo "the node has the wrong bytes: see the lines GUEST sought" >&2; exit 1; }
grep -q '^GUEST failed: 0$' "$new/console" || { echo "checks failed, or did not all run" >&2; exit 1; }
