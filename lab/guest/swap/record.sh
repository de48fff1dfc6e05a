# Records what the kernel does to the slots of real programs that swap. Sourced by checks.sh. The programs are in /record;
# what is recorded goes to the host, to the port in /collect.

# program NAME   Runs it. Its own output is of no interest. The first is small, and its profile is known: by it the
# recording itself is tried.
program() {
    case $1 in
        toy) replay /record/profile 8 ;;
        redis) sh /record/redis.sh ;;
        python) python3.11 /record/python.py ;;
        sqlite) sqlite3 :memory: </record/sqlite.sql ;;
        sort) LC_ALL=C /usr/bin/sort -S 90M --parallel=1 -T /record -o /dev/null /record/lines ;;
        gcc) for unit in 1 2 3; do /record/cc1 -fpreprocessed -O2 -quiet /record/functions.c -o /dev/null; done ;;
    esac >/dev/null 2>/tmp/program.log
}

# bounded NAME KIB   Runs a program in a group of its own with so much memory. Sets most: the group's most, in KiB.
bounded() {
    mkdir -p /cg/bounded
    echo "$2" | awk '{ print $1 * 1024 }' >/cg/bounded/memory.max
    begun=$(cut -d' ' -f1 /proc/uptime)
    (echo 0 >/cg/bounded/cgroup.procs; program "$1")
    ended=$?
    most=$(($(cat /cg/bounded/memory.peak) / 1024))
    echo "  $1 with $2 KiB: ended with $ended after $(cut -d' ' -f1 /proc/uptime | awk -v b="$begun" '{ print $1 - b }') s, $most KiB at most"
    await 20 rmdir /cg/bounded 2>/dev/null
    return $ended
}

# Events of the swap device, and of freed slots by the probe of the watcher.
tracing=/sys/kernel/tracing/instances/record
trace_on() {
    mkdir -p $tracing
    echo mono >$tracing/trace_clock
    echo 8192 >$tracing/buffer_size_kb
    # 43: the kernel's NBD devices.
    echo 'dev >= 45088768 && dev < 46137344' >$tracing/events/block/block_bio_queue/filter
    echo 1 >$tracing/events/block/block_bio_queue/enable
    echo 1 >$tracing/events/farmem_swap/freed/enable
    slots "$1" <$tracing/trace_pipe &
    tracer=$!
}

# Fails if events were lost. The tracer ends at a mark of its own, behind the last event: all of them are in the file then.
trace_off() {
    echo 0 >$tracing/events/enable
    echo 'the record ends' >$tracing/trace_marker
    wait $tracer || return 1
    ! cat $tracing/per_cpu/cpu*/stats | grep -E 'overrun|dropped' | grep -v ': 0$' || return 1
    rmdir $tracing
}

recorded() {
    mkdir -p /tmp/traces
    for one in $(cat /collected); do
        on || return 1
        bounded "$one" 900000 || { tail -3 /tmp/program.log; return 1; }
        # Python's collector looks at every object: with less than half of its memory it does little else.
        case $one in python) tenths=5 ;; *) tenths=3 ;; esac
        trace_on "/tmp/traces/$one"
        bounded "$one" $((most * tenths / 10)) || { tail -3 /tmp/program.log; return 1; }
        trace_off || return 1
        off || return 1
        ls -l "/tmp/traces/$one"
        # One file in each archive: the last that comes is not to be one that was cut off.
        tar -C /tmp -c "traces/$one" | nc 10.0.2.2 "$(cat /collect)" || return 1
        rm "/tmp/traces/$one"
    done
}
