# SPDX-License-Identifier: Apache-2.0
"""Runs the parts of the benchmark one after the other: says which one, how long it has taken and what is left; a table at the end."""
import json
import sys
import threading
import time

EVERY_S = 15


def duration(seconds):
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"


class Parts:
    """parts: name -> (function, seconds it takes, function of its result that gives (figure, measured, target) rows)."""

    def __init__(self, parts, home, out=sys.stdout, every_s=EVERY_S):
        self.parts, self.home, self.out, self.every_s = parts, home, out, every_s
        try:  # what they took here the last time
            self.seconds = json.loads((home / "seconds.json").read_text())
        except (OSError, ValueError):
            self.seconds = {}

    def estimate(self, names):
        return sum(self.seconds.get(n, self.parts[n][1]) for n in names)

    def say(self, text):
        print(text, file=self.out, flush=True)

    def run(self, wanted):
        """{part: result}. What is measured so far is written after each part, and what a part took for the next estimate."""
        self.say(f"{len(wanted)} parts, about {duration(self.estimate(wanted))}; figures go to {self.home / 'summary.json'}")
        summary = {}
        for i, name in enumerate(wanted):
            about = self.estimate([name])
            self.say(f"[{i + 1}/{len(wanted)}] {name}: about {duration(about)}, then {duration(self.estimate(wanted[i + 1:]))} for the rest")
            begin, over = time.monotonic(), threading.Event()
            beat = threading.Thread(target=self.beat, args=(name, begin, about, over))
            beat.start()
            try:
                summary[name] = self.parts[name][0]()
            finally:
                over.set()
                beat.join()
            self.seconds[name] = time.monotonic() - begin
            self.say(f"  done in {duration(self.seconds[name])}")
            (self.home / "seconds.json").write_text(json.dumps(self.seconds) + "\n")
            (self.home / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")
        self.table(summary)
        return summary

    def beat(self, name, begin, about, over):
        while not over.wait(self.every_s):
            self.say(f"  {name}: {duration(time.monotonic() - begin)} of about {duration(about)}")

    def table(self, summary):
        rows = [("", "measured", "target")]
        for name, result in summary.items():
            if "skipped" in result:
                rows.append((name, "skipped: " + result["skipped"], ""))
            else:
                rows += [(f"{name}: {figure}", measured, target) for figure, measured, target in self.parts[name][2](result)]
        widths = [max(len(r[i]) for r in rows) for i in (0, 1)]
        self.say("")
        for figure, measured, target in rows:
            self.say(f"{figure:{widths[0]}}  {measured:>{widths[1]}}  {target}".rstrip())
