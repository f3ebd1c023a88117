#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`titan-worker run` on 1, 2, 3 and 4 ranks: the same losses. fp32 to 1e-5, canonical mode bit for bit; a run resumed on
another number of ranks continues an uninterrupted one; failures end all ranks with the right code."""
import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from titan import BIN, FP_BIN, SOURCE, deadline  # noqa: E402

RECIPE = SOURCE / "recipes" / "tiny.toml"
WORK = Path(tempfile.mkdtemp(prefix="titan-equivalence-"))
STEPS = 30
count = failed = 0


def ok(condition, what, detail=""):
    global count, failed
    count += 1
    failed += not condition
    print(f"{'ok' if condition else 'not ok'} {count} - {what}{'' if condition else ': ' + str(detail)}", flush=True)


def command(world, directory, *sets, program=BIN):
    args = [program / "titan-worker", "run", RECIPE, "-n", world, "--dir", directory, "--device", "cpu"]
    for s in ("device.threads=1", f"training.dataset_path={SOURCE / 'worker'}", f"training.steps={STEPS}", *sets):
        args += ["--set", s]
    return [str(a) for a in args]


def run(world, name, *sets, steps=STEPS):
    """Losses and gradient norms by step."""
    directory = WORK / name
    done = subprocess.run(command(world, directory, *sets), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          timeout=deadline())
    lines = [json.loads(line) for line in open(directory / "metrics.jsonl")] if done.returncode == 0 else []
    return done, {line["step"]: (line["loss"], line["grad_norm"]) for line in lines}


def worst(a, b):
    if sorted(a) != list(range(1, STEPS + 1)) or sorted(b) != sorted(a):
        return float("inf")
    return max(abs(a[s][i] - b[s][i]) / abs(a[s][i]) for s in a for i in (0, 1))


off = ("checkpoint.enable=false",)
for precision, canonical, limit in (("float32", "false", 1e-5), ("float32", "true", 0), ("bfloat16", "true", 0)):
    sets = off + (f"training.mixed_precision_param={precision}", f"numerics.canonical={canonical}")
    one = run(1, f"one-{precision}-{canonical}", *sets)[1]
    for world in (2, 3, 4):
        other = run(world, f"{world}-{precision}-{canonical}", *sets)[1]
        difference = worst(one, other)
        ok(difference <= limit, f"{precision}, canonical {canonical}: 1 and {world} ranks, {difference:.2g}", difference)
    ok(one[STEPS][0] < 0.8 * one[1][0], f"{precision}: the loss falls", one[STEPS])
    if canonical == "true" and precision == "float32":
        reference = one

# When parameters are gathered and what is recomputed changes nothing.
sets = off + ("training.mixed_precision_param=float32", "numerics.canonical=true")
for policy in ("always", "never"):
    again = run(3, policy, *sets, f"parallelism.fsdp_reshard_after_forward={policy}")[1]
    ok(worst(reference, again) == 0, f"fsdp_reshard_after_forward = {policy}: the same bits")
again = run(2, "recompute", *sets, "activation_checkpoint.mode=full")[1]
ok(worst(reference, again) == 0, "activations recomputed: the same bits")

# Stop at step 10 on 3 ranks, go on with 2, then with 4. The schedule is that of all steps throughout.
sets = ("training.mixed_precision_param=float32", "numerics.canonical=true", "checkpoint.interval=10")


def run_to_10(world, name, *sets, end):
    """End it after the checkpoint of step 10, behind which steps take very long; exit code and what it said since."""
    process = subprocess.Popen(command(world, WORK / name, *sets, program=FP_BIN), stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                               text=True, env={**os.environ, "TITAN_FAILPOINTS": "train.step=sleep:10000@12+"})
    for line in process.stdout:
        if "checkpoint written" in line and "step=10" in line:
            end(process)
            break
    rest = process.stdout.read()
    return process.wait(deadline()), rest


def told(process):
    process.send_signal(signal.SIGTERM)


def killed(process):
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    os.kill(int(children[2]), signal.SIGKILL)


code, rest = run_to_10(3, "resumed", *sets, end=told)
ok(code == 128 + signal.SIGTERM, "SIGTERM ends all ranks", (code, rest))
done, resumed = run(2, "resumed", *sets)
ok(worst(reference, resumed) == 0, "resumed on 2 ranks after 3: the same bits as never interrupted", done.stdout[-500:])
ok("epoch begins" in done.stdout and "step=0" not in done.stdout, "and not from the beginning")

# The same from one mesh to another.
split = ("parallelism.pipeline_parallel_degree=2", "parallelism.tensor_parallel_degree=2",
         "parallelism.pipeline_parallel_microbatch_size=2")
ring = ("parallelism.context_parallel_degree=2", "parallelism.context_parallel_rotate_method=ring",
        "parallelism.data_parallel_replicate_degree=2")
code, rest = run_to_10(4, "another", *sets, *split, end=told)
done, resumed = run(4, "another", *sets, *ring)
difference = worst(reference, resumed)
ok(difference <= 1e-5 and "step=0" not in done.stdout,
   f"resumed with cp 2, dp_replicate 2 after pp 2, tp 2: {difference:.2g}", (code, rest[-500:], done.stdout[-500:]))

# A worker that is killed ends the run at once, and the next run continues.
code, rest = run_to_10(4, "killed", *sets, end=killed)
ok(code == 128 + signal.SIGKILL, "a killed rank ends the others", (code, rest[-500:]))
done, resumed = run(4, "killed", *sets)
ok(worst(reference, resumed) == 0, "the run after it continues to the same bits", done.stdout[-500:])

# A checkpoint of another recipe is refused.
done, _ = run(4, "killed", *sets, "training.seed=7")
ok(done.returncode == 6 and "another recipe" in done.stdout, "a checkpoint of another recipe is refused",
   (done.returncode, done.stdout[-500:]))

# A rate beyond reason: steps are skipped, counted, and end the run with the unit's name.
done, _ = run(2, "diverging", "optimizer.lr=1000", "training.max_norm=0", "fault_tolerance.max_skipped_steps=3", *off,
              "training.mixed_precision_param=float32", "lr_scheduler.warmup_steps=0", "model.norm_eps=1e-30",
              "optimizer.weight_decay=10")
lines = [json.loads(line) for line in open(WORK / "diverging" / "metrics.jsonl")]
ok(done.returncode == 2 and "first unit at fault" in done.stdout, "a run that diverges stops, naming the unit",
   (done.returncode, done.stdout[-500:]))
ok(lines[-1]["skipped_steps"] == 4 and None in (lines[-1]["loss"], lines[-1]["grad_norm"]), "after four skipped steps in a row", lines[-3:])

# Bad input.
for sets, code, text in ((("training.dataset_path=/nonexistent",), 2, "/nonexistent"),
                         (("model.dmi=3",), 2, "did you mean"),
                         (("training.global_batch_size=2",), 2, "microbatches")):
    done = subprocess.run(command(4, WORK / "bad", *sets), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          timeout=deadline())
    ok(done.returncode == code and text in done.stdout, f"{sets[0]}: exit code {code}", (done.returncode, done.stdout))

print(f"1..{count}")
subprocess.run(["rm", "-rf", str(WORK)])
sys.exit(failed > 0)
