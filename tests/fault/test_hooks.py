#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A node's hooks: it gets no workers before they have passed, and none while one fails; who may have written them; time limits, output, leftovers."""
import contextlib
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from titan import CALM, Daemon, alive, tap, until  # noqa: E402

KEYS = {"elastic.min_workers": 1, "elastic.max_workers": 1, "training.steps": 2, "training.dataset_path": __file__}


@contextlib.contextmanager
def node(every_s=1, timeout_s=30, **hooks):
    """titand dev with these hooks, name: text. d.hook(name, text) writes one, None takes it away; d.notes: a folder for hooks to write to."""
    folder = Path(tempfile.mkdtemp(prefix="titan-hooks-"))
    at = folder / "hooks/node-check.d"
    at.mkdir(parents=True)
    for path in (at, at.parent):
        path.chmod(0o755)
    (folder / "titan.toml").write_text(f'[agent]\nhooks_dir = "{folder}/hooks"\nhook_timeout_s = {timeout_s}\nnode_check_s = {every_s}\n' + CALM)
    d = Daemon(folder / "s", "--config", folder / "titan.toml")
    d.at, d.notes = at, folder
    d.nodes = lambda: json.loads(d.ok("-o", "json", "nodes"))["nodes"]
    os.mkfifo(folder / "pipe")

    def hook(name, text, mode=0o755):
        if text is None:
            (at / name).unlink()
            return
        (at / f".{name}").write_text(f"#!/bin/sh\n{text}\n")
        (at / f".{name}").chmod(mode)
        (at / f".{name}").rename(at / name)
    d.hook = hook
    for name, text in hooks.items():
        hook(name, text.format(notes=folder))
    try:
        with d:
            yield d
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def is_now(d, state, reason=""):
    def there():
        (shown,) = d.nodes()
        return shown["state"] == state and reason in (shown["reason"] or "") and shown
    return until(lambda: f"the node is {state}, {reason}: {d.nodes()}", there)


def events(d):
    return [(e["type"], e["message"]) for e in d.lines("events") if e["type"] in ("node.fit", "node.unfit")]


def order():
    """executables run in the order of their names, with their environment and nothing else; others are left out; all pass: the node works"""
    say = 'echo "$TITAN_HOOK $(basename $0) $TITAN_NODE $TITAN_SLOTS $TITAN_DEVICE $TITAN_REASON $(pwd)" >> {notes}/said; env > {notes}/env; cat'
    with node(**{"20-b": say, "10-a": say, "30-c~": say}) as d:
        d.hook("05-plain", "exit 1", mode=0o644)
        until("they ran at the start, and while it is idle", lambda: (d.notes / "said").exists() and "idle" in (d.notes / "said").read_text())
        said = (d.notes / "said").read_text().splitlines()
        name = d.nodes()[0]["name"]
        assert said[:2] == [f"node-check 10-a {name} 4 cpu start /", f"node-check 20-b {name} 4 cpu start /"] and said[2].startswith("node-check 10-a"), said
        env = {line.split("=")[0] for line in (d.notes / "env").read_text().splitlines()}
        assert env - {"PWD", "SHLVL", "_", "OLDPWD"} == {"PATH", "TITAN_HOOK", "TITAN_NODE", "TITAN_SLOTS", "TITAN_DEVICE", "TITAN_REASON"}, env
        d.wait_state(d.submit("tiny", KEYS), "COMPLETED")
        assert not events(d)


def fails():
    """a hook that fails makes the node unfit, with its last line; a job waits for it and runs when it passes again; a drain stays a drain"""
    with node(**{"10-a": "exit 0", "20-disk": 'echo first; echo "  /scratch is full  "; echo; exit 3', "30-c": "touch {notes}/third"}) as d:
        shown = is_now(d, "unfit", "hook 20-disk: ")
        assert shown["reason"] == "hook 20-disk: /scratch is full", shown
        job = d.submit("tiny", KEYS)
        until("the job's reason has it", lambda: "hook 20-disk" in (d.status(job)["reason"] or ""))
        assert not (d.notes / "third").exists() and not d.workers(job)
        assert "first" in d.log() and "a hook fails" in d.log()
        d.hook("20-disk", "exit 0")
        d.wait_state(job, "COMPLETED")
        assert (d.notes / "third").exists() and "all hooks pass again" in d.log()
        assert [kind for kind, _ in events(d)] == ["node.unfit", "node.fit"], events(d)
        d.ok("drain", d.nodes()[0]["name"])
        is_now(d, "drained")
        d.hook("20-disk", "exit 1")
        until("it fails again", lambda: events(d)[-1] == ("node.unfit", f"node {d.nodes()[0]['name']} gets no workers: hook 20-disk: exit code 1, without a word"))
        d.hook("20-disk", None)
        until("it passes", lambda: events(d)[-1][0] == "node.fit")
        is_now(d, "drained")


def before_work():
    """no worker starts before the first run is over; hooks do not run while there are workers"""
    with node(**{"10-a": "[ -e {notes}/ran ] || read x < {notes}/pipe; echo >> {notes}/ran"}) as d:
        job = d.submit("tiny", {**KEYS, "training.steps": 1000000})
        until("it waits", lambda: d.status(job)["state"] == "PENDING" and d.status(job)["reason"])
        assert not d.workers(job) and not (d.notes / "ran").exists()
        (d.notes / "pipe").write_text("go on\n")
        until("it works", lambda: d.workers(job))
        until("it trains", lambda: d.status(job)["step"] > 0)
        ran = len((d.notes / "ran").read_text())
        # Other nodes' periods would come round here: the agent has to be asked whether it is idle.
        until("it trains on", lambda: d.status(job)["step"] > 50)
        assert len((d.notes / "ran").read_text()) <= ran + 1
        d.ok("cancel", job)
        until("it is idle, and they run", lambda: len((d.notes / "ran").read_text()) > ran + 1)


def bounds():
    """a hook that does not end is killed with all that it has started; so is what one leaves behind; output without end, an end by a signal"""
    with node(timeout_s=1, **{"10-hangs": "sleep 1000 & echo $! > {notes}/child; echo waiting; wait"}) as d:
        is_now(d, "unfit", "hook 10-hangs: it did not end within 1 s: waiting")
        until("its child is gone", lambda: not alive(int((d.notes / "child").read_text())))
        d.hook("10-hangs", f"sleep 1000 & echo $! > {d.notes}/left; exit 0")
        is_now(d, "ready")
        until("what it left is gone", lambda: not alive(int((d.notes / "left").read_text())))
        d.hook("10-hangs", "yes 0123456789 | head -c 3000000; echo; echo the end; kill -TERM $$")
        is_now(d, "unfit", "hook 10-hangs: ended by signal 15: the end")
        d.hook("10-hangs", "printf 'a\\033[31mb\\377c\\001'; exit 1")
        is_now(d, "unfit", "hook 10-hangs: a")
        d.hook("10-hangs", "exec /nonexistent-interpreter")
        is_now(d, "unfit", "nonexistent-interpreter")
        (d.at / "10-hangs").write_text("#!/nonexistent/sh\n")
        is_now(d, "unfit", "hook 10-hangs: it does not start: No such file or directory")
        d.hook("10-hangs", f"echo > {d.notes}/runs; sleep 1000")
        until("it runs", lambda: (d.notes / "runs").exists())
        d.stop()  # in the middle of it
        assert d.process.returncode == 0


def whose():
    """a hook or a folder that others may write to, or that is another user's, does not run: the node is unfit for that"""
    if os.geteuid() != 0:
        return "needs root to give files away"
    with node(**{"10-a": "touch {notes}/ran"}) as d:
        until("it runs", lambda: (d.notes / "ran").exists())
        for path, change in ((d.at / "10-a", lambda p: p.chmod(0o775)), (d.at / "10-a", lambda p: (p.chmod(0o755), os.chown(p, 65534, 0))),
                             (d.at, lambda p: p.chmod(0o757)), (d.at.parent, lambda p: os.chown(p, 65534, 0))):
            change(path)
            shown = is_now(d, "unfit", "is to be root's, and no other's to write to")
            assert path.name in shown["reason"] or path.name in ("node-check.d", "hooks"), shown
            os.chown(path, 0, 0)
            path.chmod(0o755)
            is_now(d, "ready")
    return None


tap(order, fails, before_work, bounds, whose)
