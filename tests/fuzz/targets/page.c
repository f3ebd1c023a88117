/* SPDX-License-Identifier: Apache-2.0 */
/* A worker's page as an earlier agent may have left it, and what else of its folder is believed. */
#include "tests/fuzz/common.h"

#include "daemon/agent/shell/page_watch.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char path[128];
    struct worker_page page = {.magic = WORKER_PAGE_MAGIC}, *mapped = NULL;
    struct titan_error err = {0};
    uint8_t whole[4096] = {0};
    (void)snprintf(path, sizeof(path), "%s/w1.page", fuzz_folder());
    /* The mutex is never one of ours: what a program leaves there is its own business (page_owner is not asked). */
    memcpy(whole, &page, sizeof(page));
    memcpy(whole, data, MIN(size, sizeof(whole)));
    fuzz_file(path, size % 3 ? whole : data, size % 3 ? sizeof(whole) : size);
    titan_status status = page_open(path, &mapped, &err);
    if (status != TITAN_OK)
        fuzz_error(status, &err);
    else
        page_close(mapped);
    return 0;
}
