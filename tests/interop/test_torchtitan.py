#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""TorchTitan v0.2.2's run files, byte for byte, and the overrides of its integration tests."""
import contextlib
import json
import os
import shutil
import sys
import tempfile
import tomllib
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from titan import BIN, SOURCE, Daemon, command, tap  # noqa: E402
from torchtitan_sets import HERE, override_sets  # noqa: E402
from torchtitan_sets import LACKS as OVERRIDES_LACK  # noqa: E402

# Each on the number of devices that its first line or TorchTitan's documents name; the mesh without axes of one.
FILES = {
    "llama3/debug_model": (8, {"dp_shard": 8}),
    "llama3/llama3_8b": (8, {"dp_shard": 8}),
    "llama3/llama3_70b": (256, {"dp_shard": 32, "tp": 8}),
    "llama3/llama3_405b": (512, {"dp_shard": 64, "tp": 8}),
    "qwen3/qwen3_0.6b": (8, {"dp_shard": 8}),
    "qwen3/qwen3_1.7b": (8, {"dp_shard": 8}),
    "qwen3/qwen3_32b": (8, {"dp_shard": 8}),
    "qwen3/qwen3_moe_debug": (8, {"dp_shard": 8}),
    "deepseek_v3/debug_model": (8, {"dp_shard": 8}),
    "deepseek_v3/deepseek_v3_16b": (8, {"dp_shard": 8, "ep": 8}),
    "deepseek_v3/deepseek_v3_671b": (256, {"dp_shard": 256}),
    "gpt_oss/debug_model": (8, {"dp_shard": 8}),
}
# What this version lacks, in the one line that says so.
LACKS = {
    "llama4/debug_model": "which lacks attention within chunks", "llama4/llama4_17bx16e": "which lacks attention within chunks",
    "llama4/llama4_17bx128e": "which lacks attention within chunks",
    "llama3_ft/debug_model": "job.custom_config_module",
}


def plan(name, world, sets=()):
    words = [word for s in sets for word in ("--set", s)]
    return command(BIN / "titan-worker", "plan", HERE / f"{name}.toml", "--world", world, "--json", *words)


def files():
    """every file of the four families plans on all workers there are"""
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


def integration_tests():
    """what TorchTitan's integration tests lay over its base file plans; what is refused is named in one line"""
    lacking, n = {}, 0
    for name, devices, sets in override_sets():
        done = plan("base_config", devices, sets)
        n += 1
        if done.code:
            assert done.code == 2 and done.err.count("\n") <= 2, (name, done.code, done.err)
            lacking[name] = done.err
    wrong = {name: e for name, e in lacking.items() if OVERRIDES_LACK.get(name, "accepted") not in e}
    assert not wrong, json.dumps(wrong, indent=1)
    plans = OVERRIDES_LACK.keys() - lacking.keys()
    assert not plans, f"these plan, and are said not to: {plans}"
    print(f"# {n - len(lacking)} of {n} plan")


# --- submitted -------------------------------------------------------------------------------------------------------

PUBLIC = SOURCE.parent / "shared/data"  # test data beside the project
DEBUG = {"llama3/debug_model": (5, ()), "deepseek_v3/debug_model": (5, ()),  # steps, overrides: Qwen's has 300 million weights
         "qwen3/qwen3_moe_debug": (3, ("model.n_layers=2",))}


@contextlib.contextmanager
def project(assets=True):
    """A folder to work in as TorchTitan's own checkout is one: its files unmodified, tokenizers and data where they say."""
    here, root = os.getcwd(), Path(tempfile.mkdtemp(prefix="titan-torchtitan-"))
    for name in FILES:
        file = root / f"torchtitan/models/{name}.toml"
        file.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(HERE / f"{name}.toml", file)
        if assets:
            tokenizer = root / tomllib.loads(file.read_text())["model"]["hf_assets_path"]
            tokenizer.mkdir(parents=True, exist_ok=True)
            given = PUBLIC / "tokenizer/tokenizer.json"
            (tokenizer / "tokenizer.json").write_bytes(given.read_bytes() if given.exists() else b"{}")
    if assets:
        lines = [json.dumps({"text": f"{p.name}: {p.read_text(errors='replace')}"}) for p in sorted(SOURCE.glob("docs/*.md"))]
        for folder, file in (("tests/assets/c4_test", "data.json"), ("allenai/c4/en", "c4-train.00000-of-00001.json")):
            (root / folder).mkdir(parents=True)
            (root / folder / file).write_text("\n".join(lines) + "\n")
    os.chdir(root)
    try:
        yield root
    finally:
        os.chdir(here)
        shutil.rmtree(root)


def submitted():
    """every file of the three families is submitted byte for byte; what has no effect is said, in lines of keys"""
    with project(), Daemon(role="coordinator") as d:  # without nodes: they wait
        for name in FILES:
            done = d.ctl("submit", f"torchtitan/models/{name}.toml")
            assert done.code == 0 and done.out.strip().isdigit(), (name, done.err)
            notes = [line for line in done.err.splitlines() if line.startswith("note: ")]
            assert any("not in float8" in n for n in notes) == (name == "llama3/llama3_405b"), (name, notes)
            assert not any("enable_tensorboard" in n or "enable_profiling" in n for n in notes), (name, notes)
            job = json.loads(d.ok("-o", "json", "status", done.out.strip()))
            assert job["state"] == "PENDING", job
        for name, words in LACKS.items():
            done = d.ctl("submit", HERE / f"{name}.toml")
            assert done.code == 2 and words in done.err and done.err.count("\n") == 1, (name, done.code, done.err)


def what_is_missing():
    """where the workers are this machine's, tokenizer and data are looked for when a run is submitted"""
    with project(assets=False) as root, Daemon(None, "--slots", 1) as d:
        file = f"torchtitan/models/{next(iter(DEBUG))}.toml"
        done = d.ctl("submit", file)
        assert done.code == 2 and "tests/assets" in done.err and "--set" in done.err, done.err
        (root / "tests/assets/c4_test").mkdir(parents=True)
        done = d.ctl("submit", file)
        assert done.code == 2 and "model.hf_assets_path" in done.err and "tests/assets/tokenizer" in done.err, done.err


def debug_runs():
    """the debug files run to their end with TorchTitan's tokenizer, but for shorter sequences, fewer of them, and fewer layers"""
    if not (PUBLIC / "tokenizer/tokenizer.json").exists():
        return f"no {PUBLIC}/tokenizer/tokenizer.json"
    with project(), Daemon(None, "--slots", 2) as d:
        for name, (steps, sets) in DEBUG.items():
            done = d.ctl("submit", f"torchtitan/models/{name}.toml", "--follow", "--set", "training.seq_len=64",
                         "--set", "training.local_batch_size=2", "--set", f"training.steps={steps}",
                         *(word for s in sets for word in ("--set", s)))
            assert done.code == 0, (name, done.err)
            job = json.loads(d.ok("-o", "json", "status", done.out.split()[0]))
            assert job["state"] == "COMPLETED" and job["step"] == steps and 4 < job["loss"] < 9, job


tap(files, refused, rescued, integration_tests, submitted, what_is_missing, debug_runs)
