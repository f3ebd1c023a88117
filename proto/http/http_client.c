/* SPDX-License-Identifier: Apache-2.0 */
/* http_client.c - see http_client.h. The names and numbers below are libcurl's documented ABI, which its soname keeps
 * (curl/curl.h, curl/multi.h); so the build needs no header of curl. */
#include "proto/http/http_client.h"

#include <dlfcn.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"

#define ANSWER_MAX (64 << 10)
#define POLL_MS 1000
#define ERROR_BYTES 256 /* CURL_ERROR_SIZE */

enum {
    GLOBAL_DEFAULT = 3,
    OPT_TEXT = 10000,     /* CURLOPTTYPE_OBJECTPOINT */
    OPT_FUNCTION = 20000, /* CURLOPTTYPE_FUNCTIONPOINT */
    OPT_WRITEDATA = OPT_TEXT + 1,
    OPT_URL = OPT_TEXT + 2,
    OPT_PROXY = OPT_TEXT + 4,
    OPT_ERRORBUFFER = OPT_TEXT + 10,
    OPT_WRITEFUNCTION = OPT_FUNCTION + 11,
    OPT_POSTFIELDS = OPT_TEXT + 15,
    OPT_USERAGENT = OPT_TEXT + 18,
    OPT_HTTPHEADER = OPT_TEXT + 23,
    OPT_HEADERDATA = OPT_TEXT + 29,
    OPT_SSLVERSION = 32,
    OPT_FOLLOWLOCATION = 52,
    OPT_POSTFIELDSIZE = 60,
    OPT_SSL_VERIFYPEER = 64,
    OPT_CAINFO = OPT_TEXT + 65,
    OPT_HEADERFUNCTION = OPT_FUNCTION + 79,
    OPT_SSL_VERIFYHOST = 81,
    OPT_HTTP_VERSION = 84,
    OPT_NOSIGNAL = 99,
    OPT_TIMEOUT_MS = 155,
    OPT_CONNECTTIMEOUT_MS = 156,
    OPT_PROTOCOLS = 181,
    OPT_QUICK_EXIT = 322,
    HTTP_VERSION_1_1 = 2,
    SSLVERSION_TLSV1_2 = 6,
    PROTO_HTTP_AND_HTTPS = 3,
    INFO_RESPONSE_CODE = 0x200002,
    MSG_DONE = 1,
};

/* CURLMsg */
struct message {
    int kind;
    void *easy;
    union {
        void *whatever;
        int result;
    } data;
};

static struct library {
    void *handle;
    int (*global_init)(long);
    void *(*easy_init)(void);
    int (*easy_setopt)(void *, int, ...);
    int (*easy_getinfo)(void *, int, ...);
    void (*easy_cleanup)(void *);
    const char *(*easy_strerror)(int);
    void *(*multi_init)(void);
    int (*multi_add_handle)(void *, void *);
    int (*multi_remove_handle)(void *, void *);
    int (*multi_perform)(void *, int *);
    int (*multi_poll)(void *, void *, unsigned, int, int *);
    int (*multi_wakeup)(void *);
    struct message *(*multi_info_read)(void *, int *);
    int (*multi_cleanup)(void *);
    void *(*slist_append)(void *, const char *);
    void (*slist_free_all)(void *);
} curl;

struct http_client {
    void *easy, *multi;
    atomic_bool aborted;
    char error[ERROR_BYTES];
    size_t head, body; /* bytes of the answer */
    struct http_posted *answer;
};

static titan_status load(struct titan_error *err)
{
    struct library l = {.handle = dlopen(HTTP_CLIENT_LIBRARY, RTLD_NOW | RTLD_LOCAL)};
    if (curl.handle)
        return TITAN_OK;
    if (!l.handle) {
        (void)titan_fail(err, TITAN_ENOTFOUND, "cannot load libcurl: %s", dlerror());
        titan_error_hint(err, "install it: Debian's package libcurl4");
        return TITAN_ENOTFOUND;
    }
    const struct {
        const char *name;
        void *at;
    } symbols[] = {{"curl_global_init", &l.global_init},
                   {"curl_easy_init", &l.easy_init},
                   {"curl_easy_setopt", &l.easy_setopt},
                   {"curl_easy_getinfo", &l.easy_getinfo},
                   {"curl_easy_cleanup", &l.easy_cleanup},
                   {"curl_easy_strerror", &l.easy_strerror},
                   {"curl_multi_init", &l.multi_init},
                   {"curl_multi_add_handle", &l.multi_add_handle},
                   {"curl_multi_remove_handle", &l.multi_remove_handle},
                   {"curl_multi_perform", &l.multi_perform},
                   {"curl_multi_poll", &l.multi_poll},
                   {"curl_multi_wakeup", &l.multi_wakeup},
                   {"curl_multi_info_read", &l.multi_info_read},
                   {"curl_multi_cleanup", &l.multi_cleanup},
                   {"curl_slist_append", &l.slist_append},
                   {"curl_slist_free_all", &l.slist_free_all}};
    for (size_t i = 0; i < ARRAY_SIZE(symbols); i++) {
        void *const symbol = dlsym(l.handle, symbols[i].name);
        if (!symbol)
            return titan_fail(err, TITAN_ENOTFOUND, "libcurl has no %s: it is older than 7.68", symbols[i].name);
        memcpy(symbols[i].at, &symbol, sizeof(symbol)); /* a data pointer becomes a function pointer, as POSIX allows */
    }
    if (l.global_init(GLOBAL_DEFAULT) != 0)
        return titan_fail(err, TITAN_EIO, "libcurl does not start");
    curl = l;
    return TITAN_OK;
}

/* Reading ends with the byte that is too much; the status is known by then. */
static size_t on_head(const char *data, size_t size, size_t n, void *client)
{
    struct http_client *c = client;
    (void)data;
    c->head += size * n;
    return c->head <= ANSWER_MAX ? size * n : 0;
}

static size_t on_body(const char *data, size_t size, size_t n, void *client)
{
    struct http_client *c = client;
    char *const text = c->answer->text;
    for (size_t i = 0; i < size * n && c->body + i < sizeof(c->answer->text) - 1; i++) {
        text[c->body + i] = (char)(data[i] >= ' ' && data[i] <= '~' ? data[i] : ' ');
        text[c->body + i + 1] = '\0';
    }
    c->body += size * n;
    return c->body <= ANSWER_MAX ? size * n : 0;
}

titan_status http_client_new(struct http_client **ret, struct titan_error *err)
{
    TRY(load(err));
    struct http_client *c = calloc(1, sizeof(*c));
    if (!c)
        return titan_fail(err, TITAN_ENOMEM, "no memory for an HTTP client");
    c->easy = curl.easy_init();
    c->multi = curl.multi_init();
    const struct {
        int option;
        long value;
    } numbers[] = {{OPT_NOSIGNAL, 1},
                   {OPT_FOLLOWLOCATION, 0},
                   {OPT_SSL_VERIFYPEER, 1},
                   {OPT_SSL_VERIFYHOST, 2},
                   {OPT_SSLVERSION, SSLVERSION_TLSV1_2},
                   {OPT_HTTP_VERSION, HTTP_VERSION_1_1},
                   {OPT_PROTOCOLS, PROTO_HTTP_AND_HTTPS}};
    bool set = c->easy && c->multi;
    for (size_t i = 0; i < ARRAY_SIZE(numbers) && set; i++)
        set = curl.easy_setopt(c->easy, numbers[i].option, numbers[i].value) == 0;
    set = set && curl.easy_setopt(c->easy, OPT_PROXY, "") == 0 &&
          curl.easy_setopt(c->easy, OPT_USERAGENT, "titan") == 0 &&
          curl.easy_setopt(c->easy, OPT_ERRORBUFFER, c->error) == 0 &&
          curl.easy_setopt(c->easy, OPT_WRITEFUNCTION, on_body) == 0 &&
          curl.easy_setopt(c->easy, OPT_WRITEDATA, c) == 0 &&
          curl.easy_setopt(c->easy, OPT_HEADERFUNCTION, on_head) == 0 &&
          curl.easy_setopt(c->easy, OPT_HEADERDATA, c) == 0;
    if (!set) {
        http_client_free(c);
        return titan_fail(err, TITAN_ENOMEM, "libcurl makes no client");
    }
    /* An abort does not wait for a name server that does not answer; libcurl before 7.87 does. */
    (void)curl.easy_setopt(c->easy, OPT_QUICK_EXIT, 1L);
    *ret = c;
    return TITAN_OK;
}

void http_client_post(struct http_client *c, const struct http_post *post, struct http_posted *ret)
{
    void *headers = NULL;
    int running = 1, left = 0, result = -1;
    long status = 0;
    *ret = (struct http_posted){.status = 0};
    c->answer = ret;
    c->head = c->body = 0;
    c->error[0] = '\0';
    for (const char *const *h = post->headers; *h; h++) {
        void *const longer = curl.slist_append(headers, *h);
        titan_assert(longer);
        headers = longer;
    }
    const char *const ca = post->ca && *post->ca ? post->ca : NULL;
    /* Without a file of its own, the client has libcurl's default, the system's. */
    const bool set = curl.easy_setopt(c->easy, OPT_URL, post->url) == 0 &&
                     (!ca || curl.easy_setopt(c->easy, OPT_CAINFO, ca) == 0) &&
                     curl.easy_setopt(c->easy, OPT_HTTPHEADER, headers) == 0 &&
                     curl.easy_setopt(c->easy, OPT_POSTFIELDS, post->body) == 0 &&
                     curl.easy_setopt(c->easy, OPT_POSTFIELDSIZE, (long)post->len) == 0 &&
                     curl.easy_setopt(c->easy, OPT_TIMEOUT_MS, (long)post->timeout_ms) == 0 &&
                     curl.easy_setopt(c->easy, OPT_CONNECTTIMEOUT_MS, (long)MAX(post->timeout_ms / 2, 1u)) == 0 &&
                     curl.multi_add_handle(c->multi, c->easy) == 0;
    while (set && running && !atomic_load(&c->aborted))
        if (curl.multi_perform(c->multi, &running) != 0 ||
            (running && curl.multi_poll(c->multi, NULL, 0, POLL_MS, NULL) != 0))
            break;
    for (struct message *m; set && (m = curl.multi_info_read(c->multi, &left));)
        result = m->kind == MSG_DONE ? m->data.result : result;
    if (set) {
        (void)curl.easy_getinfo(c->easy, INFO_RESPONSE_CODE, &status);
        (void)curl.multi_remove_handle(c->multi, c->easy);
    }
    /* The body's end does not matter: the status line is the answer. */
    ret->status = status >= 200 && status <= 999 ? (unsigned)status : 0;
    if (!ret->status)
        (void)snprintf(ret->text, sizeof(ret->text), "%.159s",
                       atomic_load(&c->aborted) ? "given up"
                       : c->error[0]            ? c->error
                       : result > 0             ? curl.easy_strerror(result)
                                                : "no answer");
    (void)curl.easy_setopt(c->easy, OPT_HTTPHEADER, NULL);
    curl.slist_free_all(headers);
}

void http_client_abort(struct http_client *c)
{
    atomic_store(&c->aborted, true);
    (void)curl.multi_wakeup(c->multi);
}

void http_client_free(struct http_client *c)
{
    if (!c)
        return;
    if (c->multi)
        (void)curl.multi_cleanup(c->multi);
    if (c->easy)
        curl.easy_cleanup(c->easy);
    free(c);
}
