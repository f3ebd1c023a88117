# SPDX-License-Identifier: Apache-2.0
"""Weights that transformers wrote, in and out: titan-worker convert reads them, generate computes the logits that
transformers does, and what convert writes back is bit for bit what came in. After training from them the export has our logits."""
import json
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
import interop  # noqa: E402
import titan  # noqa: E402
import torch_training  # noqa: E402

interop.use("torch", "safetensors.torch", "transformers")
import torch  # noqa: E402
import transformers  # noqa: E402
from safetensors.torch import load_file  # noqa: E402

WORKER = titan.BIN / "titan-worker"
PROMPT = "static int compare(const void *a, const void *b)"
folder = tempfile.TemporaryDirectory(prefix="titan-import-")
root = Path(folder.name)

COMMON = dict(vocab_size=256, hidden_size=64, num_hidden_layers=3, num_attention_heads=4, intermediate_size=96,
              max_position_embeddings=128)
LLAMA31 = dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
               original_max_position_embeddings=8192, rope_theta=500000.0)
LATENT = dict(num_key_value_heads=4, kv_lora_rank=24, qk_nope_head_dim=16, qk_rope_head_dim=8, v_head_dim=12,
              moe_intermediate_size=40, n_routed_experts=4, num_experts_per_tok=2, first_k_dense_replace=1, n_group=1,
              topk_group=1)
# The classes' own are beyond the vocabulary, or the embedding of one has no gradient.
NO_TOKENS = dict(pad_token_id=None, bos_token_id=None, eos_token_id=None)
MODELS = {
    "llama": ("Llama", dict(num_key_value_heads=2, rope_parameters=LLAMA31)),
    "llama-tied": ("Llama", dict(num_key_value_heads=1, tie_word_embeddings=True)),
    "qwen3": ("Qwen3", dict(num_key_value_heads=2, head_dim=24, tie_word_embeddings=True)),
    "qwen3-moe": ("Qwen3Moe", dict(num_key_value_heads=2, head_dim=32, num_experts=6, num_experts_per_tok=2,
                                   moe_intermediate_size=40, norm_topk_prob=True)),
    "qwen3-moe-dense-first": ("Qwen3Moe", dict(num_key_value_heads=2, head_dim=32, num_experts=4, num_experts_per_tok=3,
                                               moe_intermediate_size=40, norm_topk_prob=False, mlp_only_layers=[0])),
    "deepseek-v3": ("DeepseekV3", dict(LATENT, q_lora_rank=20, n_shared_experts=2, routed_scaling_factor=2.5)),
    "deepseek-v2": ("DeepseekV2", dict(LATENT, q_lora_rank=20, n_shared_experts=1, topk_method="group_limited_greedy", n_group=2,
                                       norm_topk_prob=False, routed_scaling_factor=4.0)),
    "llama-biases": ("Llama", dict(num_key_value_heads=2, head_dim=24, attention_bias=True, mlp_bias=True)),
    "llama-linear": ("Llama", dict(num_key_value_heads=2, rope_parameters=dict(rope_type="linear", factor=4.0, rope_theta=10000.0))),
    "llama-dynamic": ("Llama", dict(num_key_value_heads=2, max_position_embeddings=24, rope_parameters=dict(rope_type="dynamic", factor=2.0, rope_theta=10000.0))),
    "qwen3-biases": ("Qwen3", dict(num_key_value_heads=2, head_dim=24, attention_bias=True)),
    "mistral": ("Mistral", dict(num_key_value_heads=2, head_dim=24, sliding_window=None)),
    "mistral-window": ("Mistral", dict(num_key_value_heads=2, sliding_window=20)),
    "qwen2-window": ("Qwen2", dict(num_key_value_heads=2, num_hidden_layers=4, use_sliding_window=True, sliding_window=13,
                                   max_window_layers=0, layer_types=["sliding_attention", "full_attention"] * 2)),
    "phi3-window": ("Phi3", dict(num_key_value_heads=2, sliding_window=15, **NO_TOKENS)),
    "olmo2": ("Olmo2", dict(num_key_value_heads=2, **NO_TOKENS)),
    "gemma2": ("Gemma2", dict(num_key_value_heads=2, head_dim=24, query_pre_attn_scalar=36, sliding_window=11, num_hidden_layers=4,
                              attn_logit_softcapping=0.5, final_logit_softcapping=1.5, **NO_TOKENS)),
    "gemma2-no-caps": ("Gemma2", dict(num_key_value_heads=4, head_dim=16, query_pre_attn_scalar=16, attn_logit_softcapping=None,
                                      final_logit_softcapping=None, **NO_TOKENS)),
    "gemma3": ("Gemma3Text", dict(num_key_value_heads=2, head_dim=24, query_pre_attn_scalar=36, sliding_window=11, num_hidden_layers=7,
                                  rope_parameters={"full_attention": dict(rope_type="linear", factor=8.0, rope_theta=1e6),
                                                   "sliding_attention": dict(rope_type="default", rope_theta=1e4)}, **NO_TOKENS)),
    "gemma3-all": ("Gemma3Text", dict(num_key_value_heads=1, head_dim=20, query_pre_attn_scalar=20, sliding_window=9, attention_bias=True,
                                      layer_types=["full_attention"] * 3, tie_word_embeddings=False, **NO_TOKENS)),
    "mixtral": ("Mixtral", dict(num_key_value_heads=2, num_local_experts=5, num_experts_per_tok=2, sliding_window=None)),
    "qwen2": ("Qwen2", dict(num_key_value_heads=2, tie_word_embeddings=True)),
    "smollm3": ("SmolLM3", dict(num_key_value_heads=2, num_hidden_layers=5, **NO_TOKENS)),
    "smollm3-biases": ("SmolLM3", dict(num_key_value_heads=1, no_rope_layer_interval=2, attention_bias=True, mlp_bias=True,
                                       tie_word_embeddings=False, **NO_TOKENS)),
    "granite": ("Granite", dict(num_key_value_heads=2, embedding_multiplier=12.0, residual_multiplier=0.22, attention_multiplier=0.1,
                                logits_scaling=8.0, tie_word_embeddings=True)),
    "seed-oss": ("SeedOss", dict(num_key_value_heads=2, head_dim=24, mlp_bias=True, attention_out_bias=True, attention_dropout=0.0,
                                 residual_dropout=0.0, **NO_TOKENS)),
    "seed-oss-qkv": ("SeedOss", dict(num_key_value_heads=2, head_dim=24, attention_dropout=0.0, residual_dropout=0.0, **NO_TOKENS)),
    "phi3": ("Phi3", dict(num_key_value_heads=1, rope_parameters=dict(rope_type="default", rope_theta=10000.0, partial_rotary_factor=0.75),
                          **NO_TOKENS)),
    # the prompt, and sequences of training, are longer than the original length; then shorter; then longer, in another class
    "phi3-longrope": ("Phi3", dict(num_key_value_heads=2, original_max_position_embeddings=24, rope_parameters=dict(
        rope_type="longrope", rope_theta=10000.0, partial_rotary_factor=0.75, short_factor=[1.0, 1.1, 1.2, 1.3, 1.5, 2.0],
        long_factor=[1.05, 1.5, 2.75, 4.0, 9.1, 33.3]), **NO_TOKENS)),
    "phi3-longrope-short": ("Phi3", dict(num_key_value_heads=2, original_max_position_embeddings=96, rope_parameters=dict(
        rope_type="longrope", rope_theta=10000.0, short_factor=[1.0, 1.1, 1.2, 1.3, 1.5, 2.0, 2.1, 2.5], long_factor=[4.0] * 8),
        **NO_TOKENS)),
    "llama-longrope": ("Llama", dict(num_key_value_heads=2, head_dim=12, rope_parameters=dict(
        rope_type="longrope", rope_theta=10000.0, factor=4.0, attention_factor=1.3, original_max_position_embeddings=32,
        short_factor=[1.0, 1.1, 1.2, 1.3, 1.5, 2.0], long_factor=[1.05, 1.5, 2.75, 4.0, 9.1, 33.3]))),
    "gpt-oss": ("GptOss", dict(num_key_value_heads=2, head_dim=24, num_local_experts=5, num_experts_per_tok=2, num_hidden_layers=4,
                               sliding_window=11, swiglu_limit=0.5, **NO_TOKENS,
                               rope_parameters=dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=32, beta_fast=32.0,
                                                    beta_slow=1.0, truncate=False, rope_theta=150000.0))),
    "gpt-oss-plain": ("GptOss", dict(num_key_value_heads=1, head_dim=20, num_local_experts=4, num_experts_per_tok=4, attention_bias=False,
                                     layer_types=["full_attention"] * 3, swiglu_alpha=1.1, tie_word_embeddings=True, **NO_TOKENS,
                                     rope_parameters=dict(rope_type="default", rope_theta=10000.0))),
    "dots1": ("Dots1", dict(num_key_value_heads=2, n_routed_experts=8, num_experts_per_tok=2, moe_intermediate_size=40,
                            n_shared_experts=1, first_k_dense_replace=1, n_group=4, topk_group=2, head_dim=24, attention_bias=True,
                            routed_scaling_factor=1.5)),
    "glm4-moe": ("Glm4Moe", dict(num_key_value_heads=2, n_routed_experts=8, num_experts_per_tok=2, moe_intermediate_size=40,
                                 n_shared_experts=1, first_k_dense_replace=1, n_group=4, topk_group=2, head_dim=24, attention_bias=True,
                                 use_qk_norm=True, num_nextn_predict_layers=0, routed_scaling_factor=1.5)),
    "glm4-moe-plain": ("Glm4Moe", dict(num_key_value_heads=2, n_routed_experts=4, num_experts_per_tok=2, moe_intermediate_size=40,
                                       n_shared_experts=2, first_k_dense_replace=0, n_group=1, topk_group=1, head_dim=20,
                                       num_nextn_predict_layers=0, norm_topk_prob=False)),
    "deepseek-v3-halves": ("DeepseekV3", dict(LATENT, q_lora_rank=None, n_shared_experts=1, rope_interleave=False)),
}


def run(*args):
    done = titan.command(WORKER, *args)
    assert done.code == 0, f"titan-worker {' '.join(map(str, args))}: exit {done.code}: {done.err[-2000:]}"


def written(name, dtype=torch.float32, shard="50GB"):
    """The folder of a model with random weights, biases of experts and gains of norms included."""
    to = root / f"{name}-{dtype}-{shard}".replace("torch.", "")
    if not to.exists():
        torch.manual_seed(len(name))
        kind, config = MODELS[name]
        model = getattr(transformers, kind.removesuffix("Text") + "ForCausalLM")(getattr(transformers, kind + "Config")(**COMMON | config))
        with torch.no_grad():
            for key, x in [*model.named_parameters(), *model.named_buffers()]:
                if "norm" in key:
                    x.uniform_(0.5, 1.5).sub_(int(kind.startswith("Gemma")))  # stored less 1: what multiplies is as the other families'
                elif key.endswith("sinks"):
                    x.uniform_(-2, 2)
                elif key.endswith("bias"):
                    x.uniform_(-0.2, 0.2)
        model.to(dtype).save_pretrained(to, max_shard_size=shard)
    return to


def recipe_of(checkpoint):
    """The run file in a checkpoint."""
    (manifest,) = checkpoint.glob("step-*/manifest.json")
    return json.loads(manifest.read_text())["recipe"]


def our_logits(checkpoint, to):
    run("generate", checkpoint, "--device", "cpu", "--dtype", "f32", "--tokenizer", "bytes", "--prompt", PROMPT, "--max-tokens", "0", "--logits", to)
    return load_file(to)


def logits(path, tokens):
    model = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    with torch.no_grad():
        return model(tokens.long()[None]).logits[0]


def divergence(p, q):
    """Largest KL divergence of a position, in double."""
    p, q = torch.log_softmax(p.double(), -1), torch.log_softmax(q.double(), -1)
    return (p.exp() * (p - q)).sum(-1).max().item()


def rotation(path):
    """The rule of rotary frequencies, as transformers reads it."""
    return {key: x for key, x in transformers.AutoConfig.from_pretrained(path).rope_parameters.items() if key != "type"}


def tensors(path):
    return {name: x for f in sorted(path.glob("*.safetensors")) for name, x in load_file(f).items()}


def test_logits_and_back():
    """every family: the logits of transformers before and after, and the same bits back"""
    for name in MODELS:
        theirs = written(name)
        run("convert", theirs, root / f"{name}-titan")
        run("convert", root / f"{name}-titan", root / f"{name}-back", "--dtype", "f32")
        ours = our_logits(root / f"{name}-titan", root / f"{name}.safetensors")
        before, after = (logits(p, ours["tokens"]) for p in (theirs, root / f"{name}-back"))
        print(f"# {name}: divergence {divergence(before, ours['logits']):.1e} before, "
              f"{divergence(after, ours['logits']):.1e} after")
        assert divergence(before, ours["logits"]) <= 1e-10 and divergence(after, ours["logits"]) <= 1e-10
        if rotation(theirs).get("rope_type") == "longrope":
            assert rotation(theirs) == rotation(root / f"{name}-back"), name
        a, b = tensors(theirs), tensors(root / f"{name}-back")
        if name.endswith("-halves"):  # written back in pairs
            continue
        assert a.keys() == b.keys(), a.keys() ^ b.keys()
        for key, x in a.items():
            assert torch.equal(x, b[key]), key


def test_types_and_shards():
    """bf16 and fp16 weights, in one file and in several"""
    for name in ("llama", "qwen3-moe", "deepseek-v3"):
        for dtype, word in ((torch.bfloat16, "bf16"), (torch.float16, "f16")):
            theirs = written(name, dtype, "100KB")
            assert (theirs / "model.safetensors.index.json").exists()
            to = root / f"{name}-{word}"
            run("convert", theirs, to)
            run("convert", to, root / f"{name}-{word}-back", "--dtype", word)
            a, b = tensors(theirs), tensors(root / f"{name}-{word}-back")
            assert a.keys() == b.keys(), a.keys() ^ b.keys()
            for key, x in a.items():
                assert torch.equal(x.float(), b[key].float()), key


def test_after_training():
    """every family, trained from these weights on two ranks: the run's export and convert's have our logits in transformers"""
    text = titan.headers_text(root / "text")
    for name in MODELS:
        theirs = written(name)
        if not (root / f"{name}-titan").exists():
            run("convert", theirs, root / f"{name}-titan")
        (root / f"{name}.toml").write_text(recipe_of(root / f"{name}-titan"))
        keys = {"model.tokenizer": "bytes", "training.dataset_path": text, "training.mixed_precision_param": "float32", "training.seq_len": 64,
                "training.local_batch_size": 2, "training.global_batch_size": 4, "training.steps": 6, "optimizer.lr": 3e-3,
                "lr_scheduler.warmup_steps": 2, "checkpoint.enable": "true", "checkpoint.initial_load_path": theirs,
                "checkpoint.initial_load_in_hf": "true", "checkpoint.last_save_in_hf": "true", "metrics.log_freq": 1}
        to = root / f"{name}-run"
        run("run", root / f"{name}.toml", "-n", "2", "--dir", to, "--device", "cpu", *titan.overrides(keys))
        last = to / "checkpoint/step-00000006"
        ours = our_logits(last, root / f"{name}-trained.safetensors")
        moved = divergence(logits(theirs, ours["tokens"]), ours["logits"])
        off = divergence(logits(last / "hf", ours["tokens"]), ours["logits"])
        print(f"# {name}: divergence {moved:.1e} from the weights it began with, {off:.1e} from its export")
        assert moved > 1e-4 and off <= 1e-10
        run("convert", last, root / f"{name}-converted", "--dtype", "f32")
        a, b = tensors(last / "hf"), tensors(root / f"{name}-converted")
        assert a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)


def apart(a, b):
    """Largest relative differences of losses and gradient norms."""
    return [max(abs(x[i] - y[i]) / y[i] for x, y in zip(a, b)) for i in (0, 1)]


def nudged(path):
    """The same model, each weight moved by its last bit or not at all: what rounding alone does to a run."""
    to = path.with_name(path.name + "-nudged")
    model = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    torch.manual_seed(1)
    with torch.no_grad():
        for x in model.parameters():
            x.mul_(1 + torch.randint(-1, 2, x.shape) * 2**-23)
    model.save_pretrained(to)
    return to


def test_beside_pytorch():
    """every family, of dimensions that config.json has: twenty AdamW steps with PyTorch's losses and gradient norms"""
    tokens = root / "tokens.bin"
    ids, steps = torch_training.write_tokens(tokens, 3000), 20
    # AdamW divides gradients that are nothing but rounding by their own size: with the usual eps some runs leave each other.
    numbers = {**torch_training.KEYS, "optimizer.eps": 1e-6}
    (root / "hf.toml").write_text('[model]\nflavor = "hf"\n')
    for name in MODELS:
        theirs, to = written(name), root / f"{name}-beside"
        keys = {**numbers, "training.steps": steps, "training.dataset_path": tokens, "training.mixed_precision_param": "float32",
                "model.balance_rate": 0.0, "checkpoint.initial_load_path": theirs, "checkpoint.initial_load_in_hf": "true",
                "checkpoint.enable": "false", "metrics.log_freq": 1}
        run("run", root / "hf.toml", "-n", "2", "--dir", to, "--device", "cpu", *titan.overrides(keys))
        ours = [json.loads(line) for line in (to / "metrics.jsonl").read_text().splitlines()]
        told, _ = torch_training.train(theirs, ids, steps, numbers)
        loss, norm = apart([(m["loss"], m["grad_norm"]) for m in ours], told)
        print(f"# {name}: loss off by at most {loss:.1e}, gradient norm by {norm:.1e}, over {told[0][0]:.3f} to {told[-1][0]:.3f}")
        assert len(ours) == steps and loss <= 1e-5 and norm <= 1e-3, name
        if norm > 1e-5:  # a model that rounding moves: as much as it moves PyTorch's own run
            own_loss, own_norm = apart(torch_training.train(nudged(theirs), ids, steps, numbers)[0], told)
            print(f"# {name}: PyTorch from weights a bit away, loss by {own_loss:.1e}, gradient norm by {own_norm:.1e}")
            assert norm <= 8 * own_norm, name


def test_mxfp4():
    """gpt-oss as published: what comes back in bf16 is bit for bit what transformers makes of blocks and scales"""
    from safetensors.torch import save_file
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors
    theirs, to, back = written("gpt-oss", torch.bfloat16), root / "mxfp4", root / "mxfp4-back"
    to.mkdir()
    random, x, want = torch.Generator().manual_seed(7), load_file(theirs / "model.safetensors"), {}
    for name in [n for n in x if n.endswith("experts.gate_up_proj") or n.endswith("experts.down_proj")]:
        e, inner, outer = x.pop(name).shape
        blocks = torch.randint(0, 256, (e, outer, inner // 32, 16), generator=random, dtype=torch.uint8)
        scales = torch.randint(0, 250, (e, outer, inner // 32), generator=random, dtype=torch.uint8)
        want[name] = convert_moe_packed_tensors(blocks, scales, dtype=torch.bfloat16)
        x |= {name + "_blocks": blocks, name + "_scales": scales}
    save_file(x, to / "model.safetensors", {"format": "pt"})
    config = json.loads((theirs / "config.json").read_text())
    (to / "config.json").write_text(json.dumps(config | {"quantization_config": {"quant_method": "mxfp4"}}))
    run("convert", to, root / "mxfp4-titan")
    run("convert", root / "mxfp4-titan", back, "--dtype", "bf16")
    x, got = {n: t for n, t in x.items() if "proj_blocks" not in n and "proj_scales" not in n} | want, tensors(back)
    assert x.keys() == got.keys(), x.keys() ^ got.keys()
    for name, t in x.items():
        assert t.dtype == got[name].dtype and t.shape == got[name].shape and torch.equal(t, got[name]), name


titan.tap(test_logits_and_back, test_mxfp4, test_types_and_shards, test_after_training, test_beside_pytorch)
