# SPDX-License-Identifier: Apache-2.0
"""What fault scenarios are made of: how one is declared, what it records, and what must hold after every run of one."""
import datetime
import fcntl
import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from cluster import Cluster, kill, now_ms  # noqa: E402
from reports import agree  # noqa: E402
from titan import BIN, BUILD, SOURCE, alive, command, files_of, headers_text, overrides, pause, until, worker_pids  # noqa: E402

HOME = BUILD / "fault"
KEYS = {"training.steps": 1000000, "elastic.min_workers": 1, "elastic.max_workers": 4, "checkpoint.interval": 100,
        "checkpoint.keep_latest_k": 3, "numerics.canonical": "true", "training.mixed_precision_param": "float32",
        "training.global_batch_size": 8, "training.local_batch_size": 1, "fault_tolerance.backoff_ms": 300,
        "fault_tolerance.max_restarts": 1000000,
        "fault_tolerance.redundancy": "buddy", "device.threads": 1}
SCENARIOS = {}


def alone(name):
    """A lock of that name among the tests of this build."""
    HOME.mkdir(parents=True, exist_ok=True)
    lock = open(HOME / f"{name}.lock", "w")
    fcntl.flock(lock, fcntl.LOCK_EX)
    return lock


def keys(**more):
    small = {} if Cluster.judged else {"training.seq_len": 16}
    with alone("text"):
        return {**KEYS, **small, "training.dataset_path": headers_text(HOME / "text", 1 << 19), **more}


class Record:
    """What a scenario measures: name -> one value a round."""

    def __init__(self, seed):
        self.seed, self.values, self.notes = seed, {}, {}

    def round(self, **values):
        for name, value in values.items():
            self.values.setdefault(name, []).append(value)
        print("#   " + "  ".join(f"{k} {v:.1f}" if isinstance(v, float) else f"{k} {v}" for k, v in values.items()), flush=True)

    def note(self, **notes):
        self.notes.update(notes)


class Scenario:
    def __init__(self, number, title, invariants, targets, fast, work):
        self.number, self.title, self.invariants, self.targets = number, title, invariants, targets
        self.fast, self.work = fast, work


def scenario(number, title, invariants, fast=False, **targets):
    """targets: name of a measure -> the most that any round may show."""
    def add(work):
        assert number not in SCENARIOS, f"scenario {number} is there already: {SCENARIOS[number].title}"
        SCENARIOS[number] = Scenario(number, title, invariants, targets, fast, work)
        return work
    return add


def figures(values):
    """min, median, p99, max of one measure."""
    v = sorted(values)
    return {"rounds": len(v), "min": v[0], "median": v[len(v) // 2], "p99": v[min(len(v) - 1, -(-99 * len(v) // 100) - 1)],
            "max": v[-1]}


def missed(targets, measured):
    """What the figures do not hold. Steps lost are never only told: a scenario in which they may be says how they are bounded."""
    over = [f"{name}: {measured[name]['max']:.0f}, not {limit} at most" for name, limit in targets.items()
            if name in measured and measured[name]["max"] > limit]
    return over + ["steps_lost: measured without a target"] * ("steps_lost" in measured and "steps_lost" not in targets)


def machine():
    cpu = next((line.split(":", 1)[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), "?")
    memory = int(open("/proc/meminfo").readline().split()[1]) >> 20
    return {"cpu": cpu, "cores": os.cpu_count(), "memory_gib": memory, "kernel": platform.release(),
            "load": round(os.getloadavg()[0], 1)}


def stamp():
    """When this was measured, and of which commit."""
    return {"at": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "commit": command("git", "-C", SOURCE, "rev-parse", "--short", "HEAD").out.strip()}


# --- what must hold after every run --------------------------------------------------------------------------------------

class Losses:
    """Of a metrics.jsonl that grows: by step, up to the last whole line."""

    def __init__(self, path):
        self.path, self.offset, self.by_step = path, 0, {}

    def read(self):
        if self.path.exists():
            with open(self.path, "rb") as f:
                f.seek(self.offset)
                whole = f.read().rpartition(b"\n")[0]
            self.offset += len(whole) + bool(whole)
            self.by_step.update((m["step"], m["loss"]) for m in map(json.loads, whole.splitlines()))
        return self.by_step


def train_undisturbed(folder, recipe_keys, steps):
    """Alone in that folder, as long as it takes and it gets on."""
    shutil.rmtree(folder, ignore_errors=True)
    words = {**recipe_keys, "checkpoint.enable": "false", "elastic.min_workers": 1}
    losses, log = Losses(folder / "metrics.jsonl"), folder.with_suffix(".log")
    log.parent.mkdir(parents=True, exist_ok=True)
    with open(log, "w") as out:
        p = subprocess.Popen([str(a) for a in (BIN / "titan-worker", "run", SOURCE / "recipes/tiny.toml", "-n", 1, "--dir",
                                               folder, *overrides(words))], stdout=out, stderr=out)
    try:
        while (before := len(losses.read())) < steps:
            until(f"the undisturbed run makes a step after {before}", lambda: p.poll() is not None or len(losses.read()) > before)
            assert p.poll() is None, f"the undisturbed run ended: {log.read_text()[-2000:]}"
    finally:
        p.terminate()
        p.wait()
    return losses.read()


def undisturbed(recipe_keys, steps):
    """Losses of the first steps of the undisturbed run, by step. Kept: it is the same for all scenarios."""
    same = ("elastic.", "checkpoint.", "fault_tolerance.", "job.")  # what changes no loss
    words = {k: str(v) for k, v in recipe_keys.items() if not k.startswith(same)}
    words["built"] = str((BIN / "titan-worker").stat().st_mtime_ns)
    name = hashlib.sha256(json.dumps(words, sort_keys=True).encode()).hexdigest()[:16]
    folder = HOME / "undisturbed" / name
    with alone(name):
        losses = Losses(folder / "metrics.jsonl").read()
        return losses if len(losses) >= steps else train_undisturbed(folder, recipe_keys, steps + (500 if Cluster.judged else 150))


def check_losses(run, recipe_keys):
    """Canonical mode: each step's loss is that of the undisturbed run, bit for bit, whatever worker trained it and however often."""
    lines = run.lines()
    calm = undisturbed(recipe_keys, max(m["step"] for m in lines))
    wrong = [m for m in lines if m["loss"] != calm[m["step"]]]
    assert not wrong, f"{len(wrong)} of {len(lines)} losses differ, the first at step {wrong[0]['step']}, epoch {wrong[0]['epoch']}"
    return len(lines)


def check_membership(run):
    """I1, I2, I3, I10 from the store and the steps: one membership per epoch, its number only grows, no epoch trains after a later
    one, a checkpoint is of a step that was trained, each counted end is in the number of restarts."""
    c = run.cluster
    forming = run.events(0, "epoch.forming", "epoch.delegated")
    numbers = [e["epoch"] for e in forming]
    assert all(n == 1 for n in Counter(numbers).values()), f"an epoch was decided twice: {numbers}"
    assert numbers == sorted(numbers), f"epochs out of order: {numbers}"
    # Behind the members stand those that only hand their parts over.
    seats = c.rows("SELECT epoch, rank, worker_id FROM members m WHERE job_id = ? AND rank < (SELECT world_size FROM epochs e "
                   "WHERE e.job_id = m.job_id AND e.number = m.epoch)", run.job)
    assert len({(s["epoch"], s["worker_id"]) for s in seats}) == len(seats), "a worker has two ranks of one epoch"
    trained = [m["epoch"] for m in run.lines()]
    late = next((i for i in range(1, len(trained)) if trained[i] < trained[i - 1]), 0)
    assert not late, f"an epoch trained after a later one: {run.lines()[late - 1]}, then {run.lines()[late]}"
    for e in set(trained):
        world = {m["world_size"] for m in run.lines() if m["epoch"] == e}
        assert world == {sum(s["epoch"] == e for s in seats)}, f"epoch {e}: members and steps disagree: {world}"
    counted = c.rows("SELECT count(*) AS n FROM workers WHERE job_id = ? AND counted = 1", run.job)[0]["n"]
    restarts = c.rows("SELECT restarts FROM jobs WHERE id = ?", run.job)[0]["restarts"]
    failed = len(run.events(0, "epoch.failed"))
    assert counted <= restarts <= counted + failed, f"{restarts} restarts, {counted} counted ends, {failed} failed epochs"


def repeated_steps(run, since_line=0):
    """Committed steps that were trained again."""
    lines, again = run.lines(), 0
    highest = max((m["step"] for m in lines[:since_line]), default=0)
    for m in lines[since_line:]:
        again += m["step"] <= highest
        highest = max(highest, m["step"])
    return again


def check_nothing_left(c):
    """I7: no worker, memfd or port of the job outlives it."""
    until("no worker is left", lambda: not worker_pids(c.dir))
    for host in c.nodes():
        if host.running():
            left = [p for p in host.cgroup.pids() if p not in (host.pid, c.c.pid if c.c.process else 0)]
            assert not left, f"{host.name}: processes {left} are left"
            until(f"{host.name} has removed its workers' cgroups", lambda: not host.cgroup.inner())
            memfds = [name for name in files_of(host.pid) if "memfd" in name]
            assert not memfds, f"{host.name}: {memfds}"
            assert not [p for p in host.listening() if p not in ((7070, 7071) if host is c.seat else (7070,))], f"{host.name}: listens at {host.listening()}"
            pages = [*(host.state / "run").glob("*.page"), *(host.state / "run").glob("pages/*")]
            assert not pages, f"{host.name}: {pages}"


def finish(r, run, recipe_keys, repeats=0):
    """Ends the run and checks all of it. repeats: committed steps that may have been trained again; None = any."""
    run.cancel()
    agree(run.cluster.ok, run.job)
    check_membership(run)
    again = repeated_steps(run)
    r.note(steps=run.lines()[-1]["step"], epochs=run.epoch(), trained_again=again, losses_compared=check_losses(run, recipe_keys))
    check_nothing_left(run.cluster)
    assert repeats is None or again <= repeats, f"{again} committed steps were trained again"


def zero_lost(run, epoch, back):
    """Committed steps of epochs up to that one which the first step of a later one does not build on."""
    before = [m["step"] for m in run.lines() if m["epoch"] <= epoch][-1]
    return max(0, before - (back["step"] - 1))


def stretch(run, begin_ms, end_ms):
    """How much longer the longest time between two finished steps was in a window than in one of that length before it."""
    times = [m["time_ms"] for m in run.lines()]
    gaps = [(b - a, a, b) for a, b in zip(times, times[1:])]
    inside = [g for g, a, b in gaps if b >= begin_ms and a <= end_ms]
    before = [g for g, a, b in gaps if a >= begin_ms - (end_ms - begin_ms) and b < begin_ms]
    return max(0, max(inside, default=0) - max(before, default=0))


def steady(run, world, rng, beyond=None):
    """Trains as it should, and is somewhere inside a step."""
    run.await_training(world, run.step() + 5 if beyond is None else beyond)
    run.await_alone()
    pause(rng.uniform(0, 0.03), "somewhere inside a step")
    return run.last_event(), run.epoch()


def evictions(c, since):
    """Nodes and workers that were given up, and epochs that were broken for no loss."""
    return c.rows("SELECT count(*) AS n FROM events WHERE type IN ('node.lost', 'worker.lost', 'worker.exited', 'epoch.revoked', "
                  "'epoch.failed') AND id > ?", since)[0]["n"]


def epochs_since(run, since):
    return len(run.events(since, "epoch.forming", "epoch.delegated"))


def node_lost_at(c, host, since):
    def lost():
        rows = c.rows("SELECT at_ms FROM events WHERE type = 'node.lost' AND node = ? AND id > ?", host.name, since)
        return rows and rows[0]["at_ms"]
    return until(f"{host.name} is lost", lost, every=c.every(0.005))
