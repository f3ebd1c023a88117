#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""deploy/prometheus and deploy/grafana: each alert fires for what it is about and says what to do, each query of the board is PromQL, and all of
them name metrics and labels that titand has."""
import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import urllib.parse
import urllib.request
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / p) for p in ("support", "tls", "security")]
from test_http import PLAIN, dev  # noqa: E402
from titan import BIN, SOURCE, command, deadline, headers_text, slow, tap, until  # noqa: E402

RULES, TESTS, BOARD = (SOURCE / "deploy" / p for p in ("prometheus/titan.rules.yml", "prometheus/titan.rules.test.yml", "grafana/titan.json"))
ROW = re.compile(r'^METRIC\((\w+), (\w+), "(.*?)", (\w+), "(.*)"\)$', re.M)
PROMTOOL = shutil.which("promtool")
OURS = {"instance", "job", "le"}  # labels that Prometheus adds, and buckets have


def table():
    """{name of a series: its labels}"""
    out = {}
    for name, kind, labels, _, _ in ROW.findall((SOURCE / "daemon/common/metric_table.def").read_text()):
        for end in ("_bucket", "_sum", "_count") if kind == "HISTOGRAM" else ("",):
            out[name + end] = set(filter(None, labels.split(",")))
    return out


def wrong(query, known):
    """What a query names that is not there: series, and labels of their selectors."""
    found = []
    for name, selector in re.findall(r"\b((?:titan|process)_\w+)(?:\{(.*?)\})?", query):
        if name not in known:
            found.append(f"{name} in {query}")
        else:
            found += [f"{name}{{{label}}} in {query}" for label in re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", selector) if label not in known[name] | OURS]
    return found


def rules():
    """{alert: its lines}; the file is flat enough for that"""
    return {part.split("\n", 1)[0].strip(): part for part in RULES.read_text().split("- alert:")[1:]}


def queries():
    board = json.loads(BOARD.read_text())
    return [(panel["title"], target["expr"]) for panel in board["panels"] for target in panel.get("targets", [])]


def alerts():
    """promtool takes the rules, and each alert fires in its own test"""
    assert len(rules()) == RULES.read_text().count("alert:") > 15
    tested = set(re.findall(r"alertname: (\w+)", TESTS.read_text()))
    assert tested == set(rules()), tested ^ set(rules())
    if not PROMTOOL:
        return "no promtool (Debian's prometheus)"
    for args in (("check", "rules", RULES), ("test", "rules", TESTS)):
        done = command(PROMTOOL, *args)
        assert done.code == 0, done
    return None


def lines():
    """each alert has a severity, a summary, and one line of what to do, whose titanctl commands are there"""
    for name, text in rules().items():
        assert re.search(r"severity: (page|ticket)", text) and re.search(r'^\s+summary: ".+"$', text, re.M), name
        do = re.search(r'^\s+do: "(.+)"$', text, re.M).group(1)
        for words in re.findall(r"titanctl ((?:node )?[a-z]+)", do):
            done = command(BIN / "titanctl", words.split()[0], "--help")
            assert done.code == 0 and all(re.search(rf"\b{word}\b", done.out) for word in words.split() if words.startswith("node ")), (name, words)
        for page, section in re.findall(r"docs/(\w+)\.md, ([\w' ]+)", do):
            assert re.search(rf"^#+ {re.escape(section)}", (SOURCE / f"docs/{page}.md").read_text(), re.M), (name, section)


def names():
    """the queries of alerts and board name metrics and labels that there are; a name that is not is found"""
    known = table()
    assert wrong("rate(titan_nope[5m])", known) and wrong('titan_jobs{colour="red"}', known) and wrong("titan_store_commit_seconds", known)
    assert not wrong('sum by (state) (titan_jobs{state="running", instance=~"x"})', known)
    all_queries = [q for _, q in queries()] + re.findall(r"^\s+expr: (.+)$", RULES.read_text(), re.M)
    found = [w for q in all_queries for w in wrong(q, known)]
    assert not found and len(all_queries) > 50, "\n".join(found)


def board():
    """every query of the board is PromQL; panels have places that do not overlap, and numbers of their own"""
    made = json.loads(BOARD.read_text())
    cells = [(p["gridPos"]["x"] + x, p["gridPos"]["y"] + y) for p in made["panels"] for x in range(p["gridPos"]["w"]) for y in range(p["gridPos"]["h"])]
    assert len(cells) == len(set(cells)) and max(x for x, _ in cells) < 24
    assert len({p["id"] for p in made["panels"]}) == len(made["panels"])
    if not PROMTOOL:
        return "no promtool (Debian's prometheus)"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "board.yml"
        recorded = [{"record": f"q{i}", "expr": q.replace("$instance", ".*").replace("$job", ".*")} for i, (_, q) in enumerate(queries())]
        path.write_text(json.dumps({"groups": [{"name": "board", "rules": recorded}]}))  # JSON is YAML
        done = subprocess.run([PROMTOOL, "check", "rules", path], capture_output=True, text=True)
        assert done.returncode == 0 and f"{len(recorded)} rules found" in done.stdout, done
    return None


# What a cluster that is well has nothing of.
SILENT = {"Longest wait, by priority", "Certificates end in", "Agents without a coordinator", "GPUs out of use"}


@slow
def live():
    """Prometheus scrapes a run that loses a worker: every query of the board has data, and when the daemon is gone the alert for it fires alone"""
    if not shutil.which("prometheus"):
        return "no prometheus (Debian's)"
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack, dev(PLAIN, pace_ms=20) as (d, at):
        folder = Path(folder)
        with socket.create_server(("127.0.0.1", 0)) as s:
            port = s.getsockname()[1]
        (folder / "prometheus.yml").write_text(json.dumps({
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"}, "rule_files": [str(RULES)],
            "scrape_configs": [{"job_name": "titan", "static_configs": [{"targets": [f"{at[0]}:{at[1]}"]}]}]}))
        process = subprocess.Popen(["prometheus", f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data",
                                    f"--web.listen-address=127.0.0.1:{port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        stack.callback(lambda: (process.terminate(), process.wait(deadline())))

        def ask(query):
            with contextlib.suppress(OSError):
                url = f"http://127.0.0.1:{port}/api/v1/query?" + urllib.parse.urlencode({"query": query})
                with urllib.request.urlopen(url, timeout=deadline()) as r:
                    return json.load(r)["data"]["result"]
            return []

        def empty():
            return [title for title, q in queries() if title not in SILENT and not ask(q.replace("$instance", ".*").replace("$job", ".*"))]
        job = d.submit("tiny", {"training.steps": 1000000, "elastic.min_workers": 1, "elastic.max_workers": 2, "checkpoint.interval": 5,
                                "fault_tolerance.backoff_ms": 50, "training.dataset_path": headers_text(d.state / "text")})
        until("two workers train", lambda: (lambda s: s["world_size"] == 2 and s["checkpoint"])(d.status(job)))
        until("Prometheus has seen the job", lambda: ask(f'titan_job_checkpoint_timestamp_seconds{{job_id="{job}"}}'))
        os.kill(min(d.workers(job).values()), signal.SIGKILL)
        d.ok("admin", "backup", d.state / "backup.db")
        until(lambda: f"every query of the board has data; not: {empty()}", lambda: not empty())
        assert not ask('ALERTS{alertstate="firing"}'), ask('ALERTS{alertstate="firing"}')
        d.stop()
        until("the alert fires", lambda: ask('ALERTS{alertname="TitanCoordinatorDown",alertstate="firing"}'))
        assert len(ask('ALERTS{alertstate="firing"}')) == 1
    return None


if __name__ == "__main__":
    tap(alerts, lines, names, board, live)
