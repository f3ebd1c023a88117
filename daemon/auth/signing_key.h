/* SPDX-License-Identifier: Apache-2.0 */
/* signing_key.h - the file of the key that signs backups: STATE/pki/backup.key, beside the CA's. */
#ifndef TITAN_DAEMON_AUTH_SIGNING_KEY_H
#define TITAN_DAEMON_AUTH_SIGNING_KEY_H

#include "state/signature.h"

#define SIGNING_KEY_FILE "/pki/backup.key" /* below the state directory */

/* TITAN_ENOTFOUND: the file does not exist; TITAN_EPERM: others than the owner may read it. */
titan_status signing_key_load(const char *path, struct signature_key *ret, struct titan_error *err) TITAN_MUST_USE;
/* Loads the state directory's key, or makes it with mode 0600. *ret_made: it was made. */
titan_status signing_key_open(const char *state_dir, struct signature_key *ret, bool *ret_made,
                              struct titan_error *err) TITAN_MUST_USE;

#endif
