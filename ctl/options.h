/* options.h - the command line as the tables of command.h describe it. */
#ifndef TITAN_CTL_OPTIONS_H
#define TITAN_CTL_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "ctl/command.h"

enum { OPTIONS_GIVEN_MAX = 512 };

struct given {
    const struct option_spec *spec;
    const char *value; /* NULL for a flag */
};

/* Everything is borrowed from argv and the tables. */
struct args {
    const struct command *command; /* NULL: none was named */
    int n;
    char **words; /* the command's arguments */
    struct given given[OPTIONS_GIVEN_MAX];
    int n_given;
};

/* Options stand anywhere; "--" ends them. TITAN_EINVAL says which word is wrong and, for a misspelt one, what was
 * probably meant. The number of arguments is not checked when --help is among the options. */
titan_status args_parse(int argc, char **argv, struct args *args, struct titan_error *err) TITAN_MUST_USE;

bool args_has(const struct args *args, const char *option);
const char *args_text(const struct args *args, const char *option, const char *fallback); /* the last one given */
/* Every value of an option that may be repeated: i counts from 0; NULL behind the last. */
const char *args_each(const struct args *args, const char *option, int i);
titan_status args_int(const struct args *args, const char *option, int64_t min, int64_t max, int64_t fallback,
                      int64_t *ret, struct titan_error *err) TITAN_MUST_USE;
titan_status args_real(const struct args *args, const char *option, double min, double max, double fallback,
                       double *ret, struct titan_error *err) TITAN_MUST_USE;
/* Argument i as the number of a job. */
titan_status args_job(const struct args *args, int i, uint64_t *ret, struct titan_error *err) TITAN_MUST_USE;

#endif
