#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The API from Python with stubs that grpcio-tools makes of the published .proto: the commands and the example of docs/api.md."""
import re
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
import interop  # noqa: E402
from titan import BUILD, SOURCE, Daemon, deadline, headers_text, tap  # noqa: E402

interop.use("grpc", "grpc_tools")
PAGE = (SOURCE / "docs/api.md").read_text().split("## Python\n")[1].split("\n## ")[0]


def example():
    """docs/api.md: its command makes stubs, and its example with them submits a sweep, waits, reads losses and a refusal"""
    (command,) = re.findall(r"^    venv/bin/python (-m grpc_tools.*)$", PAGE, re.M)
    code = re.findall(r"```python\n(.*?)```", PAGE, re.S)[0]
    with tempfile.TemporaryDirectory(prefix="titan-stubs-") as name:
        home = Path(name)
        (home / "proto").symlink_to(BUILD / "gen/proto")
        subprocess.run([sys.executable, *command.split()], cwd=home, check=True)
        (home / "example.py").write_text(code)
        text = headers_text(home / "text", 1 << 18)
        tiny = (SOURCE / "recipes/tiny.toml").read_text()
        (home / "run.toml").write_text(tiny.replace("[training]", f'[training]\ndataset_path = "{text}"'))
        with Daemon(None, "--slots", 2) as daemon:
            done = subprocess.run([sys.executable, "example.py", daemon.server, "run.toml"], cwd=home, timeout=deadline(), text=True,
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        assert done.returncode == 0, done.stdout
        ends = re.findall(r"^job \d+: COMPLETED, loss ([\d.]+) to ([\d.]+), /.*/step-00000020$", done.stdout, re.M)
        assert len(ends) == 2 and all(float(last) < float(first) for first, last in ends) and ends[0] != ends[1], done.stdout
        assert re.search(r"^2 jobs$", done.stdout, re.M), done.stdout
        assert re.search(r"^INVALID_ARGUMENT .*unknown key optimizer.rate", done.stdout, re.M), done.stdout


tap(example)
