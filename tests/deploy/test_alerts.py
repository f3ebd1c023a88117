#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prometheus and Alertmanager over a cluster with TLS, as docs/operations.md, "Watch it", sets them up: a worker is killed whose job has no further
budget, the disk of checkpoints is full, the coordinator is stopped. Exactly the alerts for these reach the receiver, each with its line of what to do."""
import contextlib
import http.server
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.parse
import urllib.request
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / p) for p in ("support", "tls", "security")]
from pki import Coordinator  # noqa: E402
from test_http import TLS, place  # noqa: E402
from titan import BUILD, CALM, FP_BIN, SOURCE, command, deadline, headers_text, paced, slow, tap, until  # noqa: E402

RULES = SOURCE / "deploy/prometheus/titan.rules.yml"
METRICS = TLS + '[authorization]\nmetrics = ["user:prometheus"]\n'
TICK = os.environ.get("TICK", "1s")  # of scrapes and rules


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as s:
        return s.getsockname()[1]


class Pager(http.server.ThreadingHTTPServer):
    """Alertmanager's receiver: [(seconds since it is there, status, labels, annotations)]"""
    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Page)
        self.got, self.begin = [], time.monotonic()
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def firing(self):
        return {labels["alertname"] for _, status, labels, _ in list(self.got) if status == "firing"}


class Page(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        said = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.got += [(time.monotonic() - self.server.begin, a["status"], a["labels"], a["annotations"]) for a in said["alerts"]]
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_):
        pass


@contextlib.contextmanager
def mounted(folder):
    """A small disk; skipped where none can be mounted."""
    folder.mkdir()
    folder.chmod(0o777)
    done = command("mount", "-t", "tmpfs", "-o", "size=64m", "none", folder)
    try:
        yield done.code == 0
    finally:
        if done.code == 0:
            command("umount", "-l", folder)


@contextlib.contextmanager
def program(*args, log):
    with open(log, "w") as out:
        process = subprocess.Popen([str(a) for a in args], stdout=out, stderr=out)
    try:
        yield
    finally:
        process.terminate()
        process.wait(deadline())


@slow
def three():
    """a loss that uses up the budget, a full disk and a stopped coordinator: three alerts at the receiver, and no other"""
    for needed in ("prometheus", "prometheus-alertmanager"):
        if not shutil.which(needed):
            return f"no {needed} (Debian's)"
    if not (FP_BIN / "titan-worker").exists():
        return "no titan-worker with failpoints (make tests)"
    with Coordinator(METRICS) as c, contextlib.closing(Pager()) as pager, mounted(c.dir / "disk") as disk:
        if not disk:
            return "tmpfs cannot be mounted here"
        pager.close = pager.server_close
        own, (more, environment) = c.user("prometheus"), paced(100)
        (c.dir / "n1.toml").write_text(METRICS + CALM)
        c.spawn("n1", "agent", "--join", c.join_file("n1"), "--config", c.dir / "n1.toml", "--slots", 2, *more, env=environment)
        until("n1 is ready", lambda: c.nodes().get("n1") == "ready")
        ours = {"ca_file": str(c.state / "tls/ca.pem"), "cert_file": str(own / "cert.pem"), "key_file": str(own / "key.pem")}
        theirs = {"insecure_skip_verify": True, "cert_file": ours["cert_file"], "key_file": ours["key_file"]}
        at, agent, ports = place(c.state), place(c.dir / "n1"), (free_port(), free_port())
        (c.dir / "alertmanager.yml").write_text(json.dumps({  # JSON is YAML
            "route": {"receiver": "pager", "group_by": ["alertname"], "group_wait": "1s", "group_interval": "5s"},
            "receivers": [{"name": "pager", "webhook_configs": [{"url": f"http://127.0.0.1:{pager.server_port}/"}]}]}))
        (c.dir / "prometheus.yml").write_text(json.dumps({
            "global": {"scrape_interval": TICK, "evaluation_interval": TICK}, "rule_files": [str(RULES)],
            "alerting": {"alertmanagers": [{"static_configs": [{"targets": [f"127.0.0.1:{ports[1]}"]}]}]},
            "scrape_configs": [{"job_name": "titan", "scheme": "https", "tls_config": ours, "static_configs": [{"targets": [f"{at[0]}:{at[1]}"]}]},
                               {"job_name": "titan-agents", "scheme": "https", "tls_config": theirs, "static_configs": [{"targets": [f"{agent[0]}:{agent[1]}"]}]}]}))
        with program("prometheus-alertmanager", f"--config.file={c.dir}/alertmanager.yml", f"--storage.path={c.dir}/am", "--cluster.listen-address=",
                     f"--web.listen-address=127.0.0.1:{ports[1]}", log=c.dir / "alertmanager.log"), \
                program("prometheus", f"--config.file={c.dir}/prometheus.yml", f"--storage.tsdb.path={c.dir}/data",
                        f"--web.listen-address=127.0.0.1:{ports[0]}", log=c.dir / "prometheus.log"):
            def ask(query):
                with contextlib.suppress(OSError):
                    url = f"http://127.0.0.1:{ports[0]}/api/v1/query?" + urllib.parse.urlencode({"query": query})
                    with urllib.request.urlopen(url, timeout=deadline()) as r:
                        return json.load(r)["data"]["result"]
                return []
            keys = {"training.steps": 1000000, "elastic.min_workers": 1, "elastic.max_workers": 2, "checkpoint.enable": "true", "checkpoint.interval": 5,
                    "checkpoint.folder": c.dir / "disk/run", "checkpoint.keep_latest_k": 2, "fault_tolerance.backoff_ms": 50, "fault_tolerance.max_restarts": 1,
                    "training.dataset_path": headers_text(c.dir / "text")}
            job = c.ctl("submit", SOURCE / "recipes/tiny.toml", *[x for k, v in keys.items() for x in ("--set", f"{k}={v}")]).strip()
            state = lambda: json.loads(c.ctl("-o", "json", "status", job))  # noqa: E731
            until("two workers train", lambda: (lambda s: s["world_size"] == 2 and s["checkpoint"])(state()))
            until("both are scraped", lambda: len(ask("up == 1")) == 2 and ask(f'titan_job_checkpoint_timestamp_seconds{{job_id="{job}"}}'))
            told, quiet = {}, not pager.got

            def fault(alert, what):
                begin = time.monotonic()
                what()
                until(lambda: f"{alert} is told: {pager.got}", lambda: alert in pager.firing(), seconds=240)
                told[alert] = round(time.monotonic() - begin, 1)

            def fill():
                with contextlib.suppress(OSError), open(c.dir / "disk/full", "wb", buffering=0) as f:
                    while f.write(bytes(4096)):
                        pass
            started = [json.loads(line)["detail"] for line in c.ctl("-o", "json", "events", job).splitlines() if '"worker.started"' in line]
            fault("TitanBudgetLow", lambda: os.kill(started[0]["pid"], signal.SIGKILL))
            until("it goes on", lambda: state()["state"] == "RUNNING")
            fault("TitanCheckpointFails", fill)
            fault("TitanCoordinatorDown", lambda: c.stop("c"))

            def rounds():
                with urllib.request.urlopen(f"http://127.0.0.1:{ports[0]}/metrics", timeout=deadline()) as r:
                    return sum(float(line.split()[-1]) for line in r.read().decode().splitlines() if line.startswith("prometheus_rule_group_iterations_total"))
            begun = rounds()
            until("the rules are looked at a few times more", lambda: rounds() >= begun + 5, seconds=240)
            assert quiet and pager.firing() == {"TitanBudgetLow", "TitanCheckpointFails", "TitanCoordinatorDown"}, pager.got
            assert all(annotations["do"] and annotations["summary"] for _, _, _, annotations in pager.got)
            line = ", ".join(f"{alert} {seconds} s" for alert, seconds in told.items())
            print(f"# from the fault to the receiver, scrapes and rules every {TICK}: {line}; in all {time.monotonic() - pager.begin:.0f} s", flush=True)
            (BUILD / "alerts.json").write_text(json.dumps({"tick": TICK, "seconds": told}) + "\n")
    return None


if __name__ == "__main__":
    tap(three)
