# SPDX-License-Identifier: Apache-2.0
"""TorchTitan v0.2.2's run files, and what its integration tests lay over one of them."""
from pathlib import Path

HERE = Path(__file__).resolve().parent / "torchtitan"
# What is refused, by the words of the one line that tells so.
LACKS = {
    "features/fsdp2_memory_estimation/1": "memory_estimation.enable",
    "models/llama4_pp+fsdp+tp+ep+compile/1": "model.name",
    "h100/simplefsdp_deepseekv3_auto_bucketing/1": "compile.graph_passes",  # a key of its own configuration module
}


def override_sets():
    """(name, number of devices, KEY=VALUE...) of each."""
    for line in (HERE / "overrides.tsv").read_text().splitlines():
        name, devices, *sets = line.split("\t")
        yield name, int(devices), [s.replace("./tests/assets", str(HERE)) for s in sets]
