#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""peer.py [--seconds S] [--ours METRICS] [--quick]: the same work by PyTorch on this GPU, as lines 'figure NAME VALUE'.

A bf16 product of 8192 x 8192 x 8192 on random numbers, causal attention of Llama 3 8B by cuDNN and by flash attention, one
block of the model forward and backward, and a step of four layers of Llama 3 8B with its embedding and head: plain and
compiled, with weights and moments in bf16 ("bf16") and in fp32 under autocast ("mixed", which is what ours keeps). MFU is by
TorchTitan's formula. METRICS: a metrics.jsonl of our own run of these four layers, to put beside them.

Ends with what it has after S seconds; a stage that fails says why and does not stop the next. Without a GPU it runs small
shapes on the CPU (--quick, for trying it out). Exit code 1: no figure."""
import argparse
import gc
import json
import os
import signal
import statistics
import sys
import time

import torch
import torch.nn.functional as F
from torch import nn

PEAK = 989e12  # dense bf16 of H100 and H200, as our own MFU has it
LAYERS, DIM, HEADS, KV, FFN, VOCAB, SEQ = 4, 4096, 32, 8, 14336, 128256, 8192
figures = {}
gqa = True  # whether attention takes fewer heads of keys and values as they are


def figure(name, value):
    figures[name] = value
    print(f"figure {name} {value:.6g}" if isinstance(value, float) else f"figure {name} {value}", flush=True)


def timed(work, repeats=10, warm=3, before=None):
    """Median milliseconds, by events where there is a GPU."""
    took = []
    for i in range(warm + repeats):
        if before:
            before()
        if torch.cuda.is_available():
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            work()
            end.record()
            end.synchronize()
            ms = begin.elapsed_time(end)
        else:
            since = time.perf_counter()
            work()
            ms = (time.perf_counter() - since) * 1e3
        if i >= warm:
            took.append(ms)
    return statistics.median(took)


# --- pieces -------------------------------------------------------------------------------------------------------


def product(device, n):
    a = torch.randn(n, n, device=device, dtype=torch.bfloat16)
    b = torch.randn(n, n, device=device, dtype=torch.bfloat16)
    ms = timed(lambda: a @ b.t(), repeats=20)
    figure("matmul_ms", ms)
    figure("matmul_gflops", 2 * n**3 / ms / 1e6)


def only(backend):
    """Attention by this one alone, until the next call."""
    torch.backends.cuda.enable_cudnn_sdp(backend in ("cudnn", None))
    torch.backends.cuda.enable_flash_sdp(backend in ("flash", None))
    torch.backends.cuda.enable_mem_efficient_sdp(backend is None)
    torch.backends.cuda.enable_math_sdp(backend is None)


def attention(q, k, v):
    if not gqa:
        k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in (k, v))
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=gqa)


def attend(device, backend, seq):
    """Forward and backward of one layer's attention; milliseconds of both."""
    def draw(heads):
        return torch.randn(1, seq, heads, DIM // HEADS, device=device, dtype=torch.bfloat16).transpose(1, 2).requires_grad_()

    q, k, v = draw(HEADS), draw(KV), draw(KV)
    flops = 4 * HEADS * (DIM // HEADS) * seq * seq / 2
    forward = timed(lambda: attention(q, k, v))
    out = attention(q, k, v)
    dy = torch.randn_like(out)
    backward = timed(lambda: torch.autograd.grad(out, (q, k, v), dy, retain_graph=True))
    for name, ms, times in (("", forward, 1), ("_dgrad", backward, 2.5)):
        figure(f"sdpa_{backend}{name}_ms", ms)
        figure(f"sdpa_{backend}{name}_gflops", times * flops / ms / 1e6)
    return forward + backward


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        d = DIM // HEADS
        self.attention_norm, self.ffn_norm = nn.RMSNorm(DIM, eps=1e-5), nn.RMSNorm(DIM, eps=1e-5)
        self.wq, self.wo = nn.Linear(DIM, DIM, bias=False), nn.Linear(DIM, DIM, bias=False)
        self.wk, self.wv = nn.Linear(DIM, KV * d, bias=False), nn.Linear(DIM, KV * d, bias=False)
        self.w1, self.w3, self.w2 = nn.Linear(DIM, FFN, bias=False), nn.Linear(DIM, FFN, bias=False), nn.Linear(FFN, DIM, bias=False)

    def forward(self, x, cos, sin):
        def heads(y):
            return y.view(*y.shape[:2], -1, DIM // HEADS).transpose(1, 2)

        def turn(y):
            a, b = y.chunk(2, dim=-1)
            return (torch.cat((a, b), -1) * cos + torch.cat((-b, a), -1) * sin).to(y.dtype)

        y = self.attention_norm(x)
        out = attention(turn(heads(self.wq(y))), turn(heads(self.wk(y))), heads(self.wv(y)))
        x = x + self.wo(out.transpose(1, 2).flatten(2))
        y = self.ffn_norm(x)
        return x + self.w2(F.silu(self.w1(y)) * self.w3(y))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, DIM)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm, self.head = nn.RMSNorm(DIM, eps=1e-5), nn.Linear(DIM, VOCAB, bias=False)

    def forward(self, tokens, cos, sin):
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x, cos, sin)
        return self.head(self.norm(x))


def angles(device, seq):
    d = DIM // HEADS
    turns = torch.outer(torch.arange(seq, device=device), 500000.0 ** (-torch.arange(0, d, 2, device=device) / d))
    return torch.cat((turns, turns), -1).cos(), torch.cat((turns, turns), -1).sin()


def loss_of(logits, targets):
    return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def make(kind, device, dtype):
    """On the device at once, with small weights: what they are does not matter here, that they are no zeros does."""
    with torch.device(device):
        made = kind().to(dtype)
    with torch.no_grad():
        for p in made.parameters():
            p.normal_(0, 0.02) if p.dim() > 1 else p.fill_(1)
    return made


def block_alone(device, seq, compiled):
    block = make(Block, device, torch.bfloat16)
    x = torch.randn(1, seq, DIM, device=device, dtype=torch.bfloat16, requires_grad=True)
    dy, cos, sin = torch.randn_like(x), *angles(device, seq)
    if compiled:
        block.compile()

    def work():
        block(x, cos, sin).backward(dy)

    def clear():
        x.grad = None
        block.zero_grad(set_to_none=True)

    since = time.perf_counter()
    work()
    if device == "cuda":
        torch.cuda.synchronize()
    if compiled:
        figure("compile_s", time.perf_counter() - since)
    figure(f"block_{'compiled' if compiled else 'eager'}_ms", timed(work, before=clear))


def step_of_model(device, seq, name, compiled, ours):
    """name: "bf16" or "mixed". Forward, loss, backward, norm, clip and update, as a step of ours."""
    mixed = name == "mixed"
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    model = make(Model, device, torch.float32 if mixed else torch.bfloat16)
    params = list(model.parameters())
    optimizer = torch.optim.AdamW(params, lr=1e-4, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1, fused=True)
    tokens = torch.randint(VOCAB, (1, seq + 1), device=device)
    cos, sin = angles(device, seq)
    loss_here = loss_of
    if compiled:
        for block in model.blocks:
            block.compile()
        loss_here = torch.compile(loss_of)

    def step():
        with torch.autocast(device, torch.bfloat16, enabled=mixed):
            logits = model(tokens[:, :-1], cos, sin)
        loss_here(logits, tokens[:, 1:]).backward()
        del logits
        nn.utils.clip_grad_norm_(params, 1.0, foreach=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    since = time.perf_counter()
    step()
    if device == "cuda":
        torch.cuda.synchronize()
    if compiled:
        figure(f"model_{name}_first_s", time.perf_counter() - since)
    what = f"model_{name}{'' if compiled else '_eager'}"
    ms = timed(step, repeats=6, warm=2)
    rate = seq / ms * 1e3
    # Six FLOPs for each weight but the embedding's, and both products of attention without regard to causality.
    weights = sum(p.numel() for p in params) - model.embedding.weight.numel()
    flops = 6 * weights + 12 * LAYERS * DIM * seq
    figure(f"{what}_ms", ms)
    figure(f"{what}_tokens_per_second", rate)
    figure(f"{what}_mfu", 100 * rate * flops / PEAK)
    if device == "cuda":
        figure(f"{what}_memory_gib", torch.cuda.max_memory_allocated() / 2**30)
    if ours and compiled:
        figure(f"ours_of_{name}", ours / rate)


# --- all of them --------------------------------------------------------------------------------------------------


def late(_signal, _frame):
    raise TimeoutError("no time left")


def median_rate(path):
    """Tokens/s of our own run behind its first step; None where there is none."""
    try:
        with open(path) as f:
            steps = [json.loads(line) for line in f if line.endswith("}\n")]
        return statistics.median(s["tokens_per_second"] for s in steps[1:])
    except (OSError, KeyError, TypeError, statistics.StatisticsError):
        return None


def main():
    global LAYERS, DIM, HEADS, KV, FFN, VOCAB, gqa
    words = argparse.ArgumentParser()
    words.add_argument("--seconds", type=float, default=85)
    words.add_argument("--ours")
    words.add_argument("--quick", action="store_true")
    args = words.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu" and not args.quick:
        sys.exit("PyTorch sees no GPU")
    seq, n = SEQ, 8192
    if args.quick:
        LAYERS, DIM, HEADS, KV, FFN, VOCAB, seq, n = 2, 64, 4, 2, 96, 512, 64, 128
    ours, until = median_rate(args.ours) if args.ours else None, time.monotonic() + args.seconds
    signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, args.seconds, 2)
    torch.manual_seed(1)
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    figure("torch", torch.__version__)
    backends = {}

    def run(name, work):
        if time.monotonic() >= until:
            print(f"# {name}: no time left", flush=True)
            return None
        try:
            return work()
        except Exception as e:  # its message, and the next stage
            print(f"# {name}: {type(e).__name__}: {str(e).strip().splitlines()[0][:200] if str(e).strip() else ''}", flush=True)
            return None

    run("product", lambda: product(device, n))
    for backend in ("cudnn", "flash"):
        if device == "cuda":
            only(backend)
        gqa = True
        took = run(f"attention by {backend}", lambda: attend(device, backend, seq))
        if took is None:
            gqa = False
            took = run(f"attention by {backend}, keys and values repeated", lambda: attend(device, backend, seq))
        if took is not None:
            backends[backend] = (took, gqa)
    best = min(backends, key=lambda name: backends[name][0], default=None)
    gqa = backends[best][1] if best else False
    if device == "cuda":
        only(best)
    figure("attention_by", best or "any")
    run("block", lambda: block_alone(device, seq, False))
    run("model, bf16", lambda: step_of_model(device, seq, "bf16", False, ours))
    run("block, compiled", lambda: block_alone(device, seq, True))
    run("model, bf16, compiled", lambda: step_of_model(device, seq, "bf16", True, ours))
    run("model, mixed, compiled", lambda: step_of_model(device, seq, "mixed", True, ours))
    signal.setitimer(signal.ITIMER_REAL, 0)
    sys.stdout.flush()
    os._exit(0 if len(figures) > 2 else 1)  # without waiting for the compiler's processes


if __name__ == "__main__":
    main()
