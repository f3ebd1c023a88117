/* SPDX-License-Identifier: Apache-2.0 */
/* core_record.h - the core as a whole: its options, tables and lists, and what is under way in the current input. */
#ifndef TITAN_DAEMON_COORDINATOR_RECORDS_CORE_RECORD_H
#define TITAN_DAEMON_COORDINATOR_RECORDS_CORE_RECORD_H

#include "daemon/coordinator/core.h"
#include "daemon/coordinator/records/job_record.h"
#include "proto/ranges.h"
#include "titan/internal/worker.pb-c.h"

#define CORE_BUCKETS 4096
#define CORE_DEVICES 2
extern const char *const core_devices[CORE_DEVICES]; /* kinds, in order of preference */
struct core {
    struct core_options options; /* times of detection at the heartbeat interval of now, see detector_set_interval */
    struct core_options asked;   /* as given */
    char *jobs_dir, *jobs_token;
    bool secret_set;
    uint8_t secret[MAC_BYTES];
    uint8_t term_secret[MAC_BYTES];
    int64_t term_said; /* when a term without a proof was last logged; 0 = never */
    uint64_t last_key; /* of a session that was drawn */
    struct core_time now;
    struct batch *out;
    struct noderec *nodes, *last_node, *names[CORE_BUCKETS];
    uint32_t connected, by_datagram;                /* nodes; those with datagrams that come */
    uint64_t send_round;                            /* number of the newest */
    Titan__Internal__CoordinatorMessage *form_sent; /* in this input; it goes to all members alike */
    struct jobrec *buckets[CORE_BUCKETS];
    struct user *users;           /* all there have been */
    struct lane *lanes;           /* the queue */
    struct queue_head {           /* the first in the queue that lacks slots of a device; others may pass it */
        const struct jobrec *job; /* NULL = none lacks any */
        bool held;                /* what is free, comes back and is on loan is enough for it, and kept */
        uint32_t claimed;         /* free slots that it does not get, since running jobs wait for them */
    } heads[CORE_DEVICES];
    uint32_t idle[CORE_DEVICES]; /* slots that the last placement has left free */
    struct jobrec *active, *active_last;
    size_t refusals;            /* of all jobs, records/refusals.h */
    size_t pending, too_large;  /* jobs in the queue; of them those that need more than `all` */
    uint32_t all[CORE_DEVICES]; /* slots of the nodes in service, as of the last placement */
    struct noderec *sessions[CORE_BUCKETS];
    struct greeting { /* sessions of a known identity that have not registered */
        struct greeting *next;
        uint64_t session;
        char *identity; /* NULL: revoked since */
    } * greetings;
    uint64_t next_worker_id, last_probe;
    uint64_t fenced_term; /* that a node has obeyed, above ours; 0 = we are not fenced */
    char *fenced_by;
    bool stale; /* agents may know what the restored store does not */
    int64_t stale_since;
    uint64_t *taken; /* workers above options.backup_worker that the store has */
    size_t n_taken, cap_taken;
    int64_t late_mono; /* this process was found to have stood still; 0 = never */
    struct core_counters counters;
    bool slots_changed;
    bool unreported; /* a job that is too large has come into the queue, and may not know it yet */
    bool unsettled;  /* something was heard that is not looked at before the next tick, see core_options.at_once */
    int64_t last_input;
    /* core_deadline(), of all nodes and of all jobs, while nothing has come that could make it an earlier one. */
    struct due {
        int64_t node, job;
    } due;
};

void *core_alloc(size_t bytes); /* zeroed; see batch_alloc about running out */
char *core_strdup(const char *text);
void core_set_string(char **field, const char *text);
uint64_t core_first_epoch(const struct core *c); /* no number below it is given; 0 = the store was not restored */
void core_set_text(const char **field, const char *text);
void core_later(struct core *c); /* something was heard that the next tick looks at */

#endif
