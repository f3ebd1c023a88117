/* SPDX-License-Identifier: Apache-2.0 */
/* signed_backup.h - a backup, the signature beside it, and the key that proves it: is the backup what a coordinator
 * made? */
#ifndef TITAN_CTL_SIGNED_BACKUP_H
#define TITAN_CTL_SIGNED_BACKUP_H

#include "base/options.h"
#include "state/signature.h"

#define SIGNED_SUFFIX ".sig"

/* What is read before a process gives up its rights. */
struct signed_backup {
    const char *path; /* borrowed: the backup's */
    bool may_lack;    /* --unsigned: what is not known is a warning */
    struct buf text;  /* of the signature; empty = there is none */
    bool has_key;
    struct signature_key key;
    struct titan_error no_key; /* why there is none */
};

/* The signature and the key: --key, else that of the coordinator's state directory (state_dir.h). TITAN_OK also where
 * one of them is missing. */
titan_status signed_load(const struct args *args, const char *path, struct signed_backup *ret,
                         struct titan_error *err) TITAN_MUST_USE;
void signed_free(struct signed_backup *b);
/* Is the open file, read from where it stands, what was signed with the key? TITAN_ECORRUPT: it was changed, whatever
 * may be missing; TITAN_EPERM: that is not known, for want of the signature or of the key. ret->at is "" for TITAN_OK
 * without that. */
titan_status signed_check(const struct signed_backup *b, int fd, struct signature *ret,
                          struct titan_error *err) TITAN_MUST_USE;

#endif
