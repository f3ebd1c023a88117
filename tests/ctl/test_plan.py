#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""titanctl plan as people and scripts use it: report, JSON, timeline, picture, search, and what it refuses."""
import gzip
import json
import re
import shutil
import sys
import tempfile
import xml.dom.minidom
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from titan import BIN, SOURCE, command, overrides, tap  # noqa: E402

DEBUG = SOURCE / "recipes/debug.toml"
SCHEDULES = SOURCE / "tests/unit/base"
HOME = Path(tempfile.mkdtemp(prefix="titan-plan-"))
GIB = 2.0**30

PIPELINE = {"parallelism.pipeline_parallel_degree": 2, "parallelism.tensor_parallel_degree": 2,
            "training.global_batch_size": 16, "parallelism.pipeline_parallel_schedule": "Interleaved1F1B"}


def plan(file, *args, keys=None, form=None):
    head = ["-o", form] if form else []
    return command(BIN / "titanctl", *head, "plan", file, *args, *overrides(keys or {}))


def planned(file, *args, keys=None):
    done = plan(file, *args, keys=keys)
    assert done.code == 0, done.err
    return done.out


def document(file, *args, keys=None):
    done = plan(file, *args, keys=keys, form="json")
    assert done.code == 0, done.err
    return json.loads(done.out)


def report():
    """the report has mesh, memory by kind, bytes by axis, step, MFU, bubble and the slowest thing"""
    out = planned(DEBUG, "--world", 8, keys=PIPELINE)
    assert re.search(r"^mesh +pp 2 x dp_shard 2 x tp 2$", out, re.M), out
    assert re.search(r"^pipeline +Interleaved1F1B, 4 stages on 2 ranks, bubble +\d+\.\d %$", out, re.M), out
    for kind in ("parameters", "gradients", "optimizer", "activations", "buffers", "planned", "predicted"):
        assert re.search(rf"^  {kind} +\d+\.\d\d +\d+\.\d\d$", out, re.M), kind + "\n" + out
    assert "of 79 GiB: fits" in out
    for axis in ("pp", "dp_shard", "tp"):
        assert re.search(rf"^  {axis} +[\d.]+ [KMGT]?i?B$", out, re.M), axis + "\n" + out
    assert "dp_replicate" not in out and "\n  cp " not in out
    assert re.search(r"^step +[\d.]+ s, \d+ tokens/s per device, MFU [\d.]+ %$", out, re.M), out
    assert re.search(r"^slowest +\w", out, re.M), out


def notes():
    """what has no effect is noted as a run has it, and the note on resharding is true: the program is the same"""
    always = {"parallelism.fsdp_reshard_after_forward": "always"}
    done = plan(DEBUG, "--world", 4, keys={**always, "compile.enable": "true"})
    told = done.err.splitlines()
    assert done.code == 0 and len(told) == 2, done.err
    assert told[0].startswith('note: parallelism.fsdp_reshard_after_forward = "always" has no effect'), told
    assert told[1].startswith("note: compile.enable has no effect: "), told
    for keys in ({}, {"model.name": "qwen3"}, {"training.local_batch_size": 1, "training.global_batch_size": 16}):
        assert document(DEBUG, "--world", 4, keys=keys)["program"] == document(DEBUG, "--world", 4, keys={**keys, **always})["program"], keys


def options():
    """--device and --memory change the machine, --set the file, --print shows the programs"""
    one, two = document(DEBUG, "--world", 2), document(DEBUG, "--world", 2, "--device", "b200")
    assert one["device"] == "h100" and two["device"] == "b200"
    assert one["memory_bytes"] == 81079 << 20 and two["memory_bytes"] > one["memory_bytes"]
    assert two["step_seconds"] < one["step_seconds"]
    small = document(SOURCE / "recipes/llama3_8b.toml", "--world", 8, "--memory", 20)
    assert small["memory_bytes"] == 20 * GIB and small["fits"] is False
    assert "DOES NOT FIT" in planned(SOURCE / "recipes/llama3_8b.toml", "--world", 8, "--memory", "20")
    assert document(DEBUG, "--world", 2, keys={"parallelism.tensor_parallel_degree": 2})["mesh"]["tp"] == 2
    text = planned(DEBUG, "--world", 2, "--print")
    assert re.search(r"^ *\d+ gather +forward +ALL_GATHER", text, re.M) and "step " in text


def network():
    """--network, --delay and --node: a gather between nodes takes its bytes and delays; what stays in a node is as before, and so is the program"""
    keys = {"training.mixed_precision_param": "float32"}
    here, apart, slow, far = (document(DEBUG, "--world", 2, *more, keys=keys) for more in (
        (), ("--node", 1), ("--node", 1, "--network", 0.1), ("--node", 1, "--network", 0.1, "--delay", 100)))
    assert here["program"] == apart["program"] == slow["program"] == far["program"]
    assert here["step_seconds"] < apart["step_seconds"] < slow["step_seconds"] < far["step_seconds"]
    assert document(DEBUG, "--world", 2, "--network", 0.1, keys=keys)["step_seconds"] == here["step_seconds"]
    sent = slow["ranks"][0]["sent_bytes"]
    travels = (sent["dp_shard"] + sent["buddy"]) * 8 / 0.1e9
    assert travels <= slow["step_seconds"] < 1.2 * travels, (sent, slow["step_seconds"])
    for option, value in (("--network", 0), ("--network", -1), ("--delay", "x"), ("--node", 0)):
        done = plan(DEBUG, "--world", 2, f"{option}={value}")
        assert done.code == 2 and option in done.err, done.err


def floors():
    """8B on one H200 fits with bf16 moments; floors of products and attention are those by hand, a line an operation"""
    out = planned(SOURCE / "recipes/llama3_8b_h200.toml", "--device", "h200", "--operations")
    assert "of 140 GiB: fits" in out
    tokens, layers, width, kv, feed, vocabulary, heads, head = 8192, 32, 4096, 1024, 14336, 128256, 32, 128
    weights = layers * (2 * width * width + 2 * width * kv + 3 * width * feed) + vocabulary * width
    pairs = tokens * tokens / 2
    for name, flops in (("products", 3 * 2 * tokens * weights), ("attention", layers * heads * pairs * 2 * 7 * head)):
        line = re.search(rf"^  {name} +([\d.]+) s +[\d.]+ % +([\d.]+) s$", out, re.M)
        assert line and abs(float(line[2]) - flops / 989e12) < 1e-4 < float(line[1]) - float(line[2]), (name, out)
    assert re.search(r"^floor +[\d.]+ s, [\d.]+ % of the step", out, re.M), out
    rows = re.findall(r"^ +([\d.]+) +([\d.]+) +[\d.]+% +(\d+)  ([A-Z_]+) ", out, re.M)
    assert any(name == "ATTENTION" and times == "32" for *_, times, name in rows), rows
    assert all(float(floor) <= float(seconds) for seconds, floor, *_ in rows)


def heeds_memory():
    """671B of DeepSeek V3 on 512 GPUs: passes keep the program within memory, process and communicators included, and take less of it where there is less"""
    recipe = HOME / "671b.toml"
    recipe.write_text('[model]\nname = "deepseek_v3"\nflavor = "671B"\n[training]\nseq_len = 4096\nlocal_batch_size = 1\nloss_chunks = 8\n'
                      '[parallelism]\nexpert_parallel_degree = 64\nexpert_parallel_room = 8.0\nfsdp_bucketing = "greedy"\n'
                      '[activation_checkpoint]\nmode = "full"\n')
    plenty, tight = (document(recipe, "--world", 512, "--memory", gib)["ranks"][0]["memory"] for gib in (79, 50))
    assert 50 * GIB < plenty["predicted"] <= 79 * GIB and plenty["parameters"] > tight["parameters"], (plenty, tight)
    assert tight["predicted"] <= 50 * GIB and tight["planned"] + tight["process"] + tight["connections"] == tight["predicted"], tight


def experts_in_rounds():
    """16B of DeepSeek V2 Lite on 8 GPUs, experts over all of them: fits, as its experts take tokens in rounds; room for the worst case does not"""
    recipe = SOURCE / "recipes/deepseek_v3_16b.toml"
    rounds, worst = (document(recipe, "--world", 8, "--device", "h100", keys=keys) for keys in ({}, {"parallelism.expert_parallel_room": 8.0}))
    assert rounds["mesh"]["ep"] == 8 and rounds["fits"] and rounds["ranks"][0]["memory"]["predicted"] < 80e9, rounds
    assert not worst["fits"] and worst["fitting_expert_parallel_room"] == 1, worst
    theirs = SOURCE / "tests/interop/torchtitan/deepseek_v3/deepseek_v3_16b.toml"
    asked = document(theirs, "--world", 8)
    room = asked["fitting_expert_parallel_room"]
    told = document(theirs, "--world", 8, keys={"parallelism.expert_parallel_room": room})
    assert not asked["fits"] and told["fits"] and told["ranks"][0]["memory"]["predicted"] <= 81079 << 20, (asked, told)


def what_would_fit():
    """a plan that does not fit names the largest batch of a device, of a pipeline the largest microbatch, that does, or says that there is none"""
    of_pipeline = {"parallelism.pipeline_parallel_degree": 2, "training.local_batch_size": 16}
    for key, more in (("training.local_batch_size", {}), ("parallelism.pipeline_parallel_microbatch_size", of_pipeline)):
        sizes, short = (8, 4, 2, 1), "fitting_" + key.split(".")[1]
        keys = {b: more | {key: b, "training.global_batch_size": 32, "training.seq_len": 512} for b in sizes}
        needs = [document(DEBUG, "--world", 2, keys=keys[b])["ranks"][0]["memory"]["predicted"] / GIB for b in sizes]
        assert sorted(needs, reverse=True) == needs, needs
        for i, between in enumerate([(needs[0] + needs[1]) / 2, (needs[2] + needs[3]) / 2, needs[3] * 0.9]):
            fitting = next((b for b in sizes if document(DEBUG, "--world", 2, "--memory", between, keys=keys[b])["fits"]), 0)
            assert fitting == (4, 1, 0)[i], (fitting, between, needs)
            told = document(DEBUG, "--world", 2, "--memory", between, keys=keys[8])
            assert told["fits"] is False and told[short] == fitting, (told, fitting)
            words = f"DOES NOT FIT; {key} = {fitting} does" if fitting else f"DOES NOT FIT, nor does a smaller {key}"
            assert words in planned(DEBUG, "--world", 2, "--memory", between, keys=keys[8])


def as_json():
    """-o json: every number of the report, in bytes and seconds, and parts that add up"""
    d = document(DEBUG, "--world", 8, keys=PIPELINE)
    assert set(d) == {"world", "device", "program", "costs", "mesh", "tokens", "microbatches", "kinds", "actions", "step_seconds",
                      "tokens_per_second_per_device", "mfu", "bubble", "memory_bytes", "fits", "ranks"}, set(d)
    assert d["mesh"] == {"pp": 2, "dp_replicate": 1, "dp_shard": 2, "cp": 1, "tp": 2, "ep": 1}
    assert d["world"] == 8 and d["tokens"] == 16 * 128 and d["kinds"] == 2 and 0 < d["bubble"] < 1 and d["fits"] is True
    assert abs(d["tokens_per_second_per_device"] * d["step_seconds"] * 8 / d["tokens"] - 1) < 1e-2
    assert [r["pp_rank"] for r in d["ranks"]] == [0, 1]
    for rank in d["ranks"]:
        m = rank["memory"]
        kinds = ("parameters", "gradients", "optimizer", "activations", "buffers")
        assert m["planned"] == sum(m[k] for k in kinds) and m["predicted"] > m["planned"]
        sent = rank["sent_bytes"]
        assert set(sent) == {"pp", "dp_replicate", "dp_shard", "cp", "tp", "ep", "report", "buddy"}
        assert sent["pp"] > 0 and sent["dp_shard"] > 0 and sent["tp"] > 0 and sent["cp"] == sent["dp_replicate"] == 0
        assert abs(sent["buddy"] - sent["dp_shard"] * 4 / (2 + 4)) < 1, sent  # the shard's gradient, as much as is sent to be added
        assert 0 < rank["floor_seconds"] < d["step_seconds"]
        assert abs(sum(rank["seconds"].values()) - d["step_seconds"]) < 1e-3 * d["step_seconds"] + 1e-5


def timeline():
    """--timeline writes trace events that Perfetto opens: complete events on named threads, none over another; .gz the same, packed"""
    path = HOME / "step.json"
    d = document(DEBUG, "--world", 8, "--timeline", path, keys=PIPELINE)
    trace = json.loads(path.read_text())
    events = trace["traceEvents"]
    named = {(e["pid"], e["tid"]) for e in events if e["ph"] == "M" and e["name"] == "thread_name"}
    complete = [e for e in events if e["ph"] == "X"]
    assert {e["ph"] for e in events} == {"M", "X"}
    assert {e["pid"] for e in complete} == {0, 1}
    lanes = {}
    for e in complete:
        assert re.fullmatch(r"[A-Z0-9_]+" + (re.escape(" " + e["args"]["unit"]) if e["args"]["unit"] else ""), e["name"]), e
        assert e["cat"] and e["ts"] >= 0 and e["dur"] > 0, e
        assert (e["pid"], e["tid"]) in named, e
        begin, length = round(e["ts"] * 1000), round(e["dur"] * 1000)  # whole nanoseconds
        lanes.setdefault((e["pid"], e["tid"]), []).append((begin, begin + length))
    for lane in lanes.values():
        lane.sort()
        assert all(a[1] <= b[0] for a, b in zip(lane, lane[1:])), "events of one stream overlap"
    assert {"EMBED embedding", "MATMUL layers.0", "OPTIMISE embedding to layers.4", "OPTIMISE layers.1 to head", "AGREE"} <= {e["name"] for e in complete}
    packed = HOME / "step.json.gz"
    planned(DEBUG, "--world", 8, "--timeline", packed, keys=PIPELINE)
    assert gzip.decompress(packed.read_bytes()) == path.read_bytes() and packed.stat().st_size < path.stat().st_size / 5
    assert abs(max(end for lane in lanes.values() for _, end in lane) * 1e-9 - d["step_seconds"]) < 1e-5
    planned(DEBUG, "--world", 8, "--timeline", path, keys={"parallelism.fsdp_bucketing": "greedy"})
    assert "ALL_GATHER layers.1 to " in path.read_text()


def big_timeline():
    """a plain timeline of 64 MiB or more gets a note with its size and a name that packs it; a smaller one gets none"""
    path = HOME / "big.json"
    for batch, noted in ((256, False), (2048, True)):
        done = plan(SOURCE / "recipes/llama3_8b.toml", "--world", 64, "--timeline", path,
                    keys={"parallelism.pipeline_parallel_degree": 16, "training.global_batch_size": batch})
        size = path.stat().st_size
        note = f"note: '{path}' is {size / (1 << 20):.1f} MiB; as {path}.gz it is about a tenth of that"
        assert done.code == 0 and (size >= 64 << 20) == noted and (note in done.err) == noted, (size, done.err)
    path.unlink()


def picture():
    """--picture writes well-formed SVG"""
    path = HOME / "step.svg"
    planned(DEBUG, "--world", 8, "--picture", path, keys={**PIPELINE, "job.description": 'a < b & "c"'})
    root = xml.dom.minidom.parse(str(path)).documentElement
    assert root.tagName == "svg" and len(root.getElementsByTagName("rect")) > 20
    assert root.getElementsByTagName("text")[0].firstChild.data == 'a < b & "c"'


def search():
    """--search lists layouts that fit, fastest first, and keys to paste; -o json the same"""
    big = SOURCE / "recipes/llama3_8b.toml"
    d = document(big, "--world", 8, "--search")
    assert d["world"] == 8 and d["legal"] >= d["simulated"] == len(d["layouts"]) > 5
    steps = []
    for layout in d["layouts"]:
        degrees = [layout[k + "_parallel_degree"] for k in ("pipeline", "context", "tensor")]
        assert degrees[0] * degrees[1] * degrees[2] * layout["data_parallel_shard_degree"] == 8
        assert layout["fits"] == (layout["memory_bytes"] <= 81079 << 20)
        steps += [layout["step_seconds"]] if layout["fits"] else []
    assert steps == sorted(steps) and steps
    text = planned(big, "--world", 8, "--search")
    best = d["layouts"][0]
    pasted = HOME / "pasted.toml"
    keys = text[text.index("[parallelism]"):]
    assert f"tensor_parallel_degree = {best['tensor_parallel_degree']}\n" in keys
    pasted.write_text('[model]\nname = "llama3"\nflavor = "8B"\n[training]\nlocal_batch_size = 1\nseq_len = 8192\n' + keys)
    again = document(pasted, "--world", 8)
    assert abs(again["step_seconds"] - best["step_seconds"]) < 1e-5, (again["step_seconds"], best)


def refused():
    """bad input: exit 2, one message with what is wrong, why, and the nearest legal value; nothing written"""
    def no(*words, file=DEBUG, args=(), keys=None):
        out = HOME / "never.json"
        done = plan(file, "--timeline", out, *args, keys=keys)
        assert done.code == 2, f"exit {done.code}: {done.out}{done.err}"
        assert not done.out and not out.exists()
        assert len([line for line in done.err.splitlines() if line and not line.startswith("  ")]) == 1, done.err
        for word in words:
            assert word in done.err, f"'{word}' is missing in: {done.err}"

    p = "parallelism."
    csv = p + "pipeline_parallel_schedule_csv"
    two = {p + "pipeline_parallel_degree": 2, p + "pipeline_parallel_schedule": "PipelineScheduleSingle"}
    no("--device", "tpu", "h100|h200|b200|cpu", args=("--device", "tpu"))
    for world in ("0", "-1", "many", "1e3", "99999999"):
        no("--world", world, args=(f"--world={world}",))
    for memory in ("0", "-3", "much"):
        no("--memory", memory, args=(f"--memory={memory}",))
    no("nothing.toml", file=HOME / "nothing.toml")
    no(p + "tensor_parallel_degree = 3", "model.n_heads = 16", "nearest: 2", args=("--world", 3),
       keys={p + "tensor_parallel_degree": 3})
    no(p + "tensor_parallel_degree = 16", "multiple of 16", args=("--world", 8), keys={p + "tensor_parallel_degree": 16})
    no(p + "pipeline_parallel_degree = 12", "8 layers", "nearest: 8", args=("--world", 12),
       keys={p + "pipeline_parallel_degree": 12})
    no(p + "pipeline_parallel_degree = 4", "multiple of 4", "6", args=("--world", 6),
       keys={p + "pipeline_parallel_degree": 4})
    no(p + "pipeline_parallel_degre", "did you mean", keys={p + "pipeline_parallel_degre": 2})
    no(csv, "schedule_deadlock.csv", "deadlock", "rank 0", "0B0", args=("--world", 2),
       keys={**two, csv: SCHEDULES / "schedule_deadlock.csv"})
    no(csv, "1F1 has no backward", args=("--world", 2), keys={**two, csv: SCHEDULES / "schedule_no_backward.csv"})
    done = plan(DEBUG, "--world", 2, "--timeline", HOME / "no/such/folder.json")
    assert done.code == 2 and "no/such/folder.json" in done.err and not done.out
    for option in (("--picture", HOME / "never.svg"), ("--print",), ("--operations",), ()):
        no("--search lists layouts", args=("--search", *option))
    no("parameters; at most", keys={
        "model.dim": 1 << 20, "model.n_layers": 4096, "model.ffn_hidden": 1 << 22, "model.head_dim": 1 << 16})
    done = command(BIN / "titanctl", "plan")
    assert done.code == 2 and "FILE" in done.err


try:
    tap(report, notes, options, network, floors, heeds_memory, experts_in_rounds, what_would_fit, as_json, timeline, big_timeline, picture, search, refused)
finally:
    shutil.rmtree(HOME, ignore_errors=True)
