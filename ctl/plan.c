/* SPDX-License-Identifier: Apache-2.0 */
/* plan.c - titanctl plan: the cost of a run before it starts. */
#include "ctl/worker_tool.h"

static titan_status run(void *with, const struct args *args, struct titan_error *err)
{
    return worker_do(with, args, args->words, args->n, "--json", err);
}

const struct command command_plan = {
    .name = "plan",
    .summary = "memory, traffic, step time and MFU of a run file, without running it",
    .arguments = "FILE",
    .text = "Builds and checks the step programs of all ranks and runs them on a virtual clock with a model of the\n"
            "device: memory by kind, bytes by mesh axis, step time, MFU, bubble, the slowest thing. Nothing is started "
            "and\n"
            "no GPU is needed. -o json has all of it, in bytes and seconds; with --search, the layouts that were "
            "simulated.",
    .min_args = 1,
    .max_args = 1,
    .word = WORD_FILE,
    .options =
        (const struct option_spec[]){
            {"world", 'n', "N", "number of devices; otherwise elastic.max_workers, or what the mesh takes", WORD_NONE},
            {"device", 'd', "NAME", "h100, h200, b200 or cpu (default: cpu where device.name is, else h100)",
             WORD_NONE},
            {"memory", 'm', "GIB", "memory of a device in GiB, in place of device.memory and the model's own",
             WORD_NONE},
            {"network", 0, "GBITS", "Gbit/s that a device has to other nodes, in place of the machine's own",
             WORD_NONE},
            {"delay", 0, "MS", "milliseconds that a message between nodes takes", WORD_NONE},
            {"node", 0, "N", "devices in a node, in place of the machine's own", WORD_NONE},
            {"costs", 0, "TABLE", "of `titan-worker measure`, or none (default: the one it left, if there is one)",
             WORD_FILE},
            {"timeline", 't', "PATH", "write the step as trace events for ui.perfetto.dev; NAME.gz packs them",
             WORD_FILE},
            {"trace", 0, "PATH", "a rank's trace of a run (profiling.*), to be in the timeline beside the plan",
             WORD_FILE},
            {"picture", 'p', "PATH", "draw the step as an SVG picture", WORD_FILE},
            {"search", 0, NULL, "list the fastest layouts that fit in place of the file's own", WORD_NONE},
            {"print", 0, NULL, "the programs themselves, one line an action", WORD_NONE},
            {"operations", 0, NULL, "each distinct operation: seconds, floor, share, how often", WORD_NONE},
            {"set", 0, "KEY=VALUE", "override a key of the file; may be given again", WORD_NONE},
            {NULL}},
    .examples =
        (const struct example[]){
            {"titanctl plan recipes/llama3_405b.toml --world 512", "before 512 GPUs are taken"},
            {"titanctl plan recipes/llama3_8b.toml --world 8 --timeline step.json", "and a picture of the step"},
            {"titanctl plan recipes/llama3_70b.toml --world 256 --search", "which layout would be faster?"},
            {"titanctl plan run.toml --world 2 --node 1 --network 1 --delay 25", "two machines in two rooms"},
            {"titanctl -o json plan run.toml --world 64 --memory 40 | jq .fits", "in a script"},
            {NULL}},
    .run = run,
};
