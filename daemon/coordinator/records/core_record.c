/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/coordinator/records/core_record.h"

#include <stdlib.h>
#include <string.h>

#include "base/mutant.h"
#include "state/backup.h"

const char *const core_devices[CORE_DEVICES] = {"cuda", "cpu"};

void *core_alloc(size_t bytes)
{
    void *p = calloc(1, bytes);
    titan_assert(p);
    return p;
}

char *core_strdup(const char *text)
{
    char *copy = strdup(text ? text : "");
    titan_assert(copy);
    return copy;
}

void core_set_string(char **field, const char *text)
{
    free(*field);
    *field = core_strdup(text);
}

void core_set_text(const char **field, const char *text)
{
    free((char *)(uintptr_t)*field);
    *field = core_strdup(text);
}

/* After a restore, epoch numbers begin above all numbers that earlier coordinators can have given. */
#define EPOCHS_EACH (UINT64_C(1) << 32)

uint64_t core_first_epoch(const struct core *c)
{
    return MUTANT(RESTORED_EPOCHS) ? 0 : c->options.restored_term / BACKUP_TERM_STEP * EPOCHS_EACH;
}

void core_later(struct core *c)
{
    c->unsettled = true;
}
