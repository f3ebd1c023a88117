# SPDX-License-Identifier: Apache-2.0
"""The table of `make methods`: its recipes resolve, its verdicts can fail, and what was run is not run again."""
import contextlib
import io
import json
import math
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
import run_methods  # noqa: E402
import titan  # noqa: E402
from rows import BETTER, MODEL, ROWS, Row  # noqa: E402


def every_row_resolves():
    """each row has three rates, and a recipe that can be planned, with its bytes of state; a name that is none is refused"""
    state = {r.name: run_methods.state_bytes(r) for r in ROWS}
    assert state["AdamW"] == 8 and state["Lion"] == 4, state
    assert len(state) == len(ROWS) and all(len(r.rates) == 3 and sorted(r.rates) == list(r.rates) for r in ROWS), ROWS
    unknown = Row("none", (1,), {"optimizer.name": "nobody"})
    with contextlib.suppress(run_methods.Refused):
        raise AssertionError(run_methods.state_bytes(unknown))


def model_is_small():
    """the model has 139,584 parameters: AdamW's moments are 8 bytes of each"""
    done = titan.command(titan.BIN / "titanctl", "-o", "json", "plan", run_methods.RECIPE, "-n", 1,
                         *titan.overrides({**MODEL, "device.name": "cpu"}))
    assert f'"optimizer":{8 * 139584},' in done.out, done


def verdicts():
    """below the bound, or below twice the spread of the differences; a better one is better in the mean; a loss without end fails"""
    adamw = [2.20, 2.10, 2.00]
    for losses, bound, want in (([2.22, 2.12, 2.02], 0.03, True), ([2.24, 2.14, 2.04], 0.03, False),
                                ([2.24, 2.20, 2.04], 0.03, True),   # +0.06 in the mean, spread 0.035
                                ([2.24, 2.20, 2.04], BETTER, False), ([2.1, 2.1, 2.0], BETTER, True),
                                ([2.2, math.inf, 2.0], 0.03, False), ([9, 9, 9], None, None)):
        assert run_methods.judge(Row("x", (), {}, bound), losses, adamw)[2] is want, (losses, bound)


def rows_go_with_converters():
    """every optimizer trains with float8 and offloading, with MXFP8 and with SwitchBack: nothing of the model excludes one (docs/methods.md)"""
    together = ({"model.float8": "true", "training.enable_cpu_offload": "true"}, {"model.mxfp8": "true"}, {"model.switchback": "true"})
    with tempfile.TemporaryDirectory() as home:
        text = titan.headers_text(Path(home) / "text", 1 << 16)
        for row in (r for r in ROWS if not {"model.float8", "model.switchback", "parallelism.replicate_method"} & set(r.keys)):
            for number, keys in enumerate(together):
                few = {"training.steps": 3, "lr_scheduler.warmup_steps": 0, "training.local_batch_size": 2, "training.global_batch_size": 2,
                       "training.mixed_precision_param": "bfloat16", "training.dataset_path": text}
                folder = Path(home) / f"{row.name}-{number}"
                done = titan.command(titan.BIN / "titan-worker", "run", run_methods.RECIPE, "-n", 1, "--dir", folder, "--device", "cpu",
                                     *titan.overrides(run_methods.keys_of(row, row.rates[0] / 10, 42) | few | keys))
                assert done.code == 0, (row.name, keys, done.err[-500:])
                losses = [json.loads(line)["loss"] for line in (folder / "metrics.jsonl").read_text().splitlines()]
                assert len(losses) == 3 and all(0 < x < 8 for x in losses) and len(set(losses)) == 3, (row.name, keys, losses)


def goes_on():
    """results are kept by keys and programs: the same again is not run, another rate, seed or build is"""
    ran = []

    def train(keys):
        ran.append((keys["optimizer.lr"], keys["training.seed"]))
        return {"loss": 2.0, "seconds": 1.0}

    row = Row("x", (), {})
    with tempfile.TemporaryDirectory() as home, ThreadPoolExecutor(1) as pool, contextlib.redirect_stdout(io.StringIO()):
        for known, asked in (("a", [(row, 0.1, 1), (row, 0.2, 1)]), ("a", [(row, 0.1, 1), (row, 0.1, 2)]), ("b", [(row, 0.1, 1)])):
            got = run_methods.Runs(Path(home), train, known).all(pool, asked)
            assert [r["loss"] for r in got] == [2.0] * len(asked), got
    assert ran == [(0.1, 1), (0.2, 1), (0.1, 2), (0.1, 1)], ran


titan.tap(every_row_resolves, model_is_small, verdicts, rows_go_with_converters, goes_on)
