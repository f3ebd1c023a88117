/* SPDX-License-Identifier: Apache-2.0 */
/* folder_owner.h - a folder of checkpoints: what a checkpoint's own folder is called, and titan-owner.json, which names
 * the user, the run that wrote what is there, and its recipe. */
#ifndef TITAN_BASE_FOLDER_OWNER_H
#define TITAN_BASE_FOLDER_OWNER_H

#include <inttypes.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"

#define CHECKPOINT_NAME "step-%08" PRIu64 /* its step */
#define FOLDER_OWNER_NAME "titan-owner.json"
#define FOLDER_OWNER_FORMAT "titan-owner"

/* A user as the coordinator knows it. */
#define FOLDER_NAME_MAX 255
struct folder_user {
    char name[FOLDER_NAME_MAX + 1]; /* "": not known */
    int64_t uid;                    /* -1: none */
};
#define FOLDER_USER_TEXT (FOLDER_NAME_MAX + 32)
/* "uid:1001 alice", "user:ci"; "" of a user that is not known. */
void folder_user_print(const struct folder_user *u, char ret[FOLDER_USER_TEXT]);
/* False, and a user that is not known: the text is none of these. */
bool folder_user_parse(const char *text, struct folder_user *ret);
/* Both have a uid and it is equal, else the names are. A user that is not known is the same as no other. */
bool folder_user_same(const struct folder_user *a, const struct folder_user *b);

#define FOLDER_SHARED_MAX 1023
struct folder_found {
    bool there;
    char id[128], name[128];
    struct folder_user user;                 /* not known: the file is from before users were in it */
    char shared_with[FOLDER_SHARED_MAX + 1]; /* checkpoint.shared_with */
    uint64_t recipe_hash;
    char *recipe;
};
/* The user of the file, or "run:ID" where it names none; "" without a file. */
void folder_found_print(const struct folder_found *f, char ret[FOLDER_USER_TEXT]);
/* May a run of this user begin from what is there? seen: what folder_found_print gave when the coordinator admitted it;
 * "*": all is admitted. */
bool folder_admits(const struct folder_found *f, const struct folder_user *u, const char *seen);

/* at: the folder. One without such a file is no failure. */
titan_status folder_owner_read(int at, struct folder_found *ret, struct titan_error *err) TITAN_MUST_USE;
void folder_found_clear(struct folder_found *f);
/* The newest checkpoint of the folder on the line of its run (checkpoint_line.h). *ret_any false: there is none.
 * TITAN_ENOTFOUND: no such folder. */
titan_status folder_newest_step(const char *path, uint64_t *ret, bool *ret_any, struct titan_error *err) TITAN_MUST_USE;
/* The same of those that a run of so many steps goes on from: with the optimizer's state, or at its last step. */
titan_status folder_newest_state(const char *path, uint64_t steps, uint64_t *ret, bool *ret_any,
                                 struct titan_error *err) TITAN_MUST_USE;
/* How often the runs in it have gone back to an earlier step. */
titan_status folder_branches(const char *path, uint64_t *ret, struct titan_error *err) TITAN_MUST_USE;
/* Is there a checkpoint of that step, by its name? */
bool folder_has_step(const char *path, uint64_t step);
/* The owner's file of a folder that is named by its path. */
titan_status folder_owner_of(const char *path, struct folder_found *ret, struct titan_error *err) TITAN_MUST_USE;
/* The owner's file that governs an absolute path, there or not: of the folder itself, or of the folder that a
 * checkpoint, or what lies in one, belongs to. */
titan_status folder_owner_above(const char *path, struct folder_found *ret, struct titan_error *err) TITAN_MUST_USE;

#endif
