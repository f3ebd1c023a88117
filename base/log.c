/* SPDX-License-Identifier: Apache-2.0 */
#include "base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <stdbool.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/utf8.h"

#define LINE_MAX_BYTES 8192 /* of the text before quoting; longer lines are cut */

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

int log_level_parse(const char *text, enum log_level *ret_level)
{
    for (size_t i = 0; text && i < ARRAY_SIZE(levels); i++) {
        if (strcmp(text, levels[i].name) == 0) {
            *ret_level = (enum log_level)i;
            return 0;
        }
    }
    return -1;
}

void log_init(struct log *log, const char *subsystem, const char *context_fmt, ...)
{
    titan_assert(subsystem && subsystem[0]);
    log->subsystem = subsystem;
    log->context[0] = '\0';
    va_list ap;
    va_start(ap, context_fmt);
    (void)vsnprintf(log->context, sizeof(log->context), context_fmt, ap);
    va_end(ap);
}

/* --- journald ----------------------------------------------------------------------------------------------------- */

/* Native protocol: one datagram of FIELD=value lines; a value with a newline is written as name, newline, 64-bit
 * length, bytes. systemd.io/JOURNAL_NATIVE_PROTOCOL. */

/* The journal's socket when JOURNAL_STREAM ("dev:inode") is our stderr, otherwise -1; opened once per process. */
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

/* key=value and key="quoted value" pairs of one line as TITAN_KEY fields. */
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
        size_t value_len;
        if (*value == '"') {
            const char *end = ++value;
            while (*end && *end != '"')
                end += (*end == '\\' && end[1]) ? 2 : 1;
            value_len = (size_t)(end - value);
            p = *end ? end + 1 : end;
        } else {
            value_len = strcspn(value, " ");
            p = value + value_len;
        }
        journal_field(out, "TITAN_", key, key_len, value, value_len);
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

void log_write(const struct log *log, enum log_level level, const char *sentence, const char *pairs_fmt, ...)
{
    titan_assert(level <= LOG_LEVEL_DEBUG);
    static const struct log none = {.subsystem = "titan"};
    if (level > log_get_level())
        return;
    if (!log || !log->subsystem)
        log = &none;
    int saved_errno = errno;
    char pairs[LINE_MAX_BYTES / 2], line[LINE_MAX_BYTES], when[32];
    va_list ap;
    va_start(ap, pairs_fmt);
    int n = vsnprintf(pairs, sizeof(pairs), pairs_fmt, ap);
    va_end(ap);
    if (n < 0)
        pairs[0] = '\0';
    else if ((size_t)n >= sizeof(pairs))
        memcpy(pairs + sizeof(pairs) - 4, "...", 4);
    /* What a peer or a file name put into a value must not be able to begin a line of its own. */
    text_fit(pairs, ' ');
    if (journal_send(log, level, sentence, pairs)) {
        errno = saved_errno;
        return;
    }
    n = snprintf(line, sizeof(line), "%s %s %s %s%s%s%s%s", clock_format(clock_wall_ms(), when), levels[level].name,
                 log->subsystem, sentence, log->context[0] ? " " : "", log->context, pairs[0] ? " " : "", pairs);
    size_t len = n < 0 ? 0 : MIN((size_t)n, sizeof(line) - 2);
    line[len] = '\n';
    ssize_t written;
    do
        written = write(STDERR_FILENO, line, len + 1);
    while (written < 0 && errno == EINTR);
    errno = saved_errno;
}
