/* SPDX-License-Identifier: Apache-2.0 */
/* patience.c - see patience.h. */
#include "tests/support/patience.h"

#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"

#define FLOOR_S 60
#define NAP_NS 1000000
#define STRETCH_MAX 6

double patience(void)
{
    const char *slowness = getenv("TITAN_TEST_SLOWNESS");
    double load = 0, times = slowness ? strtod(slowness, NULL) : 1;
    if (getloadavg(&load, 1) == 1 && load > (double)sysconf(_SC_NPROCESSORS_ONLN))
        times *= load / (double)sysconf(_SC_NPROCESSORS_ONLN);
    return times > 1 ? times : 1;
}

int patience_ms(int seconds)
{
    return (int)(1000 * patience() * (seconds > FLOOR_S ? seconds : FLOOR_S));
}

uint32_t patience_stretched(int ms)
{
    const double times = patience();
    return (uint32_t)((times < STRETCH_MAX ? times : STRETCH_MAX) * ms);
}

bool patience_left(struct patience_wait *wait)
{
    int64_t now = clock_mono_ns();
    if (wait->began_ns == 0)
        wait->began_ns = now;
    return now - wait->began_ns < (int64_t)patience_ms(FLOOR_S) * 1000000;
}

bool patience_nap(struct patience_wait *wait)
{
    (void)nanosleep(&(struct timespec){.tv_nsec = NAP_NS}, NULL);
    return patience_left(wait);
}

void patience_pause_ms(int ms, const char *why)
{
    (void)why;
    (void)nanosleep(&(struct timespec){.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000L}, NULL);
}
