"""Engine: generation in this process, with the interface of SGLang's offline engine."""

from __future__ import annotations

import asyncio
import atexit
import functools
import json
import os
import weakref
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any

from . import _calls, _core, _outputs
from .args import EngineArgs
from .errors import InvalidError, SwitchyardError, UnsupportedError

Output = dict[str, Any]  # text, output_ids, meta_info; in a stream of several generations also index
Ids = Sequence[int]

_open_engines: weakref.WeakSet[Engine] = weakref.WeakSet()


class Engine:
    """Loads a checkpoint and generates, on threads of this process: one thread for each rank, and its pool of compute
    threads. Any thread and any event loop may call it. It cannot be used in a process that is forked from this one.

    Arguments are those of EngineArgs, or `engine_args`, an EngineArgs. Ctrl-C ends loading with KeyboardInterrupt.
    """

    def __init__(self, *, engine_args: EngineArgs | None = None, **kwargs: Any) -> None:
        if engine_args is not None and kwargs:
            raise InvalidError(f"engine_args excludes other arguments, but {next(iter(kwargs))} is given", "engine_args")
        self.engine_args = engine_args if engine_args is not None else EngineArgs.from_kwargs(**kwargs)
        self._loops: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _calls.LoopCalls] = weakref.WeakKeyDictionary()
        self._core = _core.Engine(self.engine_args.words())
        _open_engines.add(self)

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()

    def shutdown(self) -> None:
        """Aborts open requests and ends the engine's threads. A second call has no effect."""
        self._core.shutdown()
        _open_engines.discard(self)

    def generate(
        self,
        prompt: str | list[str] | None = None,
        sampling_params: dict[str, Any] | list[dict[str, Any]] | None = None,
        input_ids: Ids | Sequence[Ids] | None = None,
        image_data: Any = None,
        return_logprob: bool | list[bool] = False,
        logprob_start_len: int | list[int] | None = None,
        top_logprobs_num: int | list[int] | None = None,
        token_ids_logprob: list[int] | list[list[int]] | None = None,
        lora_path: str | None = None,
        custom_logit_processor: str | None = None,
        return_hidden_states: bool = False,
        return_routed_experts: bool = False,
        stream: bool = False,
        *,
        logprob_lists: bool = True,
        return_text_in_logprobs: bool = False,
        **fields: Any,
    ) -> Output | list[Output] | Iterator[Output]:
        """Generates for one prompt, a list of prompts, or their ids. Returns a dictionary, or a list for a list of prompts
        or n > 1. With `stream`, returns an iterator, whose items have all output so far.

        Arguments are the fields of POST /generate (docs/python.md); an unknown one raises InvalidError. With
        `return_logprob`, meta_info has SGLang's lists and, without a copy, the same values as arrays (suffixes _val and
        _idx). `logprob_lists=False` omits the lists. meta_info["routed_experts"] is an array [positions, layers, top_k].
        """
        body, make = self._body(locals())
        if stream:
            call = self._core.generate(_dump(body))
            return _calls.stream(call, functools.partial(make, with_index=not call.single))
        calls = self._start(body, None)
        outputs = _calls.finish(calls, make)
        return outputs[0] if calls[0].single else outputs

    async def async_generate(
        self,
        prompt: str | list[str] | None = None,
        sampling_params: dict[str, Any] | list[dict[str, Any]] | None = None,
        input_ids: Ids | Sequence[Ids] | None = None,
        image_data: Any = None,
        return_logprob: bool | list[bool] = False,
        logprob_start_len: int | list[int] | None = None,
        top_logprobs_num: int | list[int] | None = None,
        token_ids_logprob: list[int] | list[list[int]] | None = None,
        lora_path: str | None = None,
        custom_logit_processor: str | None = None,
        return_hidden_states: bool = False,
        return_routed_experts: bool = False,
        stream: bool = False,
        *,
        logprob_lists: bool = True,
        return_text_in_logprobs: bool = False,
        **fields: Any,
    ) -> Output | list[Output] | AsyncIterator[Output]:
        """As generate, for coroutines. With `stream`, the awaited result is an asynchronous iterator. Cancelling the task
        aborts its requests."""
        body, make = self._body(locals())
        loop_calls = self._loop_calls()
        if stream:
            call = await _calls.off_loop(self._core.generate, _dump(body), loop_calls.notifier)
            return _calls.stream_async(call, functools.partial(make, with_index=not call.single), loop_calls)
        calls = await self._start_async(body, loop_calls.notifier)
        outputs = await _calls.finish_async(calls, make, loop_calls)
        return outputs[0] if calls[0].single else outputs

    def encode(self, prompt: str | list[str] | list[int] | list[list[int]], **fields: Any) -> Output | list[Output]:
        """Embeddings of an embedding model, or the scores of a classifier: dictionaries with `embedding` and
        `meta_info`."""
        return self.request("POST", "/encode", _encode_body(prompt, fields))

    async def async_encode(self, prompt: str | list[str] | list[int] | list[list[int]],
                           **fields: Any) -> Output | list[Output]:
        return await self.async_request("POST", "/encode", _encode_body(prompt, fields))

    def score(self, query: str | list[int] | None = None, items: str | list[str] | list[list[int]] | None = None,
              label_token_ids: list[int] | None = None, apply_softmax: bool = False,
              item_first: bool = False) -> list[list[float]]:
        """Probabilities of the tokens `label_token_ids` after query and item, for each item; for a classifier, the scores
        of its classes."""
        return self.request("POST", "/v1/score", _score_body(locals()))["scores"]

    async def async_score(self, query: str | list[int] | None = None,
                          items: str | list[str] | list[list[int]] | None = None,
                          label_token_ids: list[int] | None = None, apply_softmax: bool = False,
                          item_first: bool = False) -> list[list[float]]:
        return (await self.async_request("POST", "/v1/score", _score_body(locals())))["scores"]

    def request(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        """Any route of the server, without HTTP: request("POST", "/v1/chat/completions", {...}). Returns the parsed JSON,
        the text of a response that is not JSON, or with "stream": True in the body an iterator of the parsed events."""
        call = self._core.request(method, path, _route_body(body))
        return _calls.events_of(call) if body and body.get("stream") else _parse(_calls.body_of(call))

    async def async_request(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        """As request, for coroutines. For a stream, the awaited result is an asynchronous iterator."""
        loop_calls = self._loop_calls()
        start = functools.partial(self._core.request, method, path)
        call = await _calls.off_loop(start, _route_body(body), loop_calls.notifier)
        if body and body.get("stream"):
            return _calls.events_of_async(call, loop_calls)
        return _parse(await _calls.body_of_async(call, loop_calls))

    def tokenize(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return self.request("POST", "/tokenize", {"prompt": text, "add_special_tokens": add_special_tokens})["tokens"]

    def detokenize(self, tokens: Ids, skip_special_tokens: bool = True) -> str:
        body = {"tokens": tokens, "skip_special_tokens": skip_special_tokens}
        return self.request("POST", "/detokenize", body)["text"]

    def get_server_info(self) -> dict[str, Any]:
        """Configuration and state, as GET /get_server_info."""
        return self.request("GET", "/get_server_info")

    def flush_cache(self) -> None:
        """Drops the cached prefixes. Raises InvalidError while requests are running."""
        self.request("POST", "/flush_cache", {})

    def abort_request(self, rid: str = "", abort_all: bool = False) -> None:
        self.request("POST", "/abort_request", {"rid": rid, "abort_all": abort_all})

    def update_weights_from_disk(self, model_path: str | os.PathLike[str], load_format: str | None = None,
                                 abort_all_requests: bool = False,
                                 weight_version: str | None = None) -> tuple[bool, str, int]:
        """Replaces the weights by those of a checkpoint with the same configuration. Open requests finish first, with the
        present weights. Returns SGLang's tuple: whether it succeeded, a message, and the number of requests that waited.
        After a failure, the present weights stay."""
        body = {"model_path": os.fspath(model_path), "load_format": load_format,
                "abort_all_requests": abort_all_requests, "weight_version": weight_version}
        try:
            done = self.request("POST", "/update_weights_from_disk",
                                {name: value for name, value in body.items() if value is not None})
        except SwitchyardError as error:
            return False, str(error), 0
        return done["success"], done["message"], done["num_paused_requests"]

    def release_memory_occupation(self, tags: list[str] | None = None) -> None:
        """Releases the memory of `tags`: "weights", "kv_cache"; None: both. Open requests finish first, and later ones
        wait until resume_memory_occupation."""
        self.request("POST", "/release_memory_occupation", {"tags": tags or []})

    def resume_memory_occupation(self, tags: list[str] | None = None) -> None:
        """Gives back the memory of `tags`. Requests continue with an empty cache once nothing is released."""
        self.request("POST", "/resume_memory_occupation", {"tags": tags or []})

    def get_weights_by_name(self, name: str, truncate_size: int = 100) -> Any:
        """Values of a tensor of the present checkpoint, as nested lists. The first dimension is cut to `truncate_size`."""
        return self.request("POST", "/get_weights_by_name", {"name": name, "truncate_size": truncate_size})

    def get_weight_version(self) -> str:
        return self.request("GET", "/get_weight_version")["weight_version"]

    def start_profile(self, **fields: Any) -> dict[str, Any]:
        """Starts a profile of all ranks (docs/profiling.md)."""
        return self.request("POST", "/start_profile", fields)

    def stop_profile(self) -> dict[str, Any]:
        return self.request("POST", "/stop_profile", {})

    def __del__(self) -> None:
        if hasattr(self, "_core"):
            self._core.shutdown()

    def __getattr__(self, name: str) -> Any:
        """Methods of SGLang's Engine that do not exist here raise UnsupportedError, which states the reason."""
        if name in _UNSUPPORTED:
            reason, hint = _UNSUPPORTED[name]
            raise UnsupportedError(f"Engine.{name} is not supported: {reason}" + (f" ({hint})" if hint else ""), name, hint=hint)
        raise AttributeError(f"'Engine' object has no attribute '{name}'")

    def _loop_calls(self) -> _calls.LoopCalls:
        loop = asyncio.get_running_loop()
        loop_calls = self._loops.get(loop)
        if loop_calls is None:
            loop_calls = self._loops[loop] = _calls.LoopCalls()
        return loop_calls

    def _body(self, arguments: dict[str, Any]) -> tuple[dict[str, Any], Callable[..., Output]]:
        """The body of /generate and the function that makes an output of a raw result."""
        arguments = {**arguments, **arguments["fields"]}
        text = self._core.token_text if arguments["return_text_in_logprobs"] else None
        make = functools.partial(_outputs.make_output, lists=arguments["logprob_lists"], text=text, with_index=False)
        for name in ("self", "fields", "logprob_lists", "return_text_in_logprobs", "__class__"):
            arguments.pop(name, None)
        arguments["text"] = arguments.pop("prompt")
        if hasattr(arguments["input_ids"], "tolist"):  # an array or a tensor
            arguments["input_ids"] = arguments["input_ids"].tolist()
        return {name: value for name, value in arguments.items() if value is not None}, make

    def _start(self, body: dict[str, Any], notifier: _core.Notifier | None) -> list[_core.GenerateCall]:
        calls: list[_core.GenerateCall] = []
        try:
            for part in _calls.split(body):
                calls.append(self._core.generate(_dump(part), notifier))
        except BaseException:
            _calls.abort(calls)
            raise
        return calls

    async def _start_async(self, body: dict[str, Any], notifier: _core.Notifier) -> list[_core.GenerateCall]:
        calls: list[_core.GenerateCall] = []
        try:
            for part in _calls.split(body):
                calls.append(await _calls.off_loop(self._core.generate, _dump(part), notifier))
        except BaseException:
            _calls.abort(calls)
            raise
        return calls


_NO_UPDATE = ("the trainer writes a checkpoint", "want update_weights_from_disk; examples/python/rollout.py")
_UNSUPPORTED = {  # by name: reason and hint
    "update_weights_from_tensor": _NO_UPDATE,
    "update_weights_from_distributed": _NO_UPDATE,
    "init_weights_update_group": _NO_UPDATE,
    "load_lora_adapter": ("there are no LoRA adapters", ""),
    "unload_lora_adapter": ("there are no LoRA adapters", ""),
    "collective_rpc": ("ranks have no remote calls", ""),
    "save_sharded_model": ("the engine writes no checkpoints", ""),
    "save_remote_model": ("the engine writes no checkpoints", ""),
    "open_session": ("there are no sessions", ""),
    "close_session": ("there are no sessions", ""),
}


@atexit.register
def _shut_all_down() -> None:
    for engine in list(_open_engines):
        engine.shutdown()


def _plain(value: Any) -> Any:
    """Arrays, tensors and their scalars in a body."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} cannot be part of a request")


def _dump(body: dict[str, Any]) -> str:
    return json.dumps(body, default=_plain)


def _parse(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


def _route_body(body: dict[str, Any] | None) -> str:
    return "" if body is None else _dump(body)


def _encode_body(prompt: Any, fields: dict[str, Any]) -> dict[str, Any]:
    prompt = prompt.tolist() if hasattr(prompt, "tolist") else prompt
    first = prompt[0] if isinstance(prompt, list) and prompt else prompt
    return {"text" if isinstance(first, str) else "input_ids": prompt, **fields}


def _score_body(arguments: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in arguments.items() if name != "self" and value is not None}
