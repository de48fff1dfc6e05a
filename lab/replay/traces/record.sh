#!/bin/sh
# Records the traces beside this file anew, or larger ones elsewhere (DIR): real
# programs, by farmem's pager (minutes; needs redis, python3 with numpy, sqlite3,
# xz, gcc, rustc).
# Usage: [SCALE=N] [DIR=…] [FARMEM=…] record.sh [PROGRAM…]   from the repository's root
set -eu
dir=${DIR:-lab/replay/traces}
farmem=${FARMEM:-"cargo run --release -q --"}
scale=${SCALE:-1}
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
[ $# -gt 0 ] || set -- redis dict numpy sqlite gnusort gcc xz hashjoin

record() { # NAME COMMAND…
    name=$1
    shift
    $farmem run --local 1G --stats none --trace "$tmp/$name.trace" -- "$@" > "$tmp/out"
    keep "$name"
}

keep() {
    xz -9e -c "$tmp/$1.trace" > "$dir/$1.trace.xz"
    ls -l "$dir/$1.trace.xz"
}

for program; do
    case $program in
        redis) # 8 000 keys set in random order, then read by a skewed law
            $farmem run --local 1G --stats none --trace "$tmp/redis.trace" -- redis-server --port 0 --save '' \
                --unixsocket "$tmp/redis.sock" > "$tmp/out" &
            until redis-cli -s "$tmp/redis.sock" ping > "$tmp/pong" 2>&1; do sleep 0.1; done
            python3 -c '
import random, sys
random.seed(1)
n = 8000 * int(sys.argv[1])
keys = list(range(n))
random.shuffle(keys)
for k in keys: print(f"SET key:{k} {random.getrandbits(2000):x}")
for i in range(3 * n): print(f"GET key:{keys[int(random.paretovariate(0.5)) % n]}")
' "$scale" | redis-cli -s "$tmp/redis.sock" > "$tmp/out"
            redis-cli -s "$tmp/redis.sock" shutdown nosave
            wait
            keep redis ;;
        dict) record dict /usr/bin/python3 -S -c '
import random, sys
n = 24000 * int(sys.argv[1])
random.seed(1)
d = {}
for i in range(n): d[random.randrange(n)] = str(i)
t = 0
for i in range(n): t += len(d.get(int(random.paretovariate(0.3)) % n, ""))
' "$scale" ;;
        numpy) record numpy env OPENBLAS_NUM_THREADS=1 /usr/bin/python3 -c '
import numpy as np, sys
n = int(sys.argv[1])
r = np.random.default_rng(7)
a = r.random(30_000 * n)
i = np.argsort(a, kind="stable")
b = a[i]
a.sort()
m = r.integers(0, 100, (150, 150)).astype(np.float64)
m @ m @ m.T
' "$scale" ;;
        sqlite) record sqlite sqlite3 :memory: "
create table t(a integer primary key, b text, c integer);
with recursive n(i) as (select 1 union all select i+1 from n where i < 24000 * $scale)
insert into t select i, hex(randomblob(32)), (i*7919)%(24000 * $scale) from n;
create index by_c on t(c);
select count(*) from t x join t y on x.c = y.a where y.b like '%A%';
select sum(length(b)) from t where c between 100 and 8000;
delete from t where a % 5 = 0;
select count(distinct b) from t;" ;;
        gnusort)
            awk -v n=$((60000 * scale)) 'BEGIN { srand(1); for (i = 0; i < n; i++) print int(rand() * 1e9), i }' > "$tmp/in"
            record gnusort sort --parallel=2 -S 64M -n "$tmp/in" ;;
        gcc)
            i=0
            while [ $i -lt $((12 * scale)) ]; do
                echo "int f$i(int a, int *p) { int s = 0; for (int i = 0; i < a; i++) { s += p[i] * $i; if (s % 7 == 3) s ^= p[s & 15]; } return s; }"
                i=$((i + 1))
            done > "$tmp/big.c"
            record gcc "$(gcc -print-prog-name=cc1)" -O2 -quiet -o /dev/null "$tmp/big.c" ;;
        xz)
            head -c $((60000 * scale)) "$(gcc -print-prog-name=cc1)" > "$tmp/in"
            record xz xz -9 -T1 -k -c "$tmp/in" ;;
        hashjoin)
            rustc -O -o "$tmp/hash-join" tests/programs/hash_join.rs
            record hashjoin "$tmp/hash-join" $((50000 * scale)) 2 ;;
    esac
done
