#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What is in a checkpoint: every element is written once, by one rank, whatever the mesh repeats; and all are of one step."""
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from titan import BIN, FP_BIN, SOURCE, headers_text, overrides, tap  # noqa: E402

WORK = Path(tempfile.mkdtemp(prefix="titan-saved-"))
P, SAVES = "parallelism.", 3
MESHES = {
    "dp_shard 4": {P + "data_parallel_shard_degree": 4},
    "dp_replicate 4": {P + "data_parallel_replicate_degree": 4, P + "data_parallel_shard_degree": 1},
    "dp_replicate 2, dp_shard 2": {P + "data_parallel_replicate_degree": 2, P + "data_parallel_shard_degree": 2},
    "dp_replicate 2, tp 2": {P + "data_parallel_replicate_degree": 2, P + "data_parallel_shard_degree": 1, P + "tensor_parallel_degree": 2},
    "cp 2, tp 2": {P + "context_parallel_degree": 2, P + "tensor_parallel_degree": 2, P + "data_parallel_shard_degree": 1},
    "pp 2, dp_replicate 2": {P + "pipeline_parallel_degree": 2, P + "data_parallel_replicate_degree": 2, P + "data_parallel_shard_degree": 1},
    "buddies": {P + "data_parallel_shard_degree": 4, "fault_tolerance.redundancy": "buddy"},
}


def run(name, keys, enable="true", failpoints=None):
    """Bytes of files that the ranks have dirtied, as the kernel counts them, and the folder of checkpoints."""
    home = WORK / name.replace(" ", "-")
    keys = {"training.dataset_path": TEXT, "training.steps": SAVES, "training.global_batch_size": 8, "training.local_batch_size": 2,
            "checkpoint.interval": 1, "checkpoint.keep_latest_k": 0, "checkpoint.enable": enable, "device.threads": 1, **keys}
    process = subprocess.Popen([str(a) for a in ((FP_BIN if failpoints else BIN) / "titan-worker", "run", SOURCE / "recipes/tiny.toml", "-n", 4, "--dir", home, *overrides(keys))],
                               env={**os.environ, "TITAN_FAILPOINTS": failpoints} if failpoints else None,
                               stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    said = process.stderr.read().decode()
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert status == 0, said
    return used.ru_oublock * 512, home / "checkpoint"


def data_bytes(path):
    """Of a safetensors file, without its header."""
    with open(path, "rb") as f:
        return path.stat().st_size - 8 - int.from_bytes(f.read(8), "little")


def elements_once():
    """replicas, tensor-parallel ranks that hold the same, buddies: what all files of a checkpoint have is each element once"""
    without, _ = run("without", {}, "false")
    for name, keys in MESHES.items():
        written, folder = run(name, keys)
        sizes = []
        for step in range(1, SAVES + 1):
            place = folder / f"step-{step:08d}"
            manifest = json.loads((place / "manifest.json").read_text())
            elements = 0
            for tensor in manifest["tensors"]:
                n = 1
                for d in tensor["shape"]:
                    n *= d
                elements += n
            assert sum(data_bytes(p) for p in place.glob("rank-*")) == 4 * elements, (name, step)
            sizes.append(sum(p.stat().st_size for p in place.iterdir()))
        extra = written - without
        print(f"# {name}: {sum(sizes)} bytes in {SAVES} checkpoints, {extra} written", flush=True)
        if written:  # a file system in memory does not count
            assert extra < 1.25 * sum(sizes) + (256 << 10), f"{name}: {extra} bytes were written for {sum(sizes)}"
        shutil.rmtree(folder)


def of_one_step():
    """a rank that copies its state late copies that of the checkpoint's step: the next step's update waits for it"""
    at_once, late = (run(f"copied {when}", MESHES["dp_replicate 2, dp_shard 2"], failpoints=point)[1]
                     for when, point in (("at once", None), ("late", "checkpoint.begun%1=sleep:300@1+")))
    for step in range(1, SAVES + 1):
        for shard in (at_once / f"step-{step:08d}").glob("rank-*"):
            assert shard.read_bytes() == (late / shard.relative_to(at_once)).read_bytes(), (step, shard.name)


TEXT = headers_text(WORK / "text")
try:
    tap(elements_once, of_one_step)
finally:
    shutil.rmtree(WORK, ignore_errors=True)
