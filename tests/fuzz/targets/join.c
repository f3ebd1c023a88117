/* SPDX-License-Identifier: Apache-2.0 */
/* What a node is given to join, and tokens, any bytes: what is accepted has its parts. */
#include "tests/fuzz/common.h"

#include "daemon/auth/join.h"
#include "state/token.h"

/* What is accepted is what titanctl node join writes. */
static void look(const struct join_file *j)
{
    struct titan_error err = {0};
    struct pki_certificate ca;
    fuzz_assert(pki_name_ok(j->node) && j->expires_at_ms > 0);
    fuzz_assert(*j->coordinator && !strpbrk(j->coordinator, "\n\r\"\\"));
    fuzz_assert(*j->token && !strpbrk(j->token, "\n\r\"\\"));
    fuzz_assert(pki_read(j->ca.data, j->ca.len, &ca, &err) == TITAN_OK && ca.ca);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct titan_error err = {0};
    struct join_file join;
    char id[TOKEN_ID_TEXT];
    unsigned char hash[TOKEN_HASH_BYTES];
    _cleanup_free_ char *text = fuzz_text(data, size);
    titan_status status = token_parse(text, id, hash, &err);
    if (status == TITAN_OK)
        fuzz_assert(strlen(id) == TOKEN_ID_TEXT - 1 && !strncmp(text, "titan_", 6));
    else
        fuzz_error(status, &err);
    err = (struct titan_error){0};
    status = join_parse(text, size, "fuzz", &join, &err);
    if (status == TITAN_OK)
        look(&join);
    else
        fuzz_error(status, &err);
    join_free(&join);
    return 0;
}
