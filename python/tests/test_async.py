"""Engine.async_generate in event loops."""
import asyncio

import pytest

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


def test_errors_reach_the_coroutine(engine):
    with pytest.raises(ValueError, match="top_p"):
        asyncio.run(engine.async_generate(PROMPT, {"top_p": 7}))
    with pytest.raises(LookupError, match="no such route"):
        asyncio.run(engine.async_request("GET", "/nowhere"))
