/* main.c - titan-worker: trains. Started by an agent (serve), by hand without any daemon (run), or to look at things
 * (check, generate, convert). */
#include <errno.h>
#include <getopt.h>
#include <limits.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/file.h"
#include "base/log.h"
#include "base/recipe.h"
#include "base/version.h"
#include "worker/checkpoint/convert.h"
#include "worker/comm/comm.h"
#include "worker/elastic/membership.h"
#include "worker/infer/generate.h"
#include "worker/planner.h"
#include "worker/train.h"

static const char usage[] =
    "Usage: titan-worker COMMAND ...\n"
    "\n"
    "  run FILE [-n N] [--set KEY=VALUE]... [--dir DIR] [--device NAME]\n"
    "          train with N workers of this machine, without a daemon; goes on from a checkpoint in DIR\n"
    "  check FILE [-n N] [--set KEY=VALUE]... [--print]\n"
    "          build and check the step programs of N workers; --print shows them\n"
    "  plan FILE --world N [--device NAME] [--timeline FILE] [--picture FILE] [--search] [--memory GIB]\n"
    "       [--json] [--set KEY=VALUE]...\n"
    "          memory, traffic, step time and MFU of the run on N devices, without running it\n"
    "  generate ...   text from a checkpoint (generate --help)\n"
    "  convert ...    checkpoint to Hugging Face safetensors (convert --help)\n"
    "  serve --socket PATH --page PATH --job ID --worker ID --host ADDRESS --dir DIR\n"
    "          what an agent starts\n"
    "  --version, --help\n"
    "\n"
    "Examples:\n"
    "  titan-worker run recipes/tiny.toml -n 4 --set training.dataset_path=/usr/include --dir /tmp/tiny\n"
    "  titan-worker check recipes/llama3_8b.toml -n 8 --print\n";

/* What a command is given and is not there is bad input (2); "not found" (3) is for jobs. */
static titan_status input_status(titan_status status)
{
    return status == TITAN_ENOTFOUND ? TITAN_EINVAL : status;
}

static int fail(const struct titan_error *err)
{
    (void)fprintf(stderr, "titan-worker: %s\n", err->msg[0] ? err->msg : titan_status_text(err->status));
    if (err->hint[0])
        (void)fprintf(stderr, "  %s\n", err->hint);
    return titan_status_exit(input_status(err->status));
}

static int usage_error(const char *what)
{
    (void)fprintf(stderr, "titan-worker: %s (titan-worker --help)\n", what);
    return titan_status_exit(TITAN_EINVAL);
}

/* --- options of run and check
 * --------------------------------------------------------------------------------------------------- */

#define SETS_MAX 64

struct cli {
    const char *file, *dir, *device;
    const char *sets[SETS_MAX];
    int n_sets, world;
    bool print;
};

/* Returns 0, or the exit code of a usage error. */
static int parse(int argc, char **argv, struct cli *cli)
{
    static const struct option options[] = {
        {"workers", required_argument, NULL, 'n'}, {"set", required_argument, NULL, 's'},
        {"dir", required_argument, NULL, 'd'},     {"device", required_argument, NULL, 'D'},
        {"print", no_argument, NULL, 'p'},         {NULL, 0, NULL, 0}};
    int c;

    while ((c = getopt_long(argc, argv, "n:", options, NULL)) != -1) {
        char *end;
        long n;
        switch (c) {
        case 'n':
            n = strtol(optarg, &end, 10);
            if (*end || end == optarg || n < 1 || n > COMM_WORLD_MAX)
                return usage_error("-n takes a number of workers");
            cli->world = (int)n;
            break;
        case 's':
            if (cli->n_sets == SETS_MAX)
                return usage_error("too many --set");
            cli->sets[cli->n_sets++] = optarg;
            break;
        case 'd':
            cli->dir = optarg;
            break;
        case 'D':
            cli->device = optarg;
            break;
        case 'p':
            cli->print = true;
            break;
        default:
            return titan_status_exit(TITAN_EINVAL);
        }
    }
    if (optind + 1 != argc)
        return usage_error("one run file is needed");
    cli->file = argv[optind];
    return 0;
}

static titan_status read_recipe(const struct cli *cli, struct recipe *r, struct titan_error *err)
{
    char device[64];

    recipe_init(r);
    TRY(recipe_load(r, cli->file, err));
    for (int i = 0; i < cli->n_sets; i++)
        TRY(recipe_set(r, cli->sets[i], err));
    if (cli->device) {
        (void)snprintf(device, sizeof device, "device.name=%s", cli->device);
        TRY(recipe_set(r, device, err));
    }
    return recipe_resolve(r, err);
}

/* --- run
 * ---------------------------------------------------------------------------------------------------------------------------
 */

/* Cores of the affinity mask, shared among the workers of this machine. */
static int threads_each(int world)
{
    cpu_set_t set;
    const int cores = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
    return MAX(1, cores / world);
}

static int run_rank(const struct recipe *r, const char *dir, int rank, int world, int memfd)
{
    struct titan_error err = {0};
    struct membership *members = NULL;

    titan_status status = membership_solo_open(rank, world, memfd, dir, &members, &err);
    if (status == TITAN_OK) {
        const struct train_options options = {
            .recipe = r, .membership = members, .threads = threads_each(world), .device_index = rank};
        status = train(&options, &err);
        members->ops->close(members);
    }
    if (status == TITAN_OK)
        return 0;
    /* When one rank fails, the others see a vanished peer: that is not worth a line. */
    return status == TITAN_EPEER ? titan_status_exit(status) : fail(&err);
}

static volatile sig_atomic_t stop_signal;

static void note_signal(int sig)
{
    stop_signal = sig;
}

static void signal_all(const pid_t *pids, int n, int sig)
{
    for (int i = 0; i < n; i++)
        if (pids[i] > 0)
            (void)kill(pids[i], sig);
}

static int exit_code_of(int wait_status, int rank)
{
    if (WIFEXITED(wait_status))
        return WEXITSTATUS(wait_status);
    (void)fprintf(stderr, "titan-worker: rank %d died of signal %d (%s)\n", rank, WTERMSIG(wait_status),
                  strsignal(WTERMSIG(wait_status)));
    return 128 + WTERMSIG(wait_status);
}

#define LAST_WORDS_S 5 /* how long ranks have to end after one has failed */

/* The first failure is the run's: the ranks that vanished with it say nothing more. A code of a fault beats that of a
 * rank that only lost its peer. */
static int wait_all(pid_t *pids, int world)
{
    const int lost_peer = titan_status_exit(TITAN_EPEER);
    int code = 0;

    for (int left = world; left > 0;) {
        int status;
        const pid_t pid = waitpid(-1, &status, 0);
        if (pid < 0 && errno == EINTR) {
            signal_all(pids, world, stop_signal == SIGALRM ? SIGKILL : stop_signal);
            continue;
        }
        if (pid < 0)
            return 1;
        for (int i = 0; i < world; i++) {
            if (pids[i] != pid)
                continue;
            pids[i] = 0;
            left--;
            const int one = exit_code_of(status, i);
            if (one != 0 && code == 0)
                (void)alarm(LAST_WORDS_S);
            if (one != 0 && (code == 0 || code == lost_peer))
                code = one;
        }
    }
    return stop_signal && stop_signal != SIGALRM ? 128 + stop_signal : code;
}

static int fork_ranks(const struct recipe *r, const char *dir, int world, int memfd)
{
    pid_t pids[COMM_WORLD_MAX] = {0};
    const pid_t parent = getpid();
    const struct sigaction act = {.sa_handler = note_signal};

    (void)sigaction(SIGINT, &act, NULL);
    (void)sigaction(SIGTERM, &act, NULL);
    (void)sigaction(SIGALRM, &act, NULL);
    for (int rank = 0; rank < world; rank++) {
        pids[rank] = fork();
        if (pids[rank] < 0) {
            perror("titan-worker: fork");
            signal_all(pids, rank, SIGKILL);
            return 1;
        }
        if (pids[rank] == 0) {
            (void)signal(SIGINT, SIG_DFL);
            (void)signal(SIGTERM, SIG_DFL);
            (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
            if (getppid() != parent)
                _exit(1);
            exit(run_rank(r, dir, rank, world, memfd));
        }
    }
    return wait_all(pids, world);
}

static titan_status prepare_run(const struct cli *cli, struct recipe *r, char dir[PATH_MAX], struct titan_error *err)
{
    const char *name;

    TRY(read_recipe(cli, r, err));
    TRY(recipe_check_run(r, err));
    TRY(recipe_check_world(r, cli->world, err));
    TRY(recipe_check_data(r, NULL, err));
    name = cli->dir ? cli->dir : r->job.dump_folder[0] ? r->job.dump_folder : "titan-run";
    TRY(dir_make(name, err));
    if (!realpath(name, dir))
        return titan_fail_errno(err, "folder '%s'", name);
    if (r->job.dump_folder[0] && r->job.dump_folder[0] != '/') { /* meant from here, not from the run's folder */
        char here[PATH_MAX], dump[PATH_MAX];
        (void)snprintf(dump, sizeof dump, "%s", r->job.dump_folder);
        if (!getcwd(here, sizeof here))
            return titan_fail_errno(err, "current folder");
        if ((size_t)snprintf(r->job.dump_folder, sizeof r->job.dump_folder, "%s/%s", here, dump) >=
            sizeof r->job.dump_folder)
            return titan_fail(err, TITAN_EINVAL, "job.dump_folder: the path is too long");
    }
    return TITAN_OK;
}

static int run_main(int argc, char **argv)
{
    struct cli cli = {.world = 1};
    struct titan_error err = {0};
    struct recipe r;
    char dir[PATH_MAX];
    _cleanup_fd_ int memfd = -1;

    const int code = parse(argc, argv, &cli);
    if (code != 0)
        return code;
    titan_status status = prepare_run(&cli, &r, dir, &err);
    if (status == TITAN_OK && cli.world > 1)
        status = comm_shm_segment(cli.world, &memfd, &err);
    if (status != TITAN_OK)
        return fail(&err);
    /* Ranks are forked before anything starts a thread or opens a device. */
    return cli.world == 1 ? run_rank(&r, dir, 0, 1, -1) : fork_ranks(&r, dir, cli.world, memfd);
}

/* --- check
 * --------------------------------------------------------------------------------------------------------------------------
 */

static int check_main(int argc, char **argv)
{
    struct cli cli = {.world = 1};
    struct titan_error err = {0};
    struct recipe r;
    _cleanup_(buf_free) struct buf text = {.limit = (size_t)1 << 30};

    const int code = parse(argc, argv, &cli);
    if (code != 0)
        return code;
    titan_status status = read_recipe(&cli, &r, &err);
    if (status == TITAN_OK)
        status = planner_check(&r, cli.world, cli.print ? &text : NULL, &err);
    if (status != TITAN_OK)
        return fail(&err);
    if (text.len > 0)
        (void)fwrite(text.data, 1, text.len, stdout);
    (void)printf("the programs of %d workers are sound\n", cli.world);
    return 0;
}

/* --- serve
 * --------------------------------------------------------------------------------------------------------------------------
 */

#ifdef TITAN_BARE
static int serve_main(int argc, char **argv)
{
    (void)argc;
    (void)argv;
    return usage_error("serve: this worker was built without protobuf-c (BARE=1) and cannot talk to an agent");
}
#else
static int parse_serve(int argc, char **argv, struct link_options *o)
{
    static const struct option options[] = {
        {"socket", required_argument, NULL, 's'}, {"page", required_argument, NULL, 'p'},
        {"job", required_argument, NULL, 'j'},    {"worker", required_argument, NULL, 'w'},
        {"host", required_argument, NULL, 'h'},   {"dir", required_argument, NULL, 'd'},
        {"run", required_argument, NULL, 'r'},    {NULL, 0, NULL, 0}};
    int c;

    o->run = NULL;
    while ((c = getopt_long(argc, argv, "", options, NULL)) != -1) {
        if (c == 's')
            o->socket = optarg;
        else if (c == 'p')
            o->page = optarg;
        else if (c == 'j')
            o->job_id = strtoull(optarg, NULL, 10);
        else if (c == 'w')
            o->worker_id = strtoull(optarg, NULL, 10);
        else if (c == 'h')
            o->host = optarg;
        else if (c == 'd')
            o->job_dir = optarg;
        else if (c == 'r')
            o->run = optarg;
        else
            return titan_status_exit(TITAN_EINVAL);
    }
    o->run = o->run ? o->run : o->job_dir; /* of an older agent */
    if (!o->socket || !o->page || !o->job_dir || !o->host || optind != argc)
        return usage_error("serve needs --socket, --page, --job, --worker, --host and --dir");
    return 0;
}

static titan_status serve(const struct link_options *o, struct titan_error *err)
{
    char path[PATH_MAX];
    struct recipe r;
    struct membership *members = NULL;

    if (snprintf(path, sizeof path, "%s/recipe.toml", o->job_dir) >= (int)sizeof path)
        return titan_fail(err, TITAN_EINVAL, "folder '%.64s...' has too long a name", o->job_dir);
    TRY(membership_link_open(o, &members, err)); /* first: last words need it */
    recipe_init(&r);
    titan_status status = recipe_load(&r, path, err);
    if (status == TITAN_OK)
        status = recipe_resolve(&r, err);
    if (status == TITAN_OK) {
        /* The agent's slots share the machine; the number stays the same when the membership changes. */
        const struct train_options options = {
            .recipe = &r, .membership = members, .threads = threads_each((int)r.elastic.max_workers)};
        status = train(&options, err);
    } else {
        members->ops->failing(members, err);
    }
    members->ops->close(members);
    return status;
}

static int serve_main(int argc, char **argv)
{
    struct link_options o = {0};
    struct titan_error err = {0};

    const int code = parse_serve(argc, argv, &o);
    if (code != 0)
        return code;
    return serve(&o, &err) == TITAN_OK ? 0 : fail(&err);
}
#endif

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        int (*main)(int argc, char **argv);
    } commands[] = {{"run", run_main},     {"check", check_main},       {"plan", planner_main},
                    {"serve", serve_main}, {"generate", generate_main}, {"convert", convert_main}};

    (void)signal(SIGPIPE, SIG_IGN);
    (void)setvbuf(stdout, NULL, _IOLBF, 0);
    /* Workers share cores: a thread that waits must not spin. Read when the device plug-in loads OpenMP. */
    (void)setenv("OMP_WAIT_POLICY", "passive", 0);
    if (argc < 2)
        return usage_error("a command is needed");
    if (strcmp(argv[1], "--version") == 0) {
        (void)printf("titan-worker %s\n", TITAN_VERSION);
        return 0;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) {
        (void)fputs(usage, stdout);
        return 0;
    }
    for (size_t i = 0; i < ARRAY_SIZE(commands); i++)
        if (strcmp(argv[1], commands[i].name) == 0)
            return commands[i].main(argc - 1, argv + 1);
    (void)fprintf(stderr, "titan-worker: unknown command '%s' (titan-worker --help)\n", argv[1]);
    return titan_status_exit(TITAN_EINVAL);
}
