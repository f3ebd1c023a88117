#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A worker is killed while a mesh trains: the run is planned again for those that are left - fewer data-parallel ranks, or
a wait for the replacement where they make no mesh - and its losses are those of an undisturbed run."""
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from titan import BIN, FP_BIN, SOURCE, Daemon, Gate, deadline, headers_text, overrides, paced, slow, tap, until, worker_pids  # noqa: E402

DEGREES = {"pp": "pipeline", "dp_shard": "data_parallel_shard", "tp": "tensor", "cp": "context",
           "ep": "expert"}
# Without end: a run is cancelled when it has shown what it should. The schedule of rates is that of all these steps.
# A replacement waits at a gate until the survivors have gone on without it; workers sleep before each step, so that
# there are few to compare.
KEYS = {"training.steps": 1000000, "checkpoint.interval": 4, "checkpoint.keep_latest_k": 3,
        "training.mixed_precision_param": "float32", "training.global_batch_size": 8, "training.local_batch_size": 1,
        "training.seq_len": 32, "numerics.canonical": "true", "device.threads": 1, "fault_tolerance.backoff_ms": 50}


def keys(text, least, most, mesh, **more):
    """Overrides of recipes/tiny.toml for a mesh such as "pp=2 tp=2" on so many workers."""
    out = {**KEYS, "training.dataset_path": text, "elastic.min_workers": least, "elastic.max_workers": most}
    for axis in mesh.split():
        name, degree = axis.split("=")
        name = DEGREES[name] if name.startswith("dp") else DEGREES[name] + "_parallel"
        out[f"parallelism.{name}_degree"] = degree
    if "pp=" in mesh:
        out["parallelism.pipeline_parallel_microbatch_size"] = 1
    return {**out, **{k.replace("__", "."): v for k, v in more.items()}}


def rows(folder):
    """Every step in the order it was trained."""
    try:
        lines = (Path(folder) / "metrics.jsonl").read_text().split("\n")
    except OSError:
        return []
    return [json.loads(line) for line in lines[:-1]]


def undisturbed(folder, world, sets, steps):
    """step -> what `titan-worker run` says of it, on so many workers, undisturbed."""
    process = subprocess.Popen(
        [str(a) for a in (BIN / "titan-worker", "run", SOURCE / "recipes/tiny.toml", "-n", world, "--dir", folder, "--device",
                          "cpu", *overrides({**sets, "elastic.min_workers": world, "checkpoint.enable": "false"}))],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    for line in process.stdout:
        if f" step={steps} " in line:
            break
    process.send_signal(signal.SIGTERM)
    rest = process.stdout.read()
    process.wait()
    calm = {r["step"]: r for r in rows(folder)}
    assert steps in calm, f"the undisturbed run ended before step {steps}: {rest}"
    return calm


def compare(disturbed, calm, bound=0.0):
    """Every step was trained once, with the loss, the gradient norm and the tokens of the undisturbed run."""
    for r in disturbed:
        for what in ("loss", "grad_norm", "tokens"):
            far = abs(r[what] - calm[r["step"]][what])
            assert far <= bound * abs(r[what]), f"step {r['step']}, epoch {r['epoch']}: {what} {r[what]!r}, " \
                                                     f"undisturbed {calm[r['step']][what]!r}"
    steps = [r["step"] for r in disturbed]
    assert steps == list(range(1, len(steps) + 1)), "steps are missing, or were trained twice"


def in_order(disturbed, resumed):
    """Within an epoch steps follow each other; an epoch begins where its state says (epoch -> step)."""
    step = epoch = 0
    for r in disturbed:
        expected = step + 1 if r["epoch"] == epoch else resumed[r["epoch"]] + 1
        assert r["step"] == expected, f"step {r['step']} of epoch {r['epoch']} comes after step {step} of epoch {epoch}"
        step, epoch = r["step"], r["epoch"]


@contextlib.contextmanager
def gated(slots):
    """A daemon, and the gate of its workers."""
    with tempfile.TemporaryDirectory(prefix="titan-mesh-") as folder:
        gate = Gate(folder, FP_BIN / "titan-worker")
        with Daemon(f"{folder}/state", "--slots", slots, "--worker", gate.program, env=paced(20)[1]) as d:
            yield d, gate


class Run:
    """A job of a daemon, and what can be asked of it."""

    def __init__(self, daemon, name, sets):
        self.d, self.name, self.job = daemon, name, daemon.submit("tiny", sets)

    def events(self, kind):
        return [e for e in self.d.lines("events", self.job) if e["type"] == kind]

    def trains(self, world):
        """Wait until so many workers train and have a checkpoint behind this epoch's begin."""
        def far():
            s = self.d.status(self.job)
            begin = next((e for e in reversed(self.events("epoch.forming")) if e["epoch"] == s["epoch"]), None)
            return s["state"] == "RUNNING" and s["world_size"] == world and begin and s["checkpoint"] and \
                s["step"] >= begin["detail"]["resume_step"] + 6 and s
        return until(f"{world} workers train", far)

    def seats(self):
        """Workers by rank of the newest epoch, and those that had a place before and have none in it."""
        status = self.d.status(self.job)
        workers = self.d.workers(self.job)
        members = [w for w in workers if f"epoch={status['epoch']} " in self.log(w)]
        return [workers[w] for w in members], [workers[w] for w in workers if w not in members and "epoch=" in self.log(w)]

    def log(self, worker):
        path = Path(self.d.status(self.job)["directory"]) / f"logs/worker-{worker}.log"
        return path.read_text() if path.exists() else ""

    def kill(self, pid):
        """SIGKILL; wait for the run to go on, print how long that took. Returns with how many workers it goes on."""
        before = len(self.events("recovery.finished"))
        step = self.d.status(self.job)["step"]
        os.kill(pid, signal.SIGKILL)
        done = until("the run goes on", lambda: self.events("recovery.finished")[before:])[0]
        detail = done["detail"]
        print(f"# {self.name}: a step {detail['recovery_ms']} ms after the loss, with {detail['world']} workers",
              flush=True)
        assert detail["resume_step"] >= step, f"went on at step {detail['resume_step']}, step {step} was done"
        assert detail["rung"] == "buddy", detail
        return detail["world"]


    def end(self):
        """Cancel; the rows that were trained, which must be sound."""
        status = self.d.status(self.job)
        self.d.ok("cancel", self.job)
        self.d.wait_state(self.job, "CANCELLED")
        out = rows(status["directory"])
        in_order(out, {e["epoch"]: e["detail"]["step"] for e in self.events("state.ready")})
        until("no worker is left", lambda: not worker_pids(self.d.state))
        return out


def kill_and_grow(name, sets, world, reference):
    """One worker is killed: half of the data-parallel ranks go on, and all of them when the replacement is there."""
    with gated(world) as (d, gate):
        sets["training.dataset_path"] = headers_text(d.state / "text")
        run = Run(d, name, sets)
        run.trains(world)
        gate.close()
        assert run.kill(run.seats()[0][0]) == world // 2
        run.trains(world // 2)
        gate.open()
        run.trains(world)
        grown = run.events("resize.finished")[-1]["detail"]
        print(f"# {name}: {world} workers again after a pause of {grown['resize_ms']} ms", flush=True)
        disturbed = run.end()
        assert [e["detail"]["world"] for e in run.events("epoch.formed")] == [world, world // 2, world]
        assert [e["detail"]["rung"] for e in run.events("state.ready")] == ["init", "buddy", "memory"]
        compare(disturbed, undisturbed(d.state / "calm", reference, sets, disturbed[-1]["step"]))


@slow
def eight_become_four():
    """pp=2 dp_shard=2 tp=2: 8 -> 4, a spare and a member killed there, 8 again; every loss bit for bit"""
    name = "pp=2 dp_shard=2 tp=2"
    with Daemon(None, "--slots", 8, pace_ms=100) as d:
        # No replacement is there or on its way meanwhile: a spare is not taken while one starts.
        sets = keys(headers_text(d.state / "text"), 4, 8, "pp=2 dp_shard=2 tp=2", fault_tolerance__backoff_ms=40000,
                    fault_tolerance__backoff_max_ms=40000)
        run = Run(d, name, sets)
        run.trains(8)
        assert run.kill(run.seats()[0][3]) == 4
        members, spares = run.seats()
        assert len(members) == 4 and len(spares) == 3, (members, spares)
        os.kill(spares[0], signal.SIGKILL)
        until("the loss of the spare is counted", lambda: d.status(run.job)["restarts"] == 2)
        assert len(run.events("epoch.forming")) == 2, "the loss of a spare disturbed the epoch"
        assert run.kill(members[0]) == 4, "a spare takes the place"
        run.trains(8)
        disturbed = run.end()
        assert [e["detail"]["world"] for e in run.events("epoch.formed")] == [8, 4, 4, 8]
        compare(disturbed, undisturbed(d.state / "calm", 4, sets, disturbed[-1]["step"]))


@slow
def zero_bubble():
    """ZBVZeroBubble, pp=2 dp_shard=2: 4 -> 2 -> 4"""
    kill_and_grow("ZBVZeroBubble", keys("", 2, 4, "pp=2", model__n_layers=4, parallelism__pipeline_parallel_schedule=
                                        "ZBVZeroBubble"), 4, 2)


@slow
def tied_embeddings():
    """one matrix for embedding and head, pp=2 dp_shard=2: 4 -> 2 -> 4"""
    kill_and_grow("tied embeddings, pp=2", keys("", 2, 4, "pp=2", model__name="qwen3"), 4, 2)


@slow
def context_parallel():
    """cp=2 dp_shard=2: 4 -> 2 -> 4"""
    kill_and_grow("cp=2 dp_shard=2", keys("", 2, 4, "cp=2"), 4, 2)


def experts():
    """experts, tp=2 ep=2 dp_shard=2: 4 -> 2 -> 4, and the experts' biases go with it"""
    kill_and_grow("experts, tp=2 ep=2", keys("", 2, 4, "tp=2 ep=2", model__name="llama3_moe"), 4, 2)


@slow
def experts_apart():
    """experts over two of dp_shard=4: 4 -> 2 -> 4; every loss bit for bit that of two"""
    kill_and_grow("experts, ep=2", keys("", 2, 4, "ep=2", model__name="llama3_moe"), 4, 2)


def parts_go_round(heads, left):
    """Four workers have a part of each layer. One is killed: those that are left have as many parts as heads allow."""
    keys_of = keys("", 2, 4, "", model__n_heads=heads, model__n_kv_heads=heads, model__dim=48, model__ffn_hidden=96,
                   parallelism__rotate="out_of_place", numerics__canonical="false", training__global_batch_size=12)
    with gated(4) as (d, gate):
        keys_of["training.dataset_path"] = headers_text(d.state / "text")
        run = Run(d, f"parts of {heads} heads", keys_of)
        run.trains(4)
        gate.close()
        assert run.kill(run.seats()[0][1]) == left
        run.trains(left)
        gate.open()
        run.trains(4)
        disturbed = run.end()
        assert [e["detail"]["world"] for e in run.events("epoch.formed")] == [4, left, 4]
        assert [e["detail"]["rung"] for e in run.events("state.ready")] == ["init", "buddy", "memory"]
        calm = undisturbed(d.state / "calm", 2, {**keys_of, "parallelism.rotate": "off"}, disturbed[-1]["step"])
        compare(disturbed, calm, bound=1e-4)  # additions in another order


def parts_of_twelve_heads():
    """dp_shard=4, layers' parts go round: 4 -> 3 -> 4, near the losses of two workers that gather"""
    parts_go_round(12, 3)


@slow
def parts_of_eight_heads():
    """three workers cannot share eight heads: 4 -> 2 -> 4"""
    parts_go_round(8, 2)


def waits_for_a_worker():
    """pp=2 tp=2 and no data parallelism: three make no mesh; the run says what it waits for, and goes on with four"""
    with Daemon(None, "--slots", 4, pace_ms=20) as d:
        # A replacement that starts is no worker that is missing.
        sets = keys(headers_text(d.state / "text"), 4, 4, "pp=2 tp=2", fault_tolerance__backoff_ms=8000, fault_tolerance__backoff_max_ms=8000)
        run = Run(d, "pp=2 tp=2", sets)
        follow = subprocess.Popen([BIN / "titanctl", "-s", d.server, "wait", run.job, "--follow"], stderr=subprocess.PIPE,
                                  stdout=subprocess.PIPE, text=True)
        run.trains(4)
        words = "waiting for 1 more worker: the mesh pp=2 tp=2 needs 4, 3 are there"
        os.kill(run.seats()[0][2], signal.SIGKILL)
        until("status says what it waits for", lambda: d.status(run.job)["reason"] == words)
        assert f"reason       {words}" in d.ok("status", run.job)
        run.trains(4)
        until("it waits for nothing", lambda: not d.status(run.job)["reason"])
        (waited,) = run.events("job.waiting")
        assert waited["detail"] == {"lacks": 1, "needs": 4, "workers": 3} and waited["message"] == words, waited
        disturbed = run.end()
        assert words in follow.communicate(timeout=deadline())[1]
        assert [e["detail"]["rung"] for e in run.events("state.ready")] == ["init", "buddy"]
        compare(disturbed, undisturbed(d.state / "calm", 4, sets, disturbed[-1]["step"]))


tap(eight_become_four, zero_bubble, tied_embeddings, context_parallel, experts, experts_apart, parts_of_twelve_heads, parts_of_eight_heads,
    waits_for_a_worker)
