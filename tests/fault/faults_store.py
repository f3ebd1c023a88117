# SPDX-License-Identifier: Apache-2.0
"""Faults of disks: the store's and the checkpoints'."""
import errno
import json
import os
from pathlib import Path

from cluster import Shim
from kit import (BUILD, SOURCE, Cluster, check_losses, check_membership, command, finish, keys, kill, now_ms, overrides, pause, repeated_steps,
                 scenario, steady, until)


@scenario(15, "the store's disk is full, then has space again", "I5", refused_without_reason=0, accepted_and_lost=0, epochs=0,
          resumed_ms=1000)
def disk_full(rounds, rng, r):
    k = keys()
    small = {**k, "training.steps": 1, "elastic.max_workers": 1}

    def prepare(c):
        c.small_disk(c.c.state, 48)
        (c.dir / "jobs").mkdir()
        (c.c.state / "jobs").symlink_to(c.dir / "jobs")  # the store's disk alone is full

    with Cluster(nodes=2, slots=2, prepare=prepare) as c:
        run, filler, accepted = c.submit(k), c.c.state / "filler", []
        for _ in range(rounds):
            since, epoch = steady(run, 4, rng)
            with open(filler, "wb", buffering=0) as f:
                for block in (1 << 20, 4096, 1):
                    try:
                        while True:
                            f.write(bytes(block))
                    except OSError as e:
                        assert e.errno == errno.ENOSPC, e
            begin, step, odd, refused = now_ms(), run.step(), 0, 0
            # The log of the store may have space of its own left: its first pages are written again after a checkpoint.
            while now_ms() < begin + 1500 or (not refused and now_ms() < begin + 20000):
                done = submit(c, small)
                if done.code == 0:
                    accepted.append(int(done.out.strip()))
                else:
                    refused += 1
                    odd += not any(w in done.err for w in ("full", "space"))
            trained = run.step() - step
            assert refused, "the disk is full, and everything was accepted"
            assert trained > 10, f"only {trained} steps while the disk was full"
            filler.unlink()
            freed = now_ms()
            accepted.append(int(until("a submit is accepted again", lambda: (lambda d: d.code == 0 and d.out)(submit(c, small)), 20,
                                      0.02).strip()))
            back = now_ms() - freed
            listed = c.listed()
            r.round(refused=refused, refused_without_reason=odd, accepted_and_lost=len(set(accepted) - listed), resumed_ms=back,
                    epochs=run.epoch() - epoch, steps_meanwhile=trained)
        run.cancel()
        check_membership(run)
        r.note(losses_compared=check_losses(run, k), steps=run.step(), trained_again=repeated_steps(run))


def submit(c, words):
    return c.ctl("submit", SOURCE / "recipes/tiny.toml", *overrides(words))


@scenario(16, "the n-th call that writes the store fails: EIO, a short write, a failed fsync", "I5, I8", acknowledged_lost=0, epochs=0,
          back_ms=2000)
def store_call_fails(rounds, rng, r):
    k = keys()
    small = {**k, "training.steps": 1, "elastic.max_workers": 1}
    with Cluster(nodes=2, slots=2) as c:
        shim = Shim(c.dir / "shim")
        c.c.env = shim.env()
        c.c.kill()
        c.start_coordinator()
        run, accepted = c.submit(k), []
        for n in range(rounds):
            _, epoch = steady(run, 4, rng)
            restarts = 0
            shim.fail(n + 1, (errno.EIO, 0, errno.ENOSPC)[n % 3], stay=0)
            begin = now_ms()
            while now_ms() < begin + 10000 and not shim.get()["failed"]:
                restarts += ensure_coordinator(c)
                done = submit(c, small)
                if done.code == 0:
                    accepted.append(int(done.out.strip()))
            what = shim.get()
            assert what["failed"], "no call failed"
            shim.set(fail_at=0)
            done = None

            def works():
                nonlocal restarts, done
                restarts += ensure_coordinator(c)
                done = submit(c, small)
                return done.code == 0
            failed = now_ms()
            until("submits are accepted again", works, 20, 0.02)
            accepted.append(int(done.out.strip()))
            listed = c.listed()
            if what["last"] in ("fsync", "fdatasync"):
                assert restarts, f"titand went on with a file after its {what['last']} had failed"
            run.await_training(4, run.step() + 3)
            r.round(call=n + 1, restarts=restarts, back_ms=now_ms() - failed, acknowledged_lost=len(set(accepted) - listed),
                    epochs=run.epoch() - epoch)
            r.notes.setdefault("failed_calls", []).append(what["last"])
        assert integrity(c) == "ok", "the store is damaged"
        finish(r, run, k)


def ensure_coordinator(c):
    """What systemd does: a daemon that has ended is started again. 1 when it had."""
    if c.c.running():
        return 0
    c.c.process.wait()
    c.start_coordinator()
    return 1


def integrity(c):
    return c.rows("PRAGMA integrity_check")[0]["integrity_check"]


@scenario(18, "SIGKILL of all workers while a checkpoint is written", "I8", not_newest=0, partial_left=0, resumed_ms=3000)
def killed_in_checkpoint(rounds, rng, r):
    k = keys(**{"checkpoint.interval": 10})
    with Cluster(nodes=2, slots=2) as c:
        run = c.submit(k)
        for _ in range(rounds):
            since, epoch = steady(run, 4, rng)
            until("it has a checkpoint", lambda: run.status()["checkpoint"], 30)
            folder = c.c.state / f"jobs/{run.job}/checkpoint"
            pids = [pid for pid, _ in run.workers().values()]
            partial = until("a checkpoint is being written", lambda: unfinished(folder), 30, 0)
            pause(rng.uniform(0, 0.003), "somewhere inside the write")
            at = kill(pids[0])
            for pid in pids[1:]:
                kill(pid)
            back = run.await_step_after(at, epoch=epoch)  # an epoch of those that were not known to be dead came to nothing
            source = c.rows("SELECT checkpoint, resume_step FROM epochs WHERE job_id = ? AND number = ?", run.job, back["epoch"])[0]
            newest = c.rows("SELECT max(step) AS step FROM checkpoints WHERE job_id = ? AND epoch <= ?", run.job, epoch)[0]["step"]
            run.await_training(4, back["step"])
            run.await_event(since, "checkpoint.committed", when=lambda e: e["epoch"] > epoch)
            until("partial checkpoints are swept", lambda: not (set(partial) & set(unfinished(folder))), 10)
            r.round(resumed_ms=back["time_ms"] - at, not_newest=int(source["resume_step"] != newest), partial_left=0,
                    steps_repeated=max(m["step"] for m in run.lines() if m["epoch"] <= epoch) - newest)
        finish(r, run, k, repeats=None)


def unfinished(folder):
    try:
        return [n for n in os.listdir(folder) if n.startswith(".")]
    except FileNotFoundError:
        return []


@scenario(19, "a checkpoint is damaged: a bit flipped, a file cut short; then all workers are killed", "I8", not_named=0,
          loaded_damaged=0, resumed_ms=5000)
def checkpoint_damaged(rounds, rng, r):
    k = keys(**{"checkpoint.interval": 50})
    with Cluster(nodes=2, slots=2) as c:
        run = c.submit(k)
        for n in range(rounds):
            since, epoch = steady(run, 4, rng)
            for _ in range(2):  # the one before is to fall back to
                newest = run.await_event(since, "checkpoint.committed")
                since = newest["id"]
            shard = damage(Path(newest["detail"]["path"]), rng, cut=n % 2 == 1)
            at = now_ms()
            for pid, _ in run.workers().values():
                kill(pid)
            back = run.await_step_after(at, epoch=epoch, seconds=60)
            run.await_training(4, back["step"])
            text = " ".join(e["message"] + json.dumps(e["detail"]) for e in run.events(since)) + c.ok("logs", run.job, "--tail", 200)
            r.round(resumed_ms=back["time_ms"] - at, not_named=int(shard.name not in text),
                    loaded_damaged=int(back["step"] > newest["detail"]["step"]))
        # The run writes the damaged one again: the newest checkpoint that is listed is then of a step that it has done.
        run.await_event(since, "checkpoint.committed", when=lambda e: e["detail"]["step"] >= newest["detail"]["step"])
        finish(r, run, k, repeats=None)


def damage(folder, rng, cut):
    """Flips a bit of one of the folder's larger files, or cuts it short. Returns the file."""
    files = sorted(p for p in folder.rglob("*") if p.is_file() and p.stat().st_size > 4096)
    shard = rng.choice(files)
    size = shard.stat().st_size
    if cut:
        os.truncate(shard, rng.randrange(size // 2, size))
        return shard
    with open(shard, "r+b") as f:
        at = rng.randrange(size // 2, size)
        f.seek(at)
        byte = f.read(1)[0]
        f.seek(at)
        f.write(bytes([byte ^ (1 << rng.randrange(8))]))
    return shard


@scenario(17, "the power is cut: writes that were not synced are lost, at 500 random points a round", "I5, I6, I8", failed=0)
def power_cut(rounds, rng, r):
    """The store itself on a disk of its own making (tests/support/disk.c): no process can be made to lose its page cache."""
    program = BUILD / "tests/unit/state/test_disk_faults"
    for _ in range(rounds):
        seed = rng.randrange(1 << 32)
        done = command(program, timeout=600, env={**os.environ, "CUTS": "500", "SEED": str(seed), "CMOCKA_MESSAGE_OUTPUT": "TAP"})
        failed = sum(line.startswith("not ok") for line in done.out.splitlines())
        if failed or done.code != 0:
            print(f"# SEED={seed}\n# " + (done.out + done.err).replace("\n", "\n# "))
        r.round(cuts=500, failed=failed or int(done.code != 0))
