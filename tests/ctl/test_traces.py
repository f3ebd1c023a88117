#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Traces of what ran: `profiling.*` of a run file, the files it writes, and what they say of each rank's step."""
import json
import shutil
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from titan import BIN, SOURCE, command, overrides, tap  # noqa: E402

HOME = Path(tempfile.mkdtemp(prefix="titan-traces-"))
KEYS = {"training.steps": 7, "training.seq_len": 32, "training.local_batch_size": 1, "device.threads": 1,
        "training.dataset_path": SOURCE / "worker", "checkpoint.enable": "false", "profiling.enable_profiling": "true",
        "profiling.profile_freq": 3, "profiling.profiler_active": 2, "profiling.profiler_warmup": 1}


def run(name, *args, **keys):
    return command(BIN / "titan-worker", "run", SOURCE / "recipes/tiny.toml", "--dir", HOME / name, *args,
                   *overrides({**KEYS, **{k.replace("__", "."): v for k, v in keys.items()}}))


def loss_lines(name):
    return [json.loads(line)["loss"] for line in (HOME / name / "metrics.jsonl").read_text().splitlines()]


def every_action_of_the_chosen_steps():
    """each rank's file has the last profiler_active steps up to a multiple of profile_freq, every action in its order"""
    done = run("two", "-n", 2)
    assert done.code == 0, done.err
    assert sorted(p.name for p in (HOME / "two/profile_traces").iterdir()) == ["iteration_3", "iteration_6"]
    spans = []
    for rank in (0, 1):
        for step in (3, 6):
            events = json.loads((HOME / f"two/profile_traces/iteration_{step}/rank{rank}_trace.json").read_text())["traceEvents"]
            names = {e["tid"]: e["args"]["name"] for e in events if e["ph"] == "M" and e["name"] == "thread_name"}
            ran = [e for e in events if e["ph"] == "X"]
            assert {e["pid"] for e in ran} == {rank} and set(names.values()) >= {"compute", "gather", "reduce"}, names
            ops = {e["name"].split()[0] for e in ran}
            assert {"MATMUL", "ATTENTION", "ATTENTION_DGRAD", "ALL_GATHER", "REDUCE_SCATTER", "OPTIMISE"} <= ops, ops
            assert {"MATMUL layers.0", "MATMUL head", "ALL_GATHER embedding", "AGREE"} <= {e["name"] for e in ran}
            assert all(e["args"]["unit"] == " ".join(e["name"].split()[1:]) for e in ran)
            for op in ("MATMUL", "OPTIMISE"):  # both steps have each action once
                actions = [e["args"]["action"] for e in ran if e["name"].split()[0] == op]
                assert len(actions) == 2 * len(set(actions)), (op, actions)
            for lane in names:
                times = [(e["ts"], e["ts"] + e["dur"]) for e in ran if e["tid"] == lane]
                assert all(a[1] <= b[0] + 1e-3 for a, b in zip(times, times[1:])), (names[lane], "overlap or disorder")
            if step == 6:
                spans.append((min(e["ts"] for e in ran), max(e["ts"] + e["dur"] for e in ran)))
    assert max(a for a, _ in spans) < min(b for _, b in spans), f"ranks of one machine lie on one time axis: {spans}"


def beside_the_plan():
    """titanctl plan --timeline --trace: every event of the trace as it was, and the plan's step from where its first begins"""
    trace, both = HOME / "two/profile_traces/iteration_6/rank1_trace.json", HOME / "both.json"
    args = [BIN / "titanctl", "plan", SOURCE / "recipes/tiny.toml", "--device", "cpu", "--world", 2,
            *overrides({k: v for k, v in KEYS.items() if not k.startswith("profiling")})]
    done = command(*args, "--timeline", both, "--trace", trace)
    assert done.code == 0, done.err
    ran, events = (json.loads(p.read_text())["traceEvents"] for p in (trace, both))
    assert events[:len(ran)] == ran
    planned = events[len(ran):]
    assert [e["args"]["name"] for e in planned if e["name"] == "process_name"] == ["plan: pp rank 0"]
    planned = [e for e in planned if e["ph"] == "X"]
    ran = [e for e in ran if e["ph"] == "X"]
    assert not {e["pid"] for e in planned} & {e["pid"] for e in ran}
    assert abs(min(e["ts"] for e in planned) - min(e["ts"] for e in ran)) < 0.01  # us
    assert {"MATMUL layers.0", "ALL_GATHER embedding"} <= {e["name"] for e in planned} & {e["name"] for e in ran}
    wrong = HOME / "wrong.json"
    for text in ("", "{}", trace.read_text()[:-5], trace.read_text().replace('"ph":"X"', '"ph":"Y"'), trace.read_text().replace('"ph"', '"ph', 1)):
        wrong.write_text(text)
        done = command(*args, "--timeline", both, "--trace", wrong)
        assert done.code == 2 and f"'{wrong}' is " in done.err and " trace" in done.err, (text[:40], done.err)
    done = command(*args, "--trace", trace)
    assert done.code == 2 and "needs --timeline" in done.err, done.err


def chosen_ranks():
    """profiling.ranks: those alone write, in every step that is traced; one that is in no epoch is none"""
    done = run("chosen", "-n", 2, profiling__ranks="1-2,7")
    assert done.code == 0, done.err
    assert {p.relative_to(HOME / "chosen/profile_traces").as_posix() for p in (HOME / "chosen").glob("profile_traces/*/*")} == \
        {"iteration_3/rank1_trace.json", "iteration_6/rank1_trace.json"}


def training_is_the_same():
    """losses with traces are those without, bit for bit"""
    done = run("plain", "-n", 2, profiling__enable_profiling="false")
    assert done.code == 0 and not (HOME / "plain/profile_traces").exists(), done.err
    assert loss_lines("plain") == loss_lines("two") and len(loss_lines("plain")) == 7


def a_trace_that_cannot_be_written():
    """costs a warning with the reason, never a step"""
    (HOME / "full").mkdir()
    (HOME / "full/profile_traces").write_text("in the way")
    done = run("full")
    assert done.code == 0 and len(loss_lines("full")) == 7, done.err
    assert "trace not written" in done.out + done.err and "profile_traces" in done.out + done.err, (done.out, done.err)


def refused():
    """folders outside of the run's, and more steps than there are between two traces: one line, exit code 2"""
    for keys, what in (({"profiling__save_traces_folder": "/tmp"}, "below the run's folder"),
                       ({"profiling__save_traces_folder": "a/../../b"}, "below the run's folder"),
                       ({"profiling__save_traces_folder": ""}, "below the run's folder"),
                       ({"profiling__profiler_warmup": 2}, "more than profile_freq = 3"),
                       *(({"profiling__ranks": ranks}, f'profiling.ranks = "{ranks}"') for ranks in ("x", "1,", ",1", "3-1", "1-", "-1", "1 2", "0x1")),
                       ({"profiling__profile_freq": 0}, "profiling.profile_freq"),
                       ({"profiling__profiler_active": 2000}, "profiling.profiler_active")):
        done = run("refused", **keys)
        assert done.code == 2 and what in done.err and len(done.err.splitlines()) <= 2, (keys, done.code, done.err)


if __name__ == "__main__":
    try:
        tap(every_action_of_the_chosen_steps, beside_the_plan, chosen_ranks, training_is_the_same, a_trace_that_cannot_be_written, refused)
    finally:
        shutil.rmtree(HOME, ignore_errors=True)
