/* SPDX-License-Identifier: Apache-2.0 */
/* signed_backup.h - checks by signature file and key whether a backup is a coordinator's unchanged copy. */
#ifndef TITAN_CTL_SIGNED_BACKUP_H
#define TITAN_CTL_SIGNED_BACKUP_H

#include "base/options.h"
#include "state/signature.h"

#define SIGNED_SUFFIX ".sig"

/* What a check needs besides the backup. A process loads it before dropping its rights. */
struct signed_backup {
    const char *path; /* borrowed: path of the backup */
    bool may_lack;    /* --unsigned: a missing signature or key is only a warning */
    struct buf text;  /* the signature; empty = none */
    bool has_key;
    struct signature_key key;
    struct titan_error no_key; /* why there is no key */
};

/* Loads the signature and the key: --key, else the key in the coordinator's state directory (state_dir.h). TITAN_OK
 * even if either is missing. */
titan_status signed_load(const struct args *args, const char *path, struct signed_backup *ret,
                         struct titan_error *err) TITAN_MUST_USE;
void signed_free(struct signed_backup *b);
/* Was the open file, from its current position, signed with the key? TITAN_ECORRUPT: the file was changed; a missing
 * key does not matter. TITAN_EPERM: unknown, because the signature or the key is missing. With --unsigned the status is
 * TITAN_OK instead, and ret->at is "". */
titan_status signed_check(const struct signed_backup *b, int fd, struct signature *ret,
                          struct titan_error *err) TITAN_MUST_USE;

#endif
