/* SPDX-License-Identifier: Apache-2.0 */
#include "ctl/sweep.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "base/hash.h"
#include "base/vec.h"

/* Does an assignment of this option, from the i-th on, set the same key as `given`? */
static bool assigned(const struct args *args, const char *option, int i, const char *given)
{
    const size_t n = strcspn(given, "=") + 1;
    for (const char *other; (other = args_each(args, option, i)); i++)
        if (strncmp(other, given, n) == 0)
            return true;
    return false;
}

titan_status sweep_parse(const struct args *args, struct sweep *ret, struct titan_error *err)
{
    const char *given;
    titan_assert(ret->n_keys == 0 && ret->jobs == 0);
    for (int i = 0; (given = args_each(args, "sweep", i)); i++) {
        if (i == SWEEP_KEYS_MAX)
            return titan_fail(err, TITAN_EINVAL, "--sweep: more than %d keys", SWEEP_KEYS_MAX);
        if (assigned(args, "set", 0, given) || assigned(args, "sweep", i + 1, given))
            return titan_fail(err, TITAN_EINVAL, "--sweep: %.*s is given twice", (int)strcspn(given, "="), given);
        ret->n_keys++;
        struct sweep_key *key = &ret->keys[i];
        const size_t name = strcspn(given, "=");
        const char *at = given + name;
        if (name == 0 || !*at)
            return titan_fail(err, TITAN_EINVAL, "--sweep '%.64s': KEY=VALUE,VALUE,... is possible", given);
        do {
            /* The first value of the list ends at a comma outside of quotes and brackets. */
            int depth = 0;
            char quote = '\0', *one = NULL;
            size_t n = 0;
            for (at++; at[n] && (at[n] != ',' || depth > 0 || quote); n++) {
                if (quote && at[n] == quote)
                    quote = '\0';
                else if (!quote && (at[n] == '"' || at[n] == '\''))
                    quote = at[n];
                else if (!quote)
                    depth += (at[n] == '[' || at[n] == '{') - (at[n] == ']' || at[n] == '}');
            }
            if (n == 0)
                return titan_fail(err, TITAN_EINVAL, "--sweep '%.64s': a value is empty", given);
            if (asprintf(&one, "%.*s=%.*s", (int)name, given, (int)n, at) < 0)
                return titan_fail(err, TITAN_ENOMEM, "out of memory");
            for (size_t k = 0; k < key->n; k++) {
                if (strcmp(key->assignments[k], one) != 0)
                    continue;
                (void)titan_fail(err, TITAN_EINVAL, "--sweep %.*s: %.64s is given twice", (int)name, given,
                                 one + name + 1);
                free(one);
                return err->status;
            }
            if (!VEC_PUSH(key->assignments, key->n, key->cap, one)) {
                free(one);
                return titan_fail(err, TITAN_ENOMEM, "out of memory");
            }
            at += n;
        } while (*at);
        ret->jobs = (ret->jobs ? ret->jobs : 1) * ret->keys[i].n;
        if (ret->jobs > SWEEP_JOBS_MAX)
            return titan_fail(err, TITAN_EINVAL, "--sweep: %zu jobs or more; at most %d are possible", ret->jobs,
                              SWEEP_JOBS_MAX);
    }

    const char *key = args_text(args, "idempotency-key", NULL);
    uint64_t id = 0;
    if (key)
        id = hash_bytes(HASH_INIT, key, strlen(key));
    else
        titan_assert(getrandom(&id, sizeof(id), 0) == (ssize_t)sizeof(id));
    (void)snprintf(ret->id, sizeof(ret->id), "%08x", (unsigned)(id ^ id >> 32));
    return TITAN_OK;
}

void sweep_choose(const struct sweep *s, size_t i, const char *ret_assignments[SWEEP_KEYS_MAX + 1])
{
    titan_assert(i < s->jobs);
    for (size_t k = s->n_keys; k-- > 0; i /= s->keys[k].n)
        ret_assignments[k] = s->keys[k].assignments[i % s->keys[k].n];
    ret_assignments[s->n_keys] = NULL;
}

void sweep_free(struct sweep *s)
{
    for (size_t k = 0; k < s->n_keys; k++) {
        for (size_t i = 0; i < s->keys[k].n; i++)
            free(s->keys[k].assignments[i]);
        free(s->keys[k].assignments);
    }
    *s = (struct sweep){0};
}
