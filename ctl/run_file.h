/* SPDX-License-Identifier: Apache-2.0 */
/* run_file.h - loads a recipe for a command: read, overridden by --set, checked, ready to submit. */
#ifndef TITAN_CTL_RUN_FILE_H
#define TITAN_CTL_RUN_FILE_H

#include <limits.h>

#include "base/buf.h"
#include "base/recipe.h"
#include "base/options.h"

struct run_file {
    struct recipe recipe; /* resolved */
    struct buf text;      /* text to submit: the unchanged file, or the printed recipe after overrides */
    char path[PATH_MAX];  /* absolute; "<stdin>" */
};

/* Source of a recipe. */
struct run_source {
    const char *path;               /* a file, or "-"; if `text` is set: the name of `text` in messages */
    const char *text;               /* recipe of a job, with absolute paths; NULL: read from `path` */
    const char *const *assignments; /* "KEY=VALUE", for keys that --set does not set; NULL ends the array; NULL: none */
};

#define RUN_FILE_OPTIONS                                                                                               \
    {"set", 0, "KEY=VALUE", "override a key of the run file, as in training.steps=100; may be repeated", WORD_NONE},   \
        {"name", 0, "NAME", "name of the job (default: job.description of the run file)", WORD_NONE},                  \
    {                                                                                                                  \
        "label", 'l', "KEY=VALUE", "a label of the job, to find it by; may be repeated", WORD_NONE                     \
    }

/* Path "-" reads standard input. workers > 0: exactly this many, or fewer if elastic.min_workers allows. local: the
 * server sees the same files, so the data is checked here. Relative paths become absolute. Paths in the file start at
 * the file's folder, or at the current folder if they exist only there; paths in --set start at the current folder. */
titan_status run_file_load(struct run_file *f, const struct run_source *source, const struct args *args,
                           int64_t workers, bool local, struct titan_error *err) TITAN_MUST_USE;
void run_file_clear(struct run_file *f);

#endif
