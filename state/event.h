/* event.h - what happened, in order. Rows are only ever added, in the transaction of the change they speak of. */
#ifndef TITAN_STATE_EVENT_H
#define TITAN_STATE_EVENT_H

#include "state/db.h"

struct event {
    uint64_t id; /* given by the store; increases over all jobs */
    uint64_t job_id;
    int64_t at_ms;
    const char *type;    /* "job.state"; docs/api.md lists all */
    const char *message; /* one sentence for people */
    uint64_t epoch, step;
    int32_t rank;       /* -1 = none */
    const char *node;   /* NULL = none */
    const char *detail; /* a JSON object; NULL = {} */
};

titan_status event_add(struct db *db, const struct event *e, struct titan_error *err) TITAN_MUST_USE;
/* Events with id > after in order, of one job or (job_id 0) all, at most limit. each returns false to stop; its event
 * is valid during the call. */
titan_status event_list(struct db *db, uint64_t job_id, uint64_t after, int limit,
                        bool (*each)(const struct event *e, void *data), void *data,
                        struct titan_error *err) TITAN_MUST_USE;

#endif
