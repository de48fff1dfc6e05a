#!/bin/sh
# One of three machines that swap to one node (three.sh): its jobs, one in each phase.
read -r part local </part
machine=$(cat /machine)

await() {
    deadline=$(($(cut -d. -f1 /proc/uptime) + $1))
    shift
    until "$@"; do
        [ "$(cut -d. -f1 /proc/uptime)" -lt "$deadline" ] || return 1
        sleep 0.5
    done
}
goes() { tftp -g -r "go.$1" -l /tmp/answer 10.0.2.2 2>/dev/null; }
has_swap() { grep -q '^/dev/' /proc/swaps; }

farmem swap $(cat /options) --timeout 20s --grace 60s >/tmp/swap.log 2>&1 &
watcher=$!
await 120 has_swap || { cat /tmp/swap.log; exit 1; }
mkdir -p /cg/job
echo "${local}M" >/cg/job/memory.max
for phase in 1 2 3; do
    echo "HOST ready $phase"
    await 3000 goes $phase || { echo "phase $phase did not begin"; exit 1; }
    case $(((phase + machine) % 3)) in
        0) job=sqlite ;;
        1) job=gcc ;;
        2) job=sort ;;
    esac
    begun=$(cut -d. -f1 /proc/uptime)
    sh -c 'echo $$ >/cg/job/cgroup.procs; exec replay /jobs/'$job' '"$part"
    echo "JOB $job ended with $? after $(($(cut -d. -f1 /proc/uptime) - begun)) s"
done
kill -INT $watcher
wait $watcher
echo "swap ended with $?"
