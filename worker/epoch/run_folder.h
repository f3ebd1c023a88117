/* SPDX-License-Identifier: Apache-2.0 */
/* run_folder.h - the run's checkpoint folder, locked by this process while it lives (checkpoint/folder.h). */
#ifndef TITAN_WORKER_EPOCH_RUN_FOLDER_H
#define TITAN_WORKER_EPOCH_RUN_FOLDER_H

#include "worker/checkpoint/folder.h"

struct trainer;
struct epoch;

/* Written by run_folder.c only. */
struct run_folder {
    char path[PATH_MAX];
    struct folder held;
    struct titan_error fault; /* why the folder was not taken; TITAN_OK: it was taken, or is not wanted */
};

void run_folder_init(struct run_folder *f);
/* Takes the folder if the recipe has checkpoints. A folder that cannot be taken is no failure here: run_folder_judge
 * decides what it means for the epoch. */
titan_status run_folder_take(struct trainer *t, struct titan_error *err) TITAN_MUST_USE;
/* For a commanded checkpoint of a recipe without checkpoints: takes the folder now, unless it is held. TITAN_EREVOKED:
 * the epoch is over. */
titan_status run_folder_take_late(struct trainer *t, struct titan_error *err) TITAN_MUST_USE;
void run_folder_leave(struct trainer *t);
/* Fails if this epoch must not go on without the folder. filled: the epoch's state is there, and its source is
 * known. */
titan_status run_folder_judge(struct epoch *e, bool filled, struct titan_error *err) TITAN_MUST_USE;
/* Milliseconds without progress after which the file system counts as stalled; 0 = never. */
int run_folder_stall_ms(const struct recipe *r);

#endif
