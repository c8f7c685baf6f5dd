"""Training with the experts of a rollout: a server's responses are training data, and the trainer computes the same."""
import array
import base64
import json
import math
import subprocess

import pytest

from server import FIXTURES, PROGRAM, Server

PROMPTS = [list(range(30, 50)), [7, 8, 9], list(range(100, 160, 2))]


def switchyard(*args, returncode=0):
    done = subprocess.run([PROGRAM, *map(str, args)], capture_output=True, text=True, timeout=60)
    assert done.returncode == returncode, done.stderr
    return done


def generate(model, dtype, prompts, tokens):
    """The responses of a server with everything that training data need."""
    sampling = {"temperature": 1, "max_new_tokens": tokens, "ignore_eos": True, "sampling_seed": 3}
    with Server(model, "--dtype", dtype, "--max-total-tokens", 8192, "--log-level", "warning") as server:
        status, responses = server.request("/generate", {
            "input_ids": prompts, "sampling_params": sampling, "return_logprob": True, "return_routed_experts": True,
            "return_prompt_token_ids": True})
    assert status == 200, responses
    return responses


@pytest.fixture(scope="module", params=["qwen3_moe", "deepseek_v3"])
def rollouts(request, tmp_path_factory):
    """The model, a folder with the responses as training data, and the responses."""
    model, folder = FIXTURES / request.param, tmp_path_factory.mktemp(request.param)
    responses = generate(model, "float32", PROMPTS, 24)
    write(folder / "rollouts.jsonl", responses)
    return model, folder, responses


def write(path, responses):
    path.write_text("".join(json.dumps(response) + "\n" for response in responses))


def changed(response, **meta):
    return {**response, "meta_info": {**response["meta_info"], **meta}}


def score(model, data, *flags):
    """Returns the summary and the lines of the tokens, one for each rollout."""
    tokens = data.with_suffix(".tokens")
    done = switchyard("train-score", "--model", model, "--data", data, "--length", 256, "--token-output", tokens, *flags)
    lines = [json.loads(line) for line in tokens.read_text().splitlines()]
    return json.loads(done.stdout), sorted(lines, key=lambda line: int(line["document"].rsplit(":", 1)[1]))


def ids_of(text):
    return array.array("i", base64.b64decode(text))


def shifted(response, experts):
    """Other experts than those of the rollout: each id is replaced by the next one."""
    ids = ids_of(response["meta_info"]["routed_experts"])
    moved = array.array("i", [-1 if i < 0 else (i + 1) % experts for i in ids])
    return changed(response, routed_experts=base64.b64encode(moved.tobytes()).decode())


def test_the_trainer_computes_what_the_server_computed(rollouts):
    model, folder, responses = rollouts
    summary, lines = score(model, folder / "rollouts.jsonl")
    assert len(lines) == len(responses)
    worst = 0.0
    for prompt, response, line in zip(PROMPTS, responses, lines):
        meta = response["meta_info"]
        assert line["begin"] == 0 and line["token_ids"] == (prompt + response["output_ids"])[:-1]
        assert line["routed_experts"] == meta["routed_experts"]
        assert line["logprobs"][:len(prompt) - 1] == [None] * (len(prompt) - 1)
        ours, theirs = line["logprobs"][len(prompt) - 1:], [entry[0] for entry in meta["output_token_logprobs"]]
        assert len(ours) == len(theirs) == 24
        worst = max(worst, *(abs(a - b) for a, b in zip(ours, theirs)))
    assert worst < 2e-5
    assert summary["rollout_logprobs"]["positions"] == 24 * len(responses)
    assert math.isclose(summary["rollout_logprobs"]["max_difference"], worst, rel_tol=1e-3, abs_tol=1e-9)
    assert summary["routing_replay"]["agreement"] == 1  # the same weights and the same arithmetic


def test_given_experts_are_used(rollouts):
    """Experts that the trainer would not select: it uses them, and its probabilities are others."""
    model, folder, responses = rollouts
    experts = 16
    others = [shifted(response, experts) for response in responses]
    write(folder / "others.jsonl", others)
    summary, lines = score(model, folder / "others.jsonl")
    assert [line["routed_experts"] for line in lines] == [other["meta_info"]["routed_experts"] for other in others]
    assert summary["routing_replay"]["agreement"] < 0.5
    assert summary["rollout_logprobs"]["max_difference"] > 1e-3
    off, lines = score(model, folder / "others.jsonl", "--routing-replay", "off")
    assert [line["routed_experts"] for line in lines] == [
        response["meta_info"]["routed_experts"] for response in responses]
    assert "routing_replay" not in off and off["rollout_logprobs"]["max_difference"] < 2e-5


def test_replay_removes_the_largest_differences(tmp_path):
    """A server in bfloat16 rounds, and so selects other experts than the trainer for some tokens."""
    model = FIXTURES / "deepseek_v3"
    write(tmp_path / "rollouts.jsonl", generate(model, "bfloat16", [list(range(i, i + 20)) for i in range(0, 300, 12)], 60))
    on, _ = score(model, tmp_path / "rollouts.jsonl")
    off, _ = score(model, tmp_path / "rollouts.jsonl", "--routing-replay", "off")
    assert 0.9 < on["routing_replay"]["agreement"] < 1
    assert on["rollout_logprobs"]["mean_difference"] < off["rollout_logprobs"]["mean_difference"]
    assert on["rollout_logprobs"]["max_difference"] < off["rollout_logprobs"]["max_difference"]


def test_a_step_has_the_loss_of_the_rollouts(rollouts):
    """The loss of a step on two ranks, before any update, is the mean of the server's log-probabilities."""
    model, folder, responses = rollouts
    logprobs = [entry[0] for response in responses for entry in response["meta_info"]["output_token_logprobs"]]
    losses = {}
    for name, replay in [("rollouts", "on"), ("others", "on"), ("others", "off")]:
        write(folder / "others.jsonl", [shifted(response, 16) for response in responses])
        output = folder / f"{name}-{replay}"
        switchyard("train", "--model", model, "--init-from", model, "--data", folder / f"{name}.jsonl", "--output", output,
                   "--steps", 1, "--length", 64, "--whole-documents", "--rows-per-step", 3, "--ep", 2,
                   "--mtp-layers", 0, "--routing-replay", replay)
        line = json.loads((output / "log.jsonl").read_text())
        losses[name, replay] = line["main"]
        assert line.get("routing_agreement", 1) == 1 if name == "rollouts" or replay == "off" else (
            line["routing_agreement"] < 0.5)
    want = -sum(logprobs) / len(logprobs)
    assert math.isclose(losses["rollouts", "on"], want, rel_tol=1e-5)
    assert math.isclose(losses["others", "off"], want, rel_tol=1e-5)
    assert abs(losses["others", "on"] - want) > 1e-4


def test_experts_of_another_model_are_refused(rollouts):
    model, folder, responses = rollouts
    wrong = folder / "wrong.jsonl"
    ids = ids_of(responses[1]["meta_info"]["routed_experts"])

    def error(ids):
        text = base64.b64encode(array.array("i", ids).tobytes()).decode()
        write(wrong, [responses[0], changed(responses[1], routed_experts=text)])
        done = switchyard("train", "--model", model, "--data", wrong, "--output", folder / "none", "--steps", 1,
                          "--length", 64, returncode=2)
        assert f"{wrong}:2: " in done.stderr
        return done.stderr

    assert "want [rows, 3 layers, top-4]" in error(ids[:-4])
    last = len(ids) - 1
    token = last // 12
    assert f"token {token}, layer 2: expert 16 is out of range, want 0 to 15" in error([*ids[:-1], 16])
    assert f"token {token}, layer 2: expert {ids[-2]} is given twice" in error([*ids[:-1], ids[-2]])
