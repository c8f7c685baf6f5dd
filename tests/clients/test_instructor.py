"""instructor: output that is parsed into models, by calls, JSON and JSON schema."""

import instructor
import openai
import pydantic
import pytest
from instructor.exceptions import IncompleteOutputException, InstructorRetryException

from tool_server import MODEL, QUESTION, Place

USER = [{"role": "user", "content": QUESTION}]


class Anything(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="allow")


@pytest.fixture(params=["TOOLS", "TOOLS_STRICT", "JSON_SCHEMA", "RESPONSES_TOOLS"])
def mode(request):
    return instructor.Mode[request.param]


def client_of(server, mode):
    return instructor.from_openai(openai.OpenAI(base_url=server.url + "/v1", api_key="x", max_retries=0), mode=mode)


def limit(mode):
    return {"max_output_tokens" if mode == instructor.Mode.RESPONSES_TOOLS else "max_tokens": 100}


def test_output_is_parsed(server, mode):
    client = client_of(server, mode)
    place = client.chat.completions.create(model=MODEL, messages=USER, response_model=Place, max_retries=0, **limit(mode))
    assert isinstance(place, Place)


def test_parts_of_the_output_are_parsed_while_it_streams(server, mode):
    if mode == instructor.Mode.RESPONSES_TOOLS:
        pytest.skip("instructor has no partial output of responses")
    client = client_of(server, mode)
    parts = list(client.chat.completions.create_partial(model=MODEL, messages=USER, response_model=Place, max_retries=0,
                                                        **limit(mode)))
    assert len(parts) > 1 and parts[-1].city in ("Oslo", "Rome") and parts[-1].days in (1, 2, 3)


@pytest.mark.parametrize("mode", ["JSON", "MD_JSON"])
def test_the_schema_may_be_in_the_prompt_only(server, mode):
    """The output is any JSON object, or any text, because the request constrains no more."""
    client = client_of(server, instructor.Mode[mode])
    try:
        client.chat.completions.create(model=MODEL, messages=USER, response_model=Anything, max_retries=0, max_tokens=200)
    except (IncompleteOutputException, InstructorRetryException) as error:
        assert mode == "MD_JSON" or "max_tokens" in str(error) or isinstance(error, IncompleteOutputException), error
        assert "Error code" not in str(error)


def test_lists_of_models_are_parsed_one_by_one(server):
    client = client_of(server, instructor.Mode.TOOLS)
    places = client.chat.completions.create_iterable(model=MODEL, messages=USER, response_model=Place, max_retries=0,
                                                     max_tokens=100, parallel_tool_calls=False)
    try:
        assert all(isinstance(place, Place) for place in places)
    except IncompleteOutputException:
        pass  # the list reached max_tokens
