#!/usr/bin/env python3
"""A loop of reinforcement learning with rollouts on Switchyard, and new weights for each step.

    python examples/python/rollout.py --model-path models/yardling --steps 3

With --rollouts FILE, the rollouts of the last step become training data of `switchyard train`, with the experts of their
tokens (docs/training.md, "Routing replay").

The parts are those of verl: a rollout worker with generate_sequences and update_weights, a reward, and a trainer. The
trainer here is an evolution strategy (Salimans et al. 2017) on the weights of the final norm. It needs rewards only, so
the example needs numpy only. Replace it by your own trainer: it gets log-probabilities and routed experts of the rollouts
as arrays, and has to write a checkpoint.
"""
import argparse
import base64
import json
import pathlib
import shutil
import tempfile

import numpy
import switchyard

NORM = "model.norm.weight"
PROMPTS = ["What is dispatch?", "What is combine?", "What is a router?", "What is an expert?"]


class RolloutWorker:
    """Generates with the present weights of the policy."""

    def __init__(self, model_path, **arguments):
        self.version = 0
        self.engine = switchyard.Engine(model_path=model_path, weight_version="0", **arguments)

    def generate_sequences(self, prompts, sampling_params):
        """Rows in the order of the prompts, padded to the longest response: texts, ids, their log-probabilities, and the
        routed experts of each row."""
        ids = [self.engine.tokenize(prompt) for prompt in prompts]
        outputs = self.engine.generate(input_ids=ids, sampling_params=sampling_params, return_logprob=True,
                                       logprob_lists=False, return_routed_experts=True)
        metas = [output["meta_info"] for output in outputs]
        width = max(len(output["output_ids"]) for output in outputs)
        responses = numpy.zeros((len(outputs), width), numpy.int32)
        mask = numpy.zeros((len(outputs), width), bool)
        logprobs = numpy.zeros((len(outputs), width), numpy.float32)
        for row, meta in enumerate(metas):
            n = len(meta["output_token_logprobs_idx"])
            responses[row, :n], mask[row, :n] = meta["output_token_logprobs_idx"], True
            logprobs[row, :n] = meta["output_token_logprobs_val"]
        return {
            "texts": [output["text"] for output in outputs],
            "prompts": [ids[row * len(ids) // len(outputs)] for row in range(len(outputs))],
            "responses": responses,  # [rows, width]
            "response_mask": mask,  # [rows, width]
            "rollout_log_probs": logprobs,  # [rows, width]
            "routed_experts": [meta["routed_experts"] for meta in metas],  # of each row: [positions, layers, top_k]
            "weight_version": metas[0]["weight_version"],
        }

    @staticmethod
    def write_training_data(path, rollouts):
        """One line for each row, with the fields of a response of POST /generate."""
        with open(path, "w", encoding="utf-8") as file:
            for row, mask in enumerate(rollouts["response_mask"]):
                ids, logprobs = rollouts["responses"][row][mask].tolist(), rollouts["rollout_log_probs"][row][mask].tolist()
                experts = numpy.ascontiguousarray(rollouts["routed_experts"][row], numpy.int32)
                meta = {"prompt_token_ids": rollouts["prompts"][row], "output_token_logprobs": list(zip(logprobs, ids)),
                        "routed_experts": base64.b64encode(experts.tobytes()).decode()}
                file.write(json.dumps({"output_ids": ids, "meta_info": meta}) + "\n")

    def update_weights(self, model_path):
        """Replaces the weights of the running engine."""
        self.version += 1
        done, message, _ = self.engine.update_weights_from_disk(model_path, weight_version=str(self.version))
        if not done:
            raise RuntimeError(message)

    def sleep(self):
        """Leaves the memory of weights and cache to the trainer."""
        self.engine.release_memory_occupation()

    def wake_up(self, model_path):
        """Updates the weights while none are in memory, so that they are loaded once."""
        self.update_weights(model_path)
        self.engine.resume_memory_occupation(["weights"])
        self.engine.resume_memory_occupation(["kv_cache"])

    def shutdown(self):
        self.engine.shutdown()


class Checkpoint:
    """A copy of a checkpoint with one safetensors file, in which one tensor changes."""

    def __init__(self, source, folder, tensor):
        self.folder = pathlib.Path(folder)
        shutil.copytree(source, self.folder, dirs_exist_ok=True)
        self.file = self.folder / "model.safetensors"
        raw = self.file.read_bytes()
        size = int.from_bytes(raw[:8], "little")
        entry = json.loads(raw[8:8 + size])[tensor]
        self.begin, self.end = (8 + size + offset for offset in entry["data_offsets"])
        self.is_bfloat16 = entry["dtype"] == "BF16"
        if not self.is_bfloat16 and entry["dtype"] != "F32":
            raise ValueError(f"{tensor} is {entry['dtype']}, want BF16 or F32")
        data = raw[self.begin:self.end]
        if self.is_bfloat16:
            self.values = (numpy.frombuffer(data, numpy.uint16).astype(numpy.uint32) << 16).view(numpy.float32)
        else:
            self.values = numpy.frombuffer(data, numpy.float32).copy()

    def write(self, values):
        """Replaces the file by one with these values. An engine may still map the old file, so that one is not changed."""
        values = numpy.ascontiguousarray(values, numpy.float32)
        data = ((values.view(numpy.uint32) + 0x8000) >> 16).astype(numpy.uint16) if self.is_bfloat16 else values
        raw = bytearray(self.file.read_bytes())
        raw[self.begin:self.end] = data.tobytes()
        new = self.file.with_suffix(".new")
        new.write_bytes(raw)
        new.replace(self.file)
        return self.folder


def reward(text):
    """Prefers short answers that mention tokens or experts."""
    return ("token" in text) + ("expert" in text) - len(text) / 200


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model-path", type=pathlib.Path, required=True)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--pairs", type=int, default=2, help="pairs of opposite changes of the weights in each step")
    parser.add_argument("--deviation", type=float, default=0.1)
    parser.add_argument("--learning-rate", type=float, default=0.05)
    parser.add_argument("--tp-size", type=int, default=1)
    parser.add_argument("--rollouts", type=pathlib.Path, help="file for the rollouts of the last step")
    args = parser.parse_args()
    random = numpy.random.default_rng(0)
    sampling = {"temperature": 0.7, "max_new_tokens": 32, "n": 2, "sampling_seed": 1}

    with tempfile.TemporaryDirectory() as folder:
        policy = Checkpoint(args.model_path, folder, NORM)
        worker = RolloutWorker(policy.folder, tp_size=args.tp_size, ep_size=args.tp_size, max_total_tokens=8192)
        weights = policy.values

        def rollout():
            rollouts = worker.generate_sequences(PROMPTS, sampling)
            return numpy.mean([reward(text) for text in rollouts["texts"]]), rollouts

        def evaluate(values):
            worker.update_weights(policy.write(values))
            return rollout()[0]

        for step in range(args.steps):
            gradient = numpy.zeros_like(weights)
            for _ in range(args.pairs):
                change = random.standard_normal(weights.shape, numpy.float32) * args.deviation
                better, worse = evaluate(weights + change), evaluate(weights - change)
                gradient += (better - worse) * change / (2 * args.deviation**2 * args.pairs)
            worker.sleep()
            weights = weights + args.learning_rate * gradient
            worker.wake_up(policy.write(weights))
            score, rollouts = rollout()
            mask = rollouts["response_mask"]
            print(f"step {step}: reward {score:.3f}, mean log-probability "
                  f"{rollouts['rollout_log_probs'][mask].mean():.2f}, {mask.sum()} tokens, "
                  f"weights {rollouts['weight_version']}", flush=True)
        if args.rollouts:
            worker.write_training_data(args.rollouts, rollouts)
        worker.shutdown()


if __name__ == "__main__":
    main()
