/* SPDX-License-Identifier: Apache-2.0 */
/* Overrides, one a line, as given to --set. */
#include "tests/fuzz/common.h"

#include "base/recipe.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct recipe r;
    recipe_init(&r);
    _cleanup_free_ char *text = fuzz_text(data, size);
    for (char *line = text, *next; line; line = next) {
        next = strchr(line, '\n');
        if (next)
            *next++ = '\0';
        struct recipe before = r;
        struct titan_error err = {0};
        titan_status status = recipe_set(&r, line, &err);
        if (status != TITAN_OK) {
            fuzz_error(status, &err);
            fuzz_assert(memcmp(&r, &before, sizeof(r)) == 0);
        }
    }
    return 0;
}
