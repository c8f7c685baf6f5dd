"""New weights in servers on GPUs, and release of their memory: the loop of test_weight_updates.py, with device memory.
Cases are skipped as in test_cuda.py."""
import concurrent.futures
import re
import subprocess
import time

import pytest

from elastic import metric
from server import Server
from test_cuda import FIRST_GPU, GRAPHS, gpus, where
from test_weight_updates import LAYOUTS as UPDATE_LAYOUTS
from test_weight_updates import changed, check_placement, fresh, must, safetensors_in_memory, update
from test_weight_updates import objects  # noqa: F401 (a fixture)
from test_weight_updates import MODEL as UPDATED
from test_weight_updates import outputs as updated_outputs


@pytest.fixture(scope="module")
def two_models(tmp_path_factory):
    return [UPDATED, changed(UPDATED, tmp_path_factory.mktemp("weights") / "seed1", 1)]


def used_memory(ranks):
    """MiB in use on the GPUs of `ranks` ranks, by all processes."""
    text = subprocess.run(["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"], capture_output=True,
                          text=True, check=True).stdout
    own = range(FIRST_GPU, FIRST_GPU + ranks) if gpus() >= FIRST_GPU + ranks else [0]
    return sum(int(text.splitlines()[gpu]) for gpu in own)


def weights_and_cache(server, ranks):
    """MiB of weights and MiB of cache of all ranks, from the plan in the log."""
    match = re.search(r"memory of a rank in full use: .*?: weights ([\d.]+) .*?, cache ([\d.]+)", server.text())
    return [ranks * float(size) for size in match.groups()]


def falls(ranks, limit, seconds=20):
    """Whether the memory in use falls to `limit` MiB: the driver may report the end of a process later."""
    end = time.time() + seconds
    while used_memory(ranks) > limit:
        if time.time() > end:
            return False
        time.sleep(0.1)
    return True


@pytest.mark.parametrize("graphs", GRAPHS)
@pytest.mark.parametrize("layout", ["tp1", "tp2-ep2"])
def test_weights_and_memory_change(two_models, objects, layout, graphs):  # noqa: F811
    """The loop of test_weight_updates.py, with device memory. Outputs are requested twice, so that graphs are captured
    again and replayed after each change."""
    ranks = 2 if layout == "tp2-ep2" else 1
    device, env = where(ranks)
    flags = [*device, "--max-total-tokens", 1 << 19, *UPDATE_LAYOUTS[layout], *GRAPHS[graphs]]
    want = [fresh(model, flags, env=env) for model in two_models]
    assert want[0] != want[1]
    with Server(two_models[0], *flags, env=env) as server:
        def control(path, **body):
            return server.request(path, body)

        def equal(step):
            got = []
            for _ in range(2):
                assert server.request("/flush_cache", method="POST")[0] == 200
                got.append(updated_outputs(server))
            return got == [want[step]] * 2

        assert equal(0)
        sums = must(control("/weights_checker", action="checksum"))["ranks"]
        assert len(sums) == ranks
        for one in sums:
            names = set(one["checksums"])
            assert {"embedding", "final_norm", "head", "layers.0.attention.o", "layers.0.dense.down", "layers.2.moe.router",
                    "layers.2.moe.experts.0.gate_up", "layers.2.moe.experts.3.down", "layers.2.moe.shared.down"} <= names, names
        must(control("/weights_checker", action="snapshot"))
        must(control("/weights_checker", action="compare"))
        must(update(server, two_models[1], weight_version="v1"))
        status, answer = control("/weights_checker", action="compare")
        assert status == 400 and "rank 0: " in answer["message"] and " differs" in answer["message"], answer
        assert server.request("/get_weight_version")[1] == {"weight_version": "v1"}
        assert equal(1)
        weights, cache = weights_and_cache(server, ranks)
        full = used_memory(ranks)
        must(control("/release_memory_occupation"))
        assert server.ranks() == []
        assert falls(ranks, full - weights - cache), (full, used_memory(ranks), weights, cache)
        must(control("/resume_memory_occupation", tags=["weights"]))  # without the cache, no rank runs
        assert server.ranks() == [] and used_memory(ranks) <= full - weights - cache
        must(update(server, two_models[0]))
        must(control("/resume_memory_occupation", tags=["kv_cache"]))
        assert len(server.ranks()) == ranks
        assert equal(0)
        must(control("/weights_checker", action="compare"))  # equal weights have equal bits on the device
        safetensors_in_memory(objects[0], two_models[1])
        must(control("/update_weights_from_tensor", shared_memory=[objects[0]]))
        assert equal(1)
        must(update(server, two_models[0]))
        assert equal(0)
        full = used_memory(ranks)
        must(control("/release_memory_occupation", tags=["kv_cache"]))
        assert falls(ranks, full - cache), (full, used_memory(ranks), cache)
        must(control("/resume_memory_occupation", tags=["kv_cache"]))
        assert equal(0)
        name = "model.norm.weight"
        assert control("/get_weights_by_name", name=name)[0] == 200
        assert metric(server, "switchyard_rank_deaths_total") == 0
        assert server.stop() == 0


@pytest.mark.parametrize("graphs", GRAPHS)
@pytest.mark.parametrize("layout", ["tp1", "tp2-ep2"])
def test_a_release_of_the_cache_keeps_the_weights(layout, graphs):
    """Five releases of the cache. Outputs are requested twice, so that captured graphs are replayed after each of them.
    A paused request waits and continues with the same output."""
    ranks = 2 if layout == "tp2-ep2" else 1
    device, env = where(ranks)
    flags = [*device, "--max-total-tokens", 1 << 19, *UPDATE_LAYOUTS[layout], *GRAPHS[graphs]]
    cached_only = {"tags": ["kv_cache"]}
    with Server(UPDATED, *flags, env=env) as server:
        want = updated_outputs(server)
        long = {"input_ids": [5, 6, 7], "sampling_params": {"temperature": 0, "max_new_tokens": 60, "ignore_eos": True}}
        long_want = server.request("/generate", long)[1]["output_ids"]
        assert updated_outputs(server) == want
        processes = server.ranks()
        must(server.request("/weights_checker", {"action": "snapshot"}))
        _, cache = weights_and_cache(server, ranks)
        for cycle in range(5):
            full = used_memory(ranks)
            with concurrent.futures.ThreadPoolExecutor() as pool:
                if cycle % 2:
                    assert server.request("/slow_down", {"forward_sleep_time": 0.05})[0] == 200
                    waiting = pool.submit(server.request, "/generate", long)
                    server.wait_busy()
                    assert server.request("/pause_generation", {"mode": "in_place"})[0] == 200
                    assert server.request("/slow_down", {"forward_sleep_time": 0})[0] == 200
                must(server.request("/release_memory_occupation", cached_only))
                assert falls(ranks, full - cache + 8), (full, used_memory(ranks), cache)
                assert server.ranks() == processes
                assert server.request("/health_generate")[0] == 503
                if cycle % 2:
                    assert server.request("/continue_generation", {})[0] == 200
                else:
                    waiting = pool.submit(server.request, "/generate", long)
                    time.sleep(0.1)
                assert not waiting.done()
                must(server.request("/resume_memory_occupation", cached_only))
                status, answer = waiting.result()
                assert status == 200 and answer["output_ids"] == long_want, (cycle, answer)
            assert used_memory(ranks) >= full - 8
            assert [updated_outputs(server) for _ in range(2)] == [want] * 2, cycle
        assert server.ranks() == processes
        must(server.request("/weights_checker", {"action": "compare"}))
        must(server.request("/release_memory_occupation", cached_only))
        must(update(server, UPDATED))  # loads at the resume
        assert server.ranks() == []
        must(server.request("/resume_memory_occupation", cached_only))
        assert updated_outputs(server) == want
        assert metric(server, "switchyard_rank_deaths_total") == 0
        assert server.stop() == 0


def test_an_update_keeps_the_placement_of_experts(tmp_path):
    device, env = where(2)
    check_placement(tmp_path, 2, "static", *device, env=env)
