"""Chromium or Chrome for tests, controlled through its debugging pipe, without another package."""

import base64
import json
import os
import shutil
import signal
import subprocess
import tempfile
from contextlib import contextmanager, suppress
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "microsoft-edge")


def find_browser():
    """Return the path of the browser or ``None``; LONGTAIL_BROWSER can set it."""
    named = os.environ.get("LONGTAIL_BROWSER")
    return named or next(filter(None, map(shutil.which, NAMES)), None)


class Tab:
    """One page."""

    def __init__(self, send):
        self._send = send

    def size(self, width, height=900, dark=False):
        self._send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._send("Emulation.setEmulatedMedia", features=[scheme])

    def open(self, path):
        self._send("Page.navigate", url=Path(path).resolve().as_uri())
        for _ in range(400):
            if self.run("document.readyState === 'complete' && document.URL.startsWith('file:')"):
                return
        raise TimeoutError(path)

    def run(self, script):
        found = self._send("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in found:
            raise AssertionError(found["exceptionDetails"])
        return found["result"].get("value")

    def press(self, key, code=None, text=""):
        codes = {"Tab": 9, "Enter": 13, " ": 32, "Escape": 27}
        options = {"key": key, "code": code or key, "windowsVirtualKeyCode": codes.get(key, 0)}
        text = text or {"Enter": "\r", " ": " "}.get(key, "")
        self._send("Input.dispatchKeyEvent", type="keyDown", **options, **({"text": text} if text else {}))
        self._send("Input.dispatchKeyEvent", type="keyUp", **options)

    def type(self, text):
        self._send("Input.insertText", text=text)

    def picture(self, path, whole=False):
        found = self._send("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        Path(path).write_bytes(base64.b64decode(found["data"]))


@contextmanager
def browser(path=None):
    """Yield a tab and the list of its problems: errors, warnings and network requests."""
    to_read, to_write = os.pipe()
    from_read, from_write = os.pipe()
    complaints = []
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:

        def pass_pipes():
            os.dup2(to_read, 13)
            os.dup2(from_write, 14)
            os.dup2(13, 3)
            os.dup2(14, 4)

        flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"]
        flags += ["--remote-debugging-pipe", f"--user-data-dir={profile}", "--no-first-run", "about:blank"]
        process = subprocess.Popen(
            [path or find_browser(), *flags],
            preexec_fn=pass_pipes,  # noqa: PLW1509 - it only copies two descriptors
            close_fds=False,
            start_new_session=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_read)
        os.close(from_write)
        reader, writer = os.fdopen(from_read, "rb", 0), os.fdopen(to_write, "wb", 0)
        state = {"number": 0, "rest": b"", "session": None}

        def receive():
            while b"\0" not in state["rest"]:
                part = reader.read(1 << 20)
                if not part:
                    raise ConnectionError("The browser was closed.")
                state["rest"] += part
            message, _, state["rest"] = state["rest"].partition(b"\0")
            return json.loads(message)

        def send(method, **parameters):
            state["number"] += 1
            message = {"id": state["number"], "method": method, "params": parameters}
            if state["session"]:
                message["sessionId"] = state["session"]
            writer.write(json.dumps(message).encode() + b"\0")
            while True:
                answer = receive()
                if answer.get("id") == message["id"]:
                    if "error" in answer:
                        raise AssertionError(answer["error"])
                    return answer["result"]
                _listen(answer, complaints)

        try:
            target = send("Target.createTarget", url="about:blank")["targetId"]
            state["session"] = send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
            for domain in ("Page", "Runtime", "Log", "Network"):
                send(f"{domain}.enable")
            yield Tab(send), complaints
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            reader.close()
            writer.close()


def _listen(event, complaints):
    about = event.get("params", {})
    if event.get("method") == "Runtime.exceptionThrown":
        complaints.append(about["exceptionDetails"]["text"])
    elif event.get("method") == "Runtime.consoleAPICalled" and about["type"] in {"error", "warning", "assert"}:
        complaints.append(str(about["args"]))
    elif event.get("method") == "Log.entryAdded" and about["entry"]["level"] in {"error", "warning"}:
        complaints.append(about["entry"]["text"])
    elif event.get("method") == "Network.requestWillBeSent":
        url = about["request"]["url"]
        if not url.startswith(("file:", "data:", "about:")):
            complaints.append(f"requested {url}")
