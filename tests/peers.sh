#!/bin/sh
# Installs the programs that the end-to-end tests run on far memory.
#
# Idempotent: what is there is left alone. Says on the last line what could not
# be had and exits 1 then; the tests that need it fail by name, never silently.
# Needs Debian or Ubuntu; asks sudo only when something is missing.
set -eu

# program that must be found : package that has it
PEERS="
redis-server:redis-server
redis-cli:redis-tools
redis-benchmark:redis-tools
memcached:memcached
sqlite3:sqlite3
stress-ng:stress-ng
xz:xz-utils
zstd:zstd
git:git
perl:perl
tclsh:tcl
node:nodejs
java:default-jdk-headless
javac:default-jdk-headless
gcc:gcc
g++:g++
gdb:gdb
valgrind:valgrind
qemu-x86_64:qemu-user
sort:coreutils
nm:binutils
faketime:faketime
mpirun:openmpi-bin
mpicc:libopenmpi-dev
ip:iproute2
chromium-headless-shell:chromium-headless-shell
etcd:etcd-server
openssl:openssl
iptables:iptables
lintian:lintian
/usr/bin/python3:python3
"

missing_packages() {
    for peer in $PEERS; do
        command -v "${peer%%:*}" >/dev/null 2>&1 || echo "${peer##*:}"
    done
    # A compiler without headers is found and cannot compile: what it needs is tried, not looked for by name.
    echo 'int main(void){return 0;}' | gcc -x c -static -o /dev/null - 2>/dev/null || echo libc6-dev
    printf '#include <stdio.h>\n#include <linux/userfaultfd.h>\nint main(void){return 0;}\n' |
        gcc -x c -o /dev/null - 2>/dev/null || echo libc6-dev linux-libc-dev
    printf '#include <mpi.h>\nint main(void){return 0;}\n' |
        mpicc -x c -o /dev/null - 2>/dev/null || echo libopenmpi-dev openmpi-bin
    /usr/bin/python3 -c 'import numpy' 2>/dev/null || echo python3-numpy
    /usr/bin/python3 -c 'import pip' 2>/dev/null || echo python3-pip
}

wanted=$(missing_packages | sort -u | tr '\n' ' ')
if [ -n "$wanted" ]; then
    as_root=
    [ "$(id -u)" = 0 ] || as_root=sudo
    echo "peers.sh: installing $wanted" >&2
    # A service must not start by being installed: the tests start their own.
    policy=/usr/sbin/policy-rc.d
    if [ ! -e "$policy" ]; then
        printf '#!/bin/sh\nexit 101\n' | $as_root tee "$policy" >/dev/null
        $as_root chmod +x "$policy"
        trap '$as_root rm -f "$policy"' EXIT
    fi
    $as_root apt-get update -qq
    # shellcheck disable=SC2086 # one word a package
    DEBIAN_FRONTEND=noninteractive $as_root apt-get install -y -qq --no-install-recommends $wanted >&2
fi

# Arrow for Python is no package of Debian 12, and newer ones want another numpy. Its tests skip without it.
/usr/bin/python3 -c 'import pyarrow' 2>/dev/null ||
    /usr/bin/python3 -m pip install -q --break-system-packages --root-user-action=ignore 'pyarrow<19' >&2 ||
    echo "peers.sh: no pyarrow: the tests of frames in Python will skip" >&2

left=$(missing_packages | sort -u | tr '\n' ' ')
if [ -n "$left" ]; then
    echo "peers.sh: could not be had: $left" >&2
    exit 1
fi
echo "peers.sh: every peer is here" >&2
