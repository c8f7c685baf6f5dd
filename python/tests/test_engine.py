"""Engine: arguments, life, other calls than generate."""
import asyncio
import threading

import numpy
import pytest
import switchyard
from switchyard import EngineArgs

from conftest import FIXTURES, GREEDY, POOLING, SMALL

MODEL = FIXTURES / "qwen3_moe"
IDS = [5, 6, 7]


def test_arguments_become_flags():
    args = EngineArgs.from_kwargs(model_path="DIR", tp_size=2, enable_dp_attention=True, disable_radix_cache=False,
                                  max_queued_requests=-1, json_model_override_args={"a": 1}, enable_eplb=True,
                                  cuda_graph_max_bs=8)
    assert args.flags == {"enable_eplb": True, "cuda_graph_max_bs": 8}
    assert args.words() == ["--model-path=DIR", '--json-model-override-args={"a": 1}', "--tp-size=2",
                            "--enable-dp-attention", "--max-queued-requests=-1", "--disable-radix-cache=false",
                            "--log-level=warning", "--enable-eplb", "--cuda-graph-max-bs=8"]
    with pytest.raises(switchyard.InvalidError, match="tp-size is given twice"):
        EngineArgs("DIR", tp_size=2, flags={"tp-size": 4}).words()


@pytest.mark.parametrize("arguments, text", [
    ({"port": 1234}, "--port: an engine in this process serves no HTTP"),
    ({"nnodes": 2}, "--nnodes: an engine in this process has ranks on this host only"),
    ({"enable_elastic_ep": True}, "--enable-elastic-ep: the ranks"),
    ({"tp_siez": 2}, "tp-siez"),
    ({"tp_size": 3, "ep_size": 2}, "--ep 2 does not divide --tp 3"),
    ({"moe_a2a_backend": "mori"}, "mori"),
    ({"log_level": "loud"}, "--log-level"),
])
def test_wrong_arguments_are_refused_by_name(arguments, text):
    with pytest.raises(switchyard.InvalidError, match=text):
        switchyard.Engine(model_path=MODEL, **SMALL, **arguments)


def test_a_missing_checkpoint_is_an_error():
    with pytest.raises(switchyard.SwitchyardError, match="nowhere") as error:
        switchyard.Engine(model_path="/nowhere/model")
    assert error.value.kind in ("not_found", "invalid")
    with pytest.raises(switchyard.InvalidError, match="model_path is missing"):
        switchyard.Engine(tp_size=2)
    with pytest.raises(switchyard.InvalidError, match="engine_args excludes"):
        switchyard.Engine(engine_args=EngineArgs("DIR"), tp_size=2)


def test_engine_args_and_shutdown():
    with switchyard.Engine(engine_args=EngineArgs(MODEL, **SMALL)) as engine:
        assert len(engine.generate(input_ids=IDS, sampling_params=GREEDY)["output_ids"]) == 8
        assert engine.engine_args.model_path == MODEL
    with pytest.raises(switchyard.UnavailableError, match="has been shut down"):
        engine.generate(input_ids=IDS)
    engine.shutdown()


def test_shutdown_ends_a_call_of_another_thread():
    engine = switchyard.Engine(model_path=MODEL, **SMALL)
    started, ends = threading.Event(), []

    def run():
        for chunk in engine.generate(input_ids=IDS, sampling_params={**GREEDY, "max_new_tokens": 3000}, stream=True):
            started.set()
        ends.append(chunk["meta_info"]["finish_reason"]["type"])

    thread = threading.Thread(target=run)
    thread.start()
    assert started.wait(60)
    engine.shutdown()
    thread.join(60)
    assert ends == ["abort"]


def test_several_engines_in_one_process():
    with switchyard.Engine(model_path=MODEL, dtype="float32", **SMALL) as one, \
            switchyard.Engine(model_path=MODEL, dtype="float32", tp_size=2, ep_size=2, moe_a2a_backend="deepep",
                              **SMALL) as two:
        outputs = [e.generate(input_ids=IDS, sampling_params=GREEDY)["output_ids"] for e in (one, two)]
    assert outputs[0] == outputs[1]


def test_methods_of_sglang_that_do_not_exist_say_why(engine):
    with pytest.raises(switchyard.UnsupportedError, match="update_weights_from_tensor is not supported") as error:
        engine.update_weights_from_tensor([])
    assert isinstance(error.value, NotImplementedError) and "want update_weights_from_disk" in str(error.value)
    assert not hasattr(engine, "init_weights_update_group")
    with pytest.raises(AttributeError, match="no attribute 'genrate'"):
        engine.genrate()


def test_chat_and_other_routes(engine):
    answer = engine.request("POST", "/v1/chat/completions", {
        "messages": [{"role": "user", "content": "What is dispatch?"}], "temperature": 0, "max_tokens": 40})
    assert "token row" in answer["choices"][0]["message"]["content"]
    assert engine.get_server_info()["tp_size"] == 2
    assert "prompt_tokens" in engine.request("GET", "/metrics")
    engine.flush_cache()
    with pytest.raises(switchyard.InvalidError, match="messages") as error:
        engine.request("POST", "/v1/chat/completions", {"messages": 3})
    assert error.value.param == "messages"
    with pytest.raises(switchyard.NotFoundError, match="no such route"):
        engine.request("GET", "/v2/models")


def test_streams_of_other_routes(engine):
    body = {"messages": [{"role": "user", "content": "What is dispatch?"}], "temperature": 0, "max_tokens": 40}
    whole = engine.request("POST", "/v1/chat/completions", body)["choices"][0]["message"]["content"]

    def text(events):
        return "".join(event["choices"][0]["delta"].get("content") or "" for event in events)

    async def run():
        stream = await engine.async_request("POST", "/v1/chat/completions", {**body, "stream": True})
        return [event async for event in stream]

    assert text(engine.request("POST", "/v1/chat/completions", {**body, "stream": True})) == whole
    assert text(asyncio.run(run())) == whole
    with pytest.raises(switchyard.InvalidError, match="messages"):
        list(engine.request("POST", "/v1/chat/completions", {"messages": 3, "stream": True}))


def test_scores_of_label_tokens(engine):
    scores = engine.score("7 times 8 is ", ["56", "57"], [5, 6], apply_softmax=True)
    assert len(scores) == 2 and abs(sum(scores[0]) - 1) < 1e-5
    assert asyncio.run(engine.async_score("7 times 8 is ", ["56", "57"], [5, 6], apply_softmax=True)) == scores


def test_embeddings():
    with switchyard.Engine(model_path=POOLING / "qwen3_embedding", is_embedding=True, **SMALL) as engine:
        one, batch = engine.encode("Hello"), engine.encode(["Hello", "yard"])
        vector = numpy.array(one["embedding"])
        assert abs(numpy.linalg.norm(vector) - 1) < 1e-5
        assert batch[0]["embedding"] == one["embedding"] and len(batch) == 2
        assert asyncio.run(engine.async_encode(engine.tokenize("Hello")))["embedding"] == one["embedding"]
        with pytest.raises(switchyard.InvalidError):
            engine.generate("Hello")


def test_profile(engine, tmp_path):
    engine.start_profile(output_dir=str(tmp_path), profile_id="p")
    engine.generate(input_ids=IDS, sampling_params=GREEDY)
    assert len(engine.stop_profile()["files"]) == 2
