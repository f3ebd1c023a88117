# SPDX-License-Identifier: Apache-2.0
"""A run by hand: `titan-worker run`, its folder, what it has written."""
import contextlib
import subprocess
import tempfile
from pathlib import Path

from folders import KEYS, steps_in
from titan import BIN, SOURCE, deadline, headers_text, overrides, until


class Run:
    """A run by hand in a session of its own."""

    def __init__(self, folder, world, **more):
        self.folder = folder
        keys = {**KEYS, "training.dataset_path": headers_text(folder / "text"), "training.steps": 1000000, "checkpoint.interval": 1000000,
                "lr_scheduler.total_steps": 1000, "elastic.min_workers": 1, **more}
        with open(folder / "log", "a") as log:
            self.process = subprocess.Popen([BIN / "titan-worker", "run", SOURCE / "recipes/tiny.toml", "-n", str(world), "--dir", folder,
                                             *overrides(keys)], stdout=log, stderr=log, start_new_session=True)

    def steps(self):
        path = self.folder / "metrics.jsonl"
        return path.read_bytes().count(b"\n") if path.exists() else 0

    def trains(self, beyond):
        until(lambda: f"it trains beyond step {beyond}: {(self.folder / 'log').read_text()}", lambda: self.steps() > beyond, every=0.02)

    def saved(self):
        return steps_in(self.folder / "checkpoint")

    def ended(self):
        return self.process.wait(deadline())


@contextlib.contextmanager
def run(world, **more):
    with tempfile.TemporaryDirectory(prefix="titan-signals-") as folder:
        r = Run(Path(folder), world, **more)
        try:
            yield r
        finally:
            r.process.kill()
            r.process.wait()
