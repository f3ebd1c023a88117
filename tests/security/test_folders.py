#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Folders of checkpoints of several users below one root: a user reads, continues and expires no other's."""
import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
sys.path.insert(0, str(Path(__file__).resolve().parent))
from titan import tap, until  # noqa: E402
from world import ALICE, MALLORY, OLGA, World, needs_root, refused  # noqa: E402

NOBODY = 65534  # has a name, and a group
BOB = 64996
STEPS = {"training__steps": 4, "lr_scheduler__warmup_steps": 1, "checkpoint__interval": 1, "checkpoint__last_save_model_only": "false"}


@contextlib.contextmanager
def rooted(private=False):
    """As the units have it, a folder is for no others by its mode; root's job keeps no slot."""
    w, before = World(private=private, rooted=True), os.umask(0o027)
    try:
        with w:
            w.daemon.ok("cancel", w.job)
            w.daemon.wait_state(w.job, "CANCELLED")
            yield w
    finally:
        os.umask(before)


def trained(w, uid, *args, **keys):
    """The number of a job of that user that has ended."""
    job = w.submit(uid, *args, **{**STEPS, **keys})
    s = w.daemon.wait_state(job, "COMPLETED", "FAILED")
    assert s["state"] == "COMPLETED", s
    return job


def steps_in(folder):
    return sorted(int(p.name[5:]) for p in folder.glob("step-*"))


def owner_of(folder):
    return json.loads((folder / "titan-owner.json").read_text())


def put_owner(folder, without=(), **members):
    kept = {k: v for k, v in owner_of(folder).items() if k not in without}
    (folder / "titan-owner.json").write_text(json.dumps({**kept, **members}))


def says_nothing(text, job):
    """A stranger learns neither the job nor a key of its recipe."""
    assert f"job {job}" not in text and f"job-{job}" not in text and "lr" not in text and ", there " not in text, text


def folder_names_its_user():
    """the owner file has the user, its uid, the job and the recipe; the checkpoints have the user as well"""
    if needs_root():
        return needs_root()
    with rooted() as w:
        folder = w.runs / "alice"
        job = trained(w, ALICE, checkpoint__folder=folder)
        owner = owner_of(folder)
        assert (owner["user"], owner["uid"], owner["name"]) == (f"uid:{ALICE}", ALICE, f"job {job}"), owner
        assert owner["id"].startswith(f"job-{job}-") and re.fullmatch("[0-9a-f]{16}", owner["recipe_hash"]), owner
        assert json.loads((folder / "step-00000004/manifest.json").read_text())["owner"] == f"uid:{ALICE} uid:{ALICE}"
        token = w.daemon.ok("token", "create", "ci", "--role", "user").strip()
        done = w.as_user(MALLORY, "submit", w.dir / "tiny.toml", *(x for k, v in {
            "training.dataset_path": w.text, "training.steps": 2, "checkpoint.folder": w.runs / "ci",
            # What a run file says of owners is not believed.
            "job.owner": f"uid:{ALICE} alice", "checkpoint.initial_load_owner": "*"}.items() for x in ("--set", f"{k}={v}")),
            env={"TITAN_TOKEN": token})
        assert done.code == 0, done.err
        w.daemon.wait_state(int(done.out), "COMPLETED")
        owner = owner_of(w.runs / "ci")
        assert owner["user"] == "ci" and "uid" not in owner, owner


def others_are_refused():
    """another user neither continues, nor expires, nor reads; the refusal has no job and no key"""
    if needs_root():
        return needs_root()
    with rooted() as w:
        folder = w.runs / "alice"
        job = trained(w, ALICE, checkpoint__folder=folder)
        before = steps_in(folder)
        expire = {**STEPS, "training__steps": 5, "checkpoint__keep_latest_k": 1}
        for keys in ({**expire, "checkpoint__folder": folder}, {**expire, "checkpoint__folder": folder, "optimizer__lr": 1e-5},
                     {**expire, "checkpoint__folder": folder / "step-00000099"}, {**expire, "checkpoint__folder": folder / "a/b"},
                     {**expire, "checkpoint__folder": folder, "checkpoint__load_only": "true"}):
            done = w.try_submit(MALLORY, **keys)
            refused(done, "holds the checkpoints of another user")
            says_nothing(done.err, job)
            answer = w.rpc_submit(MALLORY, **{k: {"true": True, "false": False}.get(v, v) for k, v in keys.items()})
            assert "PERMISSION_DENIED" in answer, answer
        for path in (folder, folder / "step-00000004"):
            done = w.try_submit(MALLORY, **STEPS, checkpoint__initial_load_path=path, checkpoint__folder=w.runs / "mallory")
            refused(done, "checkpoint.initial_load_path", "lies in the checkpoints of another user")
            says_nothing(done.err, job)
        refused(w.try_submit(MALLORY, **STEPS, training__dataset_path=folder), "cannot be read by you")
        refused(w.try_submit(MALLORY, **STEPS, training__dataset_path=w.runs), "cannot be read by you")
        refused(w.try_submit(MALLORY, **STEPS, model__tokenizer=folder / "step-00000004"), "checkpoints of another user")
        refused(w.try_submit(MALLORY, **STEPS, checkpoint__folder=w.runs), "holds the folders of others")
        refused(w.try_submit(MALLORY, "--from", job), "not permitted")
        assert steps_in(folder) == before and owner_of(folder)["user"] == f"uid:{ALICE}"
        # To its own user the differing key is told, and the same recipe goes on.
        refused(w.try_submit(ALICE, **STEPS, checkpoint__folder=folder, optimizer__lr="1e-5"), "optimizer.lr", f"job {job}", code=6)
        trained(w, ALICE, checkpoint__folder=folder, training__steps=6)
        assert steps_in(folder)[-1] == 6
        # An operator reads, and does not write.
        trained(w, OLGA, checkpoint__initial_load_path=folder, checkpoint__folder=w.runs / "olga")
        refused(w.try_submit(OLGA, **STEPS, checkpoint__folder=folder), "holds the checkpoints of another user")


def shared_by_name():
    """checkpoint.shared_with: users and groups that are named begin from the checkpoints, and do no more"""
    if needs_root():
        return needs_root()
    group = subprocess.run(["id", "-gn", str(NOBODY)], capture_output=True, text=True).stdout.strip()
    with rooted() as w:
        wrong = w.try_submit(ALICE, **STEPS, checkpoint__shared_with="bob")
        assert wrong.code == 2 and "user:NAME, uid:N, group:NAME or *" in wrong.err, wrong.err
        cases = {"uid": (f"uid:{MALLORY}", MALLORY, BOB), "user": (f"user:uid:{MALLORY}", None, MALLORY),
                 "group": (f"uid:1,group:{group}", NOBODY, MALLORY), "all": ("*", MALLORY, None)}
        for name, (entries, reads, not_) in cases.items():
            folder = w.runs / name
            job = trained(w, ALICE, checkpoint__folder=folder, checkpoint__shared_with=entries)
            assert owner_of(folder)["shared_with"] == entries
            if not_:
                refused(w.try_submit(not_, **STEPS, checkpoint__initial_load_path=folder), "checkpoints of another user")
            if not reads:
                continue
            second = trained(w, reads, checkpoint__initial_load_path=folder, checkpoint__folder=w.runs / f"{name}-2")
            assert w.daemon.status(second)["uid"] == reads
            refused(w.try_submit(reads, **STEPS, checkpoint__folder=folder), "holds the checkpoints of another user")
            third = w.as_user(reads, "submit", w.dir / "tiny.toml", "--from", job, "--set", f"training.dataset_path={w.text}",
                              "--set", "training.steps=5")
            assert third.code == 0, third.err
            w.daemon.wait_state(int(third.out), "COMPLETED")
        # A job's own folder, which no run file names, is shared by the job's number.
        job = trained(w, ALICE, checkpoint__shared_with=f"uid:{MALLORY}")
        more = ("--set", f"training.dataset_path={w.text}", "--set", "training.steps=5")
        refused(w.as_user(BOB, "submit", w.dir / "tiny.toml", "--from", job, *more), "cannot be read by you")
        done = w.as_user(MALLORY, "submit", w.dir / "tiny.toml", "--from", job, *more)
        assert done.code == 0, done.err
        assert w.daemon.wait_state(int(done.out), "COMPLETED", "FAILED")["state"] == "COMPLETED"


def files_without_a_user():
    """an owner file from before users were in it is its job's user's; without such a job it is an operator's to continue"""
    if needs_root():
        return needs_root()
    with rooted() as w:
        folder = w.runs / "alice"
        trained(w, ALICE, checkpoint__folder=folder)
        put_owner(folder, without=("user", "uid"))
        for keys in ({"checkpoint__folder": folder}, {"checkpoint__initial_load_path": folder}):
            refused(w.try_submit(MALLORY, **STEPS, **keys), "checkpoints of another user")
        put_owner(folder, id=f"job-99-{owner_of(folder)['id'][-16:]}")
        refused(w.try_submit(ALICE, **STEPS, checkpoint__folder=folder), "checkpoints of another user")
        put_owner(folder, id="job-1-0123456789abcdef")
        refused(w.try_submit(ALICE, **STEPS, checkpoint__folder=folder), "checkpoints of another user")
        before = steps_in(folder)
        shutil.copytree(folder, w.runs / "copy")
        trained(w, OLGA, checkpoint__folder=w.runs / "copy", training__steps=5)
        assert owner_of(w.runs / "copy")["uid"] == OLGA
        assert steps_in(folder) == before
    with rooted() as w:
        folder = w.runs / "alice"
        trained(w, ALICE, checkpoint__folder=folder)
        put_owner(folder, without=("user", "uid"))
        trained(w, ALICE, checkpoint__folder=folder, training__steps=6)
        assert owner_of(folder)["uid"] == ALICE and steps_in(folder)[-1] == 6
        trained(w, ALICE, checkpoint__initial_load_path=folder, checkpoint__folder=w.runs / "second")


def changed_hands():
    """a folder that becomes another user's between the submit and the run: the job fails, and what is there stays"""
    if needs_root():
        return needs_root()
    with rooted() as w:
        folder = w.runs / "alice"
        trained(w, ALICE, checkpoint__folder=folder)
        shared = w.runs / "shared"
        trained(w, OLGA, checkpoint__folder=shared, checkpoint__shared_with="*")
        node = json.loads(w.daemon.ok("-o", "json", "nodes"))["nodes"][0]["name"]
        w.daemon.ok("drain", node)
        expire = {**STEPS, "training__steps": 6, "checkpoint__keep_latest_k": 1}
        late, nested = w.runs / "late", w.runs / "over/there"
        jobs = [w.submit(MALLORY, **expire, checkpoint__folder=late), w.submit(MALLORY, **expire, checkpoint__folder=nested),
                w.submit(MALLORY, **STEPS, checkpoint__initial_load_path=shared)]
        shutil.copytree(folder, late)
        shutil.copytree(folder, w.runs / "over")
        shutil.rmtree(shared)
        shutil.copytree(folder, shared)
        w.daemon.ok("undrain", node)
        for job in jobs:
            s = w.daemon.wait_state(job, "FAILED", "COMPLETED")
            assert s["state"] == "FAILED" and "another user" in s["reason"] and s["step"] == 0, s
            says_nothing(s["reason"], jobs[0] - 3)
        for place in (late, w.runs / "over", shared):
            assert steps_in(place) == steps_in(folder) and owner_of(place) == owner_of(folder), place
        assert not nested.exists()
        # Without the owner file the checkpoints themselves name their user.
        (late / "titan-owner.json").unlink()
        job = w.submit(MALLORY, **expire, checkpoint__folder=late)
        s = w.daemon.wait_state(job, "FAILED", "COMPLETED")
        assert s["state"] == "FAILED" and "another user" in s["reason"], s
        assert steps_in(late) == steps_in(folder)


def own_rights_count():
    """what a user could open without Titan it may begin from, whatever the owner file says"""
    if needs_root():
        return needs_root()
    with rooted() as w:
        folder = w.runs / "alice"
        trained(w, ALICE, checkpoint__folder=folder)
        refused(w.try_submit(MALLORY, **STEPS, checkpoint__initial_load_path=folder), "checkpoints of another user")
        subprocess.run(["chmod", "-R", "a+rX", folder], check=True)
        trained(w, MALLORY, checkpoint__initial_load_path=folder, checkpoint__folder=w.runs / "mallory")


def resumed_for_its_owner():
    """an operator that resumes a user's job goes on in its folder, which stays the user's"""
    if needs_root():
        return needs_root()
    with rooted() as w:
        folder = w.runs / "alice"
        job = trained(w, ALICE, checkpoint__folder=folder)
        done = w.as_user(OLGA, "resume", job, "--set", "training.steps=6")
        assert done.code == 0, done.err
        w.daemon.wait_state(int(done.out), "COMPLETED")
        assert owner_of(folder)["uid"] == ALICE and steps_in(folder)[-1] == 6


def pending_job_is_not_told():
    """a folder that another user's waiting job will use: refused without that job's number and name"""
    if needs_root():
        return needs_root()
    with rooted(private=True) as w:
        node = json.loads(w.daemon.ok("-o", "json", "nodes"))["nodes"][0]["name"]
        w.daemon.ok("drain", node)
        job = w.submit(ALICE, "--name", "secret", checkpoint__folder=w.runs / "one")
        done = w.try_submit(MALLORY, checkpoint__folder=w.runs / "one")
        refused(done, "in use by a job of another user", code=6)
        assert "secret" not in done.err and f"job {job}" not in done.err, done.err
        refused(w.try_submit(ALICE, checkpoint__folder=w.runs / "one"), f"in use by job {job} (secret)", code=6)
        until("all is answered", lambda: w.daemon.ctl("list").code == 0)


if __name__ == "__main__":
    tap(folder_names_its_user, others_are_refused, shared_by_name, files_without_a_user, changed_hands, own_rights_count,
        resumed_for_its_owner, pending_job_is_not_told)
