/* SPDX-License-Identifier: Apache-2.0 */
/* messages.h - messages to agents. */
#ifndef TITAN_DAEMON_COORDINATOR_OUTBOX_MESSAGES_H
#define TITAN_DAEMON_COORDINATOR_OUTBOX_MESSAGES_H

#include "daemon/coordinator/records/core_record.h"

void send_start(struct core *c, struct jobrec *j, struct noderec *n, const uint64_t *ids, size_t count);
void send_form(struct core *c, struct jobrec *j, struct noderec *n);
void send_revoke(struct core *c, struct jobrec *j, struct noderec *n);
void send_pause(struct core *c, struct jobrec *j, struct noderec *n);
/* asks workers to write a checkpoint at the next step and go on */
void send_checkpoint(struct core *c, const struct jobrec *j);
void send_stop(struct core *c, uint64_t session, uint64_t job_id, uint64_t worker_id, uint32_t grace_ms,
               const char *reason);
/* Stops all workers of the node, at once. */
void send_stop_all(struct core *c, struct noderec *n, const char *reason);
void send_stop_unknown(struct core *c, uint64_t session, uint64_t job_id, uint64_t worker_id);
void send_registration_ack(struct core *c, struct noderec *n);
void send_check(struct core *c, struct noderec *n);        /* asks whether the node sees the jobs' folders */
void send_release_gpus(struct core *c, struct noderec *n); /* asks the agent to check GPUs of unused slots again */
void send_epochs(struct core *c, uint64_t session);        /* asks the agent for the epochs it knows */
/* Calls send once for every node with a rank slot or a departing rank of the current epoch. */
void send_to_members(struct core *c, struct jobrec *j, void (*send)(struct core *, struct jobrec *, struct noderec *));
/* send_to_members() that also calls send for nodes with workers that are ready to join. */
void send_all(struct core *c, struct jobrec *j, void (*send)(struct core *, struct jobrec *, struct noderec *));

#endif
