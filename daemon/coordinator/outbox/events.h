/* SPDX-License-Identifier: Apache-2.0 */
/* events.h - adds events, and changes that move no state, to the batch. */
#ifndef TITAN_DAEMON_COORDINATOR_OUTBOX_EVENTS_H
#define TITAN_DAEMON_COORDINATOR_OUTBOX_EVENTS_H

#include "base/json.h"
#include "daemon/coordinator/records/core_record.h"

struct emit {
    const char *type, *message;   /* message may be batch memory */
    const struct workrec *worker; /* source of rank and node */
    const struct noderec *node;
    const char *detail; /* NULL = {} */
};
/* A JSON object under construction; the batch gets its text. */
struct detail {
    struct buf buf;
    struct json_writer w;
};

/* Attaches an event to a change; j NULL = the event is about no job. */
void event_attach(struct core *c, struct change *change, const struct jobrec *j, struct emit emit);
void detail_begin(struct detail *d);
const char *detail_end(struct core *c, struct detail *d);
const char *event_source_name(uint32_t source);                      /* source: titan.internal.StateSource */
void emit_event(struct core *c, struct jobrec *j, struct emit emit); /* event without a change; j NULL = about no job */
/* The job waits; lacks: missing workers, 0 = it no longer waits. */
void emit_job_waits(struct core *c, struct jobrec *j, uint32_t lacks);
/* The queued job needs more slots than all nodes have; lacks 0 and words NULL = it no longer waits for nodes. */
void emit_job_needs_nodes(struct core *c, struct jobrec *j, uint32_t lacks, const char *words);
void emit_job_desired(struct core *c, struct jobrec *j, const char *message);
/* An active job waits for something else than before; NULL = it no longer waits. */
void emit_job_blocked(struct core *c, struct jobrec *j, const char *words);
void emit_policy(struct core *c, struct noderec *n, const char *type, const char *message, const char *detail);
void emit_loss(struct core *c, const struct jobrec *j, enum loss_cause cause, const struct noderec *n);
void emit_device_failed(struct core *c, const struct workrec *w, const char *words); /* w has ended */
void emit_settled(struct core *c);
/* The job waits undecided, for ms at most. emit_job_decided: the job is decided again. */
void emit_job_undecided(struct core *c, struct jobrec *j, uint32_t unknown, uint32_t all, int64_t ms,
                        const struct noderec *node);
void emit_job_decided(struct core *c, struct jobrec *j);
void emit_origin(struct core *c, struct jobrec *j, const Titan__Internal__StateReady *m);
void emit_recovery_finished(struct core *c, struct jobrec *j);
void emit_checkpoint(struct core *c, struct jobrec *j, const Titan__Internal__CheckpointWritten *m);
void emit_evaluated(struct core *c, struct jobrec *j); /* emits status.evaluation */
void emit_checkpoint_failed(struct core *c, struct jobrec *j, const Titan__Internal__CheckpointFailed *m);
void emit_checkpoint_expired(struct core *c, struct jobrec *j, const struct ckptrec *ckpt);
void emit_node_fit(struct core *c, struct noderec *n, const char *problem); /* problem: "" = the node is fit */

#endif
