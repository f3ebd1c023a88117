#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The figures of tests/gpu/bench.sh from what a part left, as lines 'figure NAME VALUE'.

    bench_figures.py plan PLAN                       what `titan-worker plan --json` says before a run
    bench_figures.py run FOLDER BEGAN_MS [PLAN]      a run's metrics.jsonl and log, beside its plan
    bench_figures.py costs PLAN FOLDER               a plan from measured costs, beside the run that it is of
    bench_figures.py checkpoint FOLDER BEGAN_MS INTERVAL   what a checkpoint every INTERVAL steps adds to the steps behind it
    bench_figures.py ops FILE                        bench_ops

Medians are of the steps behind the second, where there are any. What is not known is no line."""
import json
import re
import statistics
import sys

GIB = 2**30


def figure(name, value):
    if value is not None:
        print(f"figure {name} {value:.6g}" if isinstance(value, float) else f"figure {name} {value}")


def read_json(path):
    try:
        with open(path) as f:
            return json.load(f)
    except (OSError, ValueError):
        return None


def read_steps(folder):
    try:
        with open(f"{folder}/metrics.jsonl") as f:
            lines = [json.loads(line) for line in f if line.endswith("}\n")]  # a run that was cut off may leave half a line
    except OSError:
        return []
    return [line for line in lines if "step_ms" in line]


def read_log(folder):
    try:
        with open(f"{folder}/log", errors="replace") as f:
            return f.read()
    except OSError:
        return ""


def median(steps, name):
    values = [s[name] for s in steps[2:] or steps[1:] or steps]
    return statistics.median(values) if values else None


def ratio(a, b):
    return a / b if a and b else None


def memory(plan, which):
    return max(rank["memory"][which] for rank in plan["ranks"]) / GIB


def print_plan(path):
    plan = read_json(path)
    if not plan:
        return 1
    figure("predicted_step_ms", plan["step_seconds"] * 1e3)
    figure("predicted_mfu", 100 * plan["mfu"])
    figure("planned_memory_gib", memory(plan, "planned"))
    figure("predicted_memory_gib", memory(plan, "predicted"))
    return 0


def print_steps(folder, began_ms):
    steps = read_steps(folder)
    if not steps:
        print("# no step")
        return steps
    figure("steps", len(steps))
    figure("tokens_per_second", median(steps, "tokens_per_second"))
    figure("step_ms", median(steps, "step_ms"))
    figure("mfu", 100 * median(steps, "mfu"))
    figure("first_loss", steps[0]["loss"])
    figure("last_loss", steps[-1]["loss"])
    figure("memory_gib", max(s["memory_bytes"] for s in steps) / GIB)
    figure("start_s", (steps[0]["time_ms"] - began_ms) / 1e3)
    begins = re.search(r"epoch begins .*", read_log(folder))
    for name in ("plan_ms", "state_ms", "memory_ms"):
        value = begins and re.search(rf"\b{name}=([\d.]+)", begins[0])
        figure(f"start_{name}" if name == "memory_ms" else name, float(value[1]) if value else None)
    return steps


def print_run(folder, began_ms, plan_path=None):
    steps, plan = print_steps(folder, began_ms), read_json(plan_path) if plan_path else None
    if steps and plan:
        used = max(s["memory_bytes"] for s in steps) / GIB
        figure("step_of_predicted", ratio(median(steps, "step_ms"), plan["step_seconds"] * 1e3))
        figure("memory_of_planned", ratio(used, memory(plan, "planned")))
        figure("memory_of_predicted", ratio(used, memory(plan, "predicted")))
    return 0 if steps else 1


def print_costs(plan_path, folder):
    plan, steps = read_json(plan_path), read_steps(folder)
    if not plan:
        return 1
    figure("operations", plan["costs"]["of"])
    figure("not_measured", plan["costs"]["of"] - plan["costs"]["measured"])
    figure("predicted_step_ms", plan["step_seconds"] * 1e3)
    if steps:
        figure("step_of_predicted", ratio(median(steps, "step_ms"), plan["step_seconds"] * 1e3))
    return 0


def print_checkpoint(folder, began_ms, interval):
    """A snapshot is copied beside the step behind it, and its update waits: what that step and the next two take beyond the usual."""
    steps = print_steps(folder, began_ms)
    if not steps:
        return 1
    took = {s["step"]: s["step_ms"] for s in steps}
    before = [took[n] for n in took if 2 < n <= interval] or [took[n] for n in took if n <= interval]
    usual = statistics.median(before) if before else None
    names = iter(("first_stall_ms", "second_stall_ms"))
    for at in range(interval, max(took), interval):
        behind = [took[n] for n in range(at + 1, at + 4) if n in took]
        name = next(names, None)
        if usual and behind and name:
            figure(name, max(0.0, sum(behind) - len(behind) * usual))
    beside = [took[n] for n in took if n > interval and 2 < (n - 1) % interval <= interval // 2]
    if usual and beside:
        figure("beside_write_of_usual", statistics.median(beside) / usual)
    for m in re.finditer(r"checkpoint written .*?\bstep=(\d+) bytes=(\d+) waited_ms=([\d.]+) written_ms=([\d.]+)", read_log(folder)):
        if int(m[1]) == interval:
            figure("checkpoint_gb", int(m[2]) / 1e9)
            figure("first_waited_ms", float(m[3]))
            figure("written_s", float(m[4]) / 1e3)
        elif int(m[1]) == 2 * interval:
            figure("second_waited_ms", float(m[3]))
    return 0


def print_ops(path):
    found = read_json(path)
    if not found:
        return 1
    for name, value in found["ceilings"].items():
        figure(name, float(value))
    for op in found["ops"]:
        if op["op"].startswith("attention"):
            figure(op["op"].replace(", any order", "_any_order") + "_ms", float(op["ms"]))
    products = [op for op in found["ops"] if op["op"].startswith("matmul")]
    if products:
        figure("products_least_of_peak", min(op["of_peak"] for op in products))
    figure("step_ms", float(found["step_ms"]))
    return 0


def main():
    what, *words = sys.argv[1:]
    if what == "run":
        return print_run(words[0], float(words[1]), *words[2:])
    if what == "checkpoint":
        return print_checkpoint(words[0], float(words[1]), int(words[2]))
    return {"plan": print_plan, "costs": print_costs, "ops": print_ops}[what](*words)


if __name__ == "__main__":
    sys.exit(main())
