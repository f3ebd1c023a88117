/* SPDX-License-Identifier: Apache-2.0 */
/* policy.h - the table of roles and methods: which role may call which method. docs/security.md shows it to people.
 *
 * rpc_method.needs is a method's number. A method without a number has POLICY_NOTHING and is refused to every caller; a
 * number without a row does not build. */
#ifndef TITAN_DAEMON_AUTH_POLICY_H
#define TITAN_DAEMON_AUTH_POLICY_H

#include <stdbool.h>
#include <stddef.h>

/* Columns of the table. An identity has one or more roles. */
enum policy_role {
    POLICY_UNAUTHENTICATED, /* no proof: TLS without a certificate or token */
    POLICY_ANONYMOUS,       /* plain TCP to a daemon with --insecure */
    POLICY_USER,
    POLICY_OPERATOR,
    POLICY_ADMIN,
    POLICY_NODE,
    POLICY_SCRAPER, /* reads metrics over HTTP, and nothing else */
    POLICY_ROLES
};
#define POLICY_BIT(role) (1u << (role))

enum policy_cell {
    POLICY_NO,
    POLICY_OWN,  /* only the caller's own jobs, or own things for a call without a job */
    POLICY_VIEW, /* all jobs, unless private_jobs is set: then as POLICY_OWN */
    POLICY_YES,
};

/* X(NAME, method, unauthenticated anonymous user operator admin node metrics, AUDIT or READS)
 * - = no; o = own jobs; v = own jobs and, without private_jobs, all other jobs; y = yes. AUDIT: the method changes
 * something, so each call is an event. A refusal is always an event. */
#define POLICY_TABLE(X)                                                                                                \
    X(SUBMIT, "/titan.v1.Titan/Submit", "-yyyy--", AUDIT)                                                              \
    X(GET_JOB, "/titan.v1.Titan/GetJob", "-yvyy--", READS)                                                             \
    X(GET_RECIPE, "/titan.v1.Titan/GetRecipe", "-yoyy--", READS)                                                       \
    X(LIST_JOBS, "/titan.v1.Titan/ListJobs", "-yvyy--", READS)                                                         \
    X(CANCEL_JOB, "/titan.v1.Titan/CancelJob", "-yoyy--", AUDIT)                                                       \
    X(REMOVE_JOB, "/titan.v1.Titan/RemoveJob", "-yoyy--", AUDIT)                                                       \
    X(RESIZE_JOB, "/titan.v1.Titan/ResizeJob", "-yoyy--", AUDIT)                                                       \
    X(CHECKPOINT_JOB, "/titan.v1.Titan/CheckpointJob", "-yoyy--", AUDIT)                                               \
    X(WATCH_EVENTS, "/titan.v1.Titan/WatchEvents", "-yvyy--", READS)                                                   \
    X(LOGS, "/titan.v1.Titan/Logs", "-yoyy--", READS)                                                                  \
    X(METRICS, "/titan.v1.Titan/Metrics", "-yvyy--", READS)                                                            \
    X(LIST_CHECKPOINTS, "/titan.v1.Titan/ListCheckpoints", "-yvyy--", READS)                                           \
    X(LIST_NODES, "/titan.v1.Titan/ListNodes", "-yyyy--", READS)                                                       \
    X(COUNTERS, "/titan.v1.Titan/Counters", "-yyyy--", READS)                                                          \
    X(VERSION, "/titan.v1.Titan/Version", "-yyyyyy", READS)                                                            \
    X(LIST_COORDINATORS, "/titan.v1.Titan/ListCoordinators", "-y-yy--", READS)                                         \
    X(HAND_OVER, "/titan.v1.Titan/HandOver", "-y-yy--", AUDIT)                                                         \
    X(CHECK_NODES, "/titan.v1.Titan/CheckNodes", "-y-yy--", READS)                                                     \
    X(DRAIN_NODE, "/titan.v1.Titan/DrainNode", "-y-yy--", AUDIT)                                                       \
    X(UNDRAIN_NODE, "/titan.v1.Titan/UndrainNode", "-y-yy--", AUDIT)                                                   \
    X(FORGET_NODE, "/titan.v1.Titan/ForgetNode", "-y-yy--", AUDIT)                                                     \
    X(REMOVE_NODE, "/titan.v1.Titan/RemoveNode", "-y-yy--", AUDIT)                                                     \
    X(AUDIT, "/titan.v1.Titan/Audit", "---yy--", READS)                                                                \
    X(BACKUP, "/titan.v1.Titan/Backup", "----y--", AUDIT)                                                              \
    X(CREATE_TOKEN, "/titan.v1.Titan/CreateToken", "----y--", AUDIT)                                                   \
    X(LIST_TOKENS, "/titan.v1.Titan/ListTokens", "----y--", READS)                                                     \
    X(REVOKE_TOKEN, "/titan.v1.Titan/RevokeToken", "----y--", AUDIT)                                                   \
    X(JOIN_NODE, "/titan.v1.Titan/JoinNode", "----y--", AUDIT)                                                         \
    X(LIST_JOINS, "/titan.v1.Titan/ListJoins", "----y--", READS)                                                       \
    X(REVOKE_JOIN, "/titan.v1.Titan/RevokeJoin", "----y--", AUDIT)                                                     \
    X(REVOKE_CERTIFICATE, "/titan.v1.Titan/RevokeCertificate", "----y--", AUDIT)                                       \
    X(ENROLL, "/titan.internal.Enrolment/Enroll", "yyyyyyy", AUDIT)                                                    \
    X(RENEW, "/titan.internal.Enrolment/Renew", "-----y-", AUDIT)                                                      \
    X(SESSION, "/titan.internal.Coordinator/Session", "-----y-", READS)

enum policy_method {
    POLICY_NOTHING,
#define X(name, method, cells, audit) POLICY_##name,
    POLICY_TABLE(X)
#undef X
        POLICY_METHODS
};

/* May a caller with these roles read the metrics of all jobs and nodes over HTTP? */
static inline bool policy_scrapes(unsigned roles)
{
    return roles & (POLICY_BIT(POLICY_SCRAPER) | POLICY_BIT(POLICY_OPERATOR) | POLICY_BIT(POLICY_ADMIN) |
                    POLICY_BIT(POLICY_ANONYMOUS));
}

/* The largest right of these roles (a set of POLICY_BIT). */
enum policy_cell policy_look_up(unsigned method, unsigned roles);
/* Full name of a method; NULL for POLICY_NOTHING and larger numbers. policy_method_short(): the name's last part for
 * people, "CancelJob". */
const char *policy_method(unsigned method);
const char *policy_method_short(unsigned method);
bool policy_audits(unsigned method);
/* The roles that may call the method, as text for a refusal: "an operator or admin". */
const char *policy_needs(unsigned method);

#endif
