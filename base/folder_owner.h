/* SPDX-License-Identifier: Apache-2.0 */
/* folder_owner.h - a folder of checkpoints: what a checkpoint's own folder is called, and titan-owner.json, which says
 * which run wrote what is there, and with which recipe. */
#ifndef TITAN_BASE_FOLDER_OWNER_H
#define TITAN_BASE_FOLDER_OWNER_H

#include <inttypes.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"

#define CHECKPOINT_NAME "step-%08" PRIu64 /* its step */
#define FOLDER_OWNER_NAME "titan-owner.json"
#define FOLDER_OWNER_FORMAT "titan-owner"

struct folder_found {
    bool there;
    char id[128], name[128];
    uint64_t recipe_hash;
    char *recipe;
};

/* at: the folder. One without such a file is no failure. */
titan_status folder_owner_read(int at, struct folder_found *ret, struct titan_error *err) TITAN_MUST_USE;
void folder_found_clear(struct folder_found *f);
/* The newest checkpoint by the names in the folder, whatever wrote it. *ret_any false: there is none. TITAN_ENOTFOUND:
 * no such folder. */
titan_status folder_newest_step(const char *path, uint64_t *ret, bool *ret_any, struct titan_error *err) TITAN_MUST_USE;
/* The same of those that a run of so many steps goes on from: with the optimizer's state, or at its last step. */
titan_status folder_newest_state(const char *path, uint64_t steps, uint64_t *ret, bool *ret_any,
                                 struct titan_error *err) TITAN_MUST_USE;
/* The owner's file of a folder that is named by its path. */
titan_status folder_owner_of(const char *path, struct folder_found *ret, struct titan_error *err) TITAN_MUST_USE;

#endif
