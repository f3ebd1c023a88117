# SPDX-License-Identifier: Apache-2.0
"""What the page of titand costs: charts of a job with a million steps, the loop beside them, and a hundred pages that are open."""
import http.client
import json
import re
import sqlite3
import statistics
import sys
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from titan import CALM, Daemon, headers_text, until  # noqa: E402

CONFIG = '[http]\nlisten = "127.0.0.1:0"\ninsecure = true\n' + CALM
KEYS = {"training.steps": 5, "training.local_batch_size": 2}
# What a page that shows a job asks for: a chart every 5 s, job and nodes every 5 s, and a stream of events.
POLLED = ("curves?job_id={job}&points=600", "GetJob?job_id={job}", "ListNodes")
POLL_S = 5


class Pages:
    """Where a daemon shows its pages."""

    def __init__(self, state):
        host, port = (state / "run/listen-http").read_text().rsplit(":", 1)
        self.at = host, int(port)

    def connect(self):
        return http.client.HTTPConnection(*self.at, timeout=60)

    def get(self, path, connection=None):
        c = connection or self.connect()
        c.request("GET", path)
        answer = c.getresponse()
        text = answer.read()
        assert answer.status == 200, (path, answer.status, text)
        return text

    def lag(self):
        """{bound in seconds: iterations of the loop that took no longer}."""
        return {float(le): int(n) for le, n in re.findall(r'titan_loop_lag_seconds_bucket\{le="([^"]*)"\} (\d+)', self.get("/metrics").decode())}

    def cpu_s(self):
        return float(re.search(r"^process_cpu_seconds_total (\S+)", self.get("/metrics").decode(), re.M)[1])


def longer(before, after, bound):
    """Iterations between two looks that took longer than so many seconds."""
    return (after[float("inf")] - before[float("inf")]) - (after[bound] - before[bound])


def many_steps(state, job, steps):
    """Gives an ended job as many steps, in a daemon's state that nobody runs."""
    with sqlite3.connect(state / "metrics.db") as db:
        columns = [row[1] for row in db.execute("PRAGMA table_info(metrics)")]
        values = {"job_id": str(job), "step": "s", "at_ms": "1700000000000 + s * 250", "loss": "2 + 9.0 / (1 + s / 1000.0) + (s * 7919 % 1000) / 5e3",
                  "grad_norm": "0.5 + (s * 104729 % 1000) / 1e3", "tokens": "s * 4096", "epoch": "1", "world_size": "8", "memory_bytes": "70 << 30",
                  "skipped_steps": "0", "slowest_rank": "s % 8"}
        put = ", ".join(values.get(name, "(s * 15485863 % 100003) / 1e3") for name in columns)
        db.execute("DELETE FROM metrics")
        db.execute(f"WITH RECURSIVE n(s) AS (SELECT 1 UNION ALL SELECT s + 1 FROM n WHERE s < {steps}) INSERT INTO metrics ({', '.join(columns)}) SELECT {put} FROM n")
    db.close()
    with sqlite3.connect(state / "titan.db") as db:
        db.execute("UPDATE jobs SET step = ?, steps = ? WHERE id = ?", (steps, steps, job))
    db.close()


def opened(pages, job, over, stagger_s):
    """One page: a stream, and what it asks for again and again."""
    time.sleep(stagger_s)
    stream, polls = pages.connect(), pages.connect()
    stream.request("GET", f"/api/v1/events?last=100&job_id={job}")
    stream.getresponse()
    while not over.wait(POLL_S):
        for path in POLLED:
            pages.get("/api/v1/" + path.format(job=job), polls)
    stream.close()
    polls.close()


def page(home, steps=1000000, count=100, seconds=30, rounds=5):
    """First and later charts of an ended job with so many steps, by turns with a daemon that has just started, and what pages that stay open cost."""
    folder = home / "page"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "titan.toml").write_text(CONFIG)
    first, whole, later, behind = [], [], [], 0
    with Daemon(folder / "s", "--config", folder / "titan.toml") as d:
        job = int(d.submit("tiny", {"training.dataset_path": headers_text(folder / "text"), **KEYS}))
        d.wait_state(job, "COMPLETED")
        d.stop()
        many_steps(d.state, job, steps)
        chart = f"/api/v1/curves?job_id={job}&points=600"
        for _ in range(rounds):
            d.start()
            pages = Pages(d.state)
            before = pages.lag()
            begin = time.monotonic()
            answer = pages.get(chart)
            first.append(1000 * (time.monotonic() - begin))
            assert not json.loads(answer)["jobs"][0]["complete"] or steps < 10000
            until("all steps were read", lambda: json.loads(pages.get(chart))["jobs"][0]["complete"], 60, every=0.6)
            whole.append(time.monotonic() - begin)
            time.sleep(0.6)  # timing: what was shared is over
            begin = time.monotonic()
            answer = pages.get(chart)
            later.append(1000 * (time.monotonic() - begin))
            behind = max(behind, longer(before, pages.lag(), 0.01))
            d.stop()
        d.start()
        pages, over = Pages(d.state), threading.Event()
        until("all steps were read", lambda: json.loads(pages.get(chart))["jobs"][0]["complete"], 60, every=0.6)
        time.sleep(2)  # timing: a daemon at rest
        began, cpu = time.monotonic(), pages.cpu_s()
        time.sleep(seconds / 2)
        rest = (pages.cpu_s() - cpu) / (time.monotonic() - began)
        threads = [threading.Thread(target=opened, args=(pages, job, over, i * POLL_S / count)) for i in range(count)]
        for t in threads:
            t.start()
        time.sleep(POLL_S + 2)  # timing: all are open
        before, began, cpu = pages.lag(), time.monotonic(), pages.cpu_s()
        time.sleep(seconds)
        share = (pages.cpu_s() - cpu) / (time.monotonic() - began)
        lag = longer(before, pages.lag(), 0.01)
        over.set()
        for t in threads:
            t.join()
    return {"steps": steps, "rounds": rounds, "first_ms": statistics.median(first), "first_ms_all": first, "target_first_ms": 300, "later_ms": statistics.median(later),
            "whole_s": statistics.median(whole), "bytes": len(answer), "iterations_over_10_ms": behind, "pages": count, "poll_s": POLL_S,
            "share_of_a_core": share, "share_at_rest": rest, "target_share": 0.02, "iterations_over_10_ms_with_pages": lag}


def rows(r):
    yield f"the first chart of a job with {r['steps']:,} steps, of a daemon that has just started, median", f"{r['first_ms']:.0f} ms", f"{r['target_first_ms']} ms"
    yield f"the same later ({r['bytes'] / 1000:.0f} kB); all steps were read after {r['whole_s']:.1f} s", f"{r['later_ms']:.0f} ms", ""
    yield f"{r['pages']} pages open, each asking every {r['poll_s']} s, of a core (at rest {100 * r['share_at_rest']:.1f} %)", f"{100 * r['share_of_a_core']:.1f} %", \
        f"{100 * r['target_share']:.0f} %"
    yield "iterations of the loop over 10 ms, while steps are read; with pages open", f"{r['iterations_over_10_ms']}; {r['iterations_over_10_ms_with_pages']}", "0"
