# What a fault of a swapped page takes: by a node, by two other servers on the same side, and by two devices of this kernel.
# Sourced by checks.sh. By turns, each by one connection and one page at a time; the median of the rounds' medians.

# served PORT   Swaps to a server of others, by the kernel's own client.
served() {
    nbd-client 10.0.2.2 "$1" /dev/nbd0 -b 4096 -nofork >/tmp/nbd.log 2>&1 &
    client=$!
    await 60 sh -c '[ "$(cat /sys/block/nbd0/size)" -gt 0 ]' || { cat /tmp/nbd.log; return 1; }
    for set in scheduler=none max_sectors_kb=128 rotational=0; do echo ${set#*=} >/sys/block/nbd0/queue/${set%=*}; done
    mkswap /dev/nbd0 >/dev/null 2>&1
    swapon -d /dev/nbd0
}

served_no_more() {
    swapoff /dev/nbd0
    nbd-client -d /dev/nbd0 >/dev/null 2>&1
    wait $client
}

# fault DEVICE   Swaps to it, and measures.
fault() {
    case $1 in
        farmem) on ;;
        bare) served "$(cat /bare)" ;;
        nbdkit) served "$(cat /nbdkit)" ;;
        zram)
            modprobe zram num_devices=1 && echo 192M >/sys/block/zram0/disksize && mkswap /dev/zram0 >/dev/null 2>&1 && swapon /dev/zram0
            ;;
        brd) modprobe brd rd_nr=1 rd_size=65536 && mkswap /dev/ram0 >/dev/null 2>&1 && swapon /dev/ram0 ;;
    esac || return 1
    within 6 faults 32 1500 "$1" >/tmp/fault || return 1
    cat /tmp/fault
    cat /tmp/fault >>/tmp/faults
    case $1 in
        farmem) off ;;
        bare | nbdkit) served_no_more ;;
        zram) swapoff /dev/zram0 && rmmod zram ;;
        brd) swapoff /dev/ram0 && rmmod brd ;;
    esac
}

faulted() {
    echo 0 >/proc/sys/vm/page-cluster
    : >/tmp/faults
    # Each is first, last and in the middle.
    for turn in "farmem bare nbdkit" "nbdkit farmem bare" "bare nbdkit farmem" "nbdkit bare farmem" "farmem nbdkit bare"; do
        for one in $turn; do fault "$one" || return 1; done
    done
    for one in zram brd zram brd zram brd; do fault "$one" || return 1; done
    echo "  a fault, in microseconds: the median of the rounds, and of what each takes by the bare server in its round"
    for one in farmem bare nbdkit zram brd; do
        # FAULT name median N mean N p99 N us, …
        for column in 4 6 8; do
            of() { awk -v one="$1" -v c=$column '$2 == one { print $c }' /tmp/faults; }
            of "$one" | sort -n >/tmp/sorted
            middle /tmp/sorted %6.0f
            case $one in
                farmem | nbdkit)
                    of "$one" >/tmp/one
                    of bare >/tmp/other
                    paste /tmp/one /tmp/other | awk '{ print $1 / $2 }' | sort -n >/tmp/sorted
                    middle /tmp/sorted " (%.2f)"
                    ;;
            esac
        done | awk -v one="$one" '{ line = line $0 } END { print "  TABLE " one, line }'
    done
}

# The middle line of a file that is sorted, in this format.
middle() { awk -v format="$2\n" '{ line[NR] = $1 } END { printf format, line[int((NR + 1) / 2)] }' "$1"; }
