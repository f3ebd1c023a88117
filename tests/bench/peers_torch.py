#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""peers_torch.py SPEC: PyTorch trains a Llama on this CPU as one of Titan's runs does. SPEC, and the last line of stdout, are JSON (peers.py);
with "write", only random weights are written to that file: safetensors, Hugging Face's names.

Same weights, samples, AdamW with weights and moments in fp32, clipping and learning rate; bf16 is autocast, with several ranks FSDP2's
policy. Ranks (RANK, WORLD_SIZE) speak gloo. The thread settings of the spec are tried one after the other, the fastest is measured; with
"plain_trial" they are tried before it is compiled, and again compiled only where two come close."""
import ctypes
import json
import math
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
import torch_training as training  # noqa: E402

NEAR = 1.3  # one step each, on a shared machine


def linears(**sizes):
    return nn.ModuleDict({name: nn.Linear(*size, bias=False) for name, size in sizes.items()})


class Block(nn.Module):
    def __init__(self, s):
        super().__init__()
        square, self.heads = (s["dim"], s["dim"]), s["heads"]
        self.input_layernorm, self.post_attention_layernorm = (nn.RMSNorm(s["dim"], eps=1e-5) for _ in range(2))
        self.self_attn = linears(q_proj=square, k_proj=square, v_proj=square, o_proj=square)
        self.mlp = linears(gate_proj=(s["dim"], s["ffn"]), up_proj=(s["dim"], s["ffn"]), down_proj=(s["ffn"], s["dim"]))

    def forward(self, x, cos, sin):
        def turn(y):
            a, b = y.chunk(2, dim=-1)
            return (y * cos + torch.cat((-b, a), -1) * sin).to(y.dtype)
        y = self.input_layernorm(x)
        q, k, v = (self.self_attn[f"{p}_proj"](y).unflatten(-1, (self.heads, -1)).transpose(1, 2) for p in "qkv")
        x = x + self.self_attn["o_proj"](F.scaled_dot_product_attention(turn(q), turn(k), v, is_causal=True).transpose(1, 2).flatten(2))
        y = self.post_attention_layernorm(x)
        return x + self.mlp["down_proj"](F.silu(self.mlp["gate_proj"](y)) * self.mlp["up_proj"](y))


class Llama(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.model, self.lm_head = nn.Module(), nn.Linear(s["dim"], s["vocab"], bias=False)
        self.model.embed_tokens = nn.Embedding(s["vocab"], s["dim"])
        self.model.layers = nn.ModuleList(Block(s) for _ in range(s["layers"]))
        self.model.norm = nn.RMSNorm(s["dim"], eps=1e-5)
        d = s["dim"] // s["heads"]
        turns = torch.outer(torch.arange(s["seq"]), 500000.0 ** (-torch.arange(0, d, 2) / d)).repeat(1, 2)
        self.cos, self.sin = turns.cos(), turns.sin()
        torch.manual_seed(1)
        with torch.no_grad():
            for p in self.parameters():
                p.normal_(0, 0.02) if p.dim() > 1 else p.fill_(1)

    def forward(self, tokens):
        x = self.model.embed_tokens(tokens)
        for block in self.model.layers:
            x = block(x, self.cos, self.sin)
        return self.lm_head(self.model.norm(x))


def write(weights, path):
    at, head = 0, {}
    for name, p in weights.items():
        head[name] = {"dtype": "F32", "shape": list(p.shape), "data_offsets": [at, at := at + 4 * p.numel()]}
    text = json.dumps(head).encode()
    with open(path, "wb") as f:
        f.write(len(text).to_bytes(8, "little") + text)
        for p in weights.values():
            f.write((ctypes.c_char * (4 * p.numel())).from_address(p.data_ptr()))


def resident(key):
    """MiB: VmRSS now, VmHWM at most."""
    return next(int(line.split()[1]) / 1024 for line in open("/proc/self/status") if line.startswith(key))


class Trainer:
    def __init__(self, s):
        self.s, self.keys, self.world, self.rank = s, s["keys"], int(os.environ.get("WORLD_SIZE", 1)), int(os.environ.get("RANK", 0))
        self.model, self.losses, self.forward = Llama(s), [], self.plain
        self.ids = memoryview(Path(s["tokens"]).read_bytes()).cast("H").tolist()
        if self.world > 1:
            from torch.distributed.device_mesh import init_device_mesh
            from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
            dist.init_process_group("gloo")
            policy = MixedPrecisionPolicy(torch.bfloat16 if s["dtype"] == "bf16" else None, torch.float32)
            for part in [*self.model.model.layers, self.model]:
                fully_shard(part, mesh=init_device_mesh("cpu", (self.world,)), mp_policy=policy)
        self.params, k = list(self.model.parameters()), self.keys
        self.optimizer = torch.optim.AdamW(self.params, betas=(k["optimizer.beta1"], k["optimizer.beta2"]), eps=k["optimizer.eps"],
                                           weight_decay=k["optimizer.weight_decay"], fused=True)

    def use(self, threads, compiled):
        """Compiled whole where there is one rank; with FSDP2, which gathers weights between blocks, each block and the loss."""
        torch.set_num_threads(threads)
        if compiled:
            torch._dynamo.reset()
            if self.world == 1:
                self.forward = torch.compile(self.plain)
            for block in self.model.model.layers if self.world > 1 else ():
                block.compile()

    def plain(self, x, y):
        with torch.autocast("cpu", torch.bfloat16, enabled=self.s["dtype"] == "bf16" and self.world == 1):
            logits = self.model(x)
        return F.cross_entropy(logits.flatten(0, 1).float(), y.flatten())

    def step(self):
        """Seconds."""
        begin, number, local = time.monotonic(), len(self.losses) + 1, self.keys["training.local_batch_size"]
        rows = torch.tensor(training.batch_of(self.ids, number, self.keys)[self.rank * local:(self.rank + 1) * local])
        for group in self.optimizer.param_groups:
            group["lr"] = training.rate(number, self.keys["training.steps"], self.keys)
        loss = self.forward(rows[:, :-1].contiguous(), rows[:, 1:].contiguous())
        loss.backward()
        nn.utils.clip_grad_norm_(self.params, self.keys["training.max_norm"], foreach=True)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.losses.append(loss.item())
        return time.monotonic() - begin

    def sums(self, values):
        total = torch.tensor(values, dtype=torch.float64)
        if self.world > 1:
            dist.all_reduce(total)
        return total.tolist()

    def try_threads(self, settings, compiled):
        """Seconds of a step with each, but for those behind one that was slow; of a single one only the first step is made."""
        tried = {}
        for n in settings:
            self.use(n, compiled)
            self.step()  # compiles
            if len(settings) > 1:
                tried[n] = self.sums([self.step()])[0] / self.world
                if tried[n] > self.s["seconds"]:
                    break
        return tried

    def run(self):
        s, tokens = self.s, self.keys["training.global_batch_size"] * self.s["seq"]
        compiled, threads = s["mode"] == "compiled", s["threads"]
        tried = {}
        if compiled and s["plain_trial"] and len(threads) > 1:
            tried = self.try_threads(threads, False)
            threads = [n for n in threads if tried.get(n, math.inf) < NEAR * min(tried.values())]
        tried |= self.try_threads(threads, compiled)
        fastest = min(threads, key=lambda n: tried.get(n, math.inf))
        if fastest != torch.get_num_threads():
            self.use(fastest, compiled)
            self.step()
        Path("/proc/self/clear_refs").write_text("5")  # the high-water mark is of the steps, not of compiling
        begin, n, over = time.monotonic(), 0, 0
        while n < s["most"] and not over:  # rank 0 says when it is over
            self.step()
            n += 1
            (over,) = self.sums([self.rank == 0 and time.monotonic() - begin >= s["seconds"]])
        seconds = time.monotonic() - begin
        return {"tokens_per_second": n * tokens / seconds, "steps": n, "threads": torch.get_num_threads(), "mib": self.sums([resident("VmHWM")])[0],
                "imported_mib": s["imported"], "losses": [loss / self.world for loss in self.sums(self.losses)],
                "tried": {k: tokens / v for k, v in tried.items()}, "torch": torch.__version__}


def main():
    spec = json.loads(sys.argv[1])
    if "write" in spec:
        return write(Llama(spec).state_dict(), spec["write"])
    trainer = Trainer({**spec, "imported": resident("VmRSS")})
    told = trainer.run()
    if trainer.rank == 0:
        print(json.dumps(told), flush=True)
    if trainer.world > 1:
        dist.barrier()
    os._exit(0)  # without waiting for the compiler's processes


if __name__ == "__main__":
    main()
