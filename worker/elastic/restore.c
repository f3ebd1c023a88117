/* SPDX-License-Identifier: Apache-2.0 */
/* restore.c - fills an epoch's state: from memory, else from checkpoints, else from initialization. */
#include "worker/elastic/restore.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/cleanup.h"
#include "base/failpoint.h"
#include "base/file.h"
#include "base/progress.h"
#include "worker/checkpoint/checkpoint.h"
#include "worker/checkpoint/folder.h"
#include "worker/checkpoint/load_state.h"
#include "worker/elastic/owed.h"
#include "worker/elastic/peer_values.h"
#include "worker/elastic/transfer.h"
#include "worker/program/program.h"

const char *recovery_source_name(enum recovery_source recovery_source)
{
    static const char *const names[] = {"init", "checkpoint", "memory", "replica", "buddy"};
    return (size_t)recovery_source < ARRAY_SIZE(names) ? names[recovery_source] : "?";
}

/* --- memory ------------------------------------------------------------------------------------------------------- */

static titan_status roll_forward(struct restore *r, const double *statistics, struct titan_error *err)
{
    const struct holdings *h = &r->holdings;
    const struct train_state *own = r->brought.shards.own;
    const struct peer_ranks *p = &r->ranks;
    const struct device_ops *dev = p->device->ops;
    const size_t bytes = (size_t)h->statistics_size * sizeof *statistics;
    const bool mine = h->statistics_from == r->view->rank;
    _cleanup_free_ double *room = malloc(bytes + 1);
    void *memory = NULL;

    titan_assert(h->statistics_from >= 0 && h->statistics_size > 0);
    titan_assert(p->comm && (!mine || statistics));
    if (!room)
        return titan_fail(err, TITAN_ENOMEM, "state: out of memory");
    if (mine)
        memcpy(room, statistics, bytes);
    /* Only ranks with the statistics know that the run wants the step. One of them sends the statistics to all
     * ranks. */
    TRY(dev->alloc(p->device->dev, bytes, &memory, err));
    titan_status status = mine ? dev->copy(p->s, memory, room, bytes) : TITAN_OK;
    if (status == TITAN_OK)
        status = p->ops->broadcast(p->comm, memory, bytes, h->statistics_from, p->s);
    /* Waits for the peers here. Otherwise the copy below would wait for them inside its call, because the memory is not
     * pinned. */
    if (status == TITAN_OK)
        status = dev->stream_sync(p->s, err);
    if (status == TITAN_OK && !mine)
        status = dev->copy(p->s, room, memory, bytes);
    const titan_status sync = dev->stream_sync(p->s, err);
    dev->release(p->device->dev, memory);
    TRY(status);
    TRY(sync);

    TRY(failpoint("state.report", err));
    r->rolled_forward = true;
    if (!own || own->step == h->step)
        return TITAN_OK;
    if (own->step + 1 != h->step)
        return titan_fail(err, TITAN_ECONFLICT, "state in memory: step %lu here, of others step %lu",
                          (unsigned long)own->step, (unsigned long)h->step);
    tlog_info(r->log, "a prepared step is finished", "step=%lu report_of_rank=%d", (unsigned long)h->step,
              h->statistics_from);
    TRY(r->finish(r->arg, room, h->statistics_size, err));
    titan_assert(own->step == h->step);
    return failpoint("state.finished", err);
}

/* The run's course, as a rank with its state knows it: how far it has read its data, and its line of checkpoints. */
struct course {
    double step, samples, sources, first, from[MIXTURE_MAX], branches, branch[2 * CHECKPOINT_BRANCHES_MAX];
    double from_step;
    char from_run[IDENTITY_RUN_BYTES];
};

/* Shares the course with all ranks. It is needed because a new worker has not read the checkpoint from which the run
 * went on. */
static titan_status share_course(struct restore *r, struct titan_error *err)
{
    static const char about[] = "what the run has read";
    const struct holdings *h = &r->holdings;
    const struct run_identity *its = r->identity;
    struct course mine = {0};
    _cleanup_free_ struct course *all = calloc((size_t)h->ranks, sizeof *all);
    int from = 0;

    if (!all)
        return titan_fail(err, TITAN_ENOMEM, "state: out of memory");
    if (its) {
        mine.step = (double)its->step;
        mine.samples = (double)its->samples;
        mine.sources = its->data.n;
        mine.first = (double)its->data.first;
        for (int k = 0; k < its->data.n; k++)
            mine.from[k] = (double)its->data.source[k].from;
        mine.branches = its->line.n;
        for (int i = 0; i < its->line.n; i++) {
            mine.branch[2 * i] = (double)its->line.branch[i].number;
            mine.branch[2 * i + 1] = (double)its->line.branch[i].from;
        }
        mine.from_step = (double)its->from_step;
        memcpy(mine.from_run, its->from_run, sizeof mine.from_run);
    }
    TRY(peer_values_gather(&r->ranks, &mine, sizeof mine, all, err));
    while (from + 1 < h->ranks && h->all[from].present == 0)
        from++;

    const struct course *c = &all[from];
    const double sources = its ? its->data.n : 0;
    const struct peer_value reported[] = {{"step", c->step, 0, (double)h->step},
                                          {"samples", c->samples, 0, PEER_VALUE_EXACT},
                                          {"sources", c->sources, sources, sources},
                                          {"first", c->first, 0, c->samples},
                                          {"branches", c->branches, 0, CHECKPOINT_BRANCHES_MAX},
                                          {"from_step", c->from_step, 0, (double)CHECKPOINT_STEP_MAX}};
    const struct peer_words run = {"from_run", c->from_run, sizeof c->from_run, false};
    TRY(peer_values_check(about, from, reported, ARRAY_SIZE(reported), err));
    TRY(peer_values_check_words(about, from, &run, err));
    if (its)
        r->found = *its;
    titan_assert(r->found.data.n == (int)sources);
    for (int k = 0; k < (int)sources; k++) {
        TRY(peer_values_check(about, from, &(struct peer_value){"from", c->from[k], 0, PEER_VALUE_EXACT}, 1, err));
        r->found.data.source[k].from = (uint64_t)c->from[k];
    }
    double least = 1; /* branch numbers ascend */
    r->found.line.n = (int)c->branches;
    for (int i = 0; i < (int)c->branches; i++) {
        const struct peer_value branch[] = {{"branch", c->branch[2 * i], least, (double)CHECKPOINT_STEP_MAX},
                                            {"branch", c->branch[2 * i + 1], 0, (double)CHECKPOINT_STEP_MAX}};
        TRY(peer_values_check(about, from, branch, ARRAY_SIZE(branch), err));
        least = c->branch[2 * i] + 1;
        r->found.line.branch[i] =
            (struct checkpoint_branch){(uint64_t)c->branch[2 * i], (uint64_t)c->branch[2 * i + 1]};
    }
    r->found.step = (uint64_t)c->step;
    r->found.samples = (uint64_t)c->samples;
    r->found.data.first = (uint64_t)c->first;
    r->found.from_step = (uint64_t)c->from_step;
    memcpy(r->found.from_run, c->from_run, sizeof r->found.from_run);
    return TITAN_OK;
}

/* Shares the held scales of the step that the state has. Call it when no rank is behind. */
static titan_status share_scales(struct restore *r, struct titan_error *err)
{
    const struct holdings *h = &r->holdings;
    _cleanup_free_ struct held_scales *mine = calloc(1, sizeof *mine);
    _cleanup_free_ struct held_scales *all = calloc((size_t)h->ranks, sizeof *all);
    int from = 0;

    if (recipe_scales_every(r->recipe) == 1)
        return TITAN_OK;
    if (!mine || !all)
        return titan_fail(err, TITAN_ENOMEM, "state: out of memory");
    if (r->identity && r->brought.shards.own)
        *mine = r->identity->scales;
    TRY(peer_values_gather(&r->ranks, mine, sizeof *mine, all, err));
    while (from + 1 < h->ranks && (all[from].n == 0 || all[from].step != h->step))
        from++;
    const struct peer_value reported = {"scales", all[from].n, 0, HELD_SCALES_MAX};
    TRY(peer_values_check("held scales", from, &reported, 1, err));
    r->found.scales = all[from];
    return TITAN_OK;
}

titan_status restore_agree(struct restore *r, struct titan_error *err)
{
    struct step_statistics most;
    struct mesh mesh;

    titan_assert(!r->covered && !r->from);
    if (r->view->source != STATE_FROM_MEMORY)
        return TITAN_OK;
    /* Finds how the source epoch cut the model, and the largest number of statistics that one of its steps can have:
     * with one sample per microbatch. */
    titan_status status = mesh_build(r->recipe, r->view->holders, &mesh, err);
    if (status == TITAN_OK)
        status = layout_of_recipe(r->recipe, r->model, &mesh, &r->from, err);
    if (status == TITAN_EINVAL) /* the recipe never ran on so many ranks */
        status = titan_fail(err, TITAN_ECONFLICT, "state in memory: %d ranks cannot have held it", r->view->holders);
    if (status == TITAN_OK) {
        statistics_init(&most, r->from, r->recipe->training.global_batch_size, r->recipe->numerics.canonical,
                        recipe_scales_every(r->recipe) > 1);
        r->brought.statistics_most = most.size + (optimizer_directs(r->recipe) ? r->model->n_tensors : 0);
        status = holdings_gather(r->view, r->from, &r->brought, &r->ranks, &r->holdings, err);
    }
    if (status == TITAN_ECONFLICT) { /* the same status on all ranks */
        tlog_warn(r->log, "the members' memory does not hold the whole state", "reason=\"%s\"", err ? err->msg : "");
        return TITAN_OK;
    }
    TRY(status);
    TRY(share_course(r, err));
    r->covered = true;
    TRY(failpoint("state.agreed", err));
    if (r->holdings.behind > 0)
        TRY(roll_forward(r, r->brought.statistics, err));
    TRY(share_scales(r, err));
    /* The run does not go on from replicas that differ. But a copy that differs from its owner's shard does not matter:
     * the shard itself is here, and the new epoch makes another copy. */
    struct verified v;
    status = verify_shards(&r->from->mesh, &r->brought.shards, 0, &r->ranks, &v, err);
    if (status == TITAN_ECORRUPT) { /* the same status on all ranks */
        tlog_error(r->log, "the members' memory is damaged", "reason=\"%s\"", err ? err->msg : "");
        r->covered = false;
        return TITAN_OK;
    }
    TRY(status);
    if (v.copies_differ)
        tlog_error(r->log, "a buddy's copy is damaged", "reason=\"%s\"", v.why.msg);
    r->parameters = v.parameters;
    return TITAN_OK;
}

/* --- checkpoints -------------------------------------------------------------------------------------------------- */

#define LOOK_MS 20   /* time between two looks for a revoke */
#define RETRY_MS 500 /* first wait between two attempts; RETRY_MOST_MS: the longest */
#define RETRY_MOST_MS 5000

#define STALLS_MAX 2 /* stalls after which a checkpoint is refused */

/* LOAD: all ranks load. LOOK: rank 0 looks at the manifest, for all ranks. */
enum attempt_kind { LOAD, LOOK };

/* A rank's result with a checkpoint; later values are worse. */
enum outcome { LOADED, UNREADABLE, FORBIDDEN, STALLED, INCOMPLETE, DAMAGED };

/* One rank's vote on a checkpoint that all ranks tried. */
struct vote {
    double outcome;
    char why[PEER_WORDS];
};

#define CANDIDATES_MAX 62 /* checkpoints of the folder's list that are tried; older checkpoints are of no use */

/* The checkpoints that rank 0 found in a folder. Other ranks may not see the same files yet. */
struct listing {
    double unreadable, n, steps[CANDIDATES_MAX];
    /* As in base/checkpoint_line.h. on_line: checkpoint.load_step is on the run's line, or is not set. */
    double branches, newest, on_line;
    char why[PEER_WORDS];
    char place[PATH_MAX]; /* for initial_load_path: the folder, or one checkpoint */
};

static enum outcome outcome_of(titan_status status)
{
    switch (status) {
    case TITAN_ECORRUPT:
    case TITAN_ENOTFOUND:
        return DAMAGED;
    case TITAN_EUNSUPPORTED:
        return INCOMPLETE;
    case TITAN_ETIMEDOUT:
        return STALLED;
    case TITAN_EPERM:
        return FORBIDDEN;
    case TITAN_EIO: /* the checkpoint itself may be fine: a share is not mounted, or a disk has a fault */
    case TITAN_ELIMIT:
    case TITAN_EUNREACHABLE:
        return UNREADABLE;
    default:
        return LOADED;
    }
}

/* Gathers all ranks' results, because a fault may be on some ranks only. *ret: the worst vote; *ret_by: a rank with
 * this vote. */
static titan_status vote(struct restore *r, titan_status mine, const char *why, int *ret_by, struct vote *ret,
                         struct titan_error *err)
{
    const int ranks = r->ranks.n;
    struct vote me = {.outcome = outcome_of(mine)};
    _cleanup_free_ struct vote *all = calloc((size_t)ranks, sizeof *all);

    if (!all)
        return titan_fail(err, TITAN_ENOMEM, "state: out of memory");
    (void)snprintf(me.why, sizeof me.why, "%s", why[0] ? why : titan_status_text(mine));
    TRY(peer_values_gather(&r->ranks, &me, sizeof me, all, err));
    *ret_by = 0;
    for (int i = 0; i < ranks; i++) {
        const struct vote *v = &all[i];
        const struct peer_value outcome = {"outcome", v->outcome, LOADED, DAMAGED};
        const struct peer_words words = {"why", v->why, sizeof v->why, v->outcome != LOADED};
        TRY(peer_values_check("a checkpoint's vote", i, &outcome, 1, err));
        TRY(peer_values_check_words("a checkpoint's vote", i, &words, err));
        if (v->outcome > all[*ret_by].outcome)
            *ret_by = i;
    }
    *ret = all[*ret_by];
    return TITAN_OK;
}

/* Waits between two attempts. *spent_ms: total time of the waits so far. TITAN_EIO: the waits have used up retry_ms. */
static titan_status wait_to_read(struct restore *r, const char *path, const char *why, int *spent_ms,
                                 struct titan_error *err)
{
    const int wait = MIN(MAX(*spent_ms, RETRY_MS), RETRY_MOST_MS);

    tlog_warn(r->log, "checkpoint cannot be read", "path=\"%s\" reason=\"%s\"", path, why);
    if (*spent_ms + wait > r->retry_ms)
        return titan_fail(err, TITAN_EIO, "%s", why);
    if (r->unreadable)
        r->unreadable(r->arg, path, why);
    *spent_ms += wait;
    progress_wait_begin(); /* all ranks wait equally long, so they stay together */
    for (int waited = 0; waited < wait && !(r->stop && atomic_load(r->stop)); waited += LOOK_MS)
        (void)nanosleep(&(struct timespec){.tv_nsec = LOOK_MS * 1000000L}, NULL);
    progress_wait_end();
    return r->stop && atomic_load(r->stop)
               ? titan_fail(err, TITAN_EREVOKED, "the epoch was revoked while a checkpoint could not be read")
               : TITAN_OK;
}

/* The step in a checkpoint's name; 0 = the name has no step; it sorts last. */
static uint64_t step_of(const char *path)
{
    const char *name = strrchr(path, '/');
    return name && strncmp(name, "/step-", 6) == 0 ? strtoull(name + 6, NULL, 10) : 0;
}

/* Logs which parts of the checkpoint's identity were not compared, differences that do not prevent loading, and an
 * optimizer's state that the recipe leaves out. */
static void log_notes(const struct restore *r, const struct load_source *source)
{
    char text[IDENTITY_NOTES_MAX];

    if (r->view->rank == 0 && source->without_optimizer && recipe_excludes(r->recipe, "optimizer"))
        tlog_info(r->log, "optimizer state begins anew", "path=\"%s\" optimizer=%s", source->path,
                  r->recipe->optimizer.name);
    (void)snprintf(text, sizeof text, "%s", source->notes);
    for (char *rest = text, *line; r->view->rank == 0 && (line = strsep(&rest, "\n"));)
        if (*line)
            tlog_warn(r->log, "the run differs from the checkpoint's", "path=\"%s\" note=\"%s\"", source->path, line);
}

/* Tries a checkpoint once, with the same result on all ranks. TITAN_ECORRUPT: some rank cannot load it. TITAN_EIO,
 * TITAN_EPERM: some rank could not read it. TITAN_ETIMEDOUT: some rank's read stalled. TITAN_EUNSUPPORTED: the
 * checkpoint lacks wanted parts. */
static titan_status try_once(struct restore *r, enum attempt_kind kind, struct load_source *source,
                             struct train_state *to, struct titan_error *err)
{
    const struct apart_limit limit = {r->still_ms, r->stop};
    const char *path = source->path;
    struct titan_error fault = {0};
    struct vote seen;
    char where[32] = "";
    int by;

    titan_status status = TITAN_OK; /* result of this rank's own part */
    if (kind == LOOK && r->view->rank == 0)
        status = folder_look(path, step_of(path), &limit, &fault);
    else if (kind == LOAD && to)
        status = load_state(to, source, r->recipe, &limit, r->ranks.s, &fault);
    if (status == TITAN_OK && kind == LOAD && to && source->from == LOAD_OWN) {
        /* The number of samples sets an upper bound for the number of tokens. The bound does not hold if another run
         * counted some of the tokens, or if this run had samples of another length. */
        const struct recipe *const c = r->recipe;
        const struct run_identity *its = &source->identity;
        const double samples = MAX((double)its->samples, (double)to->step * (double)c->training.global_batch_size);
        const bool as_now = its->data.first == 0 && (!its->known || its->data.seq_len == c->training.seq_len);
        const bool began_elsewhere = c->checkpoint.initial_load_path[0] && !c->checkpoint.initial_load_model_only;
        if (((double)to->tokens > samples * (double)c->training.seq_len && !began_elsewhere && as_now) ||
            to->skipped.total > to->step)
            status = titan_fail(&fault, TITAN_ECORRUPT, "'%s': %llu tokens in %llu steps cannot be", path,
                                (unsigned long long)to->tokens, (unsigned long long)to->step);
    }
    if (status != TITAN_OK && outcome_of(status) == LOADED) { /* an error of this process, not of the checkpoint */
        if (err)
            *err = fault;
        return status;
    }
    TRY(vote(r, status, fault.msg, &by, &seen, err));
    if (seen.outcome == LOADED)
        return TITAN_OK;
    if (by > 0 && source->from != LOAD_OWN) /* the fault is on another rank than rank 0 */
        (void)snprintf(where, sizeof where, "rank %d: ", by);
    if (seen.outcome == DAMAGED || seen.outcome == INCOMPLETE)
        tlog_warn(r->log, "checkpoint refused", "path=\"%s\" rank=%d reason=\"%s\"", path, by, seen.why);
    return titan_fail(err,
                      seen.outcome == UNREADABLE   ? TITAN_EIO
                      : seen.outcome == FORBIDDEN  ? TITAN_EPERM
                      : seen.outcome == STALLED    ? TITAN_ETIMEDOUT
                      : seen.outcome == INCOMPLETE ? TITAN_EUNSUPPORTED
                                                   : TITAN_ECORRUPT,
                      "%s%s", where, seen.why);
}

/* Tries a checkpoint until the result is final. A file that cannot be read for retry_ms counts as damaged. A file that
 * stalls STALLS_MAX times counts as damaged, too. Missing rights do not count as damage, because somebody can grant
 * them. */
static titan_status try_checkpoint(struct restore *r, enum attempt_kind kind, struct load_source *source,
                                   struct train_state *to, struct titan_error *err)
{
    const char *path = source->path;
    struct titan_error fault = {0};
    titan_status status, waited = TITAN_OK;
    int spent_ms = 0, stalls = 0;

    for (;;) {
        status = try_once(r, kind, source, to, &fault);
        if (status == TITAN_ETIMEDOUT) {
            const bool over = ++stalls >= STALLS_MAX;
            tlog_warn(r->log, over ? "checkpoint refused" : "checkpoint stalled", "path=\"%s\" reason=\"%s\"", path,
                      fault.msg);
            if (r->unreadable)
                r->unreadable(r->arg, path, fault.msg);
            if (!over)
                continue;
        }
        if (status != TITAN_EIO && status != TITAN_EPERM)
            break;
        waited = wait_to_read(r, path, fault.msg, &spent_ms, err);
        if (waited == TITAN_EIO)
            break;
        TRY(waited);
    }
    if (status == TITAN_OK && source->from == LOAD_OWN)
        (void)snprintf(r->loaded, sizeof r->loaded, "%s", path);
    status = status == TITAN_EIO || status == TITAN_ETIMEDOUT ? TITAN_ECORRUPT : status;
    if (status == TITAN_ECORRUPT && !r->damaged[0])
        (void)snprintf(r->damaged, sizeof r->damaged, "%s", path);
    if (status != TITAN_OK && err)
        *err = fault;
    return status;
}

/* Gives all ranks the list that rank 0 finds. path NULL: there is no folder. own: it is the folder of this run. path
 * depends only on the recipe, so it is the same on all ranks. */
static titan_status look_in_folder(struct restore *r, const char *path, bool own, struct listing *ret,
                                   struct titan_error *err)
{
    static const char about[] = "a folder's checkpoints";
    const struct apart_limit limit = {r->still_ms, r->stop};
    _cleanup_free_ struct listing *all = calloc((size_t)r->ranks.n, sizeof *all);
    int spent_ms = 0;

    memset(ret, 0, sizeof *ret);
    if (!path)
        return TITAN_OK;
    if (!all)
        return titan_fail(err, TITAN_ENOMEM, "state: out of memory");
    for (bool again = true; again;) {
        struct listing mine = {0};
        if (r->view->rank == 0) {
            struct titan_error fault = {0};
            _cleanup_(checkpoint_line_list_clear) struct checkpoint_line_list list = {0};
            (void)snprintf(mine.place, sizeof mine.place, "%s", path);
            const titan_status status =
                own ? folder_list(path, &limit, &list, &fault) : folder_find(path, &limit, mine.place, &list, &fault);
            /* A fault in the name of another run's folder is reported when the checkpoint is loaded. */
            mine.unreadable = status != TITAN_OK && status != TITAN_ENOTFOUND && (own || status != TITAN_EINVAL);
            (void)snprintf(mine.why, sizeof mine.why, "%s", fault.msg[0] ? fault.msg : titan_status_text(status));
            for (size_t i = 0; i < MIN(list.n, (size_t)CANDIDATES_MAX); i++)
                mine.steps[(int)mine.n++] = (double)list.steps[i];
            mine.branches = (double)list.branches;
            mine.newest = list.n > 0 ? (double)list.steps[0] : 0;
            mine.on_line = true;
            for (size_t i = 0; own && i < list.n_left; i++) /* a branch that was given up is not on the line */
                if ((int64_t)list.left[i] == r->recipe->checkpoint.load_step)
                    mine.on_line = false;
            if (!own || r->recipe->checkpoint.load_step < 0)
                checkpoint_log_left(r->log, mine.place, &list);
        }
        TRY(peer_values_gather(&r->ranks, &mine, sizeof mine, all, err));
        const struct listing *l = &all[0];
        const struct peer_value reported[] = {{"unreadable", l->unreadable, 0, 1},
                                              {"n", l->n, 0, CANDIDATES_MAX},
                                              {"branches", l->branches, 0, (double)CHECKPOINT_STEP_MAX},
                                              {"newest", l->newest, 0, PEER_VALUE_EXACT},
                                              {"on_line", l->on_line, 0, 1}};
        const struct peer_words why = {"why", l->why, sizeof l->why, l->unreadable != 0},
                                place = {"place", l->place, sizeof l->place, false};
        TRY(peer_values_check(about, 0, reported, ARRAY_SIZE(reported), err));
        for (int i = 0; i < (int)l->n; i++)
            TRY(peer_values_check(about, 0, &(struct peer_value){"steps", l->steps[i], 0, PEER_VALUE_EXACT}, 1, err));
        TRY(peer_values_check_words(about, 0, &why, err));
        TRY(peer_values_check_words(about, 0, &place, err));
        /* If links are refused, rank 0's place must be exactly the recipe's path. */
        if (!own && file_refuses_links() && strcmp(l->place, path) != 0)
            return titan_fail(err, TITAN_ECONFLICT, "%s: rank 0 says place '%.200s'", about, l->place);
        again = l->unreadable != 0;
        if (again)
            TRY(wait_to_read(r, path, l->why, &spent_ms, err));
    }
    *ret = all[0];
    return TITAN_OK;
}

/* All checkpoints to try, newest first: the checkpoints that the coordinator knows, and others in the folder. */
struct candidates {
    char (*paths)[PATH_MAX];
    uint64_t *steps;
    bool *named; /* the coordinator knows the checkpoint, so this run has written it */
    int n;
    /* From the folder: number of branches; newest step on the run's line; is load_step on the line? */
    uint64_t branches, newest;
    bool on_line;
};

static void clear_candidates(struct candidates *c)
{
    free(c->paths);
    free(c->steps);
    free(c->named);
}

static void add_candidate(struct candidates *c, uint64_t step, const char *path, bool named)
{
    int at = 0;

    while (at < c->n && c->steps[at] > step)
        at++;
    if (at < c->n && c->steps[at] == step)
        return;
    memmove(c->steps + at + 1, c->steps + at, (size_t)(c->n - at) * sizeof *c->steps);
    memmove(c->paths + at + 1, c->paths + at, (size_t)(c->n - at) * sizeof *c->paths);
    memmove(c->named + at + 1, c->named + at, (size_t)(c->n - at) * sizeof *c->named);
    c->steps[at] = step;
    c->named[at] = named;
    (void)snprintf(c->paths[at], PATH_MAX, "%s", path);
    c->n++;
    titan_assert(at == 0 || c->steps[at - 1] > step);
    titan_assert(at + 1 == c->n || c->steps[at + 1] < step);
}

static titan_status find_candidates(struct restore *r, struct candidates *ret, struct titan_error *err)
{
    const struct epoch_view *v = r->view;
    struct listing there;
    char path[PATH_MAX];

    TRY(look_in_folder(r, r->folder, true, &there, err));
    ret->branches = (uint64_t)there.branches;
    ret->newest = (uint64_t)there.newest;
    ret->on_line = there.on_line != 0 || !r->folder;
    const size_t most = (size_t)v->n_older + (size_t)there.n + 2;
    ret->paths = calloc(most, sizeof *ret->paths);
    ret->steps = calloc(most, sizeof *ret->steps);
    ret->named = calloc(most, sizeof *ret->named);
    if (!ret->paths || !ret->steps || !ret->named)
        return titan_fail(err, TITAN_ENOMEM, "state: out of memory");
    if (v->checkpoint_path[0])
        add_candidate(ret, step_of(v->checkpoint_path), v->checkpoint_path, true);
    for (int i = 0; i < v->n_older; i++)
        add_candidate(ret, step_of(v->older_checkpoints[i]), v->older_checkpoints[i], true);
    const int64_t load_step = r->recipe->checkpoint.load_step;
    if (load_step >= 0) { /* the folder's other checkpoints belong to a run that went another way */
        if (ret->n > 0)
            return TITAN_OK;
        if (there.n == 0) {
            (void)titan_fail(err, TITAN_EINVAL, "checkpoint.load_step = %lld: %s%.200s%s", (long long)load_step,
                             r->folder ? "there is no checkpoint in '" : "checkpoint.enable = false loads none",
                             r->folder ? r->folder : "", r->folder ? "'" : "");
            titan_error_hint(err, "look at job.dump_folder and checkpoint.folder; checkpoint.initial_load_path names a "
                                  "checkpoint of another folder by itself");
            return TITAN_EINVAL;
        }
        there.n = 1;
        there.steps[0] = (double)load_step;
    }
    for (int i = 0; i < (int)there.n; i++) {
        TRY(checkpoint_path(path, r->folder, (uint64_t)there.steps[i], err));
        add_candidate(ret, (uint64_t)there.steps[i], path, false);
    }
    return TITAN_OK;
}

/* Loads the newest checkpoint that can be loaded. TITAN_ENOTFOUND: there are no checkpoints. If no checkpoint can be
 * loaded, err has the newest checkpoint's fault: older checkpoints may be missing only because they were deleted. */
static titan_status load_checkpoints(struct restore *r, struct train_state *to, struct titan_error *err)
{
    _cleanup_(clear_candidates) struct candidates c = {0};
    struct titan_error fault = {0}, newest = {0};
    titan_status status = TITAN_ENOTFOUND;

    TRY(find_candidates(r, &c, err));
    for (int i = 0; i < c.n; i++) {
        const bool begins = !c.named[i];
        struct load_source source = {.path = c.paths[i],
                                     .from = LOAD_OWN,
                                     .here = r->identity,
                                     .without_optimizer = begins && recipe_excludes(r->recipe, "optimizer"),
                                     .without_progress = begins && recipe_excludes(r->recipe, "train_state")};
        status = try_checkpoint(r, LOAD, &source, to, &fault);
        if (i == 0)
            newest = fault;
        if (status == TITAN_OK && to) {
            /* If the folder has a newer checkpoint on the run's line than the loaded one, the run begins a new branch
             * at the loaded one. */
            const uint64_t step = source.without_progress ? 0 : source.identity.step;
            r->found = source.identity;
            if (source.without_progress)
                r->found.samples = r->found.step = r->found.data.n = r->found.scales.n = 0;
            const struct checkpoint_line *line = &r->found.line; /* the loaded line may be newer than the list */
            const uint64_t branches = MAX(c.branches, line->n > 0 ? line->branch[line->n - 1].number : 0);
            if ((c.newest > step || !c.on_line) && branches < CHECKPOINT_STEP_MAX)
                checkpoint_line_go_back(&r->found.line, branches + 1, step);
            log_notes(r, &source);
        }
        if (status != TITAN_ECORRUPT && status != TITAN_EUNSUPPORTED)
            break;
    }
    if (c.n == 0 || status == TITAN_OK)
        return status;
    if (status != TITAN_ECORRUPT && status != TITAN_EUNSUPPORTED && status != TITAN_EPERM) {
        if (err)
            *err = fault;
        return status;
    }
    if (status == TITAN_EUNSUPPORTED && newest.hint[0]) {
        if (err)
            *err = newest;
        return err ? (err->status = TITAN_EINVAL) : TITAN_EINVAL;
    }
    (void)titan_fail(err, TITAN_EINVAL, "%s%.*s",
                     status == TITAN_EPERM ? "a checkpoint cannot be read: " : "no checkpoint of this run loads: ", 300,
                     status == TITAN_EPERM ? fault.msg : newest.msg);
    titan_error_hint(err, "to begin again from step 0, remove the step- folders or use another folder");
    return TITAN_EINVAL;
}

/* --- the beginning ------------------------------------------------------------------------------------------------ */

/* Finds the checkpoint of initial_load_path. If this is a folder, takes its newest checkpoint whose manifest rank 0 can
 * read. The result is the same on all ranks. */
static titan_status find_initial(struct restore *r, char ret[PATH_MAX], struct titan_error *err)
{
    struct titan_error fault = {0}, newest = {0};
    struct listing there;
    titan_status status = TITAN_OK;

    TRY(look_in_folder(r, r->recipe->checkpoint.initial_load_path, false, &there, err));
    (void)snprintf(ret, PATH_MAX, "%s", there.place);
    for (int i = 0; i < (int)there.n; i++) {
        struct load_source source = {.path = ret, .from = LOAD_OTHER};
        TRY(checkpoint_path(ret, there.place, (uint64_t)there.steps[i], err));
        status = try_checkpoint(r, LOOK, &source, NULL, &fault);
        if (i == 0)
            newest = fault;
        if (status != TITAN_ECORRUPT)
            break;
    }
    if (status == TITAN_ECORRUPT)
        return titan_fail(err, TITAN_ECORRUPT, "no checkpoint in '%s' loads: %.*s", there.place, 300, newest.msg);
    if (status != TITAN_OK && err)
        *err = fault;
    return status;
}

titan_status restore_fill(struct restore *r, const struct layout *cut, struct train_state *to, struct titan_error *err)
{
    const struct recipe *const c = r->recipe;

    titan_assert((to != NULL) == (r->view->rank < r->view->world));
    if (to) /* a source that was tried before may have filled them */
        TRY(state_zero_errors(to, r->ranks.s));
    if (r->covered) {
        titan_assert(r->view->source == STATE_FROM_MEMORY);
        r->recovery_source = r->holdings.recovery_source;
        const struct resharding what = {.holdings = &r->holdings, .mine = &r->brought.shards, .cut = cut, .to = to};
        TRY(state_transfer(&what, &r->ranks, &r->bytes_sent, err));
        return r->holdings.settled && codec_row(recipe_reduce_codec(c))->error
                   ? owed_transfer(&what, &r->ranks, &r->bytes_sent, err)
                   : TITAN_OK;
    }
    if (r->view->memory_only)
        return titan_fail(err, TITAN_EPEER,
                          "epoch %llu was formed without the coordinator, and its members do not hold the whole state",
                          (unsigned long long)r->view->epoch);
    r->recovery_source = RECOVERY_SOURCE_CHECKPOINT;
    r->found = (struct run_identity){0};
    titan_status status = load_checkpoints(r, to, err);
    if (status != TITAN_ENOTFOUND)
        return status;
    r->recovery_source = RECOVERY_SOURCE_INIT;
    if (!c->checkpoint.initial_load_path[0])
        return to ? state_init(to, (uint64_t)c->training.seed, r->ranks.s, err) : TITAN_OK;

    /* Loads checkpoint.initial_load_path. Every fault becomes TITAN_EINVAL, because the next attempt would fail in the
     * same way. */
    const bool only = c->checkpoint.initial_load_model_only;
    struct titan_error fault = {0};
    char path[PATH_MAX];
    struct load_source source = {.path = path,
                                 .from = c->checkpoint.initial_load_in_hf ? LOAD_WEIGHTS : LOAD_OTHER,
                                 .here = r->identity,
                                 .without_optimizer = only || recipe_excludes(c, "optimizer"),
                                 .without_progress = only || recipe_excludes(c, "train_state")};
    (void)snprintf(path, sizeof path, "%s", c->checkpoint.initial_load_path);
    status = source.from == LOAD_OTHER ? find_initial(r, path, &fault) : TITAN_OK;
    if (status == TITAN_OK)
        status = try_checkpoint(r, LOAD, &source, to, &fault);
    if (status == TITAN_OK) {
        tlog_info(r->log, "weights loaded", "path=\"%s\" step=%lu", source.path, to ? (unsigned long)to->step : 0);
        if (source.from == LOAD_OTHER)
            r->found = source.identity;
        if (source.without_progress)
            r->found.samples = r->found.step = r->found.data.n = r->found.scales.n = 0;
        r->found.line = (struct checkpoint_line){0}; /* this line belongs to the other folder */
        log_notes(r, &source);
        return TITAN_OK;
    }
    if (status != TITAN_EREVOKED && status != TITAN_EPEER && status != TITAN_ENOMEM)
        status = fault.status = TITAN_EINVAL;
    if (err)
        *err = fault;
    return status != TITAN_EINVAL ? status : titan_error_wrap(err, "checkpoint.initial_load_path");
}

/* --- proof -------------------------------------------------------------------------------------------------------- */

titan_status restore_verify(struct restore *r, const struct mesh *mesh, const struct held_shards *shards,
                            struct verified *ret, bool *ret_again, struct titan_error *err)
{
    *ret_again = false;
    /* All ranks compare the same numbers, so they reach the same verdict. */
    titan_status status = verify_shards(mesh, shards, r->bytes_sent, &r->ranks, ret, err);
    if (status == TITAN_OK && ret->copies_differ)
        status = titan_fail(err, TITAN_ECORRUPT, "%s", ret->why.msg);
    else if (status == TITAN_OK && r->covered && ret->parameters != r->parameters)
        status = titan_fail(err, TITAN_ECORRUPT, "parameters with hash %016lx became %016lx when the state moved",
                            (unsigned long)r->parameters, (unsigned long)ret->parameters);
    if (status != TITAN_ECORRUPT || !r->covered)
        return status;
    tlog_error(r->log, "state from memory is damaged", "reason=\"%s\"", err ? err->msg : "");
    titan_assert(r->recovery_source >= RECOVERY_SOURCE_MEMORY);
    r->covered = false;
    *ret_again = true;
    return TITAN_OK;
}

void restore_clear(struct restore *r)
{
    holdings_clear(&r->holdings);
    layout_close(r->from);
    r->from = NULL;
}
