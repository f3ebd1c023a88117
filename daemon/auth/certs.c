/* SPDX-License-Identifier: Apache-2.0 */
/* certs.c - see certs.h. */
#include "daemon/auth/certs.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/file.h"

titan_status certs_in(const char *dir, struct rpc_tls *ret, struct titan_error *err)
{
    if (snprintf(ret->ca, sizeof(ret->ca), "%s/ca.pem", dir) >= (int)sizeof(ret->ca) ||
        snprintf(ret->certificate, sizeof(ret->certificate), "%s/cert.pem", dir) >= (int)sizeof(ret->certificate) ||
        snprintf(ret->key, sizeof(ret->key), "%s/key.pem", dir) >= (int)sizeof(ret->key))
        return titan_fail(err, TITAN_EINVAL, "'%.64s...': path is too long", dir);
    return TITAN_OK;
}

bool certs_there(const struct rpc_tls *files)
{
    return files->certificate[0] && access(files->certificate, F_OK) == 0;
}

/* --- reading ------------------------------------------------------------------------------------------------------ */

titan_status certs_read_secret(const char *path, size_t max, struct buf *out, struct titan_error *err)
{
    struct stat st;
    if (stat(path, &st) == 0 && (st.st_mode & (S_IRWXG | S_IRWXO)) != 0) {
        titan_fail(err, TITAN_EPERM, "'%s' is a secret, but others than its owner have rights to it (mode %03o)", path,
                   (unsigned)st.st_mode & 0777);
        titan_error_hint(err, "chmod 600 '%.120s'", path);
        return TITAN_EPERM;
    }
    return file_read(path, max, out, err);
}

titan_status certs_load(const struct rpc_tls *files, struct certs *ret, struct titan_error *err)
{
    *ret = (struct certs){BUF_INIT, BUF_INIT, BUF_INIT};
    titan_status status = file_read(files->ca, PKI_PEM_MAX, &ret->ca, err);
    if (status == TITAN_OK)
        status = file_read(files->certificate, PKI_PEM_MAX, &ret->certificate, err);
    if (status == TITAN_OK)
        status = certs_read_secret(files->key, PKI_PEM_MAX, &ret->key, err);
    if (status != TITAN_OK)
        certs_free(ret);
    return status;
}

void certs_free(struct certs *c)
{
    buf_free(&c->ca);
    buf_free(&c->certificate);
    buf_free(&c->key);
}

titan_status certs_check(const struct rpc_tls *files, int64_t now_ms, struct pki_certificate *ret,
                         struct titan_error *err)
{
    _cleanup_(certs_free) struct certs c;
    TRY(certs_load(files, &c, err));
    if (pki_read(c.certificate.data, c.certificate.len, ret, err) != TITAN_OK ||
        pki_check(&c.ca, &c.certificate, &c.key, now_ms, err) != TITAN_OK)
        return titan_error_wrap(err, "'%s'", files->certificate);
    return TITAN_OK;
}

titan_status authority_load(const char *dir, struct authority *ret, struct titan_error *err)
{
    char certificate[PATH_MAX], key[PATH_MAX];
    *ret = (struct authority){BUF_INIT, BUF_INIT};
    if (snprintf(certificate, sizeof(certificate), "%s/ca.pem", dir) >= (int)sizeof(certificate) ||
        snprintf(key, sizeof(key), "%s/ca.key", dir) >= (int)sizeof(key))
        return titan_fail(err, TITAN_EINVAL, "'%.64s...': path is too long", dir);
    titan_status status = file_read(certificate, PKI_PEM_MAX, &ret->certificate, err);
    if (status == TITAN_OK)
        status = certs_read_secret(key, PKI_PEM_MAX, &ret->key, err);
    if (status != TITAN_OK)
        authority_free(ret);
    return status;
}

/* Reads a credential. The unit puts a word in place of a missing file. */
static titan_status read_credential(const char *dir, const char *name, struct buf *out, struct titan_error *err)
{
    static const char begin[] = "-----BEGIN ";
    char path[PATH_MAX];
    if (snprintf(path, sizeof(path), "%s/%s", dir, name) >= (int)sizeof(path))
        return titan_fail(err, TITAN_EINVAL, "'%.64s...': path is too long", dir);
    TRY(file_read(path, PKI_PEM_MAX, out, err));
    if (!out->data || strncmp(out->data, begin, strlen(begin)) != 0)
        return titan_fail(err, TITAN_ENOTFOUND, "'%s' is no PEM", path);
    return TITAN_OK;
}

titan_status authority_load_credentials(struct authority *ret, struct titan_error *err)
{
    const char *dir = getenv("CREDENTIALS_DIRECTORY");
    *ret = (struct authority){BUF_INIT, BUF_INIT};
    if (!dir || !*dir)
        return titan_fail(err, TITAN_ENOTFOUND, "this is no service with credentials");
    titan_status status = read_credential(dir, "ca.pem", &ret->certificate, err);
    if (status == TITAN_OK)
        status = read_credential(dir, "ca.key", &ret->key, err);
    if (status != TITAN_OK)
        authority_free(ret);
    return status;
}

void authority_free(struct authority *a)
{
    buf_free(&a->certificate);
    buf_free(&a->key);
}

/* --- writing ------------------------------------------------------------------------------------------------------ */

/* Gives a file made by root to the daemon's user: the owner of the file's folder. */
static void give_away(int fd, const char *parent)
{
    struct stat st;
    if (geteuid() == 0 && stat(parent, &st) == 0)
        (void)!fchown(fd, st.st_uid, st.st_gid);
}

titan_status certs_write(const char *path, const struct buf *text, bool secret, struct titan_error *err)
{
    titan_assert(text->len > 0 && !buf_failed(text));
    char temporary[PATH_MAX], parent[PATH_MAX];
    if (snprintf(temporary, sizeof(temporary), "%s.XXXXXX", path) >= (int)sizeof(temporary))
        return titan_fail(err, TITAN_EINVAL, "path is too long: '%s'", path);
    file_parent(path, parent);
    _cleanup_fd_ int fd = mkostemp(temporary, O_CLOEXEC); /* mkostemp: mode 0600 */
    if (fd < 0)
        return titan_fail_errno(err, "cannot create '%s'", temporary);
    give_away(fd, parent);
    if ((!secret && fchmod(fd, 0644) != 0) || file_write_all(fd, text->data, text->len) != TITAN_OK || fsync(fd) != 0 ||
        rename(temporary, path) != 0) {
        titan_status status = titan_fail_errno(err, "cannot write '%s'", path);
        (void)unlink(temporary);
        return status;
    }
    return dir_sync(parent, err);
}

titan_status certs_dir(const char *path, struct titan_error *err)
{
    char parent[PATH_MAX];
    struct stat st;
    if (stat(path, &st) == 0 && S_ISDIR(st.st_mode))
        return TITAN_OK;
    file_parent(path, parent);
    TRY(dir_make(parent, err));
    if (mkdir(path, 0700) != 0)
        return titan_fail_errno(err, "cannot make folder '%s'", path);
    _cleanup_fd_ int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd >= 0)
        give_away(fd, parent);
    return TITAN_OK;
}
