#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What checkpoint.keep_latest_k does not remove: the state from before steps that were skipped as not finite, and one that can be resumed from."""
import json
import re
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from folders import keys, steps_in  # noqa: E402
from hand import Run, run  # noqa: E402
from titan import BIN, Daemon, command, tap, until  # noqa: E402

DIVERGES = {"optimizer.name": "SGD", "optimizer.lr": 1000, "training.max_norm": 0, "lr_scheduler.warmup_steps": 30, "training.steps": 60,
            "lr_scheduler.total_steps": 60, "checkpoint.interval": 2, "checkpoint.keep_latest_k": 1}


def skipped(r):
    return [int(n) for n in re.findall(r"step skipped, not finite rank=0 step=(\d+)", (r.folder / "log").read_text())]


def diverges():
    """while steps are skipped no checkpoint is written, and those from before stay"""
    with run(2, **DIVERGES) as r:
        assert r.ended() != 0 and "diverged: step" in (r.folder / "log").read_text()
        first = skipped(r)[0]
        kept = r.saved()
        assert len(kept) == 1 and kept[0] < first, (kept, first)  # the newest may have been under way


def stopped_amid():
    """one that is written amid skipped steps has their number: the run that goes on counts on"""
    with run(2, **{**DIVERGES, "fault_tolerance.max_skipped_steps": 1000000, "training.steps": 1000000}) as r:
        until("steps are skipped", lambda: len(skipped(r)) > 2)
        r.process.send_signal(signal.SIGTERM)
        assert r.ended() == 128 + signal.SIGTERM
        last, first = max(r.saved()), skipped(r)[0]
        manifest = json.loads((r.folder / f"checkpoint/step-{last:08}/manifest.json").read_text())
        assert manifest["skipped"] == {"in_a_row": last - first + 1, "first": first, "last": last}, manifest["skipped"]
        assert len(r.saved()) == 2 and min(r.saved()) < first, (r.saved(), first)
        more = Run(r.folder, 2, **{**DIVERGES, "fault_tolerance.max_skipped_steps": last - first + 2, "training.steps": 1000000})
        assert more.ended() != 0
        assert f"{last - first + 3} steps in a row skipped" in (r.folder / "log").read_text()


def weights_alone():
    """the last checkpoint has weights alone: the one before stays, too"""
    with run(2, **{"training.steps": 20, "checkpoint.interval": 5, "checkpoint.keep_latest_k": 1, "checkpoint.last_save_model_only": "true"}) as r:
        assert r.ended() == 0 and r.saved() == [15, 20], r.saved()
        assert verified(r.folder / "checkpoint") == [(15, "ok", "can be resumed"), (20, "ok", "weights alone")]
        told = [json.loads(line) for line in command(BIN / "titan-worker", "verify", "-o", "json", r.folder / "checkpoint").out.splitlines()]
        assert [(t["step"], t["ok"], t["resumable"], t["finite"]) for t in told] == [(15, True, True, True), (20, True, False, True)], told


def listed():
    """the coordinator lists what its worker keeps, and nothing that is gone"""
    with Daemon(None, "--slots", 2) as d:
        job = d.submit("tiny", keys(d, training__steps=20, checkpoint__interval=5, checkpoint__keep_latest_k=1,
                                    checkpoint__last_save_model_only="true"))
        d.wait_state(job, "COMPLETED")
        there = [c["step"] for c in json.loads(d.ok("-o", "json", "checkpoints", job))["checkpoints"]]
        assert sorted(there) == steps_in(d.state / f"jobs/{job}/checkpoint") == [15, 20], there


def verified(folder):
    lines = command(BIN / "titan-worker", "verify", folder).out.splitlines()
    return [(int(line.split()[0][5:]), line.split()[1], line.rsplit(", ", 1)[1]) for line in lines]


if __name__ == "__main__":
    tap(diverges, stopped_amid, weights_alone, listed)
