#!/bin/sh
# Redis under farmem track, its keys overwritten at random and in order: docs/kona.md, section 2.
# redis.sh FARMEM [KEYS]. Needs redis-server and python3 (tests/peers.sh).
set -eu
farmem=$1 keys=${2:-160000} here=$(dirname "$0") dir=$(mktemp -d)
server='' load=''
trap 'kill $server $load 2>/dev/null || true; rm -rf "$dir"' EXIT
for order in random in-order; do
    redis-server --port 0 --unixsocket "$dir/s" --save "" --appendonly no --dir "$dir" >/dev/null &
    server=$!
    until [ -S "$dir/s" ]; do sleep 0.1; done
    python3 "$here/overwrite.py" "$dir/s" "$keys" $order >"$dir/said" &
    load=$!
    until grep -q filled "$dir/said"; do sleep 0.1; done
    echo "== $keys keys, $order"
    "$farmem" track --pid $server --windows 6 --max-pause 1s
    kill $load $server
    wait $server || true
    rm -f "$dir/s"
done
