/* Structures whose layouts are too many to know, with pointers to far pages that are absent: of
 * bpf, of packet sockets, of network devices, of keys. */
#include "case.h"
#include <arpa/inet.h>
#include <linux/bpf.h>
#include <linux/ethtool.h>
#include <linux/filter.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <linux/keyctl.h>
#include <linux/perf_event.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/uio.h>

/* What the call returned, if that is the same each time; else whether it succeeded. */
#define TOLD(what, call)                                                                                               \
    do {                                                                                                               \
        squeeze(), errno = 0;                                                                                          \
        long ret_ = (call);                                                                                            \
        printf("%s %d %d\n", what, ret_ >= 0, ret_ < 0 ? errno : 0);                                                   \
    } while (0)

static long bpf(int command, union bpf_attr *attr) { return syscall(SYS_bpf, command, attr, sizeof *attr); }

static void maps(char *all) {
    enum { VALUE = 100000, MANY = 20 };
    union bpf_attr attr = {.map_type = BPF_MAP_TYPE_ARRAY, .key_size = 4, .value_size = VALUE, .max_entries = MANY};
    int map = bpf(BPF_MAP_CREATE, &attr);
    printf("map %d\n", map >= 0 ? 0 : errno);
    if (map < 0) return;
    int *key = (void *)(all + MIB);
    char *value = all + 2 * MIB - 100;
    *key = 2;
    fill(value + 4, VALUE - 8, 9);
    attr = (union bpf_attr){.map_fd = map, .key = (uintptr_t)key, .value = (uintptr_t)value};
    TOLD("update", bpf(BPF_MAP_UPDATE_ELEM, &attr));
    memset(value, 0, VALUE);
    TOLD("look up", bpf(BPF_MAP_LOOKUP_ELEM, &attr));
    printf("wrong %zu\n", wrong(value + 4, VALUE - 8, 9));

    /* All at once. */
    int *keys = (void *)(all + MIB), *cursor = (void *)(all + 1536 * 1024);
    attr = (union bpf_attr){.batch = {.out_batch = (uintptr_t)cursor, .keys = (uintptr_t)keys,
                                      .values = (uintptr_t)value, .count = MANY, .map_fd = map}};
    memset(value, 1, MANY * (size_t)VALUE);
    long ret;
    squeeze(), ret = bpf(BPF_MAP_LOOKUP_BATCH, &attr);
    printf("batch %d %d\n", ret < 0 && errno != ENOENT ? errno : 0, wrong(value + 2 * VALUE + 4, VALUE - 8, 9) == 0);
    close(map);
}

static void programs(char *all) {
    enum { LEN = 3000, LOG = 300000 };
    struct bpf_insn *code = (void *)(all + MIB);
    for (int i = 0; i < LEN - 1; i++) code[i] = (struct bpf_insn){.code = BPF_ALU64 | BPF_MOV | BPF_K, .imm = i};
    code[LEN - 1] = (struct bpf_insn){.code = BPF_JMP | BPF_EXIT};
    char *license = all + 2 * MIB - 2, *log = all + 3 * MIB;
    strcpy(license, "GPL");
    union bpf_attr attr = {.prog_type = BPF_PROG_TYPE_SOCKET_FILTER, .insn_cnt = LEN, .insns = (uintptr_t)code,
                           .license = (uintptr_t)license, .log_level = 2, .log_size = LOG, .log_buf = (uintptr_t)log};
    squeeze();
    int prog = bpf(BPF_PROG_LOAD, &attr);
    printf("program %d, log %d\n", prog >= 0 ? 0 : errno, prog < 0 || strlen(log) > 1000);
    if (prog < 0) return;
    struct bpf_prog_info *info = (void *)(all + 5 * MIB - 8);
    memset(info, 0, sizeof *info);
    info->xlated_prog_len = LEN * sizeof *code, info->xlated_prog_insns = (uintptr_t)(all + 6 * MIB);
    attr = (union bpf_attr){.info = {.bpf_fd = prog, .info_len = sizeof *info, .info = (uintptr_t)info}};
    TOLD("info", bpf(BPF_OBJ_GET_INFO_BY_FD, &attr));
    struct bpf_insn *told = (void *)(all + 6 * MIB);
    printf("type %u, the last but one %d\n", info->type, told[LEN - 2].imm);
    close(prog);
}

static void types(char *all) {
    /* All types of the kernel: some MiB. */
    union bpf_attr attr = {.start_id = 0};
    long ret = bpf(BPF_BTF_GET_NEXT_ID, &attr);
    if (ret < 0) return;
    attr = (union bpf_attr){.btf_id = attr.next_id};
    int btf = bpf(BPF_BTF_GET_FD_BY_ID, &attr);
    if (btf < 0) return;
    struct bpf_btf_info info = {0};
    attr = (union bpf_attr){.info = {.bpf_fd = btf, .info_len = sizeof info, .info = (uintptr_t)&info}};
    MUST(bpf(BPF_OBJ_GET_INFO_BY_FD, &attr) == 0);
    unsigned size = info.btf_size < 20 * MIB ? info.btf_size : 20 * MIB;
    char *text = far_map(20 * MIB);
    info = (struct bpf_btf_info){.btf = (uintptr_t)text, .btf_size = size};
    TOLD("types", bpf(BPF_OBJ_GET_INFO_BY_FD, &attr));
    printf("magic %x\n", *(unsigned short *)text);
    (void)all;
}

static void sockets(char *all) {
    int udp = socket(AF_INET, SOCK_DGRAM, 0);
    struct ifreq interface = {.ifr_name = "lo"};
    struct ethtool_drvinfo *driver = (void *)(all + MIB);
    memset(driver, 0, sizeof *driver);
    driver->cmd = ETHTOOL_GDRVINFO;
    interface.ifr_data = (void *)driver;
    TOLD("SIOCETHTOOL", ioctl(udp, SIOCETHTOOL, &interface));

    struct sock_filter *code = (void *)(all + 2 * MIB - 16);
    for (int i = 0; i < 20; i++) code[i] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_IMM, i);
    code[20] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, 0xffff);
    struct sock_fprog program = {21, code};
    TOLD("SO_ATTACH_FILTER", setsockopt(udp, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program));
    socklen_t instructions = 21;
    TOLD("SO_GET_FILTER", getsockopt(udp, SOL_SOCKET, SO_GET_FILTER, all + 3 * MIB - 40, &instructions));
    printf("%u %d\n", instructions, memcmp(code, all + 3 * MIB - 40, 20 * 8));

    int packets = socket(AF_PACKET, SOCK_RAW, htons(ETH_P_ALL));
    printf("packets %d\n", packets >= 0 ? 0 : errno);
    if (packets < 0) return;
    struct sockaddr_ll lo = {
        .sll_family = AF_PACKET, .sll_protocol = htons(ETH_P_ALL), .sll_ifindex = if_nametoindex("lo")};
    MUST(bind(packets, (void *)&lo, sizeof lo) == 0);
    int group = (getpid() & 0xffff) | PACKET_FANOUT_CBPF << 16;
    TOLD("PACKET_FANOUT", setsockopt(packets, SOL_PACKET, PACKET_FANOUT, &group, sizeof group));
    TOLD("PACKET_FANOUT_DATA", setsockopt(packets, SOL_PACKET, PACKET_FANOUT_DATA, &program, sizeof program));
}

static void keys(char *all) {
    char *payload = all + MIB - 3, *read = all + 2 * MIB - 3;
    strcpy(payload, "secret");
    int key = syscall(SYS_add_key, "user", "farmem:nested", payload, 6ul, KEY_SPEC_PROCESS_KEYRING);
    printf("key %d\n", key >= 0 ? 0 : errno);
    if (key < 0) return;
    TOLD("read", syscall(SYS_keyctl, KEYCTL_READ, key, read, 6ul));
    printf("%.6s\n", read);
    /* Refused, because nobody asked for the key; the vectors are read first. */
    struct iovec vectors[2] = {{payload, 3}, {read, 3}};
    TOLD("KEYCTL_INSTANTIATE_IOV", syscall(SYS_keyctl, KEYCTL_INSTANTIATE_IOV, key, vectors, 2ul, 0));
}

static void filters(char *all) {
    struct perf_event_attr attr = {.type = PERF_TYPE_SOFTWARE, .size = sizeof attr, .config = PERF_COUNT_SW_DUMMY};
    int event = syscall(SYS_perf_event_open, &attr, 0, -1, -1, 0ul);
    if (event < 0) return;
    char *text = all + 2 * MIB - 3;
    strcpy(text, "id == 5");
    /* An event without fields: refused for that. */
    TOLD("PERF_EVENT_IOC_SET_FILTER", ioctl(event, PERF_EVENT_IOC_SET_FILTER, text));
}

int main(void) {
    setvbuf(stdout, NULL, _IONBF, 0);
    char *all = far_map(8 * MIB);
    fill(all, 8 * MIB, 1);
    maps(all);
    programs(all);
    types(all);
    sockets(all);
    keys(all);
    filters(all);
}
