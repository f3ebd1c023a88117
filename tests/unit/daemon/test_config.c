/* SPDX-License-Identifier: Apache-2.0 */
/* titand's settings: file, flags, defaults, and what a person gets wrong. */
#include <arpa/inet.h>
#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/cleanup.h"
#include "base/file.h"
#include "daemon/config.h"

static char folder[64], file[128];

static int setup(void **state)
{
    (void)state;
    (void)snprintf(folder, sizeof(folder), "/tmp/titan-config-XXXXXX");
    assert_non_null(mkdtemp(folder));
    (void)snprintf(file, sizeof(file), "%s/titand.toml", folder);
    (void)unsetenv("STATE_DIRECTORY");
    (void)unsetenv("RUNTIME_DIRECTORY");
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    return dir_remove(folder, NULL) == TITAN_OK ? 0 : -1;
}

static void write_file(const char *text)
{
    assert_int_equal(file_replace(file, text, strlen(text), NULL), TITAN_OK);
}

/* config_parse of the words, with --state-dir in the test's folder added. */
static titan_status parse(struct daemon_config *c, struct titan_error *err, const char *const *words)
{
    char *argv[32] = {(char *)"titand"}, state[128];
    int argc = 1;
    for (; *words; words++)
        argv[argc++] = (char *)*words;
    (void)snprintf(state, sizeof(state), "%s/state", folder);
    argv[argc++] = (char *)"--state-dir";
    argv[argc++] = state;
    *err = (struct titan_error){0};
    return config_parse(argc, argv, c, err);
}
#define PARSE(c, err, ...) parse((c), (err), (const char *const[]){__VA_ARGS__, NULL})

static void test_defaults(void **state)
{
    (void)state;
    struct daemon_config c;
    struct titan_error err;
    char expected[256];
    assert_int_equal(PARSE(&c, &err, "dev"), TITAN_OK);
    assert_int_equal(c.role, ROLE_DEV);
    assert_true(c.stop_workers);
    assert_int_equal(c.n_listen, 1); /* no TCP that was not asked for */
    (void)snprintf(expected, sizeof(expected), "unix:%s/state/titan.sock", folder);
    assert_string_equal(c.listen[0], expected);
    assert_int_equal(c.log_level, LOG_LEVEL_INFO);
    assert_int_equal(c.quarantine_crashes, 3);
    assert_int_equal(c.limits.user_pending_jobs, 10000);
    assert_true(!c.limits.user_slots && !c.limits.user_submits_per_minute && !c.limits.user_disk_mb);
    assert_int_equal(c.detection.leader_lease_ms, 600000); /* ten minutes: a coordinator may be away for so long */
    assert_int_equal(PARSE(&c, &err, "agent", "--coordinator", "h:1"), TITAN_OK);
    assert_false(c.stop_workers);
    assert_int_equal(c.n_listen, 0);
    static const char *const profiles[] = {"", "[detection]\nprofile = \"lan\"\n", "[detection]\nprofile = \"wan\"\n"};
    for (size_t i = 0; i < ARRAY_SIZE(profiles); i++) {
        write_file(profiles[i]);
        assert_int_equal(PARSE(&c, &err, "coordinator", "--config", file), TITAN_OK);
        assert_int_equal(c.detection.leader_lease_ms, 600000);
    }
}

static void test_systemd_directories(void **state)
{
    (void)state;
    struct daemon_config c;
    struct titan_error err = {0};
    char dirs[256], *argv[] = {(char *)"titand", (char *)"coordinator", NULL};
    (void)snprintf(dirs, sizeof(dirs), "%s/a:%s/b", folder, folder);
    (void)setenv("STATE_DIRECTORY", dirs, 1);
    (void)setenv("RUNTIME_DIRECTORY", "/run/titan", 1);
    assert_int_equal(config_parse(2, argv, &c, &err), TITAN_OK);
    assert_string_equal(c.listen[0], "unix:/run/titan/titan.sock");
    assert_string_equal(c.state_dir + strlen(c.state_dir) - 2, "/a");
    (void)unsetenv("STATE_DIRECTORY");
    (void)unsetenv("RUNTIME_DIRECTORY");
}

static void test_file_and_flags(void **state)
{
    (void)state;
    struct daemon_config c;
    struct titan_error err;
    write_file("[titand]\nlog_level = \"debug\"\n[coordinator]\nlisten = [\"127.0.0.1:1\", \"[::1]:2\"]\n"
               "quarantine_crashes = 0\n"
               "[audit]\nhead_file = \"/mnt/titan.head\"\n"
               "[limits]\nuser_pending_jobs = 0\nuser_slots = 8\nuser_disk_mb = 10000000\n"
               "[agent]\ninsecure = true\nslots = 3\nnode = \"n1\"\nlease_ms = 5000\nlog_bytes_max = "
               "1000000\nstop_workers = false\n"
               "coordinator = \"10.0.0.1:7070\"\n");
    /* Flags win, wherever they stand. */
    assert_int_equal(PARSE(&c, &err, "dev", "--slots", "5", "--config", file, "--stop-workers"), TITAN_OK);
    assert_int_equal(c.slots, 5);
    assert_int_equal(c.quarantine_crashes, 0);
    assert_string_equal(c.head_file, "/mnt/titan.head");
    assert_int_equal(c.limits.user_pending_jobs, 0);
    assert_int_equal(c.limits.user_slots, 8);
    assert_int_equal(c.limits.user_disk_mb, 10000000);
    assert_int_equal(c.lease_ms, 5000);
    assert_int_equal(c.log_bytes_max, 1000000);
    assert_string_equal(c.node, "n1");
    assert_string_equal(c.coordinator, "10.0.0.1:7070");
    assert_int_equal(c.log_level, LOG_LEVEL_DEBUG);
    assert_int_equal(c.n_listen, 3);
    assert_string_equal(c.listen[1], "127.0.0.1:1");
    assert_true(c.stop_workers);
    assert_int_equal(PARSE(&c, &err, "dev", "--config", file, "--listen", "127.0.0.1:0", "--listen", "[::1]:0"),
                     TITAN_OK);
    assert_int_equal(c.n_listen, 3);
    assert_string_equal(c.listen[1], "127.0.0.1:0");
}

static void expect_file(const char *text, const char *message, const char *hint)
{
    struct daemon_config c;
    struct titan_error err;
    write_file(text);
    assert_int_equal(PARSE(&c, &err, "dev", "--config", file), TITAN_EINVAL);
    if (!strstr(err.msg, message) || !strstr(err.hint, hint))
        fail_msg("got \"%s\" (%s), expected \"%s\" (%s)", err.msg, err.hint, message, hint);
    assert_int_equal(titan_status_exit(err.status), 2);
}

static void test_ha(void **state)
{
    (void)state;
    struct daemon_config c;
    struct titan_error err;
    write_file("[agent]\ncoordinator = \"a.example:7071,b.example:7071\"\n");
    assert_int_equal(PARSE(&c, &err, "agent", "--insecure", "--config", file), TITAN_OK);
    assert_string_equal(c.coordinator, "a.example:7071,b.example:7071");
    expect_file("[agent]\n\ncoordinator = \"a:1,a:1\"\n",
                ":3: agent.coordinator: address 2, 'a:1', is address 1 once more", "");
    expect_file("[agent]\ncoordinator = \"a:1,b\"\n", ":2: agent.coordinator: address 2, 'b', is not HOST:PORT",
                "a.example:7071,b.example:7071");
    expect_file("[agent]\ncoordinator = \"head\"\n", ":2: agent.coordinator: 'head' is not an address", "HOST:PORT");
}

#define HOOK "[[webhook]]\nurl = \"https://h/x\"\nsecret_file = \"/s\"\n"

/* Endpoints that get events. */
static void test_webhooks(void **state)
{
    (void)state;
    struct daemon_config c;
    struct titan_error err;
    write_file(HOOK "[[webhook]]\nname = \"b-2\"\nurl = \"http://[::1]:9/\"\nsecret_file = \"/t\"\nca = \"/ca.pem\"\n"
                    "events = [\"losses\", \"job.*\"]\ntimeout_ms = 500\n");
    assert_int_equal(PARSE(&c, &err, "dev", "--config", file), TITAN_OK);
    assert_int_equal(c.webhooks.n, 2);
    const struct webhook_options *w = c.webhooks.list;
    assert_string_equal(w[0].name, "webhook");
    assert_string_equal(w[0].events, WEBHOOK_EVENTS_DEFAULT);
    assert_int_equal(w[0].timeout_ms, 10000);
    assert_string_equal(w[1].name, "b-2");
    assert_string_equal(w[1].url, "http://[::1]:9/");
    assert_string_equal(w[1].events, "losses,job.*");
    assert_string_equal(w[1].ca, "/ca.pem");
    assert_int_equal(w[1].timeout_ms, 500);
    assert_int_equal(config_load(&c, file, &err), TITAN_OK); /* a reload replaces them */
    assert_int_equal(c.webhooks.n, 2);

    write_file("[webhook]\nurl = \"https://h\"\nsecret_file = \"/s\"\n"); /* one section is enough for one */
    assert_int_equal(PARSE(&c, &err, "dev", "--config", file), TITAN_OK);
    assert_int_equal(c.webhooks.n, 1);

    expect_file("[[webhook]]\nsecret_file = \"/s\"\n", ":1: webhook: url: it is missing", "");
    expect_file("[[webhook]]\nurl = \"https://h\"\n", ":1: webhook: secret_file: it is missing", "openssl rand");
    static const char *const urls[] = {"ftp://h/x", "https:///x", "https://:80/", "h", "HTTPS://h"};
    for (size_t i = 0; i < ARRAY_SIZE(urls); i++) {
        char text[256];
        (void)snprintf(text, sizeof(text), "[[webhook]]\nurl = \"%s\"\nsecret_file = \"/s\"\n", urls[i]);
        expect_file(text, "url: it is no http:// or https:// URL with a host", "https://HOST");
    }
    expect_file("[[webhook]]\nurl = \"https://u:p@h/\"\nsecret_file = \"/s\"\n", "url: it names a user", "");
    expect_file("[[webhook]]\nurl = \"https://h/a b\"\nsecret_file = \"/s\"\n", "url: it has a blank", "");
    expect_file("[[webhook]]\nurl = \"https://h\"\nsecret_file = \"s\"\n", "secret_file: it is no absolute path", "");
    expect_file(HOOK "ca = \"ca\"\n", "ca: it is no absolute path", "");
    expect_file(HOOK "name = \"A b\"\n", "name: 'A b' has other characters", "");
    expect_file(HOOK "events = [\"job\"]\n", "events: 'job' is no kind of events", "job.state");
    expect_file(HOOK "events = [\"audit.*\"]\n", "events: 'audit.*' is no kind of events that is sent", "");
    expect_file(HOOK "events = [3]\n", ":4: webhook.events: expected", "");
    expect_file(HOOK "events = [\"a.b,c.d\"]\n", ":4: webhook.events: words without commas", "");
    expect_file(HOOK "timeout_ms = 99\n", ":4: webhook.timeout_ms: 99 is not between 100 and 60000", "");
    expect_file(HOOK "uri = \"x\"\n", ":4: unknown key 'webhook.uri'", "url");
    expect_file(HOOK HOOK, ":4: webhook.name: there are two endpoints 'webhook'", "");
    expect_file("webhook = 3\n", ":1: 'webhook' must be a section", "");
    expect_file("webhook = [3]\n", ":1: 'webhook' must be a section", "");
    expect_file("[webhok]\n", "unknown section", "webhook");
    char many[2048] = "";
    for (int i = 0; i < WEBHOOKS_MAX + 1; i++) {
        const size_t len = strlen(many);
        (void)snprintf(many + len, sizeof(many) - len, HOOK "name = \"n%d\"\n", i);
    }
    expect_file(many, "there are more than 8 endpoints", "");
}

/* The site's hooks. */
static void test_hooks(void **state)
{
    (void)state;
    struct daemon_config c;
    struct titan_error err;
    assert_int_equal(PARSE(&c, &err, "dev"), TITAN_OK);
    assert_string_equal(c.hooks_dir, "");
    assert_int_equal(c.hook_timeout_s, 30);
    assert_int_equal(c.node_check_s, 300);
    write_file("[agent]\nhooks_dir = \"/srv/hooks\"\nhook_timeout_s = 5\nnode_check_s = 60\n");
    assert_int_equal(PARSE(&c, &err, "dev", "--config", file), TITAN_OK);
    assert_string_equal(c.hooks_dir, "/srv/hooks");
    assert_int_equal(c.hook_timeout_s, 5);
    assert_int_equal(c.node_check_s, 60);
    expect_file("[agent]\nhooks_dir = \"hooks\"\n", "agent.hooks_dir: 'hooks' is not an absolute path", "");
    expect_file("[agent]\nhook_timeout_s = 0\n", ":2: agent.hook_timeout_s: 0 is not between 1 and 3600", "");
    expect_file("[agent]\nnode_check_s = 0\n", ":2: agent.node_check_s: 0 is not between 1 and 86400", "");
}

/* What one worker gets. */
static void test_worker_limits(void **state)
{
    (void)state;
    struct daemon_config c;
    struct titan_error err;
    write_file("[agent]\nworker_memory = \"1.5GiB\"\nworker_cpus = 3.5\n");
    assert_int_equal(PARSE(&c, &err, "dev", "--config", file), TITAN_OK);
    assert_int_equal(c.worker_memory, UINT64_C(1536) << 20);
    assert_int_equal(c.worker_cpus, 3500);
    write_file("[agent]\nworker_memory = 1048576\nworker_cpus = 16384\n");
    assert_int_equal(PARSE(&c, &err, "dev", "--config", file), TITAN_OK);
    assert_int_equal(c.worker_memory, 1048576);
    assert_int_equal(c.worker_cpus, 16384000);
    expect_file("[agent]\nworker_memory = \"16G\"\n", ":2: agent.worker_memory: '16G' is not bytes with a unit", "");
    expect_file("[agent]\nworker_memory = \"1023KiB\"\n", ":2: agent.worker_memory: not between 1MiB and 1EiB", "");
    expect_file("[agent]\nworker_memory = -1\n", ":2: agent.worker_memory: not between 1MiB and 1EiB", "");
    expect_file("[agent]\nworker_memory = 1.5\n",
                ":2: agent.worker_memory: expected bytes such as \"16GiB\", found float", "");
    expect_file("[agent]\nworker_cpus = 0\n", ":2: agent.worker_cpus: 0 is not between 0.01 and 16384", "");
    expect_file("[agent]\nworker_cpus = nan\n", ":2: agent.worker_cpus: nan is not between 0.01 and 16384", "");
    expect_file("[agent]\nworker_cpus = \"4\"\n", ":2: agent.worker_cpus: expected a number, found string", "");
    expect_file("[agent]\nworker_cpu = 4\n", ":2: unknown key 'agent.worker_cpu'", "worker_cpus");
}

static void test_limits(void **state)
{
    (void)state;
    static const struct {
        const char *key;
        unsigned long from, to;
        size_t at;
    } keys[] = {{"connections", 16, 1000000, offsetof(struct daemon_config, limits.connections)},
                {"user_connections", 1, 1000000, offsetof(struct daemon_config, limits.user_connections)},
                {"peer_connections", 1, 1000000, offsetof(struct daemon_config, limits.peer_connections)},
                {"user_calls", 1, 1000000, offsetof(struct daemon_config, limits.user_calls)},
                {"memory_mb", 16, 65536, offsetof(struct daemon_config, limits.memory_mb)}};
    for (size_t i = 0; i < ARRAY_SIZE(keys); i++) {
        const unsigned long good[] = {keys[i].from, keys[i].to}, bad[] = {keys[i].from - 1, keys[i].to + 1};
        char text[128], message[128];
        for (size_t k = 0; k < 2; k++) {
            struct daemon_config c;
            struct titan_error err;
            (void)snprintf(text, sizeof(text), "[limits]\n%s = %lu\n", keys[i].key, good[k]);
            write_file(text);
            assert_int_equal(PARSE(&c, &err, "dev", "--config", file), TITAN_OK);
            assert_int_equal(*(const uint32_t *)(const void *)((const char *)&c + keys[i].at), good[k]);
            (void)snprintf(text, sizeof(text), "[limits]\n%s = %lu\n", keys[i].key, bad[k]);
            (void)snprintf(message, sizeof(message), "titand.toml:2: limits.%s: %lu is not between %lu and %lu",
                           keys[i].key, bad[k], keys[i].from, keys[i].to);
            expect_file(text, message, "");
        }
    }
}

static void test_bad_files(void **state)
{
    (void)state;
    expect_file("[agent]\n\nslotz = 3\n", "titand.toml:3: unknown key 'agent.slotz'", "slots");
    expect_file("[agnet]\nslots = 3\n", "titand.toml:1: unknown section 'agnet'", "agent");
    expect_file("agent = 3\n", "titand.toml:1: 'agent' must be a section", "");
    expect_file("[agent]\nslots = \"3\"\n", "titand.toml:2: agent.slots: expected an integer, found string", "");
    expect_file("[agent]\nslots = 0\n", "titand.toml:2: agent.slots: 0 is not between 1 and 1024", "");
    expect_file("[agent]\nnode = 1\n", "titand.toml:2: agent.node: expected a string, found integer", "");
    expect_file("[agent]\nstop_workers = 1\n", "expected true or false", "");
    expect_file("[titand]\nlog_level = \"loud\"\n", "'loud' is not one of error, warn, info, debug", "");
    expect_file("[coordinator]\nlisten = \"127.0.0.1:1\"\n", "expected an array of strings", "");
    expect_file("[coordinator]\nlisten = [\"nowhere\"]\n", "'nowhere' is not an address", "HOST:PORT");
    expect_file("this is not TOML\n", "titand.toml:1:", "");
    struct daemon_config c;
    struct titan_error err;
    assert_int_equal(PARSE(&c, &err, "dev", "--config", "/nowhere/x.toml"), TITAN_EINVAL);
}

static void expect_flags(const char *message, const char *hint, const char *const *words)
{
    struct daemon_config c;
    struct titan_error err;
    assert_int_equal(parse(&c, &err, words), TITAN_EINVAL);
    if (!strstr(err.msg, message) || !strstr(err.hint, hint))
        fail_msg("got \"%s\" (%s), expected \"%s\" (%s)", err.msg, err.hint, message, hint);
}
#define EXPECT(message, hint, ...) expect_flags((message), (hint), (const char *const[]){__VA_ARGS__, NULL})

static void test_bad_flags(void **state)
{
    (void)state;
    EXPECT("unknown role 'agnet'", "agent", "agnet");
    EXPECT("unknown option --slosts", "--slots", "dev", "--slosts", "3");
    EXPECT("unknown option --slot", "--slots", "dev", "--slot", "3");
    EXPECT("unknown option --slot", "--slots", "dev", "--slots", "3", "--slot=4");
    EXPECT("--slots: 'many' is not a number", "", "dev", "--slots", "many");
    EXPECT("--slots: 5000 is not between", "", "dev", "--slots", "5000");
    EXPECT("--slots: '3x' is not a number", "", "dev", "--slots", "3x");
    EXPECT("--log-level: 'loud'", "", "dev", "--log-level", "loud");
    EXPECT("--listen: '127.0.0.1' is not an address", "", "dev", "--listen", "127.0.0.1");
    EXPECT("--listen: '127.0.0.1:99999' is not an address", "", "dev", "--listen", "127.0.0.1:99999");
    EXPECT("unexpected argument 'extra'", "", "dev", "extra");
    EXPECT("an agent needs the address", "--coordinator", "agent");
    EXPECT("an agent does not listen", "", "agent", "--coordinator", "a:1", "--listen", "127.0.0.1:1");
    char *argv[] = {(char *)"titand", NULL};
    struct daemon_config c;
    struct titan_error err = {0};
    assert_int_equal(config_parse(1, argv, &c, &err), TITAN_EINVAL);
    assert_non_null(strstr(err.msg, "no role given"));
}

static void test_detection(void **state)
{
    (void)state;
    struct daemon_config c;
    struct titan_error err;
    assert_int_equal(PARSE(&c, &err, "dev"), TITAN_OK);
    assert_true(c.detection.heartbeat_ms == 50 && c.detection.suspect_ms == 250 && c.detection.hang_floor_ms == 300);
    assert_int_equal(c.detection.idle_heartbeat_ms, 3000);
    write_file("[detection]\nprofile = \"wan\"\nbeat_ms = 400\nidle_heartbeat_ms = 1500\n[agent]\npeer_listen = "
               "\"10.0.0.1:7071\"\n");
    assert_int_equal(PARSE(&c, &err, "dev", "--config", file), TITAN_OK);
    assert_true(c.detection.heartbeat_ms == 400 && c.detection.suspect_ms == 2500 && c.detection.confirm_ms == 1500);
    assert_int_equal(c.detection.idle_heartbeat_ms, 1500);
    assert_string_equal(c.peer_listen, "10.0.0.1:7071");
    static const struct {
        const char *text, *reported;
    } bad[] = {
        {"[detection]\nprofile = \"moon\"\n", "lan, wan"},
        {"[detection]\nbeat_ms = 200\n", "suspect_ms"},
        {"[detection]\nleader_lease_ms = 1500\n", "away_ms"},
        {"[detection]\ndelegate_lease_ms = 1500\n", "away_ms"},
        {"[detection]\nheartbeat_ms = 1\n", "heartbeat_ms"},
        {"[detection]\nidle_heartbeat_ms = 60001\n", "idle_heartbeat_ms"},
    };
    for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
        write_file(bad[i].text);
        assert_int_equal(PARSE(&c, &err, "dev", "--config", file), TITAN_EINVAL);
        assert_non_null(strstr(err.msg, bad[i].reported));
    }
}

/* TCP has TLS, or is said to be without; loopback too. */
static void test_transport(void **state)
{
    (void)state;
    struct daemon_config c;
    struct titan_error err;
    const struct rpc_tls *tls;
    char path[256];
    static const char *const tcp[] = {"0.0.0.0:7070", "10.0.0.1:7070",  "[::]:7070", "example.org:7070",
                                      "127.0.0.1:0",  "localhost:7070", "[::1]:0"};
    for (size_t i = 0; i < ARRAY_SIZE(tcp); i++) {
        EXPECT("without TLS: there is no certificate", "titanctl pki init, or give --insecure", "coordinator",
               "--listen", tcp[i]);
        assert_int_equal(PARSE(&c, &err, "coordinator", "--insecure", "--listen", tcp[i]), TITAN_OK);
        assert_int_equal(config_transport(&c, tcp[i], &tls, &err), TITAN_OK);
        assert_null(tls);
    }
    /* An agent may be given its certificate later: it is asked when it starts. */
    assert_int_equal(PARSE(&c, &err, "agent", "--coordinator", "10.0.0.1:7070"), TITAN_OK);
    assert_int_equal(config_transport(&c, c.coordinator, &tls, &err), TITAN_EINVAL);
    assert_non_null(strstr(err.hint, "titanctl node join"));
    assert_int_equal(PARSE(&c, &err, "agent", "--coordinator", "unix:/x"), TITAN_OK);
    assert_int_equal(config_transport(&c, c.coordinator, &tls, &err), TITAN_OK);
    assert_null(tls);
    /* Files in the state directory, or where the file says. */
    (void)snprintf(path, sizeof(path), "%s/state/tls", folder);
    assert_int_equal(dir_make(path, &err), TITAN_OK);
    (void)snprintf(path, sizeof(path), "%s/state/tls/cert.pem", folder);
    assert_int_equal(file_replace(path, "x", 1, &err), TITAN_OK);
    assert_int_equal(PARSE(&c, &err, "coordinator", "--listen", "127.0.0.1:0"), TITAN_OK);
    assert_int_equal(config_transport(&c, c.listen[1], &tls, &err), TITAN_OK);
    assert_non_null(tls);
    assert_string_equal(tls->certificate, path);
    /* Agents have the port after the first one that is named, with TLS, unless the file says another. */
    assert_string_equal(c.agents_listen, "");
    assert_int_equal(PARSE(&c, &err, "coordinator", "--listen", "127.0.0.1:0", "--listen", "[::1]:7170"), TITAN_OK);
    assert_string_equal(c.agents_listen, "[::1]:7171");
    assert_int_equal(PARSE(&c, &err, "coordinator", "--insecure", "--listen", "127.0.0.1:7170"), TITAN_OK);
    assert_string_equal(c.agents_listen, "");
    assert_int_equal(PARSE(&c, &err, "dev", "--listen", "127.0.0.1:7170"), TITAN_OK);
    assert_string_equal(c.agents_listen, "");
    static const char *const given[][2] = {{"10.0.0.1:9", "10.0.0.1:9"}, {"off", ""}};
    for (size_t i = 0; i < ARRAY_SIZE(given); i++) {
        char text[128];
        (void)snprintf(text, sizeof(text), "[coordinator]\nagents_listen = \"%s\"\n", given[i][0]);
        write_file(text);
        assert_int_equal(PARSE(&c, &err, "coordinator", "--config", file, "--listen", "127.0.0.1:7170"), TITAN_OK);
        assert_string_equal(c.agents_listen, given[i][1]);
    }
    write_file("[coordinator]\nagents_listen = \"unix:/x\"\n");
    EXPECT("coordinator.agents_listen: 'unix:/x' is not an address", "HOST:PORT, or off", "coordinator", "--config",
           file);
    assert_int_equal(unlink(path), 0);
    write_file("[tls]\nca = \"/x/ca\"\ncertificate = \"/dev/null\"\nkey = \"/x/key\"\n");
    assert_int_equal(PARSE(&c, &err, "coordinator", "--config", file, "--listen", "127.0.0.1:0"), TITAN_OK);
    assert_string_equal(c.tls.ca, "/x/ca");
    assert_string_equal(c.tls.key, "/x/key");
}

static void test_join(void **state)
{
    (void)state;
    struct daemon_config c;
    struct titan_error err;
    assert_int_equal(PARSE(&c, &err, "agent", "--join", "/x.join"), TITAN_OK);
    assert_string_equal(c.join, "/x.join");
    assert_true(c.tls_own);
    write_file("[tls]\nca = \"/a\"\ncertificate = \"/b\"\nkey = \"/c\"\nnode_life_s = 60\n");
    assert_int_equal(PARSE(&c, &err, "agent", "--config", file, "--coordinator", "h:1"), TITAN_OK);
    assert_false(c.tls_own);
    assert_int_equal(c.node_life_s, 60);
    EXPECT("[tls] names other files", "", "agent", "--config", file, "--join", "/x.join");
    EXPECT("--join is for agents", "", "coordinator", "--join", "/x.join");
}

static void test_help(void **state)
{
    (void)state;
    struct daemon_config c;
    struct titan_error err;
    assert_int_equal(PARSE(&c, &err, "--help"), TITAN_OK);
    assert_true(c.help);
    assert_int_equal(PARSE(&c, &err, "agent", "--help"), TITAN_OK);
    assert_true(c.help);
    assert_int_equal(PARSE(&c, &err, "--version"), TITAN_OK);
    assert_true(c.version);
}

static void test_bad_state_dir(void **state)
{
    (void)state;
    struct daemon_config c;
    struct titan_error err = {0};
    char *argv[] = {(char *)"titand", (char *)"dev", (char *)"--state-dir", (char *)"/proc/titan", NULL};
    assert_int_not_equal(config_parse(4, argv, &c, &err), TITAN_OK);
    assert_non_null(strstr(err.msg, "/proc/titan"));
    char deep[200], *deep_argv[] = {(char *)"titand", (char *)"dev", (char *)"--state-dir", deep, NULL};
    (void)snprintf(deep, sizeof(deep), "%s/%0100d", folder, 1);
    assert_int_equal(config_parse(4, deep_argv, &c, &err), TITAN_EINVAL);
    assert_non_null(strstr(err.msg, "too long for a socket"));
    assert_int_equal(access(deep, F_OK), -1); /* nothing is left */
    /* To the byte, for the longest socket of each role. */
    static const struct {
        const char *role, *option, *value;
        size_t most;
    } roles[] = {{"dev", "--stop-workers", NULL, 92},
                 {"agent", "--coordinator", "unix:/x", 92},
                 {"coordinator", "--insecure", NULL, 95}};
    for (size_t i = 0; i < ARRAY_SIZE(roles); i++)
        for (size_t len = roles[i].most; len <= roles[i].most + 1; len++) {
            char at[128], words[32],
                *args[] = {(char *)"titand",
                           (char *)(uintptr_t)roles[i].role,
                           (char *)"--state-dir",
                           at,
                           (char *)(uintptr_t)roles[i].option,
                           (char *)(uintptr_t)roles[i].value,
                           NULL};
            (void)snprintf(at, sizeof(at), "%s/%0*d", folder, (int)(len - strlen(folder) - 1), 1);
            const bool fits = len == roles[i].most;
            assert_int_equal(config_parse(roles[i].value ? 6 : 5, args, &c, &err), fits ? TITAN_OK : TITAN_EINVAL);
            assert_int_equal(access(at, F_OK), fits ? 0 : -1);
            (void)snprintf(words, sizeof(words), "%zu bytes, at most %zu", len, roles[i].most);
            assert_true(fits || strstr(err.msg, words));
        }
}

/* The port is taken: that is said before a state directory is made. */
static void test_taken_port(void **state)
{
    (void)state;
    struct daemon_config c;
    struct titan_error err = {0};
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(at);
    char address[64], fresh[128];
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0 && bind(fd, (struct sockaddr *)&at, len) == 0 && listen(fd, 1) == 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&at, &len), 0);
    (void)snprintf(address, sizeof(address), "127.0.0.1:%d", ntohs(at.sin_port));
    (void)snprintf(fresh, sizeof(fresh), "%s/state", folder);
    assert_int_equal(PARSE(&c, &err, "dev", "--insecure", "--listen", address), TITAN_EEXIST);
    assert_non_null(strstr(err.msg, address));
    (void)snprintf(address + 32, sizeof(address) - 32, "process %d (", (int)getpid());
    assert_non_null(strstr(err.msg, address + 32));
    assert_non_null(strstr(err.hint, "--listen"));
    assert_int_equal(access(fresh, F_OK), -1);
    (void)close(fd);
    assert_int_equal(PARSE(&c, &err, "dev", "--insecure", "--listen", address), TITAN_OK);
    assert_int_equal(access(fresh, F_OK), 0);
}

/* Runs titand coordinator with [ha] of this text; away_ms is large enough for all. */
static titan_status parse_ha(struct daemon_config *c, const char *ha, struct titan_error *err)
{
    char text[1024];
    (void)snprintf(text, sizeof(text), "%s\n[detection]\naway_ms = 4000\n[storage]\njobs_dir = \"/mnt/jobs\"\n", ha);
    write_file(text);
    return PARSE(c, err, "coordinator", "--insecure", "--config", file);
}

static void test_several_coordinators(void **state)
{
    (void)state;
    struct daemon_config c;
    struct titan_error err;
#define THREE "members = [\"b=h2:7\", \"a=h1:7\", \"c=h3:7\"]\n"
    assert_int_equal(parse_ha(&c, "[ha]\nname = \"a\"\n" THREE, &err), TITAN_OK);
    assert_int_equal(c.ha.members.n, 3);
    assert_string_equal(c.ha.members.at[1].name, "b");
    assert_string_equal(c.ha.listen, "h1:7");
    assert_int_equal(c.ha.election_ms, 300);
    assert_int_equal(parse_ha(&c, "[ha]\nname = \"c\"\nlisten = \"0.0.0.0:7\"\nelection_ms = 400\n" THREE, &err),
                     TITAN_OK);
    assert_string_equal(c.ha.listen, "0.0.0.0:7");
    assert_int_equal(c.ha.election_ms, 400);

    const struct {
        const char *ha, *says;
    } wrong[] = {
        {"[ha]\nname = \"d\"\n" THREE, "ha.name: 'd' is not in ha.members"},
        {"[ha]\n" THREE, "[ha] needs name and members"},
        {"[ha]\nname = \"a\"\n", "[ha] needs name and members"},
        {"[ha]\nname = \"a\"\nmembers = [\"a=h:1\"]\n", "1 members, but a majority needs an odd number, three or more"},
        {"[ha]\nname = \"a\"\nmembers = [\"a=h:1\", \"b=h:2\", \"c=h:3\", \"d=h:4\"]\n", "4 members, but"},
        {"[ha]\nname = \"a\"\nmembers = [\"a=h:1\", \"a=h:2\"]\n", "the name 'a' is given twice"},
        {"[ha]\nname = \"a\"\nmembers = [\"a=h:1\", \"b\"]\n", "'b' is not a member: write NAME=HOST:PORT"},
        {"[ha]\nname = \"a\"\nlisten = \"h\"\n" THREE, "'h' is not an address"},
        {"[ha]\nname = \"a\"\nelection_ms = 500\n" THREE,
         "detection.away_ms: 4000 is less than ten times ha.election_ms, 500"},
    };
    for (size_t i = 0; i < ARRAY_SIZE(wrong); i++) {
        assert_int_equal(parse_ha(&c, wrong[i].ha, &err), TITAN_EINVAL);
        if (!strstr(err.msg, wrong[i].says))
            fail_msg("%s, not: %s", err.msg, wrong[i].says);
    }
    write_file("[ha]\nname = \"a\"\nelection_ms = 50\n" THREE);
    assert_int_equal(PARSE(&c, &err, "coordinator", "--insecure", "--config", file), TITAN_EINVAL);
    assert_string_equal(err.msg, "[ha] needs storage.jobs_dir");
    assert_int_equal(PARSE(&c, &err, "dev", "--config", file), TITAN_EINVAL);
    assert_string_equal(err.msg, "[ha] is for coordinators");
#undef THREE
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_defaults, setup, teardown),
        cmocka_unit_test_setup_teardown(test_systemd_directories, setup, teardown),
        cmocka_unit_test_setup_teardown(test_file_and_flags, setup, teardown),
        cmocka_unit_test_setup_teardown(test_several_coordinators, setup, teardown),
        cmocka_unit_test_setup_teardown(test_webhooks, setup, teardown),
        cmocka_unit_test_setup_teardown(test_hooks, setup, teardown),
        cmocka_unit_test_setup_teardown(test_worker_limits, setup, teardown),
        cmocka_unit_test_setup_teardown(test_limits, setup, teardown),
        cmocka_unit_test_setup_teardown(test_bad_files, setup, teardown),
        cmocka_unit_test_setup_teardown(test_bad_flags, setup, teardown),
        cmocka_unit_test_setup_teardown(test_detection, setup, teardown),
        cmocka_unit_test_setup_teardown(test_transport, setup, teardown),
        cmocka_unit_test_setup_teardown(test_join, setup, teardown),
        cmocka_unit_test_setup_teardown(test_taken_port, setup, teardown),
        cmocka_unit_test_setup_teardown(test_help, setup, teardown),
        cmocka_unit_test_setup_teardown(test_bad_state_dir, setup, teardown),
        cmocka_unit_test_setup_teardown(test_ha, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
