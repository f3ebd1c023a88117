/* SPDX-License-Identifier: Apache-2.0 */
/* pair.c - see pair.h and tls.h. */
#include "proto/rpc/pair.h"

#include <fcntl.h>
#include <openssl/err.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/cleanup.h"
#include "base/file.h"
#include "base/log.h"

enum { CA, CERTIFICATE, KEY, FILES };
#define PEM_MAX (1 << 20)

/* Identifies a version of a file. No padding: stamps are compared as bytes. */
struct stamp {
    int64_t changed_s, changed_ns, inode, size;
};

struct rpc_pair {
    struct rpc_tls files;
    struct log log;
    struct stamp seen[FILES];              /* stamps of the files last loaded or rejected */
    SSL_CTX *context;                      /* if it can be made, the files fit each other */
    grpc_channel_credentials *credentials; /* for a client */
};

static const char *path_of(const struct rpc_tls *tls, int file)
{
    titan_assert(file >= 0 && file < FILES);
    return file == CA ? tls->ca : file == CERTIFICATE ? tls->certificate : tls->key;
}

static int no_password(char *text, int size, int writing, void *data)
{
    (void)text;
    (void)size;
    (void)writing;
    (void)data;
    return -1; /* never prompt on the terminal */
}

/* Names of protocols in the handshake (RFC 7301), each behind its length. */
static const char *const protocols[] = {
    [RPC_HTTP_2] = "\x02h2", [RPC_HTTP_1_1] = "\x08http/1.1", [RPC_TUNNEL] = "\x0ctitan-tunnel"};

static int choose_protocol(SSL *ssl, const unsigned char **out, unsigned char *out_len, const unsigned char *in,
                           unsigned in_len, void *data)
{
    const char *own = SSL_get_app_data(ssl);
    (void)data;
    unsigned char *chosen;
    if (SSL_select_next_proto(&chosen, out_len, (const unsigned char *)own, (unsigned)strlen(own), in, in_len) !=
        OPENSSL_NPN_NEGOTIATED)
        return SSL_TLSEXT_ERR_ALERT_FATAL;
    *out = chosen;
    return SSL_TLSEXT_ERR_OK;
}

/* Makes a context for both sides of TLS from the files, which must fit each other. */
static titan_status context_make(const struct rpc_tls *tls, SSL_CTX **ret, struct titan_error *err)
{
    SSL_CTX *context = SSL_CTX_new(TLS_method());
    STACK_OF(X509_NAME) *authorities = context ? SSL_load_client_CA_file(tls->ca) : NULL;
    titan_status status = TITAN_OK;
    if (context) {
        SSL_CTX_set_default_passwd_cb(context, no_password);
        SSL_CTX_set_client_CA_list(context, authorities);
    }
    if (!context || SSL_CTX_set_min_proto_version(context, TLS1_2_VERSION) != 1 ||
        SSL_CTX_set_cipher_list(context, "ECDHE+AESGCM:ECDHE+CHACHA20") != 1 ||
        SSL_CTX_set_num_tickets(context, 0) != 1)
        status = titan_fail(err, TITAN_ENOMEM, "tls: no memory");
    else if (!authorities || SSL_CTX_load_verify_file(context, tls->ca) != 1)
        status = titan_fail(err, TITAN_EINVAL, "tls: no certificate of an authority in '%s'", tls->ca);
    else if (tls->key[0] && SSL_CTX_use_PrivateKey_file(context, tls->key, SSL_FILETYPE_PEM) != 1)
        status = titan_fail(err, TITAN_EINVAL, "tls: no private key without a password in '%s'", tls->key);
    else if (tls->key[0] && SSL_CTX_use_certificate_chain_file(context, tls->certificate) != 1)
        status = titan_fail(err, TITAN_EINVAL, "tls: no certificate in '%s'", tls->certificate);
    else if (tls->key[0] && SSL_CTX_check_private_key(context) != 1) /* OpenSSL drops a key that does not fit */
        status = titan_fail(err, TITAN_EINVAL, "tls: the key in '%s' is not that of the certificate in '%s'", tls->key,
                            tls->certificate);
    ERR_clear_error();
    if (status != TITAN_OK) {
        SSL_CTX_free(context);
        return status;
    }
    (void)SSL_CTX_set_options(context, SSL_OP_NO_TICKET | SSL_OP_NO_RENEGOTIATION | SSL_OP_CIPHER_SERVER_PREFERENCE);
    SSL_CTX_set_read_ahead(context, 0); /* the proxy waits for bytes in the socket itself */
    (void)SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
    (void)SSL_CTX_set_mode(context, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER |
                                        SSL_MODE_RELEASE_BUFFERS);
    SSL_CTX_set_alpn_select_cb(context, choose_protocol, NULL);
    *ret = context;
    return TITAN_OK;
}

/* The text ends with a NUL. */
static titan_status file_take(const char *path, bool secret, struct buf *out, struct titan_error *err)
{
    _cleanup_fd_ int fd = -1;
    struct stat st;
    TRY(file_open_regular(AT_FDCWD, path, 0, &fd, err));
    if (fstat(fd, &st) != 0)
        return titan_fail_errno(err, "tls: '%s'", path);
    if (secret && (st.st_mode & (S_IRWXG | S_IRWXO)) != 0) {
        titan_status status =
            titan_fail(err, TITAN_EPERM, "tls: others than its owner have rights to the key in '%s'", path);
        titan_error_hint(err, "chmod 600 %s", path);
        return status;
    }
    TRY(file_read(path, PEM_MAX, out, err));
    return buf_append(out, "", 1) == TITAN_OK ? TITAN_OK : titan_fail(err, TITAN_ENOMEM, "tls: no memory");
}

static void stamps_read(const struct rpc_tls *tls, struct stamp out[FILES])
{
    memset(out, 0, FILES * sizeof(*out));
    for (int i = 0; i < FILES; i++) {
        struct stat st;
        if (path_of(tls, i)[0] && stat(path_of(tls, i), &st) == 0) /* a removed file is a change, too */
            out[i] = (struct stamp){st.st_ctim.tv_sec, st.st_ctim.tv_nsec, (int64_t)st.st_ino, st.st_size};
    }
}

static void forget(struct rpc_pair *pair)
{
    SSL_CTX_free(pair->context);
    if (pair->credentials)
        grpc_channel_credentials_release(pair->credentials);
}

/* Loads the files into a pair that has their paths and stamps. */
static titan_status load(struct rpc_pair *pair, struct titan_error *err)
{
    const struct rpc_tls *tls = &pair->files;
    struct buf texts[FILES] = {BUF_INIT, BUF_INIT, BUF_INIT};
    struct stamp now[FILES];
    SSL_CTX *context = NULL;
    titan_status status = TITAN_OK;
    for (int i = 0; i < FILES && status == TITAN_OK; i++)
        if (path_of(tls, i)[0])
            status = file_take(path_of(tls, i), i == KEY, &texts[i], err);
    if (status == TITAN_OK && !tls->certificate[0] != !tls->key[0])
        status = titan_fail(err, TITAN_EINVAL, "tls: a certificate and its key belong together");
    if (status == TITAN_OK && !tls->ca[0])
        status = titan_fail(err, TITAN_EINVAL, "tls: no file of the authority's certificate is given");
    if (status == TITAN_OK)
        status = context_make(tls, &context, err);
    stamps_read(tls, now);
    if (status == TITAN_OK && memcmp(now, pair->seen, sizeof(now)) != 0) { /* OpenSSL may have read other texts */
        status = titan_fail(err, TITAN_EAGAIN, "tls: the files were replaced while they were read");
        SSL_CTX_free(context);
    }
    if (status == TITAN_OK) {
        grpc_ssl_pem_key_cert_pair own = {.private_key = texts[KEY].data, .cert_chain = texts[CERTIFICATE].data};
        forget(pair);
        pair->context = context;
        pair->credentials = grpc_ssl_credentials_create_ex(texts[CA].data, tls->key[0] ? &own : NULL, NULL, NULL);
        titan_assert(pair->credentials);
    }
    if (texts[KEY].data)
        explicit_bzero(texts[KEY].data, texts[KEY].len);
    for (int i = 0; i < FILES; i++)
        buf_free(&texts[i]);
    return status;
}

titan_status rpc_pair_open(const struct rpc_tls *tls, struct rpc_pair **ret, struct titan_error *err)
{
    struct rpc_pair *pair = calloc(1, sizeof(*pair));
    if (!pair)
        return titan_fail(err, TITAN_ENOMEM, "tls: no memory");
    pair->files = *tls;
    stamps_read(tls, pair->seen); /* taken before the read, so that a later check sees changes during the read */
    titan_status status = load(pair, err);
    if (status != TITAN_OK) {
        free(pair);
        return status;
    }
    log_init(&pair->log, "tls", "certificate=\"%.120s\"", tls->certificate);
    *ret = pair;
    return TITAN_OK;
}

void rpc_pair_free(struct rpc_pair *pair)
{
    if (pair)
        forget(pair);
    free(pair);
}

bool rpc_pair_refresh(struct rpc_pair *pair)
{
    struct stamp now[FILES];
    struct titan_error err;
    stamps_read(&pair->files, now);
    if (memcmp(now, pair->seen, sizeof(now)) == 0)
        return false;
    memcpy(pair->seen, now, sizeof(now));
    if (load(pair, &err) != TITAN_OK) {
        tlog_warn(&pair->log, "new TLS files are not taken, the ones before stay", "reason=\"%s\"", err.msg);
        return false;
    }
    tlog_info(&pair->log, "new TLS files are in use for new connections", "%s", "");
    return true;
}

grpc_channel_credentials *rpc_pair_client(const struct rpc_pair *pair)
{
    return pair->credentials;
}

/* The files' current end of TLS for fd, neither a server's nor a client's yet. */
static SSL *end_make(struct rpc_pair *pair, int fd, enum rpc_protocol protocol)
{
    titan_assert(pair->files.certificate[0] && fd >= 0);
    (void)rpc_pair_refresh(pair);
    SSL *ssl = SSL_new(pair->context);
    if (ssl && SSL_set_fd(ssl, fd) == 1 && SSL_set_app_data(ssl, (char *)(uintptr_t)protocols[protocol]) == 1)
        return ssl;
    SSL_free(ssl);
    ERR_clear_error();
    return NULL;
}

SSL *rpc_pair_accept(struct rpc_pair *pair, int fd, enum rpc_protocol protocol, bool certificates_only)
{
    SSL *ssl = end_make(pair, fd, protocol);
    if (!ssl)
        return NULL;
    /* Without certificates_only a client without a certificate is anonymous: enrolment and bearer tokens use the same
     * port. */
    SSL_set_verify(ssl, SSL_VERIFY_PEER | (certificates_only ? SSL_VERIFY_FAIL_IF_NO_PEER_CERT : 0), NULL);
    SSL_set_accept_state(ssl);
    return ssl;
}

SSL *rpc_pair_connect(struct rpc_pair *pair, int fd, enum rpc_protocol protocol)
{
    SSL *ssl = end_make(pair, fd, protocol);
    const unsigned char *own = (const unsigned char *)protocols[protocol];
    if (ssl && SSL_set_alpn_protos(ssl, own, 1u + own[0]) == 0) { /* 0 is success here */
        SSL_set_verify(ssl, SSL_VERIFY_PEER, NULL);
        SSL_set_connect_state(ssl);
        return ssl;
    }
    SSL_free(ssl);
    ERR_clear_error();
    return NULL;
}
