"""A headless Chromium, driven over --remote-debugging-pipe (Chrome DevTools Protocol)."""
import base64
import contextlib
import json
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
import threading
import time

# Debian's chromium-headless-shell, then chromium.
PROGRAM = os.environ.get("CHROMIUM") or shutil.which("chromium-headless-shell") or shutil.which("chromium")
WAIT_SECONDS = 60


class Browser:
    """One tab. `problems` collects errors of scripts and of the console, such as violations of the page's policy."""

    def __init__(self, width=1280, height=800, dark=False, scale=1):
        self.problems = []
        self.folder = tempfile.TemporaryDirectory(prefix="switchyard-browser-")
        read, self.requests = os.pipe()
        self.replies, write = os.pipe()
        flags = ["--headless", "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
                 "--no-first-run", "--hide-scrollbars", f"--user-data-dir={self.folder.name}", "about:blank"]
        self.process = subprocess.Popen(["bash", "-c", f'exec "$@" 3<&{read} 4>&{write}', "bash", PROGRAM, *flags],
                                        pass_fds=(read, write), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                        start_new_session=True)
        os.close(read)
        os.close(write)
        self.answers, self.arrived, self.last = {}, threading.Condition(), 0
        threading.Thread(target=self._read, daemon=True).start()
        targets = self.call("Target.getTargets")["targetInfos"]
        target = next(t["targetId"] for t in targets if t["type"] == "page")
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ["Page", "Runtime", "Log"]:
            self.page(domain + ".enable")
        self.resize(width, height, scale)
        self.page("Emulation.setEmulatedMedia", features=[
            {"name": "prefers-color-scheme", "value": "dark" if dark else "light"},
            {"name": "prefers-reduced-motion", "value": "reduce"}])

    def _read(self):
        rest = b""
        while data := os.read(self.replies, 1 << 16):
            *messages, rest = (rest + data).split(b"\0")
            with self.arrived:
                for message in map(json.loads, messages):
                    if "id" in message:
                        self.answers[message["id"]] = message
                    elif message["method"] == "Runtime.exceptionThrown":
                        details = message["params"]["exceptionDetails"]
                        self.problems.append(details.get("exception", {}).get("description") or details["text"])
                    elif message["method"] == "Log.entryAdded" and message["params"]["entry"]["level"] == "error":
                        self.problems.append(message["params"]["entry"]["text"])
                self.arrived.notify_all()
        with self.arrived:
            self.answers = None
            self.arrived.notify_all()

    def call(self, method, session=None, **params):
        """Sends a command and returns its result."""
        self.last += 1
        message = {"id": (number := self.last), "method": method, "params": params}
        if session:
            message["sessionId"] = session
        os.write(self.requests, json.dumps(message).encode() + b"\0")
        with self.arrived:
            assert self.arrived.wait_for(lambda: self.answers is None or number in self.answers, WAIT_SECONDS), method
            assert self.answers is not None, f"{PROGRAM} ended during {method}"
            answer = self.answers.pop(number)
        assert "error" not in answer, (method, answer["error"])
        return answer["result"]

    def page(self, method, **params):
        return self.call(method, self.session, **params)

    def open(self, url):
        self.page("Page.navigate", url=url)
        self.wait("document.readyState === 'complete'")

    def run(self, script):
        """The value of an expression, which may be a promise."""
        result = self.page("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, (script, result["exceptionDetails"])
        return result["result"].get("value")

    def wait(self, condition, seconds=WAIT_SECONDS):
        end = time.time() + seconds
        while not (value := self.run(condition)):
            assert time.time() < end, (condition, self.run("document.body.innerText"), self.problems)
            time.sleep(0.03)
        return value

    def text(self, selector):
        return self.run(f"document.querySelector({json.dumps(selector)})?.innerText ?? null")

    def click(self, selector):
        self.run(f"document.querySelector({json.dumps(selector)}).click()")

    def type(self, selector, text):
        """Focuses an element, and types as a keyboard does."""
        self.run(f"document.querySelector({json.dumps(selector)}).focus()")
        self.page("Input.insertText", text=text)

    def key(self, name, code=0, text=""):
        for kind in ["keyDown", "keyUp"]:
            self.page("Input.dispatchKeyEvent", type=kind, key=name, code=name, windowsVirtualKeyCode=code,
                      **({"text": text} if text and kind == "keyDown" else {}))

    def enter(self):
        self.key("Enter", 13, "\r")

    def resize(self, width, height, scale=1):
        self.page("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale, mobile=False)

    def screenshot(self, path=None, **options):
        """The visible part as a PNG or another format, also written to `path`."""
        data = base64.b64decode(self.page("Page.captureScreenshot", **{"format": "png", **options})["data"])
        if path:
            pathlib.Path(path).write_bytes(data)
        return data

    def __enter__(self):
        return self

    def __exit__(self, *_):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        os.close(self.requests)
        self.folder.cleanup()
