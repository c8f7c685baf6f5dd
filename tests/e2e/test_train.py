"""`switchyard train`: training from files to a served model, with interruptions and invalid input."""
import json
import resource
import signal
import subprocess
import time
from xml.etree import ElementTree

import pytest

from server import PROGRAM, Server

QUESTIONS = {"Which track?": "Track seven, by the old shed.", "Who waits?": "The small engine waits.",
             "When do we leave?": "We leave at noon sharp.", "What is in the car?": "Coal, and a sleeping cat."}
CONFIG = {
    "architectures": ["DeepseekV3ForCausalLM"], "vocab_size": 384, "hidden_size": 48, "intermediate_size": 96,
    "moe_intermediate_size": 32, "num_hidden_layers": 2, "first_k_dense_replace": 1, "n_routed_experts": 8,
    "n_shared_experts": 1, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1, "norm_topk_prob": True,
    "routed_scaling_factor": 2.5, "num_attention_heads": 4, "num_key_value_heads": 4, "q_lora_rank": None,
    "kv_lora_rank": 24, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 12, "max_position_embeddings": 128,
    "rope_theta": 10000.0, "rms_norm_eps": 1e-6, "tie_word_embeddings": False, "num_nextn_predict_layers": 1}
FLAGS = ["--length", 64, "--whole-documents", "--rows-per-step", 4, "--rows-per-pass", 2, "--learning-rate", 0.01,
         "--bias-step", 0.01]


def switchyard(*args, **options):
    return subprocess.run([PROGRAM, *map(str, args)], capture_output=True, text=True, timeout=60, **options)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("train")
    lines = [json.dumps({"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]})
             for question, answer in QUESTIONS.items()]
    (folder / "data.jsonl").write_text("\n".join(lines * 4))
    (folder / "config.json").write_text(json.dumps(CONFIG))
    done = switchyard("train-tokenizer", folder / "data.jsonl", "--output", folder / "tokenizer", "--vocab-size", 384)
    assert done.returncode == 0, done.stderr
    return folder


def command(folder, output, steps, *flags):
    return ["train", "--model", folder / "config.json", "--tokenizer-path", folder / "tokenizer", "--data",
            folder / "data.jsonl", "--output", output, "--steps", steps, *FLAGS, *flags]


def train(folder, output, steps, *flags, **options):
    done = switchyard(*command(folder, output, steps, *flags), **options)
    assert done.returncode == 0, done.stderr
    return done.stderr


def fails(*args, **options):
    done = switchyard(*args, **options)
    assert done.returncode == 2, done.stderr
    return done.stderr


def steps_of(output):
    return [json.loads(line) for line in (output / "log.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def learned(folder):
    output = folder / "learned"
    said = train(folder, output, 120, "--ep", 2, "--save-every", 50)
    assert "step 120/120" in said
    return output


def test_what_was_learned_is_served(learned):
    assert sorted(path.name for path in learned.iterdir() if not path.name.startswith(".")) == [
        "balance.svg", "checkpoint-000100", "checkpoint-000120", "final", "log.jsonl", "loss.svg"]
    lines = steps_of(learned)
    assert [line["step"] for line in lines] == list(range(1, 121))
    assert lines[-1]["main"] < 0.1 < 1 < lines[0]["main"]
    assert 0 < lines[-1]["balancedness_worst"] <= lines[-1]["balancedness"] <= 1
    final = learned / "final"
    assert {"model.safetensors", "config.json", "generation_config.json", "tokenizer.json"} <= {
        path.name for path in final.iterdir()}
    assert not list(final.glob("optimizer*")) and not (final / "trainer.json").exists()
    config = json.loads((final / "config.json").read_text())
    assert config["model_type"] == "deepseek_v3" and config["torch_dtype"] == "bfloat16"
    with Server(final, "--tp", 2, "--ep", 2) as server:
        for question, answer in QUESTIONS.items():
            status, body = server.request("/v1/chat/completions", {
                "temperature": 0, "max_tokens": 40, "messages": [{"role": "user", "content": question}]})
            assert status == 200 and body["choices"][0]["message"]["content"] == answer, body


def test_score_and_picture(folder, learned):
    done = switchyard("train-score", "--model", learned / "final", "--data", folder / "data.jsonl")
    assert done.returncode == 0, done.stderr
    score = json.loads(done.stdout)
    assert score["accuracy"] > 0.95 and score["loss"] < 0.2 and score["mtp_agreement"] > 0.5
    assert [layer["layer"] for layer in score["layers"]] == [1]
    assert sum(score["layers"][0]["loads"]) == 2 * score["tokens"]
    done = switchyard("train-picture", learned, learned / "log.jsonl", "--labels", "one", "two", "--key", "main",
                      "--output", folder / "compared.svg")
    assert done.returncode == 0, done.stderr
    picture = ElementTree.parse(folder / "compared.svg").getroot()
    assert len(picture.findall("{http://www.w3.org/2000/svg}polyline")) == 4
    assert "no line has a number in the key lose" in fails("train-picture", learned, "--key", "lose", "--output",
                                                folder / "no.svg")


def test_transformers_loads_it(learned):
    transformers = pytest.importorskip("transformers")
    model, info = transformers.AutoModelForCausalLM.from_pretrained(learned / "final", output_loading_info=True)
    assert not info["missing_keys"] and model.config.num_hidden_layers == 2


def test_interrupted_and_resumed_is_the_same(folder):
    """SIGTERM saves a checkpoint and exits with 0. The same command then resumes. Results equal those of an
    uninterrupted run."""
    train(folder, folder / "whole", 40, "--dtype", "float32")
    cut = command(folder, folder / "cut", 40, "--dtype", "float32")
    process = subprocess.Popen([PROGRAM, *map(str, cut)], stderr=subprocess.PIPE, text=True)
    log = folder / "cut" / "log.jsonl"
    end = time.time() + 30
    while time.time() < end and not (log.exists() and log.read_text().count("\n") >= 3):
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    said = process.communicate(timeout=30)[1]
    assert process.returncode == 0, said
    assert "the same command continues from it" in said and "is saved" in said
    taken = len(steps_of(folder / "cut"))
    assert 3 <= taken < 40, "the run ended before it could be stopped"
    # Simulates a crash: a log line after the last checkpoint.
    log.write_text(log.read_text() + json.dumps({"step": taken + 1, "loss": 99}) + "\n")
    assert f"after step {taken}" in train(folder, folder / "cut", 40, "--dtype", "float32")
    assert [line["loss"] for line in steps_of(folder / "cut")] == [line["loss"] for line in
                                                                    steps_of(folder / "whole")]
    for path in (folder / "whole" / "checkpoint-000040").iterdir():
        if path.name != "trainer.json":  # contains measured times
            assert path.read_bytes() == (folder / "cut" / "checkpoint-000040" / path.name).read_bytes(), path.name
    export = switchyard("train", "--export-only", "--output", folder / "cut")
    assert export.returncode == 0 and export.stdout.strip() == str(folder / "cut" / "final")


def test_config_file(folder):
    """Flags are read from a file. The command line has priority. Errors for unknown keys suggest the nearest key."""
    (folder / "train.yaml").write_text(f"model: {folder}/config.json\ntokenizer-path: {folder}/tokenizer\n"
                                       f"data: [{folder}/data.jsonl]\nlength: 64\nsteps: 9\nschedule: overlapped\n"
                                       "rows-per-pass: 2\nrows_per_step: 8\nexchange: sync\nep: 2\ntensorboard: true\n")
    done = switchyard("train", "--config", folder / "train.yaml", "--steps", 2, "--output", folder / "from_file")
    assert done.returncode == 0, done.stderr
    assert len(steps_of(folder / "from_file")) == 2
    [events] = (folder / "from_file" / "tensorboard").iterdir()
    assert events.name.startswith("events.out.tfevents.") and b"balancedness" in events.read_bytes()
    (folder / "wrong.yaml").write_text("lenght: 64\n")
    assert "there is no key lenght; the nearest is length" in fails("train", "--config", folder / "wrong.yaml")


def test_bad_input(folder, learned):
    """Each error message names the invalid input."""
    out = folder / "bad"
    (folder / "nothing.jsonl").write_text("")
    for flags, message in [
            (["--data", folder / "none.jsonl"], "none.jsonl"),
            (["--data", folder / "nothing.jsonl"], "nothing.jsonl: no document found"),
            (["--model", folder / "none.json"], "--model"),
            (["--tokenizer-path", folder], "--tokenizer-path"),
            (["--length", 4096], "--length 4096"),
            (["--ep", 3, "--dp", 2], "--ep 3"), (["--tp", 3], "--tp 3"),
            (["--resume", folder], "--resume"),
            (["--learnig-rate", 1], "the nearest is --learning-rate")]:
        assert message in fails(*command(folder, out, 3, *flags))
    assert not list(out.glob("checkpoint-*"))
    assert "differs from that of --model" in fails(*command(folder, learned, 130, "--mtp-layers", 0))
    assert "--output" in fails("train", "--export-only", "--output", out)


def test_a_loss_that_is_not_finite_keeps_the_last_good_checkpoint(folder):
    out = folder / "diverges"
    error = fails(*command(folder, out, 200, "--save-every", 1, "--clip-grad-norm", 0, "--lr-schedule", "constant",
                           "--learning-rate", 1e30, "--warmup-steps", 2))
    assert "the loss is" in error and "the last good checkpoint is" in error
    good = sorted(out.glob("checkpoint-*"))
    assert good and str(good[-1]) in error
    assert len(steps_of(out)) == int(good[-1].name[-6:])


def test_steps_that_are_not_finite_are_skipped_up_to_a_limit(folder):
    out = folder / "skips"
    error = fails(*command(folder, out, 200, "--save-every", 1, "--clip-grad-norm", 0, "--lr-schedule", "constant",
                           "--learning-rate", 1e30, "--warmup-steps", 2, "--on-nonfinite", "skip",
                           "--max-skipped-steps", 2))
    assert "skipped steps in a row: 3 (--max-skipped-steps 2)" in error and "the update is skipped" in error
    skipped = [line for line in steps_of(out) if "skipped" in line]
    assert len(skipped) >= 2 and skipped[-1]["skipped"].startswith("the loss is")


def test_a_full_disk_loses_no_checkpoint(folder):
    """Simulated by a file size limit that lies between the sizes of the weights and the optimizer state."""
    out = folder / "full"
    train(folder, out, 2)

    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))

    done = switchyard(*command(folder, out, 6, "--save-every", 2, "--full-disk-wait", 1), preexec_fn=limit)
    assert done.returncode == 2
    assert done.stderr.count("cannot be written") >= 3, done.stderr  # the warning, the message of the wait, the error
    assert "the write is retried" in done.stderr
    assert [path.name for path in out.glob("checkpoint-*")] == ["checkpoint-000002"]
    assert "after step 2" in train(folder, out, 6)
    assert len(steps_of(out)) == 6


def test_a_second_signal_ends_at_once(folder):
    process = subprocess.Popen([PROGRAM, *map(str, command(folder, folder / "twice", 100000))],
                               stderr=subprocess.PIPE, text=True)
    for line in process.stderr:
        if line.startswith("step"):
            break
    process.send_signal(signal.SIGSTOP)  # both signals are pending before the program handles the first
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGTERM)
    process.send_signal(signal.SIGCONT)
    process.communicate(timeout=30)
    assert process.returncode == 130


def test_an_mtp_module_is_trained_for_a_frozen_model(folder, tmp_path):
    """The answers of the model do not change, and its new MTP module predicts most of their tokens."""
    base, module = tmp_path / "base", tmp_path / "module"
    train(folder, base, 120, "--mtp-layers", 0)
    said = train(folder, module, 80, "--train-only", "mtp", "--mtp-layers", 1, "--init-from", base / "final")
    assert "step 80/80" in said
    log = steps_of(module)
    assert log[-1]["mtp"] < log[0]["mtp"] / 2
    assert all(step["main"] == 0 for step in log)

    def outputs(model, *flags):
        with Server(model, "--max-total-tokens", 512, "--log-level", "warning", *flags) as server:
            all_ = [server.request("/v1/chat/completions", {"messages": [{"role": "user", "content": question}],
                                                            "temperature": 0, "max_tokens": 40})[1]["choices"][0]["message"]
                    for question in QUESTIONS]
            return all_, server.request("/get_server_info")[1]["internal_states"][0]

    want, _ = outputs(base / "final")
    got, state = outputs(module / "final", "--speculative-algorithm", "NEXTN", "--speculative-num-steps", 1)
    assert got == want
    assert state["accepted_draft_tokens"] > state["draft_tokens"] / 2


def test_modules_alone_need_a_model(folder, tmp_path):
    wrong = fails(*command(folder, tmp_path / "out", 2, "--train-only", "mtp"))
    assert "--train-only mtp" in wrong and "--init-from" in wrong
    wrong = fails(*command(folder, tmp_path / "out", 2, "--train-only", "head"))
    assert "--train-only" in wrong and "mtp" in wrong


def test_adapters_are_exported_alone_and_merged(folder, tmp_path):
    """LoRA: adapter/ in PEFT's layout, final/ with the sum, which another run can start from."""
    base, out = tmp_path / "base", tmp_path / "out"
    lora = ["--bias-step", 0, "--lora-rank", 4, "--lora-targets", "q_proj", "up_proj"]
    train(folder, base, 2)
    assert "--lora-rank needs trained weights" in fails(*command(folder, out, 3, *lora))
    train(folder, out, 3, *lora, "--init-from", base / "final")
    config = json.loads((out / "adapter" / "adapter_config.json").read_text())
    assert config["peft_type"] == "LORA" and config["r"] == 4 and config["lora_alpha"] == 8
    assert config["target_modules"] == ["q_proj", "up_proj"]
    tensors = (out / "adapter" / "adapter_model.safetensors").read_bytes()
    header = json.loads(tensors[8:8 + int.from_bytes(tensors[:8], "little")])
    layer = "base_model.model.model.layers.1.mlp.experts.3.up_proj"
    assert header[f"{layer}.lora_A.weight"]["shape"] == [4, 48]
    assert header[f"{layer}.lora_B.weight"]["shape"] == [32, 4]
    assert not any("k_proj" in name or "down_proj" in name for name in header)
    assert not (out / "final" / "lora.json").exists()
    train(folder, tmp_path / "next", 1, "--init-from", out / "final")
