/* SPDX-License-Identifier: Apache-2.0 */
/* home.h - a store knows the state directory it lives in: a copy of one is noticed before it does anything.
 *
 * What the store says of folders and checkpoints is said of that directory. A copy would start the same jobs again and
 * work in the folders of the first. */
#ifndef TITAN_STATE_HOME_H
#define TITAN_STATE_HOME_H

#include "state/db.h"

/* Inside a transaction: the store is that of dir, an absolute path without links. The same path, a directory that was
 * renamed, or a store that has no home yet (new, restored from a backup, of an older schema): it is now. Another one:
 * TITAN_ECONFLICT, unless adopt. */
titan_status home_claim(struct db *db, const char *dir, bool adopt, struct titan_error *err) TITAN_MUST_USE;
/* The next claim holds, wherever it is. */
titan_status home_forget(struct db *db, struct titan_error *err) TITAN_MUST_USE;

#endif
