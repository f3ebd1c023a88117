#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""TorchTitan v0.2.2's run files, byte for byte, and the overrides of its integration tests."""
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from titan import BIN, SOURCE, command, tap  # noqa: E402

HERE = SOURCE / "tests/interop/torchtitan"
# Each on the number of devices that its first line or TorchTitan's documents name; the mesh without axes of one.
FILES = {
    "llama3/debug_model": (8, {"dp_shard": 8}),
    "llama3/llama3_8b": (8, {"dp_shard": 8}),
    "llama3/llama3_70b": (256, {"dp_shard": 32, "tp": 8}),
    "llama3/llama3_405b": (512, {"dp_shard": 64, "tp": 8}),
    "qwen3/qwen3_0.6b": (8, {"dp_shard": 8}),
    "qwen3/qwen3_1.7b": (8, {"dp_shard": 8}),
    "qwen3/qwen3_32b": (8, {"dp_shard": 8}),
    "deepseek_v3/debug_model": (8, {"dp_shard": 8}),
    "deepseek_v3/deepseek_v3_16b": (8, {"dp_shard": 8, "ep": 8}),
    "deepseek_v3/deepseek_v3_671b": (256, {"dp_shard": 256}),
}
# What this version lacks, in the one line that says so.
LACKS = {
    "llama4/debug_model": "which lacks attention within chunks", "llama4/llama4_17bx16e": "which lacks attention within chunks",
    "llama4/llama4_17bx128e": "which lacks attention within chunks", "gpt_oss/debug_model": "which lacks attention sinks",
    "llama3_ft/debug_model": "job.custom_config_module",
}


def plan(name, world, sets=()):
    words = [word for s in sets for word in ("--set", s)]
    return command(BIN / "titan-worker", "plan", HERE / f"{name}.toml", "--world", world, "--json", *words)


def files():
    """every file of the three families plans on all workers there are"""
    for name, (world, mesh) in FILES.items():
        done = plan(name, world)
        assert done.code == 0, f"{name}: {done.err}"
        d = json.loads(done.out)
        assert {k: v for k, v in d["mesh"].items() if v > 1} == mesh, (name, d["mesh"])
        assert d["step_seconds"] > 0 and 0 < d["mfu"] < 1, (name, d)


def refused():
    """a file of another model is refused in one line that names what it needs"""
    for name, words in LACKS.items():
        done = plan(name, 8)
        assert done.code == 2 and words in done.err and done.err.count("\n") == 1, (name, done.code, done.err)


def rescued():
    """an override is looked at in place of what the file says"""
    done = plan("llama4/debug_model", 8, ("model.name=llama3",))
    assert done.code == 0, done.err
    done = plan("llama3/llama3_405b", 512, ("checkpoint.last_save_model_only=false", "model.converters=float8"))
    assert done.code == 0, done.err


OVERRIDES_LACK = {
    "features/model_only_hf_checkpoint/1": "checkpoint.last_save_in_hf",
    "features/model_only_hf_checkpoint/2": "checkpoint.initial_load_path",
    "features/fsdp2_memory_estimation/1": "memory_estimation.enable",
    "features/optional_checkpoint/2": "checkpoint.exclude_from_loading",
    "features/validation_tp_cp_pp/1": "validation.enable",
    "models/deepseek_v3_pp+fsdp+tp+ep+etp/1": "parallelism.expert_tensor_parallel_degree",
    "models/qwen3_fsdp+tp+ep+etp/1": "",
    "models/llama4_pp+fsdp+tp+ep+compile/1": "model.name",
    "models/gpt_oss_fsdp+tp+ep+compile/1": "model.name",
    "h100/simplefsdp_deepseekv3_auto_bucketing/1": "compile.graph_passes",  # a key of its own configuration module
    # Flavors that are not there yet.
    "features/fsdp+flex_attn/1": "model.flavor", "features/fsdp+flex_attn+per_op_sac/1": "model.flavor",
    "features/fsdp+varlen_attn+per_op_sac/1": "model.flavor", "models/deepseek_v3_flex+pp+fsdp+ep+sacop/1": "model.flavor",
}


def integration_tests():
    """what TorchTitan's integration tests lay over its base file plans; what is refused is named in one line"""
    lacking = {}
    lines = (HERE / "overrides.tsv").read_text().splitlines()
    for line in lines:
        name, gpus, *sets = line.split("\t")
        sets = [s.replace("./tests/assets", str(HERE)) for s in sets]
        done = plan("base_config", gpus, sets)
        if done.code:
            assert done.code == 2 and done.err.count("\n") <= 2, (name, done.code, done.err)
            lacking[name] = done.err
    wrong = {n: e for n, e in lacking.items() if OVERRIDES_LACK.get(n, "accepted") not in e}
    assert not wrong, json.dumps(wrong, indent=1)
    print(f"# {len(lines) - len(lacking)} of {len(lines)} plan")


tap(files, refused, rescued, integration_tests)
