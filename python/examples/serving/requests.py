"""What is asked of the server, what it answers, and how it refuses."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any


class Refused(Exception):
    """A request that gets no score. It has the status of HTTP and a kind that programs can compare.

    | kind | status | when |
    |---|---|---|
    | `bad_request` | 400 | the body is no request |
    | `no_such_row` | 422 | a table lacks an id of the request |
    | `busy` | 503 | the queue is full |
    | `closing` | 503 | the server ends |
    | `rows_failed` | 503 | a row could not be read |
    | `store_failed` | 503 | the look-up of the whole batch failed |
    | `deadline` | 504 | the time that the request allowed has passed |
    """

    STATUS = {
        "bad_request": 400,
        "no_such_row": 422,
        "busy": 503,
        "closing": 503,
        "rows_failed": 503,
        "store_failed": 503,
        "deadline": 504,
    }

    def __init__(self, kind: str, text: str, *, retry_after: int | None = None) -> None:
        super().__init__(text)
        self.kind = kind
        self.status = self.STATUS[kind]
        #: Seconds after which the caller may try again; None: trying again is of no use, or nobody knows.
        self.retry_after = retry_after


@dataclass(frozen=True)
class Sample:
    """One request: a user, and the items that the user looked at lately."""

    user: int
    items: list[int]


@dataclass(frozen=True)
class Answer:
    """The score of a sample, and the generation whose rows and dense layer gave it."""

    generation: int
    score: float


def parse(body: bytes, max_items: int) -> Sample:
    """The sample that a body in JSON has: `{"user": 7, "items": [3, 1]}`."""
    try:
        given = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise Refused("bad_request", f"the body is no JSON ({error})") from error
    if not isinstance(given, dict) or set(given) != {"user", "items"}:
        raise Refused("bad_request", 'give {"user": ID, "items": [ID, ...]}')
    items = given["items"]
    if not isinstance(items, list) or len(items) > max_items:
        raise Refused("bad_request", f"items: give a list of at most {max_items} ids")
    _check_id("user", given["user"])
    for item in items:
        _check_id("items", item)
    return Sample(given["user"], items)


def _check_id(name: str, value: Any) -> None:
    if type(value) is not int or not -(1 << 63) <= value < 1 << 63:
        raise Refused("bad_request", f"{name}: an id is an integer of 64 bits, and {str(value)[:40]!r} is none")
