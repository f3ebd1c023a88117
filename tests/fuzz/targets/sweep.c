/* SPDX-License-Identifier: Apache-2.0 */
/* Keys with their values, one a line, as given to --sweep. What is accepted is every combination, once, and the values
 * are those that were written. */
#include "tests/fuzz/common.h"

#include "ctl/sweep.h"

static void check_values(const struct sweep_key *key, const char *given)
{
    const size_t name = strcspn(given, "=") + 1;
    const char *at = given + name;
    for (size_t i = 0; i < key->n; i++) {
        const char *one = key->assignments[i];
        const size_t n = strlen(one + name);
        fuzz_assert(strncmp(one, given, name) == 0 && n > 0 && strncmp(one + name, at, n) == 0);
        at += n;
        fuzz_assert(*at == (i + 1 < key->n ? ',' : '\0'));
        at += *at == ',';
    }
}

/* Combination i is number i when its values are digits, the last key's the least. */
static void check_combination(const struct sweep *s, size_t i)
{
    const char *chosen[SWEEP_KEYS_MAX + 1];
    size_t number = 0;
    sweep_choose(s, i, chosen);
    for (size_t k = 0; k < s->n_keys; k++) {
        size_t digit = 0;
        while (digit < s->keys[k].n && s->keys[k].assignments[digit] != chosen[k])
            digit++;
        fuzz_assert(digit < s->keys[k].n);
        number = number * s->keys[k].n + digit;
    }
    fuzz_assert(number == i && !chosen[s->n_keys]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const struct option_spec option = {.name = "sweep", .value = "KEY=V1,V2,..."};
    struct args args = {0};
    struct titan_error err = {0};
    struct sweep s = {0};
    _cleanup_free_ char *text = fuzz_text(data, size);
    for (char *line = text, *next; line && args.n_given < SWEEP_KEYS_MAX + 1; line = next) {
        next = strchr(line, '\n');
        if (next)
            *next++ = '\0';
        args.given[args.n_given++] = (struct given){&option, line};
    }
    const titan_status status = sweep_parse(&args, &s, &err);
    if (status == TITAN_OK) {
        fuzz_assert(s.jobs > 0 && s.jobs <= SWEEP_JOBS_MAX && s.n_keys == (size_t)args.n_given && strlen(s.id) == 8);
        for (size_t k = 0; k < s.n_keys; k++)
            check_values(&s.keys[k], args.given[k].value);
        for (size_t i = 0; i < s.jobs; i += 1 + s.jobs / 16)
            check_combination(&s, i);
    } else {
        fuzz_error(status, &err);
    }
    sweep_free(&s);
    return 0;
}
