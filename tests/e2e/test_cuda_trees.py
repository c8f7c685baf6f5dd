"""Draft trees on GPUs: servers with and without trees give the same tokens. Places ranks as test_cuda.py does."""
import json

import pytest

from server import FIXTURES, Server
from test_cuda import DRAFT_FLAGS, GRAPHS, where
from test_families import FOLDER as FAMILY_FOLDER
from test_grammar import in_parallel
from test_speculative import SHARDED, YARDLING


def answer_to(server, i):
    """Every third request has penalties, so the host samples its step."""
    sampling = {"max_new_tokens": 20 + i, "temperature": [0, 0.7][i % 2], "sampling_seed": i, "ignore_eos": True,
                "frequency_penalty": 0.4 if i % 3 == 0 else 0}
    status, answer = server.request("/generate", {"input_ids": list(range(5 + i, 10 + 9 * i)), "sampling_params": sampling})
    assert status == 200, answer
    return answer["output_ids"]


def check_trees(model, *flags, draft_flags=(), env=None):
    """Compares servers with and without trees from a copy of the target. `draft_flags`: of the server with trees only."""
    trees = ["--speculative-algorithm", "STANDALONE", "--speculative-draft-model-path", model, "--speculative-num-steps", 4,
             "--speculative-eagle-topk", 3, "--speculative-num-draft-tokens", 12, *draft_flags]
    outputs = []
    for drafts in [], trees:
        outputs.append([])
        with Server(model, *flags, *DRAFT_FLAGS, *drafts, env=env) as server:
            for group in [i for i in range(12) if i % 3], range(12):  # the GPU samples the steps of the first group
                outputs[-1] += in_parallel([lambda i=i: answer_to(server, i) for i in group])
            if drafts:
                states = server.request("/get_server_info")[1]["internal_states"]
                assert sum(state["accepted_draft_tokens"] for state in states) > 0
            assert server.stop() == 0
    assert outputs[0] == outputs[1]


MODELS = {  # grouped heads, latent attention (MLA), and latent attention to selected keys
    "yardling": (YARDLING, []),
    "deepseek_v3": (FIXTURES / "deepseek_v3", []),
    "deepseek_v32": (FAMILY_FOLDER / "deepseek_v32", ["--tokenizer-path", FIXTURES / "qwen3_moe"]),
}


@pytest.mark.parametrize("dtype, ranks, graphs", [("float32", 1, "graphs"), ("float32", 1, "no_graphs"), ("bfloat16", 1, "graphs"),
                                                  ("float32", 2, "graphs")])
@pytest.mark.parametrize("name", MODELS)
def test_trees_change_no_output(name, dtype, ranks, graphs):
    """Two ranks share attention."""
    model, flags = MODELS[name]
    device, env = where(ranks)
    check_trees(model, *device, *flags, "--dtype", dtype, *(SHARDED if ranks == 2 else []), *GRAPHS[graphs], env=env)


def test_trees_with_an_fp8_cache_change_no_output():
    device, env = where(1)
    check_trees(YARDLING, *device, "--dtype", "bfloat16", "--kv-cache-dtype", "fp8_e4m3", env=env)


def test_trees_of_a_head_with_some_tokens(tmp_path):
    """The GPU has the tokens of the head's rows."""
    device, env = where(1)
    (tmp_path / "tokens.json").write_text(json.dumps(list(range(0, 2048, 2))))
    check_trees(YARDLING, *device, "--dtype", "float32", draft_flags=["--speculative-token-map", tmp_path / "tokens.json"], env=env)
