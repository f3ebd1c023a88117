#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs with SwitchBack: they end where bfloat16's do, do not depend on the number of workers, on recomputation or on offloading,
and leave out the layers that a filter names. With inputs kept as codes, too, which take half the memory."""
import json
import subprocess
import sys

from float8_loss import BOUND, BUILD, SOURCE, end_of, metrics, run

sys.path.insert(0, str(SOURCE / "tests/support"))
from titan import slow, tap  # noqa: E402

TINY = SOURCE / "recipes/tiny.toml"
VARIANTS = ("global", "vectorwise", "global, kept", "vectorwise, kept")
EXACT = ("numerics.canonical=true", "training.steps=6")


def switchback(variant):
    name, kept = variant.split(",")[0], "true" if "kept" in variant else "false"
    return ("model.converters=switchback", f"switchback.variant={name}", f"switchback.mem_efficient={kept}")


def ends_where_bfloat16_does():
    """50 steps of a small model end within half a percent of bfloat16 in each variant, and not at the same bits"""
    sets = ("training.mixed_precision_param=bfloat16",)
    seen = [run(TINY, 1, *sets)[0]]
    for variant in VARIANTS:
        losses = run(TINY, 1, *sets, *switchback(variant))[0]
        assert abs(end_of(losses) / end_of(seen[0]) - 1) <= BOUND and losses not in seen, (variant, losses, seen)
        seen.append(losses)


def same_bits_on_any_world():
    """canonical: the same bits on 1, 2 and 3 data-parallel workers, in a pipeline, offloaded, and with activations computed again"""
    for variant in VARIANTS:
        one = run(TINY, 1, *EXACT, *switchback(variant))[0]
        for world, sets in ((2, ("training.enable_cpu_offload=true",)), (3, ("activation_checkpoint.mode=full",)),
                            (2, ("activation_checkpoint.mode=selective", "activation_checkpoint.selective_ac_option=op")),
                            (1, ("device.threads=2",))):
            other = run(TINY, world, *EXACT, *switchback(variant), *sets)[0]
            assert other == one, (variant, world, sets, one, other)
    for variant in ("global", "global, kept"):
        stages = (*EXACT, "parallelism.pipeline_parallel_degree=2", *switchback(variant))
        assert run(TINY, 4, *stages)[0] == run(TINY, 2, *stages)[0], variant


@slow
def close_on_meshes():
    """cut by tensor and context parallelism scales are those of a rank's part: losses stay within half a percent"""
    for variant in VARIANTS:
        one = run(TINY, 1, *EXACT, *switchback(variant))[0]
        for sets in (("parallelism.tensor_parallel_degree=2", "parallelism.enable_async_tensor_parallel=true"),
                     ("parallelism.context_parallel_degree=2",)):
            other = run(TINY, 2, *EXACT, *switchback(variant), *sets)[0]
            assert all(abs(a / b - 1) <= BOUND for a, b in zip(one, other)), (variant, sets, one, other)


def left_out():
    """layers that the filter names compute without it: all of them give the plain run's bits; one gives others"""
    plain = run(TINY, 1, *EXACT)[0]
    seen = [plain]
    for words, same in (("layers", True), ("attention,w1,w2", False), ("layers.0.", False)):
        got = run(TINY, 1, *EXACT, *switchback("global"), f"switchback.filter_fqns={words}")[0]
        assert got == plain if same else got not in seen, words
        seen.append(got)


DEBUG = SOURCE / "recipes/debug.toml"
TOKENS, WIDTH, HIDDEN = 1024, 256, 768  # of a microbatch; the debug model's


def planned(*sets):
    """Memory of the one rank of the debug model, in bytes."""
    words = [BUILD / "bin/titanctl", "-o", "json", "plan", DEBUG, "--device", "cpu", "--costs", "none"]
    for s in sets:
        words += ["--set", s]
    return json.loads(subprocess.run([str(w) for w in words], check=True, stdout=subprocess.PIPE).stdout)["ranks"][0]["memory"]


def half_the_bytes():
    """kept as codes, three inputs of each layer take a byte an element and a scale a token instead of two bytes: planned, and measured"""
    sets = (f"training.seq_len={TOKENS // 2}", "training.local_batch_size=2", "training.mixed_precision_param=bfloat16", "training.steps=3",
            "checkpoint.enable=false", "activation_checkpoint.mode=none")
    plans = {(v, n): planned(*sets, *switchback(v), f"model.n_layers={n}") for v in ("global", "global, kept") for n in (4, 8)}
    layers = [plans[v, 8]["activations"] - plans[v, 4]["activations"] for v in ("global", "global, kept")]
    assert layers[0] - layers[1] == 4 * TOKENS * ((2 * WIDTH + HIDDEN) - 3 * 4), (layers, plans)
    used = [metrics(DEBUG, 1, *sets, *switchback(v), "model.n_layers=8")[0][-1]["memory_bytes"] for v in ("global", "global, kept")]
    less = plans["global", 8]["predicted"] - plans["global, kept", 8]["predicted"]
    assert less > 0 and abs((used[0] - used[1]) / less - 1) < 0.2, (used, less)


def one_converter():
    """beside float8 or MXFP8 it is refused in one line"""
    for other in ("float8", "mx"):
        try:
            run(TINY, 1, *EXACT, f"model.converters={other},switchback")
        except RuntimeError as e:
            assert "a linear layer is in one of them" in str(e), e
        else:
            raise AssertionError(other)


tap(ends_where_bfloat16_does, same_bits_on_any_world, close_on_meshes, left_out, half_the_bytes, one_converter)
