"""The weights and the memory of a running server change, as a loop of reinforcement learning changes them. Outputs then
equal those of a server that starts with the same weights, byte for byte."""
import array
import json
import os
import pathlib
import random
import shutil
import struct
import tempfile
import threading
import time

import pytest

from elastic import metric
from server import FIXTURES, ROOT, Server
from test_eplb import RANKS, answers, balancedness, eplb, rank_counts, settle, skewed

LONG = ["--json-model-override-args", '{"max_position_embeddings": 4096}']
YARDLING = ROOT / "models" / "yardling"
MODEL = FIXTURES / "deepseek_v3"
FLAGS = ["--device", "cpu", "--max-total-tokens", 4096, "--cpu-bind", "none", "--cpu-threads-per-rank", 1]
LAYOUTS = {
    "tp1": ["--tp", 1, "--ep", 1],
    "tp2-ep2": ["--tp", 2, "--ep", 2, "--moe-a2a-backend", "deepep"],
    "dp-attention": ["--tp", 2, "--ep", 2, "--dp-size", 2, "--enable-dp-attention", "--moe-a2a-backend", "deepep",
                     "--moe-dense-tp-size", 1],
    "int8": ["--tp", 2, "--ep", 2, "--moe-a2a-backend", "deepep", "--quantization", "w8a8_int8"],
}


def changed(source, directory, seed):
    """A copy of the checkpoint with other weights: each tensor of bfloat16 or float32 values has them in another order,
    except for norms and biases."""
    shutil.copytree(source, directory)
    directory.chmod(0o755)
    file = directory / "model.safetensors"
    file.chmod(0o644)
    raw = bytearray(file.read_bytes())
    size = struct.unpack("<Q", raw[:8])[0]
    for name, entry in json.loads(raw[8:8 + size]).items():
        width = {"BF16": 2, "F32": 4}.get(entry.get("dtype"))
        if width is None or len(entry["shape"]) < 2:
            continue
        begin, end = (8 + size + offset for offset in entry["data_offsets"])
        values = array.array({2: "H", 4: "I"}[width], bytes(raw[begin:end]))
        random.Random(f"{name} {seed}").shuffle(values)
        raw[begin:end] = values.tobytes()
    new = file.with_suffix(".new")
    new.write_bytes(raw)
    new.replace(file)
    return directory


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("weights")
    return [MODEL, *(changed(MODEL, folder / f"seed{seed}", seed) for seed in (1, 2))]


def outputs(server):
    """Tokens and log-probabilities of greedy and sampled generations."""
    r = random.Random(5)
    prompts = [[r.randrange(2, 250) for _ in range(r.randrange(3, 40))] for _ in range(6)]
    status, got = server.request("/generate", {
        "input_ids": prompts, "return_logprob": True,
        "sampling_params": [{"temperature": i % 2, "sampling_seed": i, "max_new_tokens": 12, "ignore_eos": True}
                            for i in range(len(prompts))]})
    assert status == 200, (got, server.text())
    return [(one["output_ids"], one["meta_info"]["output_token_logprobs"]) for one in got]


def update(server, path, **fields):
    return server.request("/update_weights_from_disk", {"model_path": str(path), **fields})


def must(answer):
    assert answer[0] == 200 and answer[1]["success"], answer
    return answer[1]


def memory_of(pids):
    """Proportional set size in KiB."""
    total = 0
    for pid in pids:
        for line in pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                total += int(line.split()[1])
    return total


def fresh(model, flags, env=None):
    with Server(model, *flags, env=env) as server:
        return outputs(server)


@pytest.mark.parametrize("name", LAYOUTS)
def test_outputs_after_an_update_equal_a_fresh_start(models, name):
    flags = [*FLAGS, *LAYOUTS[name]]
    want = [fresh(model, flags) for model in models]
    assert want[0] != want[1] != want[2]
    with Server(models[0], *flags, "--weight-version", "v0") as server:
        assert outputs(server) == want[0]
        for step in (1, 2, 0):  # beside the present ranks
            must(update(server, models[step], weight_version=f"v{step}"))
            assert outputs(server) == want[step], server.text()
            assert server.request("/get_weight_version")[1] == {"weight_version": f"v{step}"}
            assert server.request("/get_model_info")[1]["model_path"] == str(models[step])
        # The loop of verl: release, resume the weights, update them, resume the cache.
        must(server.request("/release_memory_occupation", {}))
        assert server.ranks() == []
        must(server.request("/resume_memory_occupation", {"tags": ["weights"]}))
        must(update(server, models[1]))
        # Nothing waits for the ranks that the next request brings back: these respond at once, or refuse.
        assert metric(server, "switchyard_memory_released") == 1
        assert server.request("/flush_cache", method="POST")[0] == 200
        assert server.request("/pause_generation", {"mode": "retract"})[0] == 200
        assert server.request("/get_server_info")[1]["generation_paused"] is True
        assert server.request("/continue_generation", {})[0] == 200
        for path in ("/start_profile", "/start_expert_distribution_record"):
            assert server.request(path, method="POST")[0] in (400, 503)
        status, error = server.request("/health_generate")
        assert status == 503 and "released" in json.dumps(error)
        must(server.request("/resume_memory_occupation", {"tags": ["kv_cache"]}))
        assert metric(server, "switchyard_memory_released") == 0
        assert outputs(server) == want[1]
        must(server.request("/release_memory_occupation", {"tags": ["kv_cache"]}))
        must(server.request("/resume_memory_occupation", {"tags": ["kv_cache"]}))
        assert outputs(server) == want[1]
        assert metric(server, "switchyard_rank_deaths_total") == 0
        assert server.stop() == 0


def test_an_update_keeps_the_placement_of_experts(tmp_path):
    check_placement(tmp_path, 4, "balanced", "--device", "cpu")


def check_placement(tmp_path, ranks, dispatch, *device, env=None):
    source = skewed(tmp_path / "skewed")
    other = changed(source, tmp_path / "other", 1)
    layout = [{4: ranks, "balanced": dispatch}.get(flag, flag) for flag in RANKS]
    flags = [*layout, "--enable-eplb", "--enable-expert-distribution-metrics", *device,
             "--eplb-min-rebalancing-utilization-threshold", 0]

    def balance(server):
        before = rank_counts(server)
        got = answers(server, 1)
        return got, balancedness(before, rank_counts(server))

    with Server(other, *flags, env=env) as server:
        want, trivial = balance(server)
    with Server(source, *flags, env=env) as server:
        answers(server, 1)
        assert server.request("/eplb/rebalance", method="POST")[0] == 200
        assert settle(server)["rebalances"] == 1
        must(update(server, other))
        got, kept = balance(server)
        assert got == want, server.text()
        assert eplb(server)["plans"] == 0 and kept > trivial + 0.05, (trivial, kept)
        must(server.request("/release_memory_occupation", {}))
        must(server.request("/resume_memory_occupation", {}))
        got, kept_again = balance(server)
        assert got == want and abs(kept_again - kept) < 0.05  # the batches depend on timing
        must(server.request("/release_memory_occupation", {"tags": ["kv_cache"]}))
        must(server.request("/resume_memory_occupation", {"tags": ["kv_cache"]}))
        got, kept_again = balance(server)
        assert got == want and abs(kept_again - kept) < 0.05
        assert server.stop() == 0


def generate(server, results, **sampling):
    body = {"input_ids": [5, 6, 7], "sampling_params": {"temperature": 0, "ignore_eos": True, **sampling}}
    results.append(server.request("/generate", body)[1])


def safetensors_in_memory(name, model, names=None, cut=0):
    """Writes tensors of a checkpoint (`names`: some of them) as a shared memory object with the layout of safetensors."""
    raw = (model / "model.safetensors").read_bytes()
    size = struct.unpack("<Q", raw[:8])[0]
    header, data = {}, b""
    for tensor, entry in json.loads(raw[8:8 + size]).items():
        if tensor == "__metadata__" or (names is not None and tensor not in names):
            continue
        begin, end = entry["data_offsets"]
        header[tensor] = {**entry, "data_offsets": [len(data), len(data) + end - begin]}
        data += raw[8 + size + begin:8 + size + end]
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    pathlib.Path("/dev/shm", name).write_bytes((struct.pack("<Q", len(head)) + head + data)[:None if cut == 0 else -cut])
    return sorted(header)


@pytest.fixture
def objects():
    """Names of shared memory objects, which are removed at the end."""
    names = [f"switchyard-test-{os.getpid()}-{i}" for i in range(3)]
    yield names
    for name in names:
        pathlib.Path("/dev/shm", name).unlink(missing_ok=True)


def test_tensors_in_shared_memory_replace_weights(models, objects):
    flags = [*FLAGS, *LAYOUTS["tp2-ep2"]]
    want = [fresh(model, flags) for model in models]
    one, two, bad = objects
    tensors = safetensors_in_memory(one, models[1])
    half = tensors[::2]
    with Server(models[0], *flags) as server:
        def send(names, **fields):
            return server.request("/update_weights_from_tensor", {"shared_memory": names, **fields})

        before = folders()
        must(send(["/" + one], weight_version="1"))
        assert outputs(server) == want[1], server.text()
        assert server.request("/get_weight_version")[1] == {"weight_version": "1"}
        # Two objects with some tensors each; the others stay.
        safetensors_in_memory(two, models[2], half)
        safetensors_in_memory(bad, models[2], set(tensors) - set(half))
        must(send([two]))
        assert outputs(server) not in want
        must(send([two, bad]))
        assert outputs(server) == want[2]
        # Ranks that start again load the same weights.
        assert server.request("/scale_elastic_ep", {"restart": True})[0] == 200
        assert outputs(server) == want[2]
        must(send([one], abort_all_requests=True))
        assert outputs(server) == want[1]
        assert len(folders() - before) == 1
        safetensors_in_memory(bad, models[2], cut=8)
        for body, message in (({"shared_memory": [bad]}, "truncated"), ({"shared_memory": ["none"]}, "none: No such file"),
                              ({"shared_memory": ["../x"]}, "../x"), ({"shared_memory": [one, two]}, "and in"),
                              ({}, "shared_memory is missing"), ({"shared_memory": [one], "flush_cache": False}, "flush_cache"),
                              ({"serialized_named_tensors": ["gASV"]}, "safetensors into shared memory"),
                              ({"shared_memory": [one], "load_format": "flattened_bucket"}, "load_format")):
            status, answer = server.request("/update_weights_from_tensor", body)
            assert status == 400 and message in json.dumps(answer), (body, answer)
        other = YARDLING / "model.safetensors"
        pathlib.Path("/dev/shm", bad).unlink()
        pathlib.Path("/dev/shm", bad).symlink_to(other)
        status, answer = send([bad])
        assert status == 400 and "present weights" in answer["message"], answer
        assert outputs(server) == want[1]
        # A checkpoint on disk replaces all tensors, and the directory of links is removed.
        must(update(server, models[0]))
        assert outputs(server) == want[0]
        assert folders() == before
        assert server.stop() == 0


def folders():
    return set(pathlib.Path(tempfile.gettempdir()).glob("switchyard-weights-*"))


def test_open_requests_finish_with_the_weights_of_their_start(models):
    flags = [*FLAGS, *LONG, *LAYOUTS["tp2-ep2"]]
    with Server(models[0], *flags) as server:
        want = []
        generate(server, want, max_new_tokens=1500)
        results = []
        thread = threading.Thread(target=generate, args=(server, results), kwargs={"max_new_tokens": 1500})
        thread.start()
        server.wait_busy()
        assert must(update(server, models[1], weight_version="next"))["num_paused_requests"] == 0
        thread.join()
        assert results[0]["output_ids"] == want[0]["output_ids"]
        assert results[0]["meta_info"]["weight_version"] == "default"
        thread = threading.Thread(target=generate, args=(server, results), kwargs={"max_new_tokens": 2000})
        thread.start()
        server.wait_busy()
        must(update(server, models[0], abort_all_requests=True))
        thread.join()
        assert results[1]["meta_info"]["finish_reason"]["type"] == "abort"
        generate(server, results, max_new_tokens=1500)
        assert results[2]["output_ids"] == want[0]["output_ids"]
        assert server.stop() == 0


def test_a_failed_update_changes_nothing(models, tmp_path):
    flags = [*FLAGS, *LONG, *LAYOUTS["tp2-ep2"], "--admin-api-key", "boss"]
    broken = {name: tmp_path / name for name in ("config", "shape", "missing", "nan")}
    for path in broken.values():
        shutil.copytree(models[1], path)
    config = json.loads((models[1] / "config.json").read_text())
    (broken["config"] / "config.json").chmod(0o644)
    (broken["config"] / "config.json").write_text(json.dumps({**config, "rms_norm_eps": 0.5}))
    file = models[1] / "model.safetensors"
    raw = file.read_bytes()
    size = struct.unpack("<Q", raw[:8])[0]
    header = json.loads(raw[8:8 + size])
    tensor = next(name for name in header if name.endswith("o_proj.weight"))

    def write(path, entries):
        text = json.dumps(entries).encode()
        (path / "model.safetensors").chmod(0o644)
        (path / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + raw[8 + size:])

    rows, columns = header[tensor]["shape"]
    write(broken["shape"], {**header, tensor: {**header[tensor], "shape": [columns * 2, rows // 2]}})
    renamed = {("other.weight" if name == tensor else name): entry for name, entry in header.items()}
    write(broken["missing"], renamed)
    cases = [({"model_path": str(broken["config"])}, "rms_norm_eps is 0.5"),
             ({"model_path": str(broken["shape"])}, tensor), ({"model_path": str(broken["missing"])}, tensor),
             ({"model_path": str(YARDLING)}, "the configuration of the new weights differs from the present one"),
             ({"model_path": str(tmp_path / "absent")}, "config.json: No such file"),
             ({"model_path": str(models[1]), "load_format": "flash_rl"}, "load_format flash_rl is not supported"),
             ({"model_path": str(models[1]), "flush_cache": False}, "flush_cache"),
             ({"model_path": str(models[1]), "keep_pause": True}, "keep_pause is not supported"),
             ({"model_path": str(models[1]), "speed": 1}, "speed is unknown"), ({}, "model_path is missing")]
    admin = {"Authorization": "Bearer boss"}
    with Server(models[0], *flags) as server:
        want = outputs(server)
        for path in ("/update_weights_from_disk", "/update_weights_from_tensor", "/update_weight_version", "/get_weights_by_name",
                     "/weights_checker", "/release_memory_occupation", "/resume_memory_occupation"):
            assert server.request(path, {})[0] in (401, 403), path
        results = []
        thread = threading.Thread(target=generate, args=(server, results), kwargs={"max_new_tokens": 1000})
        thread.start()
        server.wait_busy()
        ranks = server.ranks()
        for body, expected in cases:
            status, answer = server.request("/update_weights_from_disk", body, admin)
            assert status == 400 and expected in answer["message"], (body, answer)
            assert answer.get("success", False) is False
        assert server.ranks() == ranks
        assert server.request("/get_weight_version")[1] == {"weight_version": "default"}
        thread.join()
        assert results[0]["meta_info"]["completion_tokens"] == 1000
        assert outputs(server) == want
        assert server.request("/release_memory_occupation", {"tags": ["disk"]}, admin)[0] == 400
        assert server.stop() == 0


def test_memory_is_released_and_requests_wait(models):
    flags = ["--device", "cpu", "--max-total-tokens", 65536, "--cpu-bind", "none", "--tp", 2, "--ep", 2,
             "--moe-a2a-backend", "deepep", "--quantization", "w8a8_int8"]
    with Server(YARDLING, *flags) as server:
        prompts = [[2 + (7 * i + 13 * j) % 2000 for j in range(1500)] for i in range(12)]

        def prefill(some):
            body = {"input_ids": some, "sampling_params": {"max_new_tokens": 1}}
            assert server.request("/generate", body)[0] == 200

        prefill(prompts[:2])
        empty = memory_of(server.ranks())
        for prompt in prompts[2:]:
            prefill([prompt])
        ranks, full = server.ranks(), memory_of(server.ranks())
        cached = server.state()["cached_pages"]
        assert cached > 500
        must(server.request("/release_memory_occupation", {"tags": ["kv_cache"]}))
        assert server.ranks() == ranks  # they keep their weights
        assert full > empty + 4096 and memory_of(ranks) < empty + 0.2 * (full - empty), (empty, full, memory_of(ranks))
        must(server.request("/release_memory_occupation", {"tags": ["weights"]}))
        assert server.ranks() == []
        results = []
        thread = threading.Thread(target=generate, args=(server, results), kwargs={"max_new_tokens": 8})
        thread.start()
        end = time.time() + 20
        while server.state()["open_requests"] == 0:
            assert time.time() < end
            time.sleep(0.01)
        assert server.request("/scale_elastic_ep", {"restart": True})[0] == 503
        must(server.request("/resume_memory_occupation", {"tags": ["weights"]}))
        assert len(server.ranks()) == 2 and not results
        must(server.request("/resume_memory_occupation", {"tags": ["kv_cache"]}))
        thread.join()
        assert results[0]["meta_info"]["completion_tokens"] == 8 and results[0]["meta_info"]["cached_tokens"] == 0
        must(server.request("/resume_memory_occupation", {}))  # nothing is released
        must(server.request("/release_memory_occupation", {}))
        assert server.stop() == 0


def test_memory_stays_flat_over_many_cycles(models, pytestconfig):
    cycles = pytestconfig.getoption("--cycles")
    flags = [*FLAGS, *LAYOUTS["tp2-ep2"]]
    want = [fresh(model, flags) for model in models]
    with Server(models[0], *flags) as server:
        front, files = [], []
        for cycle in range(1, cycles + 1):
            must(server.request("/release_memory_occupation", {}))
            must(update(server, models[cycle % 3], weight_version=str(cycle)))
            must(server.request("/resume_memory_occupation", {}))
            if cycle % 5 < 2:
                assert outputs(server) == want[cycle % 3], cycle
            front.append(memory_of([server.process.pid]))
            files.append(len(os.listdir(f"/proc/{server.process.pid}/fd")))
        middle = len(front) // 2
        grown = sum(front[middle:]) / len(front[middle:]) - sum(front[:middle]) / middle
        assert grown < 2048, front  # KiB
        assert max(files[2:]) <= max(files[:2]) + 2, files
        assert len(server.ranks()) == 2
        assert server.request("/get_weight_version")[1] == {"weight_version": str(cycles)}
        assert server.stop() == 0


def test_checksums_follow_the_weights_in_memory(models):
    with Server(models[0], *FLAGS, *LAYOUTS["tp2-ep2"]) as server:
        def check(action):
            return server.request("/weights_checker", {"action": action})

        assert check("compare")[0] == 400 and check("reset_tensors")[0] == 400
        before = must(check("checksum"))["ranks"]
        assert [rank["rank"] for rank in before] == [0, 1]
        assert before[0]["checksums"] != before[1]["checksums"]
        assert len(before[0]["checksums"]) == len(before[1]["checksums"]) > 50
        must(check("snapshot"))
        must(server.request("/release_memory_occupation", {}))
        assert check("checksum")[0] == 400
        must(server.request("/resume_memory_occupation", {}))
        must(check("compare"))
        must(update(server, models[1]))
        status, answer = check("compare")
        assert status == 400 and "embedding differs" in answer["message"], answer
        must(update(server, models[0]))
        must(check("compare"))
        assert must(check("checksum"))["ranks"] == before
        assert server.stop() == 0


def test_values_of_a_tensor_follow_the_update(models):
    name = "model.norm.weight"
    head = "lm_head.weight"
    with Server(models[0], *FLAGS, *LAYOUTS["tp1"]) as server:
        status, norm = server.request("/get_weights_by_name", {"name": name})
        assert status == 200 and len(norm) == json.loads((MODEL / "config.json").read_text())["hidden_size"]
        before = server.request("/get_weights_by_name", {"name": head, "truncate_size": 2})[1]
        assert len(before) == 2 and len(before[0]) == len(norm)
        must(update(server, models[1]))
        assert server.request("/get_weights_by_name", {"name": head, "truncate_size": 2})[1] != before
        status, answer = server.request("/get_weights_by_name", {"name": "absent"})
        assert status == 400 and "no such tensor" in answer["error"]["message"]
        assert server.request("/update_weight_version", {"new_version": "seven"})[1]["success"]
        assert server.request("/get_weight_version")[1] == {"weight_version": "seven"}
        assert server.stop() == 0
