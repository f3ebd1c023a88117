/* SPDX-License-Identifier: Apache-2.0 */
/* comm_segments.c - see comm_segments.h. */
#include "daemon/agent/shell/comm_segments.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define ID_BYTES 16 /* size of a communicator's id */

struct comm_segment {
    struct comm_segment *next;
    uint64_t job_id;
    unsigned char comm_id[ID_BYTES];
    int fd;
};

static void segment_free(struct comm_segment *s)
{
    if (s->fd >= 0)
        (void)close(s->fd);
    free(s);
}

static bool all_on(const char *node, Titan__Internal__Member *const *members, size_t n)
{
    while (n > 0 && strcmp(members[n - 1]->node, node) == 0)
        n--;
    return n == 0;
}

int comm_segments_get(struct comm_segments *set, const char *node, const Titan__Internal__FormEpoch *form)
{
    if (!all_on(node, form->members, form->n_members) || !all_on(node, form->departing, form->n_departing) ||
        form->comm_id.len != ID_BYTES)
        return -1;
    struct comm_segment *s = set->first;
    while (s && s->job_id != form->job_id)
        s = s->next;
    if (s && !memcmp(s->comm_id, form->comm_id.data, ID_BYTES))
        return s->fd;
    if (!s) {
        s = calloc(1, sizeof(*s));
        if (!s)
            return -1;
        s->fd = -1;
        s->job_id = form->job_id;
        s->next = set->first;
        set->first = s;
    }
    if (s->fd >= 0)
        (void)close(s->fd);
    s->fd = memfd_create("titan-comm", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    memcpy(s->comm_id, form->comm_id.data, ID_BYTES);
    return s->fd;
}

void comm_segments_sweep(struct comm_segments *set, struct workers *workers)
{
    for (struct comm_segment **at = &set->first; *at;) {
        struct comm_segment *s = *at;
        bool used = false;
        for (const struct worker *w = workers_first(workers); w && !used; w = w->next)
            used = w->job_id == s->job_id && !w->reported;
        if (used) {
            at = &s->next;
            continue;
        }
        *at = s->next;
        segment_free(s);
    }
}

void comm_segments_close(struct comm_segments *set)
{
    while (set->first) {
        struct comm_segment *s = set->first;
        set->first = s->next;
        segment_free(s);
    }
}
