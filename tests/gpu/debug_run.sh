# SPDX-License-Identifier: Apache-2.0
# Sourced: the debug model's run that reference.sh and run.sh compare.
# debug_run WORKER DEVICE RANKS TYPE TEXT FOLDER STEPS [--set ...]
debug_run() {
    local worker=$1 device=$2 ranks=$3 type=$4 text=$5 folder=$6 steps=$7
    shift 7
    mkdir -p "$folder"
    "$worker" run recipes/debug.toml -n "$ranks" --device "$device" --dir "$folder" --set "training.dataset_path=$text" \
        --set training.global_batch_size=8 --set elastic.max_workers=4 --set "training.steps=$steps" --set "training.mixed_precision_param=$type" \
        --set checkpoint.enable=false "$@" >"$folder/log" 2>&1 || { tail -n 20 "$folder/log"; return 1; }
}
