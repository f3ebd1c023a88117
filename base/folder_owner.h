/* SPDX-License-Identifier: Apache-2.0 */
/* folder_owner.h - titan-owner.json in a folder of checkpoints: which run wrote what is there, and with which recipe.
 */
#ifndef TITAN_BASE_FOLDER_OWNER_H
#define TITAN_BASE_FOLDER_OWNER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"

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
/* The newest checkpoint by the names in the folder, where they were written with this recipe; 0: there is none. */
uint64_t folder_newest_step(const char *path, uint64_t recipe_hash);

#endif
