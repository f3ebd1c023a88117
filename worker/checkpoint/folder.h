/* SPDX-License-Identifier: Apache-2.0 */
/* folder.h - the folder of a run's checkpoints: its owner, and its lock for one run at a time.
 *
 *   titan-owner.json   the user, the run that wrote the content, its recipe, and the users it is shared with
 *   titan-lock         flock(2): shared by the processes of the run that uses the folder now
 *
 * Another user's folder is refused without details. A run of the same user and recipe (recipe_hash) resumes from the
 * content. Another recipe's checkpoints are refused; the error names the keys that differ. A folder in use is refused;
 * the error names the other run. The newest checkpoint stands in for a missing owner file. */
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

/* A run. All processes of a run have equal data here. */
struct folder_owner {
    char id[128];   /* unique to the run */
    char name[128]; /* for messages: "job 5" */
    struct folder_user user;
    const struct recipe *recipe;
    const char *text; /* resolved recipe */
    uint64_t recipe_hash;
    int wait_ms; /* how long an earlier run may take to release the folder */
};

/* A run's hold on its folder. */
struct folder {
    int at; /* open folder, independent of its name; -1 = not taken */
    dev_t device;
    ino_t inode;
    int lock; /* -1 = none; its close releases the lock */
};
#define FOLDER_NONE ((struct folder){.at = -1, .lock = -1})

/* Calls checkpoint_list_folder() on its own thread (apart.h). */
titan_status folder_list(const char *path, const struct apart_limit *limit, struct checkpoint_line_list *ret,
                         struct titan_error *err) TITAN_MUST_USE;
/* Same as folder_list(), for a path that may itself be a checkpoint; *ret then has no steps. place: char[PATH_MAX], the
 * resolved path. */
titan_status folder_find(const char *path, const struct apart_limit *limit, char *ret_place,
                         struct checkpoint_line_list *ret, struct titan_error *err) TITAN_MUST_USE;
/* Calls checkpoint_check() on its own thread. */
titan_status folder_look(const char *path, uint64_t step, const struct apart_limit *limit,
                         struct titan_error *err) TITAN_MUST_USE;
/* Makes the folder, tests that it can be written, and takes it. TITAN_ECONFLICT: another run uses the folder, or the
 * folder holds checkpoints of another user or recipe. Any other failure names the folder and the fault.
 * TITAN_ETIMEDOUT: the file system did not answer; log and owner->recipe must then live as long as the process. */
titan_status folder_take(const char *path, const struct folder_owner *owner, const struct apart_limit *limit,
                         const struct log *log, struct folder *ret, struct titan_error *err) TITAN_MUST_USE;
void folder_leave(struct folder *f);

#endif
