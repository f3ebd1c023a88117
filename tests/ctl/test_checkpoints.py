#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checkpoints as people handle them: verify finds what is damaged; a relative job.dump_folder is found by all commands."""
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from titan import BIN, SOURCE, Daemon, Result, headers_text, overrides, tap  # noqa: E402

TINY = SOURCE / "recipes/tiny.toml"


class World:
    """What the tests share: a daemon, and a job with checkpoints of steps 10, 20 and 30."""


def keys(**more):
    return {"training.dataset_path": World.text, "training.steps": 30, "device.threads": 1, "elastic.min_workers": 2,
            "elastic.max_workers": 2, "checkpoint.keep_latest_k": 0, **{k.replace("__", "."): v for k, v in more.items()}}


def verify(*args):
    return World.daemon.ctl("checkpoints", "verify", *args)


def flip(path, at=-9):
    data = bytearray(path.read_bytes())
    data[at] ^= 0x40
    path.write_bytes(data)


def sound_ones():
    """verify: a job's checkpoints by its number or their folder, one step, one checkpoint; a line each and exit code 0"""
    lines = [f"step-{s:08d}  ok       2 files, " for s in (10, 20, 30)]
    for what in (World.job, World.folder, f"{World.folder}/"):
        done = verify(what)
        assert done.code == 0 and [a.startswith(b) for a, b in zip(done.out.splitlines(), lines)] == [True] * 3, (done.out, done.err)
    for args in ((World.job, "--step", 20), (World.folder / "step-00000020",)):
        done = verify(*args)
        assert done.code == 0 and done.out.count("\n") == 1 and done.out.startswith(lines[1]), (done.out, done.err)
    whole = [json.loads(line) for line in World.daemon.ctl("-o", "json", "checkpoints", "verify", World.job).out.splitlines()]
    assert [(w["step"], w["ok"], w["files"], w["faults"]) for w in whole] == [(s, True, 2, []) for s in (10, 20, 30)], whole
    size = sum(f.stat().st_size for f in (World.folder / "step-00000010").glob("rank-*"))
    assert whole[0]["bytes"] == size, (whole[0], size)


def damage_is_named():
    """verify: whatever is done to a file of a checkpoint, that checkpoint is damaged, with file and reason, and the exit code 1"""
    one, two, manifest = "rank-00000.safetensors", "rank-00001.safetensors", "manifest.json"
    damages = {
        "a bit of the data": (lambda p: flip(p / one), [(one, "crc32c")]),
        "a bit of a header": (lambda p: flip(p / two, 20), [(two, "crc32c")]),
        "both files": (lambda p: (flip(p / one), flip(p / two)), [(one, "crc32c"), (two, "crc32c")]),
        "a file that is cut": (lambda p: os.truncate(p / two, 100), [(two, "has 100 bytes")]),
        "a file that has grown": (lambda p: (p / one).open("ab").write(b"x"), [(one, "its manifest says")]),
        "a file that is gone": (lambda p: (p / one).unlink(), [(one, "is missing")]),
        "a link in its place": (lambda p: ((p / one).rename(p / "x"), (p / one).symlink_to("x")), [(one, "")]),
        "a bit of the manifest": (lambda p: flip(p / manifest), [(manifest, "crc32c")]),
        "no manifest": (lambda p: (p / manifest).unlink(), [(manifest, "No such file")]),
        "an empty manifest": (lambda p: os.truncate(p / manifest, 0), [(manifest, "checksum")]),
        "another step's manifest": (lambda p: [shutil.copy(f, p) for f in (p.parent / "step-00000010").iterdir()], [("manifest", "is of step 10")]),
    }
    for what, (damage, faults) in damages.items():
        copy = World.daemon.state / "copy"
        shutil.copytree(World.folder, copy)
        damage(copy / "step-00000020")
        done = verify(copy)
        lines = done.out.splitlines()
        assert done.code == 1 and "1 of 3 checkpoints is damaged" in done.err, (what, done.code, done.out, done.err)
        assert len(lines) == 2 + len(faults) and "  ok  " in lines[0] and "  ok  " in lines[-1], (what, lines)
        for line, (name, why) in zip(lines[1:], faults):
            assert line.startswith("step-00000020  damaged  ") and name in line and why in line, (what, line)
        assert verify(copy, "--step", 10).code == 0 and verify(copy, "--step", 20).code == 1, what
        told = [json.loads(line) for line in World.daemon.ctl("-o", "json", "checkpoints", "verify", copy).out.splitlines()]
        assert [t["ok"] for t in told] == [True, False, True] and len(told[1]["faults"]) == len(faults), (what, told)
        shutil.rmtree(copy)


def hf_directories():
    """verify: what last_save_in_hf has put into a checkpoint, and a directory by itself: headers, sizes, index; not its data, which has no checksums"""
    job = World.daemon.submit("tiny", keys(checkpoint__last_save_model_only="true", checkpoint__last_save_in_hf="true"))
    World.daemon.wait_state(job, "COMPLETED")
    place = World.daemon.state / f"jobs/{job}/checkpoint"
    done = verify(job)
    assert done.code == 0 and done.out.splitlines()[3].startswith("step-00000030/hf  ok       1 file, "), (done.out, done.err)
    assert done.out.endswith(", no checksums\n"), done.out
    alone = World.daemon.state / "alone"
    shutil.copytree(place / "step-00000030/hf", alone)
    assert verify(alone).out.startswith("alone  ok       1 file, ") and verify(place / "step-00000030", ).out.count("  ok  ") == 2
    whole = [json.loads(line) for line in World.daemon.ctl("-o", "json", "checkpoints", "verify", job).out.splitlines()]
    assert [(w["step"], w["ok"], w["checksums"]) for w in whole] == [(10, True, True), (20, True, True), (30, True, True), (30, True, False)], whole

    # In two files with an index, as large models are written.
    weights = (alone / "model.safetensors").read_bytes()
    n = int.from_bytes(weights[:8], "little")
    header = {k: v for k, v in json.loads(weights[8:8 + n]).items() if k != "__metadata__"}
    names = sorted(header, key=lambda k: header[k]["data_offsets"][0])
    where = {}
    for file, some in (("a.safetensors", names[:2]), ("b.safetensors", names[2:])):
        at, entries, data = 0, {}, b""
        for name in some:
            begin, end = header[name]["data_offsets"]
            entries[name] = {**header[name], "data_offsets": [at, at + end - begin]}
            data, at, where[name] = data + weights[8 + n + begin:8 + n + end], at + end - begin, file
        text = json.dumps(entries).encode()
        (alone / file).write_bytes(len(text).to_bytes(8, "little") + text + data)
    (alone / "model.safetensors").unlink()

    def index(of):
        (alone / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": of}))
    index(where)
    assert verify(alone).out.startswith("alone  ok       2 files, "), verify(alone).out
    index({k: v for k, v in where.items() if k != names[-1]})
    fewer = verify(alone)
    assert fewer.code == 1 and f"names {len(names) - 1} tensors, its files have {len(names)}" in fewer.out, (fewer.out, fewer.err)
    index({**where, names[-1]: "a.safetensors"})
    wrong = verify(alone)
    assert wrong.code == 1 and "is not in 'a.safetensors'" in wrong.out and "directory is damaged" in wrong.err, (wrong.out, wrong.err)

    # One file in the checkpoint: what is wrong with it, and with what the model has.
    file = place / "step-00000030/hf/model.safetensors"
    shape = json.dumps(header[names[0]]["shape"], separators=(",", ":")).encode()
    for what, damaged, words in (("cut", weights[:-4], "bytes"), ("grown", weights + b"x", "the file at"), ("header", b"\xff" * 8 + weights[8:], "header"),
                                 ("shape", weights[:8] + weights[8:8 + n].replace(shape, b"[1," + shape[3:], 1) + weights[8 + n:], "its shape")):
        file.write_bytes(damaged)
        done = verify(job)
        assert done.code == 1 and "step-00000030/hf  damaged  " in done.out and "1 of 3 checkpoints is damaged" in done.err, (what, done.out, done.err)
        assert words in done.out and done.out.count("  damaged  ") == 1, (what, done.out)
    text = json.dumps({names[0]: {**header[names[0]], "data_offsets": [0, header[names[0]]["data_offsets"][1] - header[names[0]]["data_offsets"][0]]}}).encode()
    begin, end = header[names[0]]["data_offsets"]
    file.write_bytes(len(text).to_bytes(8, "little") + text + weights[8 + n + begin:8 + n + end])
    done = verify(job)
    assert done.code == 1 and "step-00000030/hf  damaged  " in done.out and "is missing, and " in done.out, done.out
    shutil.rmtree(alone)


def nothing_to_verify():
    """verify: no folder, no checkpoint in it, no such job or step: one line, and no word of damage"""
    (World.daemon.state / "empty").mkdir()
    for args, code, words in (((World.daemon.state / "none",), 2, "No such file"), ((World.daemon.state / "empty",), 2, "no checkpoint in"),
                              ((4711,), 3, "4711"), ((World.job, "--step", 15), 3, "no checkpoint of step 15"),
                              ((World.folder, "--step", 15), 2, "no checkpoint of step 15"), ((World.job, "--step", "x"), 2, "--step"), ((), 2, "verify JOB|FOLDER")):
        done = verify(*args)
        assert done.code == code and words in done.err and not done.out, (args, done.code, done.out, done.err)
    assert World.daemon.ctl("checkpoints", World.job, "--step", 10).code == 2


def relative_dump_folder():
    """a relative job.dump_folder is meant from where titan-worker run is started; convert and generate read what is there"""
    here = World.daemon.state / "here"
    here.mkdir()

    def there(*args):
        return Result(subprocess.run([str(a) for a in args], cwd=here, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
    for n in (1, 2):
        run = there(BIN / "titan-worker", "run", TINY, "-n", n, *overrides(keys(job__dump_folder=f"./out/{n}", elastic__min_workers=1)))
        assert run.code == 0, run.err
        assert (here / f"out/{n}/checkpoint/step-00000030/manifest.json").exists(), sorted(here.rglob("*"))
        assert (here / f"out/{n}/metrics.jsonl").exists() and sorted(p.name for p in here.iterdir()) == ["out"], sorted(here.iterdir())
        for program in (BIN / "titan-worker", BIN / "titanctl"):
            for what in (f"out/{n}/checkpoint", f"out/{n}/checkpoint/step-00000030"):
                done = there(program, "generate", what, "--prompt", "int ", "--max-tokens", 4)
                assert done.code == 0 and done.out.startswith("int "), (program, what, done.out, done.err)
                done = there(program, "convert", what, "hf")
                assert done.code == 0 and (here / "hf/model.safetensors").exists(), (program, what, done.err)
                shutil.rmtree(here / "hf")
        again = there(BIN / "titan-worker", "run", TINY, "-n", n, *overrides(keys(job__dump_folder=f"out/{n}", training__steps=35,
                                                                                 elastic__min_workers=1)))
        assert again.code == 0 and (here / f"out/{n}/checkpoint/step-00000035").exists(), again.err
        shutil.rmtree(here / "out")


def relative_dump_folder_of_a_job():
    """of a submitted run it lies in the job's own folder, where all commands find it by the job's number"""
    d = World.daemon
    job = d.submit("tiny", keys(job__dump_folder="./out"))
    d.wait_state(job, "COMPLETED")
    folder = d.state / f"jobs/{job}/out/checkpoint"
    assert d.status(job)["checkpoint"] == str(folder / "step-00000030")
    assert d.ctl("generate", job, "--prompt", "int ", "--max-tokens", 4).code == 0
    assert d.ctl("convert", job, d.state / "hf").code == 0 and verify(job).code == 0
    more = d.ctl("resume", job, "--set", "training.steps=35", "--follow")
    assert more.code == 0 and (folder / "step-00000035").exists(), more.err


if __name__ == "__main__":
    with Daemon(None, "--slots", 2) as World.daemon:
        World.text = headers_text(World.daemon.state / "text")
        World.job = World.daemon.submit("tiny", keys())
        World.daemon.wait_state(World.job, "COMPLETED")
        World.folder = World.daemon.state / f"jobs/{World.job}/checkpoint"
        try:
            tap(sound_ones, damage_is_named, hf_directories, nothing_to_verify, relative_dump_folder, relative_dump_folder_of_a_job)
        except SystemExit as end:
            if end.code:
                raise  # the daemon's log is shown
