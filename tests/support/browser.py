# SPDX-License-Identifier: Apache-2.0
"""A headless Chromium that a test drives over the DevTools protocol, by two pipes (--remote-debugging-pipe: JSON that a NUL ends)."""
import base64
import contextlib
import fcntl
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

from titan import deadline

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")

# Resolves when the expression is true, looked at with each change of the document.
AWAIT = """new Promise(found => {
    const look = () => {
        const value = (() => (%s))();
        if (value) {
            watch.disconnect();
            found(value);
        }
    };
    const watch = new MutationObserver(look);
    watch.observe(document, {subtree: true, childList: true, attributes: true, characterData: true});
    document.addEventListener("readystatechange", look);
    look();
})"""


class Browser:
    """A browser with one tab; a context manager. Its profile is a folder of its own, and certificates of any CA are taken."""

    def __enter__(self):
        self.home = tempfile.mkdtemp(prefix="titan-browser-")
        theirs, self.to = os.pipe()
        self.back, ours = os.pipe()
        ends = [fcntl.fcntl(fd, fcntl.F_DUPFD, 16) for fd in (theirs, ours)]

        def place():
            os.dup2(ends[0], 3)
            os.dup2(ends[1], 4)
        with open(Path(self.home) / "log", "wb") as log:
            self.process = subprocess.Popen(
                [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--ignore-certificate-errors", "--remote-debugging-pipe",
                 f"--user-data-dir={self.home}/profile", "about:blank"],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, env={**os.environ, "HOME": self.home}, preexec_fn=place, pass_fds=(3, 4))
        for fd in (theirs, ours, *ends):
            os.close(fd)
        self.number, self.rest, self.said, self.session = 0, b"", [], None
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self.send("Runtime.enable")
        self.send("Log.enable")
        self.send("Page.enable")
        return self

    def __exit__(self, *_):
        self.session = None
        with contextlib.suppress(OSError, AssertionError):
            self.send("Browser.close")
        try:
            self.process.wait(deadline())
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        os.close(self.to)
        os.close(self.back)
        shutil.rmtree(self.home, ignore_errors=True)

    def message(self, until):
        while b"\0" not in self.rest:
            ready = select.select([self.back], [], [], max(0, until - time.monotonic()))[0]
            more = os.read(self.back, 1 << 20) if ready else b""
            assert more, "the browser has ended:\n" + (Path(self.home) / "log").read_text(errors="replace")[-2000:] if ready else "the browser does not answer"
            self.rest += more
        text, self.rest = self.rest.split(b"\0", 1)
        return json.loads(text)

    def send(self, method, **params):
        """The answer to a command. What the page says meanwhile (console, exceptions, refused resources) is kept in self.said."""
        self.number += 1
        out = {"id": self.number, "method": method, "params": params} | ({"sessionId": self.session} if self.session else {})
        os.write(self.to, json.dumps(out).encode() + b"\0")
        until = time.monotonic() + deadline()
        while True:
            message = self.message(until)
            if message.get("id") == self.number:
                assert "error" not in message, (method, message)
                return message["result"]
            if message.get("method") in ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded"):
                self.said.append(message["params"])

    def run(self, expression, wait=False):
        """The value of an expression of JavaScript; wait: of a promise that it is."""
        done = self.send("Runtime.evaluate", expression=expression, awaitPromise=wait, returnByValue=True)
        assert "exceptionDetails" not in done, (expression, done["exceptionDetails"])
        return done["result"].get("value")

    def until(self, expression):
        """Wait until an expression is true in the page; returns its value."""
        try:
            return self.run(AWAIT % expression, wait=True)
        except AssertionError as e:
            raise AssertionError(f"never true in the page: {expression}: {e}") from None

    def go(self, url):
        """A page that has begun to run. Another fragment alone is no new page."""
        self.send("Page.navigate", url=url)
        self.until("document.readyState !== 'loading'")

    def size(self, width, height):
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def scheme(self, name):
        """light or dark, as the user's system has it."""
        self.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": name}])

    def picture(self, path, whole=False):
        """A PNG of what is seen, or of the whole page."""
        Path(path).write_bytes(base64.b64decode(self.send("Page.captureScreenshot", format="png", captureBeyondViewport=whole)["data"]))
