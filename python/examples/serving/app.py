"""The server as an ASGI application. It needs no framework; uvicorn, or any other ASGI server, serves it:

    WARPROW_DRIVES=emulated:ranker.drive WARPROW_VERSIONS=versions uvicorn --factory serving.app:create
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any

import warprow

from .batcher import Batcher
from .metrics import Metrics
from .ranker import Ranker
from .requests import Answer, Refused, Sample, parse

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

#: The largest body of a request, bytes.
MAX_BODY = 64 << 10
_JSON = [(b"content-type", b"application/json")]
_TEXT = [(b"content-type", b"text/plain; version=0.0.4; charset=utf-8")]


class App:
    """Serves a ranker.

    | request | answer |
    |---|---|
    | `POST /score` | `{"generation": 3, "score": 12.5}`; the header `x-deadline-ms` says how long the caller waits |
    | `GET /health/live` | 200 while the process answers |
    | `GET /health/ready` | 200 if scores can be had; 503 and the reason if not |
    | `GET /metrics` | counts for Prometheus |
    | `POST /admin/publish` | loads and shows the generation in the folder `{"source": PATH}`; only with `admin=True` |

    Refusals are `{"error": KIND, "message": TEXT}` with the statuses of `Refused`.

    Parameters
    ----------
    ranker : Ranker
        The model. It is closed with the application.
    max_delay, queue_limit
        As of `Batcher`; `max_batch` is the ranker's.
    deadline : float
        How long a request waits that does not say it itself, seconds; and the most that one may say.
    admin : bool
        Whether `/admin/publish` is there. Whoever reaches it can replace the model: let nobody else reach the port.
    """

    def __init__(
        self,
        ranker: Ranker,
        *,
        max_delay: float = 0.002,
        queue_limit: int = 4096,
        deadline: float = 1.0,
        admin: bool = False,
    ) -> None:
        self.ranker, self.deadline, self.admin = ranker, deadline, admin
        self.metrics = Metrics()
        self.batcher: Batcher[Sample, Answer] = Batcher(
            ranker.answer,
            max_batch=ranker.max_batch,
            max_delay=max_delay,
            queue_limit=queue_limit,
            observe=self.metrics.add_batch,
        )
        self._serving = False

    async def start(self) -> None:
        """Begins to answer."""
        self.batcher.start()
        self._serving = True

    async def close(self) -> None:
        """Answers what waits, and closes the ranker."""
        self._serving = False
        await self.batcher.close()
        self.ranker.close()

    async def publish(self, source: Path) -> int:
        """Loads the generation in a folder and goes over to it, while requests are answered."""
        generation = await asyncio.to_thread(self.ranker.publish, source)
        self.metrics.swaps += 1
        return generation

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        elif scope["type"] == "http":
            await self._http(scope, receive, send)
        else:
            raise ValueError(f"a connection of type {scope['type']!r}: this application serves HTTP")

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            step = self.start if message["type"] == "lifespan.startup" else self.close
            try:
                await step()
            except Exception as error:
                await send({"type": f"{message['type']}.failed", "message": f"{type(error).__name__}: {error}"})
                raise
            await send({"type": f"{message['type']}.complete"})
            if message["type"] == "lifespan.shutdown":
                return

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        began = time.perf_counter()
        route = (scope["method"], scope["path"])
        try:
            if route == ("POST", "/score"):
                answer = await self._score(scope, receive)
                self.metrics.requests["ok"] += 1
                self.metrics.seconds.add(time.perf_counter() - began)
                await _send(send, 200, _JSON, b'{"generation": %d, "score": %r}' % (answer.generation, answer.score))
            elif route == ("GET", "/metrics"):
                await _send(send, 200, _TEXT, self._metrics().encode())
            elif route == ("GET", "/health/live"):
                await _send(send, 200, _JSON, b'{"live": true}')
            elif route == ("GET", "/health/ready"):
                reason = self.why_not_ready()
                body = {"ready": reason is None, "reason": reason}
                await _send(send, 200 if reason is None else 503, _JSON, json.dumps(body).encode())
            elif route == ("POST", "/admin/publish") and self.admin:
                await self._publish(receive, send)
            else:
                body = {"error": "no_such_route", "message": f"{route[0]} {route[1]} is not there"}
                await _send(send, 404, _JSON, json.dumps(body).encode())
        except Refused as refused:
            self.metrics.requests[refused.kind] += 1
            headers = _JSON
            if refused.retry_after is not None:
                headers = [*_JSON, (b"retry-after", b"%d" % refused.retry_after)]
            body = {"error": refused.kind, "message": str(refused)}
            await _send(send, refused.status, headers, json.dumps(body).encode())
        except warprow.WarprowError as error:
            body = {"error": "store_failed", "message": f"{type(error).__name__}: {error}"}
            await _send(send, 503, _JSON, json.dumps(body).encode())

    async def _score(self, scope: Scope, receive: Receive) -> Answer:
        patience = self.deadline
        for name, value in scope["headers"]:
            if name == b"x-deadline-ms":
                if not value.isdigit() or int(value) == 0:
                    raise Refused("bad_request", "x-deadline-ms: give a whole number of milliseconds from 1 on")
                patience = min(patience, int(value) / 1000)
        sample = parse(await _body(receive), self.ranker.max_items)
        return await self.batcher.submit(sample, patience)

    async def _publish(self, receive: Receive, send: Send) -> None:
        try:
            source = Path(json.loads(await _body(receive))["source"])
        except (ValueError, KeyError, TypeError) as error:
            raise Refused("bad_request", 'give {"source": PATH}') from error
        try:
            generation = await self.publish(source)
        except (warprow.WarprowError, OSError, KeyError, ValueError) as error:
            raise Refused("bad_request", f"{source} was not published: {type(error).__name__}: {error}") from error
        await _send(send, 200, _JSON, b'{"generation": %d}' % generation)

    def why_not_ready(self) -> str | None:
        """Why no scores can be had; None: they can."""
        if not self._serving:
            return "the server starts or ends"
        if self.ranker.store.closed:
            return "the store is closed"
        failed = [f"{drive.name}: {drive.failure}" for drive in self.ranker.store.drives() if drive.failure is not None]
        return "; ".join(failed) or None

    def _metrics(self) -> str:
        return self.metrics.text(
            queue=len(self.batcher),
            limit=self.batcher.queue_limit,
            generation=self.ranker.generation,
            lookups=self.ranker.executor.metrics(),
            drives={drive.name: drive.failure is None for drive in self.ranker.store.drives()},
        )


async def _body(receive: Receive) -> bytes:
    body: bytes = b""
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Refused("bad_request", "the caller went before its request was whole")
        body += message.get("body", b"")
        if len(body) > MAX_BODY:
            raise Refused("bad_request", f"the body has more than {MAX_BODY} bytes")
        if not message.get("more_body", False):
            return body


async def _send(send: Send, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
    length = (b"content-length", b"%d" % len(body))
    await send({"type": "http.response.start", "status": status, "headers": [*headers, length]})
    await send({"type": "http.response.body", "body": body})


def create() -> App:
    """The application of the variables WARPROW_DRIVES (addresses, between semicolons), WARPROW_VERSIONS (the folder), WARPROW_DRAM_BYTES and
    WARPROW_ADMIN ("yes")."""
    store = warprow.open(os.environ["WARPROW_DRIVES"].split(";"))
    versions = Path(os.environ["WARPROW_VERSIONS"])
    ranker = Ranker(store, versions, dram_bytes=int(os.environ.get("WARPROW_DRAM_BYTES", "0")))
    return App(ranker, admin=os.environ.get("WARPROW_ADMIN") == "yes")
