#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The page of titand and what it reads over HTTP: the answers are those of titanctl -o json, the rights are those of gRPC, streams of events go
on where they were, and what is wrong with a request is said in one line."""
import contextlib
import http.client
import json
import math
import os
import shutil
import signal
import sqlite3
import sys
import tempfile
import urllib.parse
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parents[1] / "support"), str(Path(__file__).resolve().parents[1] / "bench"),
                str(Path(__file__).resolve().parents[1] / "tls")]
from page import many_steps  # noqa: E402
from pki import Coordinator, ctl  # noqa: E402
from test_http import PLAIN, get, place, trust  # noqa: E402
from titan import CALM, SOURCE, Daemon, at_ms, deadline, headers_text, overrides, tap, until  # noqa: E402

TLS = '[http]\nlisten = "127.0.0.1:0"\n[authorization]\nmetrics = ["user:prom"]\nprivate_jobs = true\n'


@contextlib.contextmanager
def trained():
    """(daemon, its pages, a job that has ended)."""
    folder = Path(tempfile.mkdtemp(prefix="titan-page-"))
    try:
        (folder / "titan.toml").write_text(PLAIN + CALM)
        with Daemon(folder / "s", "--config", folder / "titan.toml") as d:
            job = d.submit("tiny", {"training.dataset_path": headers_text(folder / "text"), "training.steps": 5, "training.local_batch_size": 2})
            d.wait_state(job, "COMPLETED")
            yield d, place(d.state), job
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def api(at, method, context=None, token=None, **fields):
    """(status, text) of GET /api/v1/METHOD?fields."""
    query = urllib.parse.urlencode(fields, doseq=True)
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    status, _, text = get(at, f"/api/v1/{method}" + (f"?{query}" if query else ""), context, headers=headers)
    return status, text


class Stream:
    """A stream of events, opened by its query."""

    def __init__(self, at, query="", context=None, headers=None):
        connect = (http.client.HTTPSConnection(*at, timeout=deadline(), context=context) if context else
                   http.client.HTTPConnection(*at, timeout=deadline()))
        self.connection = connect
        connect.request("GET", "/api/v1/events" + query, headers=headers or {})
        self.answer = connect.getresponse()
        self.status, self.type = self.answer.status, self.answer.getheader("content-type")

    def next(self):
        """{"id", "event", "data"} of the next event; None at the end."""
        event = {}
        while line := self.answer.readline():
            line = line.decode().rstrip("\n")
            if not line and "data" in event:
                return event
            if line and not line.startswith(":"):
                name, value = line.split(": ", 1)
                event[name] = value
        return None

    def rest(self):
        while event := self.next():
            yield event

    def close(self):
        self.connection.close()


def answers():
    """each method answers what titanctl -o json prints; a word of the request picks what is asked for"""
    with trained() as (d, at, job):
        assert api(at, "ListCheckpoints", job_id=job) == (200, d.ok("-o", "json", "checkpoints", job))
        recipe = d.ok("-o", "json", "status", job, "--recipe")
        assert json.loads(api(at, "GetRecipe", job_id=job)[1]) == json.loads(recipe)
        assert json.loads(api(at, "GetJob", job_id=job)[1])["job"] == d.status(job)
        listed = json.loads(api(at, "ListJobs", states=["COMPLETED", "RUNNING"], name="ti*", count="true")[1])
        assert listed == {"jobs": d.jobs(), "next_page_token": None, "total": 1}
        assert json.loads(api(at, "ListJobs", states="RUNNING")[1])["jobs"] == []
        nodes, there = (json.loads(text)["nodes"] for text in (api(at, "ListNodes")[1], d.ok("-o", "json", "nodes")))
        assert [n | {"last_seen": None} for n in nodes] == [n | {"last_seen": None} for n in there]
        assert [c["name"] for c in json.loads(api(at, "Counters")[1])["counters"]] == [
            c["name"] for c in json.loads(d.ok("-o", "json", "counters"))["counters"]]
        assert json.loads(api(at, "Version")[1]) == json.loads(d.ok("-o", "json", "version"))["server"]
        assert api(at, "Logs", job_id=job, tail_lines=3) == (200, d.ok("-o", "json", "logs", job, "--tail", 3))
        assert api(at, "Logs", job_id=job, tail_lines=3, rank=1) == (200, d.ok("-o", "json", "logs", job, "--tail", 3, "--rank", 1))
        status, headers, text = get(at, f"/api/v1/GetJob?job_id={job}", method="HEAD")
        assert status == 200 and headers["content-type"] == "application/json" and text == ""
        scraped = get(at, "/metrics")[2]
        assert 'titan_http_requests_total{page="/api/v1/",code="200"} 11' in scraped
        assert 'titan_rpc_handled_total{server="clients",method="/titan.v1.Titan/ListCheckpoints",code="OK"} 2' in scraped


def refusals():
    """what is wrong with a request is named, with gRPC's word for it"""
    with trained() as (_, at, job):
        for path, status, code, words in (
                ("GetJob?job=1", 400, "INVALID_ARGUMENT", "GetJob has no field 'job'"),
                ("GetJob?job_id=1&job_id=1", 400, "INVALID_ARGUMENT", "'job_id' is given twice"),
                ("GetJob?job_id=18446744073709551616", 400, "INVALID_ARGUMENT", "is no value of the field 'job_id'"),
                ("GetJob?job_id=-1", 400, "INVALID_ARGUMENT", "is no value of the field 'job_id'"),
                ("GetJob?job_id=%2B1", 400, "INVALID_ARGUMENT", "is no value of the field 'job_id'"),
                ("GetJob?job_id=a" + "%C3%A9" * 40, 400, "INVALID_ARGUMENT", "is no value of the field 'job_id'"),
                ("events?after=1&after=2", 400, "INVALID_ARGUMENT", "'after' is given twice"),
                (f"curves?job_id={job}&from=1&from=1", 400, "INVALID_ARGUMENT", "'from' is given twice"),
                ("GetJob?job_id", 400, "INVALID_ARGUMENT", "is no value of the field 'job_id'"),
                ("GetJob?job_id=%ff", 400, "INVALID_ARGUMENT", "no percent-encoded UTF-8"),
                ("GetJob?job_id=77", 404, "NOT_FOUND", "there is no job 77"),
                ("ListJobs?states=SLEEPING", 400, "INVALID_ARGUMENT", "'SLEEPING' is no value of the field 'states'"),
                ("ListJobs?count=1", 400, "INVALID_ARGUMENT", "is no value of the field 'count'"),
                ("ListJobs?page_size=1001", 400, "INVALID_ARGUMENT", "page_size"),
                ("ListJobs?name=a%0Ab", 400, "INVALID_ARGUMENT", "name"),
                ("ListJobs?" + "states=RUNNING&" * 65, 400, "INVALID_ARGUMENT", "states"),
                (f"Logs?job_id={job}&follow=true", 400, "INVALID_ARGUMENT", "Logs has no field 'follow'"),
                (f"Logs?job_id={job}&after=1", 400, "INVALID_ARGUMENT", "Logs has no field 'after'"),
                (f"Logs?job_id={job}&tail_lines=0", 400, "INVALID_ARGUMENT", "tail_lines is 1 to 5000"),
                (f"Logs?job_id={job}&tail_lines=5001", 400, "INVALID_ARGUMENT", "tail_lines is 1 to 5000"),
                (f"Logs?job_id={job}&rank=-2", 400, "INVALID_ARGUMENT", "rank"),
                (f"Logs?job_id={job}&rank=4096", 404, "NOT_FOUND", "no rank 4096"),
                ("curves", 400, "INVALID_ARGUMENT", "job_id is not given"),
                ("curves?job_id=0", 400, "INVALID_ARGUMENT", "is no value of the field 'job_id'"),
                ("curves?" + f"job_id={job}&" * 9, 400, "INVALID_ARGUMENT", "at most 8 jobs"),
                (f"curves?job_id={job}&job_id=77", 404, "NOT_FOUND", "there is no job 77"),
                (f"curves?job_id={job}&points=0", 400, "INVALID_ARGUMENT", "is no value of the field 'points'"),
                (f"curves?job_id={job}&points=2001", 400, "INVALID_ARGUMENT", "is no value of the field 'points'"),
                (f"curves?job_id={job}&from=3&to=2", 400, "INVALID_ARGUMENT", "from is behind to"),
                (f"curves?job_id={job}&step=3", 400, "INVALID_ARGUMENT", "curves has no field 'step'"),
                ("events?after=x", 400, "INVALID_ARGUMENT", "is no value of the field 'after'"),
                ("events?follow=true", 400, "INVALID_ARGUMENT", "events has no field 'follow'"),
                ("events?job_id=77", 404, "NOT_FOUND", "there is no job 77"),
                ("Submit", 404, "NOT_FOUND", "there is no '/api/v1/Submit' here"),
                ("CancelJob?job_id=1", 404, "NOT_FOUND", "there is no '/api/v1/CancelJob' here"),
                ("CreateToken?name=a", 404, "NOT_FOUND", "there is no"),
                ("", 404, "NOT_FOUND", "there is no '/api/v1/' here")):
            got, headers, text = get(at, "/api/v1/" + path)
            said = json.loads(text)
            assert (got, said["code"]) == (status, code) and words in said["error"] and text.count("\n") == 1, (path, got, said)
            assert headers["content-type"] == "application/json" and headers["x-content-type-options"] == "nosniff"
        for host, status in (("localhost", 200), ("localhost:1", 200), ("127.0.0.1:7080", 200), ("127.1.2.3", 200), ("[::1]:7080", 200),
                             ("evil.example", 403), ("evil.example:80", 403), ("127.0.0.1.evil.example", 403), ("localhost.", 403), ("[::2]", 403), ("128.0.0.1", 403)):
            assert get(at, "/api/v1/Version", headers={"Host": host})[0] == status, host
        assert get(at, "/api/v1/Version", method="POST")[0] == 405


def files():
    """the page and its files, which hold no data: for everyone, sent again when they have changed only"""
    with Coordinator(config=TLS) as c:
        at, context = place(c.state), trust(c.state / "tls/ca.pem")
        for path, kind in (("/", "text/html"), ("/titan.js", "text/javascript"), ("/titan.css", "text/css")):
            status, headers, text = get(at, path, context)
            assert status == 200 and text and headers["content-type"].startswith(kind)
            assert headers["content-security-policy"].startswith("default-src 'self'; ") and headers["x-content-type-options"] == "nosniff"
            assert headers["referrer-policy"] == "no-referrer" and headers["cache-control"] == "no-cache"
            status, again, text = get(at, path, context, headers={"If-None-Match": headers["etag"]})
            assert (status, text, again["etag"]) == (304, "", headers["etag"])
            assert get(at, path, context, headers={"If-None-Match": '"0"'})[0] == 200
        assert get(at, "/?token=titan_x", context)[2] == get(at, "/", context)[2]  # nothing in an address counts
        assert get(at, "/page/index.html", context)[0] == get(at, "/../daemon/pages.c", context)[0] == 404


def rights():
    """who may call the method may ask for it, by certificate or token; the others hear 401 or 403, and others' jobs are not there"""
    with Coordinator(config=TLS) as c:
        at, ca = place(c.state), c.state / "tls/ca.pem"
        nobody, eva, prom = trust(ca), trust(ca, c.user("eva")), trust(ca, c.user("prom"))
        status, headers, text = get(at, "/api/v1/ListJobs", nobody)
        assert status == 401 and headers["www-authenticate"] == "Bearer" and json.loads(text)["code"] == "PERMISSION_DENIED"
        for method in ("ListJobs", "ListNodes", "Counters", "Version", "GetJob", "Logs", "events", "curves?job_id=1"):
            assert api(at, method, nobody)[0] == 401, method
            assert api(at, method, prom)[0] == (200 if method == "Version" else 403), method
        assert json.loads(api(at, "ListJobs", eva)[1])["jobs"] == []
        token = c.ctl("token", "create", "eva").strip()
        assert api(at, "ListJobs", nobody, token)[0] == 200
        for bad in (token[:-1] + "x", "titan_0123456789abcdef_00", "x", ""):
            assert api(at, "ListJobs", nobody, bad or " ")[0] == 401, bad
        assert api(at, "ListJobs", eva, "titan_0123456789abcdef_00")[0] == 403  # a certificate does not make up for a wrong token
        s = Stream(at, "", nobody, {"Authorization": f"Bearer {token}"})
        assert (s.status, s.type) == (200, "text/event-stream")
        c.ctl("token", "revoke", token.split("_")[1])
        last = list(s.rest())[-1]
        assert last["event"] == "error" and json.loads(last["data"])["code"] == "PERMISSION_DENIED"
        assert api(at, "ListJobs", nobody, token)[0] in (401, 403)
        assert "ListJobs refused" in c.ctl("audit")


def private():
    """with private_jobs a user's page shows that user's jobs alone"""
    folder = Path(tempfile.mkdtemp(prefix="titan-page-"))
    try:
        text = headers_text(folder / "text")
        with Coordinator(config=TLS + f'[storage]\ndata_roots = ["{text}"]\n') as c:
            at, ca = place(c.state), c.state / "tls/ca.pem"
            eva, ida = trust(ca, c.user("eva")), trust(ca, c.user("ida"))
            job = ctl("-s", c.tcp, *(x for k in ("ca", "cert", "key") for x in (f"--tls-{k}", c.dir / "eva" / f"{k}.pem")), "submit",
                      SOURCE / "recipes/tiny.toml", *overrides({"training.dataset_path": text, "training.steps": 5})).strip()
            assert [j["id"] for j in json.loads(api(at, "ListJobs", eva)[1])["jobs"]] == [int(job)]
            assert json.loads(api(at, "ListJobs", ida)[1])["jobs"] == []
            assert api(at, "curves", eva, job_id=job)[0] == 200
            for method in ("GetJob", "GetRecipe", "Logs", "ListCheckpoints", "events", "curves"):
                status, text = api(at, method, ida, job_id=job)
                assert status == 404 and json.loads(text)["error"] == f"there is no job {job}", (method, status, text)
            hers, theirs = Stream(at, f"?after=0&job_id={job}", eva), Stream(at, "?after=0", ida)
            assert json.loads(hers.next()["data"])["job_id"] == int(job)
            c.ctl("cancel", job)
            assert [e["event"] for e in hers.rest()][-1] == "end"
            c.join_file("n1")
            c.spawn("n1", "agent", "--join", c.dir / "n1.join")
            for event in theirs.rest():
                assert json.loads(event["data"])["job_id"] == 0, event
                if event["event"] == "node.ready":
                    break
            hers.close()
            theirs.close()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def streams():
    """events as titanctl -o json events has them, with their numbers as ids; a stream goes on at one, also after the coordinator's restart"""
    with trained() as (d, at, job):
        wanted = d.lines("events", job)
        s = Stream(at, f"?after=0&job_id={job}")
        assert (s.status, s.type) == (200, "text/event-stream")
        got = list(s.rest())
        assert [json.loads(e["data"]) for e in got[:-1]] == wanted
        assert [(int(e["id"]), e["event"]) for e in got[:-1]] == [(e["id"], e["type"]) for e in wanted]
        assert (got[-1]["event"], got[-1]["data"]) == ("end", "{}")
        middle = wanted[len(wanted) // 2]["id"]
        for query, headers in ((f"?job_id={job}&after={middle}", {}), (f"?job_id={job}&after=0", {"Last-Event-ID": str(middle)})):
            s = Stream(at, query, headers=headers)
            assert [json.loads(e["data"])["id"] for e in list(s.rest())[:-1]] == [e["id"] for e in wanted if e["id"] > middle]
        everything = d.lines("events")
        newest = everything[-1]["id"]
        last = Stream(at, "?last=2")
        assert int(last.next()["id"]) > newest - 2
        now = Stream(at)  # what comes from now on
        d.ok("drain", everything[0]["node"])
        assert int(now.next()["id"]) == newest + 1
        d.process.send_signal(signal.SIGTERM)
        assert d.process.wait(deadline()) == 0
        for s in (last, now):
            s.close()
        d.start()
        behind = Stream(place(d.state), headers={"Last-Event-ID": str(newest)})
        assert int(behind.next()["id"]) == newest + 1
        behind.close()


def near(a, b):
    return a == b or (a is not None and b is not None and math.isclose(a, b, rel_tol=2e-5))


def curves():
    """curves have each step's metrics as titanctl has them, a part of the steps its own, and marks the job's events; two jobs are two curves"""
    with trained() as (d, at, job):
        second = d.submit("tiny", {"training.dataset_path": headers_text(d.state / "text"), "training.steps": 40, "training.local_batch_size": 2})
        d.wait_state(second, "COMPLETED")
        points = d.lines("metrics", second)
        chart, other = json.loads(api(at, "curves", job_id=[second, job])[1])["jobs"]
        assert (chart["job_id"], other["job_id"], chart["complete"], chart["done"]) == (int(second), int(job), True, 1)
        c = chart["curves"]
        assert c["step"] == c["last_step"] == [p["step"] for p in points] and c["tokens"] == [p["tokens"] for p in points]
        for name in ("loss", "grad_norm", "learning_rate", "tokens_per_second", "step_ms"):
            assert all(near(a, p[name]) for a, p in zip(c[name]["mean"], points)) and "min" not in c[name], name
            assert c[name]["last"] == points[-1][name]
        assert len(other["curves"]["step"]) == 5
        few = json.loads(api(at, "curves", job_id=second, points=6, **{"from": 11, "to": 30})[1])["jobs"][0]["curves"]
        assert (few["step"], few["last_step"]) == ([11, 15, 19, 23, 27], [14, 18, 22, 26, 30])
        assert few["loss"]["min"][0] == min(c["loss"]["mean"][10:14]) and few["loss"]["max"][4] == max(c["loss"]["mean"][26:30])
        events = d.lines("events", second)
        assert [x["step"] for x in chart["checkpoints"]] == [e["detail"]["step"] for e in events if e["type"] == "checkpoint.committed"]
        assert [x["world"] for x in chart["worlds"]] == [4, 0]
        assert [x["message"] for x in chart["events"]] == [e["message"] for e in events if e["type"] in ("job.state", "job.submitted")]
        assert set(chart["split"]) == {"data_ms", "compute_ms", "communication_ms", "checkpoint_ms", "straggler_ms"}
        assert sum(r["steps"] for r in chart["slowest"]) == chart["slowest"][0]["of"] == 40 and chart["slowest"][0]["node"]


def repeated_steps():
    """steps that are trained again take the places of those that were lost, in the chart that was asked for before, too"""
    folder = Path(tempfile.mkdtemp(prefix="titan-page-"))
    try:
        (folder / "titan.toml").write_text(PLAIN + CALM)
        with Daemon(folder / "s", "--config", folder / "titan.toml", pace_ms=10) as d:
            at = place(d.state)
            job = d.submit("tiny", {"training.dataset_path": headers_text(folder / "text"), "training.steps": 150, "training.local_batch_size": 2,
                                    "checkpoint.interval": 1000, "fault_tolerance.redundancy": "checkpoint"})

            def chart():
                return json.loads(api(at, "curves", job_id=job, points=2000)[1])["jobs"][0]
            seen = until("some steps were trained", lambda: [c for c in [chart()] if c["curves"]["step"][-1:] >= [20]])[0]["curves"]["step"][-1]
            for pid in d.workers(job).values():
                os.kill(pid, signal.SIGKILL)
            d.wait_state(job, "COMPLETED")
            points, c = d.lines("metrics", job), chart()
            assert [p["step"] for p in points] == c["curves"]["step"] == list(range(1, 151))
            assert all(near(a, p["loss"]) for a, p in zip(c["curves"]["loss"]["mean"], points))
            assert c["curves"]["at"] == [at_ms(p["at"]) for p in points]  # the later ones of those that came twice
            assert {p["epoch"] for p in points} != {1} and [x["kind"] for x in c["changes"]].count("recovery") == 1 and c["changes"][0]["resume_step"] < seen
            assert any(e["kind"] == "loss" for e in c["events"]) and len([x for x in c["worlds"] if x["world"]]) >= 2
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def long_runs():
    """a job of many steps is shown by a sample at first, then by all of its steps; parts of it too, more than are kept at a time"""
    steps = 20000
    with trained() as (d, _, job):
        d.stop()
        many_steps(d.state, job, steps)
        with contextlib.closing(sqlite3.connect(d.state / "metrics.db")) as db:  # titand shares it with nobody
            rows = db.execute("SELECT loss, tokens FROM metrics WHERE job_id = ? ORDER BY step", (job,)).fetchall()
        d.start()
        at = place(d.state)
        first = json.loads(api(at, "curves", job_id=job)[1])["jobs"][0]
        shown = first["curves"]
        assert not first["complete"] and first["done"] < 1 and shown["last_step"][-1] == steps and 300 <= len(shown["step"]) <= 600
        whole = until("all steps were read", lambda: (lambda j: j["complete"] and j)(json.loads(api(at, "curves", job_id=job, points=500)[1])["jobs"][0]), every=0.6)
        c = whole["curves"]
        assert (c["step"][0], c["last_step"][-1], whole["done"]) == (1, steps, 1) and all(a + 1 == b for a, b in zip(c["last_step"], c["step"][1:]))
        for i in (0, 7, len(c["step"]) - 1):
            part = rows[c["step"][i] - 1:c["last_step"][i]]
            losses = [loss for loss, _ in part]
            wanted = min(losses), max(losses), sum(losses) / len(losses), part[-1][1]
            assert all(near(a, b) for a, b in zip(wanted, (c["loss"]["min"][i], c["loss"]["max"][i], c["loss"]["mean"][i], c["tokens"][i]))), (i, wanted)
        for k in range(40):
            part = json.loads(api(at, "curves", job_id=job, **{"from": 100 * k + 1, "to": 100 * k + 100})[1])["jobs"][0]
            assert part["complete"] and part["curves"]["step"] == list(range(100 * k + 1, 100 * k + 101))
        again = json.loads(api(at, "curves", job_id=job, points=500)[1])["jobs"][0]
        assert again["curves"]["loss"]["mean"][0] == c["loss"]["mean"][0] or not again["complete"]
        with contextlib.closing(http.client.HTTPConnection(*at, timeout=deadline())) as gone:  # one that leaves before it is shown
            gone.request("GET", f"/api/v1/curves?job_id={job}&from=2")
        assert api(at, "Version")[0] == 200


def many():
    """streams beyond the limit are refused, and there is room again when some have gone"""
    with trained() as (d, at, _):
        with contextlib.ExitStack() as held:
            for _ in range(250):  # of one address, 256 connections
                s = Stream(at)
                held.callback(s.close)
                assert s.status == 200
            assert api(at, "Version")[0] == 200
            assert not d.ctl("version").code
        until("they have gone", lambda: api(at, "Version")[0] == 200 and "titan_http_connections 1\n" in get(at, "/metrics")[2])


if __name__ == "__main__":
    tap(answers, refusals, files, rights, private, streams, curves, repeated_steps, long_runs, many)
