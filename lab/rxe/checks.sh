#!/bin/sh
# What is checked in the virtual machine. Each check says ok or FAILED; the last
# line says how many failed. /wanted names the checks to make; empty: all.
failed=0
wanted=$(cat /wanted 2>/dev/null)

check() {
    name=$1
    shift
    case " $wanted " in "  " | *" $name "*) ;; *) return ;; esac
    begun=$(cut -d' ' -f1 /proc/uptime)
    echo "CHECK $name"
    if "$@"; then verdict=ok; else verdict=FAILED; failed=$((failed + 1)); fi
    echo "CHECK $name: $verdict ($(cut -d' ' -f1 /proc/uptime | awk -v b="$begun" '{ printf "%.1f", $1 - b }') s)"
}

# A node that lends 512 MiB over TCP and RDMA, at port 7411 or another, ready when this returns.
start_node() {
    port=${1:-7411}
    # Empty before it is looked into: the node before wrote its address there, too.
    : >/tmp/node.log
    farmem node --lend 512M --listen 127.0.0.1:$port --rdma rxe0 >/tmp/node.log 2>&1 &
    node=$!
    tries=0
    until grep -q $port /tmp/node.log || [ $tries -ge 100 ]; do
        tries=$((tries + 1))
        sleep 0.1
    done
    grep -q $port /tmp/node.log || { cat /tmp/node.log; return 1; }
}

far() { farmem run --local 2M --node 127.0.0.1:7411 --transport verbs "$@"; }

# Lines in no order: sort holds all of its input, 4 MiB, with half of it local.
sorts() {
    start_node || return 1
    farmem-rxe lines 60000 >/tmp/lines
    LC_ALL=C /usr/bin/sort --parallel=1 -S 400M /tmp/lines >/tmp/expected || return 1
    LC_ALL=C far -- /usr/bin/sort --parallel=1 -S 400M /tmp/lines >/tmp/got && cmp /tmp/expected /tmp/got
    held=$?
    [ $held -ne 0 ] || echo "  $(wc -l </tmp/got) lines as expected"
    kill $node
    wait $node
    return $held
}

# A node that is killed ends its program within two seconds (here: of emulated time, and no less than 10), with
# status 70 and a line that names it.
node_dies() {
    start_node || return 1
    farmem-rxe lines 600000 >/tmp/lines
    far --stats none -- /usr/bin/sort --parallel=1 -S 400M /tmp/lines >/dev/null 2>/tmp/said &
    run=$!
    sleep 5
    kill -9 $node
    tries=0
    while kill -0 $run 2>/dev/null && [ $tries -lt 100 ]; do
        tries=$((tries + 1))
        sleep 0.1
    done
    kill -9 $run 2>/dev/null && { echo "  the run goes on without its node"; return 1; }
    wait $run
    status=$?
    sed 's/^/  /' /tmp/said
    [ $status -eq 70 ] && grep -q '127.0.0.1:7411' /tmp/said
}

# Waits until a command succeeds, at most a minute of emulated time.
until_so() {
    tries=0
    until "$@" || [ $tries -ge 600 ]; do
        tries=$((tries + 1))
        sleep 0.1
    done
    "$@"
}

# Lines of the run since the last kill.
since() { tail -n +$((mark + 1)) /tmp/said; }
has_said() { since | grep -q "$1"; }
# The last word about copies is that there are two. An emulated node may be late, and lose its copy for a while.
is_whole() { ! since | grep -o 'with one copy\|two copies again' | tail -n 1 | grep -q one; }
is_made_again() { has_said 'two copies again' && is_whole; }

# Two copies over RDMA. Of the two nodes of a program that holds three times its room, one is killed. It is started anew,
# without what it had, and gets its copy again; then the other one is killed. Each word is right.
mirrored() {
    start_node || return 1
    first=$node
    start_node 7412 || return 1
    second=$node
    rm -f /tmp/held /tmp/go
    : >/tmp/said
    far --node 127.0.0.1:7412 --protect mirror --stats none -- holds 6 /tmp/held /tmp/go >/tmp/got 2>/tmp/said &
    run=$!
    held=0 mark=0
    until_so [ -e /tmp/held ] && until_so is_whole || held=1
    mark=$(wc -l </tmp/said)
    kill -9 $first && wait $first
    until_so has_said '127.0.0.1:7411 is lost.* goes on with one copy' || held=1
    start_node || held=1
    until_so is_made_again || held=1
    mark=$(wc -l </tmp/said)
    kill -9 $second && wait $second
    until_so has_said '127.0.0.1:7412 is lost.* goes on with one copy' || held=1
    : >/tmp/go
    wait $run || held=1
    sed 's/^/  /' /tmp/said /tmp/got
    grep -q '786432 words are right' /tmp/got || held=1
    kill $node
    wait $node
    return $held
}

# Dirty pages leave by reference on this kernel too (before Linux 6.13: dropped by a call for each range); and none of what is written is lost.
held() {
    held_pages 6 >/tmp/expected || return 1
    for transport in shm tcp; do
        farmem run --local 8M --far 1G --transport $transport --stats json:/tmp/stats -- held_pages 6 >/tmp/got || return 1
        cmp /tmp/expected /tmp/got || return 1
        echo "  over $transport: $(grep -o '"\(evicted\|held\|protecting_calls\)": *[0-9]*' /tmp/stats | tr '\n' ' ')"
        grep -q '"held": *[1-9][0-9]\{2\}' /tmp/stats || return 1
    done
}

# What a page costs over verbs, by the same benchmark and the same arithmetic as over shared memory and TCP
# (tools/amat/systems/farmem-rdma.toml). Over shared memory beside it: what of that is emulation.
pages() {
    farmem-lab bench paging --systems shm,rdma --array 24 --local 8 --accesses "${1:-400}" --rounds "${2:-1}" --no-small \
        --json /tmp/paging.json >/tmp/paging || { cat /tmp/paging; return 1; }
    grep -q 'random read' /tmp/paging &&
        farmem amat --calibrate /tmp/paging.json --system farmem-shm,farmem-rdma --generate zipf --array 1M \
            --references 1 2>&1 | grep 'a miss'
}

# Swap by ublk, whose pages go to a node by RDMA: a program has more memory than its group, every word of it is right, and
# blocks come back when they are trimmed. Blocks are claimed by this allocator's protocol.
swapped() {
    [ -e /dev/ublk-control ] || { echo "  skipped: this kernel has no ublk"; return 0; }
    start_node || return 1
    farmem-rxe swap 127.0.0.1:7411 128 "$1" >/tmp/swap.log 2>&1 &
    server=$!
    tries=0
    until grep -q ready /tmp/swap.log || ! kill -0 $server 2>/dev/null || [ $tries -ge 300 ]; do
        tries=$((tries + 1))
        sleep 0.1
    done
    device=$(sed -n 's/^swap: \(\/dev[^ ]*\) of.*/\1/p' /tmp/swap.log)
    mkswap "$device" >/dev/null && swapon -d "$device" || { cat /tmp/swap.log; return 1; }
    [ -e /cg/cgroup.procs ] || { mkdir -p /cg && mount -t cgroup2 cgroup2 /cg; } || return 1
    echo +memory >/cg/cgroup.subtree_control && mkdir -p /cg/small || return 1
    echo 8M >/cg/small/memory.max
    sh -c 'echo $$ >/cg/small/cgroup.procs; exec words 20 600'
    held=$?
    swapoff "$device" || held=1
    kill $server
    wait $server
    sed "s/^/  $1: /" /tmp/swap.log
    grep -q 'claims and .* returns' /tmp/swap.log || held=1
    kill $node
    wait $node
    return $held
}

check windows farmem-rxe windows
check contract farmem-rxe contract
check evict farmem-rxe evict
check soft_dirty farmem-rxe soft-dirty
check sort sorts
check held held
check pages pages
check node_dies node_dies
check mirror mirrored
check swap swapped farmem
check swap_finemem swapped finemem
check swap_onesidedmw swapped onesidedmw

echo "GUEST failed: $failed"
exit $failed
