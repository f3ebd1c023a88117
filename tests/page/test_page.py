#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The coordinator's page in a headless browser: over a run that loses a worker, a coordinator that restarts under it, names that are markup,
tokens, a narrow screen, a dark one, and a tab that nobody sees."""
import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / "support"), str(Path(__file__).resolve().parents[1] / "tls")]
from browser import CHROMIUM, Browser  # noqa: E402
from pki import Coordinator  # noqa: E402
from titan import CALM, FP_BIN, SOURCE, Daemon, Gate, headers_text, tap, until  # noqa: E402

MOST_BYTES = 60_000
EVIL = "<img src=x onerror=\"document.title='taken'\">"
PAGE = SOURCE / "daemon/page"


class World:
    """A browser, a daemon of two slots, and jobs: one that trains until the end of the test with workers that wait at a gate, one in the queue."""


def is_small():
    """the page's files together have at most 60 kB, and are JavaScript; no script or style stands in the HTML"""
    files = list(PAGE.iterdir())
    assert {f.name for f in files} == {"index.html", "titan.js", "titan.css", "chart.js", "chart.css"}
    assert sum(f.stat().st_size for f in files) <= MOST_BYTES, {f.name: f.stat().st_size for f in files}
    html = (PAGE / "index.html").read_text()
    assert not re.search(r"<style|style=|<script>|\son\w+=|https?:|javascript:", html), html
    assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(|\bsrcdoc\b", "".join(f.read_text() for f in PAGE.glob("*.js")))
    if not shutil.which("node"):
        return "node is not installed: the scripts' syntax is left to the browser"
    with tempfile.TemporaryDirectory() as folder:
        served = Path(folder) / "served.mjs"
        served.write_text((PAGE / "chart.js").read_text() + (PAGE / "titan.js").read_text())
        for file in (served, PAGE / "chart.js"):
            done = subprocess.run(["node", "--check", file], capture_output=True, text=True)
            assert done.returncode == 0, done.stderr


def text(selector):
    return f"(document.querySelector({selector!r}) || {{}}).textContent"


def shows(state):
    return f"{text('h1 .pill')} === '{state}'"


def go(place=""):
    World.browser.go(f"{World.base}/#/{place}")


def cluster():
    """cluster: slots carry the numbers of their jobs, the queue says why a job waits, events come with the newest first"""
    b = World.browser
    go()
    b.until("document.querySelectorAll('.strip a.slot').length === 2 && document.querySelector('#queue')")
    assert b.run("[...document.querySelectorAll('.strip a.slot')].map(a => a.textContent)") == [World.job] * 2
    assert "waiting" in b.run(text("#queue")) and EVIL in b.run(text("#queue"))
    assert b.run(text("#running .pill")) == "RUNNING" and b.run(text("#link")) == "live"
    b.until("document.querySelectorAll('#events time').length > 5")
    times = b.run("[...document.querySelectorAll('#events time')].map(t => t.title)")
    assert times == sorted(times, reverse=True), times
    # A link that has the focus keeps it when the page draws anew.
    b.run("document.querySelector('#running td a').focus()")
    later = World.daemon.submit("tiny", World.keys, "--name", "later")
    b.until(f"document.querySelectorAll('#queue tbody tr').length === 2 && {text('#events')}.includes('job {later} ')")
    assert b.run("document.activeElement.closest('#running') !== null && document.activeElement.textContent") == World.job
    World.daemon.ok("cancel", later)
    b.until(f"{text('#ended')} && {text('#ended')}.includes('CANCELLED')")


def a_worker_is_lost():
    """job: a lost worker shows within the events, as state, reason and mark, and so does the recovery when the next one is there"""
    b = World.browser
    go(f"job/{World.job}")
    b.until(f"{shows('RUNNING')} && document.querySelector('#logs') && document.querySelector('#recipe')")
    World.gate.close()
    victim = next(iter(World.daemon.workers(World.job).values()))
    os.kill(victim, signal.SIGKILL)
    b.until(f"{shows('RECOVERING')} && {text('#events')}.includes('worker.exited')")
    assert "signal 9" in b.run(text("#events"))
    World.gate.open()
    b.until(f"{shows('RUNNING')} && {text('#events')}.includes('recovery.finished')")
    for chart in ("loss", "grad_norm", "tokens", "world"):
        b.until(f"document.querySelector('#chart-{chart} [data-kind=loss]') && document.querySelector('#chart-{chart} [data-kind=recovery]')")
    paths = b.run("[...document.querySelectorAll('.charts path')].map(p => p.getAttribute('d')).join('')")
    assert len(paths) > 100 and "NaN" not in paths and "undefined" not in paths
    assert b.run("document.querySelectorAll('#chart-world .epoch').length") >= 2
    b.until(f"{text('#workers')}.endsWith('2')")


def compared():
    """compare: two jobs in one picture with a colour each, and the keys in which their recipes differ; a job's difference to another one"""
    b = World.browser
    other = World.queued
    go(f"compare/{World.job},{other}")
    b.until("document.querySelector('#differences') && document.querySelector('#chart-loss .curve')")
    assert b.run("document.querySelectorAll('#compared tbody tr').length") == 2
    assert "checkpoint.interval" in b.run(text("#differences"))
    b.run("document.querySelector('#chart-loss svg').focus()")
    b.send("Input.dispatchKeyEvent", type="keyDown", key="ArrowLeft", code="ArrowLeft")
    assert re.search(rf"step \d+ · job {World.job} \d", b.run(text("#chart-loss .readout"))), b.run(text("#chart-loss .readout"))
    go(f"job/{World.job}")
    b.until("document.querySelector('[name=other]')")
    b.run(f"document.querySelector('[name=other]').value = {other}; document.querySelector('form.line button').click()")
    b.until(f"{text('#differences')} && {text('#differences')}.includes('checkpoint.interval')")


def places():
    """node: its slots, and the jobs that have them; what is not there is said in a line"""
    b = World.browser
    go()
    name = b.until(text(".node a"))
    b.run("document.querySelector('.node a').click()")
    b.until(f"{text('h1')} && {text('h1')}.startsWith('Node {name}') && document.querySelector('#workers')")
    assert b.run("document.querySelectorAll('.strip a.slot').length") == 2
    for place, words in (("job/999", "there is no job 999"), ("node/%E0%A4%A", "There is no node"), ("node/none", "There is no node none.")):
        go(place)
        b.until(f"{text('.wrong')} && {text('.wrong')}.includes({words!r})")


def names_are_text():
    """a job's name that is markup stays text everywhere"""
    b = World.browser
    for place, where in (("", "#queue"), (f"job/{World.queued}", "h1"), (f"compare/{World.queued}", "#compared")):
        go(place)
        b.until(f"{text(where)} && {text(where)}.includes({EVIL!r})")
        assert b.run("document.querySelectorAll('img').length") == 0
    assert "taken" not in b.run("document.title").replace(EVIL, "")


def narrow_and_dark():
    """400 px: no view scrolls sideways; dark and light, text has contrast"""
    b = World.browser
    luminance = """(colour => colour.match(/[0-9.]+/g).slice(0, 3).map(v => v / 255).map(v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
        .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0))"""
    try:
        for scheme, dark in (("light", False), ("dark", True)):
            b.scheme(scheme)
            b.size(400, 800)
            for place, there in (("", "#queue"), (f"job/{World.job}", "#chart-loss .curve"), (f"compare/{World.job},{World.queued}", "#chart-loss .curve")):
                go(place)
                b.until(f"document.querySelector({there!r})")
                width = b.run("document.documentElement.scrollWidth")
                assert width <= 400, (place, width)
            go()
            b.until("document.querySelector('.slot') && document.querySelector('td a')")
            paper = b.run(luminance + "(getComputedStyle(document.body).backgroundColor)")
            assert (paper < 0.1) == dark, paper
            for selector in ("body", "h2", "td a", ".pill", "dt", ".slot"):
                ink, under = b.run(f"(e => [{luminance}(getComputedStyle(e).color), getComputedStyle(e).backgroundColor])(document.querySelector({selector!r}))")
                ground = paper if under == "rgba(0, 0, 0, 0)" else b.run(f"{luminance}({under!r})")
                contrast = (max(ink, ground) + 0.05) / (min(ink, ground) + 0.05)
                assert contrast >= 4.5, (scheme, selector, contrast)
    finally:
        b.scheme("light")
        b.size(1280, 1000)


def hidden():
    """a tab that nobody sees holds no stream and asks for nothing; seen again, it goes on"""
    b = World.browser
    go()
    b.until(f"{text('#link')} === 'live' && document.querySelector('#queue')")
    # What is fetched from now on, and which streams are ended.
    b.run("""window.asked = 0; window.ended = 0; (before => { window.fetch = (url, options) => {
        asked++;
        if (options.signal) options.signal.addEventListener("abort", () => ended++);
        return before(url, options);
    }; })(window.fetch); window.see = hidden => { Object.defineProperty(document, "hidden", {value: hidden, configurable: true}); document.dispatchEvent(new Event("visibilitychange")); }""")
    b.run("see(false)")
    later = [World.daemon.submit("tiny", World.keys, "--name", "seen")]
    b.until(f"{text('#queue')}.includes('seen')")
    b.run("see(true)")
    asked = b.run("asked")
    assert b.run("ended") == 1 and asked > 1
    later.append(World.daemon.submit("tiny", World.keys, "--name", "hidden"))
    assert b.run("asked") == asked
    b.run("see(false)")
    b.until(f"{text('#queue')}.includes('hidden')")
    for job in later:
        World.daemon.ok("cancel", job)


def the_coordinator_restarts():
    """a coordinator that goes away and comes back: the page says since when, and recovers without being loaded anew"""
    b, d = World.browser, World.daemon
    go(f"job/{World.job}")
    b.until(f"{text('#link')} === 'live' && {shows('RUNNING')}")
    b.run("window.mark = 1")
    d.kill()
    b.until("/^coordinator not reached since \\d\\d:\\d\\d:\\d\\dZ$/.test(document.querySelector('#link').textContent)")
    assert b.run(text("h1 .pill")) == "RUNNING"
    d.start()
    b.until(f"{text('#link')} === 'live' && {shows('RUNNING')}")
    d.ok("cancel", World.job)
    b.until(shows("CANCELLED"))
    b.until(f"{text('#link')} === 'the job has ended'")
    assert b.run("window.mark") == 1


def a_token():
    """with TLS: the page asks for a token, says that one is wrong, keeps the right one in its tab alone, and says when it was revoked"""
    b = World.browser
    with Coordinator(config='[http]\nlisten = "127.0.0.1:0"\n') as c:
        place = until("the page is served", lambda: (c.state / "run/listen-http").exists() and (c.state / "run/listen-http").read_text().strip())
        token = c.ctl("token", "create", "alice").split()[-1]
        b.go(f"https://{place}/#/")
        b.until("document.activeElement.id === 'token'")

        def give(value):
            b.run(f"document.querySelector('#token').value = {value!r}; document.querySelector('#login button').click()")
        give("titan_nobody_knows")
        b.until("document.querySelector('#login .wrong') && document.querySelector('#token').value === ''")
        give(token)
        b.until(f"{text('.facts')} && {text('#link')} === 'live'")
        assert b.run("sessionStorage.getItem('token')") == token and b.run("localStorage.length") == 0
        assert token not in b.run("location.href + document.cookie + document.documentElement.outerHTML")
        c.ctl("token", "revoke", token.split("_")[1])
        b.until(f"{text('main > .wrong')} && {text('main > .wrong')}.includes('was revoked')")
        b.run("document.querySelector('main > button').click()")
        b.until("document.activeElement.id === 'token'")


def quiet():
    """no exception, no refused script, style or picture in all of that"""
    said = [s for s in World.browser.said if "exceptionDetails" in s or s.get("entry", {}).get("source") != "network"]
    assert not said, said


def no_browser():
    """the page in a browser"""
    return "chromium is not installed"


def main():
    if not CHROMIUM:
        tap(is_small, no_browser)
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        World.base = f"http://127.0.0.1:{s.getsockname()[1]}"
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        config = Path(folder) / "titan.toml"
        config.write_text(f'[http]\nlisten = "{World.base[7:]}"\ninsecure = true\n' + CALM)
        World.gate = Gate(folder, FP_BIN / "titan-worker")
        World.daemon = d = stack.enter_context(Daemon(None, "--config", config, "--slots", 2, "--worker", World.gate.program, env={"TITAN_FAILPOINTS": "train.step=sleep:50@1+"}))
        World.keys = {"training.dataset_path": headers_text(Path(folder) / "text"), "training.steps": 100_000, "training.local_batch_size": 2,
                      "elastic.min_workers": 2, "elastic.max_workers": 2}
        World.job = d.submit("tiny", World.keys, "--name", "baseline")
        until("it trains", lambda: d.status(World.job)["step"] > 3)
        World.queued = d.submit("tiny", {**World.keys, "checkpoint.interval": 77}, "--name", EVIL)
        World.browser = stack.enter_context(Browser())
        World.browser.size(1280, 1000)
        tap(is_small, cluster, a_worker_is_lost, compared, places, names_are_text, narrow_and_dark, hidden, the_coordinator_restarts, a_token, quiet)


main()
