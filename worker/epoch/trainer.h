/* SPDX-License-Identifier: Apache-2.0 */
/* trainer.h - the data that lives as long as the process: recipe, device, data, model, and the state kept between
 * epochs. */
#ifndef TITAN_WORKER_EPOCH_TRAINER_H
#define TITAN_WORKER_EPOCH_TRAINER_H

#include <stdio.h>

#include "base/log.h"
#include "base/recipe.h"
#include "worker/checkpoint/identity.h"
#include "worker/data/dataset.h"
#include "worker/device/device.h"
#include "worker/elastic/membership.h"
#include "worker/epoch/evaluation.h"
#include "worker/epoch/publish.h"
#include "worker/epoch/recover.h"
#include "worker/epoch/run_folder.h"
#include "worker/plan/ahead.h"

struct trainer {
    const struct recipe *recipe;
    struct membership *members;
    struct log log;
    struct device_handle device;
    struct stream *streams[STREAM_COUNT]; /* opened when a program first uses them */
    struct model *model;
    struct dataset *data;
    FILE *samples; /* log of the samples that this worker read; NULL: metrics.log_samples is off */
    struct plan_ahead *ahead;
    enum dtype dt;
    struct buf recipe_text;
    uint64_t recipe_hash;
    bool without_windows; /* windows were refused; epoch.c only */

    struct run_identity identity; /* what the run of this state has read; written by recover.c only */

    struct evaluator evaluator; /* written by evaluation.c only */
    struct run_folder folder;   /* written by run_folder.c only */
    struct held_state held;     /* recover.c only */
    struct publisher publisher; /* publish.c and tensorboard.c only */
};

/* *ret must be zeroed; trainer_close frees all, also after a failure. recipe and members are borrowed. threads,
 * device_index: see train.h. */
titan_status trainer_open(const struct recipe *recipe, struct membership *members, int threads, int device_index,
                          struct trainer *ret, struct titan_error *err) TITAN_MUST_USE;
void trainer_close(struct trainer *t);
/* Plan options for this device and recipe, for plan_ahead. world is not set. */
struct plan_options trainer_plan_options(const struct trainer *t);
/* This thread's log lines name the rank from now on. */
void trainer_name_rank(struct trainer *t, int rank);
/* Opens the streams (bits by enum stream_id) that are not open yet. */
titan_status trainer_open_streams(struct trainer *t, uint32_t streams, struct titan_error *err) TITAN_MUST_USE;
/* Waits for all streams, also after a failure. Afterwards nothing runs, and no stream has failed. TITAN_EDEVICE: after
 * the failure this process cannot use the device any more, and it has no other device. */
titan_status trainer_drain_streams(struct trainer *t, struct titan_error *err) TITAN_MUST_USE;

#endif
