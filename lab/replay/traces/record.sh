#!/bin/sh
# Records the traces beside this file anew: real programs at small sizes, under
# valgrind's lackey (minutes; needs valgrind, python3, sqlite3, xz, gcc).
# Usage: record.sh [PROGRAM…]   from the repository's root
set -eu
here=lab/replay/traces
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
replay=${REPLAY:-"cargo run --release -q -p farmem-replay --"}
python=${PYTHON:-/usr/bin/python3}
[ $# -gt 0 ] || set -- dict sort sqlite gcc xz gnusort

record() { # NAME COMMAND…
    name=$1
    shift
    $replay --most 400000 --record "$tmp/$name.trace" -- "$@"
    xz -9e -c "$tmp/$name.trace" > "$here/$name.trace.xz"
}

for program; do
    case $program in
        dict) record dict "$python" -S -c '
import random
random.seed(1)
d = {}
for i in range(30000): d[random.randrange(40000)] = str(i)
t = 0
for i in range(40000): t += len(d.get(int(random.paretovariate(0.3)) % 40000, ""))
' ;;
        sort) record sort "$python" -S -c '
import random
random.seed(1)
a = [random.random() for _ in range(60000)]
a.sort()
b = sorted(a, key=lambda x: -x)
' ;;
        sqlite) record sqlite sqlite3 :memory: "
create table t(a integer primary key, b text, c integer);
with recursive n(i) as (select 1 union all select i+1 from n where i < 12000)
insert into t select i, hex(randomblob(24)), (i*7919)%12000 from n;
create index by_c on t(c);
select count(*) from t x join t y on x.c = y.a where y.b like '%A%';
select sum(length(b)) from t where c between 100 and 4000;" ;;
        gcc)
            i=0
            while [ $i -lt 120 ]; do
                echo "int f$i(int a, int *p) { int s = 0; for (int i = 0; i < a; i++) { s += p[i] * $i; if (s % 7 == 3) s ^= p[s & 15]; } return s; }"
                i=$((i + 1))
            done > "$tmp/big.c"
            record gcc "$(gcc -print-prog-name=cc1)" -O2 -quiet -o /dev/null "$tmp/big.c" ;;
        xz)
            head -c 1500000 "$(gcc -print-prog-name=cc1)" > "$tmp/in"
            record xz xz -6 -k -c "$tmp/in" ;;
        gnusort)
            awk 'BEGIN { srand(1); for (i = 0; i < 60000; i++) print int(rand() * 1e9), i }' > "$tmp/in"
            record gnusort sort --parallel=1 -S 16M -n "$tmp/in" ;;
    esac
done
