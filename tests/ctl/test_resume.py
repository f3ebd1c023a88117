#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A job that goes on from another: resume, submit --from, "job:ID" in a run file; and that two jobs never share a folder."""
import os
import re
import signal
import sys
from pathlib import Path
from shutil import copytree

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from titan import BIN, SOURCE, Daemon, command, headers_text, overrides, tap, until  # noqa: E402

TINY = SOURCE / "recipes/tiny.toml"
LONG = 1000000


class World:
    """What the tests share: a daemon with slots for two runs, and a job that has done 20 steps."""


def keys(**more):
    return {"training.dataset_path": World.text, "elastic.min_workers": 1, "elastic.max_workers": 1, "device.threads": 1,
            "checkpoint.keep_latest_k": 0, "lr_scheduler.total_steps": 100, "training.steps": 20,
            **{k.replace("__", "."): v for k, v in more.items()}}


def submit(*args, **more):
    return World.daemon.ctl("submit", TINY, *overrides(keys(**more)), *args)


def number(done):
    assert done.code == 0, done.err
    return int(done.out)


def ended(job, state="COMPLETED"):
    s = World.daemon.wait_state(job, state, "FAILED", "COMPLETED", "CANCELLED")
    assert s["state"] == state, s
    return s


def losses(job):
    return {m["step"]: m["loss"] for m in World.daemon.lines("metrics", job)}


def folder(job):
    return World.daemon.state / f"jobs/{job}/checkpoint"


def refused(done, code, *words):
    assert done.code == code, f"exit {done.code} instead of {code}: {done.out} {done.err}"
    for word in words:
        assert word in done.err, f"'{word}' is missing in: {done.err}"


def cancelled_after_20_steps():
    job = number(submit(training__steps=LONG))
    until("it has a checkpoint", lambda: (folder(job) / "step-00000020").exists())
    World.daemon.ok("cancel", job)
    ended(job, "CANCELLED")
    return job


def resume_a_cancelled_job():
    """resume: a new job on the same folder, from the newest checkpoint, losses as of a run that was never cancelled"""
    d = World.daemon
    first = cancelled_after_20_steps()
    newest = max(int(p.name[5:]) for p in folder(first).glob("step-*"))
    done = d.ctl("resume", first, "--set", f"training.steps={newest + 10}")
    second = number(done)
    assert f"job {second} resumes from the checkpoint of step {newest} in {folder(first)}\n" in done.err, done.err
    assert f"training.steps = {newest + 10}, there {LONG}\n" in done.err, done.err
    ended(second)
    assert d.status(second)["name"] == "tiny"
    got = losses(second)
    assert sorted(got) == list(range(newest + 1, newest + 11)), sorted(got)
    whole = losses(number(submit("--follow", training__steps=newest + 10)))
    assert got == {step: whole[step] for step in got}, (got, whole)
    assert (folder(first) / f"step-{newest + 10:08d}").exists() and not folder(second).exists()
    # A resumed one is resumed itself, in the folder that is handed on.
    third = number(d.ctl("resume", second, "--set", f"training.steps={newest + 15}"))
    ended(third)
    assert min(losses(third)) == newest + 11 and (folder(first) / f"step-{newest + 15:08d}").exists()


def resume_what_completed_or_failed():
    """resume: one that has completed needs more steps, one that failed goes on, one without a checkpoint begins anew"""
    d = World.daemon
    refused(d.ctl("resume", World.done), 6, "has done all of its 20 steps", "--set training.steps=N")
    more = d.ctl("resume", World.done, "--set", "training.steps=25", "--follow")
    assert more.code == 0 and min(losses(number(more))) == 21, more.err
    (d.state / "broken/step-00000001").mkdir(parents=True)
    job = number(submit(checkpoint__initial_load_path=d.state / "broken"))
    ended(job, "FAILED")
    again = d.ctl("resume", job)
    assert f"begins anew: job {job} has no checkpoint" in again.err, again.err
    ended(number(again), "FAILED")
    refused(d.ctl("resume", 4711), 3, "4711")


def resume_whatever_it_began_with():
    """resume: load_step and exclude_from_loading are done with; one that wrote no checkpoint but when it was cancelled goes on from that"""
    d = World.daemon
    place = d.state / "began"
    first = {"checkpoint__folder": place}
    number(submit("--follow", **first))
    job = number(submit("--follow", checkpoint__load_step=10, checkpoint__exclude_from_loading="optimizer", training__steps=22, **first))
    assert min(losses(job)) == 11
    more = number(d.ctl("resume", job, "--set", "training.steps=24", "--follow"))
    stored = (d.state / f"jobs/{more}/recipe.toml").read_text()
    assert sorted(losses(more)) == [23, 24] and "load_step = -1\n" in stored and 'exclude_from_loading = []\n' in stored, stored

    job = number(submit(checkpoint__enable="false", training__steps=LONG))
    until("it trains", lambda: losses(job))
    d.ok("cancel", job, "--checkpoint")
    ended(job, "CANCELLED")
    newest = max(int(p.name[5:]) for p in folder(job).glob("step-*"))
    more = number(d.ctl("resume", job, "--set", f"training.steps={newest + 2}", "--follow"))
    assert sorted(losses(more)) == [newest + 1, newest + 2] and sorted(p.name for p in folder(job).glob("step-*")) == [f"step-{newest:08d}"]


def resume_refused():
    """resume: not while the job runs, not with other numbers; the message says what to do instead"""
    d = World.daemon
    job = number(submit(training__steps=LONG))
    refused(d.ctl("resume", job), 6, f"job {job} is ", "cancel it")
    d.ok("cancel", job)
    ended(job, "CANCELLED")
    refused(d.ctl("resume", job, "--set", "optimizer.lr=1e-4"), 2, "optimizer.lr = 0.0001, there 0.003", f"submit --from {job}")


def one_folder_two_jobs():
    """a folder that a job holds is refused at submit by that job's name: also its own one, which no recipe names"""
    d = World.daemon
    job = number(submit(training__steps=LONG))
    refused(submit(checkpoint__folder=folder(job), training__steps=LONG), 6, f"in use by job {job} (tiny)", str(folder(job)))
    d.ok("cancel", job)
    ended(job, "CANCELLED")
    second = number(d.ctl("resume", job))
    refused(d.ctl("resume", job), 6, f"in use by job {second} (tiny)")
    d.ok("cancel", second)
    ended(second, "CANCELLED")


def from_another_job():
    """submit --from: begins from that job's checkpoint, optimizer and step as well, and says which keys differ"""
    d = World.daemon
    done = d.ctl("submit", "--from", World.done, "--set", "training.steps=30", "--set", "optimizer.lr=1e-4", "--follow")
    job = number(done)
    for line in (f"job {job} begins from {folder(World.done)}/step-000000", "optimizer.lr = 0.0001, there 0.003", "training.steps = 30, there 20"):
        assert line in done.err, (line, done.err)
    newest = max(int(p.name[5:]) for p in folder(World.done).glob("step-*"))
    assert min(losses(job)) == newest + 1 and folder(job).exists()

    done = d.ctl("submit", "--from", f"{World.done}@10")
    assert f"step-00000010\n" in done.err and f"its keys are those of job {World.done}\n" in done.err, done.err
    ended(number(done))
    assert losses(number(done)) == {s: x for s, x in losses(World.done).items() if s > 10}

    weights = submit("--from", f"{World.done}@10", "--follow", checkpoint__initial_load_model_only="true")
    assert min(losses(number(weights))) == 1, weights.err

    refused(d.ctl("submit", "--from", f"{World.done}@11"), 3, "no checkpoint of step 11", f"titanctl checkpoints {World.done}")
    for bad in ("x", f"{World.done}@", f"{World.done}@x", "0", "-1", "@10", f"{World.done}@1@2"):
        refused(d.ctl("submit", "--from", bad), 2, "JOB@STEP")
    refused(d.ctl("submit"), 2, "FILE")


def copied_data(name):
    """Data of a job's own, which may be changed."""
    at = World.daemon.state / name
    copytree(World.text, at)
    return at


def change(at):
    file = max(at.iterdir(), key=lambda p: p.stat().st_size)
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


OTHER_DATA = "the training data is another: '"


def other_data_on_every_way():
    """data that has changed at its path: a resume, --from with its step and a worker that is replaced are refused with both values, once; accept_changed goes on"""
    d = World.daemon
    text = copied_data("changing")
    first = {"training__dataset_path": text}
    job = number(submit("--follow", **first))
    change(text)
    for again in (d.ctl("resume", job, "--set", "training.steps=25"), d.ctl("submit", "--from", job, "--set", "training.steps=25")):
        refused_job = number(again)
        reason = ended(refused_job, "FAILED")["reason"]
        assert OTHER_DATA in reason and reason.count(" tokens (") == 2 and "accept_changed" in reason, reason
        assert d.status(refused_job).get("restarts", 0) == 0, d.status(refused_job)
    taken = d.ctl("resume", job, "--set", "training.steps=25", "--set", 'checkpoint.accept_changed=["data"]', "--follow")
    assert min(losses(number(taken))) == 21, taken.err
    more = d.ctl("resume", number(taken), "--set", "training.steps=30", "--follow")  # by now it is that run's, and the key is not repeated
    assert min(losses(number(more))) == 26, more.err
    assert "accept_changed = []\n" in (d.state / f"jobs/{number(more)}/recipe.toml").read_text()
    begun = d.ctl("submit", "--from", job, "--set", "checkpoint.initial_load_model_only=true", "--follow")  # at step 0 it has read nothing
    assert min(losses(number(begun))) == 1, begun.err

    job = number(submit(training__steps=LONG, **first))
    until("it has a checkpoint", lambda: (folder(job) / "step-00000020").exists())
    change(text)
    (worker,) = d.workers(job).values()
    os.kill(worker, signal.SIGKILL)
    reason = ended(job, "FAILED")["reason"]
    assert OTHER_DATA in reason, reason


def samples(job):
    """{number of a sample: hash} of what a job read from step 21 on, 4 a step behind 160, whichever worker did; each hash the same."""
    found = {}
    for file in (World.daemon.state / f"jobs/{job}").glob("samples-*.csv"):
        for step, number_in_step, text in (line.split(",") for line in file.read_text().splitlines() if line.count(",") == 2):
            g = 160 + (int(step) - 21) * 4 + int(number_in_step)
            assert found.setdefault(g, text) == text, (job, step, number_in_step)
    return found


def batch_of_a_new_worker():
    """another batch, taken by accept_changed: a worker that comes anew, with the state from the others' memory, reads on where they do"""
    d = World.daemon
    one = d.state / "one"
    assert command(BIN / "titan-worker", "run", TINY, "--dir", one, *overrides(keys(training__steps=200, metrics__log_samples="true"))).code == 0
    lines = sorted((int(step), int(n), text) for f in one.glob("samples-*.csv") for step, n, text in (x.split(",") for x in f.read_text().splitlines()))
    whole = [text for _, _, text in lines]  # 8 a step: by their numbers
    both = {"elastic__max_workers": 2, "metrics__log_samples": "true"}
    first = number(submit("--follow", **both))
    job = number(d.ctl("resume", first, *overrides({"training.steps": LONG, "training.global_batch_size": 4, "checkpoint.accept_changed": '["batch"]'})))
    for kill in range(2):
        s = until("two workers train", lambda: (lambda s: s["state"] == "RUNNING" and s["world_size"] == 2 and s["step"] > 22 and s)(d.status(job)))
        workers = d.workers(job)
        os.kill(workers[(min, max)[kill](workers)], signal.SIGKILL)
        until("it goes on with another", lambda: (lambda n: n["state"] == "RUNNING" and n["world_size"] == 2 and n["step"] > s["step"] + 5)(d.status(job)))
    d.ok("cancel", job)
    ended(job, "CANCELLED")
    rungs = {e["detail"]["rung"] for e in d.lines("events", job) if e["type"] == "state.ready"}
    assert rungs - {"checkpoint"}, rungs
    got = {g: text for g, text in samples(job).items() if g < len(whole)}
    assert len(got) > 40 and min(got) == 160 and got == {g: whole[g] for g in got}, (len(got), min(got))


def the_way_back():
    """a run that went back is resumed from where it is; submit prints the step that is taken, refuses one that is not there, and prints what more steps do to the rate"""
    d = World.daemon
    place = d.state / "back"
    first = {"checkpoint__folder": place}
    number(submit("--follow", training__steps=40, **first))
    refused(submit(checkpoint__load_step=11, **first), 6, f"checkpoint.load_step = 11: checkpoint folder '{place}' has none of that step")
    refused(submit(checkpoint__load_step=11, checkpoint__folder=d.state / "no-such"), 6, "has none of that step")
    refused(submit(checkpoint__load_step=11), 2, "the job's own folder has no checkpoint yet")
    done = submit("--follow", training__steps=15, checkpoint__load_step=10, **first)
    assert f"resumes from the checkpoint of step 10 in {place}\n" in done.err, done.err
    back = number(done)
    assert sorted(losses(back)) == list(range(11, 16))
    done = d.ctl("resume", back, "--set", "training.steps=18", "--follow")
    assert f"resumes from the checkpoint of step 15 in {place}\n" in done.err, done.err
    assert sorted(losses(number(done))) == [16, 17, 18]
    done = submit("--follow", training__steps=20, **first)
    assert f"resumes from the checkpoint of step 18 in {place}\n" in done.err, done.err
    assert sorted(losses(number(done))) == [19, 20]

    other = {"checkpoint__folder": d.state / "rate", "lr_scheduler__total_steps": -1}
    number(submit("--follow", **other))
    done = submit("--follow", training__steps=30, **other)
    assert "note: learning rate " in done.err and "20 before and 30 now; lr_scheduler.total_steps = 20 keeps what it was" in done.err, done.err


def fresh_folders():
    """a folder with checkpoints: another recipe is refused at submit with the run that wrote them; --fresh takes the next free name"""
    d = World.daemon
    place = d.state / "ck"
    first = number(submit("--follow", checkpoint__folder=place))
    other = {"checkpoint__folder": place, "optimizer__lr": "1e-4"}
    refused(submit(**other), 6, f"holds checkpoints of another recipe, by job {first}: optimizer.lr = 0.0001, there 0.003", "--fresh")
    refused(submit("--from", first, **other), 6, "has checkpoints, up to step 20", "--fresh")
    before = sorted(p.name for p in place.iterdir())
    number(submit("--from", first, "--fresh", "--follow", training__steps=25, **other))
    number(submit("--fresh", "--follow", **other))
    assert (d.state / "ck-2/step-00000025").exists() and not (d.state / "ck-2/step-00000020").exists()
    assert (d.state / "ck-3/step-00000020").exists() and sorted(p.name for p in place.iterdir()) == before
    free = d.state / "free"
    number(submit("--fresh", "--follow", checkpoint__folder=free))
    assert (free / "step-00000020").exists() and not (d.state / "free-2").exists()


def job_in_a_run_file():
    """checkpoint.initial_load_path = "job:ID": one checkpoint of that job, that of load_step where it is given"""
    d = World.daemon
    job = number(submit("--follow", checkpoint__initial_load_path=f"job:{World.done}", checkpoint__load_step=10, training__steps=12,
                        checkpoint__initial_load_model_only="false"))
    assert min(losses(job)) == 11
    stored = (d.state / f"jobs/{job}/recipe.toml").read_text()
    assert f'initial_load_path = "{folder(World.done)}/step-00000010"' in stored and re.search(r"^load_step = -1$", stored, re.M), stored
    refused(submit(checkpoint__initial_load_path="job:4711"), 3, "there is no job 4711")
    for bad in ("job:", "job:x", "job:0", "job:1x", "job:99999999999999999999"):
        refused(submit(checkpoint__initial_load_path=bad), 2, f'"{bad}"', "number of a job")
    refused(submit(checkpoint__initial_load_path=f"job:{World.done}", checkpoint__initial_load_in_hf="true"), 2, "no Hugging Face directory")
    solo = command(BIN / "titan-worker", "run", TINY, "--dir", d.state / "solo",
                   *overrides(keys(checkpoint__initial_load_path=f"job:{World.done}")))
    refused(solo, 2, "only titand knows jobs")


def nothing_to_begin_with():
    """a path or a job without what the run is to begin with is refused at submit, unless the run has checkpoints of its own"""
    d = World.daemon
    empty = d.state / "empty"
    empty.mkdir()
    refused(submit(checkpoint__initial_load_path=empty), 2, f'initial_load_path = "{empty}" has no checkpoint', "job:ID")
    refused(submit(checkpoint__initial_load_path=empty, checkpoint__initial_load_in_hf="true", checkpoint__initial_load_model_only="true"), 2,
            "has no weights", "model.safetensors")
    refused(submit(checkpoint__initial_load_path=d.state / "none"), 2, "No such file")
    (empty / "model.safetensors").touch()
    refused(submit(checkpoint__initial_load_path=empty), 2, "has no checkpoint", "initial_load_in_hf = true")
    never = number(submit("--follow", checkpoint__enable="false"))
    refused(submit(checkpoint__initial_load_path=f"job:{never}"), 3, f"job {never} has no checkpoint", f"titanctl checkpoints {never}")
    refused(d.ctl("submit", "--from", never), 3, f"job {never} has no checkpoint")
    place, begin = d.state / "begun", d.state / "begin"
    copytree(folder(World.done) / "step-00000010", begin)
    keys = {"checkpoint__folder": place, "checkpoint__initial_load_path": begin, "checkpoint__initial_load_model_only": "false"}
    number(submit("--follow", **keys))
    (begin / "manifest.json").unlink()
    assert (place / "step-00000020").exists() and "resumes from the checkpoint of step 20" in submit("--follow", training__steps=22, **keys).err
    refused(submit(**{**keys, "checkpoint__folder": d.state / "another"}), 2, "has no checkpoint")


def weights_alone_at_the_end():
    """a last checkpoint of weights alone: resume and --from go on from the one before, and say so; weights are taken from the last"""
    d = World.daemon
    job = number(submit("--follow", checkpoint__last_save_model_only="true"))
    more = d.ctl("resume", job, "--set", "training.steps=25", "--follow")
    assert "resumes from the checkpoint of step 10 in" in more.err and min(losses(number(more))) == 11, more.err
    job = number(submit("--follow", checkpoint__last_save_model_only="true"))
    begun = d.ctl("submit", "--from", job, "--set", "training.steps=12", "--follow")
    assert "step-00000010\n" in begun.err and min(losses(number(begun))) == 11, begun.err
    weights = d.ctl("submit", "--from", job, "--set", "checkpoint.initial_load_model_only=true", "--follow")
    assert "step-00000020\n" in weights.err and min(losses(number(weights))) == 1, weights.err
    only = number(submit("--follow", checkpoint__last_save_model_only="true", checkpoint__interval=1000))
    refused(d.ctl("submit", "--from", only), 3, "no checkpoint with optimizer state")


def dimensions_of_config_json():
    """model.flavor = "hf": titanctl takes the dimensions from config.json, and the job trains the model that is there"""
    there = dict(model__flavor="hf", checkpoint__initial_load_path=SOURCE / "tests/golden/trained/llama", checkpoint__initial_load_in_hf="true")
    job = number(submit(**there))
    ended(job)
    assert "\ndim = 16\n" in (World.daemon.state / f"jobs/{job}/recipe.toml").read_text()
    refused(submit(**there, model__dim=32, model__n_layers=3), 6, "model.dim = 32, there 16; model.n_layers = 3, there 2")


def same_key():
    """an idempotency key: the same resume again is the first one's job; another request with the key is refused"""
    d = World.daemon
    args = ("--set", "training.steps=26", "--idempotency-key", "again")
    job = number(d.ctl("submit", "--from", World.done, *args))
    ended(job)
    assert number(d.ctl("submit", "--from", World.done, *args)) == job
    refused(d.ctl("submit", "--from", World.done, "--fresh", *args), 6, f"which became job {job}")
    # What the first one has written stands in the way of others, not of itself.
    args = ("--from", World.done, "--idempotency-key", "placed")
    job = number(submit(*args, checkpoint__folder=d.state / "placed", training__steps=25))
    ended(job)
    assert number(submit(*args, checkpoint__folder=d.state / "placed", training__steps=25)) == job


if __name__ == "__main__":
    with Daemon(None, "--slots", 2, pace_ms=10) as World.daemon:
        World.text = headers_text(World.daemon.state / "text")
        World.done = number(submit("--follow"))
        try:
            tap(resume_a_cancelled_job, resume_what_completed_or_failed, resume_whatever_it_began_with, resume_refused, one_folder_two_jobs, from_another_job, other_data_on_every_way,
                batch_of_a_new_worker, the_way_back, fresh_folders,
                job_in_a_run_file, nothing_to_begin_with, weights_alone_at_the_end, dimensions_of_config_json, same_key)
        except SystemExit as end:
            if end.code:
                raise  # the daemon's log is shown
