/* SPDX-License-Identifier: Apache-2.0 */
/* Submit: checks the request and the recipe, stores the job, answers, hands the job to the core. If nodes may be too
 * few, the core gets the job before the answer, so that the answer can name what the job waits for.
 *
 * A file thread (daemon/common/file_pool.h) parses, checks and prints the recipe. All callers wait for the loop, and
 * every epoch waits for the store's writer thread, so neither may open the recipe's paths, which may be on a dead file
 * server. Such a path costs only its own submit, after CHECK_MS; users take turns. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/failpoint.h"
#include "base/hash.h"
#include "base/labels.h"
#include "base/utf8.h"
#include "base/recipe.h"
#include "base/units.h"
#include "daemon/api/api.h"
#include "daemon/api/checkpoint_place.h"
#include "daemon/api/origin.h"
#include "daemon/api/quota.h"

/* What the present nodes supply, by device kind. memory: the most per slot of a connected node, which the largest run
 * may need. Slots are counted on nodes that take jobs. */
struct supply {
    struct slots {
        uint64_t memory, machine; /* machine: most memory of one node */
        int64_t number;
    } cpu, cuda;
};

struct submit {
    struct file_task task; /* must be first */
    struct coordinator *owner;
    struct rpc_call *call; /* NULL when the client has gone; the job is stored all the same */
    Titan__V1__SubmitRequest *request;
    struct supply supply;
    /* copy of the coordinator's option, because the coordinator may be gone when a thread reads it */
    bool one_machine;
    uint32_t user_slots; /* also a copy of the coordinator's option */
    struct job job;
    struct rpc_identity identity; /* the submitter, and its user */
    struct auth_user user;
    const struct paths_options *paths;
    struct arena memory;
    struct event on_record;
    struct buf text;         /* the recipe, printed */
    struct buf labels;       /* the labels, joined */
    struct buf warnings;     /* lines of text */
    struct buf changes;      /* lines: keys that differ from the origin's */
    uint64_t asks;           /* job named by the recipe, which the loop must look up; 0 = none */
    struct titan_error err;  /* why the submit fails */
    struct titan_error held; /* fault of its folder; ignored if a submit with the same key was stored before */
    uint64_t existing;
    uint64_t resumes_step; /* newest checkpoint of the same recipe in job.folder; 0 = none */
    struct place_rights rights;
    struct origin origin; /* the job that it continues, if any */
    /* resolved; the last field, and not cleared before it is filled, because it is most of this struct */
    struct recipe recipe;
};

static void submit_free(struct submit *s)
{
    if (s->request)
        protobuf_c_message_free_unpacked(&s->request->base, NULL);
    buf_free(&s->text);
    buf_free(&s->labels);
    buf_free(&s->warnings);
    buf_free(&s->changes);
    origin_clear(&s->origin);
    arena_free(&s->memory);
    free(s);
}

/* Hashes the terminator too, so that ("ab", "c") and ("a", "bc") differ. */
static uint64_t hash_field(uint64_t hash, const char *text)
{
    return hash_bytes(hash, text, strlen(text) + 1);
}

static void each_node(const struct core_node *n, void *data)
{
    struct supply *supply = data;
    struct slots *s = strcmp(n->device, "cuda") == 0 ? &supply->cuda : &supply->cpu;
    if (n->connected && n->slots && n->memory_bytes / n->slots > s->memory)
        s->memory = n->memory_bytes / n->slots;
    if (n->connected)
        s->machine = MAX(s->machine, n->memory_bytes);
    if (n->accepts)
        s->number += n->slots;
}

/* The nodes' supply for the run's one device kind. */
static struct slots supply_for(const struct supply *supply, const char *device)
{
    const struct slots *cpu = &supply->cpu, *cuda = &supply->cuda;
    if (strcmp(device, "auto") == 0)
        return (struct slots){MAX(cpu->memory, cuda->memory), MAX(cpu->machine, cuda->machine),
                              cuda->number ? cuda->number : cpu->number};
    return strcmp(device, "cuda") == 0 ? *cuda : *cpu;
}

/* Collects the world sizes that the run may have. The largest must be legal; the smallest legal one becomes the
 * minimum. */
static titan_status collect_worlds(const struct recipe *r, struct job_spec *spec, struct titan_error *err)
{
    if (r->elastic.max_workers > JOB_WORKERS_MAX)
        return titan_fail(err, TITAN_EINVAL, "elastic.max_workers = %lld; at most %d are possible",
                          (long long)r->elastic.max_workers, JOB_WORKERS_MAX);
    TRY(recipe_check_world(r, r->elastic.max_workers, err));
    spec->min_workers = spec->max_workers = (uint32_t)r->elastic.max_workers;
    /* already checked: a second check might read a changed schedule file */
    world_set_add(&spec->worlds, spec->max_workers);
    for (int64_t world = r->elastic.max_workers - 1; world >= r->elastic.min_workers; world--) {
        if (recipe_check_world(r, world, NULL) != TITAN_OK)
            continue;
        world_set_add(&spec->worlds, (uint32_t)world);
        spec->min_workers = (uint32_t)world;
    }
    titan_assert(spec->min_workers <= spec->max_workers);

    /* "pp=2 tp=4": the fixed degrees. */
    const struct {
        const char *name;
        int64_t degree;
    } axes[] = {{"pp", r->parallelism.pipeline_parallel_degree},
                {"cp", r->parallelism.context_parallel_degree},
                {"tp", r->parallelism.tensor_parallel_degree}};
    size_t used = 0;
    for (size_t i = 0; i < ARRAY_SIZE(axes); i++)
        if (axes[i].degree > 1 && used < sizeof(spec->mesh))
            used += (size_t)snprintf(spec->mesh + used, sizeof(spec->mesh) - used, "%s%s=%lld", used ? " " : "",
                                     axes[i].name, (long long)axes[i].degree);
    return TITAN_OK;
}

static uint32_t own_budget(const struct recipe *r, int64_t budget)
{
    return (uint32_t)(budget < 0 ? r->fault_tolerance.max_restarts : budget);
}

/* --- the recipe --------------------------------------------------------------------------------------------------- */

/* Resolves the recipe's paths. If the recipe names a job, sets s->asks and returns, because the loop must look up the
 * job first. */
static titan_status place_paths(struct submit *s, const char *recipe_path, struct titan_error *err)
{
    static const struct paths_options no_roots;
    struct recipe *r = &s->recipe;
    struct recipe_path paths[RECIPE_PATHS_MAX];
    char folder[PATH_MAX]; /* the recipe's folder, where relative paths start */
    const char *slash = strrchr(recipe_path, '/');
    uint64_t named;
    const int n = recipe_path[0] == '/' ? recipe_paths(r, paths) : 0;
    titan_assert(n >= 0 && n <= RECIPE_PATHS_MAX);
    if (n > 0)
        (void)snprintf(folder, sizeof(folder), "%.*s", (int)(slash - recipe_path), recipe_path);
    for (int i = 0; i < n; i++)
        TRY(recipe_place_path(&paths[i], folder, err));
    TRY(recipe_initial_job(r, &named, err));
    s->asks = s->origin.resumed || named == s->origin.job_id ? 0 : named;
    if (s->asks)
        return TITAN_OK;
    if (s->origin.job_id)
        TRY(origin_apply(&s->origin, &s->user, r, s->one_machine, err));
    /* before any path is opened */
    TRY(paths_check(s->paths ? s->paths : &no_roots, &s->user, s->origin.granted, r, err));
    if (s->request->folder != TITAN__V1__CHECKPOINT_FOLDER__FRESH)
        return TITAN_OK;
    TRY(place_fresh(r, err));
    return paths_check(s->paths ? s->paths : &no_roots, &s->user, s->origin.granted, r, err);
}

static titan_status check_recipe(struct submit *s, struct titan_error *err)
{
    const Titan__V1__SubmitRequest *request = s->request;
    struct recipe *r = &s->recipe;
    struct job_spec *spec = &s->job.spec;
    const char *path = request->recipe_path[0] ? request->recipe_path : "<recipe>";
    recipe_init(r);
    TRY(recipe_parse(r, request->recipe, path, err));
    for (size_t i = 0; i < request->n_overrides; i++)
        TRY(recipe_set(r, request->overrides[i], err));
    TRY(place_paths(s, request->recipe_path, err));
    if (s->asks)
        return TITAN_OK;
    r->job.as_user = s->paths && s->paths->as_users;
    struct slots there = supply_for(&s->supply, r->device.name);
    recipe_offer(r, there.number);
    TRY(recipe_resolve(r, err));
    TRY(place_admit(&s->rights, r, s->origin.resumed ? s->origin.recipe : NULL,
                    err)); /* before the folder's content is reported */
    if (s->rights.asks)
        return TITAN_OK;
    TRY(origin_check(&s->origin, r, err));
    TRY(collect_worlds(r, spec, err));
    /* With several machines, the workers check the data where they read it. Workers that run as their jobs' users also
     * check data that is closed to titand. */
    const titan_status seen = s->one_machine ? recipe_check_data(r, NULL, err) : TITAN_OK;
    if (seen != TITAN_OK && !(seen == TITAN_EPERM && r->job.as_user))
        return err->status = TITAN_EINVAL; /* the client's recipe is wrong, whatever is wrong with the file */
    *err = (struct titan_error){0};
    TRY(recipe_check_memory(r, r->elastic.max_workers, there.memory, err));
    /* Could any node give a worker its memory? The node itself checks when it starts one. */
    if (there.machine > 0 && (uint64_t)r->resources.memory > there.machine) {
        char asked[UNITS_TEXT], most[UNITS_TEXT];
        return titan_fail(err, TITAN_EUNPLACEABLE, "resources.memory = %s a worker; the largest node has %s",
                          format_exact_bytes((uint64_t)r->resources.memory, asked), format_bytes(there.machine, most));
    }
    (void)snprintf(spec->device, sizeof(spec->device), "%s", r->device.name);
    spec->steps = r->checkpoint.create_seed_checkpoint ? 0 : (uint64_t)r->training.steps;
    spec->priority = (int32_t)r->job.priority;
    spec->max_restarts = (uint32_t)r->fault_tolerance.max_restarts;
    spec->max_node_losses = own_budget(r, r->fault_tolerance.max_node_losses);
    spec->max_hangs = own_budget(r, r->fault_tolerance.max_hangs);
    spec->max_ooms = own_budget(r, r->fault_tolerance.max_ooms);
    spec->restart_window_s = (uint32_t)r->fault_tolerance.restart_window_s;
    spec->backoff_ms = (uint32_t)r->fault_tolerance.backoff_ms;
    spec->backoff_max_ms = (uint32_t)r->fault_tolerance.backoff_max_ms;
    spec->keep_latest = (uint32_t)r->checkpoint.keep_latest_k;
    return TITAN_OK;
}

/* Sets the job's owner: the submitter, or the user that an operator submits for. A resumed job keeps its owner. */
static titan_status choose_owner(struct submit *s, const char *wanted, struct titan_error *err)
{
    const struct auth_user *u = &s->user;
    if (s->origin.resumed && !*wanted) {
        s->job.user = s->origin.user;
        s->job.uid = s->origin.uid;
        s->job.gid = s->origin.gid;
        return TITAN_OK;
    }
    bool own = !*wanted || strcmp(wanted, u->name) == 0;
    if (!own && !auth_operates(u))
        return titan_fail(err, TITAN_EPERM,
                          "not permitted: user = \"%s\": only an operator may submit for others; you are %s", wanted,
                          u->actor);
    s->job.user = !own ? arena_strdup(&s->memory, wanted) : *u->name ? u->name : "anonymous";
    s->job.uid = own ? u->uid : JOB_NO_ID;
    s->job.gid = own ? u->gid : JOB_NO_ID;
    return TITAN_OK;
}

static titan_status prepare(struct coordinator *c, const Titan__V1__SubmitRequest *request, struct submit *s,
                            struct titan_error *err)
{
    TRY(shell_accepts(c, err));
    if (request->resume_job && request->folder != TITAN__V1__CHECKPOINT_FOLDER__CONTINUE)
        return titan_fail(err, TITAN_EINVAL, "resume_job goes on in that job's folder: folder must be CONTINUE");
    if (request->resume_job)
        TRY(origin_find(c, &s->user, request->resume_job, true, &s->origin, err));
    TRY(choose_owner(s, request->user, err));
    if (c->options.paths && c->options.paths->as_users && (s->job.uid == 0 || strcmp(s->job.user, "root") == 0)) {
        (void)titan_fail(err, TITAN_EINVAL,
                         "jobs run as their users, and none as root (coordinator.jobs_as_users of the coordinator)");
        titan_error_hint(err, "submit as another user, or for one: --for USER");
        return TITAN_EINVAL;
    }
    TRY(labels_join(request->labels, request->n_labels, "labels", &s->labels, err));
    s->job.labels = s->labels.len ? s->labels.data : "";
    size_t len = strlen(request->recipe);
    if (len == 0)
        return titan_fail(err, TITAN_EINVAL, "the recipe is empty");
    if (len > RECIPE_TEXT_MAX)
        return titan_fail(err, TITAN_EINVAL, "the recipe has %zu bytes; at most %d are possible", len, RECIPE_TEXT_MAX);
    if (core_pending(c->core) + c->submitting >= c->options.max_pending_jobs) {
        titan_fail(err, TITAN_ELIMIT, "%u jobs are waiting already", c->options.max_pending_jobs);
        titan_error_hint(err, "wait until some have run, or cancel some");
        return TITAN_ELIMIT;
    }
    /* Copies the request, because the caller's request ends with the handler. */
    const size_t bytes = protobuf_c_message_get_packed_size(&request->base);
    _cleanup_free_ uint8_t *packed = malloc(bytes + 1);
    if (packed)
        (void)protobuf_c_message_pack(&request->base, packed);
    s->request = packed ? titan__v1__submit_request__unpack(NULL, bytes, packed) : NULL;
    if (!s->request)
        return titan_fail(err, TITAN_ENOMEM, "out of memory");
    core_nodes(c->core, each_node, &s->supply);
    s->one_machine = c->options.one_machine;
    s->user_slots = c->options.user.slots;
    s->owner = c;
    s->paths = c->options.paths;
    s->rights = (struct place_rights){
        .caller = &s->user, .user = {.uid = s->job.uid >= 0 ? s->job.uid : -1}, .store = store_id(c->store)};
    if (strlen(s->job.user) > FOLDER_NAME_MAX)
        return titan_fail(err, TITAN_EINVAL, "user: a name of at most %d bytes", FOLDER_NAME_MAX);
    (void)snprintf(s->rights.user.name, sizeof(s->rights.user.name), "%s", s->job.user);
    s->job.submitted_at_ms = clock_wall_ms();
    s->job.key_owner = s->task.user = api_user_key(&s->memory, &s->user);
    s->on_record = api_audit_event(&s->memory, &s->user, POLICY_SUBMIT, 0);
    return TITAN_OK;
}

/* --- the pool's thread -------------------------------------------------------------------------------------------- */

static titan_status check_job(struct submit *s, struct titan_error *err)
{
    const Titan__V1__SubmitRequest *request = s->request;
    TRY(failpoint("submit.check", err));
    TRY(check_recipe(s, err));
    if (s->asks || s->rights.asks)
        return TITAN_OK;
    TRY(quota_check_workers(s->user_slots, s->job.spec.min_workers, err));
    if (s->job.spec.priority > 0 && !auth_operates(&s->user))
        return titan_fail(err, TITAN_EPERM,
                          "not permitted: job.priority = %d: only an operator may put a job before others; you are %s",
                          (int)s->job.spec.priority, s->user.actor);
    char *described = arena_strdup(&s->memory, s->recipe.job.description[0] ? s->recipe.job.description : "run");
    text_fit(described, ' '); /* a description is text, a name is one line */
    s->job.name = request->name[0] ? request->name : s->origin.resumed ? s->origin.name : described;
    s->job.state = JOB_PENDING;
    s->job.reason = "";
    s->job.status.loss = __builtin_nan("");
    s->job.key = request->idempotency_key[0] ? request->idempotency_key : NULL;
    s->job.holds_folder = recipe_writes_checkpoints(&s->recipe);
    if (place_named(&s->recipe)) {
        struct place place = {.empty = request->folder == TITAN__V1__CHECKPOINT_FOLDER__EMPTY,
                              .local = s->one_machine,
                              .notes = &s->warnings};
        TRY(place_look(&s->recipe, &place, err));
        s->job.folder = arena_strdup(&s->memory, place.folder);
        s->resumes_step = place.resumes_step;
        s->held = place.held;
    } else if (s->recipe.checkpoint.load_step >= 0) {
        return titan_fail(err, TITAN_EINVAL, "checkpoint.load_step = %lld: the job's own folder has no checkpoint yet",
                          (long long)s->recipe.checkpoint.load_step);
    }
    if (s->one_machine && s->resumes_step == 0 && !s->origin.resumed)
        TRY(place_check_beginning(&s->recipe, err));
    if (s->origin.whole)
        recipe_changes(&s->recipe, s->origin.recipe, &s->changes);
    uint64_t hash = hash_field(HASH_INIT, request->recipe);
    hash = hash_field(hash, request->name);
    hash = hash_field(hash, s->job.user);
    hash = hash_field(hash, request->recipe_path);
    for (size_t i = 0; i < request->n_overrides; i++)
        hash = hash_field(hash, request->overrides[i]);
    if (s->labels.len)
        hash = hash_field(hash, s->labels.data);
    if (request->resume_job || request->folder)
        hash = hash_field(
            hash, arena_printf(&s->memory, "%llu %d", (unsigned long long)request->resume_job, (int)request->folder));
    s->job.request_hash = hash;
    recipe_print(&s->recipe, &s->text);
    recipe_warnings(&s->recipe, &s->warnings);
    return buf_failed(&s->text) || buf_failed(&s->warnings) || buf_failed(&s->changes)
               ? titan_fail(err, TITAN_ENOMEM, "out of memory")
               : TITAN_OK;
}

static struct submit *submit_of(struct file_task *k)
{
    return (struct submit *)(void *)k;
}

static void check_one(struct file_task *k)
{
    titan_assert(submit_of(k)->request && submit_of(k)->err.status == TITAN_OK);
    struct submit *s = submit_of(k);
    (void)!check_job(s, &s->err);
}

static void check_free(struct file_task *k)
{
    submit_free(submit_of(k));
}

/* --- the store's writer thread ------------------------------------------------------------------------------------ */

static titan_status write_job(struct db *db, void *arg, struct titan_error *err)
{
    titan_assert(((struct submit *)arg)->text.data && ((struct submit *)arg)->job.state == JOB_PENDING);
    struct submit *s = arg;
    char folder[PATH_MAX] = "", own[PATH_MAX + 32];
    if (s->job.id == 0) /* the transaction may run twice (group.h) */
        s->job.id = s->owner->next_job_id++;
    titan_status status = TITAN_OK;
    if (!place_named(&s->recipe)) { /* the job's own folder, which another job may name */
        (void)snprintf(own, sizeof(own), "%s/%llu", s->owner->jobs_dir, (unsigned long long)s->job.id);
        status = recipe_checkpoint_folder(&s->recipe, own, folder, err);
        s->job.folder = folder;
    }
    if (status == TITAN_OK && s->held.status != TITAN_OK) {
        /* An earlier submit with the same key comes first, because the folder may hold that job's own checkpoints. */
        status = job_find_key(db, &s->job, &s->existing, err);
        if (status == TITAN_OK && !s->existing) {
            status = s->held.status;
            if (err)
                *err = s->held;
        }
    } else if (status == TITAN_OK) {
        status = job_submit(db, &s->job, s->text.data, &s->existing, err);
    }
    if (folder[0])
        s->job.folder = NULL;
    s->on_record.job_id = s->job.id;
    if (status == TITAN_OK && !s->existing && s->owner->auth)
        status = event_add(db, &s->on_record, err);
    if ((status != TITAN_OK || s->existing) && s->job.id + 1 == s->owner->next_job_id) {
        s->owner->next_job_id = s->job.id; /* no caller has got this number */
        s->job.id = 0;
    }
    return status;
}

/* --- the loop ----------------------------------------------------------------------------------------------------- */

/* Splits the lines into texts, in place. */
static size_t split_lines(struct arena *memory, struct buf *lines, char ***ret)
{
    size_t n = 0, at = 0;
    for (const char *c = lines->len ? lines->data : ""; (c = strchr(c, '\n')); c++)
        n++;
    *ret = n ? arena_alloc(memory, n * sizeof(**ret)) : NULL;
    for (char *rest = lines->data; at < n; at++)
        (*ret)[at] = strsep(&rest, "\n");
    return n;
}

static void submit_to_core(const struct submit *s)
{
    struct coordinator *c = s->owner;
    struct batch batch;
    if (s->existing || c->closing)
        return;
    batch_init(&batch);
    core_submitted(c->core, &s->job, shell_now(c), &batch);
    shell_commit(c, &batch, NULL, NULL);
    api_watch_poke(c, s->job.id);
}

static void written(void *arg, const struct titan_error *err)
{
    titan_assert(((struct submit *)arg)->owner->submitting > 0);
    struct submit *s = arg;
    struct coordinator *c = s->owner;
    c->submitting--;
    quota_leave(c, s->job.user);
    if (s->call)
        rpc_call_set_data(s->call, NULL);
    if (err->status != TITAN_OK) {
        api_failed(c, &s->user, POLICY_SUBMIT, 0, err);
        if (s->call)
            rpc_call_fail(s->call, err);
        submit_free(s);
        return;
    }
    /* The reason why a job waits for nodes is known only after placement. A submit of a job with room is answered
     * before the placement. */
    const uint64_t id = s->existing ? s->existing : s->job.id;
    const bool may_wait = supply_for(&s->supply, s->job.spec.device).number < s->job.spec.min_workers;
    if (may_wait)
        submit_to_core(s);
    if (s->call) {
        Titan__V1__SubmitResponse reply = TITAN__V1__SUBMIT_RESPONSE__INIT;
        char lacks[512];
        if (may_wait && !c->closing && core_job_lacks_nodes(c->core, id, lacks, sizeof(lacks)))
            buf_printf(&s->warnings, "job %llu stays in the queue until nodes are added: %s\n", (unsigned long long)id,
                       lacks);
        reply.job_id = id;
        reply.existed = s->existing != 0;
        reply.n_warnings = split_lines(&s->memory, &s->warnings, &reply.warnings);
        reply.n_changes = split_lines(&s->memory, &s->changes, &reply.changes);
        reply.begins_from = s->origin.begins;
        if (!s->existing && s->resumes_step) {
            reply.resumes_step = s->resumes_step;
            reply.resumes_folder = (char *)(uintptr_t)s->job.folder;
        }
        rpc_call_reply(s->call, &reply.base);
    }
    if (!may_wait)
        submit_to_core(s);
    submit_free(s);
}

static titan_status queue_check(struct submit *s, struct titan_error *err);

static void note_user(const struct job *job, void *data)
{
    struct folder_user *u = data;
    u->uid = job->uid >= 0 ? job->uid : -1;
    (void)snprintf(u->name, sizeof(u->name), "%s", job->user);
}

static void checked(struct file_task *k)
{
    struct submit *s = submit_of(k);
    struct coordinator *c = s->owner;
    if (s->err.status == TITAN_OK && c->closing)
        titan_fail(&s->err, TITAN_EUNREACHABLE, "the coordinator is stopping");
    if (s->err.status == TITAN_OK) { /* the check may have taken long */
        struct auth_user now;
        (void)!api_admit(c, &s->identity, POLICY_SUBMIT, &now, &s->err);
    }
    if (s->err.status == TITAN_OK && s->asks) {
        if (origin_find(c, &s->user, s->asks, false, &s->origin, &s->err) != TITAN_OK ||
            queue_check(s, &s->err) != TITAN_OK)
            written(s, &s->err);
    } else if (s->err.status == TITAN_OK && s->rights.asks) {
        /* The user of the job that wrote a folder; a removed job has none. */
        struct place_rights *p = &s->rights;
        struct folder_user user = {.uid = -1};
        struct titan_error fault = {0};
        const titan_status status = job_cache_get(c->jobs, store_reader(c->store), p->asks, note_user, &user, &fault);
        titan_assert(p->n_known < (int)ARRAY_SIZE(p->known));
        p->known[p->n_known].job = p->asks;
        p->known[p->n_known++].user = user;
        if (status != TITAN_OK && status != TITAN_ENOTFOUND)
            s->err = fault;
        if (s->err.status != TITAN_OK || queue_check(s, &s->err) != TITAN_OK)
            written(s, &s->err);
    } else if (s->err.status == TITAN_OK) {
        store_write(c->store, write_job, s, written);
    } else {
        written(s, &s->err);
    }
}

/* A thread may still hold the submit. So only its call and its user, which do not change, are used here. */
static void given_up(struct file_task *k, bool started)
{
    titan_assert(submit_of(k)->owner->submitting > 0);
    struct submit *s = submit_of(k);
    struct coordinator *c = s->owner;
    struct titan_error err = {0};
    struct rpc_call *call = TAKE(s->call);
    if (c->closing)
        titan_fail(&err, TITAN_EUNREACHABLE, "the coordinator is stopping");
    else
        titan_fail(&err, TITAN_EAGAIN,
                   "the recipe could not be checked within %u ms: a path that it names%s does not answer",
                   c->options.check_ms, started ? "" : ", or one of an earlier submit of yours,");
    titan_error_hint(&err, "look at the file server; the same submit can be tried again");
    api_failed(c, &s->user, POLICY_SUBMIT, 0, &err);
    c->submitting--;
    quota_leave(c, s->job.user);
    if (call) {
        rpc_call_set_data(call, NULL);
        rpc_call_fail(call, &err);
    }
    if (!started)
        submit_free(s);
}

static const struct file_calls check_calls = {
    .run = check_one, .done = checked, .given_up = given_up, .free = check_free};

static titan_status queue_check(struct submit *s, struct titan_error *err)
{
    return file_pool_add(s->owner->files, &s->task, &check_calls, sizeof(*s) + 2 * strlen(s->request->recipe), err);
}

void api_submit(struct rpc_call *call, const ProtobufCMessage *base, void *data)
{
    struct coordinator *c = data;
    struct titan_error err = {0};
    struct submit *s = malloc(sizeof(*s));
    titan_assert(s);
    memset(s, 0, offsetof(struct submit, origin));
    origin_init(&s->origin);
    s->identity = *rpc_call_identity(call);
    api_user(c, call, &s->user);
    if (prepare(c, (const Titan__V1__SubmitRequest *)base, s, &err) != TITAN_OK ||
        quota_enter(c, s->job.user, &err) != TITAN_OK) {
        api_failed(c, &s->user, POLICY_SUBMIT, 0, &err);
        submit_free(s);
        rpc_call_fail(call, &err);
        return;
    }
    s->call = call;
    rpc_call_set_data(call, s);
    c->submitting++;
    if (queue_check(s, &err) != TITAN_OK)
        written(s, &err);
}

/* Drops a submit that has not begun. A submit that has begun is stored all the same. */
void api_submit_closed(struct rpc_call *call, bool cancelled, void *data)
{
    struct coordinator *c = data;
    struct submit *s = rpc_call_data(call);
    (void)cancelled;
    if (!s)
        return;
    s->call = NULL;
    if (!c->closing && file_pool_drop(c->files, &s->task)) {
        c->submitting--;
        quota_leave(c, s->job.user);
        submit_free(s);
    }
}
