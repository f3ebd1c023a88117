/* SPDX-License-Identifier: Apache-2.0 */
#include "base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include <stdbool.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/pairs.h"
#include "base/utf8.h"

#define LINE_MAX_BYTES 8192 /* longer lines are cut */

static atomic_int current_level = LOG_LEVEL_INFO;

static const struct {
    const char *name;
    int priority; /* syslog */
} levels[] = {
    [LOG_LEVEL_ERROR] = {"error", 3},
    [LOG_LEVEL_WARN] = {"warn", 4},
    [LOG_LEVEL_INFO] = {"info", 6},
    [LOG_LEVEL_DEBUG] = {"debug", 7},
};

void log_set_level(enum log_level level)
{
    titan_assert(level <= LOG_LEVEL_DEBUG);
    atomic_store_explicit(&current_level, (int)level, memory_order_relaxed);
}

enum log_level log_get_level(void)
{
    return (enum log_level)atomic_load_explicit(&current_level, memory_order_relaxed);
}

void log_init(struct log *log, const char *subsystem, const char *context_fmt, ...)
{
    titan_assert(subsystem && subsystem[0]);
    log->subsystem = subsystem;
    log->context[0] = '\0';
    va_list ap;
    va_start(ap, context_fmt);
    pairs_format(log->context, sizeof(log->context), context_fmt, ap);
    va_end(ap);
}

/* --- journald ----------------------------------------------------------------------------------------------------- */

/* Native protocol: one datagram of FIELD=value lines; a value with a newline is written as name, newline, 64-bit
 * length, bytes. systemd.io/JOURNAL_NATIVE_PROTOCOL. */

/* The journal's socket if JOURNAL_STREAM ("dev:inode") is this process's stderr, otherwise -1; opened once per
 * process. */
static int journal_fd = -1;
static pthread_once_t journal_once = PTHREAD_ONCE_INIT;

static void journal_open(void)
{
    const char *stream = getenv("JOURNAL_STREAM");
    struct stat st;
    unsigned long long dev, inode;
    if (!stream || sscanf(stream, "%llu:%llu", &dev, &inode) != 2 || fstat(STDERR_FILENO, &st) < 0 ||
        st.st_dev != dev || st.st_ino != inode)
        return;
    const char *path = getenv("TITAN_JOURNAL_SOCKET"); /* for tests */
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if ((size_t)snprintf(address.sun_path, sizeof(address.sun_path), "%s",
                         path ? path : "/run/systemd/journal/socket") >= sizeof(address.sun_path))
        return;
    _cleanup_fd_ int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd >= 0 && connect(fd, (const struct sockaddr *)&address, sizeof(address)) == 0)
        journal_fd = TAKE_FD(fd);
}

static void journal_field(struct buf *out, const char *prefix, const char *key, size_t key_len, const char *value,
                          size_t value_len)
{
    buf_puts(out, prefix);
    for (size_t i = 0; i < key_len; i++) {
        char c = key[i];
        if (c >= 'a' && c <= 'z')
            c = (char)(c - 'a' + 'A');
        else if (!((c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9')))
            c = '_';
        buf_printf(out, "%c", c);
    }
    buf_printf(out, "=%.*s\n", (int)value_len, value);
}

/* Appends the key=value and key="quoted value" pairs of a line as TITAN_KEY fields. */
static void journal_pairs(struct buf *out, const char *p)
{
    while (*p) {
        p += strspn(p, " ");
        size_t key_len = strcspn(p, "= ");
        if (p[key_len] != '=') {
            p += key_len;
            continue;
        }
        const char *key = p, *value = p + key_len + 1;
        char text[PAIRS_MAX];
        if (*value == '"') {
            p = value + 1 + pairs_unquote(value + 1, text);
            p += *p == '"';
            journal_field(out, "TITAN_", key, key_len, text, strlen(text));
        } else {
            p = value + strcspn(value, " ");
            journal_field(out, "TITAN_", key, key_len, value, (size_t)(p - value));
        }
    }
}

static bool journal_send(const struct log *log, enum log_level level, const char *sentence, const char *pairs)
{
    pthread_once(&journal_once, journal_open);
    if (journal_fd < 0)
        return false;
    _cleanup_(buf_free) struct buf out = BUF_INIT;
    buf_printf(&out, "PRIORITY=%d\nSYSLOG_IDENTIFIER=%s\nMESSAGE=%s%s%s%s%s\n", levels[level].priority,
               program_invocation_short_name, sentence, log->context[0] ? " " : "", log->context, pairs[0] ? " " : "",
               pairs);
    journal_field(&out, "TITAN_", "subsystem", 9, log->subsystem, strlen(log->subsystem));
    journal_pairs(&out, log->context);
    journal_pairs(&out, pairs);
    if (buf_failed(&out))
        return false;
    ssize_t n;
    do
        n = send(journal_fd, out.data, out.len, MSG_NOSIGNAL);
    while (n < 0 && errno == EINTR);
    return n >= 0;
}

/* --- a line ------------------------------------------------------------------------------------------------------- */

struct line {
    struct line *next;
    size_t size;   /* total bytes, for the queue's limit */
    uint64_t lost; /* number of lines dropped just before this line */
    enum log_level level;
    int64_t wall_ms;
    struct log log;
    const char *sentence;
    char pairs[];
};

static void line_write(const struct line *l)
{
    char text[LINE_MAX_BYTES], when[32];
    if (journal_send(&l->log, l->level, l->sentence, l->pairs))
        return;
    int n = snprintf(text, sizeof(text), "%s %s %s %s%s%s%s%s", clock_format(l->wall_ms, when), levels[l->level].name,
                     l->log.subsystem, l->sentence, l->log.context[0] ? " " : "", l->log.context,
                     l->pairs[0] ? " " : "", l->pairs);
    size_t len = n < 0 ? 0 : MIN((size_t)n, sizeof(text) - 2);
    text[len] = '\n';
    ssize_t written;
    do
        written = write(STDERR_FILENO, text, len + 1);
    while (written < 0 && errno == EINTR);
}

/* --- the thread --------------------------------------------------------------------------------------------------- */

static struct {
    pthread_mutex_t mutex;
    pthread_cond_t filled, written;
    bool running;
    struct line *first, **last;
    size_t bytes;  /* bytes of waiting lines and of the line being written */
    bool full;     /* set by a loss, and cleared when half the queue is written, so that losses fall in few places */
    uint64_t lost; /* since the last accepted line */
} queue = {.mutex = PTHREAD_MUTEX_INITIALIZER, .filled = PTHREAD_COND_INITIALIZER};

/* Reports losses at their place in the log. */
static void report_lost(uint64_t lost)
{
    static const struct log own = {.subsystem = "log"};
    union {
        struct line line;
        char room[sizeof(struct line) + 64];
    } l = {.line = {.level = LOG_LEVEL_WARN, .wall_ms = clock_wall_ms(), .log = own}};
    l.line.sentence = "lines are lost: what reads the log does not keep up";
    (void)snprintf(l.room + offsetof(struct line, pairs), 64, "lines=%llu", (unsigned long long)lost);
    line_write(&l.line);
}

static void *write_lines(void *arg)
{
    (void)arg;
    pthread_mutex_lock(&queue.mutex);
    for (;;) {
        while (!queue.first)
            pthread_cond_wait(&queue.filled, &queue.mutex);
        struct line *l = queue.first;
        queue.first = l->next;
        if (!queue.first)
            queue.last = &queue.first;
        pthread_mutex_unlock(&queue.mutex);
        if (l->lost)
            report_lost(l->lost);
        line_write(l);
        pthread_mutex_lock(&queue.mutex);
        /* losses after the last line are reported here, because no later line may come */
        const uint64_t lost = queue.first ? 0 : queue.lost;
        if (lost) {
            queue.lost = 0;
            pthread_mutex_unlock(&queue.mutex);
            report_lost(lost);
            pthread_mutex_lock(&queue.mutex);
        }
        queue.bytes -= l->size; /* only after the write, so that log_flush() also waits for this line */
        free(l);
        if (queue.bytes <= LOG_QUEUE_BYTES / 2)
            queue.full = false;
        pthread_cond_broadcast(&queue.written);
    }
    return NULL;
}

void log_flush(unsigned timeout_ms)
{
    struct timespec until;
    (void)clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += timeout_ms / 1000;
    until.tv_nsec += (long)(timeout_ms % 1000) * 1000000;
    if (until.tv_nsec >= 1000000000) {
        until.tv_sec++;
        until.tv_nsec -= 1000000000;
    }
    pthread_mutex_lock(&queue.mutex);
    while (queue.running && queue.bytes && pthread_cond_timedwait(&queue.written, &queue.mutex, &until) == 0)
        ;
    pthread_mutex_unlock(&queue.mutex);
}

static void write_last_lines(void)
{
    log_flush(LOG_LAST_MS);
}

titan_status log_start_thread(struct titan_error *err)
{
    titan_assert(!queue.running);
    pthread_t thread;
    pthread_condattr_t monotonic;
    sigset_t all, before;
    (void)pthread_condattr_init(&monotonic);
    (void)pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&queue.written, &monotonic);
    (void)pthread_condattr_destroy(&monotonic);
    queue.last = &queue.first;
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_BLOCK, &all, &before); /* signals go to the thread that waits for them */
    int rc = pthread_create(&thread, NULL, write_lines, NULL);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (rc != 0)
        return titan_fail(err, TITAN_ENOMEM, "cannot start the thread that writes the log: %s", strerror(rc));
    (void)pthread_setname_np(thread, "titan-log");
    (void)pthread_detach(thread);
    queue.running = true;
    titan_before_abort(write_last_lines);
    return TITAN_OK;
}

void log_write(const struct log *log, enum log_level level, const char *sentence, const char *pairs_fmt, ...)
{
    titan_assert(level <= LOG_LEVEL_DEBUG);
    static const struct log none = {.subsystem = "titan"};
    union {
        struct line line;
        char room[sizeof(struct line) + PAIRS_MAX];
    } l;
    if (level > log_get_level())
        return;
    int saved_errno = errno;
    char *pairs = l.room + offsetof(struct line, pairs);
    va_list ap;
    va_start(ap, pairs_fmt);
    pairs_format(pairs, PAIRS_MAX, pairs_fmt, ap);
    va_end(ap);
    /* Values from peers and file names must not be able to begin a new line. */
    text_fit(pairs, ' ');
    l.line.next = NULL;
    l.line.size = sizeof(struct line) + strlen(pairs) + 1;
    l.line.level = level;
    l.line.wall_ms = clock_wall_ms();
    l.line.log = log && log->subsystem ? *log : none;
    l.line.sentence = sentence;

    struct line *copy = NULL;
    pthread_mutex_lock(&queue.mutex);
    const bool running = queue.running;
    queue.full |= queue.bytes + l.line.size > LOG_QUEUE_BYTES;
    if (running && !queue.full)
        copy = malloc(l.line.size);
    if (copy) {
        memcpy(copy, &l.line, l.line.size);
        copy->lost = queue.lost;
        queue.lost = 0;
        *queue.last = copy;
        queue.last = &copy->next;
        queue.bytes += copy->size;
        pthread_cond_signal(&queue.filled);
    } else if (running) {
        queue.lost++;
    }
    pthread_mutex_unlock(&queue.mutex);
    if (!running)
        line_write(&l.line);
    errno = saved_errno;
}
