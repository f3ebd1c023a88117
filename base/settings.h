/* SPDX-License-Identifier: Apache-2.0 */
/* settings.h - one engine for tables of settings: the keys of run files (base/recipe_keys.c) and the keys of titand's
 * file and flags (daemon/config.c). A row is a key with its type, range, default and help. The row tells how a value is
 * read, checked, stored, printed and documented. */
#ifndef TITAN_BASE_SETTINGS_H
#define TITAN_BASE_SETTINGS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/error.h"
#include "base/toml.h"

enum key_type {
    KEY_STRING,  /* char[] */
    KEY_INT,     /* int64_t, or of 32 bits */
    KEY_REAL,    /* double; with a unit uint32_t */
    KEY_BOOL,    /* bool */
    KEY_LIST,    /* words with commas between, in char[] */
    KEY_REALS,   /* int64_t with their number, then doubles */
    KEY_SOURCES, /* array of tables, which its owner reads and prints */
    KEY_BYTES,   /* int64_t */
    KEY_WORD     /* enum: the number of the choice */
};
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

struct setting {
    const char *section, *name;
    enum key_type type;
    unsigned flags;
    size_t offset, size; /* offset and size of the field */
    /* limits of numbers (each of a list) and of bytes; max 0: no upper bound. Texts: min is the least length */
    double min, max;
    double unit;                /* reals: stored as a whole number of 1 / unit; 0: stored as they are */
    bool above_min;             /* reals: min itself is not legal */
    bool minus_one;             /* -1 is also legal: "not set" */
    const char *choices;        /* strings: "a|b"; NULL = any text. Lists: words, "*" = any */
    const char *(*names)(void); /* strings: function that returns further choices, in the same form */
    const char *initial;        /* default as TOML; for unsupported keys TorchTitan's default */
    const char *doc;            /* one line */

    /* The fields below are for run files only. */
    enum key_support support;
    const char *theirs;  /* TorchTitan's default as TOML if it differs; "none": unset */
    const char *later;   /* strings: legal in TorchTitan, refused by name; "*" = every value that is no choice */
    const char *lacks;   /* strings: "value=the missing feature|..." for values that are refused by name */
    bool several;        /* strings: a path; an array of paths is read as one pattern, "{a,b}" */
    const char *yes_no;  /* strings: "a|b", the values of true and false in files of earlier versions */
    const char *on;      /* booleans: words "a|b" that mean true, alone or in an array; "" and [] mean false */
    const char *nothing; /* booleans: words that request something without effect; they cause a warning */
    /* booleans: other switches of the section, "a|b", which the same list sets by the words of their rows */
    const char *other;
};

/* Position of a value, for messages. */
struct setting_place {
    const char *path; /* file, or option */
    int line;         /* 0: none */
    bool flag;        /* the option stands for the key, as --slots */
    bool daemon;      /* messages in the words of titand's settings */
};

/* The message is "FILE:12: section.name" and the text. Without a row it is "FILE:12: " and the text. */
titan_status setting_fail(const struct setting_place *at, const struct setting *s, struct titan_error *err,
                          titan_status status, const char *fmt, ...) __attribute__((format(printf, 5, 6)));
/* setting_fail() for an existing error: prepends the place and the row to the error. */
titan_status setting_wrap(const struct setting_place *at, const struct setting *s, struct titan_error *err);
titan_status setting_wrong_type(const struct setting_place *at, const struct setting *s, const struct toml_value *v,
                                struct titan_error *err);

/* Does the value have a type that the row accepts? */
titan_status setting_check_type(const struct setting_place *at, const struct setting *s, const struct toml_value *v,
                                struct titan_error *err) TITAN_MUST_USE;
/* Checks a value of an accepted type and stores it; *field is untouched on failure. Not for arrays of sources, lists
 * without choices, and switches with words. */
titan_status setting_set(const struct setting_place *at, const struct setting *s, const struct toml_value *v,
                         void *field, struct titan_error *err) TITAN_MUST_USE;

#define SETTING_WORD 64
/* Number of the value in "a|b|c", from 0; -1: it is none of them. found gets the table's spelling. */
int setting_choice(const char *choices, const char *value, bool nocase, char found[SETTING_WORD]);
/* Is the value a choice, or is any value legal? */
bool setting_admits(const char *choices, const char *value);
/* The nearest supported key to a misspelt key; NULL: no key is near. The same name in another section counts as
 * near. */
const struct setting *setting_near(const struct setting *rows, size_t n, const char *section, const char *name);

/* Writes a field's value as TOML. */
void setting_print(const struct setting *s, const void *field, struct buf *out);
void setting_print_text(struct buf *out, const char *text);
/* Writes the key's row of a Markdown table: name, type, default, values, help. */
void setting_print_row(const struct setting *s, struct buf *out);

#endif
