/* SPDX-License-Identifier: Apache-2.0 */
/* config.h - titand's settings: defaults, then the config file (TOML), then flags. docs/man/titand.8 lists all. */
#ifndef TITAN_DAEMON_CONFIG_H
#define TITAN_DAEMON_CONFIG_H

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/error.h"
#include "base/log.h"
#include "daemon/auth/paths.h"
#include "daemon/common/ha_members.h"
#include "daemon/coordinator/webhook_options.h"
#include "proto/rpc/targets.h"
#include "proto/rpc/tls.h"

#define CONFIG_LISTEN_MAX 16
#define CONFIG_TEXT_MAX 256
#define CONFIG_FILE_MAX (256 * 1024)
#define CONFIG_AGENTS_HINT "it is for agents: choose another with agents_listen in [coordinator] of the config"

/* Times of failure detection (docs/membership.md), all in milliseconds. */
struct detection {
    uint32_t heartbeat_ms;      /* agents send a heartbeat at least this often */
    uint32_t idle_heartbeat_ms; /* ... agents without workers; at most heartbeat_ms = as all */
    uint32_t suspect_ms;        /* silence after which other nodes probe a node */
    uint32_t confirm_ms;        /* how long they probe */
    uint32_t node_timeout_ms;   /* silence after which a node without probing peers is lost */
    uint32_t reachable_ms;      /* silence after which a node that others reach is lost */
    uint32_t away_ms;           /* a coordinator that gives no answer for this long is away */
    uint32_t leader_lease_ms;   /* how long agents run and decide without a coordinator; 0 = the profile's value */
    uint32_t hang_floor_ms;     /* a worker that stands still for less time is not hanging */
};

enum daemon_role { ROLE_DEV, ROLE_AGENT, ROLE_COORDINATOR };

struct daemon_config {
    enum daemon_role role;
    bool help, version;  /* requested; nothing else is checked then */
    char file[PATH_MAX]; /* "" = none */
    char state_dir[PATH_MAX];
    /* absolute; "" = jobs/ in the state directory. Agents get the path from the coordinator */
    char jobs_dir[PATH_MAX];
    char head_file[PATH_MAX]; /* coordinator: absolute; "" = none */
    enum log_level log_level;
    bool insecure;        /* TCP without TLS, for listening and to the coordinator */
    struct rpc_tls tls;   /* file names; the files need not exist */
    bool tls_own;         /* tls names the state directory's files, which titand renews */
    uint32_t node_life_s; /* coordinator: lifetime of nodes' certificates; 0 = 7 days */
    char join[PATH_MAX];  /* agent: the join file; "" = none */
    char listen[CONFIG_LISTEN_MAX][CONFIG_TEXT_MAX];
    int n_listen;
    char agents[CONFIG_TEXT_MAX];        /* Unix socket for agents on this host, beside listen[0] */
    char agents_listen[CONFIG_TEXT_MAX]; /* HOST:PORT for agents on other hosts; "" = the clients' addresses */
    char coordinator[RPC_TARGETS_TEXT];  /* one address, or a list of possible addresses */
    char node[CONFIG_TEXT_MAX], address[CONFIG_TEXT_MAX], device[16];
    char worker[PATH_MAX]; /* "" = beside titand */
    char spawnd[108],
        /* spawnd: titan-spawnd's socket; "" = workers run as titand's user. default_user: for jobs whose user this node
         * does not have */
        default_user[256];
    char hooks_dir[PATH_MAX]; /* agent: absolute; "" = /etc/titan/hooks, or none in dev */
    uint32_t hook_timeout_s, node_check_s;
    char peer_listen[CONFIG_TEXT_MAX]; /* "" = address with a free port */
    char worker_ports[32];             /* "30000-30999"; "" = any */
    char profile[8];                   /* "lan", "wan" */
    struct {
        uint32_t connections, user_connections, peer_connections, user_calls,
            memory_mb; /* limits of clients; 0 = default of rpc_server_options */
        uint32_t user_pending_jobs, user_slots, user_submits_per_minute; /* limits per owner of jobs; 0 = no limit */
        uint64_t user_disk_mb;                                           /* limit per owner of jobs; 0 = no limit */
    } limits;
    struct {
        char listen[CONFIG_TEXT_MAX]; /* HOST:PORT; "" = no HTTP */
        bool insecure;                /* without TLS, on a loopback address */
    } http;
    struct {
        char name[HA_NAME_MAX];       /* this coordinator's; "" = it is the only one */
        struct ha_members members;    /* all coordinators */
        char listen[CONFIG_TEXT_MAX]; /* HOST:PORT for the other coordinators */
        uint32_t election_ms;
    } ha;
    struct webhooks_options webhooks; /* coordinator */
    struct detection detection;       /* until config_parse() fills it in, 0 = the profile's value */
    uint32_t slots, lease_ms, grace_ms;
    uint32_t quarantine_crashes; /* 0 = no quarantine */
    uint64_t log_bytes_max;
    uint64_t worker_memory; /* bytes for one worker; 0 = any */
    uint32_t worker_cpus;   /* for one worker, in thousandths of a processor; 0 = any */
    struct auth_options auth;
    struct paths_options paths;
    bool allow_root;    /* allow jobs to run as root */
    bool adopt_state;   /* accept a state directory copied from another */
    bool stop_workers;  /* stop workers at SIGTERM; otherwise they are left to the next agent */
    bool ephemeral;     /* agent: the coordinator may delete the node's record when the node is gone */
    bool drain_on_term; /* at SIGTERM, first move workers to other nodes */
};

/* "dev", "agent", "coordinator". */
const char *daemon_role_name(enum daemon_role role);
/* Resolves and checks all settings. Makes the folder state_dir; its path becomes absolute. TITAN_EINVAL: a user's
 * mistake. */
titan_status config_parse(int argc, char **argv, struct daemon_config *ret, struct titan_error *err) TITAN_MUST_USE;
/* The defaults of [authorization]. */
titan_status config_auth_default(struct auth_options *ret, struct titan_error *err) TITAN_MUST_USE;
/* Reads a config file; the file's values replace the values in config. err: "path:line: ...". */
titan_status config_load(struct daemon_config *config, const char *path, struct titan_error *err) TITAN_MUST_USE;
/* Does systemd run titand as a service, with its own folder for sockets (RUNTIME_DIRECTORY)? Every user of the machine
 * may connect then. */
bool config_is_service(void);
/* Gets the TLS files for this address. *ret NULL: no TLS, for a Unix socket or with `insecure`. TITAN_EINVAL, with the
 * remedy: TLS is required and there is no certificate. */
titan_status config_transport(const struct daemon_config *config, const char *address, const struct rpc_tls **ret,
                              struct titan_error *err) TITAN_MUST_USE;
/* Gets the TLS files for http.listen. *ret NULL: none, with http.insecure. TITAN_EINVAL, with the remedy: there is no
 * certificate, or other hosts could reach the address without TLS. */
titan_status config_http_transport(const struct daemon_config *config, const struct rpc_tls **ret,
                                   struct titan_error *err) TITAN_MUST_USE;
/* Can HOST:PORT be listened on now? TITAN_EEXIST: another listener has it. TITAN_EINVAL: this machine does not have
 * the address. */
titan_status config_address_free(const char *address, struct titan_error *err) TITAN_MUST_USE;
/* May other hosts reach a TCP listener on this address? */
bool config_address_off_host(const char *address);
/* The text of --help. */
void config_help(struct buf *out);

#endif
