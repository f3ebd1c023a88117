"""An exported checkpoint in the hands of the Python packages it is made for: safetensors opens its tensors, tokenizers
its tokenizer, transformers computes the logits that `titan-worker generate` does."""
import importlib
import json
import struct
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
import titan  # noqa: E402

WORKER = titan.BIN / "titan-worker"
PROMPT = "static int compare(const void *a, const void *b)"
folder = tempfile.TemporaryDirectory(prefix="titan-export-")
root = Path(folder.name)


def missing(*packages):
    """Why a test cannot run here, or None."""
    for name in packages:
        try:
            importlib.import_module(name)
        except Exception as e:
            return f"Python package {name}: {e}"
    return None


def run(*args):
    done = titan.command(WORKER, *args)
    assert done.code == 0, f"titan-worker {' '.join(map(str, args))}: exit {done.code}: {done.err[-2000:]}"
    return done.out


def exported():
    """Train a little, export in both types, write logits; once."""
    if not (root / "f32").exists():
        text = titan.headers_text(root / "text")
        run("run", titan.SOURCE / "recipes/tiny.toml", "-n", "2", "--dir", root / "run", "--device", "cpu",
            "--set", f"training.dataset_path={text}", "--set", "training.steps=20")
        checkpoints = root / "run" / "checkpoint"
        run("generate", checkpoints, "--device", "cpu", "--dtype", "f32", "--prompt", PROMPT, "--max-tokens", "0",
            "--logits", root / "logits.safetensors")
        run("convert", checkpoints, root / "bf16")
        run("convert", checkpoints, root / "f32", "--dtype", "f32")
    return root


def header(path):
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    return json.loads(data[8:8 + length]), len(data) - 8 - length


def test_layout():
    """names, shapes and ranges of an export are what the format and LlamaForCausalLM ask for"""
    for dtype, size in (("bf16", 2), ("f32", 4)):
        config = json.loads((exported() / dtype / "config.json").read_text())
        tensors, length = header(root / dtype / "model.safetensors")
        assert tensors.pop("__metadata__") == {"format": "pt"}
        c, f, v = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
        q, kv = (config[k] * config["head_dim"] for k in ("num_attention_heads", "num_key_value_heads"))
        expected = {"model.embed_tokens.weight": [v, c], "model.norm.weight": [c], "lm_head.weight": [v, c]}
        for i in range(config["num_hidden_layers"]):
            expected.update({f"model.layers.{i}.{name}.weight": shape for name, shape in {
                "input_layernorm": [c], "post_attention_layernorm": [c], "self_attn.q_proj": [q, c],
                "self_attn.k_proj": [kv, c], "self_attn.v_proj": [kv, c], "self_attn.o_proj": [c, q],
                "mlp.gate_proj": [f, c], "mlp.up_proj": [f, c], "mlp.down_proj": [c, f]}.items()})
        assert {name: t["shape"] for name, t in tensors.items()} == expected
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
    why = missing("torch", "safetensors.torch")
    if why:
        return why
    import torch
    from safetensors.torch import load_file
    exact, rounded = (load_file(exported() / d / "model.safetensors") for d in ("f32", "bf16"))
    assert exact.keys() == rounded.keys()
    for name, x in exact.items():
        assert torch.equal(x.bfloat16(), rounded[name]), name


def test_transformers():
    """transformers gives the logits of titan-worker generate"""
    why = missing("torch", "safetensors.torch", "transformers")
    if why:
        return why
    import torch
    from safetensors.torch import load_file
    from transformers import LlamaForCausalLM
    ours = load_file(exported() / "logits.safetensors")
    for dtype, limit in (("f32", 1e-5), ("bf16", 1e-2)):
        model = LlamaForCausalLM.from_pretrained(root / dtype, torch_dtype=torch.float32)
        with torch.no_grad():
            theirs = model(ours["tokens"].long()[None]).logits[0]
        error = ((theirs - ours["logits"]).abs().max() / ours["logits"].abs().max()).item()
        print(f"# {dtype}: largest difference of a logit {error:.2e} of the largest logit")
        assert error <= limit


def test_tokenizer():
    """transformers opens the tokenizer: one token a byte, and back"""
    why = missing("tokenizers", "transformers")
    if why:
        return why
    from transformers import PreTrainedTokenizerFast
    tokenizer = PreTrainedTokenizerFast.from_pretrained(exported() / "f32")
    for text in (PROMPT, " \t\n\r leading and trailing ", "h\u00e9\u2713\U0001f600", ""):
        ids = tokenizer(text)["input_ids"]
        assert ids == list(text.encode()) and tokenizer.decode(ids) == text, text


titan.tap(test_layout, test_safetensors, test_transformers, test_tokenizer)
