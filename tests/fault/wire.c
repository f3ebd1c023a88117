/* SPDX-License-Identifier: Apache-2.0 */
/* wire - an Ethernet switch in user space, between network namespaces, that can be told to behave badly.
 *
 *   wire CONTROL NAMESPACE...
 *
 * Makes a tap device "eth0" with MAC 02:00:00:00:00:NN (NN counts the namespaces from 1) in each network namespace (a
 * path, as /run/netns/x) and passes frames between them. Each direction between two ports is a link of its own:
 *
 *   set FROM TO [cut=0|1] [loss=P] [delay_us=N] [jitter_us=N] [rate_kbit=N]     FROM, TO: number of a port or *
 *   count FROM TO                                                               -> "PASSED DROPPED"
 *   seed N
 *
 * Commands are datagrams to the Unix socket CONTROL, each answered by one ("ok", or what is wrong). A frame is dropped
 * with probability P; otherwise it is late by delay_us plus an even draw of 0..jitter_us (so frames may overtake),
 * behind the frames before it where there is a rate. A link holds at most QUEUE_MS of its rate. Says "up" on stdout
 * when devices are there; ends on EOF of stdin. The kernel's netem does the same where a kernel has it; this needs
 * CAP_NET_ADMIN and /dev/net/tun. */
#include <errno.h>
#include <fcntl.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <net/if_arp.h>
#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "base/hash.h"
#include "base/vec.h"

#define PORTS_MAX 32
#define FRAME_MAX 9216
#define QUEUE_MS 500
#define BURST 64 /* frames read from a port before the others have their turn */

struct link {
    bool cut;
    double loss;
    uint64_t delay_ns, jitter_ns, rate_kbit;
    uint64_t free_ns; /* when the link has sent what it was given */
    uint64_t passed, dropped;
};

/* A frame that is on its way. */
struct late {
    uint64_t due_ns, number; /* number keeps the order of frames with one due time */
    uint32_t port, len;
    uint8_t bytes[];
};

struct wire {
    uint32_t n_ports;
    int ports[PORTS_MAX], control, epoll;
    struct link links[PORTS_MAX][PORTS_MAX];
    struct late **heap;
    size_t n_late, room;
    uint64_t number, random;
};

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static double draw_unit(struct wire *w)
{
    return (double)(hash_draw(&w->random) >> 11) * 0x1p-53;
}

static void die(const char *what, const char *name)
{
    fprintf(stderr, "wire: %s %s: %s\n", what, name, strerror(errno));
    exit(1);
}

/* --- frames on their way: a binary heap by due time --------------------------------------------------------------- */

static bool earlier(const struct late *a, const struct late *b)
{
    return a->due_ns != b->due_ns ? a->due_ns < b->due_ns : a->number < b->number;
}

static void heap_put(struct wire *w, struct late *f)
{
    if (!VEC_RESERVE(w->heap, w->room, w->n_late + 1))
        die("no memory for", "frames");
    size_t i = w->n_late++;
    for (; i > 0 && earlier(f, w->heap[(i - 1) / 2]); i = (i - 1) / 2)
        w->heap[i] = w->heap[(i - 1) / 2];
    w->heap[i] = f;
}

static struct late *heap_take(struct wire *w)
{
    struct late *first = w->heap[0], *last = w->heap[--w->n_late];
    size_t i = 0;
    for (size_t child = 1; child < w->n_late; child = 2 * i + 1) {
        if (child + 1 < w->n_late && earlier(w->heap[child + 1], w->heap[child]))
            child++;
        if (!earlier(w->heap[child], last))
            break;
        w->heap[i] = w->heap[child];
        i = child;
    }
    if (w->n_late)
        w->heap[i] = last;
    return first;
}

/* --- passing ------------------------------------------------------------------------------------------------------ */

static void deliver(struct wire *w, uint32_t to, const uint8_t *frame, size_t len)
{
    /* A full or absent receiver loses the frame, as a switch would. */
    if (write(w->ports[to], frame, len) < 0 && errno != EAGAIN && errno != EIO && errno != ENOBUFS && errno != EINVAL)
        die("write to port", "");
}

static void pass(struct wire *w, uint32_t from, uint32_t to, const uint8_t *frame, size_t len)
{
    struct link *l = &w->links[from][to];
    if (l->cut || (l->loss > 0 && draw_unit(w) < l->loss)) {
        l->dropped++;
        return;
    }
    if (!l->delay_ns && !l->jitter_ns && !l->rate_kbit) {
        l->passed++;
        deliver(w, to, frame, len);
        return;
    }
    uint64_t due = now_ns();
    if (l->rate_kbit) {
        if (l->free_ns < due)
            l->free_ns = due;
        if (l->free_ns > due + QUEUE_MS * 1000000ull) {
            l->dropped++;
            return;
        }
        l->free_ns += len * 8 * 1000000ull / l->rate_kbit;
        due = l->free_ns;
    }
    due += l->delay_ns + (l->jitter_ns ? hash_draw(&w->random) % l->jitter_ns : 0);
    struct late *f = malloc(sizeof(*f) + len);
    if (!f)
        die("no memory for", "a frame");
    *f = (struct late){.due_ns = due, .number = w->number++, .port = to, .len = (uint32_t)len};
    memcpy(f->bytes, frame, len);
    l->passed++;
    heap_put(w, f);
}

static void read_port(struct wire *w, uint32_t from)
{
    uint8_t frame[FRAME_MAX];
    for (int i = 0; i < BURST; i++) {
        const ssize_t n = read(w->ports[from], frame, sizeof(frame));
        if (n < 14)
            return;
        const bool group = frame[0] & 1;
        for (uint32_t to = 0; to < w->n_ports; to++)
            if (to != from && (group || frame[5] == to + 1))
                pass(w, from, to, frame, (size_t)n);
    }
}

static void deliver_due(struct wire *w)
{
    while (w->n_late && w->heap[0]->due_ns <= now_ns()) {
        struct late *f = heap_take(w);
        deliver(w, f->port, f->bytes, f->len);
        free(f);
    }
}

/* --- control ------------------------------------------------------------------------------------------------------ */

static bool set_word(struct link *l, const char *word)
{
    const char *value = strchr(word, '=');
    char *end = NULL;
    if (!value)
        return false;
    const double v = strtod(++value, &end);
    if (!*value || *end || !(v >= 0))
        return false;
    if (!strncmp(word, "cut=", 4))
        l->cut = v != 0;
    else if (!strncmp(word, "loss=", 5))
        l->loss = v;
    else if (!strncmp(word, "delay_us=", 9))
        l->delay_ns = (uint64_t)(v * 1000);
    else if (!strncmp(word, "jitter_us=", 10))
        l->jitter_ns = (uint64_t)(v * 1000);
    else if (!strncmp(word, "rate_kbit=", 10))
        l->rate_kbit = (uint64_t)v;
    else
        return false;
    return true;
}

/* First and last port that a word names. */
static bool ports_of(const struct wire *w, const char *word, uint32_t *first, uint32_t *last)
{
    char *end = NULL;
    if (!word)
        return false;
    if (!strcmp(word, "*")) {
        *first = 0;
        *last = w->n_ports - 1;
        return true;
    }
    const unsigned long n = strtoul(word, &end, 10);
    *first = *last = (uint32_t)n - 1;
    return *word && !*end && n >= 1 && n <= w->n_ports;
}

static void command_links(struct wire *w, bool set, char **save, char answer[64])
{
    uint32_t f0, f1, t0, t1;
    if (!ports_of(w, strtok_r(NULL, " ", save), &f0, &f1) || !ports_of(w, strtok_r(NULL, " ", save), &t0, &t1)) {
        strcpy(answer, "no such port");
        return;
    }
    if (!set) {
        snprintf(answer, 64, "%llu %llu", (unsigned long long)w->links[f0][t0].passed,
                 (unsigned long long)w->links[f0][t0].dropped);
        return;
    }
    for (const char *word = strtok_r(NULL, " ", save); word; word = strtok_r(NULL, " ", save))
        for (uint32_t f = f0; f <= f1; f++)
            for (uint32_t t = t0; t <= t1; t++)
                if (!set_word(&w->links[f][t], word)) {
                    strcpy(answer, "bad word");
                    return;
                }
}

static void read_control(struct wire *w)
{
    char text[512], answer[64] = "ok";
    struct sockaddr_un from;
    socklen_t size = sizeof(from);
    const ssize_t n = recvfrom(w->control, text, sizeof(text) - 1, 0, (struct sockaddr *)&from, &size);
    if (n < 0)
        return;
    text[n] = 0;
    char *save = NULL;
    const char *verb = strtok_r(text, " ", &save);
    if (verb && (!strcmp(verb, "set") || !strcmp(verb, "count")))
        command_links(w, verb[0] == 's', &save, answer);
    else if (verb && !strcmp(verb, "seed"))
        w->random = strtoull(save, NULL, 10);
    else
        strcpy(answer, "unknown command");
    (void)sendto(w->control, answer, strlen(answer), 0, (struct sockaddr *)&from, size);
}

/* --- start -------------------------------------------------------------------------------------------------------- */

static int tap_in(const char *path, uint32_t number)
{
    const int space = open(path, O_RDONLY | O_CLOEXEC);
    if (space < 0 || setns(space, CLONE_NEWNET) != 0)
        die("cannot enter", path);
    close(space);
    const int fd = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
    struct ifreq r = {.ifr_flags = IFF_TAP | IFF_NO_PI};
    strcpy(r.ifr_name, "eth0");
    if (fd < 0 || ioctl(fd, TUNSETIFF, &r) != 0)
        die("no tap device in", path);
    r.ifr_hwaddr.sa_family = ARPHRD_ETHER;
    memcpy(r.ifr_hwaddr.sa_data, (uint8_t[]){2, 0, 0, 0, 0, (uint8_t)number}, 6);
    if (ioctl(fd, SIOCSIFHWADDR, &r) != 0)
        die("no address for", path);
    return fd;
}

static void watch(struct wire *w, int fd, uint32_t tag)
{
    struct epoll_event e = {.events = EPOLLIN, .data.u32 = tag};
    if (epoll_ctl(w->epoll, EPOLL_CTL_ADD, fd, &e) != 0)
        die("epoll", "");
}

static void serve(struct wire *w)
{
    for (;;) {
        struct timespec wait = {0}, *until = NULL;
        if (w->n_late) {
            const uint64_t now = now_ns(), due = w->heap[0]->due_ns, left = due > now ? due - now : 0;
            wait = (struct timespec){(time_t)(left / 1000000000u), (long)(left % 1000000000u)};
            until = &wait;
        }
        struct epoll_event events[PORTS_MAX + 2];
        const int n = epoll_pwait2(w->epoll, events, PORTS_MAX + 2, until, NULL);
        deliver_due(w);
        /* Commands first: what was cut is cut for the frames that wait. */
        for (int i = 0; i < n; i++) {
            if (events[i].data.u32 == PORTS_MAX)
                read_control(w);
            else if (events[i].data.u32 > PORTS_MAX)
                return;
        }
        for (int i = 0; i < n; i++)
            if (events[i].data.u32 < PORTS_MAX)
                read_port(w, events[i].data.u32);
    }
}

int main(int argc, char **argv)
{
    static struct wire w = {.random = 1};
    if (argc < 3 || argc - 2 > PORTS_MAX) {
        fprintf(stderr, "usage: wire CONTROL NAMESPACE...\n");
        return 2;
    }
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    w.control = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (strlen(argv[1]) >= sizeof(a.sun_path))
        die("too long:", argv[1]);
    strcpy(a.sun_path, argv[1]);
    if (w.control < 0 || bind(w.control, (struct sockaddr *)&a, sizeof(a)) != 0)
        die("cannot bind", argv[1]);
    w.epoll = epoll_create1(EPOLL_CLOEXEC);
    for (int i = 2; i < argc; i++) {
        w.ports[w.n_ports] = tap_in(argv[i], w.n_ports + 1);
        watch(&w, w.ports[w.n_ports], w.n_ports);
        w.n_ports++;
    }
    watch(&w, w.control, PORTS_MAX);
    watch(&w, STDIN_FILENO, PORTS_MAX + 1);
    printf("up\n");
    fflush(stdout);
    serve(&w);
    unlink(argv[1]);
    return 0;
}
