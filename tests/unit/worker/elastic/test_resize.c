/* SPDX-License-Identifier: Apache-2.0 */
/* The training loop under a scripted membership: real processes, real communicators, epochs that grow, shrink, pause
 * and lose a worker. In canonical mode the losses of every step must be those of a run that was never disturbed, bit
 * for bit: of one rank, or with tensor and pipeline parallelism of as few ranks as these take. That includes state
 * handed over in memory, state from a checkpoint, and samples neither lost nor seen twice. */
#include <fcntl.h>
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/cleanup.h"
#include "base/failpoint.h"
#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "tests/support/child.h"
#include "tests/support/patience.h"
#include "tests/support/sets.h"
#include "worker/checkpoint/checkpoint.h"
#include "worker/comm/comm.h"
#include "worker/elastic/membership.h"
#include "worker/train.h"

#define PROCESSES_MAX 6
#define EPOCHS_MAX 6
#define STEPS 24
#define STEPS_SHORT 12 /* of scripts that are over their last loss by step 9 */

struct script_epoch {
    int world, process[PROCESSES_MAX]; /* of each rank */
    enum state_source source;
    uint64_t pause_after;     /* 0: to the end */
    int victim;               /* process that is killed, 0: none (process 0 writes the metrics) */
    uint64_t kill_before;     /* the step it does not live to see */
    uint64_t from_checkpoint; /* step */
    uint64_t older;           /* a checkpoint before that; that one is damaged then, in the file of rank 1 */
    int holders, holder_ranks[PROCESSES_MAX];
    bool find; /* source and holders as a coordinator would: from what the processes said */
    int departing, departing_rank[PROCESSES_MAX]; /* processes */
    const char *fails[PROCESSES_MAX];             /* failpoints of each process; "kill" among them ends it */
    const char *recovery_source;                  /* that rank 0 must report; NULL: any */
    int memfd;
};

/* One of each process, for epochs over TCP. */
struct listeners {
    int fd[PROCESSES_MAX];
    char address[PROCESSES_MAX][32];
};

/* What each process said when it left each epoch; shared by all. */
struct board {
    struct {
        struct quiesced q;
        atomic_int reported;
    } of[EPOCHS_MAX][PROCESSES_MAX];
    atomic_int ready[EPOCHS_MAX], rolled[EPOCHS_MAX]; /* as rank 0 said */
    atomic_ulong began[EPOCHS_MAX];                   /* the step it said */
    atomic_ulong told[EPOCHS_MAX];                    /* the newest that any rank told of */
    atomic_ulong step;                                /* the newest that any rank has committed */
    atomic_int dying;                                 /* the victim's epoch */
};

struct scripted {
    struct membership base;
    struct board *board;
    int found_holders[PROCESSES_MAX];
    const struct script_epoch *epochs;
    int n_epochs, process, at; /* at: index of the current epoch, -1 before the first */
    int entered;               /* at, when it last began a step */
    uint64_t step;             /* last committed */
    bool paused;               /* it has been told to, in an evaluation */
    atomic_int revoked;
    const struct listeners *listeners;
    const char *addresses[PROCESSES_MAX]; /* by rank */
    char older[PATH_MAX];
    const char *older_checkpoints[1];
};

/* Members, then departing ranks. */
static int process_of(const struct script_epoch *e, int rank)
{
    return rank < e->world ? e->process[rank] : e->departing_rank[rank - e->world];
}

static bool leaves(const struct scripted *s)
{
    const struct script_epoch *e = &s->epochs[s->at];
    for (int i = 0; i < e->departing; i++)
        if (e->departing_rank[i] == s->process)
            return true;
    return false;
}

static bool dies(const struct script_epoch *e, int process)
{
    return (process != 0 && e->victim == process) || (e->fails[process] && strstr(e->fails[process], "kill"));
}

static int rank_in(const struct script_epoch *e, int process)
{
    for (int r = 0; r < e->world + e->departing; r++)
        if (process_of(e, r) == process)
            return r;
    return -1;
}

/* The newest epoch that a member of this one holds installed, and those that hold its parts, installed or not. */
static void find_source(struct scripted *s, struct epoch_view *view)
{
    const struct script_epoch *e = &s->epochs[s->at], *before = e - 1;
    struct quiesced last[PROCESSES_MAX] = {0};
    for (int p = 0; p < PROCESSES_MAX; p++) {
        if (rank_in(before, p) >= 0 && !dies(before, p))
            while (atomic_load(&s->board->of[s->at - 1][p].reported) == 0)
                patience_pause_ms(1, "another process");
        for (int i = 0; i < s->at; i++)
            if (atomic_load(&s->board->of[i][p].reported))
                last[p] = s->board->of[i][p].q;
        if (rank_in(e, p) >= 0)
            view->source_epoch = MAX(view->source_epoch, last[p].installed_epoch);
    }
    const struct script_epoch *source = view->source_epoch ? &s->epochs[view->source_epoch - 1] : NULL;
    view->source = source ? STATE_FROM_MEMORY : STATE_FROM_INIT;
    view->holders = source ? source->world : 0;
    view->holder_ranks = s->found_holders;
    for (int a = 0; a < view->holders; a++) {
        const int p = source->process[a];
        const bool holds = last[p].installed_epoch == view->source_epoch || last[p].pending_epoch == view->source_epoch;
        s->found_holders[a] = holds ? rank_in(e, p) : -1;
    }
}

/* One bit of the newest is wrong, as rank 0 finds it, and the one before it is named. */
static void name_older(struct scripted *s, struct epoch_view *view)
{
    char path[PATH_MAX + 32];
    unsigned char byte;
    if (view->rank == 0) {
        (void)snprintf(path, sizeof path, "%s/rank-00001.safetensors", view->checkpoint_path);
        const int fd = open(path, O_RDWR | O_CLOEXEC);
        const off_t middle = fd < 0 ? 0 : lseek(fd, 0, SEEK_END) / 2;
        if (fd < 0 || pread(fd, &byte, 1, middle) != 1)
            _exit(93);
        byte ^= 1;
        if (pwrite(fd, &byte, 1, middle) != 1)
            _exit(94);
        (void)close(fd);
    }
    (void)snprintf(s->older, sizeof s->older, "%.512s/checkpoint/step-%08lu", s->base.job_dir,
                   (unsigned long)s->epochs[s->at].older);
    s->older_checkpoints[0] = s->older;
    view->older_checkpoints = s->older_checkpoints;
    view->n_older = 1;
}

static titan_status scripted_next(struct membership *m, struct epoch_view *ret, struct titan_error *err)
{
    struct scripted *s = (struct scripted *)m;
    for (s->at++; s->at < s->n_epochs; s->at++) {
        const struct script_epoch *e = &s->epochs[s->at];
        for (int rank = 0; rank < e->world + e->departing; rank++) {
            if (process_of(e, rank) != s->process)
                continue;
            for (int r = 0; r < e->world + e->departing; r++)
                s->addresses[r] = s->listeners->address[process_of(e, r)];
            *ret = (struct epoch_view){.epoch = (uint64_t)s->at + 1,
                                       .comm_id = {(unsigned char)(s->at + 1)},
                                       .rank = rank,
                                       .world = e->world,
                                       .departing = e->departing,
                                       .addresses = s->addresses,
                                       .memfd = e->memfd,
                                       .source = e->source,
                                       .holders = e->holders,
                                       .holder_ranks = e->holder_ranks};
            (void)snprintf(ret->checkpoint_path, sizeof ret->checkpoint_path, "%.512s/checkpoint/step-%08lu",
                           m->job_dir, (unsigned long)e->from_checkpoint);
            if (e->source != STATE_FROM_CHECKPOINT)
                ret->checkpoint_path[0] = '\0';
            if (e->older)
                name_older(s, ret);
            if (e->find)
                find_source(s, ret);
            return failpoint_set(e->fails[s->process], err);
        }
    }
    return titan_fail(err, TITAN_ECANCELLED, "the script is over");
}

/* Fail when others have committed the step that this process has only prepared, and the victim, if any, is dead. In an
 * evaluation: have this process told to pause. */
static titan_status on_point(void *arg, const char *name, struct titan_error *err)
{
    struct scripted *s = arg;
    if (strcmp(name, "evaluation.step") == 0) {
        s->paused = true;
        return TITAN_OK;
    }
    while (atomic_load(&s->board->step) <= s->step ||
           (s->epochs[s->at].victim != 0 && atomic_load(&s->board->dying) == 0))
        patience_pause_ms(1, "other processes");
    return titan_fail(err, TITAN_EPEER, "%s when others are ahead", name);
}

/* Raised only. */
static void raise_to(atomic_ulong *to, uint64_t step)
{
    uint64_t before = atomic_load(to);
    while (before < step && !atomic_compare_exchange_weak(to, &before, step))
        ;
}

/* Asked at the beginning of every step: that is how a script knows which one it is. */
static void count_step(struct scripted *s)
{
    while (s->entered != s->at && atomic_load(&s->board->ready[s->at]) == 0)
        patience_pause_ms(1, "rank 0");
    s->step = s->entered == s->at ? s->step + 1 : atomic_load(&s->board->began[s->at]);
    s->entered = s->at;
    raise_to(&s->board->step, s->step);
}

static unsigned scripted_commands(struct membership *m)
{
    struct scripted *s = (struct scripted *)m;
    const struct script_epoch *e = &s->epochs[s->at];
    count_step(s);
    if (e->victim == s->process && e->victim != 0 && s->step + 1 == e->kill_before) {
        atomic_store(&s->board->dying, 1);
        (void)raise(SIGKILL);
    }
    /* One rank alone is told: the others learn of it in the step. */
    if (s->paused && s->at == 0)
        return 1;
    return e->pause_after == s->step + 1 && e->process[e->world - 1] == s->process ? 1 : 0;
}

static void scripted_progress(struct membership *m, const struct step_report *r)
{
    struct scripted *s = (struct scripted *)m;
    raise_to(&s->board->told[s->at], r->step);
}

static void scripted_quiesced(struct membership *m, const struct quiesced *q)
{
    struct scripted *s = (struct scripted *)m;
    const struct script_epoch *e = &s->epochs[s->at];
    s->board->of[s->at][s->process].q = *q;
    atomic_store(&s->board->of[s->at][s->process].reported, 1);
    if (e->victim == 0 && e->pause_after == 0) /* a failpoint ended it */
        return;
    if (leaves(s)) {
        if (!q->paused || q->installed_epoch != 0 || q->last_step != 0)
            _exit(92);
        return;
    }
    if (q->epoch != (uint64_t)s->at + 1 || q->paused != (e->pause_after > 0) ||
        (q->paused && q->last_step != e->pause_after))
        _exit(90);
}

static void scripted_failing(struct membership *m, const struct titan_error *err)
{
    (void)fprintf(stderr, "# process %d: %s\n", ((struct scripted *)m)->process, err->msg);
}

static const atomic_int *scripted_revoked(struct membership *m)
{
    return &((struct scripted *)m)->revoked;
}

static void ignore_revoke(struct membership *m, void (*fn)(void *arg), void *arg)
{
    (void)m;
    (void)fn;
    (void)arg;
}

static void ignore_checkpoint(struct membership *m, const struct checkpoint_report *report)
{
    (void)m;
    (void)report;
}

static void scripted_state_ready(struct membership *m, const struct state_ready *ready)
{
    const struct scripted *s = (struct scripted *)m;
    const char *recovery_source = s->epochs[s->at].recovery_source;
    if ((s->epochs[s->at].older > 0) != (strstr(ready->damaged_checkpoint, "step-") != NULL))
        _exit(95);
    atomic_store(&s->board->began[s->at], ready->step);
    atomic_store(&s->board->ready[s->at], 1);
    atomic_store(&s->board->rolled[s->at], ready->rolled_forward);
    if (!recovery_source || strcmp(recovery_source, recovery_source_name(ready->recovery_source)) == 0)
        return;
    (void)fprintf(stderr, "# epoch %d: state from %s, expected %s\n", s->at + 1,
                  recovery_source_name(ready->recovery_source), recovery_source);
    _exit(91);
}

static void ignore_finished(struct membership *m, uint64_t step)
{
    (void)m;
    (void)step;
}

static void ignore_evaluation(struct membership *m, const struct evaluation_report *report)
{
    (void)m;
    (void)report;
}

static const struct membership_ops scripted_ops = {.next = scripted_next,
                                                   .on_revoke = ignore_revoke,
                                                   .revoked = scripted_revoked,
                                                   .commands = scripted_commands,
                                                   .quiesced = scripted_quiesced,
                                                   .state_ready = scripted_state_ready,
                                                   .progress = scripted_progress,
                                                   .checkpoint_written = ignore_checkpoint,
                                                   .evaluated = ignore_evaluation,
                                                   .finished = ignore_finished,
                                                   .failing = scripted_failing};

/* --- running a script --------------------------------------------------------------------------------------------- */

static int steps = STEPS; /* of the runs that follow */

/* axes: more settings, NULL at the end; NULL: none. */
static void make_recipe(struct recipe *r, const char *checkpoints, const char *const *axes)
{
    struct titan_error err = {0};
    char length[32];
    (void)snprintf(length, sizeof length, "training.steps=%d", steps);
    const char *const sets[] = {length,
                                "training.dataset_path=" TITAN_SOURCE_DIR "/worker/elastic",
                                "numerics.canonical=true",
                                "device.threads=1",
                                "device.name=cpu",
                                "training.seq_len=16",
                                "checkpoint.interval=5",
                                "elastic.max_workers=5",
                                "training.global_batch_size=14",
                                "checkpoint.async_mode=disabled"};
    recipe_init(r);
    assert_int_equal(recipe_load(r, TITAN_SOURCE_DIR "/recipes/tiny.toml", &err), TITAN_OK);
    for (size_t i = 0; i < ARRAY_SIZE(sets); i++)
        if (recipe_set(r, sets[i], &err) != TITAN_OK)
            fail_msg("%s", err.msg);
    assert_int_equal(recipe_set(r, checkpoints, &err), TITAN_OK);
    for (; axes && *axes; axes++)
        if (recipe_set(r, *axes, &err) != TITAN_OK)
            fail_msg("%s", err.msg);
    if (recipe_resolve(r, &err) != TITAN_OK)
        fail_msg("%s", err.msg);
}

static int run_process(const struct recipe *r, const struct script_epoch *epochs, int n, int process,
                       const struct listeners *l, struct board *board, const char *dir)
{
    struct titan_error err = {0};
    struct scripted s = {.base = {.ops = &scripted_ops, .listener = l->fd[process]},
                         .board = board,
                         .epochs = epochs,
                         .n_epochs = n,
                         .process = process,
                         .listeners = l,
                         .at = -1,
                         .entered = -1};
    const struct train_options options = {.recipe = r, .membership = &s.base};
    (void)snprintf(s.base.job_dir, sizeof s.base.job_dir, "%s", dir);
    failpoint_on_call(on_point, &s);
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    (void)signal(SIGPIPE, SIG_IGN);
    (void)alarm((unsigned)patience_ms(600) / 1000);
    return train(&options, &err) == TITAN_OK ? 0 : 1;
}

struct losses {
    double loss[STEPS + 1], grad_norm[STEPS + 1];
    int64_t epoch[STEPS + 1];
    int lines, times[STEPS + 1];
    int64_t evaluated[STEPS + 1]; /* the epoch that has evaluated the step; 0: none */
};

static void read_losses(const char *dir, struct losses *ret)
{
    char path[256];
    _cleanup_(buf_free) struct buf text = BUF_INIT;
    (void)snprintf(path, sizeof path, "%s/metrics.jsonl", dir);
    assert_int_equal(file_read(path, 1 << 20, &text, NULL), TITAN_OK);
    memset(ret, 0, sizeof *ret);
    for (char *line = strtok(text.data, "\n"); line; line = strtok(NULL, "\n")) {
        struct json *j = NULL;
        assert_int_equal(json_parse(line, strlen(line), &j, NULL), TITAN_OK);
        const int64_t step = json_int(j, "step", 0), evaluated = json_int(j, "validation_step", 0);
        if (evaluated) {
            assert_in_range(evaluated, 1, steps);
            assert_int_equal(ret->evaluated[evaluated], 0);
            ret->evaluated[evaluated] = json_int(j, "epoch", 0);
        }
        if (evaluated && isnan(json_real(j, "loss", NAN))) { /* alone */
            json_free(j);
            continue;
        }
        assert_in_range(step, 1, steps);
        ret->loss[step] = json_real(j, "loss", NAN);
        ret->grad_norm[step] = json_real(j, "grad_norm", NAN);
        ret->epoch[step] = json_int(j, "epoch", 0);
        ret->lines++;
        ret->times[step]++;
        json_free(j);
    }
}

static bool rolled_forward;    /* by the last epoch of the last run */
static uint64_t told_in_first; /* the newest step that was told of in its first epoch */

static void run_with(const char *const *axes, struct script_epoch *epochs, int n, bool checkpoints, bool tcp,
                     struct losses *ret)
{
    char dir[] = "/tmp/titan-resize-XXXXXX";
    struct recipe r;
    pid_t pids[PROCESSES_MAX] = {0};
    struct listeners l;
    struct board *board = mmap(NULL, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    assert_true(board != MAP_FAILED);
    assert_non_null(mkdtemp(dir));
    make_recipe(&r, checkpoints ? "checkpoint.enable=true" : "checkpoint.enable=false", axes);
    for (int i = 0; i < n; i++) {
        epochs[i].memfd = -1;
        const int ranks = epochs[i].world + epochs[i].departing;
        if (ranks > 1 && !tcp)
            assert_int_equal(comm_shm_segment(ranks, &epochs[i].memfd, NULL), TITAN_OK);
    }
    for (int p = 0; p < PROCESSES_MAX; p++) {
        int port = 0;
        l.fd[p] = -1;
        if (tcp)
            assert_int_equal(comm_listen("127.0.0.1", NULL, &l.fd[p], &port, NULL), TITAN_OK);
        (void)snprintf(l.address[p], sizeof l.address[p], "127.0.0.1:%d", port);
    }
    for (int p = 0; p < PROCESSES_MAX; p++) {
        bool used = false;
        for (int i = 0; i < n; i++)
            for (int rank = 0; rank < epochs[i].world; rank++)
                used = used || epochs[i].process[rank] == p;
        if (!used)
            continue;
        pids[p] = child_fork();
        assert_true(pids[p] >= 0);
        if (pids[p] == 0)
            exit(run_process(&r, epochs, n, p, &l, board, dir));
    }
    for (int p = 0; p < PROCESSES_MAX; p++) {
        int status, expected = 0;
        if (pids[p] == 0)
            continue;
        assert_int_equal(waitpid(pids[p], &status, 0), pids[p]);
        for (int i = 0; i < n; i++)
            if (dies(&epochs[i], p))
                expected = SIGKILL;
        if (status != expected)
            fail_msg("process %d ended with wait status %#x", p, (unsigned)status);
    }
    for (int i = 0; i < n; i++)
        if (epochs[i].memfd >= 0)
            (void)close(epochs[i].memfd);
    for (int p = 0; p < PROCESSES_MAX; p++)
        if (l.fd[p] >= 0)
            (void)close(l.fd[p]);
    if (atomic_load(&board->ready[n - 1]) == 0)
        fail_msg("the script ended before its last epoch");
    rolled_forward = atomic_load(&board->rolled[n - 1]);
    told_in_first = atomic_load(&board->told[0]);
    (void)munmap(board, sizeof *board);
    read_losses(dir, ret);
    assert_int_equal(dir_remove(dir, NULL), TITAN_OK);
}

static void run_script(struct script_epoch *epochs, int n, bool checkpoints, bool tcp, struct losses *ret)
{
    run_with(NULL, epochs, n, checkpoints, tcp, ret);
}

static struct losses reference, reference_short;

static void check_against(const struct losses *l, const struct losses *undisturbed)
{
    for (int s = 1; s <= steps; s++)
        if (l->loss[s] != undisturbed->loss[s] || l->grad_norm[s] != undisturbed->grad_norm[s])
            fail_msg("step %d: loss %.17g and norm %.17g, undisturbed %.17g and %.17g", s, l->loss[s], l->grad_norm[s],
                     undisturbed->loss[s], undisturbed->grad_norm[s]);
}

static void check_against_reference(const struct losses *l)
{
    check_against(l, steps == STEPS ? &reference : &reference_short);
}

static int one_rank(void **state)
{
    (void)state;
    struct script_epoch whole[] = {{.world = 1, .process = {0}}};
    (void)setenv("TITAN_PLUGIN_DIR", TITAN_BUILD_DIR "/lib/titan", 0);
    log_set_level(getenv("TITAN_TEST_LOG") ? LOG_LEVEL_INFO : LOG_LEVEL_ERROR);
    run_script(whole, 1, false, false, &reference);
    assert_int_equal(reference.lines, STEPS);
    assert_true(reference.loss[STEPS] < reference.loss[1]);
    steps = STEPS_SHORT;
    run_script(whole, 1, false, false, &reference_short);
    steps = STEPS;
    return 0;
}

static int shorten(void **state)
{
    (void)state;
    steps = STEPS_SHORT;
    return 0;
}

static int lengthen(void **state)
{
    (void)state;
    steps = STEPS;
    return 0;
}

/* 2 -> 3 -> 5 workers, then the same five in other places; state in memory throughout. */
static void pause_and_resize(bool tcp)
{
    struct losses l;
    struct script_epoch e[] = {
        {.world = 2, .process = {0, 1}, .pause_after = 4},
        {.world = 3,
         .process = {0, 1, 2},
         .source = STATE_FROM_MEMORY,
         .pause_after = 8,
         .holders = 2,
         .holder_ranks = {0, 1}},
        {.world = 5,
         .process = {3, 0, 4, 2, 1},
         .source = STATE_FROM_MEMORY,
         .pause_after = 11,
         .holders = 3,
         .holder_ranks = {1, 4, 3}},
        {.world = 5,
         .process = {0, 1, 2, 3, 4},
         .source = STATE_FROM_MEMORY,
         .pause_after = 12,
         .holders = 5,
         .holder_ranks = {3, 0, 4, 2, 1}},
        {.world = 5,
         .process = {4, 3, 2, 1, 0},
         .source = STATE_FROM_MEMORY,
         .pause_after = 16,
         .holders = 5,
         .holder_ranks = {4, 3, 2, 1, 0}},
        {.world = 5,
         .process = {0, 4, 3, 1, 2},
         .source = STATE_FROM_MEMORY,
         .holders = 5,
         .holder_ranks = {1, 2, 4, 3, 0}},
    };
    run_script(e, (int)ARRAY_SIZE(e), false, tcp, &l);
    assert_int_equal(l.lines, STEPS);
    check_against_reference(&l);
}

static void test_pause_and_resize(void **state)
{
    (void)state;
    pause_and_resize(false);
}

static void test_pause_and_resize_tcp(void **state)
{
    (void)state;
    pause_and_resize(true);
}

/* A worker dies: the others drop the step, go back to the checkpoint and on without it; later one joins, from memory.
 */
static void kill_and_regrow(bool tcp)
{
    struct losses l;
    struct script_epoch e[] = {
        {.world = 4, .process = {0, 1, 2, 3}, .victim = 2, .kill_before = 13},
        {.world = 3, .process = {0, 1, 3}, .source = STATE_FROM_CHECKPOINT, .from_checkpoint = 10, .pause_after = 17},
        {.world = 4, .process = {0, 1, 3, 4}, .source = STATE_FROM_MEMORY, .holders = 3, .holder_ranks = {0, 1, 2}},
    };
    run_script(e, (int)ARRAY_SIZE(e), true, tcp, &l);
    assert_true(l.lines >= STEPS + 1); /* steps 11 and on came twice */
    check_against_reference(&l);
}

static void test_kill_and_regrow(void **state)
{
    (void)state;
    kill_and_regrow(false);
}

static void test_kill_and_regrow_tcp(void **state)
{
    (void)state;
    kill_and_regrow(true);
}

/* Did the last epoch begin with steps to finish? A worker dies and no rank goes back: what it held is with its buddy,
 * or a replica. With and without others that leave; and one rank alone takes over from two. */
static bool lose_one(const char *const *axes, struct script_epoch *e, int n, struct script_epoch *alone, bool tcp)
{
    static struct losses undisturbed; /* of the axes it was asked for last */
    static const char *const *known;
    struct losses l;
    run_with(axes, e, n, false, tcp, &l);
    for (int step = 1; step <= steps; step++)
        if (l.times[step] != 1)
            fail_msg("step %d was told of %d times", step, l.times[step]);
    const bool rolled = rolled_forward;
    if (alone && axes != known)
        run_with(axes, alone, 1, false, false, &undisturbed);
    known = alone ? axes : known;
    check_against(&l, alone ? &undisturbed : &reference);
    return rolled;
}

static void kill_without_loss(bool tcp)
{
    struct script_epoch e[] = {
        {.world = 4, .process = {0, 1, 2, 3}, .victim = 2, .kill_before = 9},
        {.world = 3,
         .process = {3, 0, 1},
         .source = STATE_FROM_MEMORY,
         .victim = 3,
         .kill_before = 15,
         .holders = 4,
         .holder_ranks = {1, 2, -1, 0},
         .recovery_source = "buddy"},
        {.world = 2,
         .process = {0, 1},
         .source = STATE_FROM_MEMORY,
         .victim = 1,
         .kill_before = 19,
         .holders = 3,
         .holder_ranks = {-1, 0, 1},
         .recovery_source = "buddy"},
        {.world = 1,
         .process = {0},
         .source = STATE_FROM_MEMORY,
         .pause_after = 21,
         .holders = 2,
         .holder_ranks = {0, -1},
         .recovery_source = "buddy"},
        {.world = 2,
         .process = {4, 0},
         .source = STATE_FROM_MEMORY,
         .holders = 1,
         .holder_ranks = {1},
         .recovery_source = "memory"},
    };
    (void)lose_one(NULL, e, (int)ARRAY_SIZE(e), NULL, tcp);
}

static void test_kill_without_loss(void **state)
{
    (void)state;
    kill_without_loss(false);
}

static void test_kill_without_loss_tcp(void **state)
{
    (void)state;
    kill_without_loss(true);
}

/* Four become two: one is killed, one leaves. */
static void four_become_two(const char *const *axes, int victim, const char *recovery_source)
{
    struct script_epoch alone[] = {{.world = 2, .process = {0, 1}}};
    struct script_epoch e[] = {
        {.world = 4, .process = {0, 1, 2, 3}, .victim = victim, .kill_before = 9},
        {.world = 2,
         .source = STATE_FROM_MEMORY,
         .departing = 1,
         .holders = 4,
         .pause_after = 14,
         .recovery_source = recovery_source},
        {.world = 4, .source = STATE_FROM_MEMORY, .process = {4, 0, 1, 2}, .holders = 2, .recovery_source = "memory"},
    };
    int others[4], n = 0;
    for (int p = 0; p < 4; p++)
        if (p != victim)
            others[n++] = p;
    e[1].process[0] = others[2];
    e[1].process[1] = others[0];
    e[1].departing_rank[0] = others[1];
    for (int p = 0; p < 4; p++)
        e[1].holder_ranks[p] = p == others[2] ? 0 : p == others[0] ? 1 : p == others[1] ? 2 : -1;
    for (int r = 0, p = 0; r < 4; r++) /* the newcomer, then all that live */
        e[2].process[r] = r == 0 ? 4 : others[p++];
    for (int r = 1; r < 4; r++)
        for (int h = 0; h < 2; h++)
            if (e[2].process[r] == e[1].process[h])
                e[2].holder_ranks[h] = r;
    (void)lose_one(axes, e, (int)ARRAY_SIZE(e), alone, false);
}

/* All of a stage is gone, and its experts' biases with it: a newcomer gets them from the buddy in the other stage. Of a
 * matrix that embedding and head have in common the first stage has the state. */
static void test_kill_stage(void **state)
{
    (void)state;
    static const char *const axes[][4] = {
        {"model.name=deepseek_v3", "parallelism.pipeline_parallel_degree=2", "elastic.max_workers=2"},
        {"model.name=qwen3", "parallelism.pipeline_parallel_degree=2", "elastic.max_workers=2"},
    };
    for (size_t a = 0; a < ARRAY_SIZE(axes); a++)
        for (int victim = 1; victim <= 2; victim++) {
            struct script_epoch alone[] = {{.world = 2, .process = {0, 1}}};
            struct script_epoch e[] = {
                {.world = 2, .process = {victim == 1 ? 0 : 2, victim == 1 ? 1 : 0}, .victim = victim, .kill_before = 9},
                {.world = 2,
                 .process = {0, 3},
                 .source = STATE_FROM_MEMORY,
                 .holders = 2,
                 .holder_ranks = {victim == 1 ? 0 : -1, victim == 1 ? -1 : 0},
                 .recovery_source = "buddy"},
            };
            (void)lose_one(axes[a], e, (int)ARRAY_SIZE(e), alone, false);
        }
}

/* Of these cases and meshes, each case with one mesh in the fast set. */
static bool in_turn(size_t mesh, size_t meshes, size_t number)
{
    return !in_fast_set() || number % meshes == mesh;
}

/* Places between the last reduction and the update: some ranks commit the step, some have it prepared only. What a
 * victim kept to itself is finished by the others; those that are behind catch up with those that are not. */
static bool fail_in_step(const char *const *axes, int world, const char *const fails[PROCESSES_MAX], int victim,
                         const char *recovery_source)
{
    struct script_epoch alone[] = {{.world = 2, .process = {0, 1}}};
    struct script_epoch e[] = {
        {.world = world, .process = {0, 1, 2, 3}, .victim = victim, .kill_before = 8},
        {.world = world, .find = true, .recovery_source = recovery_source},
    };
    memcpy(e[0].fails, fails, sizeof e[0].fails);
    int n = 0;
    for (int r = 0; r < world; r++)
        if (!dies(&e[0], r))
            e[1].process[n++] = r;
    if (n < world) /* a joiner comes behind those that were there */
        e[1].process[n] = 4;
    return lose_one(axes, e, (int)ARRAY_SIZE(e), axes ? alone : NULL, false);
}

/* The places of a case in a step without a direction section, around AGREE, as places around COMMIT. */
static void in_direction(const char *const fails[PROCESSES_MAX], char text[PROCESSES_MAX][64],
                         const char *ret[PROCESSES_MAX])
{
    static const char *const names[][2] = {
        {"exec.reduced", "exec.directed"}, {"exec.prepared", "exec.committing"}, {"exec.agreed", "exec.committed"}};

    for (int r = 0; r < PROCESSES_MAX; r++) {
        ret[r] = fails[r];
        for (size_t i = 0; i < ARRAY_SIZE(names) && fails[r]; i++) {
            const size_t n = strlen(names[i][0]);
            if (strncmp(fails[r], names[i][0], n) != 0)
                continue;
            (void)snprintf(text[r], sizeof text[r], "%s%s", names[i][1], fails[r] + n);
            ret[r] = text[r];
        }
    }
}

static void test_fail_in_step(void **state)
{
    (void)state;
    static const char *const axes[][8] = {
        {"elastic.max_workers=4"},
        {"elastic.max_workers=4", "parallelism.pipeline_parallel_degree=2", "training.enable_cpu_offload=true"},
        {"elastic.max_workers=4", "parallelism.tensor_parallel_degree=2"},
        {"elastic.max_workers=4", "parallelism.context_parallel_degree=2", "optimizer.state_dtype=bfloat16"},
        {"elastic.max_workers=4", "parallelism.data_parallel_replicate_degree=2", "training.dtype=bfloat16"},
        {"elastic.max_workers=4", "model.name=deepseek_v3", "parallelism.pipeline_parallel_degree=2",
         "training.dtype=bfloat16"},
        {"elastic.max_workers=4", "model.name=qwen3", "parallelism.pipeline_parallel_degree=2"},
        {"elastic.max_workers=4", "optimizer.name=StableAdamW", "optimizer.stable_adamw.threshold=0.3"},
        {"elastic.max_workers=4", "optimizer.name=StableAdamW", "optimizer.stable_adamw.threshold=0.3",
         "parallelism.pipeline_parallel_degree=2", "training.enable_cpu_offload=true"},
        {"elastic.max_workers=4", "optimizer.name=Muon", "optimizer.rest=AdamW", "optimizer.lr=0.05"},
        {"elastic.max_workers=4", "optimizer.name=Muon", "optimizer.rest=AdamW", "optimizer.lr=0.05",
         "parallelism.pipeline_parallel_degree=2", "training.enable_cpu_offload=true"},
        {"elastic.max_workers=4", "optimizer.name=Muon", "optimizer.rest=AdamW", "optimizer.lr=0.05",
         "model.name=deepseek_v3", "optimizer.state_dtype=int8"},
    };
    enum { ALL_CASES = 3, REPLICAS = 4, DIRECTED = 7 }; /* from ALL_CASES on, axes have the last cases only */
    static const struct {
        const char *fails[PROCESSES_MAX], *recovery_source;
        int rolls;  /* some are behind others: 1; all the same: 0; by chance: -1 */
        int victim; /* has committed step 7 */
    } cases[] = {
        {.fails = {NULL, "exec.reduced=kill@7"}, .recovery_source = "buddy"},
        {.fails = {NULL, NULL, "exec.prepared=kill@7"}, .recovery_source = "buddy"},
        {.fails = {NULL, NULL, NULL, "exec.agreed=kill@7"}, .recovery_source = "buddy", .rolls = -1},
        {.fails = {NULL, NULL, "buddy.send=kill@9"}, .recovery_source = "buddy"},
        {.fails = {NULL, "exec.agreed=call@7"}, .recovery_source = "memory", .rolls = 1},
        {.fails = {"exec.agreed=call@7", "exec.agreed=call@7", NULL, "exec.agreed=call@7"},
         .recovery_source = "memory",
         .rolls = 1},
        {.fails = {"exec.agreed=kill@7", "exec.agreed=fail@7", "exec.agreed=fail@7"},
         .recovery_source = "buddy",
         .rolls = -1},
        {.fails = {"exec.agreed=fail@7", "exec.agreed=fail@7", "exec.agreed=fail@7", "exec.agreed=fail@7"},
         .recovery_source = "memory"},
        {.fails = {"exec.agreed=fail@7", "exec.agreed=fail@7", "exec.agreed=kill@7", "exec.agreed=fail@7"},
         .recovery_source = "buddy"},
        {.fails = {NULL, "exec.agreed=call@7"}, .recovery_source = "buddy", .rolls = 1, .victim = 3},
        {.fails = {"exec.agreed=call@7", NULL, "exec.agreed=call@7"},
         .recovery_source = "buddy",
         .rolls = 1,
         .victim = 1},
    };
    for (size_t a = 0; a < ARRAY_SIZE(axes); a++)
        for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
            const bool replica = a == REPLICAS && strcmp(cases[i].recovery_source, "buddy") == 0;
            if ((a >= ALL_CASES && i + 4 < ARRAY_SIZE(cases)) ||
                !in_turn(a, i + 4 < ARRAY_SIZE(cases) ? ALL_CASES : ARRAY_SIZE(axes), i))
                continue;
            print_message("# case %zu of %s\n", i, axes[a][1] ? axes[a][1] : axes[a][0]);
            char text[PROCESSES_MAX][64];
            const char *directed[PROCESSES_MAX];
            in_direction(cases[i].fails, text, directed);
            const bool rolled = fail_in_step(axes[a], 4, a >= DIRECTED ? directed : cases[i].fails, cases[i].victim,
                                             replica ? "replica" : cases[i].recovery_source);
            assert_true(cases[i].rolls < 0 || cases[i].rolls == rolled);
        }
}

/* Replicas that send each other parts of their directions. Sums are not canonical, so all epochs of a comparison have
 * as many ranks. */
static void test_residuals(void **state)
{
    (void)state;
    static const char *const full[] = {"elastic.max_workers=4",
                                       "numerics.canonical=false",
                                       "parallelism.data_parallel_replicate_degree=2",
                                       "parallelism.replicate_method=full",
                                       "parallelism.replicate_dtype=float32",
                                       "parallelism.replicate_sign=false",
                                       "optimizer.name=SGD",
                                       "optimizer.lr=0.1",
                                       NULL};
    static const char *const fails[][4] = {{NULL, "exec.directed=kill@7"},
                                           {NULL, NULL, "exec.committing=kill@7"},
                                           {"exec.committed=kill@7", "exec.committed=fail@7", "exec.committed=fail@7"},
                                           {NULL, "exec.committed=call@7", NULL, NULL}};
    struct losses whole, l;
    struct script_epoch alone[] = {{.world = 4, .process = {0, 1, 2, 3}}};

    /* All is sent, so the residuals are empty, and no bit depends on who had which. */
    run_with(full, alone, 1, false, false, &whole);
    assert_true(whole.loss[steps] < whole.loss[1]);
    for (size_t i = 0; i < ARRAY_SIZE(fails); i++) {
        struct script_epoch e[] = {{.world = 4, .process = {0, 1, 2, 3}}, {.world = 4, .find = true}};
        int n = 0;
        memcpy(e[0].fails, fails[i], sizeof fails[i]);
        for (int p = 0; p < 4; p++)
            if (!dies(&e[0], p))
                e[1].process[n++] = p;
        if (n < 4)
            e[1].process[n] = 4;
        run_with(full, e, 2, false, false, &l);
        check_against(&l, &whole);
        assert_true(i + 1 < ARRAY_SIZE(fails) || rolled_forward);
    }

    /* Residuals that are not empty: a step that is finished with another rank's sums is the step itself, and what
     * follows is as after a pause. After a loss the run goes on, each time to the same losses. */
    static const char *const demo[] = {"elastic.max_workers=4",
                                       "numerics.canonical=false",
                                       "parallelism.data_parallel_replicate_degree=2",
                                       "parallelism.replicate_method=demo",
                                       "optimizer.name=SGD",
                                       "optimizer.lr=0.003",
                                       NULL};
    struct losses undisturbed, again;
    struct script_epoch paused[] = {
        {.world = 4, .process = {0, 1, 2, 3}, .pause_after = 7},
        {.world = 4, .process = {0, 1, 2, 3}, .source = STATE_FROM_MEMORY, .holders = 4, .holder_ranks = {0, 1, 2, 3}}};
    struct script_epoch behind[] = {{.world = 4, .process = {0, 1, 2, 3}, .fails = {NULL, "exec.committed=call@7"}},
                                    {.world = 4, .process = {0, 1, 2, 3}, .find = true}};
    struct script_epoch killed[] = {
        {.world = 4, .process = {0, 1, 2, 3}, .fails = {NULL, NULL, NULL, "exec.directed=kill@8"}},
        {.world = 4, .process = {0, 1, 2, 4}, .find = true, .recovery_source = "replica"}};
    run_with(demo, alone, 1, false, false, &undisturbed);
    run_with(demo, paused, 2, false, false, &whole);
    for (int s = 1; s <= 8; s++) /* the first step behind the pause begins with the same masters */
        assert_true(whole.loss[s] == undisturbed.loss[s]);
    assert_true(whole.loss[steps] != undisturbed.loss[steps]);
    run_with(demo, behind, 2, false, false, &l);
    assert_true(rolled_forward);
    check_against(&l, &whole);
    run_with(demo, killed, 2, false, false, &l);
    run_with(demo, killed, 2, false, false, &again);
    check_against(&l, &again);
    for (int s = 1; s <= 8; s++)
        assert_true(l.loss[s] == undisturbed.loss[s] && l.times[s] == 1);

    /* Three replicas become two, in memory and by a checkpoint: both have the mean of the three. */
    static const char *const three[] = {"elastic.max_workers=3",
                                        "numerics.canonical=false",
                                        "parallelism.data_parallel_replicate_degree=3",
                                        "parallelism.replicate_method=demo",
                                        "optimizer.name=SGD",
                                        "optimizer.lr=0.003",
                                        NULL};
    struct script_epoch memory[] = {{.world = 3, .process = {0, 1, 2}, .pause_after = 5},
                                    {.world = 2,
                                     .process = {0, 1},
                                     .source = STATE_FROM_MEMORY,
                                     .holders = 3,
                                     .holder_ranks = {0, 1, 2},
                                     .departing = 1,
                                     .departing_rank = {2},
                                     .recovery_source = "memory"}};
    struct script_epoch disk[] = {
        {.world = 3, .process = {0, 1, 2}, .pause_after = 5},
        {.world = 2, .process = {0, 1}, .source = STATE_FROM_CHECKPOINT, .from_checkpoint = 5}};
    run_with(three, memory, 2, true, false, &l);
    run_with(three, disk, 2, true, false, &again);
    check_against(&l, &again);
}

/* Three replicas that sum as codes become two, in memory and by a checkpoint: both begin with the same masters, in
 * other ranges, and without errors. Up to the pause all is as in a run that goes on with three. */
static void test_codes_between_replicas(void **state)
{
    (void)state;
    static const char *const codecs[] = {"parallelism.replicate_codec=loco", "parallelism.replicate_codec=int8"};
    struct script_epoch alone[] = {{.world = 3, .process = {0, 1, 2}}};
    struct script_epoch memory[] = {{.world = 3, .process = {0, 1, 2}, .pause_after = 5},
                                    {.world = 2,
                                     .process = {0, 1},
                                     .source = STATE_FROM_MEMORY,
                                     .holders = 3,
                                     .holder_ranks = {0, 1, 2},
                                     .departing = 1,
                                     .departing_rank = {2},
                                     .recovery_source = "memory"}};
    struct script_epoch disk[] = {
        {.world = 3, .process = {0, 1, 2}, .pause_after = 5},
        {.world = 2, .process = {0, 1}, .source = STATE_FROM_CHECKPOINT, .from_checkpoint = 5}};

    for (size_t i = 0; i < ARRAY_SIZE(codecs); i++) {
        const char *const axes[] = {"elastic.max_workers=3", "numerics.canonical=false",
                                    "parallelism.data_parallel_replicate_degree=3", codecs[i], NULL};
        struct losses whole, l, again;
        run_with(axes, alone, 1, true, false, &whole);
        run_with(axes, memory, 2, true, false, &l);
        run_with(axes, disk, 2, true, false, &again);
        check_against(&l, &again);
        for (int s = 1; s <= steps; s++) {
            if (s <= 5)
                assert_true(l.loss[s] == whole.loss[s] && l.grad_norm[s] == whole.grad_norm[s]);
            assert_true(fabs(l.loss[s] - whole.loss[s]) < 0.05);
        }
        assert_true(l.loss[6] != whole.loss[6] || l.grad_norm[6] != whole.grad_norm[6]);
    }
}

/* A tensor's sum overflows on one rank: every rank skips the step, also rank 1, which has it prepared only and finishes
 * it with another rank's sums, and the dead rank's buddy. */
static void test_sums_not_finite(void **state)
{
    (void)state;
    static const char *const axes[][5] = {
        {"elastic.max_workers=4", "optimizer.name=StableAdamW", "optimizer.stable_adamw.threshold=0.3"},
        {"elastic.max_workers=4", "optimizer.name=StableAdamW", "optimizer.stable_adamw.threshold=0.3",
         "parallelism.pipeline_parallel_degree=2"},
    };
    for (size_t a = 0; a < ARRAY_SIZE(axes); a++) {
        struct losses l, skipped, whole;
        struct script_epoch alone[] = {{.world = 2, .process = {0, 1}}};
        struct script_epoch e[] = {
            {.world = 4,
             .process = {0, 1, 2, 3},
             .victim = 3,
             .kill_before = 8,
             .fails = {NULL, "exec.committed=call@7", "exec.sums=fail@7"}},
            {.world = 4, .process = {0, 1, 2, 4}, .find = true, .recovery_source = "buddy"},
        };
        run_with(axes[a], alone, 1, false, false, &whole);
        alone[0].fails[1] = "exec.sums=fail@7";
        run_with(axes[a], alone, 1, false, false, &skipped);
        assert_true(skipped.loss[7] == whole.loss[7] && skipped.loss[8] != whole.loss[8]);
        run_with(axes[a], e, (int)ARRAY_SIZE(e), false, false, &l);
        assert_true(rolled_forward);
        check_against(&l, &skipped);
    }
}

/* What codes of gradients have lost is forgotten when a rank is lost and when a step is skipped, on every rank: as in a
 * run that forgets it at that step. The dead rank's part comes from its buddy, which got codes of its gradients, or
 * from a replica, which sends codes of its own. Codes of weights are the same whatever became of the ranks. */
static void test_errors_of_codes(void **state)
{
    (void)state;
#define LOCO "numerics.canonical=false", "parallelism.fsdp_reduce_codec=loco", "elastic.max_workers=4"
#define STABLE "optimizer.name=StableAdamW", "optimizer.stable_adamw.threshold=0.3"
    static const char *const forgets[] = {LOCO, STABLE, "parallelism.error_reset=7", NULL};
    static const char *const axes[][8] = {
        {LOCO, STABLE},
        {LOCO, STABLE, "parallelism.pipeline_parallel_degree=2"},
        {LOCO, STABLE, "parallelism.data_parallel_replicate_degree=2", "parallelism.replicate_codec=loco"},
        {LOCO, STABLE, "parallelism.fsdp_gather_codec=int8"},
    };
    struct losses l, whole, reset, skipped, both;

    for (size_t a = 0; a < ARRAY_SIZE(axes); a++) {
        const char *with_reset[9] = {0};
        memcpy(with_reset, axes[a], sizeof axes[a]);
        int n = 0;
        while (with_reset[n])
            n++;
        with_reset[n] = forgets[5];
        struct script_epoch alone[] = {{.world = 4, .process = {0, 1, 2, 3}}};
        struct script_epoch e[] = {
            {.world = 4, .process = {0, 1, 2, 3}, .victim = 2, .kill_before = 8},
            {.world = 4, .process = {0, 1, 4, 3}, .find = true, .recovery_source = a == 2 ? "replica" : "buddy"},
        };
        run_with(axes[a], alone, 1, false, false, &whole);
        run_with(with_reset, alone, 1, false, false, &reset);
        assert_true(whole.loss[8] == reset.loss[8] && whole.grad_norm[8] != reset.grad_norm[8]);
        run_with(axes[a], e, (int)ARRAY_SIZE(e), false, false, &l);
        check_against(&l, &reset);
        alone[0].fails[2] = "exec.sums=fail@7";
        run_with(axes[a], alone, 1, false, false, &skipped);
        run_with(with_reset, alone, 1, false, false, &both);
        assert_true(skipped.loss[7] == whole.loss[7] && skipped.loss[8] != whole.loss[8]);
        check_against(&skipped, &both);
    }
#undef STABLE
}

static void check_until(const struct losses *l, const struct losses *other, int last)
{
    for (int s = 1; s <= last; s++)
        if (l->loss[s] != other->loss[s] || l->grad_norm[s] != other->grad_norm[s])
            fail_msg("step %d: loss %.17g and norm %.17g, there %.17g and %.17g", s, l->loss[s], l->grad_norm[s],
                     other->loss[s], other->grad_norm[s]);
}

/* Resizes between steps 5 and 6, then 8 and 9: processes with the least numbers stay. turn: their ranks go round by as
 * many in each epoch. reset: parallelism.error_reset. */
static void resize_in_order(const char *const *axes, const int *worlds, int n, int turn, const char *reset,
                            struct losses *ret)
{
    static const uint64_t pauses[] = {5, 8};
    struct script_epoch e[3] = {0};
    const char *with[9] = {reset};

    for (int i = 0; axes[i]; i++)
        with[i + 1] = axes[i];
    for (int i = 0; i < n; i++) {
        e[i].world = worlds[i];
        e[i].pause_after = i + 1 < n ? pauses[i] : 0;
        for (int r = 0; r < worlds[i]; r++)
            e[i].process[r] = (r + turn * (i + 1)) % worlds[i];
        if (i == 0)
            continue;
        e[i].source = STATE_FROM_MEMORY;
        e[i].recovery_source = "memory";
        e[i].holders = worlds[i - 1];
        e[i].departing = MAX(worlds[i - 1] - worlds[i], 0);
        for (int d = 0; d < e[i].departing; d++)
            e[i].departing_rank[d] = worlds[i] + d;
        for (int a = 0; a < worlds[i - 1]; a++)
            e[i].holder_ranks[a] = rank_in(&e[i], e[i - 1].process[a]);
    }
    run_with(with, e, n, false, false, ret);
}

/* Tensors that tensor-parallel ranks hold whole, or ranks with other parts of a layer that rotates, get the same
 * gradients on all of them, whatever scales and random numbers codes have: a resize finds the parameters that ranks
 * agreed on. */
static void test_whole_tensors(void **state)
{
    (void)state;
#define TENSOR "numerics.canonical=false", "parallelism.tensor_parallel_degree=2"
    static const struct {
        const char *axes[7];
        int worlds[3];
    } cases[] = {
        {{TENSOR, "elastic.max_workers=6", "parallelism.fsdp_reduce_codec=fp8"}, {4, 6, 4}},
        {{TENSOR, "elastic.max_workers=6", "parallelism.fsdp_reduce_codec=int4",
          "parallelism.fsdp_reduce_rounding=stochastic"},
         {4, 6, 4}},
        {{TENSOR, "elastic.max_workers=6", "parallelism.fsdp_reduce_codec=int8",
          "parallelism.fsdp_reduce_scale=tensor"},
         {4, 6, 4}},
        {{TENSOR, "elastic.max_workers=4", "parallelism.data_parallel_replicate_degree=2",
          "parallelism.replicate_codec=int4"},
         {4, 4, 4}},
        {{"numerics.canonical=false", "parallelism.rotate=in_place", "training.global_batch_size=16",
          "elastic.max_workers=4", "parallelism.data_parallel_replicate_degree=2", "parallelism.replicate_codec=int4"},
         {4, 4, 4}},
    };
    struct losses l;

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++)
        resize_in_order(cases[i].axes, cases[i].worlds, 3, 1, "parallelism.error_reset=0", &l);
#undef TENSOR
}

/* What codes owe goes on over resizes that nobody dies in, the same whichever process has a rank. A group of one rank
 * has no codes, and begins anew. So does a run that loses a rank, or goes on from a checkpoint. */
static void test_errors_owed(void **state)
{
    (void)state;
#define NEVER "parallelism.error_reset=0"
#define RESET "parallelism.error_reset=5"
    static const struct {
        const char *axes[8];
        int worlds[3];
    } cases[] = {
        {{LOCO, "parallelism.fsdp_gather_codec=int8"}, {2, 3, 2}},
        {{LOCO, "elastic.max_workers=6", "parallelism.pipeline_parallel_degree=2"}, {4, 6, 4}},
        {{LOCO, "elastic.max_workers=6", "parallelism.tensor_parallel_degree=2"}, {4, 6, 4}},
        {{LOCO, "elastic.max_workers=6", "parallelism.data_parallel_replicate_degree=2",
          "parallelism.replicate_method=demo", "optimizer.name=SGD"},
         {4, 6, 4}},
        {{LOCO, "parallelism.pipeline_parallel_degree=2"}, {4, 2, 4}},
    };
    struct losses l, other, reset;

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        const int *const worlds = cases[i].worlds;
        const bool none = worlds[1] < worlds[0];
        print_message("# %d, %d, %d ranks, %s\n", worlds[0], worlds[1], worlds[2],
                      cases[i].axes[3] ? cases[i].axes[3] : "");
        resize_in_order(cases[i].axes, worlds, 3, 0, NEVER, &l);
        resize_in_order(cases[i].axes, worlds, 3, 1, NEVER, &other);
        check_against(&l, &other);
        resize_in_order(cases[i].axes, worlds, 3, 0, RESET, &reset);
        check_until(&l, &reset, none ? 10 : 5);
        assert_true(l.loss[6] == reset.loss[6] && (l.grad_norm[6] == reset.grad_norm[6]) == none);
    }

    static const int fewer[] = {3, 2};
    struct script_epoch killed[] = {{.world = 3, .process = {0, 1, 2}, .victim = 2, .kill_before = 6},
                                    {.world = 2, .process = {0, 1}, .find = true, .recovery_source = "buddy"}};
    resize_in_order(cases[0].axes, fewer, 2, 0, NEVER, &l);
    resize_in_order(cases[0].axes, fewer, 2, 0, RESET, &reset);
    run_with(cases[0].axes, killed, 2, false, false, &other);
    check_until(&other, &reset, 10);
    assert_true(l.loss[6] == other.loss[6] && l.grad_norm[6] != other.grad_norm[6]);

    struct script_epoch disk[] = {
        {.world = 2, .process = {0, 1}, .pause_after = 5},
        {.world = 2, .process = {0, 1}, .source = STATE_FROM_CHECKPOINT, .from_checkpoint = 5}};
    run_with(cases[0].axes, disk, 2, true, false, &l);
    resize_in_order(cases[0].axes, (const int[]){2}, 1, 0, RESET, &reset);
    check_until(&l, &reset, 10);
#undef LOCO
#undef NEVER
#undef RESET
}

/* Rank 0 alone has the sum of a step, and is killed: no process was told of that step, so it is trained again and yet
 * once for all that look on. The step before, which all had, was told of. With meshes that have a first collective of
 * all ranks, and others. */
static void test_told_when_all_have_it(void **state)
{
    (void)state;
    static const char *const axes[][4] = {
        {"elastic.max_workers=4"},
        {"parallelism.pipeline_parallel_degree=2", "elastic.max_workers=4"},
        {"parallelism.tensor_parallel_degree=2", "elastic.max_workers=4"},
        {"parallelism.data_parallel_replicate_degree=2", "elastic.max_workers=4"},
    };
    struct script_epoch alone[] = {{.world = 2, .process = {0, 1}}};
    for (size_t a = 0; a < ARRAY_SIZE(axes); a++)
        for (uint64_t sum = 7; sum <= 8; sum++) {
            if (!in_turn(a, ARRAY_SIZE(axes), sum))
                continue;
            struct losses l, undisturbed;
            char held[32];
            (void)snprintf(held, sizeof held, "exec.agreed=call@%lu", (unsigned long)sum);
            struct script_epoch e[] = {
                {.world = 4, .process = {3, 0, 1, 2}, .victim = 3, .kill_before = sum + 1, .fails = {held, held, held}},
                {.world = 4, .process = {0, 1, 2, 4}, .find = true},
            };
            print_message("# step %lu of %s\n", (unsigned long)sum, axes[a][0]);
            run_with(axes[a], e, (int)ARRAY_SIZE(e), false, false, &l);
            assert_int_equal(told_in_first, sum - 1);
            assert_int_equal(l.lines, steps);
            assert_int_equal(l.epoch[sum - 1], 1);
            assert_int_equal(l.epoch[sum], 2);
            if (a == 0) {
                check_against_reference(&l);
            } else {
                run_with(axes[a], alone, 1, false, false, &undisturbed);
                check_against(&l, &undisturbed);
            }
        }
}

/* A second loss while the first is being made good, at every place of that: what was there before is still there, or
 * the new one is whole. Newcomers come behind, so that all three epochs have as many ranks. */
static bool fail_in_recovery(const char *const *axes, const char *const first[4], const char *const second[4],
                             const char *recovery_source)
{
    struct script_epoch alone[] = {{.world = 2, .process = {0, 1}}};
    struct script_epoch e[] = {
        {.world = 4, .process = {0, 1, 2, 3}, .victim = 3, .kill_before = 8},
        {.world = 4, .find = true},
        {.world = 4, .find = true, .recovery_source = recovery_source},
    };
    int newcomer = 4;
    memcpy(e[0].fails, first, 4 * sizeof *first);
    for (int i = 1; i < 3; i++) {
        int n = 0;
        for (int r = 0; r < 4; r++)
            if (!dies(&e[i - 1], e[i - 1].process[r]))
                e[i].process[n++] = e[i - 1].process[r];
        while (n < 4)
            e[i].process[n++] = newcomer++;
        for (int r = 0; r < 4 && i == 1; r++) /* by rank */
            e[i].fails[e[i].process[r]] = second[r];
    }
    return lose_one(axes, e, (int)ARRAY_SIZE(e), axes ? alone : NULL, false);
}

static void test_fail_in_recovery(void **state)
{
    (void)state;
    static const char *const axes[][4] = {
        {"elastic.max_workers=4"},
        {"parallelism.pipeline_parallel_degree=2", "elastic.max_workers=4"},
        {"parallelism.tensor_parallel_degree=2", "elastic.max_workers=4"},
    };
    static const char *const places[] = {"state.agreed", "state.report",  "state.finished", "state.message",
                                         "state.filled", "buddy.seeding", "state.kept",     "state.passed"};
    /* Rank 1 has a step prepared that others have committed; rank 3 is dead. */
    static const char *const first[4] = {NULL, "exec.agreed=call@7", NULL, NULL};
    int rolls = 0;
    for (size_t a = 0; a < ARRAY_SIZE(axes); a++)
        for (size_t i = 0; i < ARRAY_SIZE(places); i++)
            for (int kill = 0; kill < 2; kill++) {
                if (!in_turn(a, ARRAY_SIZE(axes), i + (size_t)kill))
                    continue;
                char text[64];
                const char *second[4] = {NULL};
                (void)snprintf(text, sizeof text, "%s=%s", places[i], kill ? "kill" : "fail");
                /* A rank that the copies of the old epoch cover: not the buddy of the dead one, which is 0. The
                 * newcomer is the one that messages go to. */
                second[strcmp(places[i], "state.message") == 0 ? 3 : 1] = text;
                print_message("# %s with %s\n", text, axes[a][0]);
                rolls += fail_in_recovery(axes[a], first, second, NULL);
            }
    print_message("# %d times a step was still to be finished after the second loss\n", rolls);
    assert_true(in_fast_set() || rolls > 0); /* by chance */
}

static void test_kill_meshes(void **state)
{
    (void)state;
    static const char *const tensor[] = {"parallelism.tensor_parallel_degree=2", "elastic.max_workers=4", NULL};
    static const char *const pipeline[] = {"parallelism.pipeline_parallel_degree=2", "elastic.max_workers=4", NULL};
    static const char *const offloaded[] = {"parallelism.pipeline_parallel_degree=2", "elastic.max_workers=4",
                                            "training.enable_cpu_offload=true", NULL};
    static const char *const context[] = {"parallelism.context_parallel_degree=2", "elastic.max_workers=4", NULL};
    static const char *const experts[] = {"model.name=deepseek_v3", "parallelism.tensor_parallel_degree=2",
                                          "parallelism.expert_parallel_degree=2", "elastic.max_workers=4", NULL};
    static const char *const experts_apart[] = {"model.name=deepseek_v3", "parallelism.expert_parallel_degree=2",
                                                "training.global_batch_size=16", "elastic.max_workers=4", NULL};
    static const char *const replicas[] = {"parallelism.data_parallel_replicate_degree=2", "elastic.max_workers=4",
                                           NULL};
    four_become_two(offloaded, 1, "buddy");
    four_become_two(experts_apart, 1, "buddy");
    if (in_fast_set())
        return;
    four_become_two(tensor, 1, "buddy");
    four_become_two(pipeline, 3, "buddy");
    four_become_two(context, 2, "buddy");
    four_become_two(experts, 1, "buddy");
    four_become_two(replicas, 3, "replica");
}

/* Told to pause in an evaluation: it is broken off, and the next epoch begins with it. No epoch follows on the last
 * step's: that one is finished. */
static void test_pause_in_evaluation(void **state)
{
    (void)state;
    static const char *const axes[] = {"validation.enable=true",
                                       "validation.dataset_path=" TITAN_SOURCE_DIR "/worker/elastic",
                                       "validation.seq_len=16",
                                       "validation.local_batch_size=1",
                                       "validation.steps=3",
                                       "validation.freq=4",
                                       NULL};
    struct script_epoch broken_off[] = {{.world = 2, .process = {0, 1}, .fails = {NULL, "evaluation.step=call@1"}},
                                        {.world = 2, .process = {0, 1}, .find = true}};
    struct script_epoch finished[] = {{.world = 2, .process = {0, 1}, .fails = {NULL, "evaluation.step=call@10"}}};
    struct losses l;
    run_with(axes, broken_off, 2, false, false, &l);
    check_against_reference(&l);
    assert_int_equal(l.epoch[1], 1);
    assert_int_equal(l.epoch[2], 2);
    assert_int_equal(l.evaluated[1], 2);
    run_with(axes, finished, 1, false, false, &l);
    check_against_reference(&l);
    assert_int_equal(l.evaluated[steps], 1);
}

/* Down to one rank, which has no peer to talk to, and up again, each through a checkpoint. */
static void test_checkpoint_any_size(void **state)
{
    (void)state;
    struct losses l;
    struct script_epoch e[] = {
        {.world = 3, .process = {0, 1, 2}, .pause_after = 7},
        {.world = 1, .process = {0}, .source = STATE_FROM_CHECKPOINT, .from_checkpoint = 5, .pause_after = 15},
        {.world = 4,
         .process = {0, 1, 2, 3},
         .source = STATE_FROM_CHECKPOINT,
         .from_checkpoint = 15,
         .pause_after = 20},
        {.world = 2, .process = {3, 0}, .source = STATE_FROM_CHECKPOINT, .from_checkpoint = 20},
    };
    run_script(e, (int)ARRAY_SIZE(e), true, false, &l);
    check_against_reference(&l);
}

/* A worker dies with its part of a checkpoint unwritten: the other one drops it with the epoch, and goes on. */
static void test_kill_while_written(void **state)
{
    (void)state;
    static const char *const axes[] = {"checkpoint.async_mode=async", NULL};
    struct script_epoch epochs[] = {
        {.world = 2, .process = {0, 1}, .victim = 1, .kill_before = 8, .fails = {NULL, "checkpoint.write=hang"}},
        {.world = 1, .process = {0}, .find = true}};
    struct losses l;
    run_with(axes, epochs, 2, true, false, &l);
    check_against_reference(&l);
}

/* Two buddies' worth is lost, and the newest checkpoint is damaged where only one rank reads: all take the one before.
 */
static void test_damaged_checkpoint(void **state)
{
    (void)state;
    struct losses l;
    struct script_epoch e[] = {
        {.world = 4, .process = {0, 1, 2, 3}, .pause_after = 12},
        {.world = 2,
         .process = {0, 4},
         .source = STATE_FROM_CHECKPOINT,
         .from_checkpoint = 10,
         .older = 5,
         .recovery_source = "checkpoint"},
    };
    run_script(e, (int)ARRAY_SIZE(e), true, false, &l);
    assert_int_equal(l.lines, 12 + STEPS - 5);
    check_against_reference(&l);
}

/* A buddy loses an update of its copy. The next checkpoint finds that and the copy is made again, so what it gives
 * when its ward is gone is right. */
static void test_drifted_copy(void **state)
{
    (void)state;
    struct losses l;
    struct script_epoch e[] = {
        {.world = 4,
         .process = {0, 1, 2, 3},
         .victim = 1,
         .kill_before = 9,
         .fails = {NULL, NULL, "buddy.update=fail@3"}},
        {.world = 3, .process = {0, 2, 3}, .find = true, .recovery_source = "buddy"},
    };
    run_script(e, (int)ARRAY_SIZE(e), true, false, &l);
    assert_int_equal(l.lines, STEPS);
    check_against_reference(&l);
}

/* Two replicas: from two ranks to four, then two of these are gone, one of each replica and each with another part, and
 * what is left is still a whole state in memory. */
static void test_replicas(void **state)
{
    (void)state;
    static const char *const axes[] = {"parallelism.data_parallel_replicate_degree=2", "elastic.max_workers=4", NULL};
    struct losses l;
    struct script_epoch e[] = {
        {.world = 2, .process = {0, 1}, .pause_after = 5},
        {.world = 4,
         .process = {2, 0, 1, 3},
         .source = STATE_FROM_MEMORY,
         .pause_after = 11,
         .holders = 2,
         .holder_ranks = {1, 2}},
        {.world = 2, .process = {0, 1}, .source = STATE_FROM_MEMORY, .holders = 4, .holder_ranks = {-1, 0, 1, -1}},
    };
    run_with(axes, e, (int)ARRAY_SIZE(e), false, false, &l);
    assert_int_equal(l.lines, STEPS);
    check_against_reference(&l);
}

/* The data-parallel degree goes up in memory and down through a checkpoint. */
static void up_and_down(const char *const *axes)
{
    struct losses l, undisturbed;
    struct script_epoch alone[] = {{.world = 2, .process = {0, 1}}};
    struct script_epoch e[] = {
        {.world = 2, .process = {0, 1}, .pause_after = 4},
        {.world = 4,
         .process = {3, 1, 0, 2},
         .source = STATE_FROM_MEMORY,
         .pause_after = 12,
         .holders = 2,
         .holder_ranks = {2, 1}},
        {.world = 2, .process = {0, 3}, .source = STATE_FROM_CHECKPOINT, .from_checkpoint = 10},
    };
    run_with(axes, alone, 1, false, false, &undisturbed);
    run_with(axes, e, (int)ARRAY_SIZE(e), true, false, &l);
    check_against(&l, &undisturbed);
}

static void test_tensor_parallel(void **state)
{
    (void)state;
    static const char *const axes[] = {"parallelism.tensor_parallel_degree=2", "elastic.max_workers=4", NULL};
    up_and_down(axes);
}

/* Experts and their biases, which move with the stage. */
static void test_experts(void **state)
{
    (void)state;
    static const char *const axes[] = {"model.name=deepseek_v3", "parallelism.tensor_parallel_degree=2",
                                       "parallelism.expert_parallel_degree=2", "elastic.max_workers=4", NULL};
    up_and_down(axes);
}

/* Two experts' ranks of two, then of four data-parallel ones: tokens go elsewhere, sums are the same. */
static void test_experts_apart(void **state)
{
    (void)state;
    static const char *const axes[] = {"model.name=deepseek_v3", "parallelism.expert_parallel_degree=2",
                                       "training.global_batch_size=16", "elastic.max_workers=4", NULL};
    up_and_down(axes);
}

/* Two stages in a pipeline, once with two ranks in each; the ranks of the second epoch stand in another order. The
 * disturbed run has its masters and moments in host memory. */
static void test_pipeline(void **state)
{
    (void)state;
    static const char *const axes[] = {"parallelism.pipeline_parallel_degree=2", "elastic.max_workers=4", NULL};
    static const char *const offloaded[] = {"parallelism.pipeline_parallel_degree=2", "elastic.max_workers=4",
                                            "training.enable_cpu_offload=true", NULL};
    struct losses l, undisturbed;
    struct script_epoch alone[] = {{.world = 2, .process = {0, 1}}};
    struct script_epoch e[] = {
        {.world = 4, .process = {0, 1, 2, 3}, .pause_after = 4},
        {.world = 4,
         .process = {3, 2, 0, 1},
         .source = STATE_FROM_MEMORY,
         .pause_after = 12,
         .holders = 4,
         .holder_ranks = {2, 3, 1, 0}},
        {.world = 2, .process = {1, 0}, .source = STATE_FROM_CHECKPOINT, .from_checkpoint = 10},
    };
    run_with(axes, alone, 1, false, false, &undisturbed);
    run_with(offloaded, e, (int)ARRAY_SIZE(e), true, false, &l);
    check_against(&l, &undisturbed);
}

/* Scales that are held for four steps are state: a run that loses ranks at any place of a step or of a recovery, that
 * grows, shrinks or goes back to a checkpoint has an undisturbed run's losses. */
static void test_held_scales(void **state)
{
    (void)state;
#define HELD "model.converters=float8", "float8.recipe_name=scalify", "optimizer.lr=0.03", "elastic.max_workers=4"
    static const char *const axes[][9] = {
        {HELD, "float8.scalify_refresh=4"},
        {HELD, "float8.scalify_refresh=4", "parallelism.pipeline_parallel_degree=2"},
        {HELD, "float8.scalify_refresh=4", "parallelism.tensor_parallel_degree=2",
         "float8.enable_fsdp_float8_all_gather=true"},
        {HELD, "float8.scalify_refresh=4", "parallelism.data_parallel_replicate_degree=2"},
    };
    static const char *const anew[][9] = {{HELD, "float8.scalify_refresh=1"}, {HELD, "float8.scalify_refresh=2"}};
    static const char *const fails[][PROCESSES_MAX] = {
        {NULL, "exec.reduced=kill@7"},
        {NULL, NULL, "exec.prepared=kill@6"},
        {NULL, NULL, NULL, "exec.agreed=kill@7"},
        {NULL, "buddy.send=kill@9"},
        {NULL, "exec.agreed=call@9"},
        {"exec.agreed=call@7", "exec.agreed=call@7", NULL, "exec.agreed=call@7"},
        {"exec.agreed=kill@7", "exec.agreed=fail@7", "exec.agreed=fail@7"},
        {"exec.agreed=kill@5", "exec.agreed=fail@5", "exec.agreed=fail@5"},
        {NULL, "exec.agreed=call@5"}};
    static const char *const places[] = {"state.agreed", "state.report",  "state.finished", "state.message",
                                         "state.filled", "buddy.seeding", "state.kept",     "state.passed"};
    enum { REPLICATED = 3, AT_BUDDY = 3 }; /* replicas have no buddies */
    struct script_epoch alone[] = {{.world = 2, .process = {0, 1}}};
    struct losses held, l;

    run_with(axes[0], alone, 1, false, false, &held);
    for (size_t i = 0; i < ARRAY_SIZE(anew); i++) {
        run_with(anew[i], alone, 1, false, false, &l);
        assert_true(l.loss[1] == held.loss[1] && l.loss[steps] != held.loss[steps]);
    }
    for (size_t a = 0; a < ARRAY_SIZE(axes); a++) {
        const char *const source = a == REPLICATED ? "replica" : "buddy";
        for (size_t i = 0; i < ARRAY_SIZE(fails); i++) {
            const char *const *const f = fails[i];
            const bool kills = strstr(f[0] ? f[0] : f[1] ? f[1] : f[2] ? f[2] : f[3], "kill");
            if (in_turn(a, ARRAY_SIZE(axes), i) && (a < REPLICATED || i != AT_BUDDY))
                (void)fail_in_step(axes[a], 4, f, 0, kills ? source : "memory");
        }
        for (size_t i = 0; i < ARRAY_SIZE(places); i++) {
            static const char *const first[4] = {NULL, "exec.agreed=call@7", NULL, NULL};
            char text[64];
            const char *second[4] = {NULL};
            if (!in_turn(a, ARRAY_SIZE(axes), i + 1) || a == REPLICATED)
                continue;
            (void)snprintf(text, sizeof text, "%s=kill", places[i]);
            second[strcmp(places[i], "state.message") == 0 ? 3 : 1] = text;
            print_message("# %s with %s\n", text, axes[a][5]);
            (void)fail_in_recovery(axes[a], first, second, NULL);
        }
    }
    struct script_epoch checkpoints[] = {
        {.world = 4, .process = {0, 1, 2, 3}, .pause_after = 6},
        {.world = 2, .process = {1, 0}, .source = STATE_FROM_CHECKPOINT, .from_checkpoint = 5, .pause_after = 7},
        {.world = 3, .process = {2, 1, 0}, .find = true},
    };
    run_with(axes[0], checkpoints, 3, true, false, &l);
    check_against(&l, &held);
}

int main(void)
{
    cmocka_set_test_filter(getenv("TITAN_TEST_ONLY"));
    const struct CMUnitTest tests[] = {
        quick(test_pause_and_resize),
        quick(test_pause_and_resize_tcp),
        quick(test_kill_and_regrow),
        slow(test_kill_and_regrow_tcp),
        quick(test_kill_without_loss),
        slow(test_kill_without_loss_tcp),
        longer(test_fail_in_step, .setup_func = shorten, .teardown_func = lengthen),
        quick(test_sums_not_finite, .setup_func = shorten, .teardown_func = lengthen),
        quick(test_errors_of_codes, .setup_func = shorten, .teardown_func = lengthen),
        quick(test_codes_between_replicas, .setup_func = shorten, .teardown_func = lengthen),
        quick(test_whole_tensors, .setup_func = shorten, .teardown_func = lengthen),
        quick(test_errors_owed, .setup_func = shorten, .teardown_func = lengthen),
        quick(test_residuals, .setup_func = shorten, .teardown_func = lengthen),
        longer(test_told_when_all_have_it, .setup_func = shorten, .teardown_func = lengthen),
        longer(test_fail_in_recovery, .setup_func = shorten, .teardown_func = lengthen),
        longer(test_kill_meshes),
        quick(test_kill_stage),
        quick(test_pause_in_evaluation, .setup_func = shorten, .teardown_func = lengthen),
        quick(test_checkpoint_any_size),
        quick(test_kill_while_written, .setup_func = shorten, .teardown_func = lengthen),
        quick(test_damaged_checkpoint),
        quick(test_drifted_copy),
        quick(test_replicas),
        slow(test_tensor_parallel),
        quick(test_experts),
        slow(test_experts_apart),
        quick(test_pipeline),
        longer(test_held_scales, .setup_func = shorten, .teardown_func = lengthen),
    };
    return cmocka_run_group_tests(tests, one_rank, NULL);
}
