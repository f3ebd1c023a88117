/* SPDX-License-Identifier: Apache-2.0 */
#include "ctl/signed_backup.h"

#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "ctl/state_dir.h"
#include "daemon/auth/signing_key.h"

titan_status signed_load(const struct args *args, const char *path, struct signed_backup *ret, struct titan_error *err)
{
    char beside[PATH_MAX], key[PATH_MAX];
    const char *given = args_text(args, "key", NULL);
    struct titan_error why = {0};
    *ret = (struct signed_backup){.path = path, .may_lack = args_has(args, "unsigned")};
    if (snprintf(beside, sizeof(beside), "%s" SIGNED_SUFFIX, path) >= (int)sizeof(beside))
        return titan_fail(err, TITAN_EINVAL, "'%s': path is too long", path);
    const titan_status status = file_read(beside, SIGNATURE_TEXT_MAX, &ret->text, &why);
    if (status != TITAN_OK && status != TITAN_ENOTFOUND) {
        if (err)
            *err = why;
        return status;
    }
    ret->has_key = (given || state_dir_path(args, SIGNING_KEY_FILE, key, &ret->no_key) == TITAN_OK) &&
                   signing_key_load(given ? given : key, &ret->key, &ret->no_key) == TITAN_OK;
    return TITAN_OK;
}

void signed_free(struct signed_backup *b)
{
    buf_free(&b->text);
    signature_key_wipe(&b->key);
}

/* Reports that the backup's origin is unknown, with --unsigned as a warning, otherwise as an error. */
static titan_status unproved(const struct signed_backup *b, const char *why, struct titan_error *err)
{
    if (b->may_lack) {
        (void)fprintf(stderr,
                      "titanctl: '%s': %s. Not known: whether a coordinator made it; whether owners of jobs, recipes, "
                      "tokens and revocations in it are what they were\n",
                      b->path, why);
        return TITAN_OK;
    }
    titan_fail(err, TITAN_EPERM, "'%s': %s", b->path, why);
    titan_error_hint(err, "%s--unsigned goes on without",
                     b->text.len ? "--key FILE names the coordinator's STATE/pki/backup.key; " : "");
    return TITAN_EPERM;
}

titan_status signed_check(const struct signed_backup *b, int fd, struct signature *ret, struct titan_error *err)
{
    struct signature is;
    struct titan_error why = {0};
    *ret = (struct signature){.at = ""};
    if (b->text.len == 0)
        return unproved(b, "it is not signed: there is no " SIGNED_SUFFIX " beside it", err);
    if (signature_read(b->text.data, b->text.len, ret, err) != TITAN_OK)
        return titan_error_wrap(err, "'%s" SIGNED_SUFFIX "'", b->path);
    TRY(signature_digest(fd, &is, err));
    if (is.size != ret->size || memcmp(is.digest, ret->digest, sizeof(is.digest)) != 0)
        return titan_fail(err, TITAN_ECORRUPT, "'%s' is not what was signed at %s: it was changed since", b->path,
                          ret->at);
    titan_status status = b->has_key ? signature_check(b->text.data, b->text.len, &b->key, &why) : TITAN_EPERM;
    if (status == TITAN_OK)
        return TITAN_OK;
    if (status == TITAN_EPERM) {
        char text[sizeof(why.msg) + 64];
        (void)snprintf(text, sizeof(text), "its signature proves nothing here: %.300s",
                       b->has_key ? why.msg : b->no_key.msg);
        ret->at[0] = '\0';
        return unproved(b, text, err);
    }
    if (err)
        *err = why;
    return titan_error_wrap(err, "'%s" SIGNED_SUFFIX "'", b->path);
}
