"""Updates of the weights of a running engine, and release of its memory."""
import json
import shutil
import struct

import pytest

import switchyard
from conftest import FIXTURES, GREEDY, SMALL

MODEL = FIXTURES / "deepseek_v3"
IDS = [[5, 6, 7], [9, 8, 7, 6, 5]]
FLAGS = {**SMALL, "tp_size": 2, "ep_size": 2, "moe_a2a_backend": "deepep", "dtype": "float32"}


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    """MODEL with the rows of its head in reverse order."""
    folder = tmp_path_factory.mktemp("other") / "model"
    shutil.copytree(MODEL, folder)
    file = folder / "model.safetensors"
    file.chmod(0o644)
    raw = bytearray(file.read_bytes())
    size = struct.unpack("<Q", raw[:8])[0]
    entry = json.loads(raw[8:8 + size])["lm_head.weight"]
    begin, end = (8 + size + offset for offset in entry["data_offsets"])
    row = (end - begin) // entry["shape"][0]
    raw[begin:end] = b"".join(bytes(raw[i:i + row]) for i in range(end - row, begin - 1, -row))
    file.write_bytes(raw)
    return folder


def outputs(engine):
    return [output["output_ids"] for output in engine.generate(input_ids=IDS, sampling_params=GREEDY)]


def test_an_update_gives_the_outputs_of_a_new_engine(other):
    with switchyard.Engine(model_path=other, **FLAGS) as engine:
        want = outputs(engine)
    with switchyard.Engine(model_path=MODEL, **FLAGS) as engine:
        before = outputs(engine)
        assert before != want
        done, message, _ = engine.update_weights_from_disk(FIXTURES / "olmoe")
        assert not done and "the configuration of the new weights differs from the present one" in message
        assert not engine.update_weights_from_disk(other, load_format="flash_rl")[0]
        assert outputs(engine) == before and engine.get_weight_version() == "default"
        assert engine.update_weights_from_disk(other, weight_version="1") == (
            True, "Succeeded to update model weights. Weight version updated to 1.", 0)
        assert outputs(engine) == want and engine.get_weight_version() == "1"
        assert len(engine.get_weights_by_name("lm_head.weight", truncate_size=3)) == 3
        for _ in range(3):
            engine.release_memory_occupation()
            assert engine.update_weights_from_disk(MODEL)[0]
            engine.resume_memory_occupation(["weights"])
            engine.resume_memory_occupation(["kv_cache"])
            assert outputs(engine) == before
        engine.release_memory_occupation(["kv_cache"])
        engine.resume_memory_occupation()
        assert outputs(engine) == before
        with pytest.raises(switchyard.InvalidError, match="tags has disk"):
            engine.release_memory_occupation(["disk"])
