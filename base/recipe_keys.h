/* SPDX-License-Identifier: Apache-2.0 */
/* recipe_keys.h - the one table of run-file keys; private to base/recipe*.c. */
#ifndef TITAN_BASE_RECIPE_KEYS_H
#define TITAN_BASE_RECIPE_KEYS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/recipe.h"
#include "base/settings.h"

/* Supported keys come first, in the order in which they are printed; the other keys follow. A key's index is its bit in
 * recipe.set_mask and idle_mask. */
extern const struct setting recipe_keys[];
extern const int recipe_keys_count;

/* A key that TorchTitan added after v0.2.2 (its last version with run files), and the replacement in Titan. */
struct recipe_newer {
    const char *section, *name, *instead;
};
extern const struct recipe_newer recipe_newer[];
extern const int recipe_newer_count;

/* Former TorchTitan names of the same key. */
struct recipe_alias {
    const char *section, *name, *target; /* target: "section.name" */
    const char *theirs;                  /* TorchTitan's default as TOML; "none": unset, or an older name */
};
extern const struct recipe_alias recipe_aliases[];
extern const int recipe_aliases_count;

/* A family (model.name) and one of its sizes. head_dim 0: dim / n_heads. */
struct recipe_flavor {
    const char *family, *name;
    struct model_dims dims;
    const char *doc;
    bool block_causal; /* default of training.block_causal */
};
extern const struct recipe_flavor recipe_flavors[];
extern const int recipe_flavors_count;

#define RECIPE_WHY 160
/* Reads an array of sources; false: why names the error, and *ret is untouched. */
bool recipe_mixture_read(const struct toml_value *array, struct recipe_mixture *ret, char why[RECIPE_WHY]);

/* Reads pipeline_parallel_split_points, a list of layers or of every stage's modules, and writes it as
 * "layers.2,layers.4". False: why is the message behind the key's name, and ret is untouched. */
bool recipe_points_read(const struct toml_value *v, char *ret, size_t size, char why[RECIPE_WHY]);
/* Parses "layers.2,layers.4" into numbers, at most max; returns their number, -1 for malformed or non-ascending
 * text. */
int recipe_split_points(const char *text, int64_t *ret, int max);
#define RECIPE_STAGES_MAX 4096

/* Workers of one data-parallel rank: pp * cp * tp. */
int64_t recipe_mesh_unit(const struct recipe *r);
/* The degrees above 1, for messages: "parallelism.pipeline_parallel_degree * tensor_parallel_degree = 2 * 4"; all
 * degrees, or only the degrees of recipe_mesh_unit(). */
#define RECIPE_DEGREES_TEXT 320
void recipe_degrees(const struct recipe *r, bool all, char out[RECIPE_DEGREES_TEXT]);

/* Do the sizes of model and workers fit 64 bits with room? The recipe is resolved except for this check. */
titan_status recipe_check_size(const struct recipe *r, struct titan_error *err) TITAN_MUST_USE;

/* Index of section.name; -1: no such key. */
int recipe_key_find(const char *section, const char *name);
/* recipe_key_find() that also knows older names: returns the index of the key as which section.name is read. */
int recipe_key_resolve(const char *section, const char *name);
static inline bool recipe_key_in(const uint64_t *mask, int index)
{
    return mask[index / 64] >> (index % 64) & 1;
}
static inline void recipe_key_mark(uint64_t *mask, int index, bool on)
{
    const uint64_t bit = UINT64_C(1) << (index % 64);
    mask[index / 64] = on ? mask[index / 64] | bit : mask[index / 64] & ~bit;
}

/* The recipe of recipe_init(). */
const struct recipe *recipe_defaults(void);

#endif
