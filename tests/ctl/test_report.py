#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The page of `titanctl report`, as a headless browser shows it, and several jobs in one picture."""
import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from html.parser import HTMLParser
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from titan import BIN, FP_BIN, SOURCE, Daemon, command, deadline, headers_text, overrides, tap  # noqa: E402

EVIL = "<script>document.title='taken'</script>"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")


class World:
    """A daemon, and a job with validation, a lost worker and steps without a loss."""


class Page(HTMLParser):
    """The elements of a page: (tag, attributes, text of its own)."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.all, self.open = [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.all.append([tag, dict(attributes), ""])
        if tag not in ("meta", "br", "input"):
            self.open.append(self.all[-1])

    def handle_endtag(self, tag):
        while self.open and self.open.pop()[0] != tag:
            pass

    def handle_data(self, data):
        if self.open:
            self.open[-1][2] += data

    def some(self, tag, **attributes):
        want = {k.rstrip("_").replace("_", "-"): v for k, v in attributes.items()}
        return [e for e in self.all if e[0] == tag and all(e[1].get(k) == v for k, v in want.items())]

    def data(self):
        return json.loads(self.some("script", id="data")[0][2])


def browse(path):
    """The page after its script has run. The browser writes into a folder of its own."""
    with tempfile.TemporaryDirectory() as home:
        done = subprocess.run([CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
                               f"--user-data-dir={home}", "--window-size=1200,2400", "--dump-dom", Path(path).as_uri()],
                              capture_output=True, text=True, timeout=deadline(), env={**os.environ, "HOME": home})
    assert done.returncode == 0, done.stderr
    return Page(done.stdout)


def report(job, *args):
    path = World.dir / f"{job}.html"
    out = World.daemon.ok("report", job, "--out", path, *args)
    assert out.strip() == str(path)
    return path


def has_all():
    """report: facts, recoveries, epochs, events, environment and recipe stand in the file, none of them as markup"""
    text = report(World.job).read_text()
    page = Page(text)
    assert len(page.some("script")) == 2 and EVIL not in text and EVIL in page.some("title")[0][2]
    assert EVIL in page.some("pre", id="recipe")[0][2]
    for name in ("split", "slowest", "recoveries", "epochs", "events", "environment", "nodes"):
        assert page.some("table", id=name), name
    assert "worker.exited" in text and "recovery.finished" in text and ">dp_shard 2<" in text
    assert not re.search(r"(src|href)=|https?://(?!www\.w3\.org/2000/svg)|@import|url\(", text)
    data = page.data()
    assert {"loss", "validation", "grad_norm", "learning_rate", "tokens_per_second", "tflops", "step_ms", "compute_ms"} <= set(data["curves"])
    assert len(data["curves"]["step"]) == World.steps == len(data["curves"]["loss"]["mean"])
    assert data["curves"]["loss"]["mean"][4:6] == [None, None] and sum(data["curves"]["loss"]["bad"]) == 2
    assert {e["kind"] for e in data["events"]} >= {"loss", "recovery", "state"}
    assert any(w["world"] == 2 for w in data["worlds"]) and data["worlds"][-1]["world"] == 0


def is_drawn():
    """report: its script draws the curves, the events on their axis and gaps where the loss is not finite"""
    if not CHROMIUM:
        return "chromium is not installed"
    page = browse(report(World.job))
    titles = [e[2] for e in page.some("h3")]
    for title in ("Loss", "Gradient norm", "Learning rate", "Tokens per second", "Step time, ms", "Workers", "Where the time of a step went, ms (means)",
                  "Slowest rank (that the others waited for longest)", "TFLOP/s of a worker"):
        assert titles.count(title) == 1, titles
    curves = {e[1]["data-curve"]: e[1]["d"] for e in page.some("path", class_="curve")}
    assert {"loss", "validation", "grad_norm", "learning_rate", "tokens_per_second", "step_ms", "world"} <= set(curves), curves
    assert curves["loss"].count("M") == 2 and curves["grad_norm"].count("M") == 1, curves["loss"]
    areas = {e[1]["data-curve"]: e[1]["d"] for e in page.some("path", class_="area")}
    assert list(areas) == ["compute_ms", "data_ms", "communication_ms", "checkpoint_ms", "straggler_ms"], list(areas)
    assert all(d.count("M") == 1 and World.steps < d.count("L") < 2 * World.steps for d in areas.values())
    curves |= areas | {"slowest": page.some("path", data_curve="slowest")[0][1]["d"]}
    assert not any("NaN" in d or "Infinity" in d for d in curves.values())
    assert len(page.some("line", class_="bad")) == 2
    charts = len(page.some("section", class_="chart"))
    assert len(page.some("line", class_="event", data_kind="recovery")) == charts >= 6
    assert len(page.some("line", class_="event", data_kind="loss")) >= charts
    assert EVIL in page.some("title")[0][2], "a script of the job's name has run"


def is_bounded():
    """report: of 20,007 steps it is small, and no value out of the way is lost"""
    d = World.daemon
    path = report(World.long)
    data = Page(path.read_text()).data()
    loss = data["curves"]["loss"]
    assert 1024 <= len(loss["mean"]) <= 2048 and path.stat().st_size < 1_000_000, path.stat().st_size
    assert max(v for v in loss["max"] if v is not None) == 77 and data["curves"]["last_step"][-1] == 20_007
    assert json.loads(d.ok("-o", "json", "report", World.long, "--out", World.dir / "x"))["bytes"] == (World.dir / "x").stat().st_size


def refused():
    """report: a job that is not there, a folder that is not there, JSON beside the page"""
    d = World.daemon
    for code, args in ((3, (999,)), (2, (World.job, "--out", World.dir / "none/x.html")), (2, ("-o", "json", World.job, "--out", "-"))):
        done = d.ctl("report", *args)
        assert done.code == code and done.err.startswith("titanctl: ") and done.err.count("\n") == 1, done
    assert d.ok("report", World.job, "--out", "-").startswith("<!DOCTYPE html>")


def of_a_run():
    """run --report: the page of a run in the foreground, completed or not; where it cannot be written nothing starts"""
    path, missing = World.dir / "run.html", World.dir / "none/x.html"

    def run(to, steps, *sets):
        return command(BIN / "titanctl", "run", SOURCE / "recipes/tiny.toml", "-n", 1, "--state-dir", World.dir / f"run-{steps}", "--report", to,
                       *overrides({"training.dataset_path": World.dir / "text", "training.steps": steps}), *sets)
    done = run(path, 5)
    assert done.code == 0 and done.out.count("\n") == 1 and "report" not in done.err, done
    page = Page(path.read_text())
    assert page.data()["curves"]["last_step"][-1] == 5 and page.some("pre", id="recipe"), page.data()
    done = run(path, 400, "--set", "optimizer.lr=1000", "--set", "lr_scheduler.warmup_steps=0")
    assert done.code != 0 and "diverged" in done.err and "diverged" in path.read_text(), done
    for to in (missing, World.dir):
        done = run(to, 7)
        assert done.code == 2 and str(to.parent) in done.err and done.err.count("\n") == 1 and not (World.dir / "run-7").exists(), done


def several_jobs():
    """metrics --plot: several jobs in one picture, with a legend"""
    d = World.daemon
    env = {**os.environ, "LC_ALL": "C"}
    text = command(BIN / "titanctl", "-s", d.server, "metrics", World.job, World.long, "--plot", env=env).out
    assert f"\na job {World.job}: loss " in text and f"\nb job {World.long}: loss " in text and text.isascii(), text
    assert re.search(r"\|.*b", text) and re.search(r"^ +1 +step 20007$", text, re.M), text
    done = d.ctl("metrics", World.job, World.long, "--plot", "-f")
    assert done.code == 2 and "--follow follows one job, and these are 2" in done.err, done


def several_tables():
    """metrics: a table of several jobs has a column that says of which, as lines of JSON do; of one job there is none"""
    d = World.daemon
    both = [str(World.job), str(World.short)]
    for option in ((), ("--split",), ("--rates",)):
        alone = [d.ok("metrics", job, *option).splitlines() for job in both]
        head, *lines = d.ok("metrics", *both, *option).splitlines()
        assert head.split()[:2] == ["job", "step"] and alone[0][0].split()[0] == "step", (head, alone)
        assert [line[:8].strip() for line in lines] == [job for job, table in zip(both, alone) for _ in table[1:]], lines
        assert [line[8:] for line in lines] == [line for table in alone for line in table[1:]], (lines, alone)
        assert {line.split()[0] for line in lines} == set(both)
    points = [json.loads(line) for line in d.ok("-o", "json", "metrics", *both).splitlines()]
    assert [(p["job_id"], p["step"]) for p in points] == [(int(both[0]), i + 1) for i in range(World.steps)] + [(int(both[1]), 1), (int(both[1]), 2)], points
    assert all("loss" in p for p in points), points


def main():
    # Rank 1 is killed at its 90th reduction, so once: the worker that takes its place has fewer left.
    env = {"TITAN_FAILPOINTS": "exec.reduced%1=kill@90"}
    with tempfile.TemporaryDirectory() as folder, Daemon(None, "--slots", 2, env=env, program=FP_BIN / "titand") as d:
        World.dir, World.daemon, World.steps = Path(folder), d, 120
        keys = {"training.dataset_path": headers_text(World.dir / "text"), "training.steps": World.steps,
                "training.local_batch_size": 2, "validation.enable": "true", "validation.freq": 100, "validation.steps": 1,
                "validation.local_batch_size": 1, "validation.seq_len": 32, "validation.dataset_path": World.dir / "text", "elastic.min_workers": 2, "elastic.max_workers": 2,
                "job.description": f'"{EVIL}"', "checkpoint.interval": 50}
        World.job = d.submit("tiny", keys, "--name", EVIL)
        assert d.wait_state(World.job, "COMPLETED", "FAILED")["state"] == "COMPLETED"
        World.long = d.submit("tiny", {**keys, "training.steps": 1, "validation.enable": "false"})
        World.short = d.submit("tiny", {**keys, "training.steps": 2, "validation.enable": "false"})
        d.wait_state(World.long, "COMPLETED")
        d.wait_state(World.short, "COMPLETED")
        d.stop()
        store = sqlite3.connect(d.state / "metrics.db")
        store.execute("UPDATE metrics SET loss = NULL WHERE job_id = ? AND step IN (5, 6)", (World.job,))
        store.execute("""WITH RECURSIVE n(i) AS (SELECT 2 UNION ALL SELECT i + 1 FROM n WHERE i < 20007)
            INSERT INTO metrics (job_id, step, at_ms, loss, grad_norm, learning_rate, tokens_per_second, mfu, step_ms, tokens, epoch,
            world_size, memory_bytes, skipped_steps) SELECT job_id, i, at_ms + 100 * i, CASE i WHEN 12345 THEN 77 ELSE 2 + 1.0 / i END,
            grad_norm, learning_rate, tokens_per_second, mfu, step_ms, i * tokens, epoch, world_size, memory_bytes,
            skipped_steps FROM metrics, n WHERE job_id = ? AND step = 1""", (World.long,))
        store.commit()
        store.close()
        d.start()
        tap(has_all, is_drawn, is_bounded, refused, of_a_run, several_jobs, several_tables)


main()
