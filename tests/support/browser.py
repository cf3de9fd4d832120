"""Headless Chromium, controlled with the Chrome DevTools Protocol over a pipe."""

import base64
import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
_OPTIONS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--remote-debugging-pipe", "--hide-scrollbars",
)  # fmt: skip


class Browser:
    """One page in a browser of its own; what it logs and requests is kept in `problems` and `requests`."""

    def __init__(self) -> None:
        self.profile = tempfile.mkdtemp(prefix="chromium-")
        commands, answers = os.pipe(), os.pipe()
        # Chromium reads commands from descriptor 3 and writes answers to descriptor 4.
        shell = f'exec "$0" "$@" 3<&{commands[0]} 4>&{answers[1]}'
        self.process = subprocess.Popen(
            ["bash", "-c", shell, str(CHROMIUM), *_OPTIONS, f"--user-data-dir={self.profile}", "about:blank"],
            pass_fds=(commands[0], answers[1]), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(commands[0])
        os.close(answers[1])
        self.commands, self.answers = commands[1], os.fdopen(answers[0], "rb")
        self.number, self.session = 0, None
        self.problems: list[str] = []
        self.requests: list[str] = []
        self.buffer = b""
        [target] = [one for one in self.call("Target.getTargets")["targetInfos"] if one["type"] == "page"]
        attached = self.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        self.session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def __enter__(self) -> "Browser":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        self.process.wait(timeout=30)
        os.close(self.commands)
        self.answers.close()
        shutil.rmtree(self.profile, ignore_errors=True)

    def call(self, method: str, **parameters: Any) -> Any:
        self.number += 1
        message: dict[str, Any] = {"id": self.number, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.commands, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self.number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self.buffer:
            piece = os.read(self.answers.fileno(), 1 << 16)
            if not piece:
                raise RuntimeError("the browser has gone")
            self.buffer += piece
        message, _, self.buffer = self.buffer.partition(b"\0")
        answer: dict[str, Any] = json.loads(message)
        seen = answer.get("params", {})
        match answer.get("method"):
            case "Runtime.exceptionThrown":
                self.problems.append(json.dumps(seen["exceptionDetails"]))
            case "Runtime.consoleAPICalled" if seen["type"] in ("error", "warning", "assert"):
                self.problems.append(json.dumps(seen["args"]))
            case "Log.entryAdded" if seen["entry"]["level"] in ("error", "warning"):
                self.problems.append(json.dumps(seen["entry"]))
            case "Page.javascriptDialogOpening":
                self.problems.append(seen["message"])
            case "Network.requestWillBeSent" if not seen["request"]["url"].startswith(("data:", "blob:")):
                self.requests.append(seen["request"]["url"])
        return answer

    def run(self, script: str) -> Any:
        """Evaluate an expression in the page, and await its value."""
        found = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in found:
            raise RuntimeError(json.dumps(found["exceptionDetails"]))
        return found["result"].get("value")

    def open(self, page: Path, *, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        """Open a file and wait until every figure has been drawn."""
        self.resize(width, height)
        self.dark(dark)
        self.call("Page.navigate", url=page.resolve().as_uri())
        self.settle()

    def resize(self, width: int, height: int = 900) -> None:
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def dark(self, on: bool) -> None:
        scheme = {"name": "prefers-color-scheme", "value": "dark" if on else "light"}
        self.call("Emulation.setEmulatedMedia", media="", features=[scheme])

    def settle(self) -> None:
        """Wait until the page has drawn everything that it has started to draw."""
        self.run("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
        self.run(
            "(async () => { for (let i = 0; i < 2400; i++) { await new Promise(done => setTimeout(done, 50));"
            "if (document.readyState === 'complete' && document.documentElement.dataset.drawn === String(latest)"
            "&& plots.every(plot => plot.matches('.js-plotly-plot') || !isShown(plot))) return; }"
            "throw new Error('figures were not drawn within two minutes') })()"
        )

    def click(self, selector: str) -> None:
        """Click in the middle of an element."""
        place = self.run(
            f"(() => {{ const one = document.querySelector({json.dumps(selector)});"
            "one.scrollIntoView({block: 'center'}); const box = one.getBoundingClientRect();"
            "return {x: box.x + box.width / 2, y: box.y + box.height / 2} })()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, **place, button="left", clickCount=1)

    def downloaded(self, selector: str, folder: Path, name: str) -> str:
        """The text of the file that is downloaded by a click on an element."""
        self.call("Page.setDownloadBehavior", behavior="allow", downloadPath=str(folder))
        self.click(selector)
        for _ in range(100):
            if (folder / name).is_file():
                return (folder / name).read_text(encoding="utf-8")
            self.run("new Promise(done => setTimeout(done, 100))")
        raise FileNotFoundError(f"{name} was not saved; found {os.listdir(folder)}")

    def press(self, key: str) -> None:
        for kind in ("keyDown", "keyUp"):
            text = {"text": "\r"} if key == "Enter" and kind == "keyDown" else {}
            self.call(
                "Input.dispatchKeyEvent", type=kind, key=key, code=key,
                windowsVirtualKeyCode=13 if key == "Enter" else 9, **text,
            )  # fmt: skip

    def screenshot(self, target: Path, selector: str | None = None) -> None:
        """A PNG of the whole page, or of one element."""
        box = self.run(
            f"(() => {{ const box = document.querySelector({json.dumps(selector or 'html')}).getBoundingClientRect();"
            "return {x: box.x, y: box.y + scrollY, width: box.width, height: box.height} })()"
        )
        found = self.call("Page.captureScreenshot", captureBeyondViewport=True, clip=box | {"scale": 1})
        target.write_bytes(base64.b64decode(found["data"]))

    def pdf(self, target: Path) -> None:
        target.write_bytes(base64.b64decode(self.call("Page.printToPDF", preferCSSPageSize=True)["data"]))
