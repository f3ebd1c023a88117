/* SPDX-License-Identifier: Apache-2.0 */
/* recipe_keys.h - the one table of run-file keys; private to base/recipe*.c. */
#ifndef TITAN_BASE_RECIPE_KEYS_H
#define TITAN_BASE_RECIPE_KEYS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/recipe.h"
#include "base/toml.h"

enum key_type { KEY_STRING, KEY_INT, KEY_REAL, KEY_BOOL, KEY_LIST, KEY_SOURCES, KEY_BYTES };
enum key_support {
    KEY_SUPPORTED,
    KEY_OFF,  /* TorchTitan's, feature not there: only the value that turns it off is accepted */
    KEY_NOTE, /* TorchTitan's, without effect here: another value than TorchTitan's default is warned of */
    KEY_PART  /* TorchTitan's, refines a key that is off or without effect: that one is refused or warned of */
};
enum {
    KEY_TITAN = 1,   /* Titan's own, not in TorchTitan */
    KEY_NUMBERS = 2, /* decides the numbers of the run: part of recipe_hash() */
    KEY_FLAVOR = 4,  /* model dimension: default is the flavor's */
    KEY_NOCASE = 8,  /* choices match in any case and are stored as the table writes them */
    KEY_LATER =
        16 /* which choices there are depends on other keys: what is none is refused when the recipe is resolved */
};

struct recipe_key {
    const char *section, *name;
    enum key_type type;
    enum key_support support;
    unsigned flags;
    size_t offset, size;        /* in struct recipe; supported keys only */
    double min, max;            /* numbers and bytes; max 0 = no upper bound. Of bytes "" is legal, too: 0, none */
    bool above_min;             /* reals: min itself is not legal */
    bool minus_one;             /* -1 is legal beside the range: "not set" */
    const char *choices;        /* strings: "a|b"; NULL = any text. Lists: words, "*" = any; NULL = layers */
    const char *(*names)(void); /* strings: further choices, in the same form */
    const char *later;          /* strings: legal in TorchTitan, refused by name; "*" = everything that is no choice */
    bool several;               /* strings: a path; an array of paths is read as one pattern, "{a,b}" */
    const char *yes_no;  /* strings: "a|b", what true and false stand for, as files of earlier versions have them */
    const char *on;      /* booleans: words "a|b" that mean true, alone or in an array; "" and [] mean false */
    const char *nothing; /* booleans: words that ask for something without effect, and are warned of */
    const char *other;   /* booleans: a switch of the section that the list sets as well, by its own words */
    const char *initial; /* default as TOML; of keys that are not supported TorchTitan's */
    const char *theirs;  /* TorchTitan's default as TOML where it is another; "none": unset */
    const char *doc;     /* one line */
};
/* Supported keys first, in the order they are printed; a key's index is its bit in recipe.set_mask and idle_mask. */
extern const struct recipe_key recipe_keys[];
extern const int recipe_keys_count;

/* What this version lacks for a value that it refuses. */
struct recipe_lack {
    const char *section, *name, *value, *what;
};
extern const struct recipe_lack recipe_lacks[];
extern const int recipe_lacks_count;

/* A key of TorchTitan since v0.2.2, the last version with run files, and what there is in its place. */
struct recipe_newer {
    const char *section, *name, *instead;
};
extern const struct recipe_newer recipe_newer[];
extern const int recipe_newer_count;

/* Other names of the same thing in TorchTitan's history. */
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
    bool block_causal; /* training.block_causal */
};
extern const struct recipe_flavor recipe_flavors[];
extern const int recipe_flavors_count;

#define RECIPE_WHY 160
/* An array of sources; false: why says what is wrong with it. */
bool recipe_mixture_read(const struct toml_value *array, struct recipe_mixture *ret, char why[RECIPE_WHY]);

/* "layers.2,layers.4" as numbers, at most max; returns how many, -1 when it is not that or does not ascend. */
int recipe_split_points(const char *text, int64_t *ret, int max);
#define RECIPE_STAGES_MAX 4096

/* Workers of one data-parallel rank: pp * cp * tp. */
int64_t recipe_mesh_unit(const struct recipe *r);
/* The degrees above 1 for messages: "parallelism.pipeline_parallel_degree * tensor_parallel_degree = 2 * 4"; all of
 * them, or those of recipe_mesh_unit(). */
#define RECIPE_DEGREES_TEXT 320
void recipe_degrees(const struct recipe *r, bool all, char out[RECIPE_DEGREES_TEXT]);

/* Of a recipe that is resolved but for this: do its model and its workers have sizes that 64 bits hold with room? */
titan_status recipe_check_size(const struct recipe *r, struct titan_error *err) TITAN_MUST_USE;

/* Index of section.name; -1 when there is none. */
int recipe_key_find(const char *section, const char *name);
/* Was the key of that index given (or resolved)? */
bool recipe_key_given(const struct recipe *r, int index);

#endif
