/* SPDX-License-Identifier: Apache-2.0 */
/* Prints docs/recipes.md; used by `make docs`. */
#include <stdio.h>

#include "base/cleanup.h"
#include "base/recipe.h"

int main(void)
{
    _cleanup_(buf_free) struct buf out = BUF_INIT;
    recipe_print_reference(&out);
    return buf_failed(&out) || fputs(out.data, stdout) < 0 || fflush(stdout) != 0;
}
