"""EngineArgs: the arguments of an engine, as flags of `switchyard serve`."""

from __future__ import annotations

import dataclasses
import json
import os
from typing import Any

from .errors import InvalidError


@dataclasses.dataclass
class EngineArgs:
    """Arguments of an Engine. Each field is a flag of `switchyard serve` with underscores for dashes; None leaves the
    flag's default. `switchyard serve --help` describes all flags. Flags without a field go into `flags`:

        EngineArgs(model_path="DIR", tp_size=2, flags={"enable_eplb": True})

    Flags of HTTP, several hosts, rank restarts, and prefill and decode workers are refused by name when the engine starts.
    """

    model_path: str | os.PathLike[str]
    tokenizer_path: str | None = None
    load_format: str | None = None
    json_model_override_args: str | dict[str, Any] | None = None
    quantization: str | None = None
    dtype: str | None = None
    kv_cache_dtype: str | None = None
    context_length: int | None = None
    is_embedding: bool | None = None
    chat_template: str | None = None
    device: str | None = None
    base_gpu_id: int | None = None
    tp_size: int | None = None
    ep_size: int | None = None
    dp_size: int | None = None
    enable_dp_attention: bool | None = None
    moe_a2a_backend: str | None = None
    moe_runner_backend: str | None = None
    deepep_mode: str | None = None
    speculative_algorithm: str | None = None
    mem_fraction_static: float | None = None
    max_total_tokens: int | None = None
    max_running_requests: int | None = None
    max_queued_requests: int | None = None
    chunked_prefill_size: int | None = None
    page_size: int | None = None
    schedule_policy: str | None = None
    disable_radix_cache: bool | None = None
    cpu_threads_per_rank: int | None = None
    cpu_bind: str | None = None
    random_seed: int | None = None
    weight_version: str | None = None
    stream_output: bool | None = None
    log_level: str | None = "warning"
    flags: dict[str, Any] = dataclasses.field(default_factory=dict)

    @classmethod
    def from_kwargs(cls, **kwargs: Any) -> EngineArgs:
        """Distributes keyword arguments over the fields and `flags`."""
        names = {field.name for field in dataclasses.fields(cls)}
        if "model_path" not in kwargs and "model" not in kwargs:
            raise InvalidError("model_path is missing", "model_path")
        known = {name: value for name, value in kwargs.items() if name in names}
        known.setdefault("model_path", kwargs.get("model"))
        others = {name: value for name, value in kwargs.items() if name not in names and name != "model"}
        known["flags"] = {**others, **known.get("flags", {})}
        return cls(**known)

    def words(self) -> list[str]:
        """The command line: `--name=value`, or a switch, or `--name` and several values."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self) if field.name != "flags"}
        for name in self.flags:
            if values.get(name.replace("-", "_")) is not None:
                raise InvalidError(f"{name} is given twice: as a field and in flags", name)
        words: list[str] = []
        for name, value in {**values, **self.flags}.items():
            flag = "--" + name.replace("_", "-")
            if value is None:
                continue
            if isinstance(value, bool):
                words.append(flag if value else f"{flag}=false")
            elif isinstance(value, (list, tuple)):
                words += [flag, *map(str, value)]
            else:
                words.append(f"{flag}={json.dumps(value) if isinstance(value, dict) else value}")
        return words
