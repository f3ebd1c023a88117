/* SPDX-License-Identifier: Apache-2.0 */
/* run_file.h - a recipe as a command takes it: read, overridden by --set, checked, made ready to be sent. */
#ifndef TITAN_CTL_RUN_FILE_H
#define TITAN_CTL_RUN_FILE_H

#include <limits.h>

#include "base/buf.h"
#include "base/recipe.h"
#include "base/options.h"

struct run_file {
    struct recipe recipe; /* resolved */
    struct buf text;      /* what is sent: the file as it is, or the recipe printed where something was overridden */
    char path[PATH_MAX];  /* absolute; "<stdin>" */
};

/* Where it comes from. */
struct run_source {
    const char *path;               /* a file, or "-"; of a text what messages call it */
    const char *text;               /* of a job, with absolute paths; NULL: the file is read */
    const char *const *assignments; /* "KEY=VALUE", for keys that --set does not give; NULL ends them, and NULL: none */
};

#define RUN_FILE_OPTIONS                                                                                               \
    {"set", 0, "KEY=VALUE", "override a key of the run file, as in training.steps=100; may be repeated", WORD_NONE},   \
        {"name", 0, "NAME", "name of the job (default: job.description of the run file)", WORD_NONE},                  \
    {                                                                                                                  \
        "label", 'l', "KEY=VALUE", "a label of the job, to find it by; may be repeated", WORD_NONE                     \
    }

/* Path "-" reads standard input. workers > 0: exactly so many, or fewer if elastic.min_workers allows. local: the
 * server sees the same files, so the data is looked for here. Relative paths become absolute: those of the file count
 * from the file's folder, or from the current one where they are only there; those of --set from the current one. */
titan_status run_file_load(struct run_file *f, const struct run_source *source, const struct args *args,
                           int64_t workers, bool local, struct titan_error *err) TITAN_MUST_USE;
void run_file_clear(struct run_file *f);

#endif
