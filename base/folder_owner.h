/* SPDX-License-Identifier: Apache-2.0 */
/* folder_owner.h - a folder of checkpoints: the names of its checkpoints, and titan-owner.json, which names the user,
 * the run that wrote the folder, and its recipe. */
#ifndef TITAN_BASE_FOLDER_OWNER_H
#define TITAN_BASE_FOLDER_OWNER_H

#include <inttypes.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"

#define CHECKPOINT_NAME "step-%08" PRIu64 /* the step */
#define FOLDER_OWNER_NAME "titan-owner.json"
#define FOLDER_OWNER_FORMAT "titan-owner"

/* A user as the coordinator identifies users. */
#define FOLDER_NAME_MAX 255
struct folder_user {
    char name[FOLDER_NAME_MAX + 1]; /* "": unknown */
    int64_t uid;                    /* -1: none */
};
#define FOLDER_USER_TEXT (FOLDER_NAME_MAX + 32)
/* "uid:1001 alice", "user:ci"; "" for an unknown user. */
void folder_user_print(const struct folder_user *u, char ret[FOLDER_USER_TEXT]);
/* False: the text has another form, and *ret is an unknown user. */
bool folder_user_parse(const char *text, struct folder_user *ret);
/* True if both have a uid and the uids are equal, or otherwise if the names are equal. An unknown user equals no other
 * user. */
bool folder_user_same(const struct folder_user *a, const struct folder_user *b);

#define FOLDER_SHARED_MAX 1023
struct folder_found {
    bool there;
    char id[128], name[128];
    struct folder_user user;                 /* unknown: a file of an older version names no user */
    char shared_with[FOLDER_SHARED_MAX + 1]; /* checkpoint.shared_with */
    uint64_t recipe_hash;
    char *recipe;
};
/* The user in the file, or "run:ID" when the file names none; "" without a file. */
void folder_found_print(const struct folder_found *f, char ret[FOLDER_USER_TEXT]);
/* May a run of this user begin from the folder? seen: the text of folder_found_print() when the coordinator admitted
 * the run; "*": every folder is admitted. */
bool folder_admits(const struct folder_found *f, const struct folder_user *u, const char *seen);

/* at: the folder. A missing file is no error. */
titan_status folder_owner_read(int at, struct folder_found *ret, struct titan_error *err) TITAN_MUST_USE;
void folder_found_clear(struct folder_found *f);
/* The newest checkpoint of the folder on the line of its run (checkpoint_line.h). *ret_any false: the folder has no
 * checkpoint. TITAN_ENOTFOUND: the folder does not exist. */
titan_status folder_newest_step(const char *path, uint64_t *ret, bool *ret_any, struct titan_error *err) TITAN_MUST_USE;
/* folder_newest_step() among the checkpoints from which a run of this many steps can continue. Such a checkpoint has
 * optimizer state, or is of the run's last step. */
titan_status folder_newest_state(const char *path, uint64_t steps, uint64_t *ret, bool *ret_any,
                                 struct titan_error *err) TITAN_MUST_USE;
/* How often runs in the folder have returned to an earlier step. */
titan_status folder_branches(const char *path, uint64_t *ret, struct titan_error *err) TITAN_MUST_USE;
/* Does the folder have a checkpoint named for this step? */
bool folder_has_step(const char *path, uint64_t step);
/* Reads the owner file of the folder at path. */
titan_status folder_owner_of(const char *path, struct folder_found *ret, struct titan_error *err) TITAN_MUST_USE;
/* Reads the owner file that governs an absolute path; the path need not exist. The file is in the folder itself, or in
 * the folder that contains the checkpoint at or above the path. */
titan_status folder_owner_above(const char *path, struct folder_found *ret, struct titan_error *err) TITAN_MUST_USE;

#endif
