#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs in float8: they end where bfloat16's do, do not depend on the number of workers, and TorchTitan's file with the
converter plans and trains. `make float8` has the longer comparison."""
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from float8_loss import BOUND, BUILD, RECIPES, SOURCE, compare, end_of, float8, run

sys.path.insert(0, str(SOURCE / "tests/support"))
from titan import slow, tap  # noqa: E402

TINY = SOURCE / "recipes/tiny.toml"
TITAN_405B = SOURCE / "tests/interop/torchtitan/llama3/llama3_405b.toml"
EXACT = ("numerics.canonical=true", "training.steps=6")


def ends_where_bfloat16_does():
    """50 steps of a small model end within half a percent of bfloat16 in each recipe and in MXFP8, and not at the same bits"""
    runs = list(compare(TINY))
    plain = runs[0][2]
    assert plain[-1] < 0.8 * plain[0], plain
    for name, away, losses in runs[1:]:
        assert abs(away) <= BOUND and losses != plain, (name, away, losses)
    assert len({tuple(losses) for _, _, losses in runs}) == 1 + len(RECIPES), "two recipes are the same"


def same_bits_on_any_world():
    """canonical: the same bits on 1, 2 and 3 data-parallel workers, also in a pipeline, and when activations are computed again"""
    for name in ("tensorwise", "rowwise", "scalify", "mxfp8"):
        one = run(TINY, 1, *EXACT, *float8(name))[0]
        for world, sets in ((2, ()), (3, ("activation_checkpoint.mode=full",)),
                            (2, ("activation_checkpoint.mode=selective", "activation_checkpoint.selective_ac_option=op"))):
            other = run(TINY, world, *EXACT, *float8(name), *sets)[0]
            assert other == one, (name, world, sets, one, other)
    stages = (*EXACT, "parallelism.pipeline_parallel_degree=2", *float8("tensorwise"))
    assert run(TINY, 4, *stages)[0] == run(TINY, 2, *stages)[0]


def static_scales():
    """static scales follow from the model: the same bits in a pipeline as without one, and of gathered codes; cut by tensor
    and context parallelism only sums change, by less than a two-thousandth"""
    static = (*EXACT, *float8("scalify"))
    one = run(TINY, 1, *static)[0]
    assert run(TINY, 2, *static, "parallelism.pipeline_parallel_degree=2")[0] == one
    assert run(TINY, 2, *static, "float8.enable_fsdp_float8_all_gather=true")[0] == one
    for axis in ("tensor", "context"):
        other = run(TINY, 2, *static, f"parallelism.{axis}_parallel_degree=2")[0]
        assert all(abs(a / b - 1) <= 5e-4 for a, b in zip(one, other)), (axis, one, other)


def held_scales():
    """scales of weights that are held: for one step the bits and the program of no key; for four the same bits on any world, of
    gathered codes and with pipelines, by other scales than new ones; without scalify it is refused"""
    sets = ("numerics.canonical=true", "training.steps=8", "optimizer.lr=0.03", *float8("scalify"))
    four = (*sets, "float8.scalify_refresh=4")
    anew, said = run(TINY, 1, *sets)
    again = run(TINY, 1, *sets, "float8.scalify_refresh=1")
    program = [re.search(r" program=(\w+)", text)[1] for text in (said, again[1])]
    assert again[0] == anew and program[0] == program[1], program
    held = run(TINY, 1, *four)[0]
    assert held != anew and abs(end_of(held) / end_of(anew) - 1) <= 0.05, (held, anew)
    for world, more in ((2, ()), (3, ("float8.enable_fsdp_float8_all_gather=true",))):
        assert run(TINY, world, *four, *more)[0] == held, (world, more)
    stages = (*four, "parallelism.pipeline_parallel_degree=2")
    assert run(TINY, 4, *stages)[0] == run(TINY, 2, *stages)[0]
    try:
        run(TINY, 1, *float8("tensorwise"), "float8.scalify_refresh=2")
    except RuntimeError as e:
        assert "float8.scalify_refresh = 2 does not go with" in str(e), e
    else:
        raise AssertionError("refused")


@slow
def gathered_as_codes():
    """weights that FSDP gathers as codes give the bits of weights that become codes where they are used: canonical on any
    world, else on the same one; in bfloat16 and float32, also of layers that are left out"""
    codes, few = "float8.enable_fsdp_float8_all_gather=true", ("training.steps=3", *float8("tensorwise"))
    one = run(TINY, 1, "numerics.canonical=true", *few)[0]
    for world, sets in ((2, ()), (3, ("parallelism.fsdp_reshard_after_forward=always", "activation_checkpoint.mode=full")),
                        (4, ("parallelism.data_parallel_replicate_degree=2", "compile.fuse=false"))):
        got = run(TINY, world, "numerics.canonical=true", *few, codes, *sets)[0]
        assert got == one, (world, sets, one, got)
    for sets in (("training.mixed_precision_param=bfloat16",), ("parallelism.context_parallel_degree=2",),
                 ("training.mixed_precision_param=float32", "float8.filter_fqns=attention.wk,w2", "parallelism.fsdp_bucketing=greedy",
                  "parallelism.fsdp_reorder=true")):
        plain, got = run(TINY, 2, *few, *sets)[0], run(TINY, 2, *few, *sets, codes)[0]
        assert got == plain, (sets, plain, got)
    sets = (*few, "parallelism.tensor_parallel_degree=2")
    assert run(TINY, 4, *sets)[0] == run(TINY, 4, *sets, codes)[0]
    try:
        run(TINY, 1, *float8("rowwise"), codes)
    except RuntimeError as e:
        assert 'does not go with float8.recipe_name = "rowwise"' in str(e), e
    else:
        raise AssertionError("rowwise scales and gathered codes")


def left_out():
    """layers that the filter names compute without it: all of them give bfloat16's bits; one gives others"""
    plain = run(TINY, 1, *EXACT)[0]
    seen = [plain]
    for words, same in (("layers", True), ("attention,feed_forward", True), ("attention,w1,w2", False), ("layers.0.", False)):
        got = run(TINY, 1, *EXACT, *float8("tensorwise"), f"float8.filter_fqns={words}")[0]
        assert got == plain if same else got not in seen, words
        seen.append(got)


@slow
def close_on_meshes():
    """cut by tensor and context parallelism scales are those of a rank's part: losses stay within half a percent"""
    for name in ("rowwise", "mxfp8"):
        one = run(TINY, 1, *EXACT, *float8(name))[0]
        for sets in (("parallelism.tensor_parallel_degree=2", "parallelism.enable_async_tensor_parallel=true"),
                     ("parallelism.context_parallel_degree=2",)):
            other = run(TINY, 2, *EXACT, *float8(name), *sets)[0]
            assert all(abs(a / b - 1) <= BOUND for a, b in zip(one, other)), (name, sets, one, other)


def mxfp8():
    """TorchTitan's file with the converter mx and its keys trains; a filter that names all layers gives bfloat16's bits, one
    that names some others; float8's filter none; beside float8 it is refused, and so is a plan for Hopper"""
    plain, all_of_it = run(TINY, 1, *EXACT)[0], run(TINY, 1, *EXACT, *float8("mxfp8"))[0]
    with tempfile.TemporaryDirectory(prefix="titan-float8-") as folder:
        theirs = Path(folder) / "mx.toml"
        theirs.write_text(TINY.read_text().replace("[model]\n", '[model]\nconverters = ["quantize.linear.mx"]\n') +
                          '\n[quantize.linear.mx]\nmxfp8_dim1_cast_kernel_choice = "triton"\nrecipe_name = "mxfp8_cublas"\n')
        assert run(theirs, 1, *EXACT)[0] == all_of_it != plain
        for words, same in (("layers", True), ("w1,w2", False)):
            got = run(theirs, 1, *EXACT, f"quantize.linear.mx.filter_fqns={words}")[0]
            assert got == plain if same else got not in (plain, all_of_it), words
        assert run(theirs, 1, *EXACT, "float8.filter_fqns=layers")[0] == all_of_it
        for device in ("h200", "b200"):
            done = subprocess.run([BUILD / "bin/titan-worker", "plan", theirs, "--device", device], capture_output=True, text=True,
                                  cwd=folder)
            refused = "they need compute capability 10.0 (Blackwell)" in done.stderr
            assert refused == (done.returncode != 0) == (device == "h200"), done
    try:
        run(TINY, 1, *EXACT, "model.converters=float8,mx")
    except RuntimeError as e:
        assert "a linear layer is in one of them" in str(e), e
    else:
        raise AssertionError("both")


def torchtitan():
    """TorchTitan's 405B file, which has the converter and a filter: planned as it is, and trained with small dimensions"""
    with tempfile.TemporaryDirectory(prefix="titan-float8-") as folder:
        plan = subprocess.run([BUILD / "bin/titan-worker", "plan", TITAN_405B, "--world", "512", "--print", "--set", "model.n_layers=4"],
                              stdout=subprocess.PIPE, text=True, check=True, cwd=folder).stdout
    products = [line for line in plan.splitlines() if "MATMUL" in line.upper()]
    converted = [line for line in products if " f8" in line]
    assert converted and all("a_lines" not in line for line in converted), products[:3]
    assert any("logits" in line for line in products) and not any("logits" in line for line in converted)
    sets = ["model.n_layers=2", "model.dim=64", "model.n_heads=4", "model.n_kv_heads=2", "model.ffn_hidden=128",
            "model.vocab_size=256", "model.tokenizer=bytes", "training.dataset=text", "training.seq_len=64",
            "training.steps=30", "optimizer.lr=3e-3", "lr_scheduler.warmup_steps=2", "parallelism.tensor_parallel_degree=2",
            "training.global_batch_size=4", "checkpoint.last_save_model_only=false"]
    losses, said = run(TITAN_405B, 2, *sets)
    assert len(losses) == 30 and end_of(losses) < 0.9 * losses[0], losses
    assert "precompute_float8_dynamic_scale_for_fsdp" in said and "enable_fsdp" not in said and "not in float8" not in said, said


tap(ends_where_bfloat16_does, same_bits_on_any_world, static_scales, held_scales, gathered_as_codes, left_out, close_on_meshes, mxfp8, torchtitan)
