"""Engine.generate and its output dictionaries."""
import math
import os
import pathlib
import subprocess
import sys
import threading
import time

import numpy
import pytest
import switchyard

from conftest import GREEDY, SMALL, YARDLING

PROMPT = "What is dispatch?"


def test_one_prompt_gives_a_dictionary_in_sglangs_format(engine):
    output = engine.generate(PROMPT, GREEDY)
    assert set(output) == {"text", "output_ids", "meta_info"}
    meta = output["meta_info"]
    assert meta["finish_reason"] == {"type": "length", "length": 8}
    assert meta["completion_tokens"] == len(output["output_ids"]) == 8
    assert meta["prompt_tokens"] == len(engine.tokenize(PROMPT))
    assert meta["weight_version"] == "default" and meta["e2e_latency"] > 0 and meta["id"]
    assert "output_token_logprobs" not in meta
    assert engine.detokenize(output["output_ids"]) == output["text"]


def test_lists_and_ids_give_the_same_outputs(engine):
    one = engine.generate(PROMPT, GREEDY)
    ids = engine.tokenize(PROMPT)
    batch = engine.generate([PROMPT, "7 times 8"], [GREEDY, {**GREEDY, "max_new_tokens": 3}])
    assert [len(output["output_ids"]) for output in batch] == [8, 3]
    for output in (batch[0], engine.generate(input_ids=ids, sampling_params=GREEDY),
                   engine.generate(input_ids=[ids], sampling_params=GREEDY)[0],
                   engine.generate(input_ids=numpy.array(ids), sampling_params=GREEDY),
                   engine.generate(input_ids=[numpy.array(ids)], sampling_params=GREEDY)[0]):
        assert output["output_ids"] == one["output_ids"] and output["text"] == one["text"]


def test_stop_conditions_and_copies(engine):
    stop = engine.generate(PROMPT, {**GREEDY, "max_new_tokens": 32})["text"][10:14]
    stopped = engine.generate(PROMPT, {**GREEDY, "max_new_tokens": 32, "stop": [stop]})
    assert stopped["meta_info"]["finish_reason"] == {"type": "stop", "matched": stop}
    assert stop not in stopped["text"]
    copies = engine.generate(PROMPT, {"temperature": 1.5, "max_new_tokens": 12, "n": 3, "sampling_seed": 5})
    assert len(copies) == 3 and len({tuple(copy["output_ids"]) for copy in copies}) > 1


def test_structured_output(engine):
    output = engine.generate(PROMPT, {**GREEDY, "ignore_eos": False, "max_new_tokens": 32, "regex": "[0-9]{3}"})
    assert output["text"].isdigit() and len(output["text"]) == 3


def test_a_stream_has_the_output_so_far(engine):
    whole = engine.generate(PROMPT, GREEDY)
    chunks = list(engine.generate(PROMPT, GREEDY, stream=True))
    assert all(later["output_ids"][:len(earlier["output_ids"])] == earlier["output_ids"]
               for earlier, later in zip(chunks, chunks[1:]))
    assert chunks[-1]["text"] == whole["text"] and chunks[-1]["meta_info"]["finish_reason"]
    assert "index" not in chunks[0]
    last = {chunk["index"]: chunk["text"] for chunk in engine.generate([PROMPT] * 2, GREEDY, stream=True)}
    assert last == {0: whole["text"], 1: whole["text"]}


def test_a_stream_that_is_not_read_to_the_end_is_aborted(engine):
    stream = engine.generate(PROMPT, {**GREEDY, "max_new_tokens": 3000}, stream=True)
    next(stream)
    stream.close()
    for _ in range(200):
        if engine.get_server_info()["internal_states"][0]["running_requests"] == 0:
            return
        time.sleep(0.05)
    pytest.fail("the request is still running")


def test_logprobs_are_lists_and_arrays(engine):
    output = engine.generate(PROMPT, GREEDY, return_logprob=True, logprob_start_len=0, top_logprobs_num=2,
                             token_ids_logprob=[5, 6, 7], return_text_in_logprobs=True)
    meta = output["meta_info"]
    assert meta["input_token_logprobs"][0][0] is None and meta["input_top_logprobs"][0] is None
    logprob, token, text = meta["output_token_logprobs"][3]
    assert token == output["output_ids"][3] and logprob < 0 and engine.detokenize([token], False) == text
    assert meta["output_top_logprobs"][3][0] == meta["output_token_logprobs"][3]  # greedy
    assert [t for _, t, _ in meta["output_token_ids_logprobs"][0]] == [5, 6, 7]
    values, ids = meta["output_token_logprobs_val"], meta["output_token_logprobs_idx"]
    assert values.dtype == numpy.float32 and ids.dtype == numpy.int32
    assert ids.tolist() == output["output_ids"]
    assert values.tolist() == [v for v, _, _ in meta["output_token_logprobs"]]
    assert meta["output_top_logprobs_val"].shape == (8, 2) and meta["output_token_ids_logprobs_val"].shape == (8, 3)
    assert math.isnan(meta["input_token_logprobs_val"][0])


def test_logprob_lists_can_be_omitted(engine):
    meta = engine.generate(PROMPT, GREEDY, return_logprob=True, logprob_lists=False)["meta_info"]
    assert "output_token_logprobs" not in meta and meta["output_token_logprobs_val"].shape == (8,)
    assert meta["input_token_logprobs_val"].shape == (0,)


def test_arrays_share_the_engines_memory(engine):
    meta = engine.generate(PROMPT, GREEDY, return_logprob=True, return_routed_experts=True)["meta_info"]
    for array in (meta["output_token_logprobs_val"], meta["routed_experts"]):
        assert not array.flags.owndata and array.flags.c_contiguous and array.flags.writeable
        view = numpy.from_dlpack(array)
        assert view.ctypes.data == array.ctypes.data


TORCH = f"""
import torch, switchyard
with switchyard.Engine(model_path={str(YARDLING)!r}, **{SMALL!r}) as engine:
    output = engine.generate(input_ids=torch.tensor([5, 6, 7]), sampling_params={GREEDY!r}, return_logprob=True,
                             return_routed_experts=True)
    assert output["output_ids"] == engine.generate(input_ids=[5, 6, 7], sampling_params={GREEDY!r})["output_ids"]
    for name in ("output_token_logprobs_val", "routed_experts"):
        array = output["meta_info"][name]
        tensor = torch.from_dlpack(array)
        assert tensor.data_ptr() == array.ctypes.data and tuple(tensor.shape) == array.shape
        tensor.fill_(3)
        assert (array == 3).all()
print("shared")
"""


def test_tensors_of_pytorch_share_the_engines_memory(tmp_path):
    """In this interpreter, or in Debian's (python3-torch), if one of them has PyTorch and loads the extension module."""
    packages = pathlib.Path(switchyard.__file__).parents[1]
    for name in ("switchyard", "switchyard.libs"):  # without the NumPy of this environment
        (tmp_path / name).symlink_to(packages / name)
    for python, path in ((sys.executable, None), ("/usr/bin/python3", str(tmp_path))):
        environment = {**os.environ, **({"PYTHONPATH": path} if path else {})}
        has = subprocess.run([python, "-c", "import torch, switchyard._core"], env=environment, capture_output=True)
        if has.returncode == 0:
            done = subprocess.run([python, "-c", TORCH], env=environment, capture_output=True, text=True, timeout=120)
            assert done.stdout == "shared\n", done.stderr
            return
    pytest.skip("no interpreter has PyTorch (Debian: python3-torch)")


def test_routed_experts_of_all_positions(engine):
    output = engine.generate(PROMPT, GREEDY, return_routed_experts=True)
    experts = output["meta_info"]["routed_experts"]
    computed = output["meta_info"]["prompt_tokens"] + 8 - 1
    assert experts.dtype == numpy.int32 and experts.shape[0] == computed and experts.ndim == 3
    assert experts.max() < 16 and (experts[:, -1] >= 0).all()  # 16 experts; the last layer has them
    again = engine.generate(input_ids=[engine.tokenize(PROMPT)] * 2, sampling_params=GREEDY, return_routed_experts=True)
    assert all((o["meta_info"]["routed_experts"] == experts).all() for o in again)


def test_errors_have_kind_field_and_hint(engine):
    with pytest.raises(switchyard.InvalidError, match="top_p") as error:
        engine.generate(PROMPT, {"top_p": 7})
    assert error.value.kind == "invalid" and error.value.param == "sampling_params.top_p"
    assert isinstance(error.value, ValueError)
    with pytest.raises(switchyard.InvalidError, match="retrun_logprob is unknown"):
        engine.generate(PROMPT, GREEDY, retrun_logprob=True)
    with pytest.raises(switchyard.InvalidError, match="topk is unknown"):
        engine.generate(PROMPT, {"topk": 7})
    with pytest.raises(switchyard.InvalidError, match="image_data is not supported"):
        engine.generate(PROMPT, GREEDY, image_data="picture.png")
    with pytest.raises(switchyard.InvalidError, match="text"):
        engine.generate()
    with pytest.raises(TypeError, match="set cannot be part"):
        engine.generate(PROMPT, {"stop": {"a"}})
    error = switchyard.errors.from_core("resource", "rank 1 has no memory (lower --tp)", "", "lower --tp")
    assert isinstance(error, switchyard.ResourceError) and error.hint == "lower --tp" and error.hint in str(error)


def test_large_batches_are_split(engine):
    ids = [[5 + i % 50, 6, 7] for i in range(4500)]
    outputs = engine.generate(input_ids=ids, sampling_params={**GREEDY, "max_new_tokens": 1})
    assert len(outputs) == 4500
    single = engine.generate(input_ids=ids[4321], sampling_params={**GREEDY, "max_new_tokens": 1})
    assert outputs[4321]["output_ids"] == single["output_ids"]


def test_other_threads_run_while_the_engine_computes(engine):
    count, end = 0, threading.Event()

    def work():
        nonlocal count
        while not end.is_set():
            count += 1
            time.sleep(0.001)

    thread = threading.Thread(target=work)
    thread.start()
    before = count
    engine.generate([PROMPT] * 8, {**GREEDY, "max_new_tokens": 200})
    during = count - before
    end.set()
    thread.join()
    assert during > 5


def test_threads_may_call_concurrently(engine):
    want = engine.generate(PROMPT, GREEDY)["output_ids"]
    got = []
    threads = [threading.Thread(target=lambda: got.append(engine.generate(PROMPT, GREEDY)["output_ids"])) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert got == [want] * 16
