/* SPDX-License-Identifier: Apache-2.0 */
/* folder.h - the folder of a run's checkpoints: its owner, and that one run at a time uses it.
 *
 *   titan-owner.json   the user, the run that wrote what is there, its recipe, and the users it is shared with
 *   titan-lock         flock(2): shared by the processes of the run that uses the folder now
 *
 * Another user's folder is refused, and nothing of it is told. A run of the same user and recipe (recipe_hash) goes on
 * from what is there. Another recipe's checkpoints are refused with the keys that differ, a folder that another run is
 * using by the name of that run. A folder without an owner file is judged by its newest checkpoint. */
#ifndef TITAN_WORKER_CHECKPOINT_FOLDER_H
#define TITAN_WORKER_CHECKPOINT_FOLDER_H

#include <limits.h>
#include <sys/types.h>

#include "base/checkpoint_line.h"
#include "base/folder_owner.h"
#include "base/log.h"
#include "base/recipe.h"
#include "worker/checkpoint/apart.h"

#define FOLDER_LOCK_NAME "titan-lock"

/* A run, alike in all its processes. */
struct folder_owner {
    char id[128];   /* no other run has it */
    char name[128]; /* for messages: "job 5" */
    struct folder_user user;
    const struct recipe *recipe;
    const char *text; /* of the recipe, resolved */
    uint64_t recipe_hash;
};

/* What a run holds of its folder. */
struct folder {
    int at; /* the folder itself, whatever has its name by now; -1: not taken */
    dev_t device;
    ino_t inode;
    int lock; /* -1: none; closing it lets go */
};
#define FOLDER_NONE ((struct folder){.at = -1, .lock = -1})

/* checkpoint_list_folder, on a thread of its own (apart.h). */
titan_status folder_list(const char *path, int still_ms, const atomic_int *stop, struct checkpoint_line_list *ret,
                         struct titan_error *err) TITAN_MUST_USE;
/* The same of a path that may be a checkpoint itself, without steps then. place: char[PATH_MAX], where it leads. */
titan_status folder_find(const char *path, int still_ms, const atomic_int *stop, char *ret_place,
                         struct checkpoint_line_list *ret, struct titan_error *err) TITAN_MUST_USE;
/* checkpoint_check, on a thread of its own. */
titan_status folder_look(const char *path, uint64_t step, int still_ms, const atomic_int *stop,
                         struct titan_error *err) TITAN_MUST_USE;
/* Make the folder, try whether it can be written, and take it. TITAN_ECONFLICT: another run uses it, or it holds
 * checkpoints of another user or recipe. Any other failure names the folder and what is wrong with it. wait_ms: how
 * long an earlier run may take to let go. TITAN_ETIMEDOUT: the file system has not answered for still_ms (0: it is
 * waited for); log and owner->recipe must then stay for as long as the process. TITAN_EREVOKED: *stop is not zero any
 * more (NULL: never). */
titan_status folder_take(const char *path, const struct folder_owner *owner, int wait_ms, int still_ms,
                         const atomic_int *stop, const struct log *log, struct folder *ret,
                         struct titan_error *err) TITAN_MUST_USE;
void folder_leave(struct folder *f);

#endif
