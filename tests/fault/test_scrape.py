#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""/metrics against a run that loses a worker: names and values are those that titanctl shows, both formats are read by Prometheus' own parsers,
and only the roles that may read them get them."""
import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / p) for p in ("support", "tls", "security")]
from pki import Coordinator  # noqa: E402
from test_http import PLAIN, TLS, dev, get, place, raw, trust  # noqa: E402
from titan import BIN, CALM, SOURCE, at_ms, command, headers_text, tap, until  # noqa: E402

try:
    from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
    from prometheus_client.parser import text_string_to_metric_families as plain
except ImportError:
    print("1..1\nok 1 - /metrics # SKIP no python3-prometheus-client (make deps)")
    sys.exit(0)

OPENMETRICS = {"Accept": "application/openmetrics-text; version=1.0.0"}
KEYS = {"training.steps": 1000000, "elastic.min_workers": 1, "elastic.max_workers": 2, "checkpoint.interval": 5, "fault_tolerance.backoff_ms": 50}
ROW = re.compile(r'^METRIC\((\w+), (\w+), "(.*?)", (\w+), "(.*)"\)$', re.M)


def table():
    """{name: (type, labels, who)} of the metrics that there are."""
    text = (SOURCE / "daemon/common/metric_table.def").read_text()
    return {name: (kind.lower(), tuple(filter(None, labels.split(","))), who) for name, kind, labels, who, _ in ROW.findall(text)}


class Scrape:
    """The samples of a page: scrape("titan_jobs", state="running") is its value, None where it is not there."""

    def __init__(self, at, context=None, headers=None):
        status, self.headers, self.text = get(at, "/metrics", context, headers=headers)
        assert status == 200, (status, self.text)
        self.families = list((openmetrics if headers == OPENMETRICS else plain)(self.text))
        self.samples = {(s.name, tuple(sorted(s.labels.items()))): s.value for f in self.families for s in f.samples}
        assert len(self.samples) == sum(len(f.samples) for f in self.families), "a series is there twice"

    def __call__(self, name, **labels):
        return self.samples.get((name, tuple(sorted(labels.items()))))

    def of(self, **labels):
        return [key for key in self.samples if labels.items() <= dict(key[1]).items()]


def run():
    """a run loses a worker, recovers, is cancelled: steps, loss, checkpoint, recovery and queue as titanctl tells of them; its series stay"""
    with dev(PLAIN, pace_ms=20) as (d, at):
        idle = until("the node is ready", lambda: (lambda s: s("titan_slots", device="cpu", use="free") == 4 and s)(Scrape(at)))
        assert idle("titan_coordinator_up") == 1 and idle("titan_coordinator_term") == 1 and idle("titan_coordinator_fenced") == 0
        assert idle("titan_nodes", state="ready") == 1
        name = 'a"b\\c <img onerror=x>'
        keys = {**KEYS, "training.dataset_path": headers_text(d.state / "text")}
        job = d.submit("tiny", keys, "--name", name)
        until("two workers train", lambda: (lambda s: s["state"] == "RUNNING" and s["world_size"] == 2 and s["checkpoint"])(d.status(job)))
        s = until("the loss is shown", lambda: (lambda s: s("titan_job_loss", job_id=job) and s)(Scrape(at)))
        after = d.status(job)
        info = next(dict(key[1]) for key in s.of(job_id=job) if key[0] == "titan_job_info")
        assert info["name"] == name and info["user"] == after["user"], info
        assert 0 < s("titan_job_step", job_id=job) <= after["step"] and s("titan_job_steps", job_id=job) == 1000000
        assert s("titan_job_state", job_id=job, state="running") == 1 and s("titan_jobs", state="running") == 1
        assert s("titan_job_world_size", job_id=job) == 2 and s("titan_job_epoch", job_id=job) == after["epoch"]
        assert s("titan_job_tokens_total", job_id=job) > 0 and s("titan_job_grad_norm", job_id=job) > 0
        written = [e for e in d.lines("events", job) if e["type"] == "checkpoint.committed"]
        assert round(1000 * s("titan_job_checkpoint_timestamp_seconds", job_id=job)) in [round(at_ms(e["at"])) for e in written], written
        assert s("titan_slots", device="cpu", use="used") == 2 and s("titan_node_slots_used", node=next(dict(k[1])["node"] for k in s.of() if k[0] == "titan_node_up")) == 2
        assert s("titan_recovery_seconds_count") == 0 and s("titan_store_commit_seconds_count") > 0 and s("titan_store_bytes", file="titan.db-wal") > 0
        assert s("titan_rpc_handled_total", server="clients", method="/titan.v1.Titan/Submit", code="OK") == 1
        assert s("titan_rpc_seconds_count", server="clients", method="/titan.v1.Titan/Submit") == 1
        assert s("titan_rpc_seconds_count", server="agents", method="/titan.internal.Coordinator/Session") is None  # it streams

        os.kill(min(d.workers(job).values()), signal.SIGKILL)
        until("the run has recovered", lambda: any(e["type"] == "recovery.finished" for e in d.lines("events", job)))
        s = until("the recovery is shown", lambda: (lambda s: s("titan_recovery_seconds_count") == 1 and s)(Scrape(at)))
        detail = next(e["detail"] for e in d.lines("events", job) if e["type"] == "recovery.finished")
        assert round(1000 * s("titan_recovery_seconds_sum")) == detail["recovery_ms"]
        for phase in ("detect", "decide", "quiet", "form", "state", "step"):
            assert round(1000 * s("titan_recovery_phase_seconds_sum", phase=phase)) == max(detail[f"{phase}_ms"], 0), phase
        assert s("titan_job_losses_in_window", job_id=job, cause="crash") == 1 and s("titan_job_losses_allowed", job_id=job, cause="crash") > 1

        waits = d.submit("tiny", {**keys, "elastic.min_workers": 5, "elastic.max_workers": 5, "training.global_batch_size": 20})
        until("a job waits for nodes", lambda: Scrape(at)("titan_queue_jobs", reason="nodes") == 1)
        since = Scrape(at)("titan_queue_oldest_timestamp_seconds", priority="0")
        assert round(1000 * since) == round(at_ms(d.status(waits)["submitted_at"]))
        assert not Scrape(at).of(job_id=waits)  # jobs that wait have no series: there may be many
        d.ok("cancel", waits, job)
        d.wait_state(job, "CANCELLED")
        s = until("the end is shown", lambda: (lambda s: s("titan_job_state", job_id=job, state="cancelled") == 1 and s)(Scrape(at)))
        assert s("titan_jobs", state="running") == 0
        series = [key for key in s.of(job_id=job) if key[0].startswith("titan_job_")]
        assert 15 <= len(series) <= 24, series

        backup = d.state / "backup.db"
        assert s("titan_backup_timestamp_seconds") is None
        d.ok("admin", "backup", backup)
        taken = until("the backup is shown", lambda: Scrape(at)("titan_backup_timestamp_seconds"))
        d.stop()
        d.start()
        s = Scrape(place(d.state))
        assert s("titan_backup_timestamp_seconds") == taken and s("titan_coordinator_term") == 2


def formats():
    """text and OpenMetrics have the same series, of names, types and labels of the table; promtool finds nothing to say"""
    with dev(PLAIN) as (d, at):
        job = d.submit("tiny", {"training.steps": 1000000, "training.dataset_path": headers_text(d.state / "text")})
        until("it trains", lambda: Scrape(at)("titan_job_loss", job_id=job))
        d.ok("cancel", job)
        d.wait_state(job, "CANCELLED")
        until("its workers are gone", lambda: not any(name.startswith("titan_worker_") and labels for name, labels in Scrape(at).samples))
        known = table()
        kinds = lambda s: {f.name: f.type for f in s.families}  # noqa: E731
        a, b = Scrape(at), Scrape(at, headers=OPENMETRICS)
        assert a.headers["content-type"].startswith("text/plain; version=0.0.4") and b.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
        assert kinds(a) == kinds(b) and b.text.endswith("# EOF\n")
        keys = lambda s: {key for key in s.samples if not key[0].startswith(("titan_http_", "titan_rpc_"))}  # noqa: E731
        assert keys(a) == keys(b)
        for f in a.families:
            name = f.name + "_total" * (f.type == "counter")
            kind, labels, _ = known[name]
            assert f.type == kind and f.documentation, f
            for s in f.samples:
                assert set(s.labels) - {"le"} == set(labels), s
        absent = {"titan_gpu_out_of_use", "titan_gpu_ecc_errors_total", "titan_gpu_xid", "titan_worker_resident_bytes", "titan_worker_cpu_seconds_total",
                  "titan_worker_step", "titan_backup_timestamp_seconds", "titan_queue_oldest_timestamp_seconds", "titan_job_mfu_ratio", "titan_job_losses_in_window",
                  "titan_job_losses_allowed", "titan_replog_lag", "titan_job_checkpoint_timestamp_seconds", "titan_certificate_expiry_timestamp_seconds",
                  *(name for name in known if name.startswith("titan_webhook_"))}  # fault/test_webhooks.py
        shown = {f.name + "_total" * (f.type == "counter") for f in a.families}
        missing = {name for name in known} - shown - absent
        assert not missing, missing
        if not shutil.which("promtool"):
            print("# no promtool (Debian's prometheus): its check is left out")
            return
        done = subprocess.run(["promtool", "check", "metrics"], input=a.text, text=True, capture_output=True)
        assert done.returncode == 0 and not done.stdout + done.stderr, done


def agents():
    """an agent on its own: workers by memory, processor and step, starts and ends; with its own list of who may read"""
    with Coordinator() as c:
        (c.dir / "n1.toml").write_text(TLS + '[authorization]\nmetrics = ["user:prometheus"]\n' + CALM)
        c.spawn("n1", "agent", "--join", c.join_file("n1"), "--config", c.dir / "n1.toml", "--slots", 2)
        until("n1 is ready", lambda: c.nodes().get("n1") == "ready")
        at, prometheus = place(c.dir / "n1"), trust(own=c.user("prometheus"))
        assert get(at, "/metrics", trust())[0] == 401 and get(at, "/metrics", trust(own=c.user("eva")))[0] == 403
        look = lambda: Scrape(at, prometheus)  # noqa: E731
        s = look()
        assert s("titan_agent_coordinator_connected") == 1 and s("titan_agent_term") == 1 and s("titan_agent_slots") == 2 and s("titan_coordinator_up") is None
        assert "spiffe://titan/node/n1" in {dict(key[1]).get("name") for key in s.samples}
        job = c.ctl("submit", SOURCE / "recipes/tiny.toml", "--set", "training.steps=1000000", "--set", f"training.dataset_path={headers_text(c.dir / 'text')}",
                    "--set", "elastic.min_workers=1", "--set", "elastic.max_workers=1", "--set", "fault_tolerance.backoff_ms=50").strip()
        step = lambda s: [v for (name, labels), v in s.samples.items() if name == "titan_worker_step" and dict(labels)["job_id"] == job]  # noqa: E731
        s = until("a worker trains", lambda: (lambda s: step(s) and step(s)[0] > 2 and s)(look()))
        labels = next(dict(labels) for name, labels in s.samples if name == "titan_worker_resident_bytes")
        assert labels["job_id"] == job and s("titan_worker_resident_bytes", **labels) > 1 << 20 and s("titan_worker_cpu_seconds_total", **labels) >= 0
        assert s("titan_agent_workers") == 1 and s("titan_agent_worker_starts_total") == 1
        started = [json.loads(line)["detail"] for line in c.ctl("-o", "json", "events", job).splitlines() if '"worker.started"' in line]
        os.kill(started[0]["pid"], signal.SIGKILL)
        until("the end is counted, and the next start", lambda: (lambda s: s("titan_agent_worker_ends_total", how="signal") == 1 and
                                                                 s("titan_agent_worker_starts_total") == 2)(look()))
        c.ctl("cancel", job)
        until("no worker is left", lambda: (lambda s: s("titan_agent_workers") == 0 and not s.of(job_id=job))(look()))
        c.stop("c")
        until("the coordinator is missed", lambda: look()("titan_agent_coordinator_connected") == 0)


def roles():
    """over TLS with a certificate or a token of the role; not without, not of users, not when it is revoked; a scraper may do nothing else"""
    with Coordinator(config=TLS + '[authorization]\nadmins = ["uid:0", "user:ada"]\nmetrics = ["user:prometheus", "user:bot"]\n') as c:
        at, ca = place(c.state), c.state / "tls/ca.pem"

        def asks(own=None, **headers):
            status, said, text = get(at, "/metrics", trust(ca, own), headers=headers)
            return status, said, text
        status, said, text = asks()
        assert status == 401 and said["www-authenticate"] == "Bearer" and "not permitted" in text and text.count("\n") == 1, (status, text)
        prometheus, eva, ada = c.user("prometheus"), c.user("eva"), c.user("ada")
        assert asks(eva)[0] == 403 and "you are user/eva" in asks(eva)[2]
        assert asks(ada)[0] == 200
        s = Scrape(at, trust(ca, prometheus))
        assert s("titan_coordinator_up") == 1
        ends = {dict(key[1])["name"]: value for key, value in s.samples.items() if key[0] == "titan_certificate_expiry_timestamp_seconds"}
        assert set(ends) == {"spiffe://titan/coordinator/head", "ca"} and ends["ca"] > ends["spiffe://titan/coordinator/head"], ends
        bearer = lambda name, role="user": {"Authorization": "Bearer " + c.ctl("token", "create", name, "--role", role).strip()}  # noqa: E731
        bot, other, boss = bearer("bot"), bearer("other"), bearer("boss", "operator")
        assert [asks(**t)[0] for t in (bot, other, boss)] == [200, 403, 200]
        assert asks(**{"Authorization": "Bearer titan_0123456789abcdef_00"})[0] == 401 and asks(**{"Authorization": "Basic eDp5"})[0] == 401
        for path in ("/healthz", "/readyz"):
            assert get(at, path, trust(ca))[0] == 200
        tls = [x for name, file in (("ca", ca), ("cert", prometheus / "cert.pem"), ("key", prometheus / "key.pem")) for x in (f"--tls-{name}", file)]
        for call in (["list"], ["nodes"], ["counters"]):  # the role gives no call of the API
            done = command(BIN / "titanctl", "-s", f"localhost:{c.port}", *call, *tls)
            assert done.code == 5 and "not permitted" in done.err, done
        c.ctl("token", "revoke", bot["Authorization"].split("_")[1])
        assert asks(**bot)[0] == 403 and "was revoked" in asks(**bot)[2], asks(**bot)
        c.ctl("pki", "revoke", "user/prometheus")
        assert asks(prometheus)[0] == 403 and "revoked" in asks(prometheus)[2]


def hostile():
    """clients that mean harm are counted, by page and code and by why they were closed"""
    with dev(PLAIN) as (d, at):
        for data in (b"POST /metrics HTTP/1.1\r\nHost: h\r\n\r\n", b"GET /metrics HTTP/1.1\r\nHost: h\r\nX: " + b"a" * 65536 + b"\r\n\r\n"):
            assert raw(at, data)[:10] in ("HTTP/1.1 4", "")
        assert get(at, "/../metrics")[0] == 404 and get(at, "/metrics?x=" + "y" * 100)[0] == 200
        with contextlib.ExitStack() as held:
            for _ in range(300):  # beyond what one address may have open
                held.enter_context(socket.create_connection(at))
            until("they are refused", lambda: "connections are refused" in d.log())
        s = until("all is counted", lambda: (lambda s: s and s("titan_http_refused_total", reason="limit") >= 1 and
                                             s("titan_http_refused_total", reason="malformed") >= 1 and s)(again(at)))
        assert s("titan_http_requests_total", page="other", code="404") == 1 and s("titan_http_requests_total", page="/metrics", code="200") >= 1
        assert not d.ctl("version").code


def again(at):
    with contextlib.suppress(OSError, AssertionError):
        return Scrape(at)
    return None


if __name__ == "__main__":
    tap(run, formats, agents, roles, hostile)
