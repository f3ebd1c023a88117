/* SPDX-License-Identifier: Apache-2.0 */
/* seeded.c - see seeded.h. */
#include "tests/support/seeded.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/rng.h"

static struct rng_key key;
static uint64_t drawn;

void seeded_open(const char *name, uint64_t seed)
{
    const char *text = getenv("FUZZ_SEED");
    if (!text)
        text = getenv("TITAN_TEST_SEED");
    if (text)
        seed = strtoull(text, NULL, 0);
    else if (seed == 0)
        seed = (uint64_t)clock_wall_ms();
    key = rng_key(seed, name);
    drawn = 0;
    printf("# FUZZ_SEED=%llu\n", (unsigned long long)seed);
}

uint32_t seeded_draw(uint32_t below)
{
    uint32_t words[4];
    rng_philox(key, drawn++, 0, words);
    return (uint32_t)((uint64_t)words[0] * below >> 32);
}

long seeded_rounds(long fallback)
{
    const char *text = getenv("FUZZ_ROUNDS");
    return text ? strtol(text, NULL, 10) : fallback;
}
