# SPDX-License-Identifier: Apache-2.0
"""An exported checkpoint in the hands of the Python packages it is made for: safetensors opens its tensors, tokenizers
its tokenizer, transformers computes the logits that `titan-worker generate` does."""
import json
import struct
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
import interop  # noqa: E402
import titan  # noqa: E402

interop.use()

WORKER = titan.BIN / "titan-worker"
PROMPT = "static int compare(const void *a, const void *b)"
folder = tempfile.TemporaryDirectory(prefix="titan-export-")
root = Path(folder.name)


def run(*args):
    done = titan.command(WORKER, *args)
    assert done.code == 0, f"titan-worker {' '.join(map(str, args))}: exit {done.code}: {done.err[-2000:]}"
    return done.out


MODELS = {"llama3": "LlamaForCausalLM", "qwen3": "Qwen3ForCausalLM"}  # the second with tied embeddings


def exported(model="llama3"):
    """Train a little, export in both types, write logits; once."""
    to = root / model
    if not (to / "f32").exists():
        text = titan.headers_text(root / f"{model}-text")
        sets = [f"model.name={model}", f"training.dataset_path={text}", "training.steps=20"]
        if model == "qwen3":  # embedding and head on two ranks
            sets.append("parallelism.pipeline_parallel_degree=2")
        run("run", titan.SOURCE / "recipes/tiny.toml", "-n", "2", "--dir", to / "run", "--device", "cpu",
            *[word for s in sets for word in ("--set", s)])
        checkpoints = to / "run" / "checkpoint"
        run("generate", checkpoints, "--device", "cpu", "--dtype", "f32", "--prompt", PROMPT, "--max-tokens", "0",
            "--logits", to / "logits.safetensors")
        run("convert", checkpoints, to / "bf16")
        run("convert", checkpoints, to / "f32", "--dtype", "f32")
    return to


def header(path):
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    return json.loads(data[8:8 + length]), len(data) - 8 - length


def expected_shapes(config):
    c, f, v = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    q, kv = (config[k] * config["head_dim"] for k in ("num_attention_heads", "num_key_value_heads"))
    shapes = {"model.embed_tokens.weight": [v, c], "model.norm.weight": [c]}
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = [v, c]
    layer = {"input_layernorm": [c], "post_attention_layernorm": [c], "self_attn.q_proj": [q, c],
             "self_attn.k_proj": [kv, c], "self_attn.v_proj": [kv, c], "self_attn.o_proj": [c, q],
             "mlp.gate_proj": [f, c], "mlp.up_proj": [f, c], "mlp.down_proj": [c, f]}
    if config["model_type"] == "qwen3":
        layer.update({"self_attn.q_norm": [config["head_dim"]], "self_attn.k_norm": [config["head_dim"]]})
    for i in range(config["num_hidden_layers"]):
        shapes.update({f"model.layers.{i}.{name}.weight": shape for name, shape in layer.items()})
    return shapes


def test_layout():
    """names, shapes and ranges of an export are what the format and the model's class ask for"""
    for model, name in MODELS.items():
        for dtype, size in (("bf16", 2), ("f32", 4)):
            config = json.loads((exported(model) / dtype / "config.json").read_text())
            assert config["architectures"] == [name]
            tensors, length = header(root / model / dtype / "model.safetensors")
            assert tensors.pop("__metadata__") == {"format": "pt"}
            assert {name: t["shape"] for name, t in tensors.items()} == expected_shapes(config)
            at = 0
            for t in sorted(tensors.values(), key=lambda t: t["data_offsets"]):
                elements = 1
                for d in t["shape"]:
                    elements *= d
                assert t["data_offsets"] == [at, at + elements * size] and t["dtype"] == dtype.upper(), t
                at += elements * size
            assert at == length


def test_safetensors():
    """the safetensors package opens the tensors, and bf16 ones are the rounded fp32 ones"""
    why = interop.missing("torch", "safetensors.torch")
    if why:
        return why
    import torch
    from safetensors.torch import load_file
    exact, rounded = (load_file(exported() / d / "model.safetensors") for d in ("f32", "bf16"))
    assert exact.keys() == rounded.keys()
    for name, x in exact.items():
        assert torch.equal(x.bfloat16(), rounded[name]), name


def arrays(path):
    """The tensors of a file without bf16 ones, as arrays."""
    import numpy
    kinds = {"F32": numpy.float32, "I32": numpy.int32}
    data = path.read_bytes()
    tensors, length = header(path)
    tensors.pop("__metadata__", None)
    base = len(data) - length
    return {name: numpy.frombuffer(data[base + t["data_offsets"][0]:base + t["data_offsets"][1]],
                                   kinds[t["dtype"]]).reshape(t["shape"]) for name, t in tensors.items()}


def plain_logits(config, w, tokens):
    """Llama and Qwen 3 as transformers defines them: halves of a head are rotated against each other, Qwen 3 norms
    each head of queries and keys before that; no scaling of frequencies."""
    import numpy as np
    assert config["rope_scaling"] is None
    h, kv, d = (config[k] for k in ("num_attention_heads", "num_key_value_heads", "head_dim"))
    n = len(tokens)
    angle = np.arange(n)[:, None] * config["rope_theta"] ** (-np.arange(0, d, 2) / d)
    cos, sin = (np.concatenate([f(angle), f(angle)], 1)[:, None] for f in (np.cos, np.sin))

    def norm(x, gain):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + config["rms_norm_eps"]) * gain

    def rotated(x):
        return x * cos + np.concatenate([-x[..., d // 2:], x[..., :d // 2]], -1) * sin

    x = w["model.embed_tokens.weight"].astype(np.float64)[tokens]
    for i in range(config["num_hidden_layers"]):
        p = {k.split(f"layers.{i}.", 1)[1].removesuffix(".weight"): v.astype(np.float64)
             for k, v in w.items() if f"layers.{i}." in k}
        y = norm(x, p["input_layernorm"])
        q, k, v = ((y @ p[f"self_attn.{m}_proj"].T).reshape(n, -1, d) for m in "qkv")
        if config["model_type"] == "qwen3":
            q, k = norm(q, p["self_attn.q_norm"]), norm(k, p["self_attn.k_norm"])
        q, k, v = rotated(q), rotated(k).repeat(h // kv, 1), v.repeat(h // kv, 1)
        scores = np.einsum("qhd,khd->hqk", q, k) / d ** 0.5 + np.triu(np.full((n, n), -np.inf), 1)
        scores = np.exp(scores - scores.max(-1, keepdims=True))
        out = np.einsum("hqk,khd->qhd", scores / scores.sum(-1, keepdims=True), v).reshape(n, -1)
        x = x + out @ p["self_attn.o_proj"].T
        y = norm(x, p["post_attention_layernorm"])
        gate = y @ p["mlp.gate_proj"].T
        x = x + (gate / (1 + np.exp(-gate)) * (y @ p["mlp.up_proj"].T)) @ p["mlp.down_proj"].T
    head = w["model.embed_tokens.weight" if config["tie_word_embeddings"] else "lm_head.weight"]
    return norm(x, w["model.norm.weight"]) @ head.T


def test_plain_model():
    """the definition of each architecture, written out, gives the logits of titan-worker generate"""
    why = interop.missing("numpy")
    if why:
        return why
    for name in MODELS:
        ours = arrays(exported(name) / "logits.safetensors")
        config = json.loads((root / name / "f32" / "config.json").read_text())
        theirs = plain_logits(config, arrays(root / name / "f32" / "model.safetensors"), ours["tokens"])
        error = abs(theirs - ours["logits"]).max() / abs(ours["logits"]).max()
        print(f"# {name}: largest difference of a logit {error:.2e} of the largest logit")
        assert error <= 1e-5


def test_transformers():
    """transformers gives the logits of titan-worker generate"""
    why = interop.missing("torch", "safetensors.torch", "transformers")
    if why:
        return why
    from transformers.utils import is_torch_available
    if not is_torch_available():
        return "transformers wants a newer torch"
    import torch
    from safetensors.torch import load_file
    import transformers
    for name, architecture in MODELS.items():
        ours = load_file(exported(name) / "logits.safetensors")
        for dtype, limit in (("f32", 1e-5), ("bf16", 1e-2)):
            model = getattr(transformers, architecture).from_pretrained(root / name / dtype, torch_dtype=torch.float32)
            with torch.no_grad():
                theirs = model(ours["tokens"].long()[None]).logits[0]
            error = ((theirs - ours["logits"]).abs().max() / ours["logits"].abs().max()).item()
            print(f"# {name}, {dtype}: largest difference of a logit {error:.2e} of the largest logit")
            assert error <= limit


def test_tokenizer():
    """transformers opens the tokenizer: one token a byte, and back"""
    why = interop.missing("tokenizers", "transformers")
    if why:
        return why
    from transformers import PreTrainedTokenizerFast
    tokenizer = PreTrainedTokenizerFast.from_pretrained(exported() / "f32")
    for text in (PROMPT, " \t\n\r leading and trailing ", "h\u00e9\u2713\U0001f600", ""):
        ids = tokenizer(text)["input_ids"]
        assert ids == list(text.encode()) and tokenizer.decode(ids) == text, text


titan.tap(test_layout, test_safetensors, test_plain_model, test_transformers, test_tokenizer)
