/* SPDX-License-Identifier: Apache-2.0 */
/* core_record.h - the whole core: its options, tables and lists, and the state of the current input. */
#ifndef TITAN_DAEMON_COORDINATOR_RECORDS_CORE_RECORD_H
#define TITAN_DAEMON_COORDINATOR_RECORDS_CORE_RECORD_H

#include "daemon/coordinator/core.h"
#include "daemon/coordinator/records/job_record.h"
#include "proto/ranges.h"
#include "titan/internal/worker.pb-c.h"

#define CORE_BUCKETS 4096
#define CORE_DEVICES 2
extern const char *const core_devices[CORE_DEVICES]; /* device kinds, in order of preference */
struct core {
    struct core_options options; /* detection times at the present heartbeat interval, see detector_set_interval */
    struct core_options asked;   /* options as given */
    char *jobs_dir, *jobs_token;
    bool secret_set;
    uint8_t secret[MAC_BYTES];
    uint8_t term_secret[MAC_BYTES];
    int64_t term_reported; /* time of the last log line about an unproved term; 0 = never */
    uint64_t last_key;     /* counter of the session keys drawn */
    struct core_time now;
    struct batch *out;
    struct noderec *nodes, *last_node, *names[CORE_BUCKETS];
    uint32_t connected, by_datagram;                /* connected nodes; nodes with heartbeats by datagram */
    uint64_t send_round;                            /* number of the newest round of send_to_members */
    Titan__Internal__CoordinatorMessage *form_sent; /* the FormEpoch of this input, shared by all members */
    struct jobrec *buckets[CORE_BUCKETS];
    struct user *users;           /* all users so far */
    struct lane *lanes;           /* the queue */
    struct queue_head {           /* the first queued job that lacks slots of a device; others may pass it */
        const struct jobrec *job; /* NULL = no job lacks slots */
        bool held;                /* free, returning and loaned slots suffice for it and are kept */
        uint32_t claimed;         /* free slots that the job does not get, because running jobs wait for them */
    } heads[CORE_DEVICES];
    uint32_t idle[CORE_DEVICES]; /* slots left free by the last placement */
    struct jobrec *active, *active_last;
    size_t refusals;            /* refusals of all jobs, records/refusals.h */
    size_t pending, too_large;  /* queued jobs; jobs in the queue that need more than `all` */
    uint32_t all[CORE_DEVICES]; /* slots of the nodes in service, as of the last placement */
    struct noderec *sessions[CORE_BUCKETS];
    struct greeting { /* unregistered sessions with a known identity */
        struct greeting *next;
        uint64_t session;
        char *identity; /* NULL = revoked since */
    } * greetings;
    uint64_t next_worker_id, last_probe;
    uint64_t fenced_term; /* higher term that a node has obeyed; 0 = not fenced */
    char *fenced_by;
    bool stale; /* agents may know more than the restored store */
    int64_t stale_since;
    uint64_t *taken; /* stored workers above options.backup_worker */
    size_t n_taken, cap_taken;
    int64_t late_mono; /* when this process was last found to have stood still; 0 = never */
    struct core_counters counters;
    struct core_recoveries recoveries;
    struct ended_job *ended; /* a ring, run/job_view.c; NULL = no job has ended */
    size_t n_ended;          /* all that were put into the ring */
    bool slots_changed;
    bool unreported; /* a queued job that is too large may lack its event */
    bool unsettled;  /* a message waits for the next tick, see core_options.at_once */
    int64_t last_input;
    /* Cached core_deadline() of all nodes and of all jobs; valid until an input could make it earlier. calm: no job is
     * active, and each connected node has promised rare heartbeats. */
    struct due {
        int64_t node, job;
        bool calm;
    } due;
};

void *core_alloc(size_t bytes); /* zeroed; out of memory ends the process, see batch_alloc */
char *core_strdup(const char *text);
void core_set_string(char **field, const char *text);
uint64_t core_first_epoch(const struct core *c); /* least epoch number to give; 0 = the store was not restored */
void core_set_text(const char **field, const char *text);
void core_later(struct core *c); /* a message waits for the next tick */

#endif
