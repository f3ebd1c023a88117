/* SPDX-License-Identifier: Apache-2.0 */
/* checkpoint_place.h - the folder of checkpoints that a recipe names, as the coordinator sees it at submit. Where it
 * does not see it, the workers look (worker/checkpoint/folder.h). All of it may block. */
#ifndef TITAN_DAEMON_API_CHECKPOINT_PLACE_H
#define TITAN_DAEMON_API_CHECKPOINT_PLACE_H

#include "base/recipe.h"

/* Does it lie elsewhere than in the job's own folder, which is new? */
bool place_named(const struct recipe *r);
/* Where a run has had it: FOLDER-2, FOLDER-3, ..., the first that is not there. */
titan_status place_fresh(struct recipe *r, struct titan_error *err) TITAN_MUST_USE;
/* folder: char[PATH_MAX], its absolute path. *ret_resumes: step of its newest checkpoint, which the recipe goes on
 * from; 0: none. held: why it is not for this recipe (TITAN_ECONFLICT): it has another one's checkpoints, or, empty,
 * any. */
titan_status place_look(const struct recipe *r, bool empty, char *folder, uint64_t *ret_resumes,
                        struct titan_error *held, struct titan_error *err) TITAN_MUST_USE;
/* Is there, in checkpoint.initial_load_path, what the recipe says it begins with? TITAN_EINVAL: no. "": nothing to see
 * to. */
titan_status place_check_beginning(const struct recipe *r, struct titan_error *err) TITAN_MUST_USE;

#endif
