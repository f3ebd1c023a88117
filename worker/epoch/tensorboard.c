/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/epoch/tensorboard.h"

#include <limits.h>
#include <stdio.h>

#include "worker/epoch/epoch.h"

bool tensorboard_logs_step(const struct epoch *e, uint64_t step)
{
    return step % (uint64_t)e->t->recipe->metrics.log_freq == 0 || step == 1;
}

void tensorboard_write(const struct epoch *e, uint64_t step, int64_t at_ms, const struct event_scalar *scalars, int n)
{
    struct tensorboard *const t = &e->t->publisher.tensorboard;
    struct titan_error why = {0};

    if (!e->t->recipe->metrics.enable_tensorboard || e->view.rank != 0)
        return;
    titan_status status = TITAN_OK;
    if (t->file.fd < 0) {
        char folder[PATH_MAX + 256];
        (void)snprintf(folder, sizeof folder, "%s/%s", e->t->members->job_dir, e->t->recipe->metrics.save_tb_folder);
        status = event_file_open(&t->file, folder, &why);
    }
    if (status == TITAN_OK)
        status = event_file_add(&t->file, step, at_ms, scalars, n, &why);
    const bool failed = status != TITAN_OK;
    if (failed)
        event_file_close(&t->file);
    if (failed && !t->failed)
        tlog_warn(&e->t->log, "TensorBoard's file takes no events, going on without it", "step=%lu reason=\"%s\"",
                  (unsigned long)step, why.msg);
    if (!failed && t->failed)
        tlog_info(&e->t->log, "TensorBoard's file takes events again", "step=%lu", (unsigned long)step);
    t->failed = failed;
}
