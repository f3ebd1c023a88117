/* SPDX-License-Identifier: Apache-2.0 */
#include "ctl/client.h"

#include <errno.h>
#include <pwd.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/options.h"
#include "ctl/tls.h"

#define SYSTEM_SOCKET "/run/titan/titan.sock"

titan_status ctl_server(const char *given, char *out, size_t cap, struct titan_error *err)
{
    const char *from_env = getenv("TITAN_SERVER"), *state = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
    char own[256] = "";
    int n;
    if (given || (from_env && *from_env)) {
        n = snprintf(out, cap, "%s", given ? given : from_env);
    } else {
        /* The socket of a titand with default settings: as this user, under systemd, as root. */
        if (geteuid() != 0 && state && *state == '/')
            (void)snprintf(own, sizeof(own), "%s/titan/titan.sock", state);
        else if (geteuid() != 0 && home && *home == '/')
            (void)snprintf(own, sizeof(own), "%s/.local/state/titan/titan.sock", home);
        const char *const places[] = {own, SYSTEM_SOCKET, "/var/lib/titan/titan.sock"};
        const char *found = NULL;
        for (size_t i = 0; i < ARRAY_SIZE(places) && !found; i++)
            found = *places[i] && access(places[i], F_OK) == 0 ? places[i] : NULL;
        n = snprintf(out, cap, "unix:%s", found ? found : *own ? own : SYSTEM_SOCKET);
    }
    if (n < 0 || (size_t)n >= cap)
        return titan_fail(err, TITAN_EINVAL, "the server's address is longer than %zu bytes", cap - 1);
    struct rpc_targets targets;
    if (strchr(out, ',') && rpc_targets_parse(out, &targets, err) != TITAN_OK)
        return titan_error_wrap(err, given ? "--server" : "TITAN_SERVER");
    return TITAN_OK;
}

titan_status ctl_channel(struct ctl *ctl, struct titan_error *err)
{
    if (ctl->channel)
        return TITAN_OK;
    TRY(rpc_channel_open(ctl->server, ctl_tls(), &ctl->channel, err));
    return *ctl_token ? rpc_channel_token(ctl->channel, ctl_token, err) : TITAN_OK;
}

char ctl_token[4096];
volatile int ctl_interrupted;

titan_status ctl_load_token(const char *file, struct titan_error *err)
{
    const char *from_env = getenv("TITAN_TOKEN");
    _cleanup_(buf_free) struct buf text = BUF_INIT;
    struct stat st;
    if (!file && !(from_env && *from_env))
        return TITAN_OK;
    if (file && stat(file, &st) == 0 && S_ISREG(st.st_mode) && (st.st_mode & 077)) {
        titan_fail(err, TITAN_EPERM, "the token in '%s' can be read by others", file);
        titan_error_hint(err, "chmod 600 %s, and better make a new one", file);
        return TITAN_EPERM;
    }
    if (file)
        TRY(file_read(file, sizeof(ctl_token) - 1, &text, err));
    else
        buf_puts(&text, from_env);
    while (text.len > 0 && strchr(" \t\r\n", text.data[text.len - 1]))
        text.data[--text.len] = '\0';
    if (text.len == 0 || text.len >= sizeof(ctl_token))
        return titan_fail(err, TITAN_EINVAL, "%s holds no token", file ? file : "TITAN_TOKEN");
    titan_assert(text.data[text.len] == '\0');
    memcpy(ctl_token, text.data, text.len + 1);
    return TITAN_OK;
}

/* Does a process listen on this socket, even if it does not answer? If none does, errno has the reason. */
static bool listens(const char *path)
{
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    _cleanup_fd_ int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0 || strlen(path) >= sizeof(to.sun_path)) {
        errno = EINVAL;
        return false;
    }
    (void)snprintf(to.sun_path, sizeof(to.sun_path), "%s", path);
    return connect(fd, (const struct sockaddr *)&to, sizeof(to)) == 0 || errno == EAGAIN;
}

void ctl_unreachable_hint(const char *server, struct titan_error *err)
{
    if (err->status != TITAN_EUNREACHABLE || err->sys_errno != ENOTCONN || err->hint[0])
        return;
    char owner[64];
    const bool local = strncmp(server, "unix:", 5) == 0;
    if (local && access(server + 5, W_OK) != 0 && errno == EACCES) {
        /* Names the owner of the socket, or of the innermost visible folder above the socket. */
        char at[512], *slash = NULL;
        struct stat st;
        (void)snprintf(at, sizeof(at), "%s", server + 5);
        bool seen = stat(at, &st) == 0;
        while (!seen && (slash = strrchr(at, '/')) && slash != at) {
            *slash = '\0';
            seen = stat(at, &st) == 0;
        }
        const struct passwd *who = seen ? getpwuid(st.st_uid) : NULL;
        if (who || !seen)
            (void)snprintf(owner, sizeof(owner), "%s", who ? who->pw_name : "another user");
        else
            (void)snprintf(owner, sizeof(owner), "uid %u", (unsigned)st.st_uid);
        titan_fail(err, TITAN_EPERM, "not permitted to use the daemon of %s at %s", owner, server);
    } else if (local && listens(server + 5)) {
        titan_error_hint(err, "a process listens there: it is stopped, or has no time");
    } else if (local) { /* without options, titand dev and titanctl use the same socket */
        titan_error_hint(err, "start one with: titand dev; one with --state-dir DIR is at unix:DIR/titan.sock: name it "
                              "with --server or TITAN_SERVER");
    } else {
        titan_error_hint(err, "name another with --server or TITAN_SERVER");
    }
}

/* After an unanswered call: waits once for a daemon started just before ("titand dev &" in a script), then reconnects.
 * False: waiting is useless. */
static bool daemon_came(struct ctl *ctl, const struct titan_error *err)
{
    const struct timespec pause = {.tv_nsec = 10000000};
    const char *const path = ctl->server + 5;

    if (ctl->waited || err->status != TITAN_EUNREACHABLE || err->sys_errno != ENOTCONN ||
        strncmp(ctl->server, "unix:", 5) != 0 || listens(path) || (errno != ENOENT && errno != ECONNREFUSED))
        return false;
    ctl->waited = true;
    const int64_t until = clock_mono_ns() + (int64_t)START_MS * 1000000;
    while (!ctl_interrupted && clock_mono_ns() < until && !listens(path))
        (void)nanosleep(&pause, NULL);
    if (!listens(path))
        return false;
    rpc_channel_close(ctl->channel);
    ctl->channel = NULL;
    return true;
}

/* Reports once which addresses of a list did not answer. */
static void report_passed(struct ctl *ctl)
{
    const char *passed = rpc_channel_passed(ctl->channel);
    if (*passed && !ctl->passed_reported)
        (void)fprintf(stderr, "titanctl: another server is used, there is no answer from %s\n", passed);
    ctl->passed_reported |= *passed != '\0';
}

titan_status ctl_call(struct ctl *ctl, const char *path, const ProtobufCMessage *request,
                      const ProtobufCMessageDescriptor *reply, void *ret, struct titan_error *err)
{
    do {
        TRY(ctl_channel(ctl, err));
        ProtobufCMessage *answer = NULL;
        const titan_status status =
            rpc_channel_call(ctl->channel, &(struct rpc_request){path, request, reply, CALL_MS}, &answer, err);
        report_passed(ctl);
        if (status == TITAN_OK) {
            *(ProtobufCMessage **)ret = answer;
            return TITAN_OK;
        }
    } while (daemon_came(ctl, err));

    /* "SubmitRequest.name has ...": replaces a field's name by its option, if the command has one. */
    static const char requests[] = "Request.";
    char option[64], rest[sizeof(err->msg)];
    const char *field = ctl->command && err->status == TITAN_EINVAL ? strstr(err->msg, requests) : NULL;
    if (field && !memchr(err->msg, ' ', (size_t)(field - err->msg))) {
        field += sizeof(requests) - 1;
        const size_t n = strspn(field, "abcdefghijklmnopqrstuvwxyz_");
        (void)snprintf(option, sizeof(option), "%.*s", (int)MIN(n, sizeof(option) - 1), field);
        (void)snprintf(rest, sizeof(rest), "%s", field + n);
        for (char *c = option; *c; c++)
            *c = *c == '_' ? '-' : *c;
        for (const struct option_spec *o = ctl->command->options; o && o->name; o++) {
            if (strcmp(o->name, option) == 0 ||
                (strncmp(o->name, option, strlen(o->name)) == 0 && strcmp(option + strlen(o->name), "s") == 0)) {
                (void)snprintf(err->msg, sizeof(err->msg), "--%s%.300s", o->name, rest);
                break;
            }
        }
    }

    ctl_unreachable_hint(ctl->server, err);
    return err->status; /* the hint may have changed the status */
}

titan_status ctl_stream(struct ctl *ctl, const struct stream_call *call, struct titan_error *err)
{
    do {
        TRY(ctl_channel(ctl, err));
        ctl_catch_interrupt();
        const titan_status status =
            rpc_channel_stream(ctl->channel, &(struct rpc_request){call->method, call->request, call->reply, 0},
                               call->each, call->data, &ctl_interrupted, err);
        report_passed(ctl);
        if (status == TITAN_OK)
            return TITAN_OK;
    } while (daemon_came(ctl, err));
    ctl_unreachable_hint(ctl->server, err);
    return err->status;
}

titan_status ctl_job(struct ctl *ctl, uint64_t id, Titan__V1__GetJobResponse **ret, struct titan_error *err)
{
    Titan__V1__GetJobRequest request = TITAN__V1__GET_JOB_REQUEST__INIT;
    request.job_id = id;
    Titan__V1__GetJobResponse *answer = NULL;
    TRY(ctl_call(ctl, TITAN_METHOD("GetJob"), &request.base, &titan__v1__get_job_response__descriptor, &answer, err));
    titan_assert(answer);
    if (!answer->job) {
        ctl_message_free(&answer);
        return titan_fail(err, TITAN_EIO, "the server's answer about job %llu is empty", (unsigned long long)id);
    }
    *ret = answer;
    return TITAN_OK;
}

void ctl_message_free(void *message_pointer)
{
    ProtobufCMessage *message = *(ProtobufCMessage **)message_pointer;
    if (message)
        protobuf_c_message_free_unpacked(message, NULL);
}

static void on_interrupt(int number)
{
    (void)number;
    if (ctl_interrupted)
        _exit(130);
    ctl_interrupted = 1;
}

void ctl_catch_interrupt(void)
{
    struct sigaction action = {.sa_handler = on_interrupt};
    (void)sigaction(SIGINT, &action, NULL);
    (void)sigaction(SIGTERM, &action, NULL);
}

bool ctl_state_final(Titan__V1__JobState state)
{
    return state == TITAN__V1__JOB_STATE__COMPLETED || state == TITAN__V1__JOB_STATE__FAILED ||
           state == TITAN__V1__JOB_STATE__CANCELLED;
}

const char *ctl_state_name(Titan__V1__JobState state)
{
    const ProtobufCEnumValue *value =
        protobuf_c_enum_descriptor_get_value(&titan__v1__job_state__descriptor, (int)state);
    return value ? value->name : "UNKNOWN";
}

int ctl_state_parse(const char *name)
{
    const ProtobufCEnumDescriptor *all = &titan__v1__job_state__descriptor;
    for (unsigned i = 0; i < all->n_values; i++)
        if (all->values[i].value != 0 && strcasecmp(all->values[i].name, name) == 0)
            return all->values[i].value;
    return -1;
}
