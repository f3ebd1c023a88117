#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Bad input of every kind: one clear line that says what and where, the right exit code, and nothing accepted is lost."""
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from titan import BIN, SOURCE, Daemon, command, headers_text, overrides, tap, until  # noqa: E402

TINY = (SOURCE / "recipes/tiny.toml").read_text()


def says(result, code, *words):
    """The command ended with this code and one line on stderr (behind a daemon's log of its start) with every word."""
    lines = [line for line in result.err.splitlines() if line.strip() and " info " not in line]
    assert result.code == code, f"exit {result.code}, expected {code}: {result.err or result.out}"
    assert len(lines) == 1, f"{len(lines)} lines instead of one: {result.err}"
    for word in words:
        assert str(word) in lines[0], f"'{word}' is missing in: {lines[0]}"


class Files:
    """A folder with recipes of one mistake each."""

    def __init__(self):
        self.dir = Path(tempfile.mkdtemp(prefix="titan-test-"))
        self.text = headers_text(self.dir / "text", 1 << 18)

    def recipe(self, name, text):
        path = self.dir / name
        path.write_text(text)
        return path

    def __enter__(self):
        return self

    def __exit__(self, *_):
        shutil.rmtree(self.dir, ignore_errors=True)


def recipes():
    """recipes: unknown key with the nearest one and its line, wrong type, missing data, a mesh that does not fit, too large a model"""
    with Files() as f, Daemon(None, "--slots", 2) as d:
        data = ["--set", f"training.dataset_path={f.text}"]
        typo = f.recipe("typo.toml", "[training]\nstepz = 5\n")
        says(d.ctl("submit", typo, *data), 2, "typo.toml:2", "stepz", "steps")
        kind = f.recipe("kind.toml", "[training]\nsteps = 5\nseq_len = \"long\"\n")
        says(d.ctl("submit", kind, *data), 2, "kind.toml:3", "seq_len", "integer")
        says(d.ctl("submit", f.recipe("broken.toml", "[training\nsteps = 5\n"), *data), 2, "broken.toml:1")
        says(d.ctl("submit", SOURCE / "recipes/tiny.toml", "--set", "training.dataset_path=/nowhere/text"), 2,
             "/nowhere/text")
        says(d.ctl("submit", SOURCE / "recipes/tiny.toml", *data, "--set", "parallelism.data_parallel_shard_degree=3"), 2,
             "data_parallel_shard_degree")
        says(d.ctl("submit", SOURCE / "recipes/tiny.toml", *data, "--set", "model.flavor=405B",
                   "--set", "elastic.min_workers=1", "--set", "elastic.max_workers=1"), 7, "model.flavor", "405B", "TiB")
        says(d.ctl("submit", SOURCE / "recipes/tiny.toml", *data, "--set", "parallelism.tensor_parallel_degree=3"), 2,
             "tensor_parallel_degree", "3 or 6")
        says(d.ctl("submit", SOURCE / "recipes/tiny.toml", *data, "--set", "parallelism.tensor_parallel_degree=4"), 2,
             "tensor_parallel_degree", "n_kv_heads = 2", "nearest: 2")
        says(d.ctl("submit", SOURCE / "recipes/tiny.toml", *data, "--set", "parallelism.pipeline_parallel_degree=8", "--set", "elastic.max_workers=8"), 2,
             "pipeline_parallel_degree", "8 stages of 4 layers", "nearest: 4")
        says(d.ctl("submit", SOURCE / "recipes/tiny.toml", *data, "--set", "training.seq_len=62", "--set",
                   "parallelism.context_parallel_degree=2"), 2, "training.seq_len", "nearest: 64")
        csv = f.recipe("stuck.csv", "0F0,0B0,0F1,0B1,0F2,0B2,0F3,0B3\n1F0,1F1,1B0,1B1,1F2,1B2,1F3,1B3\n")
        says(d.ctl("submit", SOURCE / "recipes/tiny.toml", *data, "--set", "parallelism.pipeline_parallel_degree=2",
                   "--set", "training.global_batch_size=8", "--set", "elastic.max_workers=2", "--set",
                   "parallelism.pipeline_parallel_microbatch_size=2", "--set",
                   f"parallelism.pipeline_parallel_schedule_csv={csv}"), 2, "pipeline_parallel_schedule_csv")
        says(d.ctl("submit", SOURCE / "recipes/tiny.toml", *data, "--set", "model.converters=[\"float9\"]"), 2, "float9")
        says(d.ctl("submit", "/nowhere.toml"), 2, "/nowhere.toml")
        assert d.jobs() == [], "a refused recipe left a job behind"


def optimizers():
    """optimizers: what does not go together, a number out of range, and another optimizer's checkpoint, which begins anew where that is asked for"""
    with Files() as f, Daemon(None, "--slots", 1) as d:
        data = {"training.dataset_path": f.text, "training.steps": 4, "elastic.max_workers": 1, "device.threads": 1,
                "checkpoint.interval": 2, "checkpoint.folder": f.dir / "saved"}
        faults = (({"name": "nobody"}, ("optimizer.name", "nobody", "AdamW")), ({"rest": "nobody"}, ("optimizer.rest", "nobody", "same")),
                  ({"name": "Lion", "state_dtype": "bfloat16", "state_rounding": "stochastic"}, ("Lion", "state_rounding", "nearest")),
                  ({"state_rounding": "stochastic"}, ("state_rounding", "state_dtype")),
                  ({"name": "SGD", "sgd.nesterov": "true"}, ("nesterov", "optimizer.sgd.momentum")),
                  ({"rest": "Muon"}, ("optimizer.rest", "Muon", "matrices of layers alone")),
                  ({"name": "Muon", "muon.ns_steps": 0}, ("optimizer.muon.ns_steps = 0", "from 1")),
                  ({"name": "GaLore2", "galore.rank": 33}, ("optimizer.galore.rank = 33", "attention.wk", "nearest: 32")),
                  ({"name": "GaLore2", "galore.interval": 0}, ("optimizer.galore.interval = 0", "from 1")),
                  ({"rest": "GaLore2"}, ("optimizer.rest", "GaLore2", "matrices of layers alone")),
                  ({"sgd.momentum": 1}, ("optimizer.sgd.momentum = 1", "0.999999")),
                  ({"ademamix.warmup_steps": -2}, ("optimizer.ademamix.warmup_steps = -2", "-1")),
                  ({"stable_adamw.threshold": -1}, ("optimizer.stable_adamw.threshold = -1", "from 0")))
        for keys, words in faults:
            sets = overrides(data | {f"optimizer.{k}": v for k, v in keys.items()})
            for program in (lambda *a: d.ctl("submit", *a), lambda *a: command(BIN / "titanctl", "plan", *a)):
                says(program(SOURCE / "recipes/tiny.toml", *sets), 2, *words)
        assert d.jobs() == [], "a refused recipe left a job behind"

        first = d.submit("tiny", data | {"optimizer.name": "Lion", "checkpoint.last_save_model_only": "false"})
        d.wait_state(first, "COMPLETED")
        # AdamW's first moment has the name of Lion's: it is no less another one.
        other = data | {"checkpoint.folder": f.dir / "other", "checkpoint.initial_load_path": f"job:{first}", "training.steps": 6,
                        "checkpoint.initial_load_model_only": "false"}
        words = 'optimizer.name = "AdamW", there "Lion"', "checkpoint.exclude_from_loading"
        says(d.ctl("submit", SOURCE / "recipes/tiny.toml", *overrides(other)), 6, f"job {first}", *words)
        by_path = other | {"checkpoint.initial_load_path": f.dir / "saved/step-00000004"}
        run = command(BIN / "titan-worker", "run", SOURCE / "recipes/tiny.toml", "-n", 1, "--dir", f.dir / "run", *overrides(by_path))
        assert run.code == 2 and all(w in run.err for w in ("checkpoint.initial_load_path", *words)), run
        for keys in ({"checkpoint.exclude_from_loading": "optimizer"}, {"optimizer.name": "Lion"}, {"checkpoint.initial_load_model_only": "true"}):
            d.wait_state(d.submit("tiny", other | keys | {"checkpoint.folder": f.dir / f"again-{'-'.join(keys)}"}), "COMPLETED")

        other = data | {"optimizer.name": "AdEMAMix", "training.steps": 6}
        says(d.ctl("submit", SOURCE / "recipes/tiny.toml", *overrides(other)), 6, 'optimizer.name = "AdEMAMix", there "Lion"', "checkpoint.accept_changed")
        anew = other | {"checkpoint.exclude_from_loading": "optimizer", "checkpoint.accept_changed": "optimizer"}
        job = d.submit("tiny", anew)
        d.wait_state(job, "COMPLETED")
        logs = d.ctl("logs", job).out
        assert "optimizer state begins anew" in logs and "optimizer=AdEMAMix" in logs, logs


def schedule_that_changes():
    """a schedule's file that changes from legal to illegal and back while submits are checked: each is taken or refused, the daemon goes on"""
    with Files() as f, Daemon(None, "--slots", 1) as d:
        last = "1F0,1B0,1F1,1B1,1F2,1B2,1F3,1B3\n"
        kinds = [f.recipe("legal.csv", "0F0,0F1,0B0,0F2,0B1,0F3,0B2,0B3\n" + last),
                 f.recipe("stuck.csv", "0F0,0B0,0F1,0B1,0F2,0B2,0F3,0B3\n" + last.replace("1B0,1F1", "1F1,1B0"))]
        csv, over, changes = f.dir / "now.csv", threading.Event(), [0]

        def change():
            while not over.is_set():
                changes[0] += 1
                os.link(kinds[changes[0] % 2], f.dir / "next.csv")
                os.replace(f.dir / "next.csv", csv)

        keys = {"training.dataset_path": f.text, "parallelism.pipeline_parallel_degree": 2, "training.global_batch_size": 8,
                "elastic.max_workers": 2, "parallelism.pipeline_parallel_microbatch_size": 2,
                "parallelism.pipeline_parallel_schedule_csv": csv}
        os.link(kinds[0], csv)
        thread = threading.Thread(target=change)
        thread.start()
        try:
            codes = []
            while len(codes) < 40 or (set(codes) != {0, 2} and len(codes) < 400):
                assert d.process.poll() is None, f"titand ended after {len(codes)} submits"
                codes.append(d.ctl("submit", SOURCE / "recipes/tiny.toml",
                                   *[x for k, v in keys.items() for x in ("--set", f"{k}={v}")]).code)
        finally:
            over.set()
            thread.join()
        assert set(codes) == {0, 2}, (sorted(set(codes)), changes)
        assert len(d.jobs()) == codes.count(0)


def jobs():
    """jobs: an unknown one, a second cancel, a submit repeated with its key, the key with other content"""
    with Files() as f, Daemon(None, "--slots", 1) as d:
        for verb in ("status", "cancel", "wait", "logs", "events", "metrics", "checkpoints"):
            says(d.ctl(verb, 4711), 3, "4711")
        says(d.ctl("status", "twelve"), 2, "twelve")
        keys = {"training.dataset_path": f.text, "training.steps": 1000000, "elastic.min_workers": 1,
                "elastic.max_workers": 1}
        job = d.submit("tiny", keys, "--idempotency-key", "k1")
        assert d.submit("tiny", keys, "--idempotency-key", "k1") == job
        other = d.ctl("submit", SOURCE / "recipes/tiny.toml", "--idempotency-key", "k1", "--set",
                      f"training.dataset_path={f.text}")
        says(other, 6, "k1")
        assert len(d.jobs()) == 1
        d.ok("cancel", job)
        d.wait_state(job, "CANCELLED", seconds=30)
        says(d.ctl("cancel", job), 6, "cancelled")


def daemons():
    """daemons: a config that is not TOML, an unknown key, a taken state folder, a taken port, no server, an address off this host"""
    with Files() as f, Daemon(None, "--slots", 1) as d:
        titand = [BIN / "titand", "dev", "--state-dir"]
        says(command(*titand, f.dir / "a", "--config", f.recipe("x.toml", "[titand\n")), 2, "x.toml:1")
        says(command(*titand, f.dir / "b", "--config", f.recipe("y.toml", "[agent]\nslotz = 2\n")), 2, "y.toml:2", "slots")
        says(command(*titand, d.state), 6, str(d.process.pid))
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            address = "127.0.0.1:%d" % taken.getsockname()[1]
            says(command(*titand, f.dir / "c", "--listen", address, "--insecure"), 6, address)
        assert not (f.dir / "c").exists(), "a refused start left its state directory behind"
        for any_tcp in ("0.0.0.0:0", "127.0.0.1:0"):
            says(command(*titand, f.dir / "e", "--listen", any_tcp), 2, any_tcp, "titanctl pki init", "--insecure")
        says(command(BIN / "titand", "agent", "--state-dir", f.dir / "e", "--coordinator", "127.0.0.1:1"), 2,
             "127.0.0.1:1", "titanctl node join", "--insecure")
        says(command(BIN / "titanctl", "--server", f"unix:{f.dir}/none.sock", "list"), 4, "none.sock")
        says(command(BIN / "titanctl", "frobnicate"), 2, "frobnicate")


def newer_store():
    """a store from a newer version is refused and left as it is"""
    import sqlite3
    d = Daemon()
    with Files() as f:
        d.start()
        d.stop()
        store = d.state / "titan.db"
        with sqlite3.connect(store) as db:
            db.execute("PRAGMA user_version = 999")
        db.close()
        before = store.read_bytes()
        says(command(BIN / "titand", "dev", "--state-dir", d.state), 6, "999", "titan.db")
        assert store.read_bytes() == before
        shutil.rmtree(d.state)


def garbage():
    """garbage and oversize messages on the sockets: a status for the sender, and the daemon goes on"""
    with Files() as f, Daemon(None, "--slots", 1) as d:
        job = d.submit("tiny", {"training.dataset_path": f.text, "training.steps": 1000000, "elastic.min_workers": 1,
                                "elastic.max_workers": 1})
        for path in (d.state / "titan.sock", d.state / "run/agent.sock"):
            for payload in (os.urandom(100000), b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 4 + b"x" * 1000):
                with socket.socket(socket.AF_UNIX) as s:
                    s.connect(str(path))
                    try:
                        s.sendall(payload)
                    except OSError:
                        pass
        big = f.recipe("big.toml", TINY + "#" + "x" * (300 << 10) + "\n")
        says(d.ctl("submit", big, "--set", f"training.dataset_path={f.text}"), 2, "big.toml")
        until("it trains on", lambda: d.status(job)["step"] > 2)
        d.ok("cancel", job)


def full_disk():
    """a full disk: submits are refused with one line, what was accepted stays, and later submits work again"""
    if os.geteuid() != 0:
        return "needs root for a small file system"
    with Files() as f:
        mount = f.dir / "small"
        mount.mkdir()
        if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", mount], stderr=subprocess.DEVNULL).returncode:
            return "tmpfs cannot be mounted here"
        try:
            keys = {"training.dataset_path": f.text, "elastic.min_workers": 2, "elastic.max_workers": 2}
            with Daemon(mount / "state", "--slots", 1) as d:
                first = d.submit("tiny", keys)
                ballast = mount / "ballast"
                with open(ballast, "wb", buffering=0) as b:
                    try:
                        while True:
                            b.write(b"\0" * 4096)
                    except OSError:
                        pass
                refused = until("a submit is refused", lambda: (lambda r: r if r.code else None)(
                    d.ctl("submit", SOURCE / "recipes/tiny.toml", *[x for k, v in keys.items() for x in ("--set", f"{k}={v}")])))
                says(refused, 1, "space")
                ballast.unlink()
                assert d.status(first)["state"] == "PENDING"
                last = d.submit("tiny", keys)
                ids = [str(j["id"]) for j in d.jobs()]
                assert first in ids and last in ids, ids
        finally:
            subprocess.run(["umount", mount], check=False)


tap(recipes, optimizers, schedule_that_changes, jobs, daemons, newer_store, garbage, full_disk)
