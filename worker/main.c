/* SPDX-License-Identifier: Apache-2.0 */
/* main.c - titan-worker, the training process. An agent starts it (serve). People start it by hand to train without any
 * daemon (run), or for other work (check, measure, eval, generate, tokenize, convert, verify). */
#include <errno.h>
#include <limits.h>
#include <sched.h>
#include <pwd.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/listen.h"
#include "base/cleanup.h"
#include "base/file.h"
#include "base/folder_owner.h"
#include "base/hf_config.h"
#include "base/log.h"
#include "base/options.h"
#include "base/recipe.h"
#include "base/standard_streams.h"
#include "base/version.h"
#include "worker/checkpoint/convert.h"
#include "worker/checkpoint/verification.h"
#include "worker/comm/comm.h"
#include "worker/data/data_command.h"
#include "worker/elastic/solo.h"
#include "worker/infer/evaluate.h"
#include "worker/infer/generate.h"
#include "worker/measure/measure.h"
#include "worker/planner.h"
#include "worker/tokenizer/tokenize.h"
#include "worker/train.h"

/* Maps "not found" to bad input (2), because a command's missing argument is bad input. Exit code 3, "not found", is
 * for jobs. */
static titan_status input_status(titan_status status)
{
    return status == TITAN_ENOTFOUND ? TITAN_EINVAL : status;
}

static const char *called = "titan-worker"; /* or titanctl, which runs this program for some of its commands */

static int fail(const struct titan_error *err)
{
    (void)fprintf(stderr, "%s: %s\n", called, err->msg[0] ? err->msg : titan_status_text(err->status));
    if (err->hint[0])
        (void)fprintf(stderr, "  %s\n", err->hint);
    return titan_status_exit(err->status);
}

/* --- run and check ------------------------------------------------------------------------------------------------ */

struct cli {
    const struct args *args;
    int world;
};

static titan_status cli_read(const struct args *args, struct cli *ret, struct titan_error *err)
{
    int64_t world;
    TRY(args_int(args, "workers", (struct int_range){1, COMM_WORLD_MAX}, 1, &world, err));
    *ret = (struct cli){.args = args, .world = (int)world};
    return TITAN_OK;
}

static titan_status read_recipe(const struct cli *cli, struct recipe *r, struct titan_error *err)
{
    const char *device = args_text(cli->args, "device", NULL);
    char text[64];
    bool filled;

    recipe_init(r);
    TRY(recipe_load_with(r, cli->args->words[0], cli->args, err));
    TRY(hf_config_fill(r, NULL, &filled, err));
    if (device) {
        (void)snprintf(text, sizeof text, "device.name=%s", device);
        TRY(recipe_set(r, text, err));
    }
    if (r->parallelism.data_parallel_shard_degree == -1 && r->elastic.max_workers == -1)
        r->elastic.max_workers = cli->world;
    return recipe_resolve(r, err);
}

/* Threads of each worker: the cores of the affinity mask, shared among this machine's workers. */
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
    int stopped = 0;

    titan_assert(rank >= 0 && rank < world);
    titan_status status = membership_solo_open(rank, world, memfd, dir, &members, &err);
    if (status == TITAN_OK) {
        const struct train_options options = {
            .recipe = r, .membership = members, .threads = threads_each(world), .device_index = rank};
        status = train(&options, &err);
        stopped = membership_solo_stopped(members);
        members->ops->close(members);
    }
    if (status == TITAN_OK)
        return stopped ? 128 + stopped : 0;
    /* If one rank fails, the other ranks see only that a peer has vanished. So they report nothing. */
    if (status == TITAN_EPEER)
        return titan_status_exit(status);
    err.status = input_status(err.status);
    return fail(&err);
}

static volatile sig_atomic_t stop_signal, stops, saves, overdue;

static void note_signal(int sig)
{
    if (sig == SIGALRM)
        overdue = 1;
    else if (sig == SIGUSR1)
        saves = 1;
    else {
        stop_signal = sig;
        stops++;
    }
}

#define LAST_WORDS_S 5 /* time in which all ranks must end after one rank has failed */

/* Waits for all ranks and returns the run's exit code. The code of the first failure counts, because ranks that end
 * because of it report nothing. But the code of a real fault replaces the code of a rank that only lost its peer. */
static int wait_all(pid_t *pids, int world)
{
    const int lost_peer = titan_status_exit(TITAN_EPEER);
    int code = 0;

    for (int left = world; left > 0;) {
        int status;
        const pid_t pid = waitpid(-1, &status, 0);
        if (pid < 0 && errno == EINTR) {
            /* At the first signal to end, ranks write a checkpoint. After a second signal, the run does not wait for
             * the checkpoint. */
            if (saves && pids[0] > 0)
                (void)kill(pids[0], SOLO_SAVE); /* one rank is enough: all ranks agree on its commands */
            saves = 0;
            for (int i = 0; i < world && (stop_signal || overdue); i++)
                if (pids[i] > 0 && (overdue || stops > 1))
                    (void)kill(pids[i], SIGKILL);
                else if (pids[i] > 0)
                    (void)sigqueue(pids[i], SOLO_STOP, (union sigval){.sival_int = stop_signal});
            continue;
        }
        if (pid < 0)
            return 1;
        for (int i = 0; i < world; i++) {
            if (pids[i] != pid)
                continue;
            titan_assert(left > 0);
            pids[i] = 0;
            left--;
            const int one = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
            if (!WIFEXITED(status))
                (void)fprintf(stderr, "titan-worker: rank %d died of signal %d (%s)\n", i, WTERMSIG(status),
                              strsignal(WTERMSIG(status)));
            if (one != 0 && code == 0 && !stop_signal)
                (void)alarm(LAST_WORDS_S);
            if (one != 0 && (code == 0 || code == lost_peer))
                code = one;
        }
    }
    return stop_signal && code != 0 ? 128 + stop_signal : code; /* code 0: the run had reached its last step */
}

static int fork_ranks(const struct recipe *r, const char *dir, int world, int memfd)
{
    pid_t pids[COMM_WORLD_MAX] = {0};
    const pid_t parent = getpid();
    const struct sigaction act = {.sa_handler = note_signal};

    titan_assert(world >= 1 && world <= COMM_WORLD_MAX);
    (void)sigaction(SIGINT, &act, NULL);
    (void)sigaction(SIGTERM, &act, NULL);
    (void)sigaction(SIGUSR1, &act, NULL);
    (void)sigaction(SIGALRM, &act, NULL);
    for (int rank = 0; rank < world; rank++) {
        pids[rank] = fork();
        if (pids[rank] < 0) {
            perror("titan-worker: fork");
            for (int i = 0; i < rank; i++)
                (void)kill(pids[i], SIGKILL);
            return 1;
        }
        if (pids[rank] == 0) {
            (void)signal(SIGINT, SIG_DFL);
            (void)signal(SIGTERM, SIG_DFL);
            (void)signal(SIGUSR1, SIG_IGN);
            (void)signal(SOLO_SAVE, SIG_IGN);
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
    TRY(recipe_check_world(r, cli->world, err));
    uint64_t job;
    TRY(recipe_initial_job(r, &job, err));
    if (job)
        return titan_fail(err, TITAN_EINVAL,
                          "checkpoint.initial_load_path = \"%s\": only titand knows jobs; name the checkpoint's folder",
                          r->checkpoint.initial_load_path);
    TRY(recipe_check_data(r, NULL, err));
    recipe_print_warnings(r, stderr);
    /* Without a coordinator the run belongs to this process's user. The system alone decides which files the process
     * may read. */
    const struct passwd *entry = getpwuid(geteuid());
    struct folder_user user = {.uid = geteuid()};
    char text[FOLDER_USER_TEXT];
    if (!entry || (size_t)snprintf(user.name, sizeof user.name, "%s", entry->pw_name) >= sizeof user.name)
        (void)snprintf(user.name, sizeof user.name, "uid:%u", (unsigned)user.uid);
    folder_user_print(&user, text);
    (void)snprintf(r->job.owner, sizeof r->job.owner, "%s", text);
    (void)snprintf(r->checkpoint.folder_owner, sizeof r->checkpoint.folder_owner, "*");
    (void)snprintf(r->checkpoint.initial_load_owner, sizeof r->checkpoint.initial_load_owner, "*");
    name = args_text(cli->args, "dir", r->job.dump_folder[0] ? r->job.dump_folder : "titan-run");
    TRY(dir_make(name, err));
    if (!realpath(name, dir))
        return titan_fail_errno(err, "folder '%s'", name);
    /* A relative path starts at the current folder, not at the run's folder. */
    if (r->job.dump_folder[0] && r->job.dump_folder[0] != '/') {
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

static titan_status run(void *with, const struct args *args, struct titan_error *err)
{
    int *code = with;
    struct cli cli;
    struct recipe r;
    char dir[PATH_MAX];
    _cleanup_fd_ int memfd = -1;

    TRY(cli_read(args, &cli, err));
    titan_status status = prepare_run(&cli, &r, dir, err);
    if (status == TITAN_OK && cli.world > 1)
        status = comm_shm_segment(cli.world, &memfd, err);
    if (status != TITAN_OK)
        return input_status(status);
    (void)signal(SIGUSR1, SIG_IGN); /* ignored until there is a state to save */
    /* Ranks are forked before anything starts a thread or opens a device. */
    *code = cli.world == 1 ? run_rank(&r, dir, 0, 1, -1) : fork_ranks(&r, dir, cli.world, memfd);
    return TITAN_OK;
}

static titan_status check(void *with, const struct args *args, struct titan_error *err)
{
    struct cli cli;
    struct recipe r;
    _cleanup_(buf_free) struct buf text = {.limit = (size_t)1 << 30};

    (void)with;
    TRY(cli_read(args, &cli, err));
    titan_status status = read_recipe(&cli, &r, err);
    if (status == TITAN_OK)
        status = planner_check(&r, cli.world, args_has(args, "print") ? &text : NULL, err);
    if (status != TITAN_OK)
        return input_status(status);
    if (text.len > 0)
        (void)fwrite(text.data, 1, text.len, stdout);
    (void)printf("the programs of %d workers are sound\n", cli.world);
    return TITAN_OK;
}

#define MEASURE_S 2.0 /* seconds for each program class */

static titan_status measure(void *with, const struct args *args, struct titan_error *err)
{
    struct cli cli;
    struct recipe r;
    struct measure_options options = {.table = args_text(args, "out", NULL), .recipe = &r};
    _cleanup_(buf_free) struct buf text = BUF_INIT;

    (void)with;
    TRY(cli_read(args, &cli, err));
    TRY(args_real(args, "seconds", (struct real_range){0.01, 600}, MEASURE_S, &options.seconds, err));
    titan_status status = read_recipe(&cli, &r, err);
    if (status == TITAN_OK)
        status = recipe_check_world(&r, cli.world, err);
    options.world = cli.world;
    options.threads = r.device.threads > 0 ? (int)r.device.threads : threads_each(cli.world);
    if (status == TITAN_OK)
        status = measure_costs(&options, &text, err);
    if (status != TITAN_OK)
        return input_status(status);
    (void)fputs(text.data, stdout);
    return TITAN_OK;
}

static const struct command command_run = {
    .name = "run",
    .summary = "train with workers of this machine, without a daemon",
    .arguments = "FILE",
    .text = "Goes on from the newest checkpoint in the run's folder. Membership is fixed: a lost worker ends the run.\n"
            "SIGTERM and SIGINT write a checkpoint and end it, a second one ends it at once; SIGUSR1 writes one.",
    .min_args = 1,
    .max_args = 1,
    .options =
        (const struct option_spec[]){
            {"workers", 'n', "N", "how many (default 1)", WORD_NONE},
            {"dir", 0, "DIR", "folder of logs, metrics and checkpoints (default job.dump_folder, or titan-run)",
             WORD_FILE},
            {"device", 0, "NAME", "auto, cpu or cuda, in place of device.name", WORD_NONE},
            {"set", 0, "KEY=VALUE", "override a key of the file; may be given again", WORD_NONE},
            {NULL}},
    .examples = (const struct example[]){{"titan-worker run recipes/tiny.toml -n 4 --set "
                                          "training.dataset_path=/usr/include --dir /tmp/tiny",
                                          "on the text of this machine's headers"},
                                         {NULL}},
    .run = run,
};

static const struct command command_check = {
    .name = "check",
    .summary = "build and check the step programs of all workers, without running them",
    .arguments = "FILE",
    .min_args = 1,
    .max_args = 1,
    .options = (const struct option_spec[]){{"workers", 'n', "N", "how many (default 1)", WORD_NONE},
                                            {"device", 0, "NAME", "in place of device.name", WORD_NONE},
                                            {"set", 0, "KEY=VALUE", "override a key of the file; may be given again",
                                             WORD_NONE},
                                            {"print", 0, NULL, "the programs themselves, a line an action", WORD_NONE},
                                            {NULL}},
    .examples = (const struct example[]){{"titan-worker check recipes/llama3_8b.toml -n 8 --print",
                                          "what each of 8 workers does in a step"},
                                         {NULL}},
    .run = check,
};

static const struct command command_measure = {
    .name = "measure",
    .summary = "time the operations and transfers of a run file, for plans",
    .arguments = "FILE",
    .text = "Builds the step programs as check does, runs one rank of each program class alone on the device, carries "
            "out the\n"
            "transfers between processes, and writes a table of what they took. plan asks it before its model.\n"
            "A table that lies there already is added to.",
    .min_args = 1,
    .max_args = 1,
    .options =
        (const struct option_spec[]){
            {"workers", 'n', "N", "how many (default 1)", WORD_NONE},
            {"device", 0, "NAME", "auto, cpu or cuda, in place of device.name", WORD_NONE},
            {"out", 0, "TABLE", "the table (default: costs-cpu.tsv in ~/.cache/titan, for a CPU)", WORD_FILE},
            {"seconds", 0, "S", "for each program class (default 2)", WORD_NONE},
            {"set", 0, "KEY=VALUE", "override a key of the file; may be given again", WORD_NONE},
            {NULL}},
    .examples = (const struct example[]){{"titan-worker measure recipes/tiny.toml -n 2 --device cpu",
                                          "then: titan-worker plan recipes/tiny.toml -n 2 --device cpu"},
                                         {NULL}},
    .run = measure,
};

/* --- serve -------------------------------------------------------------------------------------------------------- */

#ifdef TITAN_BARE
static titan_status serve_command(void *with, const struct args *args, struct titan_error *err)
{
    (void)with;
    (void)args;
    return titan_fail(err, TITAN_EINVAL,
                      "serve: this worker was built without protobuf-c (BARE=1) and cannot talk to an agent");
}
#else
static titan_status serve(const struct agent_connection_options *o, struct titan_error *err)
{
    char path[PATH_MAX];
    struct recipe r;
    struct membership *members = NULL;

    if (snprintf(path, sizeof path, "%s/recipe.toml", o->job_dir) >= (int)sizeof path)
        return titan_fail(err, TITAN_EINVAL, "folder '%.64s...' has too long a name", o->job_dir);
    TRY(log_start_thread(err));                   /* a thread writes the log, because the log is on the job's disk */
    TRY(membership_agent_open(o, &members, err)); /* opened first, because last words need the membership */
    recipe_init(&r);
    titan_status status = recipe_load(&r, path, err);
    if (status == TITAN_OK)
        status = recipe_resolve(&r, err);
    if (status == TITAN_OK) {
        /* Threads follow from the largest number of workers, which share the machine. So their number stays the same
         * when the membership changes. */
        const struct train_options options = {
            .recipe = &r, .membership = members, .threads = threads_each((int)r.elastic.max_workers)};
        status = train(&options, err);
    } else {
        members->ops->failing(members, err);
    }
    members->ops->close(members);
    log_flush(LOG_LAST_MS);
    return status;
}

static titan_status serve_command(void *with, const struct args *args, struct titan_error *err)
{
    int64_t job, worker, page_fd, flight_fd;

    TRY(args_int(args, "page-fd", (struct int_range){3, INT32_MAX}, 0, &page_fd, err));
    TRY(args_int(args, "flight-fd", (struct int_range){3, INT32_MAX}, 0, &flight_fd, err));
    /* The job may run as another user than the agent. Other processes of this user must not read the token and the
     * epochs' keys in this process's memory. */
    if (page_fd)
        (void)prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
    TRY(args_int(args, "job", (struct int_range){0, INT64_MAX}, 0, &job, err));
    TRY(args_int(args, "worker", (struct int_range){0, INT64_MAX}, 0, &worker, err));
    struct agent_connection_options o = {.socket = args_text(args, "socket", NULL),
                                         .page = args_text(args, "page", NULL),
                                         .page_fd = (int)page_fd,
                                         .flight_fd = (int)flight_fd,
                                         .host = args_text(args, "host", NULL),
                                         .job_dir = args_text(args, "dir", NULL),
                                         .job_id = (uint64_t)job,
                                         .worker_id = (uint64_t)worker};
    o.run = args_text(args, "run", o.job_dir); /* an older agent gives no --run */
    const char *ports = args_text(args, "ports", NULL);
    if (ports && listen_ports_parse(ports, &o.ports, err) != TITAN_OK)
        return titan_error_wrap(err, "--ports");
    if (!o.socket || !o.page || !o.job_dir || !o.host)
        return titan_fail(err, TITAN_EINVAL, "serve needs --socket, --page, --job, --worker, --host and --dir");
    titan_assert(o.run && (o.page_fd == 0 || o.page_fd > STDERR_FILENO));
    titan_status status = serve(&o, err);
    if (status == TITAN_OK || !titan_error_short(err))
        return input_status(status);
    (void)fail(err);
    *(int *)with = TITAN_EXIT_SHORT;
    return TITAN_OK;
}
#endif

static const struct command command_serve = {
    .name = "serve",
    .summary = "what an agent starts",
    .arguments = "",
    .options =
        (const struct option_spec[]){
            {"socket", 0, "PATH", "the agent's socket", WORD_FILE},
            {"page", 0, "PATH", "the page shared with the agent", WORD_FILE},
            {"page-fd", 0, "N", "the page, open", WORD_NONE},
            {"flight-fd", 0, "N", "the flight recorder, open", WORD_NONE},
            {"job", 0, "ID", "number of the job", WORD_NONE},
            {"worker", 0, "ID", "number of the worker", WORD_NONE},
            {"host", 0, "ADDRESS", "where other nodes reach it", WORD_NONE},
            {"ports", 0, "FIRST-LAST", "listen at one of these ports (default: any)", WORD_NONE},
            {"dir", 0, "DIR", "the job's folder, with recipe.toml", WORD_FILE},
            {"run", 0, "NAME", "the run, for its checkpoints (default: the folder)", WORD_NONE},
            {NULL}},
    .run = serve_command,
};

/* --- the program -------------------------------------------------------------------------------------------------- */

/* `with` of a command points to an int: the exit code, if it does not follow from the status. */
static const struct command *const commands[] = {
    &command_run,      &command_check,   &command_measure, &plan_command, &eval_command,  &generate_command,
    &tokenize_command, &convert_command, &verify_command,  &data_command, &command_serve, NULL};
static const struct option_spec options[] = {
    {"help", 'h', NULL, "say how it is used, with examples", WORD_NONE},
    {"version", 'V', NULL, "print titan-worker's version", WORD_NONE},
    {NULL},
};
static const struct command_table titan_worker = {
    .name = "titan-worker", .noun = "command", .commands = commands, .options = options};

int main(int argc, char **argv)
{
    _cleanup_(buf_free) struct buf help = BUF_INIT;
    struct titan_error err = {0};
    struct args args;
    int code = 0;

    standard_streams_open();
    if (argc > 0 && strcmp(argv[0], "titanctl") == 0)
        called = "titanctl";
    (void)signal(SIGPIPE, SIG_IGN);
    (void)setvbuf(stdout, NULL, _IOLBF, 0);
    if (args_parse(&titan_worker, argc, argv, &args, &err) != TITAN_OK)
        return fail(&err);
    if (args_has(&args, "help")) {
        if (args.command) {
            help_put_command(&titan_worker, args.command, &help);
        } else {
            buf_puts(&help, "usage: titan-worker COMMAND [OPTION]... [ARGUMENT]...\n\n"
                            "Trains: started by an agent, or by hand without any daemon.\n\ncommands\n");
            help_put_commands(&titan_worker, &help);
            buf_puts(&help, "\noptions of all commands\n");
            help_put_options(options, &help);
            buf_puts(&help, "\n`titan-worker COMMAND --help` shows a command's options and examples.\n");
        }
        (void)fputs(help.data, stdout);
        return 0;
    }
    if (args_has(&args, "version")) {
        (void)printf("titan-worker %s\n", titan_version);
        return 0;
    }
    if (!args.command) {
        (void)titan_fail(&err, TITAN_EINVAL, "no command was given");
        titan_error_hint(&err, "titan-worker --help lists them");
        return fail(&err);
    }
    err.status = args.command->run(&code, &args, &err);
    if (err.status != TITAN_OK)
        return fail(&err);
    return code == 0 && !standard_streams_flush("titan-worker") ? 1 : code;
}
