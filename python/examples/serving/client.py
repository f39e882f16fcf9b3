"""Calls an ASGI application in its own process, by the protocol that a server would speak to it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import MutableMapping
from dataclasses import dataclass
from typing import Any

from .app import App


@dataclass(frozen=True)
class Response:
    """What the application answered."""

    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        """The body."""
        return json.loads(self.body)


async def call(app: App, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None) -> Response:
    """Sends one request."""
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "path": path,
        "headers": [(name.lower().encode(), value.encode()) for name, value in (headers or {}).items()],
    }
    sent: list[MutableMapping[str, Any]] = []

    async def receive() -> MutableMapping[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    await app(scope, receive, send)
    start, *parts = sent
    given = {name.decode(): value.decode() for name, value in start["headers"]}
    return Response(start["status"], given, b"".join(part["body"] for part in parts))


class Lifespan:
    """An application between its startup and its shutdown: `async with Lifespan(app):`."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._in: asyncio.Queue[MutableMapping[str, Any]] = asyncio.Queue()
        self._out: asyncio.Queue[MutableMapping[str, Any]] = asyncio.Queue()

    async def __aenter__(self) -> None:
        self._task = asyncio.create_task(self._app({"type": "lifespan"}, self._in.get, self._out.put))
        await self._step("startup")

    async def __aexit__(self, *_: object) -> None:
        await self._step("shutdown")
        await self._task

    async def _step(self, name: str) -> None:
        await self._in.put({"type": f"lifespan.{name}"})
        told = await self._out.get()
        if told["type"] != f"lifespan.{name}.complete":
            raise RuntimeError(f"{told['type']}: {told.get('message')}")
