#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""`metrics.enable_tensorboard` read by the tensorboard package: TorchTitan's names, the numbers of metrics.jsonl, and steps that
are trained again in place of those of before."""
import json
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
import interop  # noqa: E402
import titan  # noqa: E402

interop.use("numpy", "tensorboard")

import numpy as np  # noqa: E402
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator  # noqa: E402

folder = tempfile.TemporaryDirectory(prefix="titan-tensorboard-")
HOME = Path(folder.name)
KEYS = {"training.steps": 8, "training.seq_len": 32, "device.threads": 1, "training.dataset_path": titan.SOURCE / "worker",
        "metrics.log_freq": 2, "metrics.enable_tensorboard": "true", "checkpoint.interval": 4, "checkpoint.keep_latest_k": 0,
        "validation.enable": "true", "validation.freq": 4, "validation.steps": 1,
        "validation.dataset_path": titan.SOURCE / "base"}


def run(name, *args, **keys):
    done = subprocess.run([titan.BIN / "titan-worker", "run", titan.SOURCE / "recipes/tiny.toml", "--dir", HOME / name, *args,
                           *titan.overrides({**KEYS, **{k.replace("__", "."): v for k, v in keys.items()}})],
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def scalars(name):
    """{tag: {step: value}} as TensorBoard has it."""
    a = EventAccumulator(str(HOME / name))
    a.Reload()
    out = {}
    for tag in a.Tags()["scalars"]:
        events = a.Scalars(tag)
        steps = [e.step for e in events]
        assert steps == sorted(set(steps)), (tag, steps)
        out[tag] = {e.step: e.value for e in events}
    return out


def rows(name):
    """The last line of each step."""
    return {r["step"]: r for r in map(json.loads, (HOME / name / "metrics.jsonl").read_text().splitlines())}


def compare(got, name):
    names = {"loss_metrics/global_avg_loss": "loss", "grad_norm": "grad_norm", "lr": "learning_rate", "n_tokens_seen": "tokens",
             "world_size": "world_size", "loss_metrics/global_max_loss": "loss_max", "tflops": "tflops",
             "slowest_rank/rank": "slowest_rank"}
    seconds = {"time_metrics/end_to_end(s)": "step_ms", "time_metrics/data_loading(s)": "data_ms",
               "time_metrics/compute(s)": "compute_ms", "time_metrics/exposed_communication(s)": "communication_ms",
               "time_metrics/checkpoint(s)": "checkpoint_ms", "time_metrics/stragglers(s)": "straggler_ms",
               "slowest_rank/busy(s)": "slowest_busy_ms"}
    shares = {"mfu(%)": "mfu", "mfu_causal(%)": "mfu_causal"}
    have = rows(name)
    for tag, key in names.items():
        assert set(got[tag]) == {1, 2, 4, 6, 8}, (tag, got[tag])
        for step, value in got[tag].items():
            assert np.float32(have[step][key]) == np.float32(value), (tag, step, value, have[step][key])
    for tags, factor in ((seconds, 1e-3), (shares, 100)):
        for tag, key in tags.items():
            for step, value in got[tag].items():
                assert abs(value - factor * have[step][key]) <= 1e-5 * abs(value), (tag, step, value, have[step][key])
    for step, value in got["validation_metrics/loss"].items():
        assert np.float32(have[step]["validation_loss"]) == np.float32(value), (step, value)
    assert {4, 8} <= set(got["validation_metrics/loss"])
    assert set(got) >= {"throughput(tps)", "time_metrics/data_loading(%)", "memory/max_reserved(GiB)", "memory/max_reserved(%)",
                        "skipped_steps"}, set(got)


def two_ranks():
    """rank 0 alone writes one file, at step 1 and every log_freq steps; the numbers are those of metrics.jsonl"""
    run("two", "-n", "2")
    assert len(list((HOME / "two/tb").iterdir())) == 1
    compare(scalars("two/tb"), "two")


def layers():
    """norms of every layer's gradient and weights, those of layers.jsonl"""
    run("layers", "-n", "2", metrics__log_layers="true")
    got, lines = scalars("layers/tb"), [json.loads(line) for line in open(HOME / "layers/layers.jsonl")]
    assert {line["step"] for line in lines} == {1, 2, 4, 6, 8}, lines
    for line in lines:
        for key in ("grad_norm", "param_norm"):
            for unit, norm in line[key].items():
                assert np.float32(norm) == np.float32(got[f"layer_{key}/{unit}"][line["step"]]), (line["step"], key, unit)


def steps_again():
    """a run that begins again from step 4 takes the place of what was trained from there on"""
    run("again")
    before = scalars("again/tb")
    run("again", checkpoint__load_step=4, metrics__save_tb_folder="tb")
    assert len(list((HOME / "again/tb").iterdir())) == 2
    compare(scalars("again/tb"), "again")
    assert scalars("again/tb")["loss_metrics/global_avg_loss"][2] == before["loss_metrics/global_avg_loss"][2]


def cannot_be_written():
    """a folder that is in the way costs a warning, never a step"""
    (HOME / "full").mkdir()
    (HOME / "full/tb").write_text("in the way")
    assert "TensorBoard's file takes no events" in run("full") and set(rows("full")) == set(range(1, 9))


titan.tap(two_ranks, layers, steps_again, cannot_be_written)
