/* SPDX-License-Identifier: Apache-2.0 */
/* config.h - what titand is set to: defaults, then the config file (TOML), then flags. docs/man/titand.8 lists all. */
#ifndef TITAN_DAEMON_CONFIG_H
#define TITAN_DAEMON_CONFIG_H

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/error.h"
#include "base/log.h"
#include "daemon/auth/paths.h"
#include "proto/rpc/targets.h"
#include "proto/rpc/tls.h"

#define CONFIG_LISTEN_MAX 16
#define CONFIG_TEXT_MAX 256
#define CONFIG_FILE_MAX (256 * 1024)
#define CONFIG_AGENTS_HINT "it is for agents: choose another with agents_listen in [coordinator] of the config"

/* Times of failure detection (docs/membership.md), all in milliseconds. */
struct detection {
    uint32_t heartbeat_ms;    /* agents send one at least this often */
    uint32_t suspect_ms;      /* silence after which others are asked for a node */
    uint32_t confirm_ms;      /* how long they try */
    uint32_t node_timeout_ms; /* silence after which a node without probing peers is lost */
    uint32_t reachable_ms;    /* ... one that others reach */
    uint32_t away_ms;         /* without an answer, after which a coordinator is away */
    uint32_t leader_lease_ms; /* how long agents go on without one, and decide; 0 = the profile's */
    uint32_t hang_floor_ms;   /* a worker that stands still for less does not hang */
};

enum daemon_role { ROLE_DEV, ROLE_AGENT, ROLE_COORDINATOR };

struct daemon_config {
    enum daemon_role role;
    bool help, version;  /* asked for; nothing else is checked then */
    char file[PATH_MAX]; /* "" = none */
    char state_dir[PATH_MAX];
    char jobs_dir[PATH_MAX];  /* absolute; "" = jobs/ in the state directory. An agent is told by its coordinator */
    char head_file[PATH_MAX]; /* coordinator: absolute; "" = none */
    enum log_level log_level;
    bool insecure;        /* TCP without TLS, to listen on and to the coordinator */
    struct rpc_tls tls;   /* names; there need not be such files */
    bool tls_own;         /* they are those of the state directory, which titand keeps fresh */
    uint32_t node_life_s; /* coordinator: of nodes' certificates; 0 = 7 days */
    char join[PATH_MAX];  /* agent: the file to get a certificate with; "" = none */
    char listen[CONFIG_LISTEN_MAX][CONFIG_TEXT_MAX];
    int n_listen;
    char agents[CONFIG_TEXT_MAX];        /* the Unix socket of agents on this host, beside listen[0] */
    char agents_listen[CONFIG_TEXT_MAX]; /* HOST:PORT of agents on other hosts; "" = they come in where clients do */
    char coordinator[RPC_TARGETS_TEXT];  /* one address, or a list of those that it may be at */
    char node[CONFIG_TEXT_MAX], address[CONFIG_TEXT_MAX], device[16];
    char worker[PATH_MAX]; /* "" = beside titand */
    char spawnd[108],
        default_user[256]; /* titan-spawnd's socket, "" = workers run as titand's user; of jobs without one */
    char peer_listen[CONFIG_TEXT_MAX]; /* "" = the address and a free port */
    char worker_ports[32];             /* "30000-30999"; "" = any */
    char profile[8];                   /* "lan", "wan" */
    struct {
        uint32_t connections, user_connections, peer_connections, user_calls,
            memory_mb; /* of clients; 0 = what rpc_server_options say */
        uint32_t user_pending_jobs, user_slots, user_submits_per_minute; /* of jobs, by owner; 0 = no limit */
        uint64_t user_disk_mb;                                           /* the same */
    } limits;
    struct detection detection; /* 0 = the profile's, until config_parse is done */
    uint32_t slots, lease_ms, grace_ms;
    uint32_t quarantine_crashes; /* 0 = no quarantine */
    uint64_t log_bytes_max;
    uint64_t worker_memory; /* bytes that one worker gets; 0 = any */
    uint32_t worker_cpus;   /* processors, in thousandths; 0 = any */
    struct auth_options auth;
    struct paths_options paths;
    bool allow_root;    /* to run jobs as */
    bool adopt_state;   /* the state directory may be a copy of another */
    bool stop_workers;  /* at SIGTERM; otherwise they are left to the next agent */
    bool ephemeral;     /* agent: its node is forgotten when it is gone */
    bool drain_on_term; /* at SIGTERM they are moved to other nodes first */
};

/* "dev", "agent", "coordinator". */
const char *daemon_role_name(enum daemon_role role);
/* Everything resolved and checked, state_dir made and absolute. TITAN_EINVAL for what a person got wrong. */
titan_status config_parse(int argc, char **argv, struct daemon_config *ret, struct titan_error *err) TITAN_MUST_USE;
/* What [authorization] is without the file. */
titan_status config_auth_default(struct auth_options *ret, struct titan_error *err) TITAN_MUST_USE;
/* Read a config file over what is in config. "path:line: ..." in err. */
titan_status config_load(struct daemon_config *config, const char *path, struct titan_error *err) TITAN_MUST_USE;
/* Does systemd run it as a service, with a folder of its own for sockets (RUNTIME_DIRECTORY)? Every user of the machine
 * may connect then. */
bool config_is_service(void);
/* What TCP at this address is protected with: *ret is NULL for a Unix socket and for `insecure`. TITAN_EINVAL, with
 * what to do, when it would have to be TLS and there is no certificate. */
titan_status config_transport(const struct daemon_config *config, const char *address, const struct rpc_tls **ret,
                              struct titan_error *err) TITAN_MUST_USE;
/* May other hosts reach a TCP listener on this address? */
bool config_address_off_host(const char *address);
/* What --help says. */
void config_help(struct buf *out);

#endif
