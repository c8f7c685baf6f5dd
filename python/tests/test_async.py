"""Engine.async_generate in event loops."""
import asyncio
import threading

import pytest
import switchyard

from conftest import GREEDY

PROMPT = "What is dispatch?"


def test_coroutines_share_the_engine(engine):
    want = engine.generate(PROMPT, GREEDY)["output_ids"]

    async def run():
        outputs = await asyncio.gather(*(engine.async_generate(PROMPT, GREEDY) for _ in range(200)))
        batch = await engine.async_generate([PROMPT] * 3, GREEDY)
        return [*outputs, *batch]

    for _ in range(2):  # an event loop each
        assert all(output["output_ids"] == want for output in asyncio.run(run()))


def test_streams_of_coroutines(engine):
    want = engine.generate(PROMPT, GREEDY)["text"]

    async def last():
        stream = await engine.async_generate(PROMPT, GREEDY, stream=True)
        async for chunk in stream:
            text = chunk["text"]
        return text

    async def run():
        return await asyncio.gather(*(last() for _ in range(10)))

    assert asyncio.run(run()) == [want] * 10


def test_a_cancelled_task_aborts_its_request(engine):
    async def run():
        task = asyncio.create_task(engine.async_generate(PROMPT, {**GREEDY, "max_new_tokens": 4000}))
        await asyncio.sleep(0.3)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        for _ in range(200):
            info = await engine.async_request("GET", "/get_server_info")
            if info["internal_states"][0]["running_requests"] == 0:
                return True
            await asyncio.sleep(0.05)
        return False

    assert asyncio.run(run())


def test_other_coroutines_run_meanwhile(engine):
    async def run():
        ticks = 0
        task = asyncio.create_task(engine.async_generate([PROMPT] * 8, {**GREEDY, "max_new_tokens": 200}))
        while not task.done():
            ticks += 1
            await asyncio.sleep(0.001)
        return ticks, len(await task)

    ticks, outputs = asyncio.run(run())
    assert ticks > 5 and outputs == 8


def test_long_prompts_are_tokenized_off_the_loop(engine, monkeypatch):
    """So that they do not delay the other coroutines. Short ones need no other thread."""
    threads = []

    class Core:
        def __init__(self, core):
            self.core = core

        def __getattr__(self, name):
            return getattr(self.core, name)

        def generate(self, *arguments):
            threads.append(threading.current_thread())
            return self.core.generate(*arguments)

        def request(self, *arguments):
            threads.append(threading.current_thread())
            return self.core.request(*arguments)

    monkeypatch.setattr(engine, "_core", Core(engine._core))
    long = PROMPT * 300

    async def run():
        here = threading.current_thread()
        short = await engine.async_generate(PROMPT, GREEDY)
        outputs = [await engine.async_generate(long, GREEDY), *await engine.async_generate([long, PROMPT], GREEDY)]
        async for chunk in await engine.async_generate(long, GREEDY, stream=True):
            last = chunk
        tokens = await engine.async_request("POST", "/tokenize", {"prompt": long})
        assert len(tokens["tokens"]) == outputs[0]["meta_info"]["prompt_tokens"]
        assert [thread is here for thread in threads] == [True, False, False, False, False]
        return short, outputs, last

    short, outputs, last = asyncio.run(run())
    assert outputs[0]["text"] == outputs[1]["text"] == last["text"] and outputs[2]["text"] == short["text"]
    with pytest.raises(switchyard.InvalidError, match="top_p"):
        asyncio.run(engine.async_generate(long, {"top_p": 7}))


def test_errors_reach_the_coroutine(engine):
    with pytest.raises(ValueError, match="top_p"):
        asyncio.run(engine.async_generate(PROMPT, {"top_p": 7}))
    with pytest.raises(LookupError, match="no such route"):
        asyncio.run(engine.async_request("GET", "/nowhere"))
