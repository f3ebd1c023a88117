/* SPDX-License-Identifier: Apache-2.0 */
/* planner.c - the plan command: reads recipe, machine and number of devices, writes a report. */
#include "worker/planner.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/file.h"
#include "base/hf_config.h"
#include "base/units.h"
#include "worker/data/gzip.h"
#include "worker/plan/fitting.h"
#include "worker/plan/forecast.h"
#include "worker/plan/picture.h"
#include "worker/plan/search.h"
#include "worker/plan/timeline.h"

#define WORLD_MAX (1 << 20)
#define BIG_TIMELINE ((size_t)64 << 20) /* bytes; larger files make a browser slow */

struct planner {
    const struct args *args;
    const char *timeline, *trace, *picture; /* NULL = none */
    int world;                              /* 0 = as in the file */
    double memory_gib;                      /* 0 = as in the file */
    double gigabits, delay;                 /* --network, --delay; negative = the machine's */
    int64_t node;                           /* 0 = the machine's */
    const struct machine *machine;          /* NULL = as in the file */
    struct machine resized; /* copy of the machine with another memory size (--memory or device.memory) */
    struct machine linked;  /* copy of the machine with the network that was asked for */
    bool search, json, print, operations;
    struct recipe recipe;
    struct model *model;
    /* The CPU device. It is opened for its sizes and fast types; it stays closed if the plan is for GPUs, or if the
     * open fails. */
    struct device_handle device;
    char table_path[PATH_MAX];
    struct cost_table table;
    struct cost cost; /* costs for the forecast; passes use the cost model, as in a run */
};

/* --- command line ------------------------------------------------------------------------------------------------- */

static titan_status read_options(const struct args *args, struct planner *p, struct titan_error *err)
{
    const char *device = args_text(args, "device", NULL);
    int64_t world;

    *p = (struct planner){.args = args,
                          .timeline = args_text(args, "timeline", NULL),
                          .trace = args_text(args, "trace", NULL),
                          .picture = args_text(args, "picture", NULL),
                          .machine = device ? cost_machine_find(device) : NULL,
                          .search = args_has(args, "search"),
                          .json = args_has(args, "json"),
                          .print = args_has(args, "print"),
                          .operations = args_has(args, "operations")};
    if (device && !p->machine)
        return titan_fail(err, TITAN_EINVAL, "--device: unknown device '%.64s' (%s)", device, cost_machine_names());
    TRY(args_int(args, args_has(args, "workers") ? "workers" : "world", (struct int_range){1, WORLD_MAX}, 0, &world,
                 err));
    p->world = (int)world;
    TRY(args_real(args, "memory", (struct real_range){0.001, 1e6}, 0, &p->memory_gib, err));
    TRY(args_real(args, "network", (struct real_range){1e-3, 1e6}, -1, &p->gigabits, err));
    TRY(args_real(args, "delay", (struct real_range){0, 1e4}, -1, &p->delay, err));
    TRY(args_int(args, "node", (struct int_range){1, WORLD_MAX}, 0, &p->node, err));
    if (p->json && p->print)
        return titan_fail(err, TITAN_EINVAL, "plan: --print has no JSON");
    if (p->search && (p->timeline || p->picture || p->print || p->operations))
        return titan_fail(err, TITAN_EINVAL,
                          "plan: --search lists layouts, and writes nothing of one: leave out --timeline, --picture, "
                          "--print and --operations");
    if (p->trace && !p->timeline)
        return titan_fail(err, TITAN_EINVAL, "plan: --trace PATH needs --timeline PATH, which has both");
    return TITAN_OK;
}

/* --- report ------------------------------------------------------------------------------------------------------- */

static bool for_cpu(const struct planner *p)
{
    return strcmp(p->machine->name, "cpu") == 0;
}

static titan_status write_file(const char *path, const struct buf *text, struct titan_error *err)
{
    if (buf_failed(text))
        return titan_fail(err, TITAN_ENOMEM, "'%s': out of memory", path);
    return file_write(path, text->data, text->len, err);
}

static titan_status write_files(const struct planner *p, const struct simulation *s, struct titan_error *err)
{
    _cleanup_(buf_free) struct buf timeline = {.limit = (size_t)4 << 30}, packed = {.limit = timeline.limit};
    _cleanup_(buf_free) struct buf picture = {.limit = (size_t)4 << 30};
    char size[UNITS_TEXT];

    titan_assert(s->step > 0);
    if (p->timeline) {
        double zero = 0;
        if (p->trace)
            TRY(timeline_reopen(p->trace, &timeline, &zero, err));
        simulation_timeline(s, zero, &timeline);
        /* A path that ends in .gz asks for a packed file. Perfetto opens both forms. */
        const size_t n = strlen(p->timeline);
        const bool packs = n > 3 && strcmp(p->timeline + n - 3, ".gz") == 0 && !buf_failed(&timeline);
        if (packs)
            TRY(gzip_pack(&timeline, &packed, err));
        TRY(write_file(p->timeline, packs ? &packed : &timeline, err));
        if (!packs && timeline.len >= BIG_TIMELINE)
            (void)fprintf(stderr, "note: '%s' is %s; as %s.gz it is about a tenth of that, and Perfetto opens it too\n",
                          p->timeline, format_bytes(timeline.len, size), p->timeline);
    }
    if (p->picture) {
        picture_write(s, p->recipe.job.description, &picture);
        TRY(write_file(p->picture, &picture, err));
    }
    return TITAN_OK;
}

/* Checks an evaluation's programs like a step's programs, and adds them to the forecast. f NULL: only checks. */
static titan_status add_evaluation(const struct plan_options *of_step, struct forecast *f, struct titan_error *err)
{
    struct plan_options options = *of_step;
    struct program **programs = NULL;
    struct plan *plan = NULL;

    if (!options.recipe->validation.enable)
        return TITAN_OK;
    options.evaluation = true;
    titan_status status = plan_open(&options, &plan, err);
    if (status == TITAN_OK)
        status = plan_programs(plan, &programs, err);
    if (status != TITAN_OK)
        (void)titan_error_wrap(err, "an evaluation");
    else if (f)
        forecast_add_evaluation(f, plan, programs);
    if (programs)
        plan_free_programs(plan, programs);
    plan_close(plan);
    return status;
}

static bool forecast_fits_in(const struct plan *plan, struct program *const *programs, void *with)
{
    const struct planner *p = with;
    struct simulation *s = NULL;
    struct forecast f = {0};

    const bool fits = forecast_make(plan, programs, &p->cost, &f, &s, NULL) == TITAN_OK &&
                      add_evaluation(&plan->opt, &f, NULL) == TITAN_OK && forecast_fits(&f);
    forecast_clear(&f);
    simulation_close(s);
    return fits;
}

static titan_status report_plan(struct planner *p, const struct plan *plan, struct buf *out, struct titan_error *err)
{
    struct program **programs = NULL;
    struct simulation *s = NULL;
    struct forecast f = {0};

    titan_assert(p->machine && plan->classes >= 1);
    TRY(plan_programs(plan, &programs, err));
    titan_status status = forecast_make(plan, programs, &p->cost, &f, &s, err);
    f.table = p->cost.table ? p->table_path : NULL;
    if (status == TITAN_OK)
        status = add_evaluation(&plan->opt, &f, err);
    if (status == TITAN_OK && !forecast_fits(&f)) {
        f.fitting_batch = plan_fitting_batch(&plan->opt, forecast_fits_in, p);
        f.fitting_room = plan_fitting_room(&plan->opt, forecast_fits_in, p);
    }
    if (status == TITAN_OK && p->print)
        for (int k = 0; k < plan->classes; k++)
            program_print(programs[k], out);
    if (status == TITAN_OK && p->json)
        status = forecast_json(&f, p->operations ? s : NULL, &p->cost, out, err);
    else if (status == TITAN_OK)
        forecast_print(&f, out);
    if (status == TITAN_OK && p->operations && !p->json)
        status = forecast_print_operations(&f, s, &p->cost, out, err);
    if (status == TITAN_OK)
        status = write_files(p, s, err);
    forecast_clear(&f);
    simulation_close(s);
    plan_free_programs(plan, programs);
    return status;
}

/* --- measured costs ----------------------------------------------------------------------------------------------- */

/* Opens the table of measured costs. A table named by --costs must fit. In the usual place there may be no table, or
 * the table of another machine that shares the home folder: it is then not used. */
static titan_status open_table(struct planner *p, struct titan_error *err)
{
    const char *given = args_text(p->args, "costs", NULL);
    struct titan_error why = {0};

    if (given && strcmp(given, "none") == 0)
        return TITAN_OK;
    if (given && (size_t)snprintf(p->table_path, sizeof p->table_path, "%s", given) >= sizeof p->table_path)
        return titan_fail(err, TITAN_EINVAL, "--costs: the path is too long");
    if (!given && (cost_table_place(p->machine->name, p->table_path, sizeof p->table_path, NULL) != TITAN_OK ||
                   access(p->table_path, F_OK) != 0))
        return TITAN_OK;
    TRY(cost_table_load(p->table_path, &p->table, err));
    /* A CPU's table must be of this machine. A GPU's table must be of a machine with the same name. */
    struct cost_host here = p->table.host;
    if (for_cpu(p)) {
        cost_host_of_cpu(&here);
    } else if (cost_machine_of(here.machine) != cost_machine_find(p->machine->name)) {
        (void)snprintf(here.device, sizeof here.device, "cuda");
        (void)snprintf(here.machine, sizeof here.machine, "%s", p->machine->name);
    }
    const titan_status status = cost_host_check(&p->table.host, &here, p->table_path, given ? err : &why);
    if (status != TITAN_OK && !given) {
        (void)fprintf(stderr, "note: not used: %s\n", why.msg);
        cost_table_clear(&p->table);
        return TITAN_OK;
    }
    return status;
}

/* Opens the costs. Each worker has as many threads as with `run`. */
static titan_status open_costs(struct planner *p, struct titan_error *err)
{
    struct cost_host here;

    /* The network changes the forecast alone. Passes see the machine's own, so that the program is the run's. */
    p->linked = *p->machine;
    if (p->node > 0)
        p->linked.node = (int)p->node;
    if (p->gigabits > 0)
        p->linked.net_bandwidth = p->gigabits * 1e9 / 8;
    if (p->delay >= 0)
        p->linked.net_latency = p->delay * 1e-3;
    p->cost =
        (struct cost){.machine = &p->linked, .threads = 1, .network = p->gigabits > 0 || p->delay >= 0 || p->node > 0};
    TRY(open_table(p, err));
    if (p->table.n > 0)
        p->cost.table = &p->table;
    if (!for_cpu(p))
        return TITAN_OK;
    cost_host_of_cpu(&here);
    p->cost.threads = p->recipe.device.threads > 0 ? (int)p->recipe.device.threads : MAX(1, here.cores / p->world);
    const struct device_options device = {.threads = p->cost.threads};
    if (device_open("cpu", &device, &p->device, NULL) != TITAN_OK)
        p->device = (struct device_handle){0}; /* without the device, sizes are estimated */
    else if (p->cost.table)
        p->cost.device = &p->device.info;
    return TITAN_OK;
}

static titan_status make_plan(struct planner *p, struct buf *out, struct titan_error *err)
{
    struct plan *plan = NULL;
    char bound[64];
    bool filled;

    /* The recipe is read for the given number of workers, whatever bounds the file has. If no number is given, it is
     * the number in the file, or the number that the file's mesh needs. */
    recipe_init(&p->recipe);
    TRY(recipe_load_with(&p->recipe, p->args->words[0], p->args, err));
    TRY(hf_config_fill(&p->recipe, NULL, &filled, err));
    if (p->world == 0) {
        recipe_offer(&p->recipe, 0);
    } else {
        (void)snprintf(bound, sizeof bound, "elastic.max_workers=%d", p->world);
        TRY(recipe_set(&p->recipe, bound, err));
        (void)snprintf(bound, sizeof bound, "elastic.min_workers=%d", p->world);
        if (p->recipe.elastic.min_workers > p->world)
            TRY(recipe_set(&p->recipe, bound, err));
    }
    TRY(recipe_resolve(&p->recipe, err));
    if (p->world == 0)
        p->world = (int)p->recipe.elastic.max_workers;
    recipe_print_warnings(&p->recipe, stderr);
    /* "auto" is planned for a GPU, because the run will be on another machine than the laptop that plans it. */
    const double gib = p->memory_gib > 0 ? p->memory_gib : p->recipe.device.memory;
    if (!p->machine)
        p->machine = cost_machine_find(strcmp(p->recipe.device.name, "cpu") == 0 ? "cpu" : "h100");
    if (gib > 0) {
        p->resized = *p->machine;
        p->resized.memory_bytes = (uint64_t)(gib * 0x1p30);
        p->machine = &p->resized;
    }
    TRY(model_open(&p->recipe.model.dims, &p->model, err));
    TRY(open_costs(p, err));
    /* The options are those of a run on such a device. But a plan that does not fit is not refused, because the report
     * shows this. */
    struct plan_options options = {
        .recipe = &p->recipe, .model = p->model, .dt = plan_compute_type(&p->recipe, !for_cpu(p))};
    if (p->device.dev)
        options = plan_options_of_device(&p->recipe, p->model, &p->device);
    options.world = p->world;
    options.machine = p->machine;
    options.memory_bytes = p->machine->memory_bytes;
    options.memory_free = UINT64_MAX;
    if (p->search)
        return search_layouts(&options, &p->cost, p->json, out, err);
    TRY(plan_open(&options, &plan, err));
    const titan_status status = report_plan(p, plan, out, err);
    plan_close(plan);
    return status;
}

static titan_status run(void *with, const struct args *args, struct titan_error *err)
{
    struct planner p;
    _cleanup_(buf_free) struct buf out = {.limit = (size_t)4 << 30};

    (void)with;
    TRY(read_options(args, &p, err));
    const titan_status status = make_plan(&p, &out, err);
    if (p.device.dev)
        device_close(&p.device);
    cost_table_clear(&p.table);
    model_close(p.model);
    if (status != TITAN_OK) /* "not found" is for jobs: a missing file is bad input */
        return status == TITAN_ENOTFOUND ? TITAN_EINVAL : status;
    (void)fwrite(out.data, 1, out.len, stdout);
    return TITAN_OK;
}

const struct command plan_command = {
    .name = "plan",
    .summary = "memory, traffic, step time and MFU of a run file, without running it",
    .arguments = "FILE",
    .min_args = 1,
    .max_args = 1,
    .options =
        (const struct option_spec[]){
            {"world", 'n', "N", "number of devices; otherwise elastic.max_workers, or what the mesh takes", WORD_NONE},
            {"workers", 0, "N", "the same", WORD_NONE},
            {"device", 0, "NAME", "h100, h200, b200 or cpu (default: cpu where device.name is, else h100)", WORD_NONE},
            {"memory", 0, "GIB", "memory of a device in GiB, in place of device.memory and the model's own", WORD_NONE},
            {"network", 0, "GBITS", "Gbit/s that a device has to other nodes, in place of the machine's own",
             WORD_NONE},
            {"delay", 0, "MS", "milliseconds that a message between nodes takes", WORD_NONE},
            {"node", 0, "N", "devices in a node, in place of the machine's own", WORD_NONE},
            {"costs", 0, "TABLE", "of `titan-worker measure`, or none (default: the one it left, if there is one)",
             WORD_FILE},
            {"timeline", 0, "PATH", "write the step as trace events for ui.perfetto.dev; NAME.gz packs them",
             WORD_FILE},
            {"trace", 0, "PATH", "a rank's trace of a run (profiling.*), to be in the timeline beside the plan",
             WORD_FILE},
            {"picture", 0, "PATH", "draw the step as an SVG picture", WORD_FILE},
            {"search", 0, NULL, "list the fastest layouts that fit in place of the file's own", WORD_NONE},
            {"json", 0, NULL, "the report for programs, in bytes and seconds", WORD_NONE},
            {"print", 0, NULL, "the programs themselves, a line an action", WORD_NONE},
            {"operations", 0, NULL, "each distinct operation: seconds, floor, share, how often", WORD_NONE},
            {"set", 0, "KEY=VALUE", "override a key of the file; may be given again", WORD_NONE},
            {NULL}},
    .examples =
        (const struct example[]){
            {"titan-worker plan recipes/llama3_405b.toml --world 512", "before 512 GPUs are taken"}, {NULL}},
    .run = run,
};

/* --- without a device --------------------------------------------------------------------------------------------- */

titan_status planner_check(const struct recipe *recipe, int world, struct buf *out, struct titan_error *err)
{
    const bool f32 = strcmp(recipe->training.mixed_precision_param, "float32") == 0;
    struct plan_options options = {.recipe = recipe, .world = world, .dt = f32 ? DTYPE_F32 : DTYPE_BF16};
    struct program **programs = NULL;
    struct model *model = NULL;
    struct plan *plan = NULL;

    titan_assert(world >= 1);
    TRY(recipe_check_world(recipe, world, err));
    TRY(model_open(&recipe->model.dims, &model, err));
    options.model = model;
    titan_status status = plan_open(&options, &plan, err);
    if (status == TITAN_OK)
        status = plan_programs(plan, &programs, err);
    if (status == TITAN_OK)
        status = add_evaluation(&options, NULL, err);
    for (int k = 0; status == TITAN_OK && out && k < plan->classes; k++)
        program_print(programs[k], out);
    if (programs)
        plan_free_programs(plan, programs);
    plan_close(plan);
    model_close(model);
    return status;
}
