/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/auth/signing_key.h"

#include <openssl/crypto.h>
#include <stdio.h>

#include "base/cleanup.h"
#include "base/file.h"
#include "daemon/auth/certs.h"

static void wipe(struct buf *text)
{
    if (text->data)
        OPENSSL_cleanse(text->data, text->len);
    buf_free(text);
}

titan_status signing_key_load(const char *path, struct signature_key *ret, struct titan_error *err)
{
    _cleanup_(wipe) struct buf text = BUF_INIT;
    TRY(certs_read_secret(path, PKI_PEM_MAX, &text, err));
    if (signature_key_read(text.data ? text.data : "", text.len, ret, err) != TITAN_OK)
        return titan_error_wrap(err, "'%s'", path);
    return TITAN_OK;
}

titan_status signing_key_open(const char *state_dir, struct signature_key *ret, bool *ret_made, struct titan_error *err)
{
    char path[PATH_MAX], dir[PATH_MAX];
    struct titan_error why = {0};
    _cleanup_(wipe) struct buf text = BUF_INIT;
    if (snprintf(path, sizeof(path), "%s" SIGNING_KEY_FILE, state_dir) >= (int)sizeof(path))
        return titan_fail(err, TITAN_EINVAL, "'%s': path is too long", state_dir);
    *ret_made = false;
    const titan_status status = signing_key_load(path, ret, &why);
    if (status != TITAN_ENOTFOUND) {
        if (status != TITAN_OK && err)
            *err = why;
        return status;
    }
    file_parent(path, dir);
    TRY(certs_dir(dir, err));
    TRY(signature_key_make(&text, err));
    TRY(certs_write(path, &text, true, err));
    *ret_made = true;
    return signing_key_load(path, ret, err);
}
