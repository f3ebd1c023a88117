/* SPDX-License-Identifier: Apache-2.0 */
/* spawn_frames.c - see spawn_frames.h. */
#include "daemon/spawn/spawn_frames.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/cleanup.h"

#define NUMBER_MAX ((UINT64_C(1) << 53) - 1) /* job and worker numbers (proto/ranges.h) */
#define STRINGS 5                            /* page, host, directory, run, ports; the environment follows */
#define CPUS_MAX 16777216

struct head {
    uint32_t version, kind;
    uint64_t worker_id, job_id, memory;
    uint32_t uid, cpus, n_env, signal, forget, reserved;
};

/* --- the environment ---------------------------------------------------------------------------------------------- */

bool spawn_env_allowed(const char *entry)
{
    static const char *const allowed[] = {"LANG=", "LC_", "TZ=", "ASAN_OPTIONS=", "UBSAN_OPTIONS=", "LSAN_OPTIONS="};
    /* Prefixes of libraries' variables, which are allowed without a path in the value. A path could name a library to
     * load, a file to write, or a file with such settings. */
    static const char *const without_path[] = {"OMP_", "TITAN_", "NCCL_", "DNNL_", "CUDA_"};
    const size_t name = strspn(entry, "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_");
    if (name == 0 || entry[name] != '=' || (entry[0] >= '0' && entry[0] <= '9'))
        return false;
    for (size_t i = 0; i < ARRAY_SIZE(allowed); i++)
        if (strncmp(entry, allowed[i], strlen(allowed[i])) == 0)
            return true;
    for (size_t i = 0; i < ARRAY_SIZE(without_path); i++)
        if (strncmp(entry, without_path[i], strlen(without_path[i])) == 0)
            return !strchr(entry + name, '/');
    return false;
}

/* --- requests ----------------------------------------------------------------------------------------------------- */

/* Takes the next string of a packet; NULL = no complete string. */
static const char *take(const char **at, const char *end)
{
    titan_assert(*at <= end);
    const char *text = *at, *nul = text < end ? memchr(text, '\0', (size_t)(end - text)) : NULL;
    if (!nul)
        return NULL;
    *at = nul + 1;
    return text;
}

static bool absolute(const char *path)
{
    return path && path[0] == '/' && strlen(path) < 4096;
}

titan_status spawn_request_parse(const void *data, size_t len, size_t n_fds, struct spawn_request *ret,
                                 struct titan_error *err)
{
    struct head h;
    *ret = (struct spawn_request){.kind = 0};
    if (len < sizeof(h))
        return titan_fail(err, TITAN_EINVAL, "a frame of %zu bytes", len);
    memcpy(&h, data, sizeof(h));
    if (h.version != SPAWN_VERSION)
        return titan_fail(err, TITAN_EINVAL, "a frame of version %u, this is %d", h.version, SPAWN_VERSION);
    if ((h.worker_id == 0) != (h.kind == SPAWN_LIMITS) || h.worker_id > NUMBER_MAX)
        return titan_fail(err, TITAN_EINVAL, "no worker has the number %" PRIu64, h.worker_id);
    ret->kind = h.kind;
    ret->worker_id = h.worker_id;
    ret->job_id = h.job_id;
    if (h.kind == SPAWN_START) {
        const char *at = (const char *)data + sizeof(h), *const end = (const char *)data + len;
        if (n_fds != SPAWN_FDS && n_fds != SPAWN_FLIGHT)
            return titan_fail(err, TITAN_EINVAL, "a start with %zu descriptors", n_fds);
        if (h.job_id == 0 || h.job_id > NUMBER_MAX)
            return titan_fail(err, TITAN_EINVAL, "no job has the number %" PRIu64, h.job_id);
        if (h.n_env > SPAWN_ENV_MAX)
            return titan_fail(err, TITAN_EINVAL, "%u variables, at most %d", h.n_env, SPAWN_ENV_MAX);
        if (h.uid == 0 || h.uid == UINT32_MAX)
            return titan_fail(err, TITAN_EINVAL, "uid %d is no user's that workers run as", (int)h.uid);
        if (h.cpus > CPUS_MAX)
            return titan_fail(err, TITAN_EINVAL, "a limit of %u thousandths of a processor", h.cpus);
        ret->page = take(&at, end);
        ret->host = take(&at, end);
        ret->directory = take(&at, end);
        ret->run = take(&at, end);
        ret->ports = take(&at, end);
        if (!absolute(ret->page) || !absolute(ret->directory) || !ret->host || !*ret->host || !ret->run || !*ret->run ||
            !ret->ports)
            return titan_fail(err, TITAN_EINVAL, "a start without page, host, folder, run or ports");
        for (ret->n_env = 0; ret->n_env < h.n_env; ret->n_env++) {
            const char *entry = take(&at, end);
            if (!entry || !spawn_env_allowed(entry))
                return titan_fail(err, TITAN_EINVAL, "variable %zu of %u is not one that a worker may have",
                                  ret->n_env + 1, h.n_env);
            ret->env[ret->n_env] = entry;
        }
        ret->uid = h.uid;
        ret->memory = h.memory;
        ret->cpus = h.cpus;
        return at == end ? TITAN_OK : titan_fail(err, TITAN_EINVAL, "%zu bytes behind a start", (size_t)(end - at));
    }
    if (len != sizeof(h) || n_fds != 0)
        return titan_fail(err, TITAN_EINVAL, "%zu bytes and %zu descriptors behind a frame", len - sizeof(h), n_fds);
    ret->signal = (int)h.signal;
    ret->forget = h.forget != 0;
    if (h.kind == SPAWN_SIGNAL && h.signal != SIGKILL && h.signal != SIGTERM)
        return titan_fail(err, TITAN_EINVAL, "signal %u is none that workers get", h.signal);
    if (h.kind != SPAWN_SIGNAL && h.kind != SPAWN_ASK && h.kind != SPAWN_LIMITS)
        return titan_fail(err, TITAN_EINVAL, "a frame of kind %u", h.kind);
    return TITAN_OK;
}

static bool put(char *out, size_t cap, size_t *len, const void *data, size_t n)
{
    if (n > cap - *len)
        return false;
    memcpy(out + *len, data, n);
    *len += n;
    return true;
}

size_t spawn_request_pack(const struct spawn_request *r, void *out, size_t cap)
{
    const struct head h = {.version = SPAWN_VERSION,
                           .kind = r->kind,
                           .worker_id = r->worker_id,
                           .job_id = r->job_id,
                           .memory = r->memory,
                           .uid = r->uid,
                           .cpus = r->cpus,
                           .n_env = (uint32_t)r->n_env,
                           .signal = (uint32_t)r->signal,
                           .forget = r->forget};
    size_t len = 0;
    titan_assert(cap <= SPAWN_FRAME_MAX && r->n_env <= SPAWN_ENV_MAX);
    bool fits = put(out, cap, &len, &h, sizeof(h));
    const char *const strings[STRINGS] = {r->page, r->host, r->directory, r->run, r->ports};
    for (size_t i = 0; i < STRINGS && fits && r->kind == SPAWN_START; i++)
        fits = put(out, cap, &len, strings[i], strlen(strings[i]) + 1);
    for (size_t i = 0; i < r->n_env && fits && r->kind == SPAWN_START; i++)
        fits = put(out, cap, &len, r->env[i], strlen(r->env[i]) + 1);
    return fits ? len : 0;
}

titan_status spawn_reply_check(const struct spawn_reply *reply, size_t len, uint64_t worker_id, struct titan_error *err)
{
    if (len != sizeof(*reply) || reply->version != SPAWN_VERSION || reply->worker_id != worker_id ||
        reply->kind < SPAWN_STARTED || reply->kind > SPAWN_HELD || reply->state > SPAWN_ENDED ||
        !memchr(reply->text, '\0', sizeof(reply->text)))
        return titan_fail(err, TITAN_ECORRUPT, "titan-spawnd's answer of %zu bytes is none to this request", len);
    return TITAN_OK;
}

/* --- packets ------------------------------------------------------------------------------------------------------ */

union control {
    struct cmsghdr header;
    char space[CMSG_SPACE(SPAWN_FDS * sizeof(int))];
};

titan_status spawn_receive(int socket, void *out, size_t cap, size_t *ret_len, struct spawn_fds *ret_fds,
                           struct titan_error *err)
{
    union control control;
    struct iovec iov = {.iov_base = out, .iov_len = cap};
    struct msghdr m = {
        .msg_iov = &iov, .msg_iovlen = 1, .msg_control = control.space, .msg_controllen = sizeof(control.space)};
    ssize_t n;
    ret_fds->n = 0;
    titan_assert(cap > 0);
    do
        n = recvmsg(socket, &m, MSG_CMSG_CLOEXEC);
    while (n < 0 && errno == EINTR);
    if (n < 0)
        return titan_fail_errno(err, "cannot receive from titan-spawnd's socket");
    for (struct cmsghdr *c = CMSG_FIRSTHDR(&m); c; c = CMSG_NXTHDR(&m, c)) {
        const size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS || count > SPAWN_FDS - ret_fds->n)
            continue;
        memcpy(ret_fds->fd + ret_fds->n, CMSG_DATA(c), count * sizeof(int));
        ret_fds->n += count;
    }
    titan_status status = TITAN_OK;
    if (m.msg_flags & (MSG_TRUNC | MSG_CTRUNC))
        status = titan_fail(err, TITAN_EINVAL, "a frame with more bytes or descriptors than one may have");
    else if (n == 0)
        status = titan_fail(err, TITAN_EPEER, "titan-spawnd's connection is closed");
    while (status != TITAN_OK && ret_fds->n > 0)
        (void)close(ret_fds->fd[--ret_fds->n]);
    *ret_len = status == TITAN_OK ? (size_t)n : 0;
    return status;
}

titan_status spawn_send(int socket, const void *data, size_t len, const struct spawn_fds *fds, struct titan_error *err)
{
    const size_t n_fds = fds->n;
    union control control = {
        .header = {.cmsg_len = CMSG_LEN(n_fds * sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS}};
    struct iovec iov = {.iov_base = (void *)(uintptr_t)data, .iov_len = len};
    titan_assert(n_fds <= SPAWN_FDS);
    struct msghdr m = {.msg_iov = &iov,
                       .msg_iovlen = 1,
                       .msg_control = n_fds ? control.space : NULL,
                       .msg_controllen = n_fds ? CMSG_SPACE(n_fds * sizeof(int)) : 0};
    if (n_fds)
        memcpy(CMSG_DATA(&control.header), fds->fd, n_fds * sizeof(int));
    ssize_t n;
    do
        n = sendmsg(socket, &m, MSG_NOSIGNAL);
    while (n < 0 && errno == EINTR);
    return n == (ssize_t)len ? TITAN_OK : titan_fail_errno(err, "cannot send to titan-spawnd's socket");
}
