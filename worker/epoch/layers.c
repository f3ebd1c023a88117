/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/epoch/layers.h"

#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/file.h"
#include "base/json.h"
#include "worker/epoch/epoch.h"

/* --- what the executor needs -------------------------------------------------------------------------------------- */

titan_status layers_open(struct epoch *e, struct titan_error *err)
{
    const struct train_state *st = e->state.shards.own;
    const int units = e->t->model->n_units;

    titan_assert(e->state.installed && !e->layers.masters);
    if (!e->t->recipe->metrics.log_layers || st->types.master != DTYPE_F32 ||
        (st->offload && !e->t->device.info.host_memory))
        return TITAN_OK;
    e->layers.masters = calloc((size_t)units, sizeof *e->layers.masters);
    if (!e->layers.masters)
        return titan_fail(err, TITAN_ENOMEM, "layers: out of memory");
    for (int u = 0; u < units; u++)
        e->layers.masters[u] = state_unit(st, u);
    return TITAN_OK;
}

void layers_close(struct epoch *e)
{
    free(e->layers.masters);
    e->layers = (struct layers){0};
}

const float *const *layers_masters(const struct epoch *e)
{
    return tensorboard_logs_step(e, e->state.shards.own->step + 1) ? e->layers.masters : NULL;
}

/* --- what is written ---------------------------------------------------------------------------------------------- */

struct norms {
    double *gradients, *masters; /* [units] */
};

static void put_norms(struct json_writer *w, const struct model *m, const char *key, const double *norms)
{
    json_begin_object(w, key);
    for (int u = 0; u < m->n_units; u++)
        json_put_real(w, m->units[u].name, norms[u]);
    json_end_object(w);
}

static titan_status append_line(const struct epoch *e, uint64_t step, const struct norms *n, struct titan_error *err)
{
    const struct model *m = e->t->model;
    _cleanup_(buf_free) struct buf line = BUF_INIT;
    struct json_writer w = {.out = &line};
    char path[PATH_MAX + 32];

    json_begin_object(&w, NULL);
    json_put_uint(&w, "step", step);
    json_put_uint(&w, "epoch", e->view.epoch);
    put_norms(&w, m, "grad_norm", n->gradients);
    if (e->layers.masters)
        put_norms(&w, m, "param_norm", n->masters);
    if (layout_all_experts(m) > 0) {
        const double *const tokens = exec_statistics(e->exec) + e->plan.program->statistics.expert_tokens;
        json_begin_object(&w, "expert_tokens");
        for (int u = 0; u < m->n_units; u++) {
            if (m->units[u].kind != UNIT_EXPERTS)
                continue;
            json_begin_array(&w, m->units[u].name);
            for (int64_t i = 0; i < m->dims.n_experts; i++)
                json_put_real(&w, NULL, tokens[layout_bias_offset(m, m->units[u].layer) + i]);
            json_end_array(&w);
        }
        json_end_object(&w);
    }
    json_end_object(&w);
    buf_puts(&line, "\n");
    if (buf_failed(&line))
        return titan_fail(err, TITAN_ENOMEM, "out of memory");
    (void)snprintf(path, sizeof path, "%s/layers.jsonl", e->t->members->job_dir);
    _cleanup_fd_ const int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (fd < 0)
        return titan_fail_errno(err, "cannot open '%s'", path);
    return file_append(fd, line.data, line.len, err);
}

void layers_write(struct epoch *e, uint64_t step, int64_t at_ms)
{
    enum { TAG = 64, EACH = 2 };
    const struct model *m = e->t->model;
    const size_t units = (size_t)m->n_units;
    const double *statistics = exec_statistics(e->exec);
    struct titan_error why = {0};

    if (e->view.rank != 0 || !e->t->recipe->metrics.log_layers || !tensorboard_logs_step(e, step) || !statistics)
        return;
    _cleanup_free_ double *both = calloc(2 * units, sizeof *both);
    if (!both)
        return;
    const struct norms n = {both, both + units};
    outcome_unit_norms(e->plan.program, e->plan.plan->layout, statistics, n.gradients, n.masters);

    _cleanup_free_ struct event_scalar *scalars = calloc(EACH * units, sizeof *scalars);
    _cleanup_free_ char(*tags)[TAG] = calloc(EACH * units, sizeof *tags);
    int count = 0;
    for (int u = 0; u < m->n_units && scalars && tags; u++)
        for (int k = 0; k < (e->layers.masters ? EACH : 1); k++) {
            (void)snprintf(tags[count], TAG, "%s/%s", k == 0 ? "layer_grad_norm" : "layer_param_norm",
                           m->units[u].name);
            scalars[count] = (struct event_scalar){tags[count], k == 0 ? n.gradients[u] : n.masters[u]};
            count++;
        }
    if (scalars && tags)
        tensorboard_write(e, step, at_ms, scalars, count);

    const bool failed = append_line(e, step, &n, &why) != TITAN_OK;
    if (failed && !e->layers.failed)
        tlog_warn(&e->t->log, "the file of layers takes no lines, going on without it", "step=%lu reason=\"%s\"",
                  (unsigned long)step, why.msg);
    if (!failed && e->layers.failed)
        tlog_info(&e->t->log, "the file of layers takes lines again", "step=%lu", (unsigned long)step);
    e->layers.failed = failed;
}
