# SPDX-License-Identifier: Apache-2.0
# Sourced: the models and meshes that training on a device is compared on.

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

mesh_models="dense masked experts latent"
# What makes the recipe's model another: documents apart, experts, latent attention (values narrower than keys).
model_keys() { # model_keys MODEL
    case $1 in
    masked) echo training.block_causal=true ;;
    experts) echo model.name=llama3_moe ;;
    latent) echo model.name=deepseek_v3 ;;
    esac
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
