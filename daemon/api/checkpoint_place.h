/* SPDX-License-Identifier: Apache-2.0 */
/* checkpoint_place.h - the folder of checkpoints that a recipe names, as the coordinator sees it at submit. Where it
 * does not see it, the workers look (worker/checkpoint/folder.h). All of it may block. */
#ifndef TITAN_DAEMON_API_CHECKPOINT_PLACE_H
#define TITAN_DAEMON_API_CHECKPOINT_PLACE_H

#include "base/folder_owner.h"
#include "base/recipe.h"
#include "daemon/auth/identity.h"

/* By what right a submit names folders of checkpoints. */
struct place_rights {
    const struct auth_user *caller;
    struct folder_user user; /* of the job */
    uint64_t store;          /* store_id */
    /* Owner files from before users were in them name a job, which is looked up where the store is. */
    struct {
        uint64_t job;
        struct folder_user user; /* not known: there is no such job */
    } known[4];
    int n_known;
    uint64_t asks; /* the job to look up before place_admit is called again; 0: none */
};

/* Does the recipe name a folder of checkpoints outside of the job's own one? The own one is new, and empty. */
bool place_named(const struct recipe *r);
/* Give the recipe a new folder where its own is used: FOLDER-2, FOLDER-3, ..., the first that does not exist. */
titan_status place_fresh(struct recipe *r, struct titan_error *err) TITAN_MUST_USE;
/* May the job have the folder that it names, and begin from what it names? The recipe, resolved, then says its owner
 * and what was admitted (job.owner, checkpoint.folder_owner and .initial_load_owner), which its workers compare.
 * before: the recipe of the job that it resumes; NULL: none. TITAN_EPERM says nothing of the owner. */
titan_status place_admit(struct place_rights *p, struct recipe *r, const struct recipe *before,
                         struct titan_error *err) TITAN_MUST_USE;
/* folder: char[PATH_MAX], gets its absolute path. *ret_resumes: step of the checkpoint in it that the run goes on from;
 * 0: none. notes: lines about what that changes. held: TITAN_ECONFLICT where the recipe cannot have it, as it has
 * checkpoints of another recipe or, with empty set, any checkpoint, or not the one of checkpoint.load_step. local: a
 * folder that cannot be seen from here is not there. */
titan_status place_look(const struct recipe *r, bool empty, bool local, char *folder, uint64_t *ret_resumes,
                        struct buf *notes, struct titan_error *held, struct titan_error *err) TITAN_MUST_USE;
/* Does checkpoint.initial_load_path hold what the recipe says: a checkpoint, or Hugging Face weights? TITAN_EINVAL: no.
 * Where the key is empty there is nothing to check. */
titan_status place_check_beginning(const struct recipe *r, struct titan_error *err) TITAN_MUST_USE;

#endif
