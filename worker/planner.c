/* planner.c - the plan command: recipe, machine and number of devices in, report out. */
#include "worker/planner.h"

#include <getopt.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/file.h"
#include "worker/plan/forecast.h"
#include "worker/plan/picture.h"
#include "worker/plan/search.h"

#define SETS_MAX 64
#define WORLD_MAX (1 << 20)

struct planner {
    const char *file, *timeline, *picture;
    const char *sets[SETS_MAX];
    int n_sets, world;
    const struct machine *machine;
    struct machine resized; /* with --memory */
    bool search, json, print;
    struct recipe recipe;
    struct model *model;
};

/* --- command line
 * ----------------------------------------------------------------------------------------------------- */

__attribute__((format(printf, 1, 2))) static int usage_error(const char *format, ...)
{
    va_list args;

    va_start(args, format);
    fputs("titan-worker plan: ", stderr);
    (void)vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
    return titan_status_exit(TITAN_EINVAL);
}

static int read_option(struct planner *p, int c)
{
    char *end;
    long n;
    double gib;

    switch (c) {
    case 'n':
        n = strtol(optarg, &end, 10);
        if (*end || end == optarg || n < 1 || n > WORLD_MAX)
            return usage_error("--world %s: a number of devices from 1 to %d", optarg, WORLD_MAX);
        p->world = (int)n;
        return 0;
    case 'D':
        p->machine = machine_find(optarg);
        return p->machine ? 0 : usage_error("--device %s: there are %s", optarg, machine_names());
    case 'm':
        gib = strtod(optarg, &end);
        if (*end || end == optarg || !(gib > 0 && gib < 1e6))
            return usage_error("--memory %s: GiB of a device, as in 80", optarg);
        p->resized.memory_bytes = (uint64_t)(gib * 1073741824.0);
        return 0;
    case 's':
        if (p->n_sets == SETS_MAX)
            return usage_error("too many --set");
        p->sets[p->n_sets++] = optarg;
        return 0;
    case 't':
        p->timeline = optarg;
        return 0;
    case 'P':
        p->picture = optarg;
        return 0;
    case 'S':
        p->search = true;
        return 0;
    case 'j':
        p->json = true;
        return 0;
    case 'p':
        p->print = true;
        return 0;
    default:
        return titan_status_exit(TITAN_EINVAL);
    }
}

static int parse(int argc, char **argv, struct planner *p)
{
    static const struct option options[] = {{"world", required_argument, NULL, 'n'},
                                            {"workers", required_argument, NULL, 'n'},
                                            {"device", required_argument, NULL, 'D'},
                                            {"memory", required_argument, NULL, 'm'},
                                            {"timeline", required_argument, NULL, 't'},
                                            {"set", required_argument, NULL, 's'},
                                            {"picture", required_argument, NULL, 'P'},
                                            {"search", no_argument, NULL, 'S'},
                                            {"json", no_argument, NULL, 'j'},
                                            {"print", no_argument, NULL, 'p'},
                                            {NULL, 0, NULL, 0}};
    int c;

    while ((c = getopt_long(argc, argv, "n:", options, NULL)) != -1) {
        const int code = read_option(p, c);
        if (code != 0)
            return code;
    }
    if (optind + 1 != argc)
        return usage_error("one run file is needed");
    p->file = argv[optind];
    if (p->resized.memory_bytes > 0) {
        const uint64_t bytes = p->resized.memory_bytes;
        p->resized = *p->machine;
        p->resized.memory_bytes = bytes;
        p->machine = &p->resized;
    }
    return 0;
}

/* A plan is for this many workers, whatever bounds the file has. */
static titan_status read_recipe(struct planner *p, struct titan_error *err)
{
    char bound[64];

    recipe_init(&p->recipe);
    TRY(recipe_load(&p->recipe, p->file, err));
    for (int i = 0; i < p->n_sets; i++)
        TRY(recipe_set(&p->recipe, p->sets[i], err));
    if (p->world == 0) { /* the file's own number: given, or what its mesh takes */
        TRY(recipe_resolve(&p->recipe, err));
        p->world = (int)p->recipe.elastic.max_workers;
        return TITAN_OK;
    }
    (void)snprintf(bound, sizeof bound, "elastic.max_workers=%d", p->world);
    TRY(recipe_set(&p->recipe, bound, err));
    if (p->recipe.elastic.min_workers > p->world) {
        (void)snprintf(bound, sizeof bound, "elastic.min_workers=%d", p->world);
        TRY(recipe_set(&p->recipe, bound, err));
    }
    return recipe_resolve(&p->recipe, err);
}

/* --- report
 * ----------------------------------------------------------------------------------------------------------- */

static enum dtype plan_dtype(const struct planner *p)
{
    const char *name = p->recipe.training.mixed_precision_param;
    const bool cpu = strcmp(p->machine->name, "cpu") == 0;
    return strcmp(name, "float32") == 0 || (cpu && strcmp(name, "auto") == 0) ? DTYPE_F32 : DTYPE_BF16;
}

static titan_status write_file(const char *path, const struct buf *text, struct titan_error *err)
{
    if (buf_failed(text))
        return titan_fail(err, TITAN_ENOMEM, "'%s': out of memory", path);
    return file_replace(path, text->data, text->len, err);
}

static titan_status write_files(const struct planner *p, const struct simulation *s, struct titan_error *err)
{
    _cleanup_(buf_free) struct buf timeline = {.limit = (size_t)4 << 30};
    _cleanup_(buf_free) struct buf picture = {.limit = (size_t)4 << 30};

    if (p->timeline) {
        simulation_timeline(s, &timeline);
        TRY(write_file(p->timeline, &timeline, err));
    }
    if (p->picture) {
        picture_write(s, p->recipe.job.description, &picture);
        TRY(write_file(p->picture, &picture, err));
    }
    return TITAN_OK;
}

static titan_status report_plan(const struct planner *p, const struct plan *plan, struct buf *out,
                                struct titan_error *err)
{
    const struct cost cost = {.machine = p->machine, .float8 = p->recipe.model.float8};
    struct program **programs = NULL;
    struct simulation *s = NULL;
    struct forecast f = {0};

    TRY(plan_programs(plan, &programs, err));
    titan_status status = forecast_make(plan, programs, &cost, &f, &s, err);
    if (status == TITAN_OK && p->print)
        for (int k = 0; k < plan->kinds; k++)
            program_print(programs[k], out);
    if (status == TITAN_OK && p->json)
        forecast_json(&f, out);
    else if (status == TITAN_OK)
        forecast_print(&f, out);
    if (status == TITAN_OK)
        status = write_files(p, s, err);
    forecast_clear(&f);
    simulation_close(s);
    plan_free_programs(plan, programs);
    return status;
}

static titan_status make_plan(struct planner *p, struct buf *out, struct titan_error *err)
{
    struct plan *plan = NULL;

    TRY(read_recipe(p, err));
    TRY(model_open(&p->recipe.model.dims, &p->model, err));
    if (p->search)
        return search_layouts(&p->recipe, p->model, p->world, p->machine, plan_dtype(p), p->json, out, err);
    const struct plan_options options = {
        .recipe = &p->recipe, .model = p->model, .world = p->world, .dt = plan_dtype(p), .machine = p->machine};
    TRY(plan_open(&options, &plan, err));
    const titan_status status = report_plan(p, plan, out, err);
    plan_close(plan);
    return status;
}

int planner_main(int argc, char **argv)
{
    struct planner p = {.machine = machine_find("h100")};
    struct titan_error err = {0};
    _cleanup_(buf_free) struct buf out = {.limit = (size_t)4 << 30};

    const int code = parse(argc, argv, &p);
    if (code != 0)
        return code;
    const titan_status status = make_plan(&p, &out, &err);
    model_close(p.model);
    if (status != TITAN_OK) {
        fprintf(stderr, "titan-worker: %s\n", err.msg);
        if (err.hint[0])
            fprintf(stderr, "  %s\n", err.hint);
        return titan_status_exit(status == TITAN_ENOTFOUND ? TITAN_EINVAL : status);
    }
    (void)fwrite(out.data, 1, out.len, stdout);
    return 0;
}

/* --- without a device --------------------------------------------------------------------------------------------- */

titan_status planner_check(const struct recipe *recipe, int world, struct buf *out, struct titan_error *err)
{
    const bool f32 = strcmp(recipe->training.mixed_precision_param, "float32") == 0;
    struct plan_options options = {.recipe = recipe, .world = world, .dt = f32 ? DTYPE_F32 : DTYPE_BF16};
    struct program **programs = NULL;
    struct model *model = NULL;
    struct plan *plan = NULL;

    TRY(recipe_check_world(recipe, world, err));
    TRY(model_open(&recipe->model.dims, &model, err));
    options.model = model;
    titan_status status = plan_open(&options, &plan, err);
    if (status == TITAN_OK)
        status = plan_programs(plan, &programs, err);
    for (int k = 0; status == TITAN_OK && out && k < plan->kinds; k++)
        program_print(programs[k], out);
    if (programs)
        plan_free_programs(plan, programs);
    plan_close(plan);
    model_close(model);
    return status;
}
