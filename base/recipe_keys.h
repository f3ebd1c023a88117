/* SPDX-License-Identifier: Apache-2.0 */
/* recipe_keys.h - the one table of run-file keys; private to base/recipe*.c. */
#ifndef TITAN_BASE_RECIPE_KEYS_H
#define TITAN_BASE_RECIPE_KEYS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/recipe.h"
#include "base/toml.h"

enum key_type { KEY_STRING, KEY_INT, KEY_REAL, KEY_BOOL, KEY_LIST, KEY_REALS, KEY_SOURCES, KEY_BYTES };
enum key_support {
    KEY_SUPPORTED,
    KEY_OFF,  /* TorchTitan's, feature missing: only the "off" value is accepted */
    KEY_NOTE, /* TorchTitan's, without effect here: values other than TorchTitan's default cause a warning */
    KEY_PART  /* TorchTitan's, refines a key that is off or without effect: the refined key is refused or warned of */
};
enum {
    KEY_TITAN = 1,   /* Titan's own, not in TorchTitan */
    KEY_NUMBERS = 2, /* determines the numbers of the run: part of recipe_hash() */
    KEY_FLAVOR = 4,  /* model dimension: default is the flavor's */
    KEY_NOCASE = 8,  /* choices match in any case and are stored in the table's spelling */
    KEY_LATER = 16   /* choices depend on other keys: recipe_resolve() refuses other words */
};

struct recipe_key {
    const char *section, *name;
    enum key_type type;
    enum key_support support;
    unsigned flags;
    size_t offset, size; /* in struct recipe; supported keys only */
    double min, max;     /* numbers, each of a list, and bytes; max 0 = no upper bound. Bytes also accept "": 0 */
    bool above_min;      /* reals: min itself is not legal */
    bool minus_one;      /* -1 is also legal: "not set" */
    const char *choices; /* strings: "a|b"; NULL = any text. Lists: words, "*" = any; NULL = layers */
    const char *(*names)(void); /* strings: function that returns further choices, in the same form */
    const char *later;          /* strings: legal in TorchTitan, refused by name; "*" = every value that is no choice */
    bool several;               /* strings: a path; an array of paths is read as one pattern, "{a,b}" */
    const char *yes_no;         /* strings: "a|b", for true and false in files of earlier versions */
    const char *on;             /* booleans: words "a|b" that mean true, alone or in an array; "" and [] mean false */
    const char *nothing;        /* booleans: words that request something without effect; they cause a warning */
    const char *other;          /* booleans: another switch of the section that the list also sets, by its own words */
    const char *initial;        /* default as TOML; for unsupported keys TorchTitan's default */
    const char *theirs;         /* TorchTitan's default as TOML if it differs; "none": unset */
    const char *doc;            /* one line */
};
/* Supported keys first, in the order they are printed; a key's index is its bit in recipe.set_mask and idle_mask. */
extern const struct recipe_key recipe_keys[];
extern const int recipe_keys_count;

/* The feature that this version lacks, for a refused value. */
struct recipe_lack {
    const char *section, *name, *value, *what;
};
extern const struct recipe_lack recipe_lacks[];
extern const int recipe_lacks_count;

/* A key that TorchTitan added after v0.2.2, its last version with run files, and the replacement here. */
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
/* Reads an array of sources; false: why names the error. */
bool recipe_mixture_read(const struct toml_value *array, struct recipe_mixture *ret, char why[RECIPE_WHY]);

/* Parses "layers.2,layers.4" into numbers, at most max; returns their number, -1 for malformed or non-ascending
 * text. */
int recipe_split_points(const char *text, int64_t *ret, int max);
#define RECIPE_STAGES_MAX 4096

/* Workers of one data-parallel rank: pp * cp * tp. */
int64_t recipe_mesh_unit(const struct recipe *r);
/* The degrees above 1, for messages: "parallelism.pipeline_parallel_degree * tensor_parallel_degree = 2 * 4"; all
 * degrees, or those of recipe_mesh_unit(). */
#define RECIPE_DEGREES_TEXT 320
void recipe_degrees(const struct recipe *r, bool all, char out[RECIPE_DEGREES_TEXT]);

/* Do the sizes of model and workers fit 64 bits with room? The recipe is resolved except for this check. */
titan_status recipe_check_size(const struct recipe *r, struct titan_error *err) TITAN_MUST_USE;

/* Index of section.name; -1: no such key. */
int recipe_key_find(const char *section, const char *name);
/* Is the key of this index given (or resolved)? */
bool recipe_key_given(const struct recipe *r, int index);

#endif
