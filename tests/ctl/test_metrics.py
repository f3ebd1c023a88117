#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""What a run tells of its steps: a rank that is slowed on purpose is the slowest, in metrics.jsonl, in `titanctl metrics` and in the table;
what MFU is a share of; tokens of experts; a disk that is full costs lines, events and traces, and no step."""
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from titan import BIN, FP_BIN, SOURCE, Daemon, deadline, overrides, tap, until  # noqa: E402

STEPS = 5
KEYS = {"training.steps": STEPS, "training.global_batch_size": 4, "training.local_batch_size": 2, "training.seq_len": 32,
        "device.threads": 1, "training.dataset_path": SOURCE / "base", "checkpoint.enable": "false", "metrics.log_freq": 1}
PARTS = ("data_ms", "compute_ms", "communication_ms", "checkpoint_ms", "straggler_ms")
RATES = ("tflops", "mfu_causal")
SPLIT = (*PARTS, "slowest_rank", "slowest_busy_ms")


def slowed():
    """rank 1 stops for some milliseconds before each action: it is the slowest of the steps, and the other one waits for it"""
    with Daemon(None, "--slots", 2, program=FP_BIN / "titand", env={"TITAN_FAILPOINTS": "exec.action%1=sleep:4@1+"}) as d:
        job = d.submit("tiny", {**KEYS, "elastic.min_workers": 2, "elastic.max_workers": 2})
        d.wait_state(job, "COMPLETED")
        lines = [json.loads(line) for line in open(Path(d.status(job)["directory"]) / "metrics.jsonl")]
        told, table = d.lines("metrics", job), d.ok("metrics", job, "--split").splitlines()
        rates = d.ok("metrics", job, "--rates").splitlines()
        assert d.ctl("metrics", job, "--rates", "--split").code == 2
    assert [m["step"] for m in told] == [m["step"] for m in lines] == list(range(1, STEPS + 1)), (told, lines)
    for m, line in zip(told, lines):
        assert m["split"] == {k: line[k] for k in SPLIT}, (m, line)
        assert m["loss_max"] == line["loss_max"] >= line["loss"] and m["memory_bytes"] == line["memory_bytes"], (m, line)
        assert all(m[key] == line[key] > 0 for key in RATES) and m["experts"] is None, (m, line)
        assert 1 << 20 < line["memory_bytes"] < 1 << 32 and line["mfu_causal"] < line["mfu"], line
    assert all(line[part] >= 0 for line in lines for part in PARTS), lines
    # Of two ranks one waits: half of what it waits is the mean. In some steps the machine itself may have stood still.
    seen = [line for line in lines if line["slowest_rank"] == 1 and line["straggler_ms"] > 0.3 * line["slowest_busy_ms"] > 30]
    assert len(seen) > STEPS / 2, lines
    assert table[0].split()[-3:] == ["its", "busy", "memory"] and len(table) == 1 + STEPS, table
    assert [row.split()[0] for row in table[1:]] == [str(m["step"]) for m in told], table
    assert all(str(m["split"]["slowest_rank"]) in row.split()[1:] for m, row in zip(told, table[1:])), table


def shared_cores():
    """MFU is of what the cores can do: four workers on one core have its peak once, as one worker has"""
    def peak(workers):  # FLOP/s that MFU is a share of
        with tempfile.TemporaryDirectory(prefix="titan-peak-") as home:
            one = str(min(os.sched_getaffinity(0)))
            subprocess.run(["taskset", "-c", one, BIN / "titan-worker", "run", SOURCE / "recipes/tiny.toml", "-n", str(workers), "--dir", home,
                            *overrides({**KEYS, "training.local_batch_size": 1})], check=True, capture_output=True)
            last = [json.loads(line) for line in open(Path(home) / "metrics.jsonl")][-1]
        return last["tflops"] * workers / last["mfu"]
    one, four = peak(1), peak(4)
    assert one / 2 < four < 2 * one, (one, four)  # measured twice; counted four times it would be four times as much


def mean_of(numbers):
    return sum(numbers) / len(numbers)


def experts():
    """tokens of an expert: each token of a layer is counted by top_k of them, in all files alike, and the daemon has the same"""
    top_k = 2
    keys = {**KEYS, "training.steps": 3, "metrics.log_layers": "true", "model.n_experts": 8, "model.top_k": top_k, "model.moe_hidden": 32,
            "model.balance_rate": 0, "moe.overflow": "drop", "moe.capacity_factor": 0.5, "parallelism.expert_parallel_degree": 2}
    with Daemon(None, "--slots", 2) as d:
        job = d.submit("tiny", {**keys, "elastic.min_workers": 2, "elastic.max_workers": 2})
        assert d.wait_state(job, "COMPLETED", "FAILED")["state"] == "COMPLETED"
        home = Path(d.status(job)["directory"])
        lines, layers = ([json.loads(line) for line in open(home / name)] for name in ("metrics.jsonl", "layers.jsonl"))
        told, table = d.lines("metrics", job), d.ok("metrics", job, "--rates").splitlines()
    tokens = KEYS["training.global_batch_size"] * KEYS["training.seq_len"]
    assert len(lines) == len(layers) == len(told) == 3, (lines, layers)
    for line, layer, m, row in zip(lines, layers, told, table[1:]):
        loads = layer["expert_tokens"]
        assert loads and all(sum(of) == tokens * top_k and min(of) >= 0 for of in loads.values()), (loads, tokens, top_k)
        every = [n for of in loads.values() for n in of]
        assert len(set(every)) > 2, "a router of random weights is not even"
        dropped = line["expert_tokens_dropped"]
        assert len(every) * mean_of(every) / 2 <= dropped < sum(every), (dropped, every)  # half of an even share is taken
        means = {"least": min(every), "most": max(every), "mean": mean_of(every), "dropped": dropped}
        assert m["experts"] == {**means, "further_rounds": 0, "room_needed": 0}, (m, means)
        assert [line["expert_tokens_" + key] for key in ("min", "max", "mean", "dropped")] == list(means.values()), (line, means)
        assert f"{min(every):.0f} to {max(every):.0f}, mean {means['mean']:.4g}, {dropped:.0f} dropped" in row, table


def rounds():
    """experts with room for an even share: rounds behind the first and the room that was needed follow from the tokens of each expert"""
    ranks, rows, seq_len = 2, 4, 256
    keys = {**KEYS, "training.steps": 2, "metrics.log_layers": "true", "model.n_experts": 8, "model.top_k": 2, "model.moe_hidden": 32,
            "model.balance_rate": 0, "training.seq_len": seq_len, "training.local_batch_size": rows, "training.global_batch_size": ranks * rows,
            "parallelism.expert_parallel_degree": ranks}
    even = rows * seq_len * 2
    for mode, room in (("none", 1), ("full", 1), ("full", 2)):
        with tempfile.TemporaryDirectory(prefix="titan-metrics-") as folder:
            done = subprocess.run([BIN / "titan-worker", "run", SOURCE / "recipes/tiny.toml", "-n", str(ranks), "--dir", folder,
                                   *overrides({**keys, "activation_checkpoint.mode": mode, "parallelism.expert_parallel_room": room})],
                                  capture_output=True, text=True, env=os.environ, timeout=deadline())
            assert done.returncode == 0, done.stderr
            lines, of_layers = ([json.loads(line) for line in open(Path(folder) / name)] for name in ("metrics.jsonl", "layers.jsonl"))
        for line, row in zip(lines, of_layers):
            got = [sum(loads[rank * 4:rank * 4 + 4]) for loads in row["expert_tokens"].values() for rank in range(ranks)]
            assert max(got) > even, "a router of random weights is not even"
            # With room for all that there can be there are no rounds, and none are counted.
            want = (sum(n > even for n in got), max(got) / even) if room == 1 else (0, 0)
            assert (line["expert_further_rounds"], line["expert_room_needed"]) == want, (mode, line, want)
        assert len(lines) == len(of_layers) == 2


def layers():
    """gradient norms of layers, of their experts apart, add up to the step's, over ranks of every axis; weights have norms that move"""
    keys = {**KEYS, "training.steps": 3, "metrics.log_layers": "true", "training.max_norm": 1000, "training.global_batch_size": 8,
            "parallelism.tensor_parallel_degree": 2, "model.n_experts": 8, "model.top_k": 2, "model.moe_hidden": 32,
            "parallelism.expert_parallel_degree": 2}
    with tempfile.TemporaryDirectory(prefix="titan-metrics-") as folder:
        done = subprocess.run([BIN / "titan-worker", "run", SOURCE / "recipes/tiny.toml", "-n", "4", "--dir", folder, *overrides(keys)],
                              capture_output=True, text=True, env=os.environ, timeout=deadline())
        assert done.returncode == 0, done.stderr
        lines, of_layers = ([json.loads(line) for line in open(Path(folder) / name)] for name in ("metrics.jsonl", "layers.jsonl"))
    assert [row["step"] for row in of_layers] == [line["step"] for line in lines] == [1, 2, 3], of_layers
    for line, row in zip(lines, of_layers):
        gradients, weights = row["grad_norm"], row["param_norm"]
        assert set(gradients) == set(weights) and len(gradients) > 4 and min(*gradients.values(), *weights.values()) > 0, row
        whole = sum(norm * norm for norm in gradients.values()) ** 0.5
        assert abs(whole / line["grad_norm"] - 1) < 1e-5, (whole, line)
    assert all(of_layers[0]["param_norm"][unit] != of_layers[2]["param_norm"][unit] for unit in of_layers[0]["param_norm"]), of_layers


def full_disk():
    """metrics.jsonl on a disk that is full, and event files in a folder that cannot be: every step is made all the same"""
    with tempfile.TemporaryDirectory(prefix="titan-metrics-") as folder:
        (Path(folder) / "metrics.jsonl").symlink_to("/dev/full")
        (Path(folder) / "tb").symlink_to("/dev/full")
        done = subprocess.run([BIN / "titan-worker", "run", SOURCE / "recipes/tiny.toml", "-n", "2", "--dir", folder,
                               *overrides({**KEYS, "metrics.enable_tensorboard": "true"})], capture_output=True, text=True,
                              env=os.environ, timeout=deadline())
    said = done.stdout + done.stderr
    assert done.returncode == 0 and f"step={STEPS} loss=" in said and said.count("TensorBoard's file takes no events") == 1, said
    assert said.count("the file of metrics takes no lines") == 1 and "takes lines again" not in said, said


def no_room():
    """a disk without room from the first step on takes neither lines nor events nor traces, and every step is made all the same"""
    own = ["unshare", "-m" if os.getuid() == 0 else "-rm"]
    if subprocess.run([*own, "true"], capture_output=True).returncode != 0:
        return "no mount namespace of its own"
    fill = 'mount -t tmpfs -o size=64k none "$0" || exit 77; head -c 1M /dev/zero >"$0/all" 2>&-; "$@"; code=$?; ls -lR "$0"; exit $code'
    with tempfile.TemporaryDirectory(prefix="titan-metrics-") as folder:
        done = subprocess.run([*own, "sh", "-c", fill, folder, BIN / "titan-worker", "run", SOURCE / "recipes/tiny.toml", "-n", "2",
                               "--dir", Path(folder) / "run",
                               *overrides({**KEYS, "metrics.enable_tensorboard": "true", "metrics.log_layers": "true",
                                           "profiling.enable_profiling": "true", "profiling.profile_freq": 2, "profiling.profiler_active": 1,
                                           "profiling.profiler_warmup": 0})],
                              capture_output=True, text=True, env=os.environ, timeout=deadline())
    said = done.stdout + done.stderr
    if done.returncode == 77:
        return "no tmpfs of its own"
    assert done.returncode == 0 and f"step={STEPS} loss=" in said, said
    for what, most in (("TensorBoard's file takes no events", 1), ("the file of layers takes no lines", 1), ("trace not written", STEPS)):
        assert 1 <= said.count(what) <= most and "No space left" in next(line for line in said.splitlines() if what in line), (what, said)
    assert re.search(r" 65536 .* all$", said, re.M) and "tfevents" not in said and re.search(r" 0 .* metrics.jsonl$", said, re.M), said


def in_the_way():
    """what is in a file's place costs what would be in it until it is gone, is said once, and ends no run"""
    steps, takes = 30, ("the file of metrics takes % lines", "the file of layers takes % lines", "TensorBoard's file takes % events")
    with tempfile.TemporaryDirectory(prefix="titan-metrics-") as folder:
        home, out = Path(folder), Path(folder) / "out"
        for name in ("metrics.jsonl", "layers.jsonl"):
            (home / name).mkdir()
        (home / "tb").write_text("in the way")
        with open(out, "w") as f:
            run = subprocess.Popen([FP_BIN / "titan-worker", "run", SOURCE / "recipes/tiny.toml", "-n", "2", "--dir", folder,
                                    *overrides({**KEYS, "training.steps": steps, "metrics.log_layers": "true",
                                                "metrics.enable_tensorboard": "true"})], stdout=f, stderr=f,
                                   env={**os.environ, "TITAN_FAILPOINTS": "train.step=sleep:100@1+"})
        until("four steps are made", lambda: run.poll() is not None or "step=4 loss=" in out.read_text())
        assert run.poll() is None, out.read_text()
        for name in ("metrics.jsonl", "layers.jsonl"):
            (home / name).rmdir()
        (home / "tb").unlink()
        assert run.wait(deadline()) == 0, out.read_text()
        said, events = out.read_text(), [f.stat().st_size for f in (home / "tb").iterdir()]
        files = [[json.loads(line)["step"] for line in open(home / name)] for name in ("metrics.jsonl", "layers.jsonl")]
    for what in takes:
        assert said.count(what.replace("%", "no")) == said.count(what.replace("% ", "") + " again") == 1, (what, said)
    assert len(events) == 1 and events[0] > 20000, events
    assert "metrics.jsonl': Is a directory" in said and re.findall(r"step=(\d+) loss=", said) == list(map(str, range(1, steps + 1))), said
    for got in files:
        assert got == list(range(got[0], steps + 1)) and 4 <= got[0] < steps, got


tap(slowed, shared_cores, experts, rounds, layers, full_disk, no_room, in_the_way)
