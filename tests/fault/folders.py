# SPDX-License-Identifier: Apache-2.0
"""What the tests of checkpoint folders share: a small job, its folder, what is told of it."""
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from titan import BIN, FP_BIN, SOURCE, command, headers_text, overrides, until  # noqa: E402

KEYS = {"training.steps": 60, "elastic.min_workers": 2, "elastic.max_workers": 2, "checkpoint.interval": 10,
        "checkpoint.keep_latest_k": 2, "device.threads": 1, "fault_tolerance.backoff_ms": 50, "training.seq_len": 16,
        "training.global_batch_size": 2, "training.local_batch_size": 1}
LONG = 1000000


def keys(d, **more):
    return {**KEYS, "training.dataset_path": headers_text(d.state / "text"),
            **{k.replace("__", "."): v for k, v in more.items()}}


def events(d, job, kind):
    return [e for e in d.lines("events", job) if e["type"] == kind]


def steps_in(folder):
    return sorted(int(p.name[5:]) for p in Path(folder).glob("step-*"))


def reason(d, job):
    return d.status(job)["reason"] or ""


def trains(d, job, beyond=0):
    """By its file, which is a look without a call: a disturbance comes while most of the run is ahead of it."""
    path = d.state / f"jobs/{job}/metrics.jsonl"
    until(f"it trains beyond step {beyond}", lambda: path.exists() and path.read_bytes().count(b"\n") > beyond, every=0.02)


def in_the_way(folder):
    """Put a file where the folder was; what was there comes back with the returned function."""
    aside = folder.with_name("aside")
    folder.rename(aside)
    folder.write_text("in the way")

    def back():
        folder.unlink()
        aside.rename(folder)
    return back


def solo(d, failpoints=None, **more):
    env = {**os.environ, "TITAN_FAILPOINTS": failpoints} if failpoints else None
    return command((FP_BIN if failpoints else BIN) / "titan-worker", "run", SOURCE / "recipes/tiny.toml", "-n", 2, "--dir", d / "run",
                   *overrides({**KEYS, "training.dataset_path": headers_text(d / "text"),
                               "checkpoint.folder": d / "ck", **{k.replace("__", "."): v for k, v in more.items()}}),
                   env=env)


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
