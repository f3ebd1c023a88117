#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""What cannot be costs one job: numbers of epochs from outside, and a job store that contradicts the coordinator."""
import os
import signal
import socket
import sqlite3
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from titan import FP_BIN, Daemon, alive, deadline, headers_text, tap, until, worker_pids  # noqa: E402

KEYS = {"elastic.min_workers": 1, "elastic.max_workers": 1, "checkpoint.interval": 1000000, "training.global_batch_size": 1,
        "training.local_batch_size": 1, "device.threads": 1, "fault_tolerance.max_restarts": 100,
        "training.mixed_precision_param": "float32", "fault_tolerance.backoff_ms": 50, "training.steps": 1000000}
TOP = 2**64 - 1


# --- protobuf by hand: numbers, texts, messages in messages ---
def varint(n):
    out = b""
    while n > 127:
        out += bytes([n & 127 | 128])
        n >>= 7
    return out + bytes([n])


def number(field, n):
    return varint(field << 3) + varint(n)


def part(field, data):
    data = data.encode() if isinstance(data, str) else data
    return varint(field << 3 | 2) + varint(len(data)) + data


def training(d, job, beyond=0):
    def check():
        s = d.status(job)
        return s["state"] == "RUNNING" and s["step"] > beyond and s
    return check


def two_runs(d):
    keys = {**KEYS, "training.dataset_path": headers_text(d.state / "text", 1 << 18)}
    jobs = [d.submit("tiny", keys) for _ in range(2)]
    for job in jobs:
        until(f"job {job} trains", training(d, job), 30)
    return jobs


def kill_worker(d, job):
    pid = next(iter(d.workers(job).values()))
    os.kill(pid, signal.SIGKILL)


def store(d, *statements):
    with sqlite3.connect(d.state / "titan.db", timeout=deadline()) as db:
        for s in statements:
            db.execute(*s)
    db.close()


def goes_on(d, job, process):
    step = d.status(job)["step"]
    until(f"job {job} goes on", training(d, job, step), 30)
    assert d.process.pid == process and d.process.poll() is None, "the daemon has ended"


def contradicted():
    """the store refuses what was decided about a job: that job fails with the reason, the other trains on, titand stays"""
    # store.shared: the store can be written from outside while titand has it.
    with Daemon(None, "--slots", 2, program=FP_BIN / "titand", env={"TITAN_FAILPOINTS": "store.shared=fail@1+,train.step=sleep:20@1+"}) as d:
        bad, good = two_runs(d)
        process, epoch = d.process.pid, d.status(bad)["epoch"]
        # The next number is taken, as nothing but a fault of the core could make it.
        store(d, ("INSERT INTO epochs (job_id, number, run, state, world_size, source, source_epoch, resume_step, checkpoint,"
                  " comm_id, created_at_ms) SELECT job_id, number + 1, run, 5, 0, 0, 0, 0, '', comm_id, created_at_ms"
                  " FROM epochs WHERE job_id = ? AND number = ?", (int(bad), epoch)))
        pid = next(iter(d.workers(bad).values()))
        kill_worker(d, bad)
        s = d.wait_state(bad, "FAILED", seconds=30)
        assert "quarantined" in s["reason"] and "UNIQUE" in s["reason"], s
        goes_on(d, good, process)
        until("its workers are gone", lambda: not alive(pid) and len(worker_pids(d.state)) == 1, 20)
        d.kill()
        d.start()
        assert d.status(bad)["state"] == "FAILED"
        until("and after a restart", training(d, good, d.status(good)["step"]), 30)


def bad_store():
    """a number that no run comes to is in the store: titand starts, that job is quarantined, the other trains on"""
    with Daemon(None, "--slots", 2, pace_ms=20) as d:
        bad, good = two_runs(d)
        d.kill()
        store(d, ("PRAGMA foreign_keys = OFF",), ("UPDATE members SET epoch = -1 WHERE job_id = ?", (int(bad),)),
              ("UPDATE epochs SET number = -1 WHERE job_id = ?", (int(bad),)),
              ("UPDATE jobs SET epoch = -1 WHERE id = ?", (int(bad),)))
        for _ in range(2):
            d.start()
            s = d.wait_state(bad, "FAILED", seconds=20)
            assert "quarantined" in s["reason"], s
            until("the other trains", training(d, good, d.status(good)["step"]), 30)
            until("one worker is left", lambda: len(worker_pids(d.state)) == 1, 30)
            d.kill()
        d.start()


def session(d, *messages):
    """An agent's session with these messages; returns its end."""
    import grpc
    channel = grpc.insecure_channel(f"unix:{d.state}/titan.sock")
    call = channel.stream_stream("/titan.internal.Coordinator/Session", request_serializer=lambda b: b,
                                 response_deserializer=lambda b: b)

    try:
        for _ in call(iter(messages), timeout=deadline()):
            pass
        return None
    except grpc.RpcError as e:
        return e
    finally:
        channel.close()


def hello(node):
    return part(1, part(1, node) + number(2, 1) + part(3, "cpu") + part(4, "127.0.0.1") + number(8, 77))


def forged_numbers():
    """epoch 2^64-1 by a session and by a datagram: refused, nothing is recorded, and the next epoch is one higher"""
    with Daemon(None, "--slots", 2, pace_ms=20) as d:
        one, other = two_runs(d)
        process, epoch = d.process.pid, d.status(one)["epoch"]
        for seen in (TOP, 2**40):
            end = session(d, hello("evil"), part(15, number(1, int(one)) + number(2, epoch) + number(3, seen)) + number(20, 0))
            assert (end is not None) == (seen == TOP), end
            if end is not None:
                assert "seen_epoch" in end.details(), end
        port = int((d.state / "run/peer_port").read_text()) if (d.state / "run/peer_port").exists() else 0
        if port:
            form = number(1, int(one)) + number(2, TOP) + part(3, b"x" * 16) + part(4, number(1, 1) + part(2, "n") + part(3, "h:1"))
            datagram = number(1, 5) + part(2, "zz") + number(3, int(one)) + part(8, form) + number(11, 1)
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
                s.sendto(datagram, ("127.0.0.1", port))
        kill_worker(d, one)
        s = until("it trains again", training(d, one, 0), 30)
        until("in the next epoch", lambda: d.status(one)["epoch"] == epoch + 1, 20)
        goes_on(d, other, process)
        until("it is told", lambda: "report.refused" in {e["type"] for e in d.lines("events")})
        end = session(d, number(20, 2**40))  # a term, and no hello
        assert end is not None, "a session without a hello goes on"
        goes_on(d, other, process)
        d.submit("tiny", {**KEYS, "training.dataset_path": d.state / "text", "training.steps": 1})


def ids_are_kept():
    """submits that are repeated with their key use up no ids"""
    with Daemon(None, "--slots", 1) as d:
        keys = {**KEYS, "training.dataset_path": headers_text(d.state / "text", 1 << 18), "training.steps": 1}
        first = d.submit("tiny", keys, "--idempotency-key", "k")
        for _ in range(3):
            assert d.submit("tiny", keys, "--idempotency-key", "k") == first
        assert int(d.submit("tiny", keys)) == int(first) + 1


def diverging():
    """a run that diverges fails at once with that sentence: to start it again would end there too"""
    with Daemon(None, "--slots", 2) as d:
        job = d.submit("tiny", {**KEYS, "training.dataset_path": headers_text(d.state / "text", 1 << 18), "optimizer.lr": 1000,
                                "elastic.min_workers": 2, "elastic.max_workers": 2, "training.global_batch_size": 2,
                                "training.max_norm": 0, "fault_tolerance.max_skipped_steps": 3})
        s = d.wait_state(job, "FAILED", seconds=60)
        assert "diverged: step" in s["reason"] and "steps in a row skipped" in s["reason"] and "-nan" not in s["reason"], s
        assert s["restarts"] == 0, s


if __name__ == "__main__":
    sys.exit(tap(contradicted, bad_store, forged_numbers, ids_are_kept, diverging))
