/* SPDX-License-Identifier: Apache-2.0 */
/* A pipeline schedule as CSV for some number of ranks, stages and microbatches. */
#include "tests/fuzz/common.h"

#include "base/buf.h"
#include "base/schedule.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fuzz_input in = {data, size};
    int ranks = 1 + (int)fuzz_take(&in, 1) % 4, stages = ranks * (1 + (int)fuzz_take(&in, 1) % 3),
        microbatches = 1 + (int)fuzz_take(&in, 1) % 6;
    _cleanup_free_ char *text = fuzz_text(in.data, in.len);
    struct schedule *s = NULL, *back = NULL;
    struct titan_error err = {0};
    titan_status status = schedule_parse(text, "fuzz", &(struct schedule_shape){ranks, stages, microbatches}, &s, &err);
    if (status != TITAN_OK) {
        fuzz_error(status, &err);
        return 0;
    }
    _cleanup_(buf_free) struct buf one = BUF_INIT, two = BUF_INIT;
    fuzz_assert(schedule_check(s, &err) == TITAN_OK);
    fuzz_assert(schedule_makespan(s, 1, 1, 1, NULL) >= 3 * microbatches);
    schedule_print(s, &one);
    fuzz_assert(schedule_parse(one.data, "printed", &(struct schedule_shape){ranks, stages, microbatches}, &back,
                               &err) == TITAN_OK);
    schedule_print(back, &two);
    fuzz_assert(strcmp(one.data, two.data) == 0);
    schedule_close(s);
    schedule_close(back);
    return 0;
}
