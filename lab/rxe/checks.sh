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

# A node that lends 512 MiB over TCP and RDMA, ready when this returns.
start_node() {
    farmem node --lend 512M --listen 127.0.0.1:7411 --rdma rxe0 >/tmp/node.log 2>&1 &
    node=$!
    tries=0
    until grep -q 7411 /tmp/node.log || [ $tries -ge 100 ]; do
        tries=$((tries + 1))
        sleep 0.1
    done
    grep -q 7411 /tmp/node.log || { cat /tmp/node.log; return 1; }
}

far() { farmem run --local "$local" --node 127.0.0.1:7411 --transport verbs "$@"; }

# Lines in no order: a program that holds all of its input, at a quarter of it.
sorts() {
    start_node || return 1
    farmem-rxe lines 400000 >/tmp/lines
    LC_ALL=C /usr/bin/sort --parallel=1 -S 400M /tmp/lines >/tmp/expected || return 1
    local=8M
    LC_ALL=C far -- /usr/bin/sort --parallel=1 -S 400M /tmp/lines >/tmp/got && cmp /tmp/expected /tmp/got
    held=$?
    [ $held -ne 0 ] || echo "  $(wc -l </tmp/got) lines as expected"
    kill $node
    wait $node
    return $held
}

probe() {
    start_node
    farmem-rxe lines 300000 >/tmp/lines
    for t in shm tcp verbs; do
        echo "== $t"
        dmesg -c >/dev/null
        echo 1 >/proc/sys/kernel/print-fatal-signals
        if [ $t = verbs ]; then n="--node 127.0.0.1:7411"; else n=; fi
        farmem run --local 8M $n --transport $t --stats none -- /usr/bin/sort --parallel=1 -S 400M /tmp/lines | tail -1
        dmesg | tail -25
    done
}
check windows farmem-rxe windows
check contract farmem-rxe contract
check sort sorts
case $wanted in *probe*) check probe probe ;; esac

echo "GUEST failed: $failed"
exit $failed
