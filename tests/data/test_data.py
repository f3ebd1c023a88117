#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Training data end to end: what `titanctl data` builds, what others may read of it, and that a run which is resized and loses
workers sees the samples of one that never changed."""
import gzip
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from titan import BIN, FP_BIN, SOURCE, Daemon, command, overrides, tap, until  # noqa: E402

HOME = Path(tempfile.mkdtemp(prefix="titan-data-"))
SEED = int(os.environ.get("TITAN_TEST_SEED", time.time()))
KEYS = {"training.local_batch_size": 2, "training.global_batch_size": 12, "training.seq_len": 32, "training.steps": 60,
        "device.threads": 1, "training.mixed_precision_param": "float32", "metrics.log_samples": "true",
        "elastic.min_workers": 1, "elastic.max_workers": 3, "checkpoint.interval": 20, "fault_tolerance.backoff_ms": 50}


def titanctl(*args, env=None):
    return command(BIN / "titanctl", *args, env=env)


def c4(name, documents, seed):
    """A folder as C4 is laid out; returns the texts in their order."""
    draw = random.Random(seed)
    words = "the of and to in Zürich データ 😀 model trains\ton tokens\n while\u0007 it lasts".split(" ")
    texts = [" ".join(draw.choices(words, k=draw.randrange(60))) for _ in range(documents)]
    (HOME / name / "en").mkdir(parents=True)
    for k in range(3):
        with gzip.open(HOME / name / f"en/c4-train.{k:05}-of-00003.json.gz", "wt") as f:
            for text in texts[k * documents // 3:(k + 1) * documents // 3]:
                f.write(json.dumps({"text": text, "url": "u"}, ensure_ascii=draw.random() < 0.5) + "\n")
    return texts


def build(source, out, *args, env=None, program=BIN / "titan-worker"):
    return command(program, "data", "build", "--tokenizer", "bytes", "--out", HOME / out, *args, HOME / source, env=env)


def shards(name):
    return {p.name: p.read_bytes() for p in sorted((HOME / name).iterdir()) if p.name != "titan-build.json"}


def numpy_reads_it():
    """titanctl data build: five lines of numpy read tokens and documents; inspect and verify agree"""
    texts = c4("c4", 3000, 1)
    done = titanctl("data", "build", "--tokenizer", "bytes", "--out", HOME / "tokens", "--threads", 3, HOME / "c4")
    assert done.code == 0 and "3000 documents" in done.out, (done.out, done.err)
    # docs/data.md has these lines.
    path = HOME / "tokens/shard-00000.bin"
    version, width = np.fromfile(path, "<u4", 2, offset=8)
    tokens, documents = (int(n) for n in np.fromfile(path, "<u8", 2, offset=16))
    ids = np.memmap(path, f"<u{width}", "r", 64, tokens)
    starts = np.memmap(path, "<u8", "r", 64 + -(-tokens * int(width) // 8) * 8, documents + 1)
    assert version == 1 and documents == 3000 and starts[-1] == tokens
    for d in random.Random(SEED).sample(range(documents), 50):
        assert ids[starts[d]:starts[d + 1]].astype(np.uint8).tobytes() == texts[d].encode() + b"\0", d
    told = json.loads(titanctl("data", "inspect", HOME / "tokens", "--sample", 40, "-o", "json").out)
    assert told["tokens"] == tokens and told["documents"] == documents and len(told["samples"]) == 40
    for sample in told["samples"]:
        at = sample["token"]
        assert sample["ids"] == ids[at:at + len(sample["ids"])].tolist()
        assert sample["document_starts"] == [int(s) - at for s in starts if at < s < at + len(sample["ids"])]
    shown = titanctl("data", "inspect", HOME / "tokens").out
    assert "3000" in shown and "\x07" not in shown, shown
    assert titanctl("data", "verify", HOME / "tokens").code == 0
    damaged = bytearray(path.read_bytes())
    damaged[1000] ^= 1
    path.write_bytes(damaged)
    done = titanctl("data", "verify", HOME / "tokens")
    assert done.code == 1 and "checksum" in done.err and done.err.count("\n") <= 2, (done.code, done.err)
    damaged[1000] ^= 1
    path.write_bytes(damaged)


def killed_builds():
    """data build ended by SIGKILL at shards and at any moment: given again it goes on, and ends with the same bytes"""
    draw = random.Random(SEED)
    c4("kill", 9000, 2)
    assert build("kill", "whole", "--shard-tokens", 60000).code == 0
    whole = shards("whole")
    assert len(whole) > 8
    for place in ("data.shard", "data.state"):
        done = build("kill", "parts", "--shard-tokens", 60000, program=FP_BIN / "titan-worker",
                     env={**os.environ, "TITAN_FAILPOINTS": f"{place}=kill@2"})
        assert done.code == -signal.SIGKILL, done.err
    done = build("kill", "parts", "--shard-tokens", 60000)
    assert done.code == 0 and "going on" in done.out, (done.out, done.err)
    assert shards("parts") == whole
    kills = 0
    for _ in range(12):
        process = subprocess.Popen([BIN / "titan-worker", "data", "build", "--tokenizer", "bytes", "--out", HOME / "random",
                                    "--shard-tokens", "60000", HOME / "kill"], stdout=subprocess.DEVNULL)
        try:
            process.wait(draw.random() * 0.3)
            break
        except subprocess.TimeoutExpired:
            process.kill()
            kills += process.wait() != 0
    assert build("kill", "random", "--shard-tokens", 60000, "--threads", 2).code == 0
    assert shards("random") == whole, f"seed {SEED}, {kills} kills"


def full_disk():
    """data build on a disk that fills up: one line; with more room it goes on to the same bytes"""
    place = HOME / "small"
    place.mkdir()
    if command("mount", "-t", "tmpfs", "-o", "size=500k", "titan-test", place).code != 0:
        return "cannot mount a small file system"
    try:
        done = build("kill", "small/out", "--shard-tokens", 60000)
        assert done.code == 1 and "No space left" in done.err and done.err.count("\n") == 1, (done.code, done.err)
        assert not list((place / "out").glob("*.part")) and not (place / "out/titan-data.json").exists()
        done = command(BIN / "titan-worker", "data", "inspect", place / "out")
        assert done.code == 2 and "not finished" in done.err, done.err
        assert command("mount", "-o", "remount,size=64m", place).code == 0
        assert build("kill", "small/out", "--shard-tokens", 60000).code == 0
        assert shards("small/out") == shards("whole")
    finally:
        command("umount", place)


def pairs():
    """Questions with answers, which alone are trained on."""
    (HOME / "pairs.jsonl").write_text("".join(json.dumps({"prompt": f"What is {i} and {i + 1}? ", "completion": f"It is {2 * i + 1}, and no more."}) + "\n"
                                              for i in range(900)))
    return HOME / "pairs.jsonl"


def mixture():
    (HOME / "text").mkdir(exist_ok=True)
    (HOME / "text/a.txt").write_text("\n".join(f"line {i} of what is not in C4" for i in range(1000)))
    return (f'[{{path = "{HOME}/tokens", weight = 3}}, {{path = "{HOME}/text", weight = 1}}, '
            f'{{path = "{HOME}/c4", weight = 1, dataset = "c4"}}, {{path = "{pairs()}", weight = 1, dataset = "sft"}}]')


def samples(folder):
    """{(step, number): hash} of all logs below a folder; a worker that reads a sample again reads the same."""
    seen = {}
    for log in Path(folder).rglob("samples-*.csv"):
        for line in log.read_text().splitlines():
            if len(line.split(",")[-1]) != 16:
                continue  # its worker was killed while it wrote
            step, number, tokens = line.split(",")
            assert seen.setdefault((int(step), int(number)), tokens) == tokens, (log, line)
    return seen


def resized_runs():
    """a mixture, resized, its workers killed: every step has the samples of an undisturbed run of one rank"""
    keys = {**KEYS, "training.mixture": mixture()}
    done = command(BIN / "titan-worker", "run", SOURCE / "recipes/tiny.toml", *overrides(keys), "--dir", HOME / "one")
    assert done.code == 0, done.err
    want = samples(HOME / "one")
    assert sorted(want) == [(s, i) for s in range(1, 61) for i in range(12)]
    assert len(set(want.values())) > 600  # of 720, some of them of the small source
    with Daemon(HOME / "daemon", "--slots", 3, env={"TITAN_FAILPOINTS": "exec.agreed=sleep:100@1+"},
                program=FP_BIN / "titand") as d:
        job = d.submit("tiny", {**keys, "elastic.min_workers": 1})
        step = lambda n: until(f"step {n}", lambda: d.status(job)["step"] >= n)  # noqa: E731
        step(5)
        d.ok("resize", job, 1)
        step(15)
        os.kill(next(iter(d.workers(job).values())), signal.SIGKILL)
        step(25)
        d.ok("resize", job, 3)
        step(40)
        os.kill(next(iter(d.workers(job).values())), signal.SIGKILL)
        d.wait_state(job, "COMPLETED")
        got = samples(HOME / "daemon")
        assert got == want, f"{len(got)} samples, {sum(got.get(k) != v for k, v in want.items())} differ"
    assert shutil.rmtree(HOME / "daemon", ignore_errors=True) is None


def masks():
    """prompts and completions: one worker's losses to the bit on two and three, and behind a checkpoint; packed ones too; only answers count"""
    def losses(name, workers, packing="none"):
        keys = {**KEYS, "training.dataset_path": pairs(), "training.dataset": "sft", "training.steps": 12, "training.block_causal": "true", "training.packing": packing,
                "training.seq_len": 32 if packing == "none" else 120,
                "numerics.canonical": "true", "metrics.log_samples": "false", "elastic.max_workers": 3, "checkpoint.interval": 5}
        done = command(BIN / "titan-worker", "run", SOURCE / "recipes/tiny.toml", *overrides(keys), "-n", workers, "--dir", HOME / name)
        assert done.code == 0, done.err
        assert "file of conversations, 900 documents" in done.err and "of them trained on" in done.err, done.err
        return {m["step"]: m["loss"] for m in map(json.loads, (HOME / name / "metrics.jsonl").read_text().splitlines())}

    want = losses("masks-1", 1)
    assert len(want) == 12 and losses("masks-2", 2) == want
    shutil.rmtree(HOME / "masks-1/checkpoint/step-00000012", ignore_errors=True)
    assert losses("masks-1", 3) == want
    packed = losses("packed-1", 1, "first_fit")
    assert packed != want and losses("packed-3", 3, "first_fit") == packed
    build = titanctl("data", "build", "--tokenizer", "bytes", "--format", "sft", "--out", HOME / "pairs", pairs())
    told = json.loads(titanctl("data", "inspect", HOME / "pairs", "-o", "json").out)
    answers = sum(len(json.loads(line)["completion"]) + 1 for line in pairs().read_text().splitlines())
    assert build.code == 0 and told["tokens_trained_on"] == answers < told["tokens"] and titanctl("data", "verify", HOME / "pairs").code == 0


def text_is_counted():
    """titanctl data inspect of text and JSON: documents, and tokens where a tokenizer is given; a run tells what it trains and validates on"""
    def inspect(path, *args):
        done = titanctl("data", "inspect", path, "-o", "json", *args)
        assert done.code == 0, done.err
        return json.loads(done.out)

    texts = c4("counted", 40, 3)
    (HOME / "counted/en/c4-train.00003.jsonl").write_text('{"text": 5}\n')
    told = inspect(HOME / "counted")
    assert told["documents"] == 40 and told["bad_records"] == 1 and "tokens" not in told, told
    assert inspect(HOME / "counted", "--tokenizer", "bytes")["tokens"] == sum(len(t.encode()) + 1 for t in texts)
    (HOME / "plain").mkdir()
    for k in range(3):
        (HOME / f"plain/{k}.txt").write_text("a line of text\n" * 40)
    told = inspect(HOME / "plain", "--tokenizer", "bytes")
    assert (told["documents"], told["tokens"]) == (3, 3 * 40 * 15 + 3), told
    before = sorted(HOME.iterdir())
    shown = titanctl("data", "inspect", HOME / "plain").out
    assert "documents   3\n" in shown and "--tokenizer" in shown and sorted(HOME.iterdir()) == before, shown
    array = json.dumps([str(HOME / "plain/0.txt"), str(HOME / "plain/2.txt"), str(HOME / "plain/[01].txt")])
    keys = {**KEYS, "training.dataset_path": array, "training.steps": 1, "checkpoint.enable": "false", "metrics.log_samples": "false",
            "validation.enable": "true", "validation.dataset_path": HOME / "plain/1.txt", "validation.seq_len": 32}
    done = command(BIN / "titan-worker", "run", SOURCE / "recipes/tiny.toml", *overrides(keys), "-n", 2, "--dir", HOME / "validated")
    assert done.code == 0, done.err
    lines = [line for line in (done.out + done.err).splitlines() if " data" in line and "found=" in line]
    assert len(lines) == 2 and "training data" in lines[0] and "3 files of text, 3 documents" in lines[0], lines
    assert "validation data" in lines[1] and "1.txt" in lines[1] and "1 file of text" in lines[1], lines


def refused():
    """data a run cannot use: refused when it starts, in one line that has both sides"""
    def run(says, **keys):
        done = command(BIN / "titan-worker", "run", SOURCE / "recipes/tiny.toml", "--dir", HOME / "refused",
                       *overrides({**{k: v for k, v in KEYS.items() if k != "metrics.log_samples"},
                                   **{f"training.{k}": v for k, v in keys.items()}}))
        assert done.code in (1, 2) and says in done.err and done.err.count("\n") <= 2, (done.code, done.err)
    ids = np.arange(400, dtype="<u2")
    ids.tofile(HOME / "large.bin")
    run("id 256, model.vocab_size is 256", dataset_path=HOME / "large.bin")
    np.zeros(200, "<u2").tofile(HOME / "few.bin")
    run("6 samples of training.seq_len = 32 tokens, one step needs 12", dataset_path=HOME / "few.bin")
    shutil.copytree(HOME / "tokens", HOME / "other")
    about = json.loads((HOME / "other/titan-data.json").read_text())
    (HOME / "other/titan-data.json").write_text(json.dumps({**about, "tokenizer": "gpt2", "tokenizer_hash": "12ab"}))
    run("built with the tokenizer 'gpt2' (00000000000012ab), the run's is 'bytes'", dataset_path=HOME / "other")
    shard = HOME / "other/shard-00000.bin"
    os.truncate(shard, shard.stat().st_size - 1)
    (HOME / "other/titan-data.json").write_text(json.dumps(about))
    run("cut off", dataset_path=HOME / "other")
    run("expected what training.dataset may be", mixture='[{path = "/tmp", dataset = "wikipedia"}]')
    run("2 sources have a weight", mixture='[{path = "/tmp", weight = 1}, {path = "/usr"}]')
    run("both given", mixture='[{path = "/tmp"}]', dataset_path="/tmp")
    (HOME / "unanswered.jsonl").write_text('{"messages": []}\n{"messages": [{"role": "user", "content": "a"}]}\n')
    run("2 bad records, the first: ", dataset_path=HOME / "unanswered.jsonl", dataset="sft")
    (HOME / "short").write_text("short")
    done = build("short", "no-begin", "--bos")
    assert done.code == 2 and "'bytes' has no begin of text" in done.err and not (HOME / "no-begin").exists(), done


try:
    tap(numpy_reads_it, killed_builds, full_disk, resized_runs, masks, text_is_counted, refused)
finally:
    shutil.rmtree(HOME, ignore_errors=True)
