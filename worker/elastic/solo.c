/* SPDX-License-Identifier: Apache-2.0 */
/* solo.c - one epoch of fixed members, and the signals that command it. */
#include "worker/elastic/solo.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/log.h"
#include "worker/comm/comm.h"

/* Signals that this process has received; 0 = none. They are static, because a process has only one run. */
static volatile sig_atomic_t stop_signal, save_signal;

struct solo {
    struct membership base;
    int rank, world, memfd;
    bool formed;
    bool heeds;         /* the handlers are set: signals are commands */
    bool stopped;       /* all ranks have left the epoch at an agreed step, after a signal */
    atomic_int revoked; /* always 0, because nothing revokes; a dead peer shows as TITAN_EPEER on its communicator */
    const char *addresses[COMM_WORLD_MAX];
};

/* The members share one memfd that was made for this run. So its inode and device identify the communicator on all
 * members. */
static titan_status comm_id(const struct solo *s, unsigned char id[16], struct titan_error *err)
{
    struct stat st;
    if (s->memfd < 0) {
        if (getrandom(id, 16, 0) != 16)
            return titan_fail_errno(err, "no random numbers");
        return TITAN_OK;
    }
    if (fstat(s->memfd, &st) < 0)
        return titan_fail_errno(err, "cannot stat the shared segment");
    uint64_t words[2] = {(uint64_t)st.st_ino, (uint64_t)st.st_dev};
    memcpy(id, words, 16);
    return TITAN_OK;
}

static titan_status solo_next(struct membership *m, struct epoch_view *ret, struct titan_error *err)
{
    struct solo *s = (struct solo *)m;
    if (s->stopped)
        return titan_fail(err, TITAN_ECANCELLED, "stopped");
    if (s->formed)
        return titan_fail(err, TITAN_EPEER, "a worker of this run is gone");
    *ret = (struct epoch_view){.epoch = 1,
                               .rank = s->rank,
                               .world = s->world,
                               .addresses = s->addresses,
                               .memfd = s->memfd,
                               .source = STATE_FROM_INIT};
    titan_assert(s->rank >= 0 && s->rank < s->world);
    TRY(comm_id(s, ret->comm_id, err));
    s->formed = true;
    return TITAN_OK;
}

static void solo_on_revoke(struct membership *m, void (*fn)(void *arg), void *arg)
{
    (void)m;
    (void)fn;
    (void)arg;
}

static const atomic_int *solo_revoked(struct membership *m)
{
    return &((struct solo *)m)->revoked;
}

/* Notes a command. A second SIGTERM or SIGINT ends the process at once. */
static void on_signal(int number, siginfo_t *info, void *context)
{
    (void)context;
    if (number == SIGUSR1 || number == SOLO_SAVE)
        save_signal = number;
    else
        stop_signal = number == SOLO_STOP ? info->si_value.sival_int : number;
    if (number == SIGTERM || number == SIGINT)
        (void)signal(number, SIG_DFL);
}

static unsigned solo_commands(struct membership *m)
{
    struct solo *s = (struct solo *)m;

    /* The handlers are set at the first call, when there is a state to keep. Before this call, SIGTERM and SIGINT end
     * the process. Batch systems and terminals signal every process of a run. Ranks with a parent therefore heed only
     * the parent's signals: otherwise they would write a second checkpoint. */
    static const int numbers[] = {SIGTERM, SIGINT, SIGUSR1};
    const struct sigaction act = {.sa_sigaction = on_signal, .sa_flags = SA_SIGINFO | SA_RESTART};
    const struct sigaction ignore = {.sa_handler = SIG_IGN};

    if (!s->heeds) {
        (void)sigaction(SOLO_STOP, &act, NULL);
        (void)sigaction(SOLO_SAVE, &act, NULL);
        for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
            (void)sigaction(numbers[i], s->world > 1 ? &ignore : &act, NULL);
    }
    s->heeds = true;
    if (stop_signal)
        return COMMAND_STOP | COMMAND_CHECKPOINT;
    if (!save_signal)
        return 0;
    save_signal = 0;
    return COMMAND_CHECKPOINT;
}

int membership_solo_stopped(const struct membership *m)
{
    if (!((const struct solo *)m)->stopped)
        return 0;
    return stop_signal ? stop_signal : SIGTERM; /* another rank got the signal, this rank has not seen it yet */
}

static void solo_quiesced(struct membership *m, const struct quiesced *q)
{
    struct solo *s = (struct solo *)m;
    struct log log;

    s->stopped = q->paused;
    if (s->rank != 0 || !s->stopped)
        return;
    log_init(&log, "worker", "rank=%d", s->rank);
    tlog_info(&log, "stopped by a signal", "signal=SIG%s step=%lu", sigabbrev_np(membership_solo_stopped(m)),
              (unsigned long)q->last_step);
}

static void solo_state_ready(struct membership *m, const struct state_ready *ready)
{
    (void)m;
    (void)ready;
}

static void solo_progress(struct membership *m, const struct step_report *r)
{
    (void)m;
    (void)r;
}

static void solo_evaluated(struct membership *m, const struct evaluation_report *r)
{
    (void)m;
    (void)r;
}

static void solo_checkpoint_written(struct membership *m, const struct checkpoint_report *report)
{
    (void)m;
    (void)report;
}

static void solo_checkpoint_failed(struct membership *m, uint64_t step, const char *path, const char *reason,
                                   bool reading)
{
    (void)m;
    (void)step;
    (void)path;
    (void)reason;
    (void)reading; /* the log has it already */
}

static void solo_finished(struct membership *m, uint64_t step)
{
    (void)m;
    (void)step;
}

static void solo_failing(struct membership *m, const struct titan_error *err)
{
    (void)m;
    (void)err; /* the caller reports it */
}

static void solo_close(struct membership *m)
{
    free(m);
}

static const struct membership_ops solo_ops = {
    .next = solo_next,
    .on_revoke = solo_on_revoke,
    .revoked = solo_revoked,
    .commands = solo_commands,
    .quiesced = solo_quiesced,
    .state_ready = solo_state_ready,
    .progress = solo_progress,
    .evaluated = solo_evaluated,
    .checkpoint_written = solo_checkpoint_written,
    .checkpoint_failed = solo_checkpoint_failed,
    .finished = solo_finished,
    .failing = solo_failing,
    .close = solo_close,
};

titan_status membership_solo_open(int rank, int world, int memfd, const char *job_dir, struct membership **ret,
                                  struct titan_error *err)
{
    if (world < 1 || world > COMM_WORLD_MAX || rank < 0 || rank >= world)
        return titan_fail(err, TITAN_EINVAL, "rank %d of %d workers: there can be 1 to %d", rank, world,
                          COMM_WORLD_MAX);
    if (world > 1 && memfd < 0)
        return titan_fail(err, TITAN_EINVAL, "%d workers without a segment to share", world);
    struct solo *s = calloc(1, sizeof(*s));
    if (!s)
        return titan_fail(err, TITAN_ENOMEM, "no memory for the run's membership");
    s->base.ops = &solo_ops;
    s->base.listener = -1;
    s->base.solo_world = world;
    s->base.solo_rank = rank;
    s->rank = rank;
    s->world = world;
    s->memfd = memfd;
    for (int i = 0; i < world; i++)
        s->addresses[i] = "";
    (void)snprintf(s->base.job_dir, sizeof(s->base.job_dir), "%s", job_dir);
    /* All ranks of a run derive its id from the segment they share. */
    unsigned char id[16];
    char host[64] = "";
    const titan_status named = comm_id(s, id, err);
    if (named != TITAN_OK) {
        free(s);
        return named;
    }
    (void)gethostname(host, sizeof host - 1);
    int n = snprintf(s->base.run_id, sizeof s->base.run_id, "run-%s-", host);
    for (int i = 0; i < 16; i++)
        n += snprintf(s->base.run_id + n, sizeof s->base.run_id - (size_t)n, "%02x", id[i]);
    titan_assert((size_t)n < sizeof s->base.run_id);
    (void)snprintf(s->base.run_name, sizeof s->base.run_name, "titan-worker run (process %d on %s)",
                   world > 1 ? (int)getppid() : (int)getpid(), host);
    *ret = &s->base;
    return TITAN_OK;
}
