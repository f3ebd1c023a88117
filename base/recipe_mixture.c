/* SPDX-License-Identifier: Apache-2.0 */
/* recipe_mixture.c - training.mixture: an array of tables, one per source. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/recipe_keys.h"

static bool read_text(const struct toml_value *v, char *ret, size_t size, char why[RECIPE_WHY])
{
    titan_assert(size > 1);
    if (v->type != TOML_STRING || !*v->string || strlen(v->string) >= size) {
        (void)snprintf(why, RECIPE_WHY, "%s must be text of 1 to %zu bytes", v->key, size - 1);
        return false;
    }
    memcpy(ret, v->string, strlen(v->string) + 1);
    return true;
}

bool recipe_mixture_read(const struct toml_value *array, struct recipe_mixture *ret, char why[RECIPE_WHY])
{
    struct recipe_mixture mixture;
    int weighted = 0;
    memset(&mixture, 0, sizeof(mixture)); /* equal recipes are equal in memory */
    for (const struct toml_value *v = array->first; v; v = v->next) {
        if (v->type != TOML_TABLE) {
            (void)snprintf(why, RECIPE_WHY, "expected {path = \"...\", weight = 1.0}, got %s", toml_type_name(v->type));
            return false;
        }
        if (mixture.n == RECIPE_SOURCES_MAX) {
            (void)snprintf(why, RECIPE_WHY, "more than %d sources", RECIPE_SOURCES_MAX);
            return false;
        }
        struct recipe_source *source = &mixture.source[mixture.n++];
        for (const struct toml_value *e = v->first; e; e = e->next) {
            bool ok;
            if (strcmp(e->key, "path") == 0) {
                ok = read_text(e, source->path, sizeof(source->path), why);
            } else if (strcmp(e->key, "dataset") == 0) {
                ok = read_text(e, source->dataset, sizeof(source->dataset), why);
            } else if (strcmp(e->key, "weight") == 0) {
                source->weight = e->type == TOML_INT ? (double)e->integer : e->type == TOML_FLOAT ? e->real : 0;
                ok = source->weight > 0 && isfinite(source->weight);
                if (!ok)
                    (void)snprintf(why, RECIPE_WHY, "weight must be a number above 0");
            } else {
                (void)snprintf(why, RECIPE_WHY, "unknown key %.64s; there are path, weight and dataset", e->key);
                ok = false;
            }
            if (!ok)
                return false;
        }
        if (!source->path[0]) {
            (void)snprintf(why, RECIPE_WHY, "a source has no path");
            return false;
        }
        weighted += source->weight > 0;
    }
    if (weighted != 0 && weighted != mixture.n) {
        (void)snprintf(why, RECIPE_WHY, "%d of %lld sources have a weight: give all one, or none", weighted,
                       (long long)mixture.n);
        return false;
    }
    memcpy(ret, &mixture, sizeof(mixture));
    return true;
}
