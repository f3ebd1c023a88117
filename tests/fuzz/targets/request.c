/* SPDX-License-Identifier: Apache-2.0 */
/* Certificates and requests for them, any bytes: what is accepted of a request is its key alone. */
#include "tests/fuzz/common.h"

#include "daemon/auth/pki.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct titan_error err = {0};
    struct pki_certificate certificate;
    uint8_t hash[PKI_KEY_HASH] = {0};
    const char *name = "";
    _cleanup_free_ char *text = fuzz_text(data, size);
    titan_status status = pki_request_check(text, size, hash, &err);
    if (status != TITAN_OK)
        fuzz_error(status, &err);
    err = (struct titan_error){0};
    status = pki_read(text, size, &certificate, &err);
    if (status == TITAN_OK)
        fuzz_assert((certificate.kind == PKI_NONE) == (pki_uri_parse(certificate.uri, &name) == PKI_NONE));
    else
        fuzz_error(status, &err);
    (void)pki_uri_parse(text, &name);
    return 0;
}
