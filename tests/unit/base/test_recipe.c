/* SPDX-License-Identifier: Apache-2.0 */
/* recipe.h: what is read, what is refused and how it is said, what follows from a recipe. */
#include <dirent.h>
#include <math.h>
#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/cleanup.h"
#include "base/file.h"
#include "base/recipe.h"
#include "base/recipe_keys.h"

static struct recipe fresh(void)
{
    struct recipe r;
    recipe_init(&r);
    return r;
}

/* --- what is refused ---------------------------------------------------------------------------------------------- */

static void test_refused(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        titan_status status;
        const char *msg;
    } cases[] = {
        {"[training]\nsteps = 3\nstepz = 4\n", TITAN_EINVAL,
         "f.toml:3: unknown key training.stepz; did you mean training.steps?"},
        {"[training]\nlocal_batchsize = 4\n", TITAN_EINVAL,
         "f.toml:2: unknown key training.local_batchsize; did you mean training.local_batch_size?"},
        {"[model]\nseq_len = 4\n", TITAN_EINVAL, "f.toml:2: unknown key model.seq_len; did you mean training.seq_len?"},
        {"[training]\nmax_context_length = 4096\n", TITAN_EINVAL,
         "f.toml:2: unknown key training.max_context_length, which is of a TorchTitan after v0.2.2; here "
         "training.seq_len"},
        {"[optimizer]\nzzzzzzzz = 4\n", TITAN_EINVAL, "f.toml:2: unknown key optimizer.zzzzzzzz"},
        {"steps = 4\n", TITAN_EINVAL, "f.toml:1: unknown key steps; did you mean training.steps?"},
        {"[trianing]\nsteps = 4\n", TITAN_EINVAL, "f.toml:1: unknown section [trianing]; did you mean [training]?"},
        {"[nothing_like_it]\nx = 4\n", TITAN_EINVAL, "f.toml:1: unknown section [nothing_like_it]"},
        {"[training]\nsteps = \"ten\"\n", TITAN_EINVAL,
         "f.toml:2: training.steps = \"ten\": expected an integer, not text"},
        {"[training]\nsteps = 1.5\n", TITAN_EINVAL, "f.toml:2: training.steps: expected an integer, got a float"},
        {"[training]\nsteps = [1]\n", TITAN_EINVAL, "f.toml:2: training.steps: expected an integer, got an array"},
        {"[optimizer]\nlr = true\n", TITAN_EINVAL, "f.toml:2: optimizer.lr: expected a number, got a boolean"},
        {"[model]\nflavor = 8\n", TITAN_EINVAL, "f.toml:2: model.flavor: expected text in quotes, got an integer"},
        {"[checkpoint]\nenable = 1\n", TITAN_EINVAL,
         "f.toml:2: checkpoint.enable: expected true or false, got an integer"},
        {"[training]\nsteps = 0\n", TITAN_EINVAL, "f.toml:2: training.steps = 0 is out of range: from 1 to 1000000000"},
        {"[training]\nseed = -1\n", TITAN_EINVAL, "f.toml:2: training.seed = -1 is out of range: at least 0"},
        {"[training]\nglobal_batch_size = 0\n", TITAN_EINVAL,
         "f.toml:2: training.global_batch_size = 0 is out of range: from 1 to 268435456, or -1"},
        {"[optimizer]\nlr = -0.1\n", TITAN_EINVAL, "f.toml:2: optimizer.lr = -0.1 is out of range: from 0 to 1000"},
        {"[optimizer]\nlr = nan\n", TITAN_EINVAL, "f.toml:2: optimizer.lr = nan is out of range: from 0 to 1000"},
        {"[optimizer]\neps = 0\n", TITAN_EINVAL, "f.toml:2: optimizer.eps = 0 is out of range: above 0 to 1"},
        {"[model]\nrope_long_factor = [1.5, 0]\n", TITAN_EINVAL,
         "f.toml:2: model.rope_long_factor = 0 is out of range: above 0 to 1e+06"},
        {"[model]\nrope_long_factor = [1.5, \"a\"]\n", TITAN_EINVAL,
         "f.toml:2: model.rope_long_factor = \"a\": expected an array of numbers, not text"},
        {"[model]\nrope_long_factor = 1.5\n", TITAN_EINVAL,
         "f.toml:2: model.rope_long_factor: expected an array of numbers, got a float"},
        {"[lr_scheduler]\ndecay_type = \"cubic\"\n", TITAN_EINVAL,
         "f.toml:2: lr_scheduler.decay_type = \"cubic\": expected \"linear\", \"sqrt\" or \"cosine\""},
        {"[lr_scheduler]\nlr_min = 0.1\nmin_lr_factor = 0.1\n", TITAN_EINVAL,
         "f.toml:3: lr_scheduler.min_lr_factor is given twice: lr_scheduler.min_lr_factor means the same"},
        /* known from TorchTitan, not there */
        {"[activation_checkpoint]\nmode = \"most\"\n", TITAN_EINVAL,
         "f.toml:2: activation_checkpoint.mode = \"most\": expected \"none\", \"full\", \"selective\" or "
         "\"memory_budget\""},
        {"[activation_checkpoint]\nmemory_budget = 1.5\n", TITAN_EINVAL,
         "f.toml:2: activation_checkpoint.memory_budget = 1.5 is out of range: from 0 to 1"},
        {"[model]\nname = \"llama4\"\n", TITAN_EUNSUPPORTED,
         "f.toml:2: model.name = \"llama4\" is not supported by this version, which lacks attention within chunks of "
         "the "
         "sequence, a temperature by position; use \"mistral\", \"mixtral\", \"qwen2\", "
         "\"smollm3\", \"granite\", \"seed_oss\", \"phi3\", \"olmo2\", \"gemma2\", \"gemma3\", \"dots1\", "
         "\"gpt_oss\", \"glm4_moe\", \"llama3\", \"llama3_moe\", "
         "\"qwen3\" or \"deepseek_v3\""},
        {"[optimizer]\nname = \"SOAP\"\n", TITAN_EUNSUPPORTED,
         "f.toml:2: optimizer.name = \"SOAP\" is not supported by this version; use \"AdamW\", \"Adam\", \"SGD\", "
         "\"Lion\", \"AdEMAMix\", \"StableAdamW\", \"Muon\", \"GaLore2\" or \"Ranger21\""},
        {"[parallelism]\ncontext_parallel_load_balancer = \"ptrr\"\n", TITAN_EUNSUPPORTED,
         "f.toml:2: parallelism.context_parallel_load_balance: \"ptrr\" is not supported by this version; use true or "
         "false"},
        {"[parallelism]\npipeline_parallel_split_points = [\"layers.4\", \"layers.2\"]\n", TITAN_EINVAL,
         "f.toml:2: parallelism.pipeline_parallel_split_points = \"layers.4,layers.2\": expected layers in ascending "
         "order, such as \"layers.2\", \"layers.4\""},
        {"[parallelism]\npipeline_parallel_split_points = [3]\n", TITAN_EINVAL,
         "f.toml:2: parallelism.pipeline_parallel_split_points: expected names such as \"layers.2\", got integer"},
        {"[parallelism]\nmodule_fqns_per_model_part = [[\"tok_embeddings\", \"layers.0\"], [\"layers.2\", \"norm\", "
         "\"output\"]]\n",
         TITAN_EINVAL,
         "f.toml:2: parallelism.pipeline_parallel_split_points: expected every stage's modules in order: "
         "\"tok_embeddings\" first, each of \"layers.0\", \"layers.1\", ... once, \"norm\" and \"output\" last"},
        {"[parallelism]\ntensor_parallel_degree = 0\n", TITAN_EINVAL,
         "f.toml:2: parallelism.tensor_parallel_degree = 0 is out of range: from 1 to 1048576"},
        {"[model]\nconverters = [\"quantize.linear.int8\"]\n", TITAN_EUNSUPPORTED,
         "f.toml:2: model.float8: \"quantize.linear.int8\" is not supported by this version; use true or false"},
        {"[quantize.linear.mx]\nrecipe_name = \"mxfp8_cublas_rceil\"\n", TITAN_EUNSUPPORTED,
         "f.toml:2: mx.recipe_name = \"mxfp8_cublas_rceil\" is not supported by this version; use \"mxfp8_cublas\""},
        {"[validation]\nsteps = 0\n", TITAN_EINVAL,
         "f.toml:2: validation.steps = 0 is out of range: from 1 to 1000000000, or -1"},
        {"[validation]\nfreq = 0\n", TITAN_EINVAL,
         "f.toml:2: validation.freq = 0 is out of range: from 1 to 1000000000"},
        {"[checkpoint]\ninitial_load_in_hf_quantized = true\n", TITAN_EUNSUPPORTED,
         "f.toml:2: checkpoint.initial_load_in_hf_quantized = true is not supported by this version; use false or "
         "leave "
         "it out"},
        {"[checkpoint]\nload_step = -2\n", TITAN_EINVAL,
         "f.toml:2: checkpoint.load_step = -2 is out of range: from 0 to 1000000000, or -1"},
        {"[checkpoint]\nexclude_from_loading = [\"optimizer\", \"model\"]\n", TITAN_EINVAL,
         "f.toml:2: checkpoint.exclude_from_loading: \"model\": expected \"optimizer\", \"lr_scheduler\", "
         "\"dataloader\" or \"train_state\""},
        {"[training]\nmixture = 3\n", TITAN_EINVAL, "f.toml:2: training.mixture: expected an array, got an integer"},
        {"[training]\nmixture = [3]\n", TITAN_EINVAL,
         "f.toml:2: training.mixture: expected {path = \"...\", weight = 1.0}, got integer"},
        {"[training]\nmixture = [{weight = 1}]\n", TITAN_EINVAL, "f.toml:2: training.mixture: a source has no path"},
        {"[training]\nmixture = [{path = \"a\", weight = 0}]\n", TITAN_EINVAL,
         "f.toml:2: training.mixture: weight must be a number above 0"},
        {"[training]\nmixture = [{path = \"a\", size = 1}]\n", TITAN_EINVAL,
         "f.toml:2: training.mixture: unknown key size; there are path, weight and dataset"},
        {"[training]\ndataset = \"pile\"\n", TITAN_EUNSUPPORTED,
         "f.toml:2: training.dataset = \"pile\" is not supported by this version; use \"text\", \"jsonl\", \"c4\", "
         "\"c4_test\", \"c4_validation\" or \"sft\""},
        {"[resources]\nmemory = \"16G\"\n", TITAN_EINVAL,
         "f.toml:2: resources.memory = \"16G\": expected bytes with a unit, such as \"16GiB\""},
        {"[resources]\nmemory = \"-1GiB\"\n", TITAN_EINVAL,
         "f.toml:2: resources.memory = \"-1GiB\": expected bytes with a unit, such as \"16GiB\""},
        {"[resources]\nmemory = \"1023KiB\"\n", TITAN_EINVAL,
         "f.toml:2: resources.memory = \"1023KiB\" is out of range: from 1MiB to 1EiB"},
        {"[resources]\nmemory = \"2EiB\"\n", TITAN_EINVAL,
         "f.toml:2: resources.memory = \"2EiB\" is out of range: from 1MiB to 1EiB"},
        {"[resources]\nmemory = -1\n", TITAN_EINVAL,
         "f.toml:2: resources.memory = -1 is out of range: from 1MiB to 1EiB"},
        {"[resources]\nmemory = 16.5\n", TITAN_EINVAL,
         "f.toml:2: resources.memory: expected bytes such as \"16GiB\", got a float"},
        {"[resources]\nmemry = \"16GiB\"\n", TITAN_EINVAL,
         "f.toml:2: unknown key resources.memry; did you mean resources.memory?"},
        {"[resources]\ncpus = 0\n", TITAN_EINVAL,
         "f.toml:2: resources.cpus = 0 is out of range: from 0.01 to 16384, or -1"},
        {"[resources]\ncpus = 16385\n", TITAN_EINVAL,
         "f.toml:2: resources.cpus = 16385 is out of range: from 0.01 to 16384, or -1"},
        {"[resources]\ncpus = \"4\"\n", TITAN_EINVAL, "f.toml:2: resources.cpus = \"4\": expected a number, not text"},
        /* not TOML */
        {"[training\n", TITAN_EINVAL, "f.toml:1:10: expected ']'"},
        {"[training]\nsteps = 3\nsteps = 4\n", TITAN_EINVAL, "f.toml:3:1: 'steps' is given twice (first in line 2)"},
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct recipe r = fresh(), before = r;
        struct titan_error err = {0};
        titan_status status = recipe_parse(&r, cases[i].text, "f.toml", &err);
        assert_string_equal(err.msg, cases[i].msg);
        assert_int_equal(status, cases[i].status);
        assert_int_equal(err.status, cases[i].status);
        assert_memory_equal(&r, &before, sizeof(r)); /* untouched */
    }
}

/* Bytes with a unit and as a number, in files and by --set; what is printed is read back. */
static void test_resources(void **state)
{
    (void)state;
    static const struct {
        const char *assignment, *line;
        int64_t memory;
    } cases[] = {{"resources.memory=16GiB", "memory = \"16GiB\"\n", INT64_C(16) << 30},
                 {"resources.memory=\"1.5 GiB\"", "memory = \"1536MiB\"\n", INT64_C(1536) << 20},
                 {"resources.memory=1048577", "memory = \"1048577B\"\n", 1048577},
                 {"resources.memory=1EiB", "memory = \"1EiB\"\n", INT64_C(1) << 60},
                 {"resources.memory=\"\"", "memory = \"\"\n", 0},
                 {"resources.memory=", "memory = \"\"\n", 0}};
    struct recipe r = fresh(), again;
    assert_int_equal(r.resources.memory, 0);
    assert_true(r.resources.cpus == -1);
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        _cleanup_(buf_free) struct buf text = BUF_INIT;
        r = fresh();
        again = fresh();
        assert_int_equal(recipe_set(&r, cases[i].assignment, NULL), TITAN_OK);
        assert_true(r.resources.memory == cases[i].memory);
        recipe_print(&r, &text);
        assert_non_null(strstr(text.data, cases[i].line));
        assert_int_equal(recipe_parse(&again, text.data, "printed", NULL), TITAN_OK);
        assert_true(again.resources.memory == cases[i].memory);
    }
    assert_int_equal(recipe_set(&r, "resources.memory=16G", NULL), TITAN_EINVAL);
    assert_int_equal(recipe_parse(&r, "[resources]\nmemory = 2097152\ncpus = 2.5\n", "f.toml", NULL), TITAN_OK);
    assert_int_equal(r.resources.memory, 2097152);
    assert_true(r.resources.cpus == 2.5);
}

static void test_too_long(void **state)
{
    (void)state;
    struct recipe r = fresh();
    struct titan_error err = {0};
    _cleanup_(buf_free) struct buf text = BUF_INIT;
    buf_puts(&text, "[training]\ndataset_path = \"");
    for (int i = 0; i < 1024; i++)
        buf_puts(&text, "x");
    buf_puts(&text, "\"\n");
    assert_int_equal(recipe_parse(&r, text.data, "f", &err), TITAN_EINVAL);
    assert_string_equal(err.msg, "f:2: training.dataset_path: text of 1024 bytes is too long (at most 1023)");
    buf_clear(&text);
    for (int i = 0; i < RECIPE_TEXT_MAX + 1; i++)
        buf_puts(&text, "\n");
    assert_int_equal(recipe_parse(&r, text.data, NULL, &err), TITAN_ELIMIT);
    assert_non_null(strstr(err.msg, "<stdin>"));
    assert_int_equal(recipe_load(&r, "/nowhere/x.toml", &err), TITAN_ENOTFOUND);
}

/* An array of paths is the pattern that a string would be. */
static void test_path_arrays(void **state)
{
    (void)state;
    static const struct {
        const char *array, *path, *error;
    } cases[] = {
        {"[]", "", NULL},
        {"[\"/d/a\"]", "/d/a", NULL},
        {"[\"/d/a.txt\", \"/d/b/*.txt\", \"/d/c{1,2}\"]", "/d/{a.txt,b/*.txt,c{1,2}}", NULL},
        {"[\"/data/ab\", \"/data/ac\"]", "/data/{ab,ac}", NULL},
        {"[\"/d{1,2}/a\", \"/d{1,2}/b\"]", "/{d{1,2}/a,d{1,2}/b}", NULL},
        {"[\"/a\", \"/b/c\"]", "/{a,b/c}", NULL},
        {"[\"a\", \"b c\"]", "{a,b c}", NULL},
        {"[\"x/a\", \"x/a/b\"]", "x/{a,a/b}", NULL},
        {"[\"a\", \"/b\"]", NULL, "\"a\" and \"/b\": paths of an array are all relative, or none is"},
        {"[\"a,b\", \"c\"]", NULL, "\"a,b\": a path of an array has no backslash, commas and braces only as in {a,b}"},
        {"[\"a}\", \"{c\"]", NULL, "\"a}\": a path of an array has no backslash, commas and braces only as in {a,b}"},
        {"['a\\', 'c']", NULL, "\"a\\\": a path of an array has no backslash, commas and braces only as in {a,b}"},
        {"[\"a\", \"\"]", NULL, "an array with an empty path"},
        {"[1]", NULL, "expected text in quotes, got an integer"},
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct titan_error err = {0};
        struct recipe r = fresh();
        char text[256], message[256];
        snprintf(text, sizeof text, "[training]\ndataset_path = %s\n", cases[i].array);
        const titan_status status = recipe_parse(&r, text, "f", &err);
        if (cases[i].error) {
            snprintf(message, sizeof message, "f:2: training.dataset_path: %s", cases[i].error);
            assert_int_equal(status, TITAN_EINVAL);
            assert_string_equal(err.msg, message);
            continue;
        }
        assert_int_equal(status, TITAN_OK);
        assert_string_equal(r.training.dataset_path, cases[i].path);
        snprintf(text, sizeof text, "training.dataset_path=%s", cases[i].array);
        assert_int_equal(recipe_set(&r, text, NULL), TITAN_OK);
        assert_string_equal(r.training.dataset_path, i ? cases[i].path : "[]"); /* a pattern, as far as a shell knows */
    }
}

/* --- overrides ---------------------------------------------------------------------------------------------------- */

static void test_set(void **state)
{
    (void)state;
    struct recipe r = fresh();
    struct titan_error err = {0};
    static const char *const good[] = {
        "training.steps=12",
        "optimizer.lr=1e-3",
        "checkpoint.enable=true",
        "training.dataset_path=/a b",
        "job.description=\"quoted\"",
        "model.flavor=70b",
        "lr_scheduler.lr_min=0.5",
        "quantize.linear.mx.fqns=[]",
        "job.dump_folder=",
        "parallelism.pipeline_parallel_split_points=layers.2,layers.4",
        "parallelism.pipeline_parallel_schedule=interleaved1f1b",
        "model.converters=[\"float8\"]",
        "parallelism.context_parallel_load_balancer=[]",
    };
    /* quantize.linear.mx.fqns is no key: quantize.linear.mx has filter_fqns */
    for (size_t i = 0; i < ARRAY_SIZE(good); i++) {
        titan_status want = strstr(good[i], "mx.fqns") ? TITAN_EINVAL : TITAN_OK;
        if (recipe_set(&r, good[i], &err) != want)
            fail_msg("%s: %s", good[i], err.msg);
    }
    assert_int_equal(r.training.steps, 12);
    assert_true(r.optimizer.lr == 1e-3);
    assert_true(r.checkpoint.enable);
    assert_string_equal(r.training.dataset_path, "/a b");
    assert_string_equal(r.job.description, "quoted");
    assert_string_equal(r.model.flavor, "70B");
    assert_true(r.lr_scheduler.min_lr_factor == 0.5);
    assert_string_equal(r.parallelism.pipeline_parallel_split_points, "layers.2,layers.4");
    assert_string_equal(r.parallelism.pipeline_parallel_schedule, "Interleaved1F1B");
    assert_true(r.model.float8);
    assert_int_equal(recipe_set(&r, "model.converters=false", &err), TITAN_OK);
    assert_int_equal(recipe_set(&r, "model.converters=quantize.grouped_mm.float8", &err), TITAN_OK);
    assert_false(r.model.float8);
    assert_int_equal(recipe_set(&r, "model.converters=quantize.linear.float8,quantize.grouped_mm.float8", &err),
                     TITAN_OK);
    assert_true(r.model.float8);
    assert_string_equal(r.float8.recipe_name, "tensorwise");
    assert_int_equal(recipe_set(&r, "quantize.linear.float8.recipe_name=rowwise_with_gw_hp", &err), TITAN_OK);
    assert_string_equal(r.float8.recipe_name, "rowwise_with_gw_hp");
    assert_int_equal(recipe_set(&r, "float8.filter_fqns=[\"output\", \"attention.wk\"]", &err), TITAN_OK);
    assert_string_equal(r.float8.filter_fqns, "output,attention.wk");
    assert_true(recipe_filters_float8(&r, "output") && !recipe_filters_float8(&r, "attention"));
    /* A list of converters sets both switches, whatever it listed before; true and false one of them. */
    static const struct {
        const char *assignment;
        bool float8, mxfp8, switchback;
    } switches[] = {{"model.converters=mx", false, true, false},
                    {"model.converters=float8", true, false, false},
                    {"model.converters=[\"quantize.linear.float8\", \"quantize.linear.mx\"]", true, true, false},
                    {"model.float8=false", false, true, false},
                    {"model.converters=switchback", false, false, true},
                    {"model.converters=[\"mx\", \"switchback\"]", false, true, true},
                    {"model.switchback=false", false, true, false},
                    {"model.switchback=switchback", false, true, true},
                    {"model.converters=[]", false, false, false},
                    {"model.mxfp8=true", false, true, false},
                    {"model.mxfp8=false", false, false, false},
                    {"model.mxfp8=mx", false, true, false},
                    {"model.converters=quantize.grouped_mm.mx", false, false, false},
                    {"model.converters=float8", true, false, false}};
    for (size_t i = 0; i < ARRAY_SIZE(switches); i++) {
        assert_int_equal(recipe_set(&r, switches[i].assignment, &err), TITAN_OK);
        if (r.model.float8 != switches[i].float8 || r.model.mxfp8 != switches[i].mxfp8 ||
            r.model.switchback != switches[i].switchback)
            fail_msg("%s: %d, %d, %d", switches[i].assignment, r.model.float8, r.model.mxfp8, r.model.switchback);
    }
    assert_string_equal(r.mx.filter_fqns, "output");
    assert_int_equal(recipe_set(&r, "quantize.linear.mx.filter_fqns=[\"attention.wk\", \"w2\"]", &err), TITAN_OK);
    assert_string_equal(r.mx.filter_fqns, "attention.wk,w2");
    assert_false(r.parallelism.context_parallel_load_balance);
    static const struct {
        const char *assignment, *msg;
    } bad[] = {
        {"training.steps", "--set: expected section.key=value, got 'training.steps'"},
        {"steps=3", "--set: expected section.key=value, got 'steps=3'"},
        {".steps=3", "--set: expected section.key=value, got '.steps=3'"},
        {"training.=3", "--set: expected section.key=value, got 'training.=3'"},
        {"training.stepz=3", "--set: unknown key training.stepz; did you mean training.steps?"},
        {"training.steps=x", "--set: training.steps = \"x\": expected an integer, not text"},
        {"training.steps=3x", "--set training.steps:1:1: not a value: 3x (text must stand in quotes)"},
        {"training.steps=", "--set training.steps:1:1: expected a value behind '='"},
        {"training.steps=0", "--set: training.steps = 0 is out of range: from 1 to 1000000000"},
        {"float8.recipe_name=rowise", "--set: float8.recipe_name = \"rowise\": expected \"tensorwise\", \"rowwise\", "
                                      "\"rowwise_with_gw_hp\" or \"scalify\""},
        {"float8.filter_fqns=[1]", "--set: float8.filter_fqns: expected an array, got an integer"},
        {"float8.filter_fqns=a.b.c.d.e.f.g.h.i.j.k.l.m.n.o.p.q.r.s.t.u.v.w.x.y.z.0.1.2.3.4.5.6.7",
         "--set: float8.filter_fqns: \"a.b.c.d.e.f.g.h....\" is too long (at most 63 bytes)"},
        {"checkpoint.initial_load_in_hf_quantized=true", "--set: checkpoint.initial_load_in_hf_quantized = true is not "
                                                         "supported by this version; use false or leave it out"},
    };
    struct recipe before = r;
    for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
        assert_int_not_equal(recipe_set(&r, bad[i].assignment, &err), TITAN_OK);
        assert_string_equal(err.msg, bad[i].msg);
    }
    assert_memory_equal(&r, &before, sizeof(r));
}

/* What has no effect is told once a reason; an override takes it back; what is part of a key that is off is not told.
 */
static void test_warnings(void **state)
{
    (void)state;
    struct recipe r = fresh();
    _cleanup_(buf_free) struct buf lines = BUF_INIT;
    assert_int_equal(recipe_parse(&r,
                                  "[metrics]\nenable_wandb = true\ndisable_color_printing = true\n"
                                  "[comm]\ninit_timeout_seconds = 300\ntrain_timeout_seconds = 50\n"
                                  "[training.dataloader]\nnum_workers = 4\npin_memory = true\n"
                                  "[compile]\nenable = true\ncomponents = [\"loss\"]\n"
                                  "[model]\nconverters = [\"float8\"]\n[checkpoint]\nlast_save_model_only = true\n",
                                  "f", NULL),
                     TITAN_OK);
    assert_int_equal(recipe_set(&r, "metrics.enable_wandb=false", NULL), TITAN_OK);
    recipe_warnings(&r, &lines);
    assert_string_equal(
        lines.data,
        "model.converters: on GPUs before Hopper products are in bfloat16 or float32, whichever the device is fast at, "
        "not in float8\n"
        "metrics.disable_color_printing has no effect: Output to a file has no colours anyway\n"
        "training.dataloader.num_workers, training.dataloader.pin_memory have no effect: A worker reads its samples "
        "itself\n"
        "compile.enable has no effect: A step is always planned as a whole, and nothing is compiled\n"
        "comm.train_timeout_seconds has no effect: A lost peer is noticed without a timeout\n");
    buf_clear(&lines);
    r = fresh();
    assert_int_equal(recipe_set(&r, "checkpoint.exclude_from_loading=optimizer,lr_scheduler", NULL), TITAN_OK);
    recipe_warnings(&r, &lines);
    assert_string_equal(lines.data, "checkpoint.exclude_from_loading: \"lr_scheduler\" has no effect: It follows from "
                                    "the step, which \"train_state\" leaves out\n");
    buf_clear(&lines);
    assert_int_equal(recipe_set(&r, "checkpoint.exclude_from_loading=dataloader,train_state", NULL), TITAN_OK);
    recipe_warnings(&r, &lines);
    assert_int_equal(lines.len, 0);
    r = fresh();
    recipe_warnings(&r, &lines);
    assert_int_equal(lines.len, 0);
    assert_int_equal(recipe_set(&r, "training.dataset=text", NULL), TITAN_OK);
    assert_int_equal(recipe_set(&r, "training.dataset_path=/d/a.jsonl", NULL), TITAN_OK);
    recipe_warnings(&r, &lines);
    assert_string_equal(lines.data, "training.dataset_path: a .jsonl file is read as plain text; training.dataset = "
                                    "\"jsonl\" reads the text of its records\n");
    buf_clear(&lines);
    r = fresh();
    assert_int_equal(recipe_set(&r, "parallelism.fsdp_reshard_after_forward=always", NULL), TITAN_OK);
    recipe_warnings(&r, &lines);
    assert_string_equal(lines.data, "parallelism.fsdp_reshard_after_forward = \"always\" has no effect: without a "
                                    "pipeline \"default\" is the same\n");
    buf_clear(&lines);
    assert_int_equal(recipe_set(&r, "parallelism.pipeline_parallel_degree=2", NULL), TITAN_OK);
    recipe_warnings(&r, &lines);
    assert_int_equal(lines.len, 0);
    r = fresh();
    assert_int_equal(recipe_set(&r, "training.seq_len=64", NULL), TITAN_OK);
    recipe_warnings(&r, &lines);
    assert_int_equal(lines.len, 0);
    assert_int_equal(recipe_set(&r, "validation.enable=true", NULL), TITAN_OK);
    recipe_warnings(&r, &lines);
    assert_string_equal(lines.data, "validation.seq_len = 2048 is more than training.seq_len = 64: the model is "
                                    "evaluated at positions that it does not train\n");
    buf_clear(&lines);
    assert_int_equal(recipe_set(&r, "validation.seq_len=64", NULL), TITAN_OK);
    recipe_warnings(&r, &lines);
    assert_int_equal(lines.len, 0);
    r = fresh();
    assert_int_equal(recipe_set(&r, "job.dump_folder=/d", NULL), TITAN_OK);
    assert_int_equal(recipe_set(&r, "checkpoint.enable=true", NULL), TITAN_OK);
    recipe_warnings(&r, &lines);
    assert_int_equal(lines.len, 0);
    assert_int_equal(recipe_set(&r, "checkpoint.folder=/c", NULL), TITAN_OK);
    recipe_warnings(&r, &lines);
    assert_string_equal(lines.data, "job.dump_folder has no effect: only checkpoints go there, and checkpoint.folder "
                                    "is absolute\n");
    buf_clear(&lines);
    assert_int_equal(recipe_set(&r, "checkpoint.enable=false", NULL), TITAN_OK);
    recipe_warnings(&r, &lines);
    assert_string_equal(lines.data, "job.dump_folder has no effect: only checkpoints go there, and checkpoint.enable "
                                    "is false\n");
    buf_clear(&lines);
    r = fresh();
    /* Where float8 takes effect there is nothing to say, but of experts, and of what it is not made by. */
    assert_int_equal(recipe_set(&r, "model.converters=float8", NULL), TITAN_OK);
    assert_int_equal(recipe_set(&r, "device.name=cpu", NULL), TITAN_OK);
    recipe_warnings(&r, &lines);
    assert_int_equal(lines.len, 0);
    assert_int_equal(recipe_set(&r, "model.converters=quantize.grouped_mm.float8", NULL), TITAN_OK);
    assert_int_equal(recipe_set(&r, "training.mixed_precision_param=bfloat16", NULL), TITAN_OK);
    assert_int_equal(recipe_set(&r, "quantize.linear.float8.emulate=true", NULL), TITAN_OK);
    recipe_warnings(&r, &lines);
    assert_string_equal(lines.data,
                        "model.converters: products of routed experts are in bfloat16, not in float8\n"
                        "quantize.linear.float8.emulate has no effect: Whether float8 is emulated follows from the "
                        "device\n");
    buf_clear(&lines);
    /* MXFP8 is refused where it is not. */
    assert_int_equal(recipe_set(&r, "model.converters=mx,quantize.grouped_mm.mx", NULL), TITAN_OK);
    assert_int_equal(recipe_set(&r, "device.name=cuda", NULL), TITAN_OK);
    assert_int_equal(recipe_set(&r, "quantize.linear.mx.mxfp8_dim1_cast_kernel_choice=cuda", NULL), TITAN_OK);
    assert_int_equal(recipe_set(&r, "quantize.linear.float8.emulate=false", NULL), TITAN_OK);
    recipe_warnings(&r, &lines);
    assert_string_equal(
        lines.data,
        "model.converters: GPUs before Blackwell (compute capability 10.0) have no MXFP8 and refuse the run\n"
        "model.converters: products of routed experts are in bfloat16, not in MXFP8\n"
        "quantize.linear.mx.mxfp8_dim1_cast_kernel_choice has no effect: Each way that an operand may lie "
        "has one kernel\n");
    buf_clear(&lines);
    assert_int_equal(recipe_set(&r, "quantize.linear.mx.mxfp8_dim1_cast_kernel_choice=triton", NULL), TITAN_OK);
    assert_int_equal(recipe_set(&r, "device.name=cpu", NULL), TITAN_OK);
    assert_int_equal(recipe_set(&r, "model.converters=float8", NULL), TITAN_OK);
    assert_int_equal(recipe_set(&r, "quantize.linear.float8.emulate=false", NULL), TITAN_OK);
    recipe_warnings(&r, &lines);
    assert_int_equal(lines.len, 0);
}

/* --- resolving ---------------------------------------------------------------------------------------------------- */

static void resolve_fails(const char *text, const char *msg)
{
    struct recipe r = fresh();
    struct titan_error err = {0};
    assert_int_equal(recipe_parse(&r, text, "f", &err), TITAN_OK);
    assert_int_equal(recipe_resolve(&r, &err), TITAN_EINVAL);
    assert_string_equal(err.msg, msg);
}

static void test_resolve(void **state)
{
    (void)state;
    resolve_fails("[model]\nfloat8 = true\n[float8]\nrecipe_name = \"rowwise\"\nenable_fsdp_float8_all_gather = true\n",
                  "float8.enable_fsdp_float8_all_gather = true with model.float8 = true does not go with "
                  "float8.recipe_name = \"rowwise\": a scale per row or column fits one of a weight's two products: "
                  "use \"tensorwise\" or \"scalify\"");
    resolve_fails("[model]\nfloat8 = true\n[float8]\nrecipe_name = \"rowwise_with_gw_hp\"\nfilter_fqns = "
                  "[\"auto_filter_small_kn\"]\n",
                  "float8.recipe_name = \"rowwise_with_gw_hp\" with model.float8 = true does not go with "
                  "float8.filter_fqns = [\"auto_filter_small_kn\"]: its bounds are not known for this recipe: name the "
                  "layers, or use \"rowwise\"");
    resolve_fails(
        "[model]\nconverters = [\"float8\", \"quantize.linear.mx\"]\n",
        "model.float8 = true does not go with model.mxfp8 = true: a linear layer is in one of them: leave one out of "
        "model.converters");
    resolve_fails("[nccl]\ncta_policy = \"zero\"\n",
                  "nccl.cta_policy = \"zero\" needs nccl.windows = true: copy engines reach registered memory only");
    static const char *const no_ranks[] = {"x", "0x", "0,", "1-", "3-2", "0,4-7x", "0,,1", "-1"};
    for (size_t i = 0; i < ARRAY_SIZE(no_ranks); i++) {
        char text[96], why[160];
        (void)snprintf(text, sizeof(text), "[profiling]\nenable_profiling = true\nranks = \"%s\"\n", no_ranks[i]);
        (void)snprintf(why, sizeof(why),
                       "profiling.ranks = \"%s\": ranks and ranges of them with commas between, such as \"0,4-7\"",
                       no_ranks[i]);
        resolve_fails(text, why);
    }
    static const char *const some_ranks[] = {"", "0", "12,3", "0,4-7", "2-2,9"};
    for (size_t i = 0; i < ARRAY_SIZE(some_ranks); i++) {
        struct recipe r = fresh();
        r.profiling.enable_profiling = true;
        snprintf(r.profiling.ranks, sizeof(r.profiling.ranks), "%s", some_ranks[i]);
        assert_int_equal(recipe_resolve(&r, NULL), TITAN_OK);
    }
    resolve_fails("[model]\nn_heads = 3\n",
                  "model.n_heads = 3 does not fit model.dim = 256: dim / n_heads must be an even number");
    resolve_fails("[model]\nn_kv_heads = 3\n", "model.n_kv_heads = 3 does not divide model.n_heads = 16");
    resolve_fails("[model]\nvocab_size = 100\n",
                  "model.vocab_size = 100 is too small: model.tokenizer = \"bytes\" needs at least 256");
    resolve_fails("[elastic]\nmin_workers = 4\nmax_workers = 2\n",
                  "elastic.min_workers = 4 is more than elastic.max_workers = 2");
    resolve_fails("[training]\nlocal_batch_size = 4\nglobal_batch_size = 31\n",
                  "training.global_batch_size = 31 is not a multiple of training.local_batch_size = 4; nearest: 32");
    resolve_fails("[training]\nlocal_batch_size = 4\nglobal_batch_size = 29\n",
                  "training.global_batch_size = 29 is not a multiple of training.local_batch_size = 4; nearest: 28");
    resolve_fails("[training]\nlocal_batch_size = 4\nglobal_batch_size = 2\n",
                  "training.global_batch_size = 2 is less than one microbatch (training.local_batch_size = 4)");
    resolve_fails("[parallelism]\ndata_parallel_shard_degree = 4\n[elastic]\nmax_workers = 8\n",
                  "parallelism.data_parallel_shard_degree = 4 takes 4 workers; elastic.max_workers = 8: use 4, or "
                  "parallelism.data_parallel_shard_degree = -1");
    resolve_fails(
        "[parallelism]\ntensor_parallel_degree = 2\npipeline_parallel_degree = 2\n[elastic]\nmax_workers = 6\n",
        "parallelism.pipeline_parallel_degree * tensor_parallel_degree = 2 * 2 takes a multiple of 4 workers; "
        "elastic.max_workers = 6: use 4 or 8");
    resolve_fails(
        "[parallelism]\ntensor_parallel_degree = 4\n[elastic]\nmax_workers = 2\n",
        "parallelism.tensor_parallel_degree = 4 takes a multiple of 4 workers; elastic.max_workers = 2: use 4");
    resolve_fails(
        "[parallelism]\ndata_parallel_replicate_degree = 2\n[elastic]\nmax_workers = 3\n",
        "parallelism.data_parallel_replicate_degree = 2 takes a multiple of 2 workers; elastic.max_workers = 3: "
        "use 2 or 4");
    resolve_fails("[optimizer]\nname = \"GaLore2\"\n[optimizer.galore]\nrank = 129\n[model]\nflavor = \"debugmodel\"\n"
                  "dim = 256\nn_heads = 16\nn_kv_heads = 8\n",
                  "optimizer.galore.rank = 129 is more than 128, the smaller side of attention.wk; nearest: 128");
    resolve_fails("[optimizer]\nname = \"Muon\"\nrest = \"Muon\"\n",
                  "optimizer.rest = \"Muon\" does not go with embedding, head, norms, biases and routers: it updates "
                  "matrices of layers alone: name it in optimizer.name");
    resolve_fails("[optimizer]\nstate_rounding = \"stochastic\"\n",
                  "optimizer.state_rounding = \"stochastic\" does not go with moments in float32 or int8: no others "
                  "than bfloat16 "
                  "are rounded at random: set optimizer.state_dtype = \"bfloat16\"");
    resolve_fails("[optimizer]\nstate_dtype = \"int8\"\nstate_rounding = \"stochastic\"\n",
                  "optimizer.state_rounding = \"stochastic\" does not go with moments in float32 or int8: no others "
                  "than bfloat16 "
                  "are rounded at random: set optimizer.state_dtype = \"bfloat16\"");
    resolve_fails(
        "[fault_tolerance]\nredundancy = \"replica\"\n",
        "fault_tolerance.redundancy = \"replica\" does not go with parallelism.data_parallel_replicate_degree = 1: "
        "there are no replicas: use \"buddy\", or 2 replicas or more");
    resolve_fails("[parallelism]\ntensor_parallel_degree = 1048576\ncontext_parallel_degree = 1048576\n",
                  "the degrees of parallelism multiply to more than 1048576 workers");
    resolve_fails(
        "[training]\nlocal_batch_size = 1048576\n[elastic]\nmax_workers = 1048576\n",
        "training.local_batch_size = 1048576 times 1048576 data-parallel ranks (elastic.max_workers = 1048576) "
        "is more than 268435456");
    resolve_fails(
        "[training]\nglobal_batch_size = 7\n[parallelism]\npipeline_parallel_degree = 2\n"
        "pipeline_parallel_microbatch_size = 4\n",
        "training.global_batch_size = 7 is not a multiple of parallelism.pipeline_parallel_microbatch_size = 4; "
        "nearest: 8");
    resolve_fails("[training]\nlocal_batch_size = 1\nseq_len = 16\nloss_chunks = 17\n",
                  "training.loss_chunks = 17 is more than the 16 tokens a microbatch has on a worker; nearest: 16");
    resolve_fails("[activation_checkpoint]\nselective_ac_option = \"0\"\n",
                  "activation_checkpoint.selective_ac_option = \"0\": expected \"op\", \"op:N\" or \"N\", N above 0");
    resolve_fails(
        "[activation_checkpoint]\nselective_ac_option = \"op:x\"\n",
        "activation_checkpoint.selective_ac_option = \"op:x\": expected \"op\", \"op:N\" or \"N\", N above 0");
    resolve_fails("[model]\nname = \"qwen3\"\nflavor = \"9B\"\n",
                  "model.flavor = \"9B\": model.name = \"qwen3\" has debugmodel, tiny, 0.6B, 1.7B, 4B, 8B, 14B, 32B, "
                  "debugmodel_moe, 30B-A3B, 235B-A22B");
    resolve_fails("[model]\nflavor = \"16B\"\n",
                  "model.flavor = \"16B\": model.name = \"llama3\" has debugmodel, debugmodel_flex_attn, "
                  "debugmodel_varlen_attn, demo, tiny, 1B, 3B, 8B, 8B_flex, 8B_varlen, 70B, 405B");
    resolve_fails("[model]\nname = \"llama3_moe\"\ntop_k = 9\n",
                  "model.top_k = 9 does not fit model.n_experts = 8; nearest: 8");
    resolve_fails("[model]\nname = \"qwen3\"\nhead_dim = 31\n", "model.head_dim = 31 is not even; nearest: 32");
    resolve_fails("[model]\nname = \"deepseek_v3\"\nqk_rope_head_dim = 0\n",
                  "model.kv_lora_rank = 512 (latent attention) needs an even model.qk_rope_head_dim above 0, and "
                  "model.qk_nope_head_dim and model.v_head_dim above 0; they are 0, 128 and 128");
    struct recipe r = fresh();
    assert_int_equal(recipe_parse(&r,
                                  "[model]\nflavor = \"Demo\"\nn_layers = 3\nrope_scaling = true\n"
                                  "[training]\nlocal_batch_size = 4\nsteps = 50\n[elastic]\nmin_workers = 3\n",
                                  "f", NULL),
                     TITAN_OK);
    assert_int_equal(recipe_resolve(&r, NULL), TITAN_OK);
    assert_string_equal(r.model.flavor, "demo");
    assert_int_equal(r.model.dims.n_layers, 3);
    assert_int_equal(r.model.dims.dim, 256);
    assert_string_equal(r.model.dims.rope_scaling, "llama3");
    assert_int_equal(r.elastic.max_workers, 3); /* moved along */
    assert_int_equal(r.training.global_batch_size, 12);
    assert_int_equal(r.lr_scheduler.warmup_steps, 50);
    r = fresh(); /* a number is the most: it may go on with less */
    assert_int_equal(recipe_set(&r, "parallelism.data_parallel_shard_degree=4", NULL), TITAN_OK);
    assert_int_equal(recipe_set(&r, "parallelism.tensor_parallel_degree=2", NULL), TITAN_OK);
    assert_int_equal(recipe_set(&r, "parallelism.context_parallel_rotate_method=alltoall", NULL), TITAN_OK);
    assert_int_equal(recipe_set(&r, "training.seq_len=2", NULL), TITAN_OK);
    assert_int_equal(recipe_set(&r, "training.local_batch_size=2", NULL), TITAN_OK);
    assert_int_equal(recipe_resolve(&r, NULL), TITAN_OK);
    assert_int_equal(r.elastic.min_workers, 2);
    assert_int_equal(r.elastic.max_workers, 8);
    assert_int_equal(r.training.global_batch_size, 8);
    assert_int_equal(r.training.loss_chunks, 4); /* one token each */
    assert_string_equal(r.parallelism.context_parallel_rotate_method, "ring");
    struct recipe again = r; /* what is stored with a job is resolved once more by its workers */
    assert_int_equal(recipe_resolve(&again, NULL), TITAN_OK);
    assert_memory_equal(&again, &r, sizeof(r));
}

/* The paths that are read, those alone; TorchTitan's sets of data have theirs. */
static void test_paths(void **state)
{
    (void)state;
    struct recipe r = fresh();
    struct recipe_path paths[RECIPE_PATHS_MAX];
    struct titan_error err = {0};
    char folder[1100];
    assert_int_equal(recipe_paths(&r, paths), 0); /* bytes is no path */
    snprintf(r.training.dataset, sizeof(r.training.dataset), "c4_test");
    snprintf(r.model.tokenizer, sizeof(r.model.tokenizer), "./assets/hf/X");
    snprintf(r.parallelism.pipeline_parallel_schedule_csv, sizeof(r.parallelism.pipeline_parallel_schedule_csv), "/s");
    assert_int_equal(recipe_paths(&r, paths), 3);
    for (int i = 0; i < 3; i++)
        assert_int_equal(recipe_place_path(&paths[i], "/home/me", &err), TITAN_OK);
    assert_string_equal(r.training.dataset_path, "/home/me/tests/assets/c4_test");
    assert_string_equal(r.model.tokenizer, "/home/me/./assets/hf/X");
    assert_string_equal(r.parallelism.pipeline_parallel_schedule_csv, "/s");
    memset(folder, 'f', sizeof(folder));
    folder[0] = '/';
    folder[sizeof(folder) - 1] = '\0';
    snprintf(r.model.tokenizer, sizeof(r.model.tokenizer), "x");
    assert_int_equal(recipe_place_path(&paths[1], folder, &err), TITAN_EINVAL);
    assert_non_null(strstr(err.msg, "model.hf_assets_path: '/ff"));
    assert_string_equal(r.model.tokenizer, "x");
    /* As many as a text can name: they are counted before anything refuses a set of data beside a mixture. */
    snprintf(r.checkpoint.initial_load_path, sizeof(r.checkpoint.initial_load_path), "/c");
    r.validation.enable = true;
    snprintf(r.validation.dataset_path, sizeof(r.validation.dataset_path), "/v");
    r.training.mixture.n = RECIPE_SOURCES_MAX;
    for (int i = 0; i < RECIPE_SOURCES_MAX; i++)
        snprintf(r.training.mixture.source[i].path, sizeof(r.training.mixture.source[i].path), "/m%d", i);
    assert_int_equal(recipe_paths(&r, paths), RECIPE_PATHS_MAX);
    r = fresh();
    snprintf(r.training.dataset, sizeof(r.training.dataset), "c4");
    assert_int_equal(recipe_check_data(&r, "/home/me", &err), TITAN_ENOTFOUND);
    assert_string_equal(err.msg, "training.dataset_path = \"/home/me/allenai/c4\": No such file or directory");
}

static void test_data(void **state)
{
    (void)state;
    struct recipe r = fresh();
    struct titan_error err = {0};
    char dir[] = "/tmp/titan-recipe-XXXXXX", path[64];
    assert_non_null(mkdtemp(dir));
    assert_int_equal(recipe_check_data(&r, NULL, &err), TITAN_EINVAL);
    assert_string_equal(err.msg, "training.dataset_path is not given");
    assert_true(err.hint[0]);
    snprintf(r.training.dataset_path, sizeof(r.training.dataset_path), "text");
    assert_int_equal(recipe_check_data(&r, dir, &err), TITAN_ENOTFOUND);
    assert_non_null(strstr(err.msg, "/text\": No such file or directory"));
    snprintf(path, sizeof(path), "%s/text", dir);
    assert_int_equal(file_replace(path, "", 0, &err), TITAN_OK);
    assert_int_equal(recipe_check_data(&r, dir, &err), TITAN_EINVAL);
    r.training.seq_len = 4;
    assert_int_equal(file_replace(path, "abc", 3, &err), TITAN_OK);
    assert_int_equal(recipe_check_data(&r, dir, &err), TITAN_EINVAL);
    assert_non_null(strstr(err.msg, "/text\" has 3 bytes; one sample needs 4"));
    snprintf(r.training.dataset, sizeof(r.training.dataset), "jsonl"); /* bytes are no tokens */
    assert_int_equal(recipe_check_data(&r, dir, &err), TITAN_OK);
    snprintf(r.training.dataset, sizeof(r.training.dataset), "text");
    r.training.seq_len = 3;
    assert_int_equal(recipe_check_data(&r, dir, &err), TITAN_OK);
    r.validation.enable = true;
    snprintf(r.validation.dataset_path, sizeof(r.validation.dataset_path), "text");
    r.validation.seq_len = 4;
    assert_int_equal(recipe_check_data(&r, dir, &err), TITAN_EINVAL);
    assert_non_null(strstr(err.msg, "validation.dataset_path"));
    r.validation.enable = false;
    snprintf(r.training.dataset_path, sizeof(r.training.dataset_path), "%s", dir);
    assert_int_equal(recipe_check_data(&r, "/nowhere", &err), TITAN_OK);
    assert_int_equal(file_replace(path, "a\0bcd", 5, &err), TITAN_OK);
    assert_int_equal(recipe_check_data(&r, NULL, &err), TITAN_EINVAL);
    assert_non_null(strstr(err.msg, "\" has no text: all of its files are binary"));
    snprintf(r.training.dataset_path, sizeof(r.training.dataset_path), "text");
    assert_int_equal(recipe_check_data(&r, dir, &err), TITAN_EINVAL);
    assert_non_null(strstr(err.msg, "/text\" is no text: it is a binary file"));
    char other[80];
    snprintf(other, sizeof(other), "%s/x.bin", dir); /* tokens */
    assert_int_equal(file_replace(other, "a\0bcd", 5, &err), TITAN_OK);
    snprintf(r.training.dataset_path, sizeof(r.training.dataset_path), "%s", dir);
    assert_int_equal(recipe_check_data(&r, NULL, &err), TITAN_OK);
    assert_int_equal(file_replace(other, "", 0, &err), TITAN_OK);
    assert_int_equal(file_replace(path, "", 0, &err), TITAN_OK);
    assert_int_equal(recipe_check_data(&r, NULL, &err), TITAN_EINVAL);
    assert_non_null(strstr(err.msg, "\" has no files that are not empty"));
    snprintf(other, sizeof(other), "%s/link", dir); /* a folder of links, as a hub's cache has it */
    assert_int_equal(symlink("/proc/self/status", other), 0);
    assert_int_equal(recipe_check_data(&r, NULL, &err), TITAN_EINVAL); /* empty, as that file has it */
    assert_int_equal(unlink(other), 0);
    assert_int_equal(symlink("/etc/passwd", other), 0);
    assert_int_equal(recipe_check_data(&r, NULL, &err), TITAN_OK);
    r.job.follow_links = false;
    assert_int_equal(recipe_check_data(&r, NULL, &err), TITAN_EINVAL);
    r.job.follow_links = true;
    snprintf(r.training.dataset_path, sizeof(r.training.dataset_path), "*.txt"); /* what it matches the workers see */
    assert_int_equal(recipe_check_data(&r, NULL, &err), TITAN_OK);
    assert_int_equal(recipe_check_data(&r, dir, &err), TITAN_OK);
    snprintf(r.training.dataset_path, sizeof(r.training.dataset_path), "none/*.txt");
    assert_int_equal(recipe_check_data(&r, dir, &err), TITAN_ENOTFOUND);
    assert_non_null(strstr(err.msg, "/none\": No such file"));
    snprintf(r.training.dataset_path, sizeof(r.training.dataset_path), "/dev/null");
    assert_int_equal(recipe_check_data(&r, NULL, &err), TITAN_EINVAL);
    assert_int_equal(dir_remove(dir, NULL), TITAN_OK);
}

/* --- numbers ------------------------------------------------------------------------------------------------------ */

static void test_hash(void **state)
{
    (void)state;
    struct recipe a = fresh(), b = fresh();
    assert_int_equal(recipe_resolve(&a, NULL), TITAN_OK);
    static const struct {
        const char *assignment;
        bool same;
    } cases[] = {
        {"training.steps=20000", true},
        {"checkpoint.interval=7", true},
        {"job.description=other", true},
        {"elastic.max_workers=1", true},
        {"device.name=cpu", true},
        {"resources.memory=1GiB", true},
        {"resources.cpus=1", true},
        {"training.seed=43", false},
        {"training.seq_len=1024", false},
        {"optimizer.lr=1e-3", false},
        {"model.n_layers=5", false},
        {"training.dataset_path=x", false},
        {"numerics.canonical=true", false},
        {"training.mixed_precision_param=float32", false},
        {"training.block_causal=true", false},
        {"model.qk_norm=true", false},
        {"parallelism.tensor_parallel_degree=2", true},
        {"training.loss_chunks=4", true},
        {"activation_checkpoint.mode=full", true},
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        b = fresh();
        assert_int_equal(recipe_set(&b, cases[i].assignment, NULL), TITAN_OK);
        assert_int_equal(recipe_resolve(&b, NULL), TITAN_OK);
        if ((recipe_hash(&a) == recipe_hash(&b)) != cases[i].same)
            fail_msg("%s", cases[i].assignment);
    }
    /* the flavor's name says nothing, the dimensions do */
    b = fresh();
    assert_int_equal(recipe_parse(&b,
                                  "[model]\nflavor = \"tiny\"\ndim = 256\nn_layers = 6\nn_heads = 16\nn_kv_heads = 16\n"
                                  "ffn_hidden = 768\nvocab_size = 2048\nrope_scaling = true\n",
                                  "f", NULL),
                     TITAN_OK);
    assert_int_equal(recipe_resolve(&b, NULL), TITAN_OK);
    assert_true(recipe_hash(&a) == recipe_hash(&b));
}

/* --- printing ----------------------------------------------------------------------------------------------------- */

static void round_trip(const struct recipe *r)
{
    _cleanup_(buf_free) struct buf text = BUF_INIT;
    struct recipe back = fresh();
    struct titan_error err = {0};
    recipe_print(r, &text);
    assert_false(buf_failed(&text));
    if (recipe_parse(&back, text.data, "printed", &err) != TITAN_OK)
        fail_msg("%s", err.msg);
    memcpy(back.set_mask, r->set_mask, sizeof(back.set_mask));
    assert_memory_equal(&back, r, sizeof(back));
}

static void test_print(void **state)
{
    (void)state;
    struct recipe r = fresh();
    round_trip(&r); /* not resolved: the flavor's dimensions are left out */
    assert_int_equal(recipe_resolve(&r, NULL), TITAN_OK);
    round_trip(&r);
    snprintf(r.job.description, sizeof(r.job.description), "q\"b\\ tab\t nl\n del\x7f \xc3\xa9 # [x]");
    r.optimizer.lr = 0.1 + 0.2;
    r.optimizer.eps = 5e-324;
    r.training.seed = INT64_MAX;
    r.training.max_norm = 1e9;
    snprintf(r.parallelism.pipeline_parallel_split_points, sizeof(r.parallelism.pipeline_parallel_split_points),
             "layers.2,layers.4");
    r.model.float8 = true;
    const uint64_t hash = recipe_hash(&r);
    assert_int_equal(
        recipe_set(&r,
                   "training.mixture=[{path = \"a\\\"b\", weight = 0.3}, {path = \"c\", weight = 2, dataset = "
                   "\"c4\"}]",
                   NULL),
        TITAN_OK);
    assert_int_equal(r.training.mixture.n, 2);
    assert_true(recipe_hash(&r) != hash);
    round_trip(&r);
    assert_int_equal(recipe_set(&r, "training.mixture=[]", NULL), TITAN_OK);
    assert_true(recipe_hash(&r) == hash);
}

/* Every shipped run file is accepted, resolves, fits its own bounds, and prints what it read. */
static void test_shipped(void **state)
{
    (void)state;
    DIR *dir = opendir(TITAN_SOURCE_DIR "/recipes");
    assert_non_null(dir);
    int n = 0;
    for (struct dirent *e; (e = readdir(dir));) {
        char path[512];
        struct recipe r = fresh();
        struct titan_error err = {0};
        if (!strstr(e->d_name, ".toml"))
            continue;
        snprintf(path, sizeof(path), TITAN_SOURCE_DIR "/recipes/%s", e->d_name);
        if (recipe_load(&r, path, &err) != TITAN_OK || recipe_resolve(&r, &err) != TITAN_OK ||
            recipe_check_world(&r, r.elastic.min_workers, &err) != TITAN_OK ||
            recipe_check_world(&r, r.elastic.max_workers, &err) != TITAN_OK)
            fail_msg("%s: %s", e->d_name, err.msg);
        round_trip(&r);
        n++;
    }
    closedir(dir);
    assert_true(n >= 13);
}

/* The table itself: names unique, defaults of the right kind, every flavor resolves and every choice is a flavor. */
static void test_table(void **state)
{
    (void)state;
    int supported = 0;
    for (int i = 0; i < recipe_keys_count; i++) {
        const struct setting *k = &recipe_keys[i];
        assert_int_equal(recipe_key_find(k->section, k->name), i);
        assert_non_null(k->doc);
        if (k->support == KEY_SUPPORTED) {
            assert_int_equal(i, supported++); /* first, so that the bit of set_mask is the index */
            assert_true(k->size > 0 && k->offset + k->size <= sizeof(struct recipe));
            assert_true((k->flags & KEY_FLAVOR) || k->initial);
        }
        if (k->support == KEY_OFF)
            assert_non_null(k->initial);
    }
    assert_true(supported <= 256);
    for (int i = 0; i < recipe_aliases_count; i++)
        assert_int_equal(recipe_key_find(recipe_aliases[i].section, recipe_aliases[i].name), -1);
    for (int i = 0; i < recipe_flavors_count; i++) {
        const struct recipe_flavor *f = &recipe_flavors[i];
        struct recipe r = fresh();
        char assignment[64];
        snprintf(assignment, sizeof(assignment), "model.name=%s", f->family);
        assert_int_equal(recipe_set(&r, assignment, NULL), TITAN_OK);
        snprintf(assignment, sizeof(assignment), "model.flavor=%s", f->name);
        assert_int_equal(recipe_set(&r, assignment, NULL), TITAN_OK);
        assert_int_equal(recipe_resolve(&r, NULL), TITAN_OK);
        struct model_dims dims = f->dims;
        dims.head_dim = dims.head_dim ? dims.head_dim : dims.dim / dims.n_heads;
        if (strcmp(dims.rope_scaling, "auto") == 0) /* at the default length of sequences */
            memcpy(dims.rope_scaling, "none", sizeof("none"));
        assert_memory_equal(&r.model.dims, &dims, sizeof(dims));
    }
}

/* docs/recipes.md is what the table says now. */
static void test_reference(void **state)
{
    (void)state;
    _cleanup_(buf_free) struct buf now = BUF_INIT;
    recipe_print_reference(&now);
    assert_false(buf_failed(&now));
    for (int i = 0; i < recipe_keys_count; i++)
        if (!strstr(now.data, recipe_keys[i].name))
            fail_msg("%s is missing", recipe_keys[i].name);
    _cleanup_(buf_free) struct buf file = BUF_INIT;
    struct titan_error err = {0};
    if (file_read(TITAN_SOURCE_DIR "/docs/recipes.md", 1 << 20, &file, &err) != TITAN_OK)
        fail_msg("%s", err.msg);
    if (strcmp(now.data, file.data) != 0)
        fail_msg("docs/recipes.md is not current: run make docs");
}

static void test_checkpoint_folder(void **state)
{
    (void)state;
    static const struct {
        const char *dump, *folder, *is;
    } cases[] = {
        {"", "checkpoint", "/jobs/7/checkpoint"},
        {"/d/", "checkpoint", "/d/checkpoint"},
        {"/d", "/x//y/./z/", "/x/y/z"},
        {"", "/", "/"},
        {"", "/.", "/"},
        {"", "a/../.b/.", "/jobs/7/a/../.b"},
        {"./out", "ck", "/jobs/7/out/ck"},
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct recipe r;
        char out[PATH_MAX];
        recipe_init(&r);
        (void)snprintf(r.job.dump_folder, sizeof(r.job.dump_folder), "%s", cases[i].dump);
        (void)snprintf(r.checkpoint.folder, sizeof(r.checkpoint.folder), "%s", cases[i].folder);
        assert_int_equal(recipe_checkpoint_folder(&r, "/jobs/7", out, NULL), TITAN_OK);
        assert_string_equal(out, cases[i].is);
    }
}

/* May a run of these settings go on from checkpoints of those? */
static bool continues(const char *const here[], const char *const there[], char keys[256])
{
    _cleanup_(buf_free) struct buf text = BUF_INIT, differing = BUF_INIT;
    struct recipe a, b;
    recipe_init(&a);
    recipe_init(&b);
    for (int i = 0; here[i]; i++)
        assert_int_equal(recipe_set(&a, here[i], NULL), TITAN_OK);
    for (int i = 0; there[i]; i++)
        assert_int_equal(recipe_set(&b, there[i], NULL), TITAN_OK);
    assert_int_equal(recipe_resolve(&a, NULL), TITAN_OK);
    assert_int_equal(recipe_resolve(&b, NULL), TITAN_OK);
    recipe_print(&b, &text);
    const bool same = recipe_continues(&a, recipe_hash(&b), text.data, &differing);
    (void)snprintf(keys, 256, "%s", differing.len ? differing.data : "");
    return same;
}

static void test_continues(void **state)
{
    (void)state;
    static const struct {
        const char *here[6], *there[3], *keys; /* keys NULL: it goes on */
    } cases[] = {
        {{0}, {0}, NULL},
        {{"training.steps=700", "checkpoint.interval=3"}, {0}, NULL}, /* change no step's numbers */
        {{"optimizer.lr=0.25"}, {0}, "optimizer.lr = 0.25, there 0.0008"},
        {{"optimizer.lr=0.25", "checkpoint.accept_changed=optimizer"}, {0}, NULL},
        {{"optimizer.lr=0.25", "checkpoint.accept_changed=batch,data"}, {0}, "optimizer.lr = 0.25, there 0.0008"},
        {{"lr_scheduler.warmup_steps=3", "training.max_norm=2", "checkpoint.accept_changed=optimizer"}, {0}, NULL},
        {{"training.global_batch_size=16"},
         {"training.global_batch_size=32"},
         "training.global_batch_size = 16, there 32"},
        {{"training.global_batch_size=16", "checkpoint.accept_changed=batch"}, {"training.global_batch_size=32"}, NULL},
        {{"training.global_batch_size=16", "checkpoint.exclude_from_loading=optimizer"},
         {"training.global_batch_size=32"},
         NULL},
        {{"training.seq_len=64", "checkpoint.exclude_from_loading=optimizer"},
         {"training.seq_len=32"},
         "training.seq_len = 64, there 32"},
        {{"training.seq_len=64", "checkpoint.accept_changed=batch"}, {"training.seq_len=32"}, NULL},
        {{"training.dataset_path=/a", "model.tokenizer=/t"}, {"training.dataset_path=/b"}, NULL}, /* by contents */
        {{"training.mixture=[{path=\"/a\",weight=1.0},{path=\"/b\",weight=2.0}]"},
         {"training.mixture=[{path=\"/c\",weight=1.0},{path=\"/d\",weight=2.0}]"},
         NULL},
        {{"training.mixture=[{path=\"/a\",weight=1.0},{path=\"/b\",weight=2.0}]"},
         {"training.mixture=[{path=\"/a\",weight=1.0},{path=\"/b\",weight=3.0}]"},
         "training.mixture = "},
        {{"model.rope_theta=10000"}, {0}, "model.rope_theta = 1e+04, there 5e+05"},
        {{"model.rope_theta=10000", "checkpoint.accept_changed=model"}, {0}, NULL},
        {{"training.seed=1", "checkpoint.accept_changed=data,tokenizer,model,batch,optimizer"},
         {0},
         "training.seed = 1, there "}, /* nothing makes it the same run's */
        {{"training.seed=1", "optimizer.lr=0.25", "optimizer.beta1=0.5", "training.seq_len=64"}, {0}, "; and 1 more"},
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        char keys[256];
        const bool same = continues(cases[i].here, cases[i].there, keys);
        if (same != !cases[i].keys || !strstr(keys, cases[i].keys ? cases[i].keys : ""))
            fail_msg("case %zu: %s '%s'", i, same ? "goes on" : "refused", keys);
    }
    struct recipe r;
    recipe_init(&r);
    assert_false(recipe_continues(&r, 5, "", NULL)); /* a text that is not the hash's */
    assert_true(recipe_continues(&r, recipe_hash(&r), "", NULL));
}

/* All that differ, but for where a run begins and saves. */
static void test_changes(void **state)
{
    (void)state;
    struct recipe a, b;
    _cleanup_(buf_free) struct buf text = BUF_INIT;
    recipe_init(&a);
    recipe_init(&b);
    for (const char *const *k = (const char *const[]){"checkpoint.folder=/x", "checkpoint.initial_load_path=/y",
                                                      "checkpoint.initial_load_model_only=false",
                                                      "checkpoint.load_step=4", "job.dump_folder=z", NULL};
         *k; k++)
        assert_int_equal(recipe_set(&a, *k, NULL), TITAN_OK);
    recipe_changes(&a, &b, &text);
    assert_int_equal(text.len, 0);
    for (const char *const *k = (const char *const[]){"job.description=mine", "optimizer.lr=0.25", "training.steps=7",
                                                      "training.seed=1", "checkpoint.interval=3", NULL};
         *k; k++)
        assert_int_equal(recipe_set(&a, *k, NULL), TITAN_OK);
    recipe_changes(&a, &b, &text);
    assert_non_null(strstr(text.data, "job.description = \"mine\", there \"\"\n"));
    assert_non_null(strstr(text.data, "optimizer.lr = 0.25, there 0.0008\n"));
    assert_non_null(strstr(text.data, "training.steps = 7, there "));
    assert_non_null(strstr(text.data, "checkpoint.interval = 3, there 500\n"));
    int lines = 0;
    for (const char *c = text.data; (c = strchr(c, '\n')); c++)
        lines++;
    assert_int_equal(lines, 5);
}

static void test_initial_job(void **state)
{
    (void)state;
    const struct {
        const char *path;
        bool legal;
        uint64_t job;
    } cases[] = {{"", true, 0},
                 {"/a/job:1", true, 0},
                 {"job:1", true, 1},
                 {"job", true, 0},
                 {"job:9223372036854775807", true, INT64_MAX},
                 {"job:", false, 0},
                 {"job:9223372036854775808", false, 0},
                 {"job:0", false, 0},
                 {"job:99999999999999999999", false, 0},
                 {"job:01", false, 0},
                 {"job:1x", false, 0},
                 {"job: 1", false, 0},
                 {"job:-1", false, 0},
                 {"job:+1", false, 0},
                 {"job:1/step-00000010", false, 0}};
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct recipe r;
        struct recipe_path paths[RECIPE_PATHS_MAX];
        uint64_t job = 77;
        recipe_init(&r);
        (void)snprintf(r.checkpoint.initial_load_path, sizeof(r.checkpoint.initial_load_path), "%s", cases[i].path);
        assert_int_equal(recipe_initial_job(&r, &job, NULL), cases[i].legal ? TITAN_OK : TITAN_EINVAL);
        assert_true(job == cases[i].job);
        bool is_path = false; /* no name of a job is taken for one */
        for (int n = recipe_paths(&r, paths); n > 0; n--)
            is_path |= paths[n - 1].path == r.checkpoint.initial_load_path;
        assert_int_equal(is_path, cases[i].path[0] && strncmp(cases[i].path, "job:", 4) != 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_checkpoint_folder),
        cmocka_unit_test(test_continues),
        cmocka_unit_test(test_changes),
        cmocka_unit_test(test_initial_job),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_resources),
        cmocka_unit_test(test_too_long),
        cmocka_unit_test(test_path_arrays),
        cmocka_unit_test(test_set),
        cmocka_unit_test(test_warnings),
        cmocka_unit_test(test_resolve),
        cmocka_unit_test(test_data),
        cmocka_unit_test(test_paths),
        cmocka_unit_test(test_hash),
        cmocka_unit_test(test_print),
        cmocka_unit_test(test_shipped),
        cmocka_unit_test(test_table),
        cmocka_unit_test(test_reference),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
