#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Expert biases are training state: a run that stops and goes on from its checkpoint, on the same mesh or on another
one, has the biases of a run that never stopped. In canonical mode it has every bit, for every number of ranks that share experts.
Experts in turn get equally many tokens, and their balance loss is 1; by score it is more, and falls where it is trained. Prints TAP."""
import json
import subprocess
import sys

import matrix

MESHES = {1: "moe", 4: "moe dps2 tp2 ep4"}
STEPS = 6


class Runs:
    def __init__(self):
        self.lab = matrix.Lab()
        self.n = 0

    def train(self, directory, words, steps):
        case = matrix.Case(words)
        # The learning rate is the same in all steps, however many are to come.
        sets = matrix.OPTIMIZERS["AdamW"] + (f"training.steps={steps}", "lr_scheduler.warmup_steps=0",
                                             "lr_scheduler.decay_ratio=0.0")
        done = subprocess.run(self.lab.command("run", case, sets=sets) + ["--dir", str(directory)],
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=matrix.deadline())
        assert done.returncode == 0, done.stdout[-600:]

    def tensors(self, *parts):
        """After parts: (words, up to which step), one run after the other in one folder."""
        self.n += 1
        directory = self.lab.work / f"stop-{self.n}"
        for words, steps in parts:
            self.train(directory, words, steps)
        return matrix.read_checkpoint(directory / "checkpoint" / f"step-{parts[-1][1]:08}")

    def biases(self, *parts):
        return {n: t for n, t in self.tensors(*parts).items() if n.endswith(".moe.expert_bias")}


def main():
    runs = Runs()
    faults = 0
    try:
        want = runs.biases(("moe", STEPS))
        assert len(want) == 3 and all((abs(t) > 0).any() for t in want.values()), "no biases, or they never moved"
        cases = [("stopped after 2 steps", (("moe", 2), ("moe", STEPS))),
                 ("on 4 ranks", ((MESHES[4], STEPS),)),
                 ("on 4 ranks, then on 1", ((MESHES[4], 3), ("moe", STEPS))),
                 ("on 1 rank, then on 4", (("moe", 3), (MESHES[4], STEPS)))]
        print(f"1..{len(cases) + 5}")
        for i, (name, parts) in enumerate(cases, 1):
            got = runs.biases(*parts)
            # Loads are whole numbers, so that biases are the same to the last bit as long as the choices are.
            same = got.keys() == want.keys() and all(got[n].tobytes() == want[n].tobytes() for n in want)
            print(f"{'ok' if same else 'not ok'} {i} - expert biases: {name}", flush=True)
            if not same:
                print("".join(f"# {n}\n# {want[n]}\n# {got.get(n)}\n" for n in want))
            faults += not same
        fixed = "moe canonical=true"
        want = runs.tensors((fixed, STEPS))
        got = runs.tensors((f"{fixed} dps4 ep4", 2), (f"{fixed} dps2 ep2", 4), (f"{fixed} dps4 ep2", STEPS))
        wrong = [n for n in want if got[n].tobytes() != want[n].tobytes()]
        print(f"{'not ok' if wrong else 'ok'} {len(cases) + 1} - canonical: shared by 4 ranks, by 2, by 2 of 4: the bits of one"
              f"{': not ' + ', '.join(wrong[:3]) if wrong else ''}", flush=True)
        faults += bool(wrong)
        fixed += " overflow=drop capacity=0.75"
        want = runs.tensors((fixed, STEPS))
        got = runs.tensors((f"{fixed} dps4 ep4", 2), (f"{fixed} dpr2", 4), (f"{fixed} pp2 dps2 ep2", STEPS))
        wrong = [n for n in want if got[n].tobytes() != want[n].tobytes()]
        lines = [json.loads(line) for line in open(runs.lab.work / f"stop-{runs.n}" / "metrics.jsonl")]
        dropped = [line["expert_tokens_dropped"] for line in lines]
        bad = bool(wrong) or len(dropped) < STEPS or not all(n > 0 for n in dropped)
        print(f"{'not ok' if bad else 'ok'} {len(cases) + 2} - canonical with rows dropped ({dropped}): on 4 ranks, 2, 4: the bits of one"
              f"{': not ' + ', '.join(wrong[:3]) if wrong else ''}", flush=True)
        faults += bad
        whole, cut = "moe forced=true", "moe dps2 tp2 ep2 etp=2 forced=true"
        want = runs.tensors((whole, STEPS))
        errors = [matrix.tensor_error(want, runs.tensors(*parts)) for parts in (((cut, 3), (whole, STEPS)), ((whole, 3), (cut, STEPS)))]
        bad = any(not error <= matrix.ADAMW_BOUND for error, _ in errors)
        print(f"{'not ok' if bad else 'ok'} {len(cases) + 3} - checkpoints of experts that are cut over tp, and for them: {errors}", flush=True)
        faults += bad
        directory = runs.lab.work / "in-turn"
        runs.train(directory, "moe dps2 ep2 forced=true even=0.1", 2)
        loads = [(line["expert_tokens_min"], line["expert_tokens_max"], line["balance_loss"])
                 for line in map(json.loads, open(directory / "metrics.jsonl"))]
        equal = len(loads) == 2 and all(least == most > 0 and abs(loss - 1) < 1e-6 for least, most, loss in loads)
        print(f"{'ok' if equal else 'not ok'} {len(cases) + 4} - experts in turn: {loads}", flush=True)
        faults += not equal
        last = {}
        for even in (1e-9, 1):
            directory = runs.lab.work / f"even-{even}"
            runs.train(directory, f"moe dps2 tp2 ep2 rate=0 even={even}", 20)
            losses = [line["balance_loss"] for line in map(json.loads, open(directory / "metrics.jsonl"))]
            last[even] = losses[-1]
        falls = 1 < last[1] < last[1e-9]
        print(f"{'ok' if falls else 'not ok'} {len(cases) + 5} - a balance loss that is trained is lower after 20 steps: {last}", flush=True)
        faults += not falls
    finally:
        runs.lab.close()
    return faults > 0


if __name__ == "__main__":
    sys.exit(main())
