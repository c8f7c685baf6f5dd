"""Waits for calls of the C++ engine, on threads and in event loops, and splits large batches."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any, TypeVar

from . import _core

Raw = tuple[Any, ...]  # see Take in core.cc
Make = Callable[[Raw], dict[str, Any]]
Started = TypeVar("Started", bound=_core.Call)

# A C++ call has at most 4096 generations. Larger batches become several calls, which run concurrently.
_GENERATIONS_PER_CALL = 2048

# Characters of a body that is parsed and tokenized in less than a millisecond.
_SHORT_BODY = 4096

# Fields of /generate that may have one value for each prompt.
_PER_PROMPT = (
    "sampling_params",
    "rid",
    "return_logprob",
    "logprob_start_len",
    "top_logprobs_num",
    "token_ids_logprob",
    "cache_salt",
    "extra_key",
)


class LoopCalls:
    """The calls that the coroutines of one event loop wait for. The loop polls one descriptor for all of them."""

    def __init__(self) -> None:
        self.notifier = _core.Notifier()
        self._waiting: dict[int, asyncio.Future[None]] = {}

    async def wait(self, call: _core.Call) -> None:
        """Returns when the call has news."""
        loop = asyncio.get_running_loop()
        while not call.has_news():
            future = loop.create_future()
            if not self._waiting:
                loop.add_reader(self.notifier.fileno(), self._wake)
            self._waiting[call.number] = future
            try:
                await future
            finally:
                del self._waiting[call.number]
                if not self._waiting:
                    loop.remove_reader(self.notifier.fileno())

    def _wake(self) -> None:
        for number in self.notifier.take():
            future = self._waiting.get(number)
            if future is not None and not future.done():
                future.set_result(None)


def finish(calls: Sequence[_core.GenerateCall], make: Make) -> list[dict[str, Any]]:
    """Waits for all generations. An exception, such as KeyboardInterrupt, aborts them."""
    outputs: list[dict[str, Any]] = []
    try:
        for call in calls:
            while not call.done:
                call.wait()
                outputs += map(make, call.take())
    except BaseException:
        abort(calls)
        raise
    return outputs


async def off_loop(start: Callable[[str, _core.Notifier], Started], body: str, notifier: _core.Notifier) -> Started:
    """Starts a call of the engine, which parses the body and tokenizes its texts without the GIL: a short body here, a long
    one on a thread of the event loop's executor, so that other coroutines run meanwhile. If this task is cancelled then,
    the call is dropped, and with it the request."""
    if len(body) <= _SHORT_BODY:
        return start(body, notifier)
    return await asyncio.get_running_loop().run_in_executor(None, start, body, notifier)


async def finish_async(calls: Sequence[_core.GenerateCall], make: Make, loop_calls: LoopCalls) -> list[dict[str, Any]]:
    outputs: list[dict[str, Any]] = []
    try:
        for call in calls:
            while not call.done:
                await loop_calls.wait(call)
                outputs += map(make, call.take())
    except BaseException:
        abort(calls)
        raise
    return outputs


def stream(call: _core.GenerateCall, make: Make) -> Iterator[dict[str, Any]]:
    """Results as they arrive. A caller that stops early aborts the generations."""
    try:
        while not call.done:
            call.wait()
            yield from map(make, call.take())
    finally:
        call.abort()


async def stream_async(call: _core.GenerateCall, make: Make, loop_calls: LoopCalls) -> AsyncIterator[dict[str, Any]]:
    try:
        while not call.done:
            await loop_calls.wait(call)
            for raw in call.take():
                yield make(raw)
    finally:
        call.abort()


def body_of(call: _core.RouteCall) -> str:
    text = ""
    try:
        while not call.done:
            call.wait()
            text += call.take()
    except BaseException:
        call.abort()
        raise
    return text


async def body_of_async(call: _core.RouteCall, loop_calls: LoopCalls) -> str:
    text = ""
    try:
        while not call.done:
            await loop_calls.wait(call)
            text += call.take()
    except BaseException:
        call.abort()
        raise
    return text


class Events:
    """Splits the text of an event stream into the parsed data of its events."""

    def __init__(self) -> None:
        self._rest = ""

    def add(self, text: str) -> Iterator[Any]:
        *blocks, self._rest = (self._rest + text).split("\n\n")
        for block in blocks:
            data = "\n".join(line[5:].strip() for line in block.split("\n") if line.startswith("data:"))
            if data and data != "[DONE]":
                yield json.loads(data)


def events_of(call: _core.RouteCall) -> Iterator[Any]:
    """The events of a stream as they arrive. A caller that stops early aborts the request."""
    events = Events()
    try:
        while not call.done:
            call.wait()
            yield from events.add(call.take())
    finally:
        call.abort()


async def events_of_async(call: _core.RouteCall, loop_calls: LoopCalls) -> AsyncIterator[Any]:
    events = Events()
    try:
        while not call.done:
            await loop_calls.wait(call)
            for event in events.add(call.take()):
                yield event
    finally:
        call.abort()


def abort(calls: Sequence[_core.Call]) -> None:
    for call in calls:
        call.abort()


def split(body: dict[str, Any]) -> list[dict[str, Any]]:
    """The body of /generate as bodies of at most _GENERATIONS_PER_CALL generations, in order."""
    key = "text" if isinstance(body.get("text"), list) else "input_ids"
    prompts = body.get(key)
    if not isinstance(prompts, list) or not prompts or (key == "input_ids" and isinstance(prompts[0], int)):
        return [body]  # one prompt, or an error that the engine reports
    params = body.get("sampling_params") or {}
    copies = max((p.get("n") or 1 for p in (params if isinstance(params, list) else [params]) if isinstance(p, dict)),
                 default=1)
    size = max(1, _GENERATIONS_PER_CALL // copies) if isinstance(copies, int) else len(prompts)
    if len(prompts) <= size:
        return [body]
    parts = []
    for begin in range(0, len(prompts), size):
        part = {**body, key: prompts[begin:begin + size]}
        for name in _PER_PROMPT:
            value = body.get(name)
            if isinstance(value, list) and len(value) == len(prompts):
                part[name] = value[begin:begin + size]
        parts.append(part)
    return parts
