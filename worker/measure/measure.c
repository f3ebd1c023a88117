/* SPDX-License-Identifier: Apache-2.0 */
/* measure.c - starts the measuring processes, and writes the table of their results. */
#include "worker/measure/measure.h"

#include <limits.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include "base/cleanup.h"
#include "base/file.h"
#include "worker/comm/comm.h"
#include "worker/measure/replay.h"
#include "worker/measure/transfers.h"
#include "worker/plan/plan.h"

struct measurement {
    const struct measure_options *options;
    struct board *board; /* shared with the processes */
    int *ranks, n_ranks; /* `ranks` has one rank of each program class */
    int at_once;         /* processes that replay together */
    int first;           /* index in `ranks` of the first rank of the current round */
    int memfd;           /* segment of the current group of members */
};

/* --- processes ---------------------------------------------------------------------------------------------------- */

typedef titan_status (*process_fn)(const struct measurement *m, int index, int n, struct titan_error *err);

static void kill_all(const pid_t *pids, int n)
{
    for (int i = 0; i < n; i++)
        if (pids[i] > 0)
            (void)kill(pids[i], SIGKILL);
}

/* Runs n processes. If one process fails, kills the others, because they would wait for it. */
static titan_status run_processes(const struct measurement *m, process_fn fn, int n, struct titan_error *err)
{
    pid_t pids[MEASURE_MEMBERS_MAX] = {0};
    bool failed = false;

    titan_assert(n >= 1 && n <= MEASURE_MEMBERS_MAX);
    for (int i = 0; i < n; i++) {
        pids[i] = fork();
        if (pids[i] == 0) {
            struct titan_error why = {0};
            (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
            const titan_status status = fn(m, i, n, &why);
            if (status != TITAN_OK && !atomic_exchange(&m->board->failed, 1)) {
                why.status = status;
                m->board->err = why;
            }
            _exit(status == TITAN_OK ? 0 : 1);
        }
        if (pids[i] < 0) {
            kill_all(pids, i);
            failed = true;
            break;
        }
    }
    for (int left = n; left > 0; left--) {
        int status = 0;
        const pid_t pid = waitpid(-1, &status, 0);
        if (pid < 0)
            break;
        for (int i = 0; i < n; i++)
            if (pids[i] == pid)
                pids[i] = 0;
        if (status != 0 && !failed)
            kill_all(pids, n);
        failed |= status != 0;
    }
    if (!failed)
        return TITAN_OK;
    if (atomic_load(&m->board->failed) && m->board->err.status != TITAN_OK) {
        if (err)
            *err = m->board->err;
        return m->board->err.status;
    }
    return titan_fail(err, TITAN_EIO, "measure: a process was killed, or none could be started");
}

/* --- operations --------------------------------------------------------------------------------------------------- */

/* Replays the program class of process `index`. Processes beyond the last class replay the first classes again, because
 * a run keeps all cores busy. */
static titan_status replay_one(const struct measurement *m, int index, int n, struct titan_error *err)
{
    const struct measure_options *o = m->options;
    const struct replay_options options = {.recipe = o->recipe,
                                           .world = o->world,
                                           .rank = m->ranks[(m->first + index) % m->n_ranks],
                                           .threads = o->threads,
                                           .seconds = o->seconds,
                                           .first = m->first == 0 && index == 0};

    titan_assert(index < n);
    return replay_rank(&options, m->board, err);
}

static titan_status measure_operations(struct measurement *m, struct titan_error *err)
{
    const struct measure_options *o = m->options;
    const char *const device = o->recipe->device.name;
    struct model *model = NULL;
    struct plan *plan = NULL;

    /* Makes a plan without a device, to find a rank of each program class. */
    TRY(model_open(&o->recipe->model.dims, &model, err));
    const struct plan_options options = {
        .recipe = o->recipe, .model = model, .world = o->world, .dt = plan_compute_type(o->recipe, false)};
    titan_status status = plan_open(&options, &plan, err);
    if (status == TITAN_OK) {
        m->ranks = calloc((size_t)plan->classes, sizeof *m->ranks);
        status = m->ranks ? TITAN_OK : titan_fail(err, TITAN_ENOMEM, "measure: out of memory");
    }
    for (; status == TITAN_OK && m->n_ranks < plan->classes; m->n_ranks++)
        m->ranks[m->n_ranks] = program_class_rank(&plan->build, m->n_ranks);
    plan_close(plan);
    model_close(model);
    TRY(status);

    /* The device is not opened here, because its threads and contexts do not work in a forked process. */
    cpu_set_t set;
    const int cores = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
    m->at_once = MIN(MIN(o->world, MAX(1, cores / o->threads)), MEASURE_MEMBERS_MAX);
    if (strcmp(device, "cuda") == 0 || (strcmp(device, "auto") == 0 && access("/dev/nvidiactl", F_OK) == 0))
        m->at_once = 1;

    pthread_barrierattr_t shared;
    (void)pthread_barrierattr_init(&shared);
    (void)pthread_barrierattr_setpshared(&shared, PTHREAD_PROCESS_SHARED);
    for (m->first = 0; m->first < m->n_ranks && status == TITAN_OK; m->first += m->at_once) {
        if (pthread_barrier_init(&m->board->ready, &shared, (unsigned)m->at_once) != 0) {
            status = titan_fail(err, TITAN_EIO, "measure: no barrier between processes");
            break;
        }
        status = run_processes(m, replay_one, m->at_once, err);
        (void)pthread_barrier_destroy(&m->board->ready);
    }
    (void)pthread_barrierattr_destroy(&shared);
    return status;
}

/* --- transfers ---------------------------------------------------------------------------------------------------- */

static titan_status take_member(const struct measurement *m, int index, int n, struct titan_error *err)
{
    const struct transfers_options options = {.rank = index, .members = n, .memfd = m->memfd};
    return transfers_take(&options, m->board, err);
}

static titan_status measure_transfers(struct measurement *m, struct titan_error *err)
{
    struct board *const b = m->board;
    const int n = MIN(atomic_load(&b->n), BOARD_ROWS);

    titan_assert(n <= BOARD_ROWS);
    for (int members = 2; members <= MEASURE_MEMBERS_MAX; members++) {
        /* Marks the first row of each transfer, because several ranks have the same transfers. */
        int marked = 0;
        for (int i = 0; i < n; i++) {
            const struct cost_row *c = &b->rows[i].cost;
            bool known = false;
            if (c->kind != COST_TRANSFER || c->size != members)
                continue;
            for (int k = 0; k < i && !known; k++)
                known = b->rows[k].cost.kind == COST_TRANSFER && b->rows[k].cost.size == members &&
                        b->rows[k].cost.bytes == c->bytes && strcmp(b->rows[k].cost.key, c->key) == 0;
            b->rows[i].count = known ? 0 : 1;
            marked += !known;
        }
        if (marked == 0)
            continue;
        TRY(comm_shm_segment(members, &m->memfd, err));
        const titan_status status = run_processes(m, take_member, members, err);
        (void)close(m->memfd);
        TRY(status);
    }
    for (int i = 0; i < n; i++) {
        struct board_row *row = &b->rows[i];
        const int64_t ns = atomic_load(&row->ns);
        if (row->cost.kind != COST_TRANSFER || ns <= 0)
            continue;
        row->cost.seconds = (double)ns * 1e-9 / row->cost.size;
        row->cost.processor = (double)MAX(atomic_load(&row->processor_ns), 0) * 1e-9 / row->cost.size;
    }
    return TITAN_OK;
}

/* --- the table ---------------------------------------------------------------------------------------------------- */

static titan_status write_table(const struct measurement *m, struct buf *out, struct titan_error *err)
{
    struct board *const b = m->board;
    const int n = MIN(atomic_load(&b->n), BOARD_ROWS);
    const struct machine *machine = cost_machine_of(strcmp(b->host.device, "cpu") == 0 ? "cpu" : b->host.machine);
    char path[PATH_MAX], folder[PATH_MAX];
    _cleanup_(buf_free) struct buf text = BUF_INIT;
    _cleanup_(cost_table_clear) struct cost_table t = {0};
    int operations = 0, transfers = 0;

    titan_assert(b->host.device[0] && b->host.cores > 0);
    if (m->options->table) {
        if ((size_t)snprintf(path, sizeof path, "%s", m->options->table) >= sizeof path)
            return titan_fail(err, TITAN_EINVAL, "the table's path is too long");
    } else {
        TRY(cost_table_place(machine ? machine->name : b->host.device, path, sizeof path, err));
        (void)snprintf(folder, sizeof folder, "%.*s", (int)(strrchr(path, '/') - path), path);
        TRY(dir_make(folder, err));
    }
    if (access(path, F_OK) == 0) {
        TRY(cost_table_load(path, &t, err));
        TRY(cost_host_check(&t.host, &b->host, path, err));
    }
    t.host = b->host;
    for (int i = 0; i < n; i++) {
        struct board_row *row = &b->rows[i];
        const bool transfer = row->cost.kind == COST_TRANSFER;
        if (transfer ? row->cost.seconds <= 0 : row->count <= 0)
            continue;
        /* The time of an operation is the mean over all actions with this operation, on all ranks. */
        double sum = 0, spread = 0, count = 0;
        for (int k = i; k < n && !transfer; k++) {
            struct board_row *other = &b->rows[k];
            if (other->cost.kind != COST_OPERATION || other->cost.size != row->cost.size ||
                strcmp(other->cost.key, row->cost.key) != 0)
                continue;
            sum += other->cost.seconds * other->count;
            spread += other->cost.spread * other->count;
            count += other->count;
            if (k > i)
                other->count = 0;
        }
        if (!transfer) {
            row->cost.seconds = sum / count;
            row->cost.spread = spread / count;
        }
        TRY(cost_table_put(&t, &row->cost, err));
        *(transfer ? &transfers : &operations) += 1;
    }
    cost_table_print(&t, &text);
    if (buf_failed(&text))
        return titan_fail(err, TITAN_ENOMEM, "cost table: out of memory");
    TRY(file_write(path, text.data, text.len, err));
    buf_printf(out, "measured %d operations and %d transfers on %s \"%s\"; %zu rows in %s\n", operations, transfers,
               t.host.device, t.host.machine, t.n, path);
    return TITAN_OK;
}

titan_status measure_costs(const struct measure_options *options, struct buf *out, struct titan_error *err)
{
    struct measurement m = {.options = options, .memfd = -1};

    titan_assert(options->world > 0 && options->threads > 0 && options->seconds > 0);
    m.board = mmap(NULL, sizeof *m.board, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (m.board == MAP_FAILED)
        return titan_fail_errno(err, "measure: no shared memory");
    titan_status status = measure_operations(&m, err);
    if (status == TITAN_OK && strcmp(m.board->host.device, "cpu") == 0)
        status = measure_transfers(&m, err);
    if (status == TITAN_OK)
        status = write_table(&m, out, err);
    (void)munmap(m.board, sizeof *m.board);
    free(m.ranks);
    return status;
}
