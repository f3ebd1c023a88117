#include "base/recipe_keys.h"

#include <string.h>

#include "base/cleanup.h"

#define AT(field) .offset = offsetof(struct recipe, field), .size = sizeof(((struct recipe *)0)->field)
#define DIM(key, field, most, text)                                                                                    \
    {                                                                                                                  \
        .section = "model", .name = key, .type = KEY_INT, AT(model.dims.field),                                        \
        .flags = KEY_TITAN | KEY_NUMBERS | KEY_FLAVOR, .min = 1, .max = (most), .doc = (text)                          \
    }
#define ONE(key, field, text)                                                                                          \
    {                                                                                                                  \
        .section = "parallelism", .name = key, .type = KEY_INT, AT(parallelism.field), .min = 1, .max = 1 << 20,       \
        .later = "*", .initial = "1", .doc = (text)                                                                    \
    }
#define OFF(sec, key, kind, off, text)                                                                                 \
    {                                                                                                                  \
        .section = (sec), .name = (key), .type = (kind), .support = KEY_OFF, .initial = (off), .doc = (text)           \
    }
#define IDLE(sec, key, kind, text)                                                                                     \
    {                                                                                                                  \
        .section = (sec), .name = (key), .type = (kind), .support = KEY_IDLE, .doc = (text)                            \
    }

/* clang-format off */
const struct recipe_key recipe_keys[] = {
    {.section = "job", .name = "description", .type = KEY_STRING, AT(job.description), .initial = "\"\"",
     .doc = "What the run is, for lists and messages."},
    {.section = "job", .name = "dump_folder", .type = KEY_STRING, AT(job.dump_folder), .initial = "\"\"",
     .doc = "Folder for what the run writes. Empty: the job's own folder."},

    {.section = "model", .name = "name", .type = KEY_STRING, AT(model.name), .choices = "llama3", .later = "*",
     .initial = "\"llama3\"", .flags = KEY_NUMBERS, .doc = "Architecture."},
    {.section = "model", .name = "flavor", .type = KEY_STRING, AT(model.flavor),
     .choices = "debugmodel|demo|tiny|1B|3B|8B|70B|405B", .initial = "\"debugmodel\"", .flags = KEY_NOCASE,
     .doc = "Named set of dimensions; the keys below override single ones."},
    {.section = "model", .name = "tokenizer", .type = KEY_STRING, AT(model.tokenizer), .choices = "bytes",
     .later = "*", .initial = "\"bytes\"", .flags = KEY_TITAN | KEY_NUMBERS,
     .doc = "How text becomes tokens. \"bytes\": a token is a byte; needs vocab_size >= 256."},
    DIM("dim", dim, 1 << 20, "Width of the residual stream."),
    DIM("n_layers", n_layers, 4096, "Transformer blocks."),
    DIM("n_heads", n_heads, 4096, "Query heads; must divide dim, with an even quotient."),
    DIM("n_kv_heads", n_kv_heads, 4096, "Key and value heads; must divide n_heads."),
    DIM("ffn_hidden", ffn_hidden, 1 << 22, "Width of the feed-forward layer."),
    DIM("vocab_size", vocab_size, 1 << 24, "Rows of the embedding and of the output head."),
    {.section = "model", .name = "rope_theta", .type = KEY_REAL, AT(model.dims.rope_theta), .min = 1, .max = 1e12,
     .flags = KEY_TITAN | KEY_NUMBERS | KEY_FLAVOR, .doc = "Base of the rotary frequencies."},
    {.section = "model", .name = "norm_eps", .type = KEY_REAL, AT(model.dims.norm_eps), .min = 0, .above_min = true,
     .max = 1, .flags = KEY_TITAN | KEY_NUMBERS | KEY_FLAVOR, .doc = "Epsilon of RMSNorm."},
    {.section = "model", .name = "rope_scaling", .type = KEY_BOOL, AT(model.dims.rope_scaling),
     .flags = KEY_TITAN | KEY_NUMBERS | KEY_FLAVOR,
     .doc = "Llama 3.1 frequency scaling: factor 8, low 1, high 4, original length 8192."},

    {.section = "optimizer", .name = "name", .type = KEY_STRING, AT(optimizer.name), .choices = "AdamW", .later = "*",
     .initial = "\"AdamW\"", .flags = KEY_NUMBERS, .doc = "Optimizer."},
    {.section = "optimizer", .name = "lr", .type = KEY_REAL, AT(optimizer.lr), .min = 0, .max = 1e3,
     .initial = "8e-4", .flags = KEY_NUMBERS, .doc = "Peak learning rate."},
    {.section = "optimizer", .name = "beta1", .type = KEY_REAL, AT(optimizer.beta1), .min = 0, .max = 0.999999,
     .initial = "0.9", .flags = KEY_NUMBERS, .doc = "Decay of the first moment."},
    {.section = "optimizer", .name = "beta2", .type = KEY_REAL, AT(optimizer.beta2), .min = 0, .max = 0.999999,
     .initial = "0.95", .flags = KEY_NUMBERS, .doc = "Decay of the second moment."},
    {.section = "optimizer", .name = "eps", .type = KEY_REAL, AT(optimizer.eps), .min = 0, .above_min = true, .max = 1,
     .initial = "1e-8", .flags = KEY_NUMBERS, .doc = "Added to the root of the second moment."},
    {.section = "optimizer", .name = "weight_decay", .type = KEY_REAL, AT(optimizer.weight_decay), .min = 0, .max = 10,
     .initial = "0.1", .flags = KEY_NUMBERS, .doc = "Decoupled weight decay, on every parameter."},

    {.section = "lr_scheduler", .name = "warmup_steps", .type = KEY_INT, AT(lr_scheduler.warmup_steps), .min = 0,
     .max = 1e9, .initial = "200", .flags = KEY_NUMBERS,
     .doc = "Steps of linear warm-up; cut to training.steps when larger."},
    {.section = "lr_scheduler", .name = "decay_ratio", .type = KEY_REAL, AT(lr_scheduler.decay_ratio), .min = 0,
     .max = 1, .minus_one = true, .initial = "-1.0", .flags = KEY_NUMBERS,
     .doc = "Share of the steps spent on decay at the end. -1: decay begins where warm-up ends."},
    {.section = "lr_scheduler", .name = "decay_type", .type = KEY_STRING, AT(lr_scheduler.decay_type),
     .choices = "linear|sqrt|cosine", .initial = "\"linear\"", .flags = KEY_NUMBERS, .doc = "Shape of the decay."},
    {.section = "lr_scheduler", .name = "min_lr_factor", .type = KEY_REAL, AT(lr_scheduler.min_lr_factor), .min = 0,
     .max = 1, .initial = "0.0", .flags = KEY_NUMBERS,
     .doc = "Floor of the schedule as a share of optimizer.lr. Also read as lr_min."},

    {.section = "training", .name = "local_batch_size", .type = KEY_INT, AT(training.local_batch_size), .min = 1,
     .max = 1 << 20, .initial = "8", .flags = KEY_NUMBERS, .doc = "Sequences in one microbatch of one worker."},
    {.section = "training", .name = "global_batch_size", .type = KEY_INT, AT(training.global_batch_size), .min = 1,
     .max = 1 << 28, .minus_one = true, .initial = "-1", .flags = KEY_NUMBERS,
     .doc = "Sequences in one step, whatever the number of workers: a multiple of local_batch_size. -1: "
            "local_batch_size * elastic.max_workers."},
    {.section = "training", .name = "seq_len", .type = KEY_INT, AT(training.seq_len), .min = 1, .max = 1 << 24,
     .initial = "2048", .flags = KEY_NUMBERS, .doc = "Tokens in a sequence."},
    {.section = "training", .name = "steps", .type = KEY_INT, AT(training.steps), .min = 1, .max = 1e9,
     .initial = "10000", .doc = "Steps to run."},
    {.section = "training", .name = "max_norm", .type = KEY_REAL, AT(training.max_norm), .min = 0, .max = 1e9,
     .initial = "1.0", .flags = KEY_NUMBERS, .doc = "Gradients are scaled down to this global L2 norm. 0: never."},
    {.section = "training", .name = "dataset", .type = KEY_STRING, AT(training.dataset), .choices = "text",
     .later = "*", .initial = "\"text\"", .flags = KEY_NUMBERS,
     .doc = "Kind of data. \"text\": the bytes of the files at dataset_path."},
    {.section = "training", .name = "dataset_path", .type = KEY_STRING, AT(training.dataset_path), .initial = "\"\"",
     .flags = KEY_NUMBERS, .doc = "A file, or a folder whose files are read in path order. Must be given."},
    {.section = "training", .name = "mixed_precision_param", .type = KEY_STRING, AT(training.mixed_precision_param),
     .choices = "auto|bfloat16|float32", .initial = "\"auto\"", .flags = KEY_NUMBERS,
     .doc = "Type of gathered parameters and activations. \"auto\": bfloat16 where the device is fast at it, "
            "otherwise float32. Master weights are float32 always."},
    {.section = "training", .name = "mixed_precision_reduce", .type = KEY_STRING, AT(training.mixed_precision_reduce),
     .choices = "float32", .later = "*", .initial = "\"float32\"", .flags = KEY_NUMBERS,
     .doc = "Type gradients are summed in."},
    {.section = "training", .name = "seed", .type = KEY_INT, AT(training.seed), .min = 0, .initial = "42",
     .flags = KEY_NUMBERS, .doc = "Initial weights and order of samples follow from it. Also read as debug.seed."},

    {.section = "parallelism", .name = "data_parallel_shard_degree", .type = KEY_INT,
     AT(parallelism.data_parallel_shard_degree), .min = 1, .max = 1 << 20, .minus_one = true, .initial = "-1",
     .doc = "Workers the model state is sharded over. -1: all of them; a number fixes the number of workers."},
    ONE("data_parallel_replicate_degree", data_parallel_replicate_degree, "Replicas of the sharded state."),
    {.section = "parallelism", .name = "fsdp_reshard_after_forward", .type = KEY_STRING,
     AT(parallelism.fsdp_reshard_after_forward), .choices = "default|always|never", .initial = "\"default\"",
     .doc = "When gathered parameters are let go: after each use (\"default\" keeps the head from its forward to its "
            "backward), or \"never\" within a step, for more memory and less communication."},
    ONE("tensor_parallel_degree", tensor_parallel_degree, "Workers one layer's matrices are split over."),
    ONE("pipeline_parallel_degree", pipeline_parallel_degree, "Stages the layers are split into."),
    ONE("context_parallel_degree", context_parallel_degree, "Workers one sequence is split over."),
    ONE("expert_parallel_degree", expert_parallel_degree, "Workers the experts are split over."),

    {.section = "checkpoint", .name = "enable", .type = KEY_BOOL, AT(checkpoint.enable), .initial = "false",
     .doc = "Write checkpoints. Also read as enable_checkpoint."},
    {.section = "checkpoint", .name = "folder", .type = KEY_STRING, AT(checkpoint.folder), .initial = "\"checkpoint\"",
     .doc = "Where; relative to job.dump_folder."},
    {.section = "checkpoint", .name = "interval", .type = KEY_INT, AT(checkpoint.interval), .min = 1, .max = 1e9,
     .initial = "500", .doc = "Steps between two checkpoints; the last step is always written."},
    {.section = "checkpoint", .name = "keep_latest_k", .type = KEY_INT, AT(checkpoint.keep_latest_k), .min = 0,
     .max = 1e6, .initial = "10", .doc = "How many are kept. 0: all."},
    {.section = "checkpoint", .name = "async_mode", .type = KEY_STRING, AT(checkpoint.async_mode),
     .choices = "disabled|async|async_with_pinned_mem", .initial = "\"async\"",
     .doc = "\"disabled\": training waits until it is on disk. Otherwise it waits for the copy in memory only; the "
            "two names do the same."},

    {.section = "activation_checkpoint", .name = "mode", .type = KEY_STRING, AT(activation_checkpoint.mode),
     .choices = "none|full", .later = "selective|memory_budget", .initial = "\"none\"",
     .doc = "Which activations are recomputed in the backward pass. \"full\": all of a layer but its input."},

    {.section = "metrics", .name = "log_freq", .type = KEY_INT, AT(metrics.log_freq), .min = 1, .max = 1e9,
     .initial = "10", .doc = "Steps between two progress lines."},

    {.section = "elastic", .name = "min_workers", .type = KEY_INT, AT(elastic.min_workers), .min = 1, .max = 1 << 20,
     .initial = "1", .flags = KEY_TITAN, .doc = "The run starts and goes on with no fewer workers."},
    {.section = "elastic", .name = "max_workers", .type = KEY_INT, AT(elastic.max_workers), .min = 1, .max = 1 << 20,
     .initial = "1", .flags = KEY_TITAN, .doc = "It takes up to this many where slots are free."},

    {.section = "fault_tolerance", .name = "max_restarts", .type = KEY_INT, AT(fault_tolerance.max_restarts), .min = 0,
     .max = 1e6, .initial = "10", .flags = KEY_TITAN,
     .doc = "Lost workers the run gets over in all; with one more it fails."},
    {.section = "fault_tolerance", .name = "backoff_ms", .type = KEY_INT, AT(fault_tolerance.backoff_ms), .min = 0,
     .max = 86400000, .initial = "200", .flags = KEY_TITAN,
     .doc = "Pause before a lost worker's place is taken again; doubles with each loss until the run makes progress."},
    {.section = "fault_tolerance", .name = "backoff_max_ms", .type = KEY_INT, AT(fault_tolerance.backoff_max_ms),
     .min = 0, .max = 86400000, .initial = "30000", .flags = KEY_TITAN, .doc = "The longest such pause."},
    {.section = "fault_tolerance", .name = "max_skipped_steps", .type = KEY_INT,
     AT(fault_tolerance.max_skipped_steps), .min = 0, .max = 1e6, .initial = "10", .flags = KEY_TITAN,
     .doc = "Steps in a row with a non-finite loss or gradient that are skipped before the run fails."},
    {.section = "fault_tolerance", .name = "redundancy", .type = KEY_STRING, AT(fault_tolerance.redundancy),
     .choices = "checkpoint", .later = "replica|buddy", .initial = "\"checkpoint\"", .flags = KEY_TITAN,
     .doc = "Where a lost worker's state comes from."},

    {.section = "numerics", .name = "canonical", .type = KEY_BOOL, AT(numerics.canonical), .initial = "false",
     .flags = KEY_TITAN | KEY_NUMBERS,
     .doc = "Sum gradients over microbatches in one fixed tree: losses are bit-identical for any number of workers."},

    {.section = "device", .name = "name", .type = KEY_STRING, AT(device.name), .choices = "auto|cpu|cuda",
     .initial = "\"auto\"", .flags = KEY_TITAN, .doc = "Device plug-in. \"auto\": cuda where it works, otherwise cpu."},
    {.section = "device", .name = "threads", .type = KEY_INT, AT(device.threads), .min = 0, .max = 4096,
     .initial = "0", .flags = KEY_TITAN, .doc = "Compute threads of a worker on the CPU. 0: its share of the machine."},

    /* --- known from TorchTitan, not there ------------------------------------------------------------------------- */
    OFF("job", "print_args", KEY_BOOL, "false", "Print the configuration."),
    OFF("job", "print_config", KEY_BOOL, "false", "Print the configuration."),
    OFF("job", "save_config_file", KEY_STRING, "\"\"", "Copy of the configuration."),
    OFF("job", "config_file", KEY_STRING, "\"\"", "Another configuration file."),
    OFF("job", "custom_config_module", KEY_STRING, "\"\"", "Python module with more keys."),
    IDLE("job", "use_for_integration_test", KEY_BOOL, "Mark for TorchTitan's own tests."),

    OFF("profiling", "enable_profiling", KEY_BOOL, "false", "Profiler traces."),
    IDLE("profiling", "save_traces_folder", KEY_STRING, "of profiling.enable_profiling"),
    IDLE("profiling", "profile_freq", KEY_INT, "of profiling.enable_profiling"),
    IDLE("profiling", "profiler_active", KEY_INT, "of profiling.enable_profiling"),
    IDLE("profiling", "profiler_warmup", KEY_INT, "of profiling.enable_profiling"),
    OFF("profiling", "enable_memory_snapshot", KEY_BOOL, "false", "Allocator snapshots."),
    IDLE("profiling", "save_memory_snapshot_folder", KEY_STRING, "of profiling.enable_memory_snapshot"),

    IDLE("metrics", "disable_color_printing", KEY_BOOL, "Output to a file has no colours anyway"),
    OFF("metrics", "enable_tensorboard", KEY_BOOL, "false", "TensorBoard event files."),
    IDLE("metrics", "save_tb_folder", KEY_STRING, "of metrics.enable_tensorboard"),
    OFF("metrics", "save_for_all_ranks", KEY_BOOL, "false", "Metrics of every rank."),
    OFF("metrics", "enable_wandb", KEY_BOOL, "false", "Weights & Biases."),

    OFF("model", "hf_assets_path", KEY_STRING, "\"\"", "Tokenizer files; use model.tokenizer."),
    OFF("model", "tokenizer_path", KEY_STRING, "\"\"", "Tokenizer file; use model.tokenizer."),
    OFF("model", "converters", KEY_LIST, "[]", "Model converters (float8, mx)."),
    IDLE("model", "print_after_conversion", KEY_BOOL, "of model.converters"),

    IDLE("optimizer", "implementation", KEY_STRING, "There is one implementation"),
    OFF("optimizer", "early_step_in_backward", KEY_BOOL, "false", "Optimizer step inside the backward pass."),

    OFF("training", "enable_cpu_offload", KEY_BOOL, "false", "Parameters and optimizer state in host memory."),
    OFF("training", "dtype", KEY_STRING, "\"float32\"", "Type of the master weights."),
    OFF("training", "compile", KEY_BOOL, "false", "torch.compile."),
    IDLE("training", "gc_freq", KEY_INT, "Python's garbage collection"),
    IDLE("training", "gc_debug", KEY_BOOL, "Python's garbage collection"),
    OFF("training", "deterministic", KEY_BOOL, "false", "Deterministic kernels; see numerics.canonical."),

    OFF("debug", "deterministic", KEY_BOOL, "false", "Deterministic kernels; see numerics.canonical."),
    IDLE("debug", "deterministic_warn_only", KEY_BOOL, "of debug.deterministic"),
    OFF("debug", "moe_force_load_balance", KEY_BOOL, "false", "Round-robin routing of experts."),
    OFF("debug", "print_config", KEY_BOOL, "false", "Print the configuration."),
    OFF("debug", "save_config_file", KEY_STRING, "\"\"", "Copy of the configuration."),

    OFF("parallelism", "enable_compiled_autograd", KEY_BOOL, "false", "Compiled backward pass."),
    IDLE("parallelism", "disable_loss_parallel", KEY_BOOL, "of parallelism.tensor_parallel_degree"),
    OFF("parallelism", "enable_async_tensor_parallel", KEY_BOOL, "false",
        "Collectives of tensor parallelism in pieces beside the products."),
    IDLE("parallelism", "enable_sequence_parallel", KEY_BOOL, "of parallelism.tensor_parallel_degree"),
    OFF("parallelism", "enable_fsdp_symm_mem", KEY_BOOL, "false", "Symmetric-memory collectives."),
    IDLE("parallelism", "pipeline_parallel_schedule", KEY_STRING, "of parallelism.pipeline_parallel_degree"),
    OFF("parallelism", "pipeline_parallel_schedule_csv", KEY_STRING, "\"\"", "Pipeline schedule from a file."),
    IDLE("parallelism", "pipeline_parallel_microbatch_size", KEY_INT, "of parallelism.pipeline_parallel_degree"),
    IDLE("parallelism", "pipeline_parallel_layers_per_stage", KEY_INT, "of parallelism.pipeline_parallel_degree"),
    IDLE("parallelism", "pipeline_parallel_first_stage_less_layers", KEY_INT,
         "of parallelism.pipeline_parallel_degree"),
    IDLE("parallelism", "pipeline_parallel_last_stage_less_layers", KEY_INT,
         "of parallelism.pipeline_parallel_degree"),
    IDLE("parallelism", "pipeline_parallel_expert_parallel_overlap", KEY_BOOL,
         "of parallelism.pipeline_parallel_degree"),
    OFF("parallelism", "pipeline_parallel_split_points", KEY_LIST, "[]", "Explicit pipeline stages."),
    OFF("parallelism", "module_fqns_per_model_part", KEY_LIST, "[]", "Explicit pipeline stages."),
    IDLE("parallelism", "context_parallel_rotate_method", KEY_STRING, "of parallelism.context_parallel_degree"),
    IDLE("parallelism", "context_parallel_load_balancer", KEY_STRING, "of parallelism.context_parallel_degree"),
    OFF("parallelism", "expert_tensor_parallel_degree", KEY_INT, "1", "Tensor parallelism inside experts."),
    IDLE("parallelism", "expert_parallel_comm_backend", KEY_STRING, "of parallelism.expert_parallel_degree"),

    OFF("checkpoint", "initial_load_path", KEY_STRING, "\"\"", "Start from another run's checkpoint."),
    IDLE("checkpoint", "initial_load_model_only", KEY_BOOL, "of checkpoint.initial_load_path"),
    IDLE("checkpoint", "initial_load_in_hf", KEY_BOOL, "of checkpoint.initial_load_path"),
    IDLE("checkpoint", "initial_load_in_hf_quantized", KEY_BOOL, "of checkpoint.initial_load_path"),
    OFF("checkpoint", "last_save_model_only", KEY_BOOL, "false", "Last checkpoint without optimizer state."),
    OFF("checkpoint", "last_save_in_hf", KEY_BOOL, "false", "Last checkpoint as Hugging Face files; see convert."),
    IDLE("checkpoint", "export_dtype", KEY_STRING, "of checkpoint.last_save_model_only"),
    OFF("checkpoint", "create_seed_checkpoint", KEY_BOOL, "false", "Initial weights as a checkpoint."),
    OFF("checkpoint", "load_step", KEY_INT, "-1", "Load another checkpoint than the newest."),
    OFF("checkpoint", "load_only", KEY_BOOL, "false", "Load but never write."),
    OFF("checkpoint", "exclude_from_loading", KEY_LIST, "[]", "Parts of the state to leave out."),
    OFF("checkpoint", "enable_first_step_checkpoint", KEY_BOOL, "false", "Checkpoint after the first step."),
    IDLE("checkpoint", "enable_ft_dataloader_checkpoints", KEY_BOOL, "There is no loader state"),

    IDLE("activation_checkpoint", "selective_ac_option", KEY_STRING, "of activation_checkpoint.mode"),
    IDLE("activation_checkpoint", "per_op_sac_force_recompute_mm_shapes_by_fqns", KEY_LIST,
         "of activation_checkpoint.mode"),
    IDLE("activation_checkpoint", "early_stop", KEY_BOOL, "of activation_checkpoint.mode"),
    IDLE("activation_checkpoint", "memory_budget", KEY_REAL, "of activation_checkpoint.mode"),
    IDLE("activation_checkpoint", "visualize_memory_budget_pareto", KEY_BOOL, "of activation_checkpoint.mode"),
    IDLE("activation_checkpoint", "preserve_rng_state", KEY_BOOL, "of activation_checkpoint.mode"),
    IDLE("activation_checkpoint", "determinism_check", KEY_STRING, "of activation_checkpoint.mode"),
    IDLE("activation_checkpoint", "debug", KEY_BOOL, "of activation_checkpoint.mode"),

    OFF("compile", "enable", KEY_BOOL, "false", "torch.compile."),
    IDLE("compile", "components", KEY_LIST, "of compile.enable"),
    IDLE("compile", "backend", KEY_STRING, "of compile.enable"),

    OFF("float8", "enable_fsdp_float8_all_gather", KEY_BOOL, "false", "Gather parameters in float8."),
    IDLE("float8", "precompute_float8_dynamic_scale_for_fsdp", KEY_BOOL, "of model.converters"),
    IDLE("float8", "force_recompute_fp8_weight_in_bwd", KEY_BOOL, "of model.converters"),
    IDLE("float8", "recipe_name", KEY_STRING, "of model.converters"),
    IDLE("float8", "filter_fqns", KEY_LIST, "of model.converters"),
    IDLE("float8", "emulate", KEY_BOOL, "of model.converters"),
    IDLE("float8", "moe_fqns_prototype", KEY_LIST, "of model.converters"),
    IDLE("mx", "mxfp8_dim1_cast_kernel_choice", KEY_STRING, "of model.converters"),
    IDLE("mx", "recipe_name", KEY_STRING, "of model.converters"),
    IDLE("mx", "filter_fqns", KEY_LIST, "of model.converters"),
    IDLE("mx", "moe_fqns_prototype", KEY_LIST, "of model.converters"),
    OFF("quantize.linear.float8", "enable_fsdp_float8_all_gather", KEY_BOOL, "false", "Gather parameters in float8."),
    IDLE("quantize.linear.float8", "precompute_float8_dynamic_scale_for_fsdp", KEY_BOOL, "of model.converters"),
    IDLE("quantize.linear.float8", "recipe_name", KEY_STRING, "of model.converters"),
    IDLE("quantize.linear.float8", "filter_fqns", KEY_LIST, "of model.converters"),
    IDLE("quantize.linear.float8", "emulate", KEY_BOOL, "of model.converters"),
    IDLE("quantize.linear.mx", "mxfp8_dim1_cast_kernel_choice", KEY_STRING, "of model.converters"),
    IDLE("quantize.linear.mx", "recipe_name", KEY_STRING, "of model.converters"),
    IDLE("quantize.linear.mx", "filter_fqns", KEY_LIST, "of model.converters"),
    IDLE("quantize.grouped_mm.float8", "fqns", KEY_LIST, "of model.converters"),
    IDLE("quantize.grouped_mm.mx", "recipe_name", KEY_STRING, "of model.converters"),
    IDLE("quantize.grouped_mm.mx", "fqns", KEY_LIST, "of model.converters"),

    IDLE("comm", "init_timeout_seconds", KEY_INT, "A lost peer is noticed without a timeout"),
    IDLE("comm", "train_timeout_seconds", KEY_INT, "A lost peer is noticed without a timeout"),
    IDLE("comm", "trace_buf_size", KEY_INT, "NCCL's flight recorder"),
    IDLE("comm", "save_traces_folder", KEY_STRING, "NCCL's flight recorder"),
    IDLE("comm", "save_traces_file_prefix", KEY_STRING, "NCCL's flight recorder"),
    OFF("comm", "mode", KEY_STRING, "\"default\"", "Simulated communication."),

    OFF("memory_estimation", "enable", KEY_BOOL, "false", "Estimate memory instead of training."),
    OFF("memory_estimation", "enabled", KEY_BOOL, "false", "Estimate memory instead of training."),
    IDLE("memory_estimation", "disable_fake_mode", KEY_BOOL, "of memory_estimation.enable"),

    OFF("fault_tolerance", "enable", KEY_BOOL, "false", "torchft; every run survives failures without it."),
    IDLE("fault_tolerance", "process_group", KEY_STRING, "of fault_tolerance.enable"),
    IDLE("fault_tolerance", "process_group_timeout_ms", KEY_INT, "of fault_tolerance.enable"),
    IDLE("fault_tolerance", "replica_id", KEY_INT, "of fault_tolerance.enable"),
    IDLE("fault_tolerance", "group_size", KEY_INT, "of fault_tolerance.enable"),
    IDLE("fault_tolerance", "min_replica_size", KEY_INT, "of fault_tolerance.enable"),
    OFF("fault_tolerance", "semi_sync_method", KEY_STRING, "\"\"", "Local SGD and DiLoCo."),
    IDLE("fault_tolerance", "sync_steps", KEY_INT, "of fault_tolerance.semi_sync_method"),
    IDLE("fault_tolerance", "should_quantize", KEY_BOOL, "of fault_tolerance.semi_sync_method"),
    IDLE("fault_tolerance", "fragment_sync_delay", KEY_INT, "of fault_tolerance.semi_sync_method"),
    IDLE("fault_tolerance", "fragment_update_alpha", KEY_REAL, "of fault_tolerance.semi_sync_method"),
    IDLE("fault_tolerance", "num_fragments", KEY_INT, "of fault_tolerance.semi_sync_method"),
    IDLE("fault_tolerance", "module_fqns_per_model_fragment", KEY_LIST, "of fault_tolerance.semi_sync_method"),

    OFF("liger_kernel", "enable_fused_linear_cross_entropy", KEY_BOOL, "false", "Liger kernels."),

    OFF("experimental", "custom_import", KEY_STRING, "\"\"", "Python module to import."),
    OFF("experimental", "custom_args_module", KEY_STRING, "\"\"", "Python module with more keys."),

    OFF("validation", "enable", KEY_BOOL, "false", "Validation loss during training."),
    OFF("validation", "enabled", KEY_BOOL, "false", "Validation loss during training."),
    IDLE("validation", "dataset", KEY_STRING, "of validation.enable"),
    IDLE("validation", "dataset_path", KEY_STRING, "of validation.enable"),
    IDLE("validation", "local_batch_size", KEY_INT, "of validation.enable"),
    IDLE("validation", "seq_len", KEY_INT, "of validation.enable"),
    IDLE("validation", "freq", KEY_INT, "of validation.enable"),
    IDLE("validation", "steps", KEY_INT, "of validation.enable"),
};
/* clang-format on */

const int recipe_keys_count = (int)ARRAY_SIZE(recipe_keys);

const struct recipe_alias recipe_aliases[] = {
    {"lr_scheduler", "lr_min", "lr_scheduler.min_lr_factor"},
    {"checkpoint", "enable_checkpoint", "checkpoint.enable"},
    {"debug", "seed", "training.seed"},
};
const int recipe_aliases_count = (int)ARRAY_SIZE(recipe_aliases);

/* Llama 3 sizes as TorchTitan ships them, but with an output head of their own at every size (1B and 3B share it with
 * the embedding there). */
#define LLAMA(d, l, h, k, f)                                                                                           \
    {                                                                                                                  \
        (d), (l), (h), (k), (f), 128256, 500000.0, 1e-5, true                                                          \
    }
const struct recipe_flavor recipe_flavors[] = {
    {"debugmodel", {256, 6, 16, 16, 768, 2048, 500000.0, 1e-5, true}, "TorchTitan's debug model"},
    {"demo", {256, 8, 8, 4, 768, 256, 500000.0, 1e-5, false}, "learns text on two cores in minutes"},
    {"tiny", {64, 2, 4, 2, 128, 256, 500000.0, 1e-5, false}, "for tests"},
    {"1B", LLAMA(2048, 16, 32, 8, 8192), "Llama 3.2 1B with an output head of its own"},
    {"3B", LLAMA(3072, 28, 24, 8, 8192), "Llama 3.2 3B with an output head of its own"},
    {"8B", LLAMA(4096, 32, 32, 8, 14336), "Llama 3.1 8B"},
    {"70B", LLAMA(8192, 80, 64, 8, 28672), "Llama 3.1 70B"},
    {"405B", LLAMA(16384, 126, 128, 8, 53248), "Llama 3.1 405B"},
};
const int recipe_flavors_count = (int)ARRAY_SIZE(recipe_flavors);

int recipe_key_find(const char *section, const char *name)
{
    for (int i = 0; i < recipe_keys_count; i++)
        if (strcmp(recipe_keys[i].name, name) == 0 && strcmp(recipe_keys[i].section, section) == 0)
            return i;
    return -1;
}

bool recipe_key_given(const struct recipe *r, const char *section, const char *name)
{
    int i = recipe_key_find(section, name);
    return i >= 0 && i < 256 && (r->set_mask[i / 64] >> (i % 64) & 1);
}
