/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/agent/shell/gpu_watch.h"

#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/machine.h"
#include "daemon/agent/shell/nvml.h"
#include "daemon/common/thread.h"

#define WAIT_MS 250                    /* wait for an event, before the thread checks for stops and requests */
#define PAUSE_S 1                      /* pause if NVML has no events, or no answer */
#define LOOK_MS (GPU_WATCH_OLD_MS / 6) /* interval of full looks, unless an event comes earlier */
#define AGE_CHECK_MS LOOK_MS
#define MEMORY_MOST (1ULL << 60) /* larger values are nonsense, and dropped */
#define CELSIUS_MOST 1000
#define WATCH_STACK_BYTES ((size_t)512 * 1024)

struct watched_gpu {
    char visible[128]; /* name from machine_gpu() */
    nvmlDevice_t device;
    bool registered;
    uint64_t ecc_forgiven; /* errors from before the last release */
    char fault[256];       /* why the GPU is out of use until its release; "" = it is in use */
    struct gpu_state state;
};

/* Shared by the loop and the thread; the last user frees it. */
struct gpu_board {
    pthread_mutex_t lock;
    pthread_cond_t wake;
    int refs;
    bool stopped, failed; /* failed: NVML does not start, or knows no GPU */
    bool release, look;
    uv_async_t *async;  /* NULL = the loop is gone */
    int64_t checked_ms; /* time of the last look; at first, the watch's start */
    char why[256];      /* the reason of failed */
    uint32_t slots;
    struct {
        struct gpu_state state; /* as published by the thread */
        bool release, look;     /* look: a look is requested and has not begun; results from before do not count */
    } gpus[];
};

/* Used by the thread only. */
struct watcher {
    struct gpu_board *board;
    struct nvml nvml;
    nvmlEventSet_t events; /* NULL = none */
    bool failing;          /* the last wait for an event ended with an error */
    uint32_t slots;
    struct watched_gpu gpus[];
};

struct gpu_watch {
    struct gpu_board *board;
    struct log log;
    uv_async_t async;
    uv_timer_t age_timer;
    bool old, failure_reported;
    int open_handles;
    void (*changed)(void *data);
    void (*done)(void *data);
    void *data, *done_data;
};

static void board_unref(struct gpu_board *b)
{
    (void)pthread_mutex_lock(&b->lock);
    const int refs = --b->refs;
    (void)pthread_mutex_unlock(&b->lock);
    titan_assert(refs >= 0);
    if (refs > 0)
        return;
    titan_assert(!b->async);
    (void)pthread_cond_destroy(&b->wake);
    (void)pthread_mutex_destroy(&b->lock);
    free(b);
}

/* --- the thread --------------------------------------------------------------------------------------------------- */

static void gpu_fails(struct watched_gpu *g, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Keeps the first fault, because later faults are often its result. */
static void gpu_fails(struct watched_gpu *g, const char *fmt, ...)
{
    va_list ap;
    if (g->fault[0])
        return;
    va_start(ap, fmt);
    (void)vsnprintf(g->fault, sizeof(g->fault), fmt, ap);
    va_end(ap);
}

/* Updates the GPU's health from NVML's return code. */
static void gpu_hear(const struct nvml *n, struct watched_gpu *g, nvmlReturn_t code)
{
    if (code == NVML_ERROR_GPU_IS_LOST)
        gpu_fails(g, "the GPU has fallen off the bus (NVML: %s)", n->error_string(code));
    else if (code == NVML_ERROR_RESET_REQUIRED)
        gpu_fails(g, "the GPU needs a reset (NVML: %s)", n->error_string(code));
}

static void gpu_look(struct watcher *w, struct watched_gpu *g)
{
    const struct nvml *const n = &w->nvml;
    struct gpu_state *const s = &g->state;
    nvmlReturn_t code = NVML_SUCCESS;
    unsigned count = 0;
    if (!g->device) { /* the name is a number, a UUID, or a UUID's prefix, as in CUDA */
        const bool numbered = strspn(g->visible, "0123456789") == strlen(g->visible);
        code = numbered ? n->by_index((unsigned)strtoul(g->visible, NULL, 10), &g->device)
                        : n->by_uuid(g->visible, &g->device);
        if (!numbered && code != NVML_SUCCESS && n->count(&count) != NVML_SUCCESS)
            count = 0;
    }
    for (unsigned i = 0; i < count && code != NVML_SUCCESS; i++) {
        char uuid[NVML_UUID_SIZE] = "";
        nvmlDevice_t device = NULL;
        if (n->by_index(i, &device) == NVML_SUCCESS && n->uuid(device, uuid, sizeof(uuid)) == NVML_SUCCESS &&
            !strncmp(uuid, g->visible, strlen(g->visible))) {
            g->device = device;
            code = NVML_SUCCESS;
        }
    }
    gpu_hear(n, g, code);
    if (code == NVML_SUCCESS) {
        gpu_hear(n, g, n->name(g->device, s->name, sizeof(s->name)));
        gpu_hear(n, g, n->uuid(g->device, s->uuid, sizeof(s->uuid)));
        nvmlMemory_t memory = {0};
        unsigned celsius = 0;
        unsigned long long errors = 0;
        nvmlReturn_t measured = n->memory(g->device, &memory);
        gpu_hear(n, g, measured);
        if (measured == NVML_SUCCESS) {
            s->memory_total = MIN(memory.total, MEMORY_MOST);
            s->memory_used = MIN(memory.used, s->memory_total);
        }
        measured = n->temperature(g->device, NVML_TEMPERATURE_GPU, &celsius);
        gpu_hear(n, g, measured);
        s->celsius = measured == NVML_SUCCESS && celsius < CELSIUS_MOST ? celsius : 0;
        measured = n->ecc_errors(g->device, NVML_MEMORY_ERROR_TYPE_UNCORRECTED, NVML_VOLATILE_ECC, &errors);
        gpu_hear(n, g, measured);
        s->ecc = measured == NVML_SUCCESS;
        s->ecc_errors = s->ecc ? MIN(errors, MEMORY_MOST) : s->ecc_errors;
        g->ecc_forgiven = s->ecc ? MIN(g->ecc_forgiven, s->ecc_errors) : g->ecc_forgiven;
        if (s->ecc && s->ecc_errors > g->ecc_forgiven)
            gpu_fails(g, "%llu uncorrected ECC error%s since the driver was loaded: reset the GPU", errors,
                      errors == 1 ? "" : "s");

        if (w->events && !g->registered)
            g->registered =
                n->events_register(g->device, nvmlEventTypeXidCriticalError | nvmlEventTypeDoubleBitEccError,
                                   w->events) == NVML_SUCCESS;
    }
    s->reason[0] = '\0';
    if (g->fault[0])
        (void)snprintf(s->reason, sizeof(s->reason), "%s", g->fault);
    else if (code == NVML_ERROR_NOT_FOUND)
        (void)snprintf(s->reason, sizeof(s->reason), "NVML knows no GPU '%.120s'", g->visible);
    s->health = s->reason[0] ? GPU_OUT : GPU_WELL;
}

/* Publishes the state to the loop. */
static void publish(struct watcher *w, const char *failed)
{
    struct gpu_board *const b = w->board;
    (void)pthread_mutex_lock(&b->lock);
    for (uint32_t i = 0; i < w->slots; i++)
        if (!b->gpus[i].look)
            b->gpus[i].state = w->gpus[i].state;
    b->checked_ms = clock_mono_ms();
    b->failed = failed;
    (void)snprintf(b->why, sizeof(b->why), "%s", failed ? failed : "");
    if (b->async)
        (void)uv_async_send(b->async);
    (void)pthread_mutex_unlock(&b->lock);
}

/* Takes the loop's requests. Returns false when the watch is over. */
static bool take_requests(struct watcher *w, bool *ret_look)
{
    struct gpu_board *const b = w->board;
    (void)pthread_mutex_lock(&b->lock);
    const bool on = !b->stopped;
    *ret_look = b->release || b->look;
    for (uint32_t i = 0; i < w->slots && *ret_look; i++) {
        struct watched_gpu *g = &w->gpus[i];
        b->gpus[i].look = false;
        if (!b->gpus[i].release)
            continue;
        b->gpus[i].release = false;
        g->fault[0] = '\0';
        g->ecc_forgiven = g->state.ecc_errors;
    }
    b->release = b->look = false;
    (void)pthread_mutex_unlock(&b->lock);
    return on;
}

/* Waits for an event, but not longer than a pause. Returns whether the thread must look at the GPUs now. */
static bool await_event(struct watcher *w)
{
    /* Xids that a faulty program causes on a healthy GPU. NVIDIA's device plug-in for Kubernetes ignores this list in
     * its health checks (internal/rm/health.go, after "Xid Errors" of the driver's documentation). */
    static const uint16_t programs[] = {13, 31, 43, 45, 68, 109};
    bool any = false;
    nvmlEventData_t event = {0};
    for (uint32_t i = 0; i < w->slots; i++)
        any |= w->gpus[i].registered;
    const nvmlReturn_t code = any ? w->nvml.events_wait(w->events, &event, WAIT_MS) : NVML_ERROR_NOT_SUPPORTED;
    const bool failed = any && code != NVML_SUCCESS && code != NVML_ERROR_TIMEOUT, again = failed && w->failing;
    w->failing = failed;
    if (code == NVML_SUCCESS && event.eventType == nvmlEventTypeXidCriticalError) {
        /* Other events are about ECC errors, which the next look counts. */
        bool of_program = false;
        for (size_t i = 0; i < ARRAY_SIZE(programs); i++)
            of_program |= programs[i] == event.eventData;
        char uuid[NVML_UUID_SIZE] = "";
        const bool named = w->nvml.uuid(event.device, uuid, sizeof(uuid)) == NVML_SUCCESS && uuid[0];
        for (uint32_t i = 0; i < w->slots; i++) {
            struct watched_gpu *g = &w->gpus[i];
            if (g->device != event.device && !(named && !strcmp(uuid, g->state.uuid)))
                continue;
            g->state.xid = (uint32_t)MIN(event.eventData, (unsigned long long)UINT32_MAX);
            if (!of_program)
                gpu_fails(g, "Xid %u: see the kernel's log, and NVIDIA's \"Xid Errors\"", g->state.xid);
        }
    } else if (code != NVML_SUCCESS && (!any || again)) {
        /* Waits for the pause, or until the loop has a request. */
        struct gpu_board *const b = w->board;
        struct timespec until;
        (void)clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_sec += PAUSE_S;
        (void)pthread_mutex_lock(&b->lock);
        for (int rc = 0; !b->stopped && !b->release && !b->look && rc != ETIMEDOUT;)
            rc = pthread_cond_clockwait(&b->wake, &b->lock, CLOCK_MONOTONIC, &until);
        (void)pthread_mutex_unlock(&b->lock);
    }
    return code == NVML_SUCCESS || failed; /* a lost GPU ends the wait for all GPUs */
}

static void *watch_main(void *arg)
{
    struct watcher *const w = arg;
    const nvmlReturn_t code = w->nvml.init();
    bool now = true, asked = false;
    int64_t checked = 0;
    if (code != NVML_SUCCESS) {
        publish(w, w->nvml.error_string(code));
    } else {
        if (w->nvml.events_create(&w->events) != NVML_SUCCESS)
            w->events = NULL;
        while (take_requests(w, &asked)) {
            if (now || asked || clock_mono_ms() - checked >= LOOK_MS) {
                for (uint32_t i = 0; i < w->slots; i++)
                    gpu_look(w, &w->gpus[i]);
                publish(w, NULL);
                checked = clock_mono_ms();
            }
            now = await_event(w);
        }
        if (w->events)
            (void)w->nvml.events_free(w->events);
        (void)w->nvml.shutdown();
    }
    board_unref(w->board);
    free(w);
    return NULL;
}

/* --- the loop ----------------------------------------------------------------------------------------------------- */

static void on_news(uv_async_t *async)
{
    struct gpu_watch *w = async->data;
    struct gpu_board *const b = w->board;
    char why[sizeof(b->why)];
    (void)pthread_mutex_lock(&b->lock);
    const bool failed = b->failed;
    memcpy(why, b->why, sizeof(why));
    (void)pthread_mutex_unlock(&b->lock);
    if (failed && !w->failure_reported)
        tlog_warn(&w->log, "GPUs are not watched: NVML does not start", "reason=\"%s\"", why);
    w->failure_reported |= failed;
    w->old = false;
    w->changed(w->data);
}

static bool board_old(struct gpu_board *b)
{
    (void)pthread_mutex_lock(&b->lock);
    const bool old = !b->failed && clock_mono_ms() - b->checked_ms > GPU_WATCH_OLD_MS;
    (void)pthread_mutex_unlock(&b->lock);
    return old;
}

static void on_age_timer(uv_timer_t *timer)
{
    struct gpu_watch *w = timer->data;
    const bool old = board_old(w->board);
    if (old && !w->old)
        w->changed(w->data);
    w->old = old;
}

bool gpu_watch_get(const struct gpu_watch *w, uint32_t slot, struct gpu_state *ret)
{
    if (!w || slot >= w->board->slots)
        return false;
    struct gpu_board *const b = w->board;
    const bool old = board_old(b);
    (void)pthread_mutex_lock(&b->lock);
    const bool known = !b->failed;
    *ret = b->gpus[slot].state;
    (void)pthread_mutex_unlock(&b->lock);
    if (old && ret->health != GPU_OUT) {
        ret->health = GPU_OUT;
        (void)snprintf(ret->reason, sizeof(ret->reason), "NVML has not answered for more than %d s",
                       GPU_WATCH_OLD_MS / 1000);
    }
    titan_assert((ret->health == GPU_WELL) == !ret->reason[0]);
    return known;
}

void gpu_watch_release(struct gpu_watch *w, uint32_t slot)
{
    if (!w || slot >= w->board->slots)
        return;
    (void)pthread_mutex_lock(&w->board->lock);
    w->board->release = w->board->gpus[slot].release = true;
    (void)pthread_cond_signal(&w->board->wake);
    (void)pthread_mutex_unlock(&w->board->lock);
}

void gpu_watch_look(struct gpu_watch *w, uint32_t slot)
{
    if (!w || slot >= w->board->slots)
        return;
    struct gpu_board *const b = w->board;
    (void)pthread_mutex_lock(&b->lock);
    struct gpu_state *const s = &b->gpus[slot].state;
    b->look = b->gpus[slot].look = true;
    if (s->health == GPU_WELL) {
        s->health = GPU_UNSEEN;
        (void)snprintf(s->reason, sizeof(s->reason), "its GPU has not been looked at since a worker's device failed");
    }
    (void)pthread_cond_signal(&b->wake);
    (void)pthread_mutex_unlock(&b->lock);
}

titan_status gpu_watch_open(uv_loop_t *loop, const struct gpu_watch_options *o, struct gpu_watch **ret,
                            struct titan_error *err)
{
    const uint32_t slots = o->slots;
    struct nvml nvml;
    titan_assert(slots > 0);
    TRY(nvml_load(o->library, &nvml, err));
    struct gpu_watch *w = calloc(1, sizeof(*w));
    struct gpu_board *b = calloc(1, sizeof(*b) + slots * sizeof(b->gpus[0]));
    struct watcher *watcher = calloc(1, sizeof(*watcher) + slots * sizeof(watcher->gpus[0]));
    if (!w || !b || !watcher || uv_async_init(loop, &w->async, on_news) != 0) {
        free(w);
        free(b);
        free(watcher);
        return titan_fail(err, TITAN_ENOMEM, "no memory to watch the GPUs");
    }
    *watcher = (struct watcher){.board = b, .nvml = nvml, .slots = slots};
    for (uint32_t i = 0; i < slots; i++) {
        if (!machine_gpu(i, watcher->gpus[i].visible))
            (void)snprintf(watcher->gpus[i].visible, sizeof(watcher->gpus[i].visible), "%u", i);
        b->gpus[i].state = (struct gpu_state){.health = GPU_UNSEEN, .reason = "its GPU has not been looked at yet"};
    }
    (void)pthread_mutex_init(&b->lock, NULL);
    (void)pthread_cond_init(&b->wake, NULL);
    b->refs = 2;
    b->checked_ms = clock_mono_ms();
    b->slots = slots;
    b->async = &w->async;
    w->board = b;
    w->changed = o->changed;
    w->data = o->data;
    log_init(&w->log, "agent", "%s", "");
    (void)uv_timer_init(loop, &w->age_timer);
    w->async.data = w->age_timer.data = w;
    w->open_handles = 2;
    (void)uv_timer_start(&w->age_timer, on_age_timer, AGE_CHECK_MS, AGE_CHECK_MS);
    errno = thread_start(WATCH_STACK_BYTES, watch_main, watcher);
    if (errno) {
        const titan_status status = titan_fail_errno(err, "cannot start the thread that watches the GPUs");
        free(watcher);
        board_unref(b);
        gpu_watch_close(w, NULL, NULL);
        return status;
    }
    *ret = w;
    return TITAN_OK;
}

static void on_closed(uv_handle_t *handle)
{
    struct gpu_watch *w = handle->data;
    titan_assert(w->open_handles > 0);
    if (--w->open_handles > 0)
        return;
    if (w->done)
        w->done(w->done_data);
    free(w);
}

void gpu_watch_close(struct gpu_watch *w, void (*done)(void *data), void *data)
{
    if (!w) {
        if (done)
            done(data);
        return;
    }
    struct gpu_board *const b = w->board;
    (void)pthread_mutex_lock(&b->lock);
    titan_assert(!b->stopped && b->async == &w->async);
    b->stopped = true;
    b->async = NULL;
    (void)pthread_cond_signal(&b->wake);
    (void)pthread_mutex_unlock(&b->lock);
    board_unref(b);
    w->done = done;
    w->done_data = data;
    uv_close((uv_handle_t *)&w->async, on_closed);
    uv_close((uv_handle_t *)&w->age_timer, on_closed);
}
