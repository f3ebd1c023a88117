# SPDX-License-Identifier: Apache-2.0
"""Simulated agents, very many in one process (tests/scale/agents.c), and how they are spoken to."""
import json
import subprocess

from titan import BUILD, deadline, until

PROGRAM = BUILD / "tests/scale/agents"


class Agents:
    def __init__(self, n, host, port, space=None, pki=None):
        """space: name of the network namespace they are in; pki: folder of the CA, for TLS."""
        enter = ["nsenter", f"--net=/run/netns/{space}"] if space else []
        self.process = subprocess.Popen([*enter, PROGRAM, host, str(port), str(n), *([str(pki)] if pki else [])], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, what):
        self.process.stdin.write(what + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def await_counts(self, seconds=60, **counts):
        until(f"{counts} of the agents ({self.ask('stats')})",
              lambda: (lambda s: all(s[k] == v for k, v in counts.items()))(self.ask("stats")), seconds)

    def close(self):
        self.process.stdin.close()
        self.process.wait(deadline())
