/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/ranges.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/utf8.h"
#include "titan/internal/agent.pb-c.h"
#include "titan/internal/enrol.pb-c.h"
#include "titan/internal/worker.pb-c.h"
#include "titan/v1/titan.pb-c.h"

#ifndef JOB_WORKERS_MAX
#define JOB_WORKERS_MAX 1024 /* as in state/job.h */
#endif
#define SLOTS_MAX 4096
#define NAME_MAX_BYTES 253
#define ADDRESS_MAX 320
#define PATH_MAX_BYTES 4095
#define WORDS_MAX 1024
#define LIST_MAX 65536 /* jobs, epochs or checkpoints in one message */
#define MESSAGE_MAX (UINT64_C(4) << 20)
#define FIELD_NUMBER_MAX 536870911 /* protobuf's */
#define MS_MAX 1e12

#define ALPHANUM "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
#define NAME_SET ALPHANUM "._-"
#define ADDRESS_SET ALPHANUM "._-:[]%"
#define DEVICE_SET "abcdefghijklmnopqrstuvwxyz0123456789_"

/* --- rows --------------------------------------------------------------------------------------------------------- */
#define NUMBER(name, lo_, hi_)                                                                                         \
    {                                                                                                                  \
        .field = #name, .kind = RANGE_NUMBER, .lo = (lo_), .hi = (hi_)                                                 \
    }
#define NUMBERS(name, most_, lo_, hi_)                                                                                 \
    {                                                                                                                  \
        .field = #name, .kind = RANGE_NUMBER, .count = (most_), .lo = (lo_), .hi = (hi_)                               \
    }
#define SIGNED(name, from_, until_)                                                                                    \
    {                                                                                                                  \
        .field = #name, .kind = RANGE_SIGNED, .from = (from_), .until = (until_)                                       \
    }
#define REAL(name, least_, most_)                                                                                      \
    {                                                                                                                  \
        .field = #name, .kind = RANGE_REAL, .least = (least_), .most = (most_)                                         \
    }
#define REAL_ANY(name)                                                                                                 \
    {                                                                                                                  \
        .field = #name, .kind = RANGE_REAL, .any = true                                                                \
    }
#define FLAG(name)                                                                                                     \
    {                                                                                                                  \
        .field = #name, .kind = RANGE_FLAG                                                                             \
    }
#define TEXT(name, lo_, hi_, set_)                                                                                     \
    {                                                                                                                  \
        .field = #name, .kind = RANGE_TEXT, .lo = (lo_), .hi = (hi_), .set = (set_)                                    \
    }
#define WORDS(name)                                                                                                    \
    {                                                                                                                  \
        .field = #name, .kind = RANGE_TEXT, .hi = WORDS_MAX                                                            \
    }
#define PATH(name)                                                                                                     \
    {                                                                                                                  \
        .field = #name, .kind = RANGE_PATH, .hi = PATH_MAX_BYTES                                                       \
    }
#define PATHS(name)                                                                                                    \
    {                                                                                                                  \
        .field = #name, .kind = RANGE_PATH, .count = LIST_MAX, .hi = PATH_MAX_BYTES                                    \
    }
#define ANY_TEXT(name, hi_)                                                                                            \
    {                                                                                                                  \
        .field = #name, .kind = RANGE_LINES, .any = true, .hi = (hi_)                                                  \
    }
#define BYTES(name, lo_, hi_)                                                                                          \
    {                                                                                                                  \
        .field = #name, .kind = RANGE_BYTES, .lo = (lo_), .hi = (hi_)                                                  \
    }
#define PART(name)                                                                                                     \
    {                                                                                                                  \
        .field = #name, .kind = RANGE_MESSAGE                                                                          \
    }
#define NEEDED(name)                                                                                                   \
    {                                                                                                                  \
        .field = #name, .kind = RANGE_MESSAGE, .lo = 1                                                                 \
    }
#define PARTS(name, least_, most_)                                                                                     \
    {                                                                                                                  \
        .field = #name, .kind = RANGE_MESSAGE, .lo = (least_), .count = (most_)                                        \
    }

#define COUNT(name) NUMBER(name, 0, RANGE_SIZE_MAX)
#define COUNT32(name) NUMBER(name, 0, UINT32_MAX)
#define RANDOM(name) NUMBER(name, 0, UINT64_MAX)
#define TERM(name) NUMBER(name, 0, RANGE_TERM_MAX)
#define JOB(name) NUMBER(name, 1, RANGE_ID_MAX)
#define WORKER(name) NUMBER(name, 1, RANGE_ID_MAX)
#define EPOCH(name) NUMBER(name, 1, RANGE_EPOCH_MAX)
#define EPOCH_OR_NONE(name) NUMBER(name, 0, RANGE_EPOCH_MAX)
#define STEP(name) NUMBER(name, 0, RANGE_STEP_MAX)
#define RANK(name) COUNT32(name) /* -1 for no rank */
#define NODE(name) TEXT(name, 1, NAME_MAX_BYTES, NAME_SET)
#define ADDRESS(name) TEXT(name, 0, ADDRESS_MAX, ADDRESS_SET)
#define WALL(name) SIGNED(name, -(INT64_C(1) << 53), INT64_C(1) << 53)
#define KEY(name) BYTES(name, 0, 32)
#define SUBJECT JOB(job_id), WORKER(worker_id)

/* --- agents and the coordinator ----------------------------------------------------------------------------------- */
static const struct range agent_message[] = {
    PART(registration),  PART(heartbeat),         PART(worker_started),
    PART(worker_ready),  PART(worker_quiesced),   PART(progress),
    PART(worker_exited), PART(checkpoint),        PART(finished),
    PART(log),           PART(stalled),           PART(probe_result),
    PART(state_ready),   PART(leader_epoch),      PART(refused),
    PART(straggles),     PART(checkpoint_failed), PART(evaluated),
    TERM(term),          PART(checked),           PART(leaves),
    PART(gpus),
};
static const struct range coordinator_message[] = {
    PART(ack),
    PART(start),
    PART(form),
    PART(revoke),
    PART(pause),
    PART(stop),
    PART(log),
    PART(checkpoint_committed),
    PART(heartbeat_answer),
    PART(probe),
    PART(list_epochs),
    TERM(term),
    PART(check),
    PART(release_gpus),
};
static const struct range check_node[] = {COUNT(request_id),
                                          PATH(jobs_dir),
                                          TEXT(token, 0, 64, ALPHANUM),
                                          SIGNED(wall_ms, 0, INT64_C(1) << 52),
                                          TEXT(version, 0, 128, NULL),
                                          PARTS(roots, 0, 64),
                                          BYTES(listen, 0, 16),
                                          PARTS(reach, 0, 64)};
static const struct range check_root[] = {PATH(path), FLAG(writes)};
static const struct range reach_node[] = {NODE(node), ADDRESS(address), BYTES(token, 16, 16)};
static const struct range agent_leaves[] = {NUMBER(deadline_ms, 0, 86400000)};
static const struct range node_checked[] = {COUNT(request_id),   WORDS(problem),         PARTS(findings, 0, 64),
                                            PARTS(roots, 0, 64), NUMBER(port, 0, 65535), FLAG(reaches)};
static const struct range root_mark[] = {PATH(path), TEXT(mark, 0, 64, ALPHANUM)};
static const struct range node_finding[] = {TEXT(what, 1, 31, DEVICE_SET), FLAG(wrong), WORDS(text)};
static const struct range agent_registration[] = {
    NODE(node),
    NUMBER(slots, 1, SLOTS_MAX),
    TEXT(device, 1, 15, DEVICE_SET),
    ADDRESS(address),
    TEXT(version, 0, 128, NULL),
    COUNT(memory_bytes),
    PARTS(workers, 0, LIST_MAX),
    RANDOM(incarnation),
    TERM(seen_term),
    NUMBER(peer_port, 0, 65535),
    PARTS(leader_epochs, 0, LIST_MAX),
    FLAG(lists_epochs),
    PARTS(known, 0, LIST_MAX),
    FLAG(proves),
    KEY(seen_proof),
    FLAG(checks),
    PART(gpus),
    BYTES(installation, 0, 16),
    FLAG(ephemeral),
};
static const struct range node_gpus[] = {PARTS(gpus, 0, SLOTS_MAX)};
static const struct range release_gpus[] = {NUMBERS(slots, SLOTS_MAX, 0, SLOTS_MAX - 1)};
static const struct range gpu_state[] = {
    NUMBER(slot, 0, SLOTS_MAX - 1),
    TEXT(name, 0, 95, NULL),
    TEXT(uuid, 0, 95, NULL),
    COUNT(memory_used),
    COUNT(memory_total),
    NUMBER(celsius, 0, 1000),
    FLAG(ecc),
    COUNT(ecc_errors),
    COUNT32(xid),
    NUMBER(health, 0, TITAN__INTERNAL__GPU_HEALTH__GPU_FAULTY),
    WORDS(reason),
    NUMBER(job_id, 0, RANGE_ID_MAX),
    NUMBER(worker_id, 0, RANGE_ID_MAX),
};
static const struct range list_epochs[] = {TERM(restored_term)};
static const struct range epochs_known[] = {JOB(job_id), PARTS(epochs, 0, LIST_MAX), PATH(checkpoint_path)};
static const struct range live_worker[] = {
    SUBJECT,
    EPOCH_OR_NONE(epoch),
    RANK(rank),
    STEP(step),
    NUMBER(state, 0, TITAN__INTERNAL__WORKER_PHASE__WORKER_DONE),
    ADDRESS(address),
    PART(quiesced),
};
static const struct range agent_heartbeat[] = {
    NUMBER(slots_used, 0, LIST_MAX),
    COUNT(number),
    COUNT(old_terms),
    COUNT(old_epochs),
    COUNT(other_epochs),
    COUNT(forged),
    COUNT(out_of_range),
    COUNT(unproved),
};
static const struct range heartbeat_answer[] = {COUNT(number)};
static const struct range ack[] = {TERM(term), COUNT32(heartbeat_ms), COUNT32(away_ms), COUNT32(leader_lease_ms),
                                   KEY(key),   KEY(term_proof)};
static const struct range probe_node[] = {RANDOM(probe_id), NODE(node), ADDRESS(address), COUNT32(timeout_ms),
                                          KEY(key)};
static const struct range probe_result[] = {RANDOM(probe_id), NODE(node), FLAG(reached)};
static const struct range start_workers[] = {
    JOB(job_id),
    NUMBERS(worker_ids, LIST_MAX, 1, RANGE_ID_MAX),
    ANY_TEXT(recipe, MESSAGE_MAX),
    PATH(directory),
    TEXT(device, 0, 15, DEVICE_SET),
    TEXT(run, 0, 127, NAME_SET),
    ANY_TEXT(user, 255),
    FLAG(has_uid),
    COUNT32(uid),
};
static const struct range worker_started[] = {SUBJECT, SIGNED(pid, 0, INT32_MAX)};
static const struct range member[] = {WORKER(worker_id), TEXT(node, 0, NAME_MAX_BYTES, NAME_SET), ADDRESS(address),
                                      ADDRESS(peer_address)};
static const struct range form_epoch[] = {
    JOB(job_id),
    EPOCH(epoch),
    BYTES(comm_id, 16, 16),
    PARTS(members, 1, JOB_WORKERS_MAX),
    NUMBER(source, 0, TITAN__INTERNAL__STATE_SOURCE__STATE_MEMORY),
    STEP(resume_step),
    PATH(checkpoint_path),
    NUMBERS(state_holders, JOB_WORKERS_MAX, 1, RANGE_ID_MAX),
    EPOCH_OR_NONE(source_epoch),
    PATHS(older_checkpoints),
    PARTS(departing, 0, JOB_WORKERS_MAX),
    NUMBERS(worlds, JOB_WORKERS_MAX, 1, JOB_WORKERS_MAX),
    FLAG(memory_only),
    KEY(key),
};
static const struct range revoke_epoch[] = {JOB(job_id), EPOCH_OR_NONE(epoch)};
static const struct range pause_job[] = {
    JOB(job_id), EPOCH_OR_NONE(epoch), FLAG(checkpoint), FLAG(go_on), NUMBER(world, 0, JOB_WORKERS_MAX),
};
static const struct range stop_workers[] = {
    JOB(job_id),           NUMBERS(worker_ids, LIST_MAX, 1, RANGE_ID_MAX),
    COUNT32(grace_ms),     ANY_TEXT(reason, MESSAGE_MAX),
    FLAG(must_checkpoint),
};
static const struct range log_request[] = {
    COUNT(request_id), JOB(job_id),  SIGNED(rank, INT32_MIN, INT32_MAX), FLAG(follow), COUNT32(tail_lines),
    FLAG(cancel),      FLAG(flight), PARTS(after, 0, LOG_POSITIONS_MAX),
};
static const struct range log_position[] = {NUMBER(worker_id, 1, RANGE_ID_MAX), RANDOM(position)};
static const struct range log_chunk[] = {
    COUNT(request_id),
    SIGNED(rank, -1, JOB_WORKERS_MAX),
    NUMBER(worker_id, 0, RANGE_ID_MAX),
    BYTES(data, 0, MESSAGE_MAX),
    FLAG(end),
    FLAG(cut),
    RANDOM(position),
};

/* --- agents among each other -------------------------------------------------------------------------------------- */
static const struct range peer_message[] = {
    RANDOM(id),
    TEXT(from, 0, NAME_MAX_BYTES, NAME_SET), /* "" for the coordinator */
    NUMBER(job_id, 0, RANGE_ID_MAX),
    FLAG(ping),
    FLAG(pong),
    PART(propose),
    PART(promise),
    PART(commit),
    PART(revoke),
    PART(quiesced),
    TERM(term),
    BYTES(proof, 0, 8 * 32),
    PART(ask),
    PART(state),
    PART(heartbeat),
    PART(heartbeat_answer),
    RANDOM(number), /* of an epoch or a probe */
    TEXT(to, 0, NAME_MAX_BYTES, NAME_SET),
    BYTES(covered_key, 0, 8 * 32),
};
static const struct range peer_heartbeat[] = {RANDOM(incarnation), COUNT(number), FLAG(hears)};
static const struct range peer_state[] = {
    EPOCH_OR_NONE(epoch),
    NUMBERS(alive, LIST_MAX, 1, RANGE_ID_MAX),
    FLAG(coordinator),
    FLAG(finished),
};
static const struct range epoch_promise[] = {
    EPOCH(epoch),      FLAG(granted),       EPOCH_OR_NONE(seen_epoch),
    FLAG(coordinator), COUNT32(contact_ms), NUMBERS(counts, LIST_MAX, 0, RANGE_EPOCH_MAX),
};
static const struct range job_record[] = {
    JOB(job_id),
    TERM(term),
    PART(accepted),
    EPOCH_OR_NONE(promised_epoch),
    BYTES(promised_id, 0, 16),
    PARTS(leader_epochs, 0, LIST_MAX),
    PARTS(before, 0, LIST_MAX),
};
static const struct range leader_epoch[] = {NEEDED(epoch), TERM(term), TEXT(leader, 0, NAME_MAX_BYTES, NAME_SET)};
static const struct range refused[] = {
    NUMBER(job_id, 0, RANGE_ID_MAX), EPOCH_OR_NONE(epoch), EPOCH_OR_NONE(seen_epoch), TERM(seen_term), KEY(seen_proof),
};

/* --- what workers say --------------------------------------------------------------------------------------------- */
static const struct range worker_ready[] = {SUBJECT, ADDRESS(address), STEP(last_step)};
static const struct range state_ready[] = {
    SUBJECT,
    EPOCH_OR_NONE(epoch),
    NUMBER(recovery_source, 0, TITAN__INTERNAL__RECOVERY_SOURCE__SOURCE_BUDDY),
    STEP(step),
    COUNT(bytes_moved),
    RANDOM(params_hash),
    FLAG(rolled_forward),
    REAL(connect_ms, 0, MS_MAX),
    REAL(plan_ms, 0, MS_MAX),
    REAL(state_ms, 0, MS_MAX),
    REAL(prepare_ms, 0, MS_MAX),
    PATH(damaged_checkpoint),
};
static const struct range quiesced[] = {
    SUBJECT,        EPOCH_OR_NONE(epoch),           STEP(last_step),
    FLAG(paused),   EPOCH_OR_NONE(installed_epoch), EPOCH_OR_NONE(pending_epoch),
    FLAG(prepared),
};
static const struct range stalled[] = {
    SUBJECT, EPOCH_OR_NONE(epoch), STEP(step), RANDOM(actions), COUNT32(for_ms), FLAG(stopped),
};
static const struct range straggles[] = {
    SUBJECT, EPOCH_OR_NONE(epoch), REAL(busy_ms, 0, 1e18), REAL(median_ms, 0, 1e18), COUNT32(steps),
};
static const struct range progress[] = {
    SUBJECT,
    EPOCH_OR_NONE(epoch),
    STEP(step),
    REAL_ANY(loss), /* NaN for a diverged run */
    REAL_ANY(grad_norm),
    REAL(learning_rate, 0, 1e9),
    REAL(tokens_per_second, 0, 1e18),
    REAL(mfu, 0, 1e6),
    REAL(step_ms, 0, MS_MAX),
    COUNT(tokens),
    NUMBER(world_size, 0, JOB_WORKERS_MAX),
    COUNT(memory_bytes),
    COUNT32(skipped_steps),
    WALL(at_ms),
    REAL(busy_ms, 0, 1e18),
    REAL_ANY(loss_max),
    PART(split),
    REAL(tflops, 0, 1e18),
    REAL(mfu_causal, 0, 1e6),
    PART(experts),
};
static const struct range expert_load[] = {
    REAL(least, 0, 1e18),   REAL(most, 0, 1e18),           REAL(mean, 0, 1e18),
    REAL(dropped, 0, 1e18), REAL(further_rounds, 0, 1e18), REAL(room_needed, 0, 1e18),
};
static const struct range step_split[] = {
    REAL(data_ms, 0, MS_MAX),
    REAL(compute_ms, 0, MS_MAX),
    REAL(communication_ms, 0, MS_MAX),
    REAL(checkpoint_ms, 0, MS_MAX),
    REAL(straggler_ms, 0, MS_MAX),
    REAL(slowest_busy_ms, 0, MS_MAX),
    NUMBER(slowest_rank, 0, JOB_WORKERS_MAX - 1),
};
static const struct range evaluated[] = {
    SUBJECT,
    EPOCH(epoch),
    NUMBER(step, 1, RANGE_STEP_MAX),
    REAL_ANY(loss), /* as for a step */
    NUMBER(tokens, 1, RANGE_SIZE_MAX),
    COUNT(bytes),
    REAL(ms, 0, MS_MAX),
};
static const struct range worker_exited[] = {
    SUBJECT,         SIGNED(exit_code, -1, 255), SIGNED(signal, 0, 64), WORDS(reason),
    STEP(last_step), NUMBER(cause, 0, 63), /* a newer agent's unknown cause counts as a crash */
};
static const struct range checkpoint[] = {
    SUBJECT,
    EPOCH_OR_NONE(epoch),
    STEP(step),
    PATH(path),
    COUNT(bytes),
    NUMBER(world_size, 0, JOB_WORKERS_MAX),
    STEP(resumable_step),
    STEP(sound_step),
};
static const struct range checkpoint_failure[] = {
    SUBJECT, EPOCH(epoch), STEP(step), PATH(path), WORDS(reason), FLAG(reading),
};
static const struct range committed[] = {JOB(job_id), STEP(step), PATHS(expired_paths)};
static const struct range finished[] = {SUBJECT, EPOCH_OR_NONE(epoch), STEP(step)};

/* --- workers and their agent -------------------------------------------------------------------------------------- */
static const struct range worker_to_agent[] = {
    PART(registration), PART(ready),       PART(quiesced), PART(progress),          PART(checkpoint), PART(finished),
    PART(failing),      PART(state_ready), PART(refused),  PART(checkpoint_failed), PART(evaluated),
};
static const struct range worker_registration[] = {
    SUBJECT,
    BYTES(token, 16, 16),
    SIGNED(pid, 0, INT32_MAX),
    EPOCH_OR_NONE(epoch),
    RANK(rank),
    STEP(step),
    NUMBER(phase, 0, TITAN__INTERNAL__WORKER_PHASE__WORKER_DONE),
    ADDRESS(address),
};
static const struct range worker_failing[] = {SUBJECT, ANY_TEXT(reason, MESSAGE_MAX), SIGNED(exit_code, -1, 255)};
static const struct range agent_to_worker[] = {
    PART(lease), PART(form), PART(revoke), PART(pause), PART(stop), PART(checkpoint_committed), TERM(term),
};
static const struct range worker_lease[] = {COUNT32(lease_ms), WALL(epoch_until_ms), ADDRESS(host)};
static const struct range worker_stop[] = {
    COUNT32(grace_ms),
    FLAG(checkpoint),
    ANY_TEXT(reason, MESSAGE_MAX),
    FLAG(must_checkpoint),
};

/* --- clients' requests -------------------------------------------------------------------------------------------- */

/* Lengths as in daemon/api/api.h, base/labels.h and docs/api.md. */
#define JOB_OR_ALL(name) NUMBER(name, 0, RANGE_ID_MAX)
#define WORD(name, hi_) TEXT(name, 0, hi_, NULL)
#define NAME(name, hi_)                                                                                                \
    {                                                                                                                  \
        .field = #name, .kind = RANGE_TEXT, .hi = (hi_), .seen = true                                                  \
    }
#define TEXTS(name, most_, hi_)                                                                                        \
    {                                                                                                                  \
        .field = #name, .kind = RANGE_TEXT, .count = (most_), .hi = (hi_)                                              \
    }
#define REASON_MAX 256
#define LABELS(name) TEXTS(name, 32, 193)
#define REQUEST_PEM_MAX 65536

static const struct range nothing[] = {FLAG(none)}; /* for messages without fields */
static const struct range submit_request[] = {
    ANY_TEXT(recipe, MESSAGE_MAX), /* the recipe parser reports errors and positions */
    NAME(name, 128),
    WORD(idempotency_key, 128),
    WORD(recipe_path, PATH_MAX_BYTES), /* a text, because it is displayed */
    WORD(user, 64),
    JOB_OR_ALL(resume_job),
    NUMBER(folder, 0, TITAN__V1__CHECKPOINT_FOLDER__FRESH),
    LABELS(labels),
    TEXTS(overrides, 256, 4096),
};
static const struct range of_job[] = {JOB_OR_ALL(job_id)};
static const struct range list_jobs_request[] = {
    NUMBERS(states, 64, 0, TITAN__V1__JOB_STATE__CANCELLED),
    WORD(user, 64),
    NUMBER(page_size, 0, 1000),
    WORD(page_token, 64),
    WORD(name, 129),
    LABELS(labels),
    FLAG(count),
};
static const struct range cancel_job_request[] = {JOB_OR_ALL(job_id), WORD(reason, REASON_MAX), COUNT32(grace_ms),
                                                  FLAG(checkpoint)};
static const struct range resize_job_request[] = {JOB_OR_ALL(job_id), COUNT32(workers), COUNT32(min_workers),
                                                  COUNT32(max_workers)};
/* An id or step to continue after may be any number: nothing follows the last one. */
static const struct range watch_events_request[] = {JOB_OR_ALL(job_id), RANDOM(after_event_id), FLAG(follow)};
static const struct range audit_request[] = {RANDOM(after_event_id), WALL(since_ms), WORD(actor, 255), FLAG(follow)};
static const struct range logs_request[] = {JOB_OR_ALL(job_id), SIGNED(rank, -1, INT32_MAX),
                                            FLAG(follow),       COUNT32(tail_lines),
                                            FLAG(flight),       PARTS(after, 0, LOG_POSITIONS_MAX)};
static const struct range metrics_request[] = {JOB_OR_ALL(job_id), RANDOM(after_step), FLAG(follow),
                                               NUMBER(after_epoch, 0, RANGE_EPOCH_MAX)};
static const struct range create_token_request[] = {WORD(name, 64), WORD(role, 64),
                                                    NUMBER(ttl_s, 0, UINT64_C(400) * 86400)};
static const struct range revoke_token_request[] = {WORD(id, 64)};
static const struct range revoke_join_request[] = {WORD(id, 64)};
static const struct range of_node[] = {WORD(node, NAME_MAX_BYTES)};
static const struct range drain_node_request[] = {WORD(node, NAME_MAX_BYTES), WORD(reason, REASON_MAX),
                                                  COUNT(deadline_ms), WALL(from_ms), COUNT(for_ms)};
static const struct range join_node_request[] = {WORD(node, NAME_MAX_BYTES),
                                                 NUMBER(ttl_ms, 0, UINT64_C(30) * 86400000)};
static const struct range revoke_certificate_request[] = {WORD(name, WORDS_MAX), WORD(reason, REASON_MAX)};
static const struct range enroll_request[] = {WORD(node, NAME_MAX_BYTES), WORD(token, 256),
                                              BYTES(request, 0, REQUEST_PEM_MAX)};
static const struct range renew_request[] = {BYTES(request, 0, REQUEST_PEM_MAX)};

static const struct table {
    const ProtobufCMessageDescriptor *of;
    const struct range *rows;
    size_t n;
} tables[] = {
#define OF_CLIENTS(message, rows_)                                                                                     \
    {                                                                                                                  \
        &titan__v1__##message##__descriptor, rows_, ARRAY_SIZE(rows_)                                                  \
    }
#define EMPTY(message)                                                                                                 \
    {                                                                                                                  \
        &titan__v1__##message##__descriptor, nothing, 0                                                                \
    }
    OF_CLIENTS(submit_request, submit_request),
    OF_CLIENTS(get_job_request, of_job),
    OF_CLIENTS(get_recipe_request, of_job),
    OF_CLIENTS(list_jobs_request, list_jobs_request),
    OF_CLIENTS(cancel_job_request, cancel_job_request),
    OF_CLIENTS(remove_job_request, of_job),
    OF_CLIENTS(resize_job_request, resize_job_request),
    OF_CLIENTS(checkpoint_job_request, of_job),
    OF_CLIENTS(watch_events_request, watch_events_request),
    OF_CLIENTS(audit_request, audit_request),
    OF_CLIENTS(create_token_request, create_token_request),
    EMPTY(list_tokens_request),
    OF_CLIENTS(revoke_token_request, revoke_token_request),
    OF_CLIENTS(logs_request, logs_request),
    OF_CLIENTS(log_position, log_position),
    OF_CLIENTS(metrics_request, metrics_request),
    OF_CLIENTS(list_checkpoints_request, of_job),
    EMPTY(list_nodes_request),
    EMPTY(check_nodes_request),
    OF_CLIENTS(drain_node_request, drain_node_request),
    OF_CLIENTS(undrain_node_request, of_node),
    OF_CLIENTS(forget_node_request, of_node),
    OF_CLIENTS(remove_node_request, of_node),
    OF_CLIENTS(join_node_request, join_node_request),
    EMPTY(list_joins_request),
    OF_CLIENTS(revoke_join_request, revoke_join_request),
    OF_CLIENTS(revoke_certificate_request, revoke_certificate_request),
    EMPTY(backup_request),
    EMPTY(counters_request),
    EMPTY(version_request),
#undef OF_CLIENTS
#undef EMPTY
#define TABLE(message, rows_)                                                                                          \
    {                                                                                                                  \
        &titan__internal__##message##__descriptor, rows_, ARRAY_SIZE(rows_)                                            \
    }
    TABLE(agent_message, agent_message),
    TABLE(worker_progress, progress),
    TABLE(step_split, step_split),
    TABLE(expert_load, expert_load),
    TABLE(agent_heartbeat, agent_heartbeat),
    TABLE(coordinator_message, coordinator_message),
    TABLE(heartbeat_answer, heartbeat_answer),
    TABLE(peer_message, peer_message),
    TABLE(peer_heartbeat, peer_heartbeat),
    TABLE(form_epoch, form_epoch),
    TABLE(member, member),
    TABLE(worker_to_agent, worker_to_agent),
    TABLE(agent_to_worker, agent_to_worker),
    TABLE(worker_lease, worker_lease),
    TABLE(agent_registration, agent_registration),
    TABLE(live_worker, live_worker),
    TABLE(list_epochs, list_epochs),
    TABLE(check_node, check_node),
    TABLE(node_checked, node_checked),
    TABLE(check_root, check_root),
    TABLE(reach_node, reach_node),
    TABLE(root_mark, root_mark),
    TABLE(agent_leaves, agent_leaves),
    TABLE(node_gpus, node_gpus),
    TABLE(gpu_state, gpu_state),
    TABLE(release_gpus, release_gpus),
    TABLE(node_finding, node_finding),
    TABLE(epochs_known, epochs_known),
    TABLE(registration_ack, ack),
    TABLE(probe_node, probe_node),
    TABLE(probe_result, probe_result),
    TABLE(peer_state, peer_state),
    TABLE(agent_job_record, job_record),
    TABLE(epoch_promise, epoch_promise),
    TABLE(leader_epoch, leader_epoch),
    TABLE(epoch_refused, refused),
    TABLE(start_workers, start_workers),
    TABLE(worker_started, worker_started),
    TABLE(worker_ready, worker_ready),
    TABLE(state_ready, state_ready),
    TABLE(revoke_epoch, revoke_epoch),
    TABLE(pause_job, pause_job),
    TABLE(worker_quiesced, quiesced),
    TABLE(worker_stalled, stalled),
    TABLE(worker_straggles, straggles),
    TABLE(stop_workers, stop_workers),
    TABLE(worker_exited, worker_exited),
    TABLE(checkpoint_written, checkpoint),
    TABLE(checkpoint_failed, checkpoint_failure),
    TABLE(checkpoint_committed, committed),
    TABLE(worker_finished, finished),
    TABLE(worker_evaluated, evaluated),
    TABLE(log_request, log_request),
    TABLE(log_position, log_position),
    TABLE(agent_log_chunk, log_chunk),
    TABLE(worker_registration, worker_registration),
    TABLE(worker_failing, worker_failing),
    TABLE(worker_stop, worker_stop),
    TABLE(enroll_request, enroll_request),
    TABLE(renew_request, renew_request),
#undef TABLE
};

static const struct table *find_table(const ProtobufCMessageDescriptor *of)
{
    for (size_t i = 0; i < ARRAY_SIZE(tables); i++)
        if (tables[i].of == of)
            return &tables[i];
    return NULL;
}

const struct range *range_rows(const ProtobufCMessageDescriptor *of, size_t *ret_n)
{
    const struct table *t = find_table(of);
    *ret_n = t ? t->n : 0;
    return t ? t->rows : NULL;
}

/* --- the walk ----------------------------------------------------------------------------------------------------- */

/* Position of a value in the message: from the field up to the root. */
struct where {
    const struct where *up;
    const char *name;
};

static void put_where(const struct where *w, char *text, size_t size)
{
    if (w->up)
        put_where(w->up, text, size);
    size_t len = strlen(text);
    titan_assert(len < size);
    (void)snprintf(text + len, size - len, "%s%s", len ? "." : "", w->name);
}

static titan_status refuse(const struct where *w, struct titan_error *err, const char *value, const char *range)
{
    char text[160] = "";
    if (!err)
        return TITAN_EINVAL;
    put_where(w, text, sizeof(text));
    return titan_fail(err, TITAN_EINVAL, "%s %s: %s", text, value, range);
}

static titan_status refuse_signed(const struct where *w, const struct range *r, int64_t is, struct titan_error *err)
{
    char value[40], range[64];
    (void)snprintf(value, sizeof(value), "= %" PRId64, is);
    if (r->kind == RANGE_SIGNED)
        (void)snprintf(range, sizeof(range), "%" PRId64 " to %" PRId64, r->from, r->until);
    else
        (void)snprintf(range, sizeof(range), "%" PRIu64 " to %" PRIu64, r->lo, r->hi);
    return refuse(w, err, value, range);
}

static titan_status check_whole(const struct where *w, const struct range *r, int64_t is, struct titan_error *err)
{
    titan_assert(r->kind == RANGE_NUMBER || r->kind == RANGE_SIGNED);
    const bool fits = r->kind == RANGE_SIGNED ? is >= r->from && is <= r->until
                                              : is >= 0 && (uint64_t)is >= r->lo && (uint64_t)is <= r->hi;
    return fits ? TITAN_OK : refuse_signed(w, r, is, err);
}

static titan_status check_unsigned(const struct where *w, const struct range *r, uint64_t is, struct titan_error *err)
{
    titan_assert(r->kind == RANGE_NUMBER && r->lo <= r->hi);
    if (is >= r->lo && is <= r->hi)
        return TITAN_OK;
    char value[40], range[64];
    (void)snprintf(value, sizeof(value), "= %" PRIu64, is);
    (void)snprintf(range, sizeof(range), "%" PRIu64 " to %" PRIu64, r->lo, r->hi);
    return refuse(w, err, value, range);
}

static titan_status check_real(const struct where *w, const struct range *r, double is, struct titan_error *err)
{
    titan_assert(r->kind == RANGE_REAL && (r->any || r->least <= r->most));
    char value[40], range[64];
    if (r->any || (is >= r->least && is <= r->most)) /* false for NaN */
        return TITAN_OK;
    (void)snprintf(value, sizeof(value), "= %g", is);
    (void)snprintf(range, sizeof(range), "%g to %g", r->least, r->most);
    return refuse(w, err, value, range);
}

static titan_status check_length(const struct where *w, const struct range *r, size_t len, struct titan_error *err)
{
    titan_assert(r->lo <= r->hi);
    char value[40], range[80];
    if (len >= r->lo && len <= r->hi)
        return TITAN_OK;
    (void)snprintf(value, sizeof(value), "has %zu bytes", len);
    (void)snprintf(range, sizeof(range), "%" PRIu64 " to %" PRIu64, r->lo, r->hi);
    return refuse(w, err, value, range);
}

/* A path may contain any other character, as a file's name may. */
static bool is_fit(const struct range *r, const char *text, size_t len)
{
    size_t at = 0;
    for (; (at += text_unfit(text + at, len - at)) < len; at++)
        if (r->kind == RANGE_PATH ? (unsigned char)text[at] < 0x80
                                  : r->kind != RANGE_LINES || !strchr("\n\t\r", text[at]))
            return false;
    return true;
}

static titan_status check_text(const struct where *w, const struct range *r, const char *text, struct titan_error *err)
{
    const size_t len = strlen(text);
    TRY(check_length(w, r, len, err));
    if (r->any)
        return TITAN_OK;
    if (!is_fit(r, text, len))
        return refuse(w, err, "has a control character, or one that cannot be seen", "none is allowed");
    if (r->seen && text_blank(text))
        return refuse(w, err, "has spaces only", "a word is wanted, or none");
    if (r->set && text[strspn(text, r->set)])
        return refuse(w, err, "has a strange character", "letters, digits and a few signs are allowed");
    if (r->kind != RANGE_PATH && !r->set && utf8_check(text, len) != len)
        return refuse(w, err, "is no text", "UTF-8 is allowed");
    return TITAN_OK;
}

static titan_status check_message(const struct where *w, const ProtobufCMessage *m, struct titan_error *err);

static titan_status check_value(const struct where *w, const ProtobufCFieldDescriptor *f, const struct range *r,
                                const void *at, struct titan_error *err)
{
    switch (f->type) {
    case PROTOBUF_C_TYPE_INT32:
    case PROTOBUF_C_TYPE_SINT32:
    case PROTOBUF_C_TYPE_SFIXED32:
    case PROTOBUF_C_TYPE_ENUM:
        return check_whole(w, r, *(const int32_t *)at, err);
    case PROTOBUF_C_TYPE_INT64:
    case PROTOBUF_C_TYPE_SINT64:
    case PROTOBUF_C_TYPE_SFIXED64:
        return check_whole(w, r, *(const int64_t *)at, err);
    case PROTOBUF_C_TYPE_UINT32:
    case PROTOBUF_C_TYPE_FIXED32:
        return check_unsigned(w, r, *(const uint32_t *)at, err);
    case PROTOBUF_C_TYPE_UINT64:
    case PROTOBUF_C_TYPE_FIXED64:
        return check_unsigned(w, r, *(const uint64_t *)at, err);
    case PROTOBUF_C_TYPE_FLOAT:
        return check_real(w, r, (double)*(const float *)at, err);
    case PROTOBUF_C_TYPE_DOUBLE:
        return check_real(w, r, *(const double *)at, err);
    case PROTOBUF_C_TYPE_BOOL:
        return TITAN_OK;
    case PROTOBUF_C_TYPE_STRING:
        return check_text(w, r, *(char *const *)at ? *(char *const *)at : "", err);
    case PROTOBUF_C_TYPE_BYTES:
        return check_length(w, r, ((const ProtobufCBinaryData *)at)->len, err);
    case PROTOBUF_C_TYPE_MESSAGE:
        if (*(ProtobufCMessage *const *)at)
            return check_message(w, *(ProtobufCMessage *const *)at, err);
        return r->lo ? refuse(w, err, "is missing", "it has to be there") : TITAN_OK;
    }
    return refuse(w, err, "is of an unknown type", "none is allowed");
}

size_t range_item_bytes(const ProtobufCFieldDescriptor *f)
{
    switch (f->type) {
    case PROTOBUF_C_TYPE_STRING:
    case PROTOBUF_C_TYPE_MESSAGE:
        return sizeof(void *);
    case PROTOBUF_C_TYPE_BYTES:
        return sizeof(ProtobufCBinaryData);
    case PROTOBUF_C_TYPE_INT64:
    case PROTOBUF_C_TYPE_SINT64:
    case PROTOBUF_C_TYPE_SFIXED64:
    case PROTOBUF_C_TYPE_UINT64:
    case PROTOBUF_C_TYPE_FIXED64:
    case PROTOBUF_C_TYPE_DOUBLE:
        return sizeof(uint64_t);
    default:
        return sizeof(uint32_t);
    }
}

static titan_status check_list(const struct where *w, const ProtobufCFieldDescriptor *f, const struct range *r,
                               const char *m, struct titan_error *err)
{
    titan_assert(f->label == PROTOBUF_C_LABEL_REPEATED && r->count > 0);
    const size_t n = *(const size_t *)(m + f->quantifier_offset);
    const uint64_t least = r->kind == RANGE_MESSAGE ? r->lo : 0;
    const char *items = *(char *const *)(m + f->offset);
    char value[40], range[64];
    if (n < least || n > r->count) {
        (void)snprintf(value, sizeof(value), "has %zu entries", n);
        (void)snprintf(range, sizeof(range), "%" PRIu64 " to %u", least, r->count);
        return refuse(w, err, value, range);
    }
    for (size_t i = 0; i < n; i++)
        TRY(check_value(w, f, r, items + i * range_item_bytes(f), err));
    return TITAN_OK;
}

static titan_status check_message(const struct where *w, const ProtobufCMessage *m, struct titan_error *err)
{
    const ProtobufCMessageDescriptor *d = m->descriptor;
    const struct table *t = find_table(d);
    bool choice = false, chosen = false;
    if (!t || t->n != d->n_fields)
        return refuse(w, err, "is of an unknown kind", "none is allowed");
    /* protobuf-c reads an invalid field number (0 in a long encoding) and packs it unreadably. */
    for (unsigned i = 0; i < m->n_unknown_fields; i++)
        if (m->unknown_fields[i].tag < 1 || m->unknown_fields[i].tag > FIELD_NUMBER_MAX)
            return refuse(w, err, "has a field with an impossible number", "1 to 536870911");
    for (unsigned i = 0; i < d->n_fields; i++) {
        const ProtobufCFieldDescriptor *f = &d->fields[i];
        const struct where here = {w, f->name};
        const char *base = (const char *)m;
        if (f->flags & PROTOBUF_C_FIELD_FLAG_ONEOF) {
            choice = true;
            if (*(const uint32_t *)(base + f->quantifier_offset) != f->id)
                continue;
            chosen = true;
        }
        if (f->label == PROTOBUF_C_LABEL_REPEATED)
            TRY(check_list(&here, f, &t->rows[i], base, err));
        else
            TRY(check_value(&here, f, &t->rows[i], base + f->offset, err));
    }
    if (choice && !chosen && m->n_unknown_fields == 0)
        return refuse(w, err, "is empty", "it has to say something");
    return TITAN_OK;
}

titan_status range_check(const ProtobufCMessage *m, struct titan_error *err)
{
    titan_assert(m && m->descriptor);
    const struct where whole = {NULL, m->descriptor->short_name};
    return check_message(&whole, m, err);
}

void range_fit_text(char *text, size_t size)
{
    titan_assert(size > 0);
    const size_t room = MIN(size - 1, (size_t)WORDS_MAX);
    size_t len = strnlen(text, room), at = 0;
    text[len] = '\0';
    text_fit(text, '?');
    len = strlen(text);
    while ((at += utf8_check(text + at, len - at)) < len)
        text[at] = '?';
}
