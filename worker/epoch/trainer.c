/* SPDX-License-Identifier: Apache-2.0 */
/* trainer.c - sets the process up: folder, data, model, device, planning ahead. */
#include "worker/epoch/trainer.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/failpoint.h"
#include "base/file.h"
#include "base/process_seal.h"
#include "worker/tokenizer/tokenizer.h"

/* Logs what is read from a source, and what is left out. */
static void log_found(struct trainer *t, const char *data, const char *path, const struct dataset_found *found)
{
    _cleanup_(buf_free) struct buf text = BUF_INIT;
    const bool whole =
        data_left_out_count(&found->left_out) == 0 && !found->bad_records && !found->replaced && !found->too_long;
    dataset_found_print(found, &text);
    log_write(&t->log, whole ? LOG_LEVEL_INFO : LOG_LEVEL_WARN, data, "path=\"%s\" found=\"%s\"", path,
              text.len ? text.data : "");
}

static titan_status open_data(struct trainer *t, int threads, struct titan_error *err)
{
    const struct recipe *r = t->recipe;
    struct tokenizer *tokenizer = NULL;

    TRY(tokenizer_open_as(r->model.tokenizer, r->model.tokenizer_pattern, &tokenizer, err));
    const struct recipe_mixture *m = &r->training.mixture;
    struct dataset_source sources[RECIPE_SOURCES_MAX] = {
        {.path = r->training.dataset_path, .kind = r->training.dataset}};
    for (int64_t i = 0; i < m->n; i++)
        sources[i] =
            (struct dataset_source){.path = m->source[i].path,
                                    .kind = m->source[i].dataset[0] ? m->source[i].dataset : r->training.dataset,
                                    .weight = m->source[i].weight};
    const struct dataset_options options = {.sources = sources,
                                            .n_sources = m->n ? (int)m->n : 1,
                                            .tokenizer_name = r->model.tokenizer,
                                            .tokenizer = tokenizer,
                                            .chat_template = r->training.chat_template,
                                            .seq_len = r->training.seq_len,
                                            .vocab_size = r->model.dims.vocab_size,
                                            .seed = (uint64_t)r->training.seed,
                                            .cache = t->members->job_dir,
                                            .packs = strcmp(r->training.packing, "first_fit") == 0,
                                            .threads = threads};
    titan_status status = dataset_open(&options, &t->data, err);
    if (status == TITAN_OK && tokenizer_vocabulary(tokenizer) > r->model.dims.vocab_size)
        status = titan_fail(err, TITAN_EINVAL, "tokenizer '%s' has %ld tokens, model.vocab_size is %ld",
                            r->model.tokenizer, (long)tokenizer_vocabulary(tokenizer), (long)r->model.dims.vocab_size);
    if (status == TITAN_OK)
        status = evaluator_open(t, threads, tokenizer, err);
    t->identity = (struct run_identity){.known = true, .tokenizer = tokenizer_hash(tokenizer)};
    tokenizer_close(tokenizer);
    TRY(status);
    dataset_identify(t->data, &t->identity.data);
    if (dataset_windows(t->data) < (uint64_t)r->training.global_batch_size)
        return titan_fail(err, TITAN_EINVAL,
                          "the training data has %lu samples of training.seq_len = %ld tokens, one step needs %ld "
                          "(training.global_batch_size)",
                          (unsigned long)dataset_windows(t->data), (long)r->training.seq_len,
                          (long)r->training.global_batch_size);
    return TITAN_OK;
}

/* Called on the control thread. */
static void expect_world(void *arg, int world)
{
    struct trainer *t = arg;
    plan_ahead_want(t->ahead, world);
    if (t->evaluator.ahead)
        plan_ahead_want(t->evaluator.ahead, world);
}

struct plan_options trainer_plan_options(const struct trainer *t)
{
    return plan_options_of_device(t->recipe, t->model, &t->device);
}

titan_status trainer_open(const struct recipe *recipe, struct membership *members, int threads, int device_index,
                          struct trainer *ret, struct titan_error *err)
{
    titan_assert(recipe && members && !ret->recipe);
    struct trainer *const t = ret;
    const struct recipe *const r = recipe;
    const struct device_options device = {.index = device_index,
                                          .threads = r->device.threads > 0 ? (int)r->device.threads : threads};

    *t = (struct trainer){.recipe = recipe, .members = members};
    run_folder_init(&t->folder);
    publisher_init(&t->publisher);
    if (!r->job.follow_links)
        file_refuse_links();
    log_init(&t->log, "worker", "%s", "");
    recipe_print(r, &t->recipe_text);
    if (buf_failed(&t->recipe_text))
        return titan_fail(err, TITAN_ENOMEM, "out of memory");
    t->recipe_hash = recipe_hash(r);
    TRY(open_data(t, device.threads, err)); /* before the device, so that bad input is found at once */
    if (r->metrics.log_samples) {
        char path[PATH_MAX + 32];
        (void)snprintf(path, sizeof path, "%s/samples-%d.csv", members->job_dir, (int)getpid());
        if (!(t->samples = fopen(path, "ae")))
            return titan_fail_errno(err, "cannot write '%s'", path);
    }
    TRY(model_open(&r->model.dims, &t->model, err));
    TRY(device_open(r->device.name, &device, &t->device, err));
    if (members->solo_world == 0) /* seals the process, because workers of other users may run on this machine */
        process_seal();
    t->dt = plan_compute_type(r, t->device.info.bf16_fast);
    if (r->model.float8 && !t->device.info.float8)
        tlog_warn(&t->log, "this device has no products in float8, the linear layers compute without it",
                  "device=\"%s\" type=%s", t->device.info.name, t->dt == DTYPE_BF16 ? "bfloat16" : "float32");
    TRY(evaluator_plan(t, err));
    const struct plan_options planning = trainer_plan_options(t);
    TRY(plan_ahead_open(&planning, &t->ahead, err));
    if (members->ops->on_next_world)
        members->ops->on_next_world(members, expect_world, t);
    TRY(t->device.ops->stream_open(t->device.dev, "compute", true, &t->streams[STREAM_COMPUTE], err));

    /* The data is logged only now, so that a refused start is a single log line. Ranks that share a log read the same
     * data, so only the first of them logs it. */
    for (int i = 0; i < dataset_sources(t->data) && members->solo_rank == 0; i++)
        log_found(t, "training data",
                  r->training.mixture.n ? r->training.mixture.source[i].path : r->training.dataset_path,
                  dataset_found(t->data, i));
    if (t->evaluator.held_out.data && members->solo_rank == 0)
        log_found(t, "validation data", r->validation.dataset_path, dataset_found(t->evaluator.held_out.data, 0));
    if (members->ops->opened)
        members->ops->opened(members);
    return run_folder_take(t, err); /* last: it may wait for a file server longer than a start may take */
}

void trainer_close(struct trainer *t)
{
    const struct membership *m = t->members;

    titan_assert(m);
    if (t->ahead && m->ops->on_next_world)
        m->ops->on_next_world(t->members, NULL, NULL);
    plan_ahead_close(t->ahead);
    evaluator_close(t);
    run_folder_leave(t);
    recover_close(t);
    for (int s = 0; s < STREAM_COUNT; s++)
        if (t->streams[s])
            t->device.ops->stream_close(t->streams[s]);
    if (t->device.dev)
        device_close(&t->device);
    model_close(t->model);
    dataset_close(t->data);
    if (t->samples)
        (void)fclose(t->samples);
    publisher_close(&t->publisher);
    buf_free(&t->recipe_text);
}

void trainer_name_rank(struct trainer *t, int rank)
{
    titan_assert(rank >= 0);
    log_init(&t->log, "worker", "rank=%d", rank);
    atomic_store(&failpoint_rank, rank);
}

titan_status trainer_open_streams(struct trainer *t, uint32_t streams, struct titan_error *err)
{
    titan_assert(streams >> STREAM_COUNT == 0);
    for (int s = 0; s < STREAM_COUNT; s++)
        if ((streams >> s & 1) && !t->streams[s])
            TRY(t->device.ops->stream_open(t->device.dev, program_stream_name((enum stream_id)s), false, &t->streams[s],
                                           err));
    return TITAN_OK;
}

titan_status trainer_drain_streams(struct trainer *t, struct titan_error *err)
{
    const struct device_ops *ops = t->device.ops;
    titan_status status = TITAN_OK;

    for (int s = 0; s < STREAM_COUNT; s++) {
        if (!t->streams[s])
            continue;
        const bool failed = ops->stream_sync(t->streams[s], NULL) != TITAN_OK;
        ops->stream_clear(t->streams[s]); /* also clears a failure that would show only with the stream's next work */
        if (failed && status == TITAN_OK && ops->stream_sync(t->streams[s], err) == TITAN_EDEVICE)
            status = TITAN_EDEVICE;
    }
    return status;
}
