#!/usr/bin/env bash
# Measures how long a page takes from a node, from the plainest server there can be, and from
# nbdkit, on this machine's loopback and without a guest: by the same client, by turns
# (compute/swap/examples/trips.rs).
#
#   lab/guest/swap/trips.sh [ROUNDS [READS]]
#
# FARMEM_BIN: the node's program; else it is built. FARMEM_PORT: three ports from here on.
set -euo pipefail
cd "$(dirname "$0")/../../.."
. lab/guest/lib.sh
need nbdkit:nbdkit cc:gcc
target=$(cargo metadata --no-deps --format-version 1 | sed 's/.*"target_directory":"\([^"]*\)".*/\1/')
farmem=${FARMEM_BIN:-$target/debug/farmem}
[ -n "${FARMEM_BIN:-}" ] || cargo build --locked --quiet -p farmem-cli
cargo build --locked --quiet -p farmem-swap --example trips
port=${FARMEM_PORT:-7700}
new=$(mktemp -d)
trap 'kill $(jobs -p) 2>/dev/null || true; rm -rf "$new"' EXIT

cc -O2 -Wall -pthread -o "$new/bare" lab/guest/swap/bare.c
RUNTIME_DIRECTORY=$new "$farmem" node --lend 64M --listen "127.0.0.1:$port" >"$new/node.log" 2>&1 &
node=$!
"$new/bare" $((port + 1)) 64 &
bare=$!
nbdkit --foreground --ipaddr 127.0.0.1 --port $((port + 2)) memory 64M >"$new/nbdkit.log" 2>&1 &
kit=$!
for one in "$port" $((port + 1)) $((port + 2)); do
    tries=0
    until (exec 3<>"/dev/tcp/127.0.0.1/$one") 2>/dev/null; do
        tries=$((tries + 1))
        [ $tries -lt 200 ] || { cat "$new"/*.log >&2; exit 1; }
        sleep 0.1
    done
done
"$target/debug/examples/trips" "${1:-9}" "${2:-2000}" "bare=127.0.0.1:$((port + 1)):$bare" "farmem=127.0.0.1:$port:$node" \
    "nbdkit=127.0.0.1:$((port + 2)):$kit"
