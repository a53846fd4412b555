"""A real headless Chromium, driven over its DevTools protocol: opens, clicks, types, looks, photographs.

Of Chromium's ways to be driven this one needs no package: a websocket with JSON messages.
"""

import asyncio
import base64
import contextlib
import json
import shutil
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession, ClientWebSocketResponse, WSMsgType

PROGRAM = shutil.which("chromium") or shutil.which("google-chrome") or shutil.which("chromium-browser")
needs_chromium = pytest.mark.skipif(PROGRAM is None, reason="no Chromium on this machine")
LIMIT_SECONDS = 120.0
OPTIONS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--mute-audio"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--no-proxy-server"),
    *("--hide-scrollbars", "--force-device-scale-factor=1", "--remote-debugging-port=0", "about:blank"),
)
KEY_CODES = {"Escape": 27, "Enter": 13, "Tab": 9}


class Page:
    """One tab. Calls raise AssertionError with what the page says is wrong."""

    def __init__(self, socket: ClientWebSocketResponse) -> None:
        self._socket = socket
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._loaded = asyncio.Event()
        self._reader = asyncio.create_task(self._read(), name="devtools")
        self.complaints: list[str] = []
        """Uncaught exceptions of the page, and errors on its console."""

    async def close(self) -> None:
        self._reader.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._reader

    async def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One command of the DevTools protocol."""
        number = len(self._waiting) + 1
        reply = self._waiting[number] = asyncio.get_running_loop().create_future()
        await self._socket.send_json({"id": number, "method": method, "params": parameters})
        answer = await asyncio.wait_for(reply, LIMIT_SECONDS)
        assert "error" not in answer, f"{method}: {answer['error']}"
        return dict(answer["result"])

    async def open(self, address: str) -> None:
        """Returns when the document and its scripts have loaded."""
        self._loaded.clear()
        # Another place in the same document loads nothing.
        if "loaderId" in await self.call("Page.navigate", url=address):
            await asyncio.wait_for(self._loaded.wait(), LIMIT_SECONDS)

    async def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression; promises are awaited."""
        answer = await self.call(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in answer, f"{expression}: {answer['exceptionDetails']}"
        return answer["result"].get("value")

    async def wait_for(self, expression: str) -> Any:
        """The first true value of the expression."""
        deadline = time.monotonic() + LIMIT_SECONDS
        # An element itself is true, but as JSON it is empty.
        found = f"Promise.resolve({expression}).then((v) => v instanceof Node || v)"
        while not (value := await self.evaluate(found)):
            if time.monotonic() > deadline:
                seen = await self.evaluate("document.body.innerText")
                raise AssertionError(f"{expression} stayed {value}; {self.complaints}; the page says: {seen}")
            await asyncio.sleep(0.02)
        return value

    async def text(self, selector: str = "body") -> str:
        """The text that a person sees in the first such element; waits for it to be there."""
        return str(await self.wait_for(f"document.querySelector({json.dumps(selector)})?.innerText"))

    async def click(self, selector: str, *, count: int = 1) -> None:
        """Scrolls there and presses the mouse in the middle of the first such element."""
        x, y = await self.middle(selector)
        for pressed in range(1, count + 1):
            for kind in ("mousePressed", "mouseReleased"):
                await self.mouse(kind, x, y, count=pressed)

    async def middle(self, selector: str) -> tuple[float, float]:
        """Where the first such element is; waits for it to be there."""
        find = f"document.querySelector({json.dumps(selector)})"
        x, y = await self.wait_for(
            f"(e => {{ if (!e) return null; e.scrollIntoView({{block: 'center'}}); "
            f"const r = e.getBoundingClientRect(); return r.width && "
            f"[r.x + r.width / 2, r.y + r.height / 2]; }})({find})"
        )
        return float(x), float(y)

    async def mouse(self, kind: str, x: float, y: float, *, count: int = 1) -> None:
        """`kind`: mousePressed, mouseMoved or mouseReleased, with the left button."""
        button = {"button": "left", "buttons": 1, "clickCount": count} if kind != "mouseMoved" else {}
        await self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **button)

    async def drag(self, start: tuple[float, float], end: tuple[float, float]) -> None:
        await self.mouse("mousePressed", *start)
        await self.call(
            "Input.dispatchMouseEvent", type="mouseMoved", x=end[0], y=end[1], button="left", buttons=1
        )
        await self.mouse("mouseReleased", *end)

    async def type(self, text: str) -> None:
        """Into what has the focus."""
        await self.call("Input.insertText", text=text)

    async def press(self, key: str) -> None:
        """A key as KeyboardEvent.key names it: "j", "Escape", "Enter"."""
        # Without a character no keypress follows, and a button in focus ignores Enter.
        character = {"text": "\r" if key == "Enter" else key} if len(key) == 1 or key == "Enter" else {}
        code = {"windowsVirtualKeyCode": KEY_CODES.get(key, ord(key[0].upper()))}
        await self.call("Input.dispatchKeyEvent", type="keyDown", key=key, **character, **code)
        await self.call("Input.dispatchKeyEvent", type="keyUp", key=key, **code)

    async def resize(self, width: int, height: int) -> None:
        await self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )

    async def prefer(self, scheme: str) -> None:
        """`scheme`: dark or light, as the operating system would say."""
        await self.call(
            "Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}]
        )

    async def screenshot(self, path: Path) -> None:
        """What the window shows, as PNG."""
        answer = await self.call("Page.captureScreenshot", format="png")
        path.write_bytes(base64.b64decode(answer["data"]))

    async def _read(self) -> None:
        async for message in self._socket:
            if message.type != WSMsgType.TEXT:
                continue
            found = message.json()
            if "id" in found:
                self._waiting[found["id"]].set_result(found)
            elif found["method"] == "Page.loadEventFired":
                self._loaded.set()
            elif found["method"] == "Runtime.exceptionThrown":
                self.complaints.append(json.dumps(found["params"]["exceptionDetails"]))
            elif found["method"] == "Runtime.consoleAPICalled" and found["params"]["type"] == "error":
                self.complaints.append(json.dumps(found["params"]["args"]))


@contextmanager
def browser(profile: Path) -> Iterator[str]:
    """The DevTools address of a browser whose files lie in `profile`; its processes end with the block."""
    assert PROGRAM is not None
    command = [PROGRAM, f"--user-data-dir={profile}", *OPTIONS]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    try:
        assert process.stderr is not None
        marks = (line.decode(errors="replace").split() for line in process.stderr)
        yield next(words[3] for words in marks if words[:3] == ["DevTools", "listening", "on"])
    finally:
        # SIGTERM is a request: it ends its children first.
        process.terminate()
        process.communicate(timeout=LIMIT_SECONDS)


@asynccontextmanager
async def tab(address: str, *, width: int = 1280, height: int = 800) -> AsyncIterator[Page]:
    """A tab of a running browser, which shares neither store nor cache with others."""
    async with ClientSession() as session, session.ws_connect(address, max_msg_size=0) as socket:
        root = Page(socket)
        context = (await root.call("Target.createBrowserContext"))["browserContextId"]
        made = await root.call("Target.createTarget", url="about:blank", browserContextId=context)
        own = f"{address.split('/devtools/')[0]}/devtools/page/{made['targetId']}"
        try:
            async with session.ws_connect(own, max_msg_size=0) as socket:
                page = Page(socket)
                try:
                    await page.call("Page.enable")
                    await page.call("Runtime.enable")
                    await page.resize(width, height)
                    yield page
                finally:
                    await page.close()
        finally:
            await root.call("Target.disposeBrowserContext", browserContextId=context)
            await root.close()


@asynccontextmanager
async def chromium(profile: Path, *, width: int = 1280, height: int = 800) -> AsyncIterator[Page]:
    """A tab of a browser of its own."""
    with browser(profile) as address:
        async with tab(address, width=width, height=height) as page:
            yield page
