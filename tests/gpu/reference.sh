#!/usr/bin/env bash
# Writes tests/gpu/debug_losses.json: the losses of the debug model's first 20 steps on the CPU device, which
# tests/golden holds against PyTorch. Needs a built worker and CPU plug-in (make).
set -euo pipefail
cd "$(dirname "$0")/../.."
BUILD=${BUILD:-build}
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
. tests/gpu/debug_run.sh
python3 tests/gpu/text.py "$tmp/text"
debug_run "$BUILD/bin/titan-worker" cpu 1 float32 "$tmp/text" "$tmp/run" 20
python3 - "$tmp/run/metrics.jsonl" >tests/gpu/debug_losses.json <<'PY'
import json
import sys
losses = [json.loads(line)["loss"] for line in open(sys.argv[1])]
print(json.dumps({"made_by": "tests/gpu/reference.sh", "recipe": "recipes/debug.toml, fp32, 20 steps, tests/gpu/text.py",
                  "losses": losses}, indent=1))
PY
