#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""titanctl admin check looks at a daemon's own settings: [http] as the config file has it now, and a file that a reload would refuse."""
import json
import socket
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / p) for p in ("support", "tls", "security")]
from pki import Coordinator  # noqa: E402
from test_http import PLAIN, TLS, dev  # noqa: E402
from titan import CALM, BIN, command, tap, until  # noqa: E402


def rows(server, node="(coordinator)"):
    """[(what, wrong, text)] of the settings"""
    done = command(BIN / "titanctl", "-s", server, "-o", "json", "admin", "check")
    assert done.code in (0, 7), done
    found = {n["node"]: n["findings"] for n in json.loads(done.out)["nodes"]}
    return [(f["what"], f["wrong"], f["text"]) for f in found.get(node, []) if f["what"] in ("http", "config")]


def file_of_now():
    """what serves is said; a file that would not be served, or not be read, is wrong, with the reason and what to do"""
    with dev(PLAIN) as (d, _), socket.create_server(("127.0.0.1", 0)) as other:
        path, port = d.args[d.args.index("--config") + 1], other.getsockname()[1]

        def of(text):
            path.write_text(text + CALM)
            (row,) = rows(d.server)
            return row
        assert of(PLAIN) == ("http", False, "127.0.0.1:0 without TLS, for this machine; /metrics for operators and admins, as authorization.metrics is empty")
        assert of(PLAIN + '[authorization]\nmetrics = ["user:p"]\n')[2].endswith("; /metrics for the role metrics too")
        wrong = {f'[http]\nlisten = "127.0.0.1:{port}"\ninsecure = true\n': ("http", f"address 127.0.0.1:{port} is in use by "),
                 '[http]\nlisten = "192.0.2.1:9"\n': ("http", "refusing to serve HTTP on 192.0.2.1:9 without TLS: there is no certificate"),
                 '[http]\nlisten = "0.0.0.0:9"\ninsecure = true\n': ("http", "refusing to serve HTTP on 0.0.0.0:9 without TLS: other hosts may reach it"),
                 '[http]\nlisten = "127.1.2.3.4:9"\ninsecure = true\n': ("http", "address 127.1.2.3.4:9: no such host"),
                 '[http]\nlisten = "here"\n': ("config", "neither a reload nor the next start takes it: "), "[http\n": ("config", "neither a reload")}
        for text, (what, begins) in wrong.items():
            path.write_text(text + CALM)
            found = [r for r in rows(d.server) if r[1]]
            assert len(found) == 1 and found[0][0] == what and found[0][2].startswith(begins), (text, found)
        assert of('[http]\nlisten = "127.0.0.1:1"\ninsecure = true\n')[1:] == (
            False, "127.0.0.1:1 without TLS, for this machine, from the next start on; /metrics for operators and admins, as authorization.metrics is empty")
        path.write_text(CALM)
        assert rows(d.server) == []  # nothing is served from the next start on


def with_tls():
    """a coordinator and an agent with TLS: until when their certificates are good; an address of another machine"""
    with Coordinator(TLS) as c:
        (c.dir / "n1.toml").write_text(TLS + CALM)
        c.spawn("n1", "agent", "--join", c.join_file("n1"), "--config", c.dir / "n1.toml", "--slots", 1)
        until("n1 is ready", lambda: c.nodes().get("n1") == "ready")
        for node in ("(coordinator)", "n1"):
            ((what, wrong, text),) = rows(c.unix, node)
            assert (what, wrong) == ("http", False) and text.startswith("127.0.0.1:0 with TLS, the certificate is good until 20"), (node, text)
        (c.dir / "n1.toml").write_text('[http]\nlisten = "192.0.2.1:9"\n' + CALM)
        assert rows(c.unix, "n1") == [("http", True, "address 192.0.2.1:9: this machine does not have it")]


tap(file_of_now, with_tls)
