"""A server for tests with clients: a small model whose chat template shows tools, calls and their results.

The model calls no tools by itself. A test forces the first call with tool_choice, and the model answers freely after it.
Values of arguments are short by their schema: the model would write a free string up to the token limit.
"""
import pathlib
from typing import Literal

import pydantic

from server import ROOT, Server

MODEL = "small"
TEMPLATE = pathlib.Path(__file__).with_name("calls.jinja")
QUESTION = "What is a router?"
# A tool as JSON schema, with its possible values.
CITIES = ["Oslo", "Rome"]
WEATHER = {"type": "object", "additionalProperties": False, "required": ["city", "days"], "properties": {
    "city": {"type": "string", "enum": CITIES}, "days": {"type": "integer", "enum": [1, 2, 3]}}}


class Place(pydantic.BaseModel):
    """A place, with the values of WEATHER."""

    city: Literal["Oslo", "Rome"]
    days: Literal[1, 2, 3]


def tool_server(*flags):
    return Server(ROOT / "models/yardling", "--chat-template", TEMPLATE, "--max-total-tokens", 8192, "--device", "cpu",
                  "--served-model-name", MODEL, "--constrained-json-disable-any-whitespace", *flags)


def is_weather(arguments):
    return set(arguments) == {"city", "days"} and arguments["city"] in CITIES and arguments["days"] in (1, 2, 3)
