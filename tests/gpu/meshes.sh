# SPDX-License-Identifier: Apache-2.0
# Sourced: the models, meshes and other keys that training on a device is compared on.

# What a mesh is worth: its name, a model of model_keys, ranks, keys of [parallelism].
meshes='
fsdp-2        dense    2
ddp-2         dense    2  data_parallel_replicate_degree=2
tp-2          dense    2  tensor_parallel_degree=2
pp-2-1f1b     dense    2  pipeline_parallel_degree=2 pipeline_parallel_schedule=1F1B
pp-2-zbv      dense    2  pipeline_parallel_degree=2 pipeline_parallel_schedule=ZBVZeroBubble
cp-2-gather   dense    2  context_parallel_degree=2
cp-2-ring     dense    2  context_parallel_degree=2 context_parallel_rotate_method=ring
cp-2-masked   masked   2  context_parallel_degree=2 context_parallel_rotate_method=ring
ep-2          experts  2  expert_parallel_degree=2
ep-2-latent   latent   2  expert_parallel_degree=2
tp-2-fsdp-2   dense    4  tensor_parallel_degree=2
pp-2-tp-2     dense    4  pipeline_parallel_degree=2 tensor_parallel_degree=2
pp-2-cp-2     masked   4  pipeline_parallel_degree=2 context_parallel_degree=2
'

# Keys that leave a run's losses as they are, or nearly: name, model, ranks, type, the run with the losses, how far off they
# may be (relative), keys, those in capitals of the environment. Ten steps. A run that others are compared with comes before them.
variants='
segments            dense    1  float32   mesh-1-dense       0     compile.graph_segments=true
segments-masked     masked   1  float32   mesh-1-masked      0     compile.graph_segments=true
segments-experts    experts  1  float32   mesh-1-experts     0     compile.graph_segments=true
segments-2          dense    2  float32   mesh-fsdp-2        0     compile.graph_segments=true
fused-not           dense    1  float32   mesh-1-dense       0     compile.fuse=false
windows-2           dense    2  float32   mesh-fsdp-2        1e-5  nccl.windows=true
windows-tp-2        dense    2  float32   mesh-tp-2          1e-5  nccl.windows=true parallelism.tensor_parallel_degree=2
ctas-2              dense    2  float32   mesh-fsdp-2        1e-5  nccl.max_ctas=4
efficiency-2        dense    2  float32   mesh-fsdp-2        1e-5  nccl.cta_policy=efficiency
canonical           dense    1  float32   mesh-1-dense       1e-5  numerics.canonical=true
canonical-experts   experts  1  float32   mesh-1-experts     1e-3  numerics.canonical=true
canonical-ep-2      experts  2  float32   variant-canonical-experts  0  numerics.canonical=true parallelism.expert_parallel_degree=2
etp-2               experts  2  float32   mesh-1-experts     1e-3  parallelism.tensor_parallel_degree=2 parallelism.expert_tensor_parallel_degree=2
etp-2-balanced      balanced 2  float32   mesh-1-balanced    1e-5  parallelism.tensor_parallel_degree=2 parallelism.expert_tensor_parallel_degree=2
ep-2-balanced       balanced 2  float32   mesh-1-balanced    1e-5  parallelism.expert_parallel_degree=2
bf16                dense    1  bfloat16  mesh-1-dense       2e-2
any-order           dense    1  bfloat16  variant-bf16       2e-2  numerics.deterministic=false
cheap               dense    1  bfloat16  variant-bf16       0     activation_checkpoint.mode=selective activation_checkpoint.selective_ac_option=op:1
experts-bf16        experts  1  bfloat16  mesh-1-experts     3e-2
cores               experts  1  bfloat16  variant-experts-bf16  3e-2  TITAN_HOPPER=0
rounds-ep-2         experts  2  float32   mesh-ep-2          0     parallelism.expert_parallel_degree=2 parallelism.expert_parallel_room=1
moments             dense    1  bfloat16  variant-bf16       2e-2  optimizer.state_dtype=bfloat16
float8              dense    1  bfloat16  variant-bf16       3e-2  model.float8=true
float8-rowwise      dense    1  bfloat16  variant-bf16       3e-2  model.float8=true float8.recipe_name=rowwise
float8-rowwise-hp   dense    1  bfloat16  variant-bf16       3e-2  model.float8=true float8.recipe_name=rowwise_with_gw_hp
float8-2            dense    2  bfloat16  variant-float8     3e-2  model.float8=true
float8-gather-2     dense    2  bfloat16  variant-float8-2   0     model.float8=true float8.enable_fsdp_float8_all_gather=true
float8-segments     dense    1  bfloat16  variant-float8     0     model.float8=true compile.graph_segments=true
'

mesh_models="dense masked experts latent dropped balanced"
# What makes the recipe's model another: documents apart, experts, latent attention (values narrower than keys), experts
# without room for all rows, experts with equally many.
model_keys() { # model_keys MODEL
    case $1 in
    masked) echo training.block_causal=true ;;
    experts) echo model.name=llama3_moe ;;
    latent) echo model.name=deepseek_v3 ;;
    dropped) echo model.name=llama3_moe moe.overflow=drop moe.capacity_factor=1 ;;
    balanced) echo model.name=llama3_moe debug.moe_force_load_balance=true ;;
    esac
}

# The line of a variant as variables of the caller: model, ranks, type, reference, bound, keys, environment.
find_variant() { # find_variant NAME
    local line word
    line=$(grep "^$1 " <<<"$variants") || { echo "not ok - no variant is called $1"; return 1; }
    read -r _ model ranks type reference bound line <<<"$line"
    keys=$(set_keys $(model_keys "$model")) environment=''
    for word in $line; do
        case $word in [A-Z]*) environment+=" $word" ;; *) keys+=" $(set_keys "$word")" ;; esac
    done
}

# Words KEY=VALUE as the worker's arguments.
set_keys() { # set_keys [KEY=VALUE...]
    local key
    for key in "$@"; do printf -- '--set %s ' "$key"; done
}

# The line of a mesh as three variables of the caller: model, ranks, keys (arguments of the worker).
find_mesh() { # find_mesh NAME
    local line word words=()
    line=$(grep "^$1 " <<<"$meshes") || { echo "not ok - no mesh is called $1"; return 1; }
    read -r _ model ranks line <<<"$line"
    for word in $line; do words+=("parallelism.$word"); done
    keys="$(set_keys $(model_keys "$model")) $(set_keys "${words[@]}")"
}

# A folder of documents shorter than a sequence, cut from a text.
make_documents() { # make_documents TEXT FOLDER
    rm -rf "$2" && mkdir -p "$2" && head -c 40000 "$1" | split -b 57 -a 3 - "$2/"
}
