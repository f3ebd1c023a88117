#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""An evaluation on any mesh is one rank's to 1e-6: the same samples each time, whatever the number of workers, all of them
once where validation.steps is -1. And it is the loss that training has on the same samples, and that
of a checkpoint which is evaluated alone. Prints TAP."""
import json
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import matrix

# One rank first, and what the others are compared with. The data makes no whole number of steps on any of them.
DENSE = ["dps1", "dps3", "dpr2 dps2", "tp2", "pp2", "cp2", "cp2 rotate=ring masked=true", "pp4 layers=8 schedule=DualPipeV",
         "pp2 dps2 tp2 schedule=Interleaved1F1B async=true", "canonical=true dps3", "dps2 offload=true reshard=always"]
MOE = ["moe", "moe dps2 ep2", "moe pp2 dps2 tp2 ep4 schedule=ZBVZeroBubble"]
DEEPSEEK = ["deepseek", "deepseek dps2 tp2 ep2"]
TIED = ["qwen", "qwen pp3 dps2"]
# Checkpoints that are evaluated alone, and whether that is the run's loss to the bit: one rank has the same program, and data-parallel
# ranks the same losses of each microbatch.
ALONE = [("dps1", True), ("canonical=true dps3", True), ("pp2 dps2 tp2 schedule=Interleaved1F1B async=true", False), ("moe dps2 ep2", False),
         ("deepseek", True)]
BOUND = 1e-6
CTL = str(matrix.BUILD / "bin/titanctl")
SETS = ("training.steps=3", "checkpoint.enable=false", "validation.enable=true", "validation.freq=3", "validation.seq_len=48")
FIELDS = ["validation_loss", "validation_perplexity", "validation_bits_per_byte"]


class Runs:
    def __init__(self):
        self.lab = matrix.Lab()
        # Windows that are no multiple of anything: 11 sequences of 48 tokens.
        (self.lab.work / "validation.txt").write_bytes(bytes(32 + i * i % 95 for i in range(11 * 48 + 20)))
        (self.lab.work / "small.txt").write_bytes(bytes(32 + i * 7 % 89 for i in range(16 * 32)))

    def train(self, words, *sets):
        case = matrix.Case(words)
        directory = self.lab.new_folder()
        rows = 1 if case.pp > 1 else max(3 // (case.dpr * case.dps), 1)
        command = self.lab.command("run", case, sets=SETS + (
            f"validation.dataset_path={self.lab.work / 'validation.txt'}", f"validation.local_batch_size={rows}", *sets))
        done = subprocess.run(command + ["--dir", str(directory)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              text=True, timeout=matrix.deadline())
        assert done.returncode == 0, done.stdout[-600:] + "\n" + matrix.shell(command)
        lines = [json.loads(line) for line in open(directory / "metrics.jsonl")]
        shutil.rmtree(directory)
        return lines

    def alone(self, words):
        """(of the run after its last step, of the checkpoint of that step): loss, perplexity, bits per byte."""
        case, directory = matrix.Case(words), self.lab.new_folder()
        rows = 1 if case.pp > 1 else max(3 // (case.dpr * case.dps), 1)
        sets = ("training.steps=3", "checkpoint.enable=true", "validation.enable=true", "validation.freq=3", "validation.seq_len=48",
                f"validation.dataset_path={self.lab.work / 'validation.txt'}", f"validation.local_batch_size={rows}")
        command = self.lab.command("run", case, sets=sets)
        for argv in command + ["--dir", str(directory)], [CTL, "-o", "json", "eval", f"{directory}@3"]:
            done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=matrix.deadline())
            assert done.returncode == 0, done.stdout[-600:] + "\n" + matrix.shell(argv)
        last = [json.loads(line) for line in open(directory / "metrics.jsonl")][-1]
        shutil.rmtree(directory)
        alone = json.loads(done.stdout)
        assert last["validation_step"] == alone["step"] == 3 and last["validation_tokens"] == alone["tokens"] == 11 * 48, (last, alone)
        return [last[f] for f in FIELDS], [alone[f.removeprefix("validation_")] for f in FIELDS]

    def evaluations(self, words, *sets):
        lines = [line for line in self.train(words, *sets) if "validation_step" in line]
        assert [line["validation_step"] for line in lines] == [line["step"] for line in lines] == [1, 3], lines
        assert all(line["validation_tokens"] == 11 * 48 for line in lines), lines
        return [[line[f] for f in FIELDS] for line in lines]


def error(a, b):
    return max(abs(x / y - 1) for one, other in zip(a, b) for x, y in zip(one, other))


def mesh_case(runs, words, reference):
    worst = error(runs.evaluations(words), reference)
    return worst <= BOUND, f"{words}: off by {worst:.1e}"


def same_case(runs):
    """Without learning, every evaluation is the first one, to the bit."""
    first, second = runs.evaluations("dps2", "optimizer.lr=0")
    return first == second, f"the same samples each time: {first[0]} {second[0]}"


def training_case(runs):
    """Two steps of training are all of the data once."""
    data = runs.lab.work / "small.txt"
    lines = runs.train("tp2", "optimizer.lr=0", f"training.dataset_path={data}", f"validation.dataset_path={data}",
                       "training.steps=2", "validation.freq=2", "validation.seq_len=32")
    mean, got = sum(line["loss"] for line in lines) / 2, lines[-1]["validation_loss"]
    return abs(got / mean - 1) <= BOUND, f"what training has on the same samples: {mean} {got}"


def steps_case(runs):
    """Two steps of three samples, on one rank and on three."""
    def tokens(words):
        return [(line["validation_tokens"], line["validation_loss"])
                for line in runs.train(words, "validation.steps=2") if "validation_step" in line]
    one, three = tokens("dps1"), tokens("dps3")
    same = all(n == m == 2 * 3 * 48 and abs(a / b - 1) <= BOUND for (n, a), (m, b) in zip(one, three))
    return same and len(one) == 2, f"validation.steps=2: {one} {three}"


def alone_case(runs, words, exact):
    run, alone = runs.alone(words)
    off = error([run], [alone])
    return off == 0 if exact else off <= BOUND, f"titanctl eval of {words}'s checkpoint: off by {off:.1e}, {run[0]} {alone[0]}"


def main():
    runs = Runs()
    faults = 0
    try:
        with ThreadPoolExecutor(2) as pool:
            jobs = [pool.submit(same_case, runs), pool.submit(training_case, runs), pool.submit(steps_case, runs)]
            jobs += [pool.submit(alone_case, runs, words, exact) for words, exact in ALONE]
            for family in DENSE, MOE, DEEPSEEK, TIED:
                references = {}
                for words in family[1:]:
                    key = matrix.Case(words).reference()
                    if key not in references:
                        references[key] = runs.evaluations(key)
                    jobs.append(pool.submit(mesh_case, runs, words, references[key]))
            print(f"1..{len(jobs)}")
            for i, job in enumerate(jobs, 1):
                ok, what = job.result()
                print(f"{'ok' if ok else 'not ok'} {i} - {what}", flush=True)
                faults += not ok
    finally:
        runs.lab.close()
    return faults > 0


if __name__ == "__main__":
    sys.exit(main())
