/* SPDX-License-Identifier: Apache-2.0 */
/* home.h - binds a store to its state directory, so that a copied store is detected before it acts.
 *
 * The store's folders and checkpoints belong to that directory. A copy would start the same jobs again and write into
 * the folders of the original. */
#ifndef TITAN_STATE_HOME_H
#define TITAN_STATE_HOME_H

#include "state/db.h"

/* Call inside a transaction. Binds the store to dir, an absolute path without links. Accepted: the same path, a renamed
 * directory, or a store without a home (new, restored from a backup, of an older schema). Another directory:
 * TITAN_ECONFLICT, unless adopt is set. */
titan_status home_claim(struct db *db, const char *dir, bool adopt, struct titan_error *err) TITAN_MUST_USE;
/* Forgets the home: the next claim succeeds in any directory. */
titan_status home_forget(struct db *db, struct titan_error *err) TITAN_MUST_USE;

#endif
