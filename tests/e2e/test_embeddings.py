"""Embeddings, scores and classes of served checkpoints equal those of transformers, on several layouts."""
import array
import json
import math
import struct

import openai
import pytest

from server import FIXTURES, ROOT, Server

POOLING = ROOT / "tests/data/pooling"
# Flags of each layout. With "tp2-ep2-dp2", sums have the same order as with one rank, so results are bitwise equal.
LAYOUTS = {
    "tp1": [],
    "tp2": ["--tp", 2],
    "tp2-dp2": ["--tp", 2, "--dp-size", 2, "--enable-dp-attention"],
}
EXPERTS = {
    "tp2-ep2": ["--tp", 2, "--ep", 2],
    "tp2-ep2-dp2": ["--tp", 2, "--ep", 2, "--dp-size", 2, "--enable-dp-attention", "--moe-dense-tp-size", 1,
                    "--moe-a2a-backend", "deepep"],
}


def reference(name):
    """The texts and the tensors of a checkpoint, as lists of rows."""
    raw = (POOLING / name / "pooling.safetensors").read_bytes()
    size = struct.unpack("<Q", raw[:8])[0]
    tensors = {}
    for key, entry in json.loads(raw[8:8 + size]).items():
        if key == "__metadata__":
            continue
        begin, end = entry["data_offsets"]
        values = array.array({"F32": "f", "I64": "q"}[entry["dtype"]], raw[8 + size + begin:8 + size + end])
        width = entry["shape"][-1]
        tensors[key] = [list(values[i:i + width]) for i in range(0, len(values), width)]
    return json.loads((POOLING / name / "pooling.json").read_text())["texts"], tensors


def unit(vector):
    length = math.sqrt(sum(x * x for x in vector))
    return [x / length for x in vector]


def mean(rows):
    return [sum(column) / len(rows) for column in zip(*rows)]


def serve(name, *flags):
    return Server(POOLING / name, "--dtype", "float32", "--max-total-tokens", 4096, "--log-level", "warning", *flags)


def ask(server, path, **body):
    status, answer = server.request(path, body)
    assert status == 200, (answer, server.text())
    return answer


def refused(server, path, **body):
    status, answer = server.request(path, body)
    assert status == 400, answer
    return answer["error"]["message"]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_embeddings_equal_transformers(layout):
    texts, tensors = reference("qwen3_embedding")
    want = [unit(tensors[f"hidden.{i}"][-1]) for i in range(len(texts))]
    with serve("qwen3_embedding", "--chunked-prefill-size", 16, *LAYOUTS[layout]) as server:
        client = openai.OpenAI(base_url=server.url + "/v1", api_key="none")
        answer = client.embeddings.create(model="default", input=texts)  # encoding_format base64
        assert answer.usage.prompt_tokens == sum(len(tensors[f"ids.{i}"][0]) for i in range(len(texts)))
        for item, expected in zip(answer.data, want, strict=True):
            assert item.embedding == pytest.approx(expected, abs=2e-5)
        for i, item in enumerate(answer.data):  # a text sent alone, as ids, gives the same bits
            ids = tensors[f"ids.{i}"][0]
            alone = client.embeddings.create(model="default", input=ids, encoding_format="float")
            assert struct.pack("32f", *alone.data[0].embedding) == struct.pack("32f", *item.embedding)
        short = client.embeddings.create(model="default", input=texts[1], dimensions=8).data[0].embedding
        assert short == pytest.approx(unit(want[1][:8]), abs=2e-5)
        state = server.wait_idle()
        assert state["free_pages"] + state["cached_pages"] == state["total_pages"]
        assert state["decode_tokens"] == 0
        assert server.stop() == 0


def test_mean_pooling_without_normalization():
    texts, tensors = reference("qwen3_embedding")
    config = '{"pooling_type": "MEAN", "normalize": false}'
    with serve("qwen3_embedding", "--pooler-config", config, "--chunked-prefill-size", 16) as server:
        for i, item in enumerate(ask(server, "/v1/embeddings", input=texts)["data"]):
            assert item["embedding"] == pytest.approx(mean(tensors[f"hidden.{i}"]), abs=2e-5)
        assert server.stop() == 0


def test_scores_and_requests_for_text():
    texts, tensors = reference("qwen3_embedding")
    vectors = [unit(tensors[f"hidden.{i}"][-1]) for i in range(len(texts))]
    cosines = [sum(a * b for a, b in zip(vectors[1], v)) for v in vectors]
    with serve("qwen3_embedding") as server:
        scores = [d["score"] for d in ask(server, "/v1/score", text_1=texts[1], text_2=texts)["data"]]
        assert scores == pytest.approx(cosines, abs=2e-5)
        best = ask(server, "/v1/rerank", query=texts[1], documents=texts, top_n=2)["results"]
        order = sorted(range(len(texts)), key=lambda i: -cosines[i])
        assert [r["index"] for r in best] == order[:2]
        assert best[0]["document"]["text"] == texts[1]
        encoded = ask(server, "/encode", text=texts[0])
        assert encoded["embedding"] == pytest.approx(vectors[0], abs=2e-5)
        assert "does not generate text" in refused(server, "/v1/completions", prompt="Hello")
        assert "does not generate text" in refused(server, "/generate", text="Hello")
        assert "dimensions" in refused(server, "/v1/embeddings", input="Hello", dimensions=33)
        assert server.request("/health_generate")[0] == 200
        assert server.request("/get_model_info")[1]["is_generation"] is False
        assert server.stop() == 0


@pytest.mark.parametrize("layout", [*LAYOUTS, *EXPERTS])
def test_classes_equal_transformers(layout):
    texts, tensors = reference("qwen3_moe_classifier")
    with serve("qwen3_moe_classifier", *{**LAYOUTS, **EXPERTS}[layout]) as server:
        data = ask(server, "/v1/classify", input=texts)["data"]
        for i, item in enumerate(data):
            scores = tensors[f"scores.{i}"][0]
            total = sum(map(math.exp, scores))
            assert item["probs"] == pytest.approx([math.exp(x) / total for x in scores], abs=2e-5)
            assert item["label"] == ["cargo", "passenger", "empty"][scores.index(max(scores))]
        raw = ask(server, "/classify", text=texts[2])
        assert raw["embedding"] == pytest.approx(tensors["scores.2"][0], abs=2e-4)
        assert server.stop() == 0


def test_bits_of_classes_do_not_depend_on_ranks():
    texts, _ = reference("qwen3_moe_classifier")
    answers = []
    for flags in (["--moe-a2a-backend", "deepep"], EXPERTS["tp2-ep2-dp2"]):
        with serve("qwen3_moe_classifier", *flags) as server:
            answers.append([a["embedding"] for a in ask(server, "/encode", text=texts)])
            assert server.stop() == 0
    assert answers[0] == answers[1]


def test_label_scores_are_probabilities_of_the_next_token():
    with Server(FIXTURES / "qwen3", "--dtype", "float32", "--max-total-tokens", 4096) as server:
        labels, query, items = [3, 77, 500], "Is it", [" red?", " blue?"]
        scores = ask(server, "/v1/score", query=query, items=items, label_token_ids=labels)["scores"]
        for item, found in zip(items, scores, strict=True):
            meta = ask(server, "/generate", text=query + item, return_logprob=True, token_ids_logprob=labels,
                       sampling_params={"max_new_tokens": 1, "temperature": 0})["meta_info"]
            want = [math.exp(x[0]) for x in meta["output_token_ids_logprobs"][0]]
            assert found == pytest.approx(want, rel=1e-5)
        softmax = ask(server, "/v1/score", query=query, items=items, label_token_ids=labels, apply_softmax=True)
        assert softmax["scores"][0] == pytest.approx([x / sum(scores[0]) for x in scores[0]], rel=1e-5)
        assert "--is-embedding" in refused(server, "/v1/embeddings", input="Hello")
        assert server.stop() == 0
    with Server(FIXTURES / "qwen3", "--dtype", "float32", "--max-total-tokens", 4096, "--is-embedding") as server:
        assert len(ask(server, "/v1/embeddings", input="Hello")["data"][0]["embedding"]) == 64
        assert server.stop() == 0
