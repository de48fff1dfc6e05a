#!/usr/bin/env bash
# Boots the machine that has no memory left, again and again. Each swaps by one connection and then
# by four. Prints each time, and at the end how many passed.
#
#   lab/guest/swap/pressure.sh [TIMES]      20, if it is not said
#
# Machines are at nice 19: they would take the CPU from everything else. FARMEM_GUEST_NICE: another one.
# FARMEM_GUEST_MEMORY: MiB of the machine, 144. FARMEM_GUEST_CHECKS: others of checks.sh.
# FARMEM_GUEST_MINUTES: no further time is begun after these.
set -euo pipefail
cd "$(dirname "$0")/../../.."
times=${1:-20}
# A machine whose allocations fail may say nothing for minutes: its connections wait ever longer before they send again, and
# the shell that tells of it may have been ended by such a failure.
export FARMEM_GUEST_SILENCE=${FARMEM_GUEST_SILENCE:-600}
export FARMEM_GUEST_MEMORY=${FARMEM_GUEST_MEMORY:-144} FARMEM_GUEST_LIMIT=${FARMEM_GUEST_LIMIT:-900} FARMEM_GUEST_NICE=${FARMEM_GUEST_NICE:-19}
checks=(${FARMEM_GUEST_CHECKS:-pressure pressure_by_four})
declare -A passed
for check in "${checks[@]}"; do passed[$check]=0; done
said=$(mktemp)
trap 'rm -f "$said"' EXIT

for time in $(seq "$times"); do
    [ $SECONDS -lt $((60 * ${FARMEM_GUEST_MINUTES:-1000000})) ] || { times=$((time - 1)); break; }
    status=0
    lab/guest/swap/run.sh "${checks[@]}" >"$said" 2>&1 || status=$?
    [ $status != 77 ] || { tail -1 "$said"; exit 77; }
    for check in "${checks[@]}"; do
        verdict=$(sed -n "s/^CHECK $check: //p" "$said")
        echo "time $time of $times, $check: ${verdict:-did not end}, $(sed -n "/^CHECK $check\$/,/^CHECK $check:/s/^  \(.*words wrong, filled.*\)/\1/p" "$said")"
        case $verdict in
            ok*) passed[$check]=$((passed[$check] + 1)) ;;
            *) sed 's/^/    /' "$said" ;;
        esac
    done
done

failed=0
for check in "${checks[@]}"; do
    echo "$check: ${passed[$check]} of $times passed"
    failed=$((failed + times - passed[$check]))
done
[ $failed = 0 ]
