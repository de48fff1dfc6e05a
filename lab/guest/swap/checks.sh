#!/bin/sh
# What is checked in the virtual machine. Each check says ok or FAILED; the last line says how many failed. /wanted names
# the checks to make; empty: all but the long ones.
failed=0
wanted=$(cat /wanted 2>/dev/null)
node=10.0.2.2:$(cat /port)
# It asks for a token; its tenant's quota is 224 MiB.
guarded=10.0.2.2:$(cat /guarded)
# One more.
third=10.0.2.2:$(cat /third)

# check NAME KIND COMMAND...   KIND: short, or long. The bound is at least twelve times the time on a quiet
# machine. A check that has not ended then prints the condition it waits for, and ends the machine.
check() {
    name=$1
    long=$2
    shift 2
    case " $wanted " in *" $name "*) ;; "  ") [ "$long" = short ] || return ;; *) return ;; esac
    begun=$(cut -d' ' -f1 /proc/uptime)
    echo "CHECK $name"
    : >/tmp/swap.log
    : >/tmp/waits
    case $long in short) bound=300 ;; *) bound=6000 ;; esac
    echo $((${begun%.*} + bound)) >/tmp/deadline
    if "$@"; then verdict=ok; else verdict=FAILED; failed=$((failed + 1)); echo "HOST go"; tail -5 /tmp/swap.log; dmesg | tail -5; farmem swap --off; fi
    rm -f /tmp/deadline
    echo "CHECK $name: $verdict ($(cut -d' ' -f1 /proc/uptime | awk -v b="$begun" '{ printf "%.1f", $1 - b }') s)"
}

# Ends the machine when a check has not ended by its bound. The shell does all of it by itself: a check may
# leave no memory for another process.
guard() {
    mkfifo /tmp/never
    exec 5<>/tmp/never
    while :; do
        read -r -t 2 never <&5
        up=0 deadline=
        read -r up idle </proc/uptime
        [ ! -e /tmp/deadline ] || read -r deadline </tmp/deadline
        [ -z "$deadline" ] || [ "${up%.*}" -lt "$deadline" ] || break
    done
    waits=
    read -r waits </tmp/waits
    echo "  it has not ended by its bound; it waits for: $waits"
    while read -r line; do echo "  swap: $line"; done </tmp/swap.log
    echo "CHECK ended by its bound: FAILED"
    echo 8 >/proc/sys/kernel/printk
    echo w >/proc/sysrq-trigger
    echo o >/proc/sysrq-trigger
}

# await SECONDS COMMAND...   Until it is true. No check waits for a fixed time: the gate compiles beside the guest, so a
# second may bring nothing. Bounds are far beyond what a quiet machine needs, and cost nothing there.
await() {
    bound=$1
    deadline=$(($(cut -d. -f1 /proc/uptime) + bound))
    shift
    echo "$*" >/tmp/waits
    until "$@"; do
        [ "$(cut -d. -f1 /proc/uptime)" -lt "$deadline" ] || { echo "  not within $bound s: $*"; return 1; }
        sleep 0.1
    done
}

# ended PROCESS WHAT   Waits for a process of this shell's. Returns as it did.
ended() {
    echo "the end of $2" >/tmp/waits
    wait "$1"
}

# said TEXT   By a watcher, since the check began.
said() { grep -q "$*" /tmp/swap.log; }

swaps() { grep -c '^/dev/' /proc/swaps; }
has_swap() { [ "$(swaps)" = "${1:-1}" ]; }

# on OPTION...   Swapping, when this returns.
on() {
    farmem swap --size "${size:-192M}" --node "$node" --timeout "${timeout:-3s}" --grace 120s "$@" >>/tmp/swap.log 2>&1 &
    watcher=$!
    await 60 has_swap "${devices:-1}" || { cat /tmp/swap.log; return 1; }
}

off() {
    kill -INT $watcher
    ended $watcher "the watcher, which swaps off" || { echo "  the watcher ended with $?"; return 1; }
    has_swap 0
}

# within MIB COMMAND...   In a memory group with that limit.
within() {
    mkdir -p /cg/small
    echo "${1}M" >/cg/small/memory.max
    shift
    sh -c 'echo $$ >/cg/small/cgroup.procs; exec "$@"' sh "$@"
}

# A program has more memory than its group, and every word of it is right. Its volume is freed.
verified() {
    on || return 1
    within 8 pages 20 600 || return 1
    sound && farmem status "$node" >/tmp/status || return 1
    sed -n '/swap volume of/,/^$/p' /tmp/status | grep -A1 volume || { cat /tmp/status; return 1; }
    off || return 1
    ! farmem status "$node" | grep -q 'swap volume of'
}

# has_given MIB [SECONDS]   A program in a group of 8 MiB has so much memory, gives back three quarters, and
# waits until /tmp/given is gone. Then it verifies every word, most of which are at the node. Sets program.
has_given() {
    rm -f /tmp/given
    within 8 give "$1" /tmp/given "${2:-0}" &
    program=$!
    await 200 [ -e /tmp/given ]
}

# The host has done what it was asked for by this word.
answered() { tftp -g -r "$1" -l /tmp/answer 10.0.2.2 2>/dev/null; }

# The node is silent for longer than the timeout: the kernel gives its stream up, the watcher gives it another, and
# nothing is lost.
cut_off() {
    on || return 1
    has_given 80 || return 1
    echo "HOST stop"
    await 60 answered stopped || return 1
    rm /tmp/given
    await 60 said 'pages are waited for' || { echo "  the watcher did not miss the node"; return 1; }
    echo "HOST go"
    ended $program "the program" || return 1
    await 60 said 'is back' || { echo "  the watcher did not have to come back"; return 1; }
    off
}

# Reads and writes of the device that have ended.
requests() { awk '{ print $1 + $5 }' /sys/block/nbd0/stat; }
more_requests() { [ "$(requests)" -ge $((requested + $1)) ]; }

# Every answer takes longer than the timeout, when a program needs its pages. Each request would be sent
# again for ever, with its first timeout. The watcher says so, raises the timeout, and has these requests
# waited for: requests end while answers are late, and the program does.
late() {
    farmem swap --size 64M --node "10.0.2.2:$(cat /slow)" --timeout 2s --grace 60s >>/tmp/swap.log 2>&1 &
    watcher=$!
    await 60 has_swap || { cat /tmp/swap.log; return 1; }
    has_given 40 || return 1
    echo "HOST late 3500 0 late"
    await 60 answered late || return 1
    rm /tmp/given
    # On a busy machine it was said earlier; then that timeout is enough.
    await 120 said 'take longer than --timeout' || { echo "  the watcher did not raise the timeout"; return 1; }
    requested=$(requests)
    await 120 more_requests 3 || { echo "  no request ends"; return 1; }
    echo "HOST late 0 0 early"
    ended $program "the program" || return 1
    grep 'longer than' /tmp/swap.log | sed 's/^/  /'
    off
}

# Pages have left to each device since it was made.
is_used() {
    for about in /sys/block/nbd*/stat; do
        awk '$7 < 256 { exit 1 }' "$about" || return 1
    done
}

reconnects() { dmesg | grep -c 'reconnected socket'; }
reconnects_again() { [ "$(reconnects)" -gt "$before" ]; }

# Nothing waits for the watcher: without it swapping goes on, and another takes over.
killed() {
    dmesg -c >/dev/null
    # Without a watcher a stream that is given up stays so: none is, on a machine that is slow.
    timeout=100s
    on || return 1
    timeout=
    within 8 pages 20 600 &
    program=$!
    await 60 is_used || return 1
    kill -9 $watcher
    wait $watcher 2>/dev/null
    ended $program "the program" || return 1
    # An idle stream stays, for longer than the watcher would have waited for an answer.
    sleep 7
    ! dmesg | grep 'Receive control failed' || { echo "  an idle stream was given up"; return 1; }
    # What is asked for anew is not silently left out.
    farmem swap --size 192M --node "$node" --crypt >>/tmp/swap.log 2>&1 && { echo "  --crypt was left out"; return 1; }
    await 60 said 'without --crypt' || return 1
    # The file's content could be on the device itself: nothing is read of it.
    for about in /run/farmem-swap/nbd*.json; do echo unreadable >"$about"; done
    before=$(reconnects)
    farmem swap --size 192M --node "$node" >>/tmp/swap.log 2>&1 &
    watcher=$!
    await 60 said 'watches .* on' || return 1
    # A request under way on the stream before would wait for its timeout.
    await 60 reconnects_again || return 1
    within 8 pages 16 300 || return 1
    kill -9 $watcher
    wait $watcher 2>/dev/null
    echo "farmem swap --off" >/tmp/waits
    farmem swap --off >>/tmp/swap.log 2>&1 && has_swap 0
}

# Becomes farmem swap by the relay.
relayed() { exec farmem swap --size 64M --node "10.0.2.2:$(cat /slow)" --timeout 5s --grace 120s; }

# slowly WORD   A program has pages at the node, and --off takes long. The host answers by the word.
slowly() {
    relayed >>/tmp/swap.log 2>&1 &
    watcher=$!
    await 60 has_swap || { cat /tmp/swap.log; return 1; }
    has_given 48 || return 1
    # 12 MiB stay, in answers of some pages each, each late.
    echo max >/cg/small/memory.max
    echo "HOST late 100 0 $1"
    await 60 answered "$1" || return 1
    requested=$(requests)
}

# The watcher is told to end, and --off comes beside it. One brings pages back, the other waits, and both end well.
off_twice() {
    slowly twice || return 1
    kill -INT $watcher
    await 60 more_requests 8 || return 1
    farmem swap --off >>/tmp/swap.log 2>&1 &
    undoes=$!
    await 60 said 'waits for its end' || return 1
    echo "HOST late 0 0 twice.quicker"
    ended $watcher "the watcher, which swaps off" || { echo "  the watcher ended with $?"; return 1; }
    ended $undoes "farmem swap --off" || { echo "  --off ended with $?"; return 1; }
    has_swap 0 || return 1
    rm /tmp/given
    ended $program "the program"
}

# What a service's manager does with a watcher that did not end well (Restart=on-failure).
restarts() { until (relayed >>/tmp/swap.log 2>&1); do sleep 1; done; }

# The watcher is killed during --off, and started again as by its service. It does not swap anew.
off_restarted() {
    slowly restarted || return 1
    farmem swap --off >>/tmp/swap.log 2>&1 &
    undoes=$!
    await 60 more_requests 8 || return 1
    kill -9 $watcher
    wait $watcher 2>/dev/null
    restarts &
    again=$!
    await 60 said 'waits for its end' || return 1
    echo "HOST late 0 0 restarted.quicker"
    ended $undoes "farmem swap --off" || { echo "  --off ended with $?"; return 1; }
    ended $again "the watcher that was started again" || return 1
    said 'was undone' && has_swap 0 || return 1
    rm /tmp/given
    ended $program "the program"
}

# The watcher is killed, and the stream is cut while --off has the kernel bring pages back. --off makes
# another stream, and no word is lost.
off_cut() {
    slowly slower || return 1
    kill -9 $watcher
    wait $watcher 2>/dev/null
    # Most pages are missing when the stream is cut.
    farmem swap --off >>/tmp/swap.log 2>&1 &
    undoes=$!
    await 60 more_requests 8 || return 1
    before=$(reconnects)
    echo "HOST late 100 1 cut"
    await 60 answered cut || return 1
    await 120 reconnects_again || { echo "  there is no other stream"; return 1; }
    echo "HOST late 0 1 quicker"
    await 120 has_swap 0 || return 1
    ended $undoes "farmem swap --off" || return 1
    rm /tmp/given
    ended $program "the program"
}

# The watcher is killed, and --off fails, because memory has no room for the pages. The device has a stream when
# --off ends, so swapping goes on.
off_fails() {
    on || return 1
    has_given 80 || return 1
    kill -9 $watcher
    wait $watcher 2>/dev/null
    echo 1 >/proc/sys/vm/overcommit_kbytes
    echo 2 >/proc/sys/vm/overcommit_memory
    farmem swap --off >>/tmp/swap.log 2>&1
    undone=$?
    echo 0 >/proc/sys/vm/overcommit_memory
    [ $undone != 0 ] && said 'swapoff: Cannot allocate' || { echo "  --off did not fail for want of memory"; return 1; }
    rm /tmp/given
    ended $program "the program" || return 1
    farmem swap --off >>/tmp/swap.log 2>&1 && has_swap 0
}

# The node's words agree with its records.
sound() { farmem check "$node" >/tmp/check || { cat /tmp/check; return 1; }; }

# elsewhere HOW COMMAND...   In a root of its own: a chroot, or a chroot of a mount namespace of its own.
elsewhere() {
    how=$1
    shift
    mkdir -p /jail
    case $how in
        chroot) sh -c "$jail" sh "$@" ;;
        namespace) unshare -m sh -c "$jail" sh "$@" ;;
    esac
}
jail='mount -t tmpfs -o mode=755 jail /jail
for at in dev proc sys run tmp; do mkdir /jail/$at; mount -o bind /$at /jail/$at; done
for at in bin usr lib lib64; do [ ! -e /$at ] || { mkdir /jail/$at; mount -o bind /$at /jail/$at; }; done
exec chroot /jail "$@"'

# So many swap areas, by whatever names.
areas() { [ "$(tail -n +2 /proc/swaps | wc -l)" = "$1" ]; }

# Swapping began in another root, so /proc/swaps has another name for the device here, or the name of nothing. --off ends it
# and loses no word. A device that is in use by something else stays, with its pages.
renamed() {
    for how in chroot namespace; do
        elsewhere $how farmem swap --size 31M --node "$node" --timeout 3s --grace 120s >>/tmp/swap.log 2>&1 &
        watcher=$!
        await 60 areas 1 || { cat /tmp/swap.log; return 1; }
        echo "  $how: $(awk '/dev/ { print $1 }' /proc/swaps)"
        [ $how = namespace ] || ! grep -q '^/dev/nbd' /proc/swaps || return 1
        has_given 24 || return 1
        echo "farmem swap --off" >/tmp/waits
        farmem swap --off >>/tmp/swap.log 2>&1 && areas 0 || { cat /tmp/swap.log; return 1; }
        ended $watcher "the watcher, whose device was undone" || return 1
        rm /tmp/given
        ended $program "the program" || return 1
        [ $how = namespace ] || umount -l /jail || return 1
    done
}

# The node is told to go down. The watcher brings everything back while the node waits. When there is no room for that it
# watches on, and tries again.
goes() {
    farmem swap --size 48M --node "$third" --token /token --timeout 10s --grace 120s >>/tmp/swap.log 2>&1 &
    watcher=$!
    await 60 has_swap || { cat /tmp/swap.log; return 1; }
    has_given 24 || return 1
    echo 1 >/proc/sys/vm/overcommit_kbytes
    echo 2 >/proc/sys/vm/overcommit_memory
    echo "HOST end third"
    await 60 said 'ended when it can be'
    tried=$?
    echo 0 >/proc/sys/vm/overcommit_memory
    [ $tried = 0 ] && has_swap 1 || return 1
    ended $watcher "the watcher, which tries again" || { echo "  the watcher ended with $?"; return 1; }
    has_swap 0 || return 1
    rm /tmp/given
    ended $program "the program" || return 1
    await 60 answered ended.third || { echo "  the node has not ended"; return 1; }
    echo "HOST again third"
    await 60 farmem status --token /token "$third" >/dev/null
}

# The rack of the node is told to empty it. The watcher brings everything back, and the drain ends.
drained() {
    echo "HOST rack"
    await 60 answered racked || return 1
    farmem swap --size 48M --node "10.0.2.2:$(cat /tmp/answer)" --timeout 10s --grace 120s >>/tmp/swap.log 2>&1 &
    watcher=$!
    await 60 has_swap || { cat /tmp/swap.log; return 1; }
    has_given 24 || return 1
    echo max >/cg/small/memory.max
    echo "HOST drain"
    ended $watcher "the watcher of a drained node" || { echo "  the watcher ended with $?"; return 1; }
    said 'is to be emptied' && has_swap 0 || return 1
    rm /tmp/given
    ended $program "the program" || return 1
    await 60 answered drained || { echo "  the drain has not ended"; return 1; }
}

# A memory group of version 2, without swap: a program that its limit kills goes on under farmem run, with a node outside
# of the group. A --local beyond the limit is refused.
grouped() {
    within 24 pages 48 200 >/tmp/native 2>&1
    native=$?
    [ $native = 137 ] || { echo "  natively it ended with $native"; return 1; }
    within 24 farmem run --local 6M --transport tcp --node "$node" --stats none -- far-pages 48 200 || return 1
    echo "  $(awk '{ print int($1 / 1024) }' /cg/small/memory.peak 2>/dev/null || echo "?") KiB in the group at most"
    within 24 farmem run --local 23M --transport tcp --node "$node" --stats none -- far-pages 48 200 >/tmp/ended 2>&1
    [ $? = 137 ] && grep 'the kernel ended it' /tmp/ended | sed 's/^/  /' || { cat /tmp/ended; return 1; }
    within 24 farmem run --local 30M --transport tcp --node "$node" -- far-pages 48 200 >/tmp/refused 2>&1
    [ $? = 64 ] && grep 'memory group' /tmp/refused | sed 's/^/  /'
}

# Seconds since then.
took() { cut -d' ' -f1 /proc/uptime | awk -v from="$1" '{ printf "%.1f", $1 - from }'; }

# figure NAME   Of the volume, in KiB, as the node says.
figure() { farmem status --json "$node" | grep -A8 '"volumes"' | sed -n "s/.*\"$1\": *\([0-9]*\).*/\1/p" | awk '{ sum += $1 } END { print int(sum / 1024) }'; }

# Seconds that it takes to ask the node for a figure.
a_look() {
    looked=$(cut -d' ' -f1 /proc/uptime)
    figure held >/dev/null
    took "$looked"
}

# The node holds at most so many KiB. Says what it held, and what was live, each time that it is asked in vain.
holds_at_most() {
    held=$(figure held)
    [ "$held" -le "$1" ] || { echo "  $(cut -d' ' -f1 /proc/uptime): $held KiB held, $(figure live) KiB live"; return 1; }
}

# Slots in use are at least nine tenths of what the node holds, as the kernel counts them.
well_used() {
    used=$(awk '/nbd/ { print $4 }' /proc/swaps)
    holds_at_most $((used * 10 / 9))
}

# The node holds no more blocks than the slots in use fill, as the kernel counts them: one at least.
gave_back() {
    used=$(awk '/nbd/ { print $4 }' /proc/swaps)
    holds_at_most $(((used / 2048 + 1) * 2048))
}

# A program gives back three of four pages at random: the node holds little more than what is live. When the program has
# ended, the node has its memory back, but for what the kernel itself counts as in use: slots of other programs, and freed
# ones that it keeps, 64 for each processor. A second is enough for each on a machine that does nothing else.
freed() {
    on || return 1
    grep 'come back' /tmp/swap.log | tail -1
    # Large beside a block of 2 MiB, of which the last may be nearly empty. A page that was just written may be
    # told of late, so it is kept for some seconds before it is given back.
    has_given 112 5 || return 1
    given=$(cut -d' ' -f1 /proc/uptime)
    await 120 well_used || return 1
    echo "  $(took "$given") s after giving back, of which $(a_look) s are the last look:"
    farmem status "$node" | grep -A1 'swap volume of'
    sound || return 1
    echo "  after giving back: $used KiB of slots in use, $held KiB held, $((used * 100 / held)) %"
    rm /tmp/given
    ended $program "the program" || return 1
    given=$(cut -d' ' -f1 /proc/uptime)
    await 120 gave_back || return 1
    echo "  $(took "$given") s after its end, of which $(a_look) s are the last look:"
    sound || return 1
    echo "  after its end: $used KiB of slots in use, $held KiB held"
    off && [ ! -e /sys/kernel/tracing/instances/farmem_swap ]
}

# What arrives at the node is the plain page, and with --crypt it is not. Swapping is verified, freed pages come back, and
# --off undoes it. The host looks for the page's text in the node's memory, and says what it has found.
crypted() {
    for how in plain crypt; do
        case $how in plain) on ;; *) on --crypt ;; esac || return 1
        has_given 24 || return 1
        echo "HOST seek $how"
        await 60 answered "$how" || return 1
        echo "  $how: $(awk '/dev/ { print $1, $4 }' /proc/swaps) KiB in use, $(figure held) KiB held"
        rm /tmp/given
        ended $program "the program" || return 1
        [ $how = crypt ] || off || return 1
    done
    farmem swap --off >>/tmp/swap.log 2>&1 || return 1
    wait $watcher
    [ -z "$(tail -n +2 /proc/swaps)" ] && [ -z "$(ls -d /sys/block/dm-* 2>/dev/null)" ]
}

# Where the kernel reports no freed slots there are small devices, which it fills one after the other.
small() {
    # Each is larger than the program by far: on a slow machine, clusters that are free wait for their discard.
    devices=8 size=448M
    on --without-probe
    status=$?
    devices=1 size=
    [ $status = 0 ] && said 'from 8 small devices' || return 1
    within 8 pages 20 200 || return 1
    # A header is less than that.
    awk '$7 > 64 { print "  " FILENAME, $7 / 2048, "MiB out"; used++ } END { exit used != 1 }' /sys/block/nbd[0-7]/stat || return 1
    farmem status "$node" | grep -c 'clusters$' | grep -qx 8 || { farmem status "$node"; return 1; }
    off
}

# Two connections are two devices.
several() {
    farmem swap --size 192M --node "$node" --connections 2 >>/tmp/swap.log 2>&1 &
    watcher=$!
    await 60 has_swap 2 || return 1
    within 8 pages 20 600 || return 1
    awk '{ print "  " FILENAME, $7 / 2048, "MiB out" }' /sys/block/nbd*/stat
    is_used || return 1
    off
}

# What cannot be is refused, with a line that says why.
refused() {
    farmem swap --size 10G --node "$node" >/tmp/said 2>&1 && return 1
    sed 's/^/  /' /tmp/said
    grep -q 'cannot promise that much' /tmp/said || return 1
    farmem node --lend 64M --listen 127.0.0.1:7411 >/tmp/node.log 2>&1 &
    own=$!
    await 60 grep -q 7411 /tmp/node.log || return 1
    farmem swap --size 16M --node 127.0.0.1:7411 >/tmp/said 2>&1
    status=$?
    kill $own
    wait $own 2>/dev/null
    sed 's/^/  /' /tmp/said
    [ $status -eq 64 ] && grep -q 'on this machine' /tmp/said && has_swap 0 || return 1
    # A node of version 6 of the protocol says this to a host of any other.
    printf 'farmem\006\000\002\000\001\000' | nc -l -p 7412 >/tmp/hello &
    own=$!
    # It listens by IPv6 where there is that.
    await 60 grep -qs ':1CF4 ' /proc/net/tcp /proc/net/tcp6 || return 1
    farmem swap --size 16M --node 127.0.0.1:7412 >/tmp/said 2>&1
    status=$?
    kill $own 2>/dev/null
    wait $own 2>/dev/null
    sed 's/^/  /' /tmp/said
    [ $status -eq 72 ] && grep -q 'speaks version 6 of the protocol, this farmem version [7-9]' /tmp/said && has_swap 0
}

# A node with --tokens refuses swap without a token, and beyond its tenant's quota, in one line each. The check mirrored
# swaps by a token.
tokens() {
    farmem swap --size 64M --node "$guarded" >/tmp/said 2>&1 && return 1
    farmem swap --size 240M --node "$guarded" --token /token >>/tmp/said 2>&1 && return 1
    sed 's/^/  /' /tmp/said
    [ "$(wc -l </tmp/said)" = 2 ] && grep -q -- '--token FILE' /tmp/said && grep -q 'promise.*224' /tmp/said
}

# Two nodes have every page. One is killed while a program swaps; it is started anew, and gets all pages again; then the
# other one is killed. Every word is right, of a program that goes on and of one that waits.
mirrored() {
    farmem swap --size 48M --node "$guarded" --node "$third" --protect mirror --token /token --timeout 10s --grace 5s "$@" >>/tmp/swap.log 2>&1 &
    watcher=$!
    await 60 has_swap || return 1
    has_given 24 || return 1
    waits=$program
    within 8 pages 12 400 "HOST kill third" &
    program=$!
    await 120 said "one copy is left, at $guarded" || return 1
    farmem top --once | grep 'one copy is left' | sed 's/^/  /' | grep . || return 1
    ended $program "the program" || return 1
    echo "HOST again third"
    await 120 said 'two copies again' || return 1
    echo "HOST kill second"
    within 8 pages 12 300 || return 1
    await 120 said "one copy is left, at $third" || return 1
    rm /tmp/given
    ended $waits "the program that waits" || return 1
    grep -E 'cop(y|ies)' /tmp/swap.log | sed 's/^/  /'
    off && [ ! -e /sys/block/md_farmem0 ] && [ -z "$(ls /run/farmem-swap)" ]
}

# Of two nodes with every page one answers the watcher, and sends no page. The other copy is used alone, within four times
# the timeout on a quiet machine, and no word is lost. That node gets no copy before a page comes back from it.
silent_copy() {
    farmem swap --size 48M --node "$guarded" --node "10.0.2.2:$(cat /silent)" --protect mirror --token /token --timeout 3s --grace 5s >>/tmp/swap.log 2>&1 &
    watcher=$!
    await 60 has_swap || { cat /tmp/swap.log; return 1; }
    has_given 24 || return 1
    echo "HOST silent yes silent"
    await 60 answered silent || return 1
    from=$(cut -d. -f1 /proc/uptime)
    # While writes wait, the kernel would kill programs of a group that may not grow beyond its limit.
    echo 8M >/cg/small/memory.high
    within 100 pages 12 300 &
    writes=$!
    await 120 said 'the other copy is used alone' || return 1
    echo "  after $(($(cut -d. -f1 /proc/uptime) - from)) s:"
    await 60 said "one copy is left, at $guarded" || return 1
    ! said SIGBUS || { cat /tmp/swap.log; return 1; }
    ended $writes "the program that writes" || return 1
    ! said 'copies pages to' || { echo "  the silent node got a copy"; return 1; }
    echo "HOST silent no heard"
    await 60 answered heard || return 1
    await 120 said 'two copies again' || return 1
    rm /tmp/given
    ended $program "the program that waits" || return 1
    echo max >/cg/small/memory.high
    grep -E 'no page|cop(y|ies)' /tmp/swap.log | sed 's/^/  /'
    off && [ ! -e /sys/block/md_farmem0 ] && [ -z "$(ls /run/farmem-swap)" ]
}

# The machine has no memory left, and no other swap: it must neither hang nor lose a word.
pressed() {
    free=$(awk '/MemAvailable/ { print int($2 / 1024) }' /proc/meminfo)
    echo "  $free MiB free, $((free + 32)) MiB wanted"
    refills 2>/dev/null
    pages $((free + 32)) 200 &
    program=$!
    # A machine that hangs shows where.
    teller $program $watcher &
    watchdog=$!
    ended $program "the program"
    held=$?
    kill $watchdog 2>/dev/null
    # The teller had the kernel tell of its errors.
    echo 1 >/proc/sys/kernel/printk
    sed 's/^/  swap: /' /tmp/swap.log
    refilled 2>/dev/null
    return $held
}

# By so many connections, and with these options.
pressure() {
    devices=$1
    shift
    on --connections "$devices" "$@" || return 1
    devices=1
    pressed && off
}

# The connection is cut while there is no memory left: the watcher needs some for another, and gets it.
pressure_cut() {
    on || return 1
    before=$(reconnects)
    (await 60 is_used && echo "HOST pause 12") &
    pressed || return 1
    reconnects_again || { echo "  the watcher did not have to come back"; return 1; }
    off
}

# With two copies.
pressure_on_mirror() {
    farmem swap --size 96M --node "$guarded" --node "$third" --protect mirror --token /token --timeout 3s --grace 120s >>/tmp/swap.log 2>&1 &
    watcher=$!
    await 60 has_swap || return 1
    pressed && off
}

# Nothing waits for the watcher, least of all then: it is killed when pages leave.
pressure_unwatched() {
    on || return 1
    (await 60 is_used && kill -9 $watcher && echo "  the watcher is killed") &
    pressed || return 1
    wait $watcher 2>/dev/null
    [ $? = 137 ] || { echo "  the watcher was not killed"; return 1; }
    farmem swap --off >>/tmp/swap.log 2>&1 && has_swap 0
}

# span FUNCTION   Where a function of the kernel's begins and ends.
span() {
    awk -v name="$1" 'from && $1 != from { print "0x" from, "0x" $1; exit }
        !from && ($3 == name || index($3, name ".") == 1 && $3 !~ /cold/) { from = $1 }' /proc/kallsyms
}

# may_fail WHAT   WHAT, which can fail on purpose, gets its settings: in at.
may_fail() {
    at=/sys/kernel/debug/$1
    [ -d $at ] || mount -t debugfs debugfs /sys/kernel/debug 2>/dev/null
    [ -e $at/reject-start ] || { echo "  this kernel has no $1, or cannot tell for whom it fails"; return 1; }
    echo 0 >$at/verbose
    echo 100000000 >$at/times
    echo 32 >$at/stacktrace-depth
}

# failing PERCENT   From now on allocations fail where the caller does not wait: of pages, single ones too, and of
# smaller pieces. Interrupts and the network allocate in this way: a packet is lost, and sent again.
# What virtio_net allocates for its receive ring (try_fill_recv) is spared. Where that fails, its worker switches receiving
# off and allocates with leave to wait: for pages to be swapped out, whose answers are then not received. Such a machine stands
# still, whatever the node and the watcher do (docs/results/2026-11-28-long.md).
failing() {
    set -- "$1" $(span try_fill_recv)
    [ $# = 3 ] || { echo "  this kernel does not say where try_fill_recv is"; return 1; }
    for what in fail_page_alloc failslab; do
        may_fail $what || return 1
        echo Y >$at/ignore-gfp-wait
        [ $what = failslab ] || echo 0 >$at/min-order
        echo "$2" >$at/reject-start
        echo "$3" >$at/reject-end
        echo "$1" >$at/probability
    done
}

# taken_over OPTION...   A watcher is killed. The next one has the kernel take its stream, by which pages move then.
taken_over() {
    timeout=100s
    on "$@" || return 1
    timeout=
    kill -9 $watcher
    wait $watcher 2>/dev/null
    before=$(reconnects)
    farmem swap --size 192M --node "$node" "$@" >>/tmp/swap.log 2>&1 &
    watcher=$!
    await 60 reconnects_again || return 1
    within 8 pages 16 300 && off
}

# The same where the node wants a token: the next watcher proves what was agreed on when the volume was made.
taken_over_by_token() {
    open=$node
    node=$guarded
    taken_over --token /token
    held=$?
    node=$open
    return $held
}

# The kernel has no memory to tell that it has given a stream up. A watcher sees it by the stream's descriptor, also one that
# takes over.
untold() {
    set -- $(span nbd_dead_link_work)
    [ $# = 2 ] || { echo "  this kernel does not say where nbd_dead_link_work is"; return 1; }
    may_fail failslab || return 1
    echo N >$at/ignore-gfp-wait
    echo "$1" >$at/require-start
    echo "$2" >$at/require-end
    echo 100 >$at/probability
    cut_off && taken_over
    held=$?
    echo 0 >$at/probability
    echo 0 >$at/require-start
    echo 0xffffffffffffffff >$at/require-end
    lost=$((100000000 - $(cat $at/times)))
    echo "  deaths that could not be told: $lost"
    [ $held = 0 ] && [ $lost -ge 2 ]
}

failed_allocations() { for what in fail_page_alloc failslab; do echo "$what $((100000000 - $(cat /sys/kernel/debug/$what/times)))"; done; }

# Notes when virtio_net fills its ring outside of the interrupt, for which it stops receiving (refill_work).
refills() {
    at=/sys/kernel/debug/tracing/instances/refills
    [ -d ${at%/*} ] || mount -t debugfs debugfs /sys/kernel/debug
    for probe in p:ref/in r:ref/out; do echo "$probe refill_work" >>${at%/*/*}/kprobe_events; done
    mkdir -p $at
    echo 64 >$at/buffer_size_kb
    : >$at/trace
    echo 1 >$at/events/ref/enable
}

# How often, and for how long.
refilled() {
    awk '/ (in|out): / && match($0, /[0-9]+\.[0-9]+:/) {
            at = substr($0, RSTART, RLENGTH - 1)
            if (/ in: /) from = at; else { times++; took = at - from; if (took > most) most = took }
        }
        END { printf "  virtio_net filled its ring outside of the interrupt %d times, in %.3f s at most\n", times, most }' \
        /sys/kernel/debug/tracing/instances/refills/trace
}

# The same while allocations fail.
pressure_failing() {
    # A lost packet is sent again after 0.2 s, and each time later. Within the default some are lost four times.
    timeout=10s
    devices=$1
    on --connections "$1" || return 1
    devices=1 timeout=
    failing 5 || return 1
    pressed
    held=$?
    echo "  allocations that failed:" $(failed_allocations)
    failing 0
    [ $held = 0 ] && off
}

# The node is gone for good: who needs its pages ends by SIGBUS within the grace, and the machine lives.
lost() {
    farmem swap --size 192M --node "$node" --timeout 2s --grace 3s >>/tmp/swap.log 2>&1 &
    watcher=$!
    await 60 has_swap || return 1
    has_given 80 || return 1
    echo "HOST kill node"
    await 60 answered killed.node || return 1
    rm /tmp/given
    ended $program "the program that needs a lost page"
    status=$?
    echo "  the program ended with $status"
    [ $status -eq 135 ] || return 1
    off
    has_swap 0
}

. /faults.sh
. /record.sh
. /machine.sh

guard &
check refused short refused
check tokens short tokens
check verified short verified
check grouped short grouped
check cut_off short cut_off
check late short late
check killed short killed
check off_cut short off_cut
check off_twice short off_twice
check off_restarted short off_restarted
check off_fails short off_fails
check renamed short renamed
check goes short goes
check drained short drained
check freed short freed
check crypted short crypted
check several short several
check small long small
check mirrored short mirrored
check silent_copy short silent_copy
check pressure short pressure 1
check pressure_by_four long pressure 4
check pressure_cut long pressure_cut
check pressure_on_mirror long pressure_on_mirror
check pressure_crypted long pressure 1 --crypt
check pressure_unwatched long pressure_unwatched
check pressure_failing long pressure_failing 1
check pressure_failing_by_two long pressure_failing 2
check taken_over_by_token long taken_over_by_token
check untold long untold
check faults long faulted
check recorded long recorded
check machine long machine
check lost short lost

echo "GUEST failed: $failed"
exit $failed
