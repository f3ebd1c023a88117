#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""GPUs of two agents by a stand-in for NVML (tests/nvml): a line for each in `titanctl nodes --gpus`, and one with a critical
Xid takes no worker until an operator puts it back."""
import json
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from nodes import Cluster  # noqa: E402
from titan import BUILD, headers_text, tap, until  # noqa: E402

KEYS = {"elastic.max_workers": 1, "checkpoint.enable": "false", "training.global_batch_size": 2, "training.local_batch_size": 2,
        "device.threads": 1, "training.steps": 1000000}
GIB = 1 << 10


class Gpus:
    """What NVML says of four GPUs: n1 has the first, n2 the second."""

    def __init__(self, path, silent=False):
        self.path, self.silent = path, silent
        self.fields = [{"ecc": 0, "code": 0, "event": "0:0"} for _ in range(4)]
        self.say()

    def speak(self):
        self.silent = False
        self.say()

    def say(self, gpu=0, **fields):
        self.fields[gpu].update(fields)
        lines = (f"GPU-{i}{i} NVIDIA_H100 {80 * GIB} {i * GIB} {40 + i} {f['ecc']} {f['code']} {f['event']}\n"
                 for i, f in enumerate(self.fields))
        text = "silent\n" * self.silent + "".join(lines)
        beside = self.path.with_suffix(".new")
        beside.write_text(text)
        beside.rename(self.path)


def cluster(gpus, library=BUILD / "tests/nvml/libnvidia-ml.so.1"):
    hosts = {name: (["env", f"CUDA_VISIBLE_DEVICES={visible}", f"TITAN_FAKE_NVML={gpus.path}", f"TITAN_NVML={library}"],
                    "127.0.0.1")
             for name, visible in (("n1", "0"), ("n2", "GPU-1"))}
    return Cluster(hosts, slots={"n1": 1, "n2": 1}, lease_ms=30000)


def listed(c):
    return {n["name"]: n for n in json.loads(c.ctl("-o", "json", "nodes", "--gpus"))["nodes"]}


def gpu(c, name):
    return (listed(c)[name].get("gpus") or [{}])[0]


def a_state(c, name, state):
    until(f"{name}'s GPU is {state}", lambda: gpu(c, name).get("state") == state)
    return gpu(c, name)


def an_xid():
    """a critical Xid takes a GPU's slot out of use: workers start elsewhere or wait, until it is put back"""
    with tempfile.TemporaryDirectory() as folder, cluster(gpus := Gpus(Path(folder) / "gpus")) as c:
        for name in ("n1", "n2"):
            a_state(c, name, "ready")
        g = gpu(c, "n2")
        assert g["uuid"] == "GPU-11" and g["name"] == "NVIDIA_H100" and g["celsius"] == 41, g
        assert int(g["memory_total_bytes"]) == 80 << 30 and int(g["memory_used_bytes"]) == 1 << 30, g
        gpus.say(0, event="1:31")  # a program's fault, not the GPU's
        until("the Xid is told", lambda: gpu(c, "n1").get("xid") == 31)
        assert gpu(c, "n1")["state"] == "ready"
        gpus.say(0, event="2:79")
        g = a_state(c, "n1", "quarantined")
        assert "Xid 79" in g["reason"], g
        assert "Xid 79" in listed(c)["n1"]["reason"], listed(c)["n1"]
        keys = {**KEYS, "training.dataset_path": headers_text(c.dir / "text")}
        first = c.submit(keys)
        c.training(first, 1, 0)
        assert {e["node"] for e in c.events(first) if e["type"] == "worker.started"} == {"n2"}, c.events(first)
        until("its GPU has the worker", lambda: str(gpu(c, "n2").get("job_id")) == first)
        second = c.submit(keys)
        reason = until("the second waits", lambda: "slot 0" in c.status(second)["reason"] and c.status(second)["reason"])
        assert "node n1 slot 0 is out of use: Xid 79" in reason, reason
        head, *rows = c.ctl("nodes", "--gpus").splitlines()
        rows.sort()  # nodes are in the order of their registration
        assert head.split() == ["NODE", "SLOT", "GPU", "STATE", "MEMORY", "TEMP", "ECC", "XID", "JOB", "WORKER", "REASON"], head
        assert "quarantined" in rows[0] and " 79 " in rows[0] and "1.0 GiB/80.0 GiB" in rows[1], rows
        c.ctl("undrain", "n1")
        c.training(second, 1, 0)
        said = [e for e in map(json.loads, c.ctl("-o", "json", "events").splitlines()) if e["type"].startswith("slot.")]
        assert [(e["type"], e["node"], e["detail"]["slot"]) for e in said] == [
            ("slot.quarantined", "n1", 0), ("slot.released", "n1", 0)], said
        for job in (first, second):
            c.ctl("cancel", job)
        assert "slot out of use" in (c.dir / "n1.log").read_text()


def a_silent_nvml():
    """an NVML that does not answer stops no agent: it registers and says why its slot waits, and trains when NVML answers"""
    with tempfile.TemporaryDirectory() as folder, cluster(gpus := Gpus(Path(folder) / "gpus", silent=True)) as c:
        g = a_state(c, "n1", "unknown")
        assert "not been looked at" in g["reason"], g
        job = c.submit({**KEYS, "training.steps": 2, "training.dataset_path": headers_text(c.dir / "text")})
        until("it waits for a slot", lambda: "slot 0 is out of use: its GPU has not been looked at" in c.status(job)["reason"])
        gpus.speak()
        until("it trains", lambda: c.status(job)["state"] == "COMPLETED")


def without_nvml():
    """without NVML agents say so once, and work as ever"""
    with tempfile.TemporaryDirectory() as folder, cluster(Gpus(Path(folder) / "gpus"), "/nowhere/libnvidia-ml.so.1") as c:
        assert not listed(c)["n1"].get("gpus"), listed(c)
        job = c.submit({**KEYS, "training.steps": 2, "training.dataset_path": headers_text(c.dir / "text")})
        until("it trains", lambda: c.status(job)["state"] == "COMPLETED")
        assert (c.dir / "n1.log").read_text().count("GPUs are not watched") == 1


if __name__ == "__main__":
    tap(an_xid, a_silent_nvml, without_nvml)
