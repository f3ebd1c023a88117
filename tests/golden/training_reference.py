#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Runs of PyTorch that a run here is held against, written to tests/golden/trained/.

    tests/golden/training_reference.py          (needs torch and transformers; the test only reads the files)

NAME/ is what transformers' save_pretrained writes of a tiny model with random weights; NAME.json has the loss and the gradient norm of
every step that PyTorch trains from there, on samples in docs/data.md's order, with weights and moments in fp32, with moments in bf16, and with all of
it in bf16. What is trained, and how: tests/support/torch_training.py. mtp.json has those of a model with modules of multi-token prediction, reference.py's
from its initial values in fp64, and the modules' losses.
tests/weights/test_beside_pytorch.py reads them."""
import json
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "support"))
import torch_training as training  # noqa: E402

MTP_STEPS = 20
STEPS, TOKENS = 12, 1500  # 46 windows: with 4 samples a step the twelfth begins the second pass


def train_mtp(tokens):
    """Dimensions, and loss, loss of modules and gradient norm of every step."""
    import reference
    import torch
    keys = training.KEYS
    reference.SEED = keys["training.seed"]
    d = dict(reference.FLAVORS["mtp"], vocab_size=training.VOCABULARY)
    p = reference.make(d, torch.float64)
    optimizer = torch.optim.AdamW(p.values(), lr=1.0, betas=(keys["optimizer.beta1"], keys["optimizer.beta2"]), eps=keys["optimizer.eps"],
                                  weight_decay=keys["optimizer.weight_decay"])
    told = []
    for step in range(1, MTP_STEPS + 1):
        for group in optimizer.param_groups:
            group["lr"] = training.rate(step, MTP_STEPS, keys)
        rows = torch.tensor(training.batch_of(tokens, step, keys))
        whole, loss, further = reference.trained_loss(p, rows[:, :-1], rows[:, 1:], d)
        optimizer.zero_grad()
        whole.backward()
        norm = torch.nn.utils.clip_grad_norm_(p.values(), keys["training.max_norm"])
        optimizer.step()
        told.append({key: float(f"{x.item():.9g}") for key, x in (("loss", loss), ("mtp_loss", further), ("grad_norm", norm))})
    return d, told


def main():
    import torch
    torch.set_num_threads(1)
    tokens = training.write_tokens(Path(tempfile.mkdtemp()) / "tokens.bin", TOKENS)
    for name in training.MODELS:
        folder = HERE / "trained" / name
        training.write_model(name, folder)
        (folder / "generation_config.json").unlink(missing_ok=True)
        runs = {}
        for kept in training.STATES:
            told, _ = training.train(folder, tokens, STEPS, kept=kept)
            runs[kept] = [{"loss": float(f"{loss:.9g}"), "grad_norm": float(f"{norm:.9g}")} for loss, norm in told]
            print(f"{name}, {kept}: loss {told[0][0]:.6f} -> {told[-1][0]:.6f}, gradient norm {told[0][1]:.4f} -> {told[-1][1]:.4f}")
        (HERE / f"trained/{name}.json").write_text(json.dumps(
            {"made_by": "tests/golden/training_reference.py", "torch": torch.__version__, "tokens": TOKENS, "keys": training.KEYS,
             "runs": runs}, indent=1) + "\n")
    d, told = train_mtp(tokens)
    print(f"mtp: loss {told[0]['loss']:.6f} -> {told[-1]['loss']:.6f}, modules {told[0]['mtp_loss']:.6f} -> {told[-1]['mtp_loss']:.6f}")
    (HERE / "trained/mtp.json").write_text(json.dumps(
        {"made_by": "tests/golden/training_reference.py", "torch": torch.__version__, "tokens": TOKENS, "keys": training.KEYS, "dims": d,
         "steps": told}, indent=1) + "\n")


if __name__ == "__main__":
    main()
