#!/bin/sh
# What is checked in the virtual machine. Each check says ok or FAILED; the last
# line says how many failed.
failed=0

check() {
    name=$1
    shift
    begun=$(cut -d' ' -f1 /proc/uptime)
    echo "CHECK $name"
    if "$@"; then verdict=ok; else verdict=FAILED; failed=$((failed + 1)); fi
    echo "CHECK $name: $verdict ($(cut -d' ' -f1 /proc/uptime | awk -v b="$begun" '{ printf "%.1f", $1 - b }') s)"
}

check "windows" farmem-rxe windows
check "contract" farmem-rxe contract

echo "GUEST failed: $failed"
exit $failed
