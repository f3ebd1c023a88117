# SPDX-License-Identifier: Apache-2.0
"""What is reported of a job that has ended, by each way there is, and that all of it agrees."""
import json
import re
from pathlib import Path

ENDED = ("COMPLETED", "FAILED", "CANCELLED")


def lines(text):
    """Without one that was cut short, as by the end of the process that wrote it."""
    return [json.loads(line) for line in text[:text.rfind("\n") + 1].splitlines() if line.strip()]


class Reports:
    """Everything reported of one job. ctl: titanctl's arguments -> what it printed; fails where it fails."""

    def __init__(self, ctl, job):
        self.metrics = lines(ctl("-o", "json", "metrics", job))  # waits for what is read from the job's folder
        self.status = json.loads(ctl("-o", "json", "status", job))
        self.listed = next(j for j in json.loads(ctl("-o", "json", "list", "--limit", 1000000))["jobs"] if j["id"] == int(job))
        self.row = next(r for r in ctl("list", "--limit", 1000000).splitlines() if r.split()[:1] == [str(job)])
        self.page = ctl("status", job)
        self.events = lines(ctl("-o", "json", "events", job))
        self.checkpoints = json.loads(ctl("-o", "json", "checkpoints", job))["checkpoints"]
        self.folder = Path(self.status["directory"])
        path = self.folder / "metrics.jsonl"
        # Of a step that was trained again the last line counts, and what was behind it before does not.
        self.file = {}
        for line in lines(path.read_text()) if path.exists() else []:
            if "loss" not in line:
                continue
            for later in [s for s in self.file if s > line["step"] and self.file[s]["epoch"] < line["epoch"]]:
                del self.file[later]
            self.file[line["step"]] = line

    def of(self, *types):
        return [e for e in self.events if e["type"] in types]


def same(what, *values):
    assert all(v == values[0] for v in values), f"{what}: {values}"


def states_agree(r):
    s = r.status
    assert s["state"] in ENDED, s
    for key in s:
        same(f"{key} in status and list", s[key], r.listed[key])
    last = r.of("job.state")[-1]
    same("state in status and events", s["state"], last["detail"]["to"].upper())
    same("reason in status and events", s["reason"] or "", last["detail"].get("reason", ""))
    assert s["state"] in r.row and f" {s['step']}/{s['steps']} " in r.row, r.row
    assert s["state"] in r.page.splitlines()[0] and f"{s['step']} of {s['steps']}\n" in r.page, r.page
    if s["reason"]:
        assert f"reason       {s['reason']}\n" in r.page, r.page
    lost = sum(e["detail"].get("counted", False) for e in r.of("worker.exited", "worker.lost"))
    same("restarts in status and events", s["restarts"], lost + len(r.of("epoch.failed")))
    assert max(e["step"] for e in r.events[-1:]) <= s["step"], (r.events[-1], s)


def numbers_agree(r):
    """The step's own: loss, tokens a second and MFU of an earlier one are none."""
    s, rows = r.status, {m["step"]: m for m in r.metrics}
    for step in rows.keys() & r.file.keys():
        same(f"loss of step {step} in metrics and the file", rows[step]["loss"], r.file[step]["loss"])
    if s["step"] in r.file:
        assert s["step"] in rows, f"step {s['step']} is in the file and not in the metrics: {sorted(rows)[-3:]}"
    if s["step"] in rows:
        for key in ("loss", "tokens_per_second", "mfu"):
            same(f"{key} of step {s['step']} in status and metrics", s[key], rows[s["step"]][key])
        assert f" {s['loss']:.4f} " in r.row and f"loss         {s['loss']:.4f}\n" in r.page, (r.row, r.page)
    else:
        same("loss of a step that no one has reported", s["loss"], None)
    if s["state"] == "COMPLETED":
        same("step of a job that is complete", s["step"], s["steps"])
    assert not [step for step in rows if step > s["step"]], (sorted(rows)[-3:], s["step"])


def checkpoints_agree(r):
    s, there = r.status, {}
    for e in r.of("checkpoint.committed", "checkpoint.expired"):
        if e["type"] == "checkpoint.expired":
            there.pop(e["detail"]["step"], None)
        else:
            there[e["detail"]["step"]] = e["detail"]["path"]
    listed = {c["step"]: c["path"] for c in r.checkpoints}
    same("checkpoints listed and in events", listed, there)
    newest = max(listed, default=0)
    same("newest checkpoint in status and listed", s["checkpoint"] or None, listed.get(newest))
    assert newest <= s["step"], (newest, s["step"])
    if listed:
        assert (Path(listed[newest]) / "manifest.json").exists(), f"{listed[newest]} is the newest and not there"
    for step, path in re.findall(r"checkpoint (?:is )?of step (\d+): (/\S+)", s["reason"] or ""):
        same("checkpoint in the reason and listed", listed.get(int(step)), path.rstrip(";,"))
        same("checkpoint in the reason and the newest", int(step), newest)
    failed = [e for e in r.of("checkpoint.failed") if "step" in e["detail"]]
    assert len(failed) <= s["checkpoint_failures"] and bool(failed) == bool(s["checkpoint_failures"]), (failed, s)


def agree(ctl, job):
    """All reports of a job that has ended agree; returns them."""
    r = Reports(ctl, job)
    states_agree(r)
    numbers_agree(r)
    checkpoints_agree(r)
    return r
