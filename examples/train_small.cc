// Trains a tokenizer and a small MoE model on a text file, on two ranks that share the experts, and
// exports it as a checkpoint that `switchyard serve` and `generate` load.
//
//   build/release/examples/train_small docs/moe.md /tmp/small 40
//   build/release/switchyard generate --model-path /tmp/small/run/final --prompt "The router"
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "core/error.h"
#include "text/tokenizer/bpe_trainer.h"
#include "train/app/training.h"

namespace {

using namespace switchyard;
namespace fs = std::filesystem;

constexpr int kVocabulary = 512;

// OLMoE's architecture with eight experts, two of them per token.
constexpr const char* kConfig = R"({
  "architectures": ["OlmoeForCausalLM"], "vocab_size": 512, "hidden_size": 64,
  "intermediate_size": 48, "num_hidden_layers": 2, "num_experts": 8, "num_experts_per_tok": 2,
  "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256
})";

void WriteModel(const fs::path& text, const fs::path& to) {
  std::ifstream in(text);
  if (!in) throw NotFound("cannot read {}", text.string());
  BpeTrainer trainer(ByteLevelPreTokenizer(kWordPattern));
  trainer.Add(std::string(std::istreambuf_iterator<char>(in), {}));
  const std::vector<std::string> special = {"<|endoftext|>"};
  fs::create_directories(to);
  WriteTokenizer(to / "tokenizer",
                 trainer.Learn({.vocab_size = kVocabulary, .special_tokens = special}), special,
                 {.eos = "<|endoftext|>"});
  std::ofstream(to / "config.json") << kConfig;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fprintf(stderr, "usage: %s TEXT_FILE OUTPUT STEPS\n", argv[0]);
    return 2;
  }
  try {
    const fs::path output = argv[2];
    WriteModel(argv[1], output);
    train::TrainingOptions options;
    options.model = output / "config.json";
    options.tokenizer = output / "tokenizer";
    options.data = {argv[1]};
    options.packing.length = 64;
    options.layout = {.ep = 2, .dp = 2};
    options.losses.balance.batch = 0.01;
    options.trainer = {.rows_per_step = 8, .rows_per_pass = 2, .output = output / "run"};
    options.trainer.schedule = {.rate = 0.01, .steps = std::atol(argv[3])};
    train::Progress progress(stderr, /*in_place=*/false);
    train::RunTraining(
        options, [] { return false; }, progress);
    for (const auto& step : train::ReadStepLog(output / "run/log.jsonl"))
      if (step["step"] == 1 || step["step"] == options.trainer.schedule.steps)
        std::printf("step %lld: loss %.3f\n", step["step"].get<long long>(),
                    step["loss"].get<double>());
    std::printf("%s\n", train::ExportFinal(output / "run").c_str());
  } catch (const Error& e) {
    std::fprintf(stderr, "train_small: %s\n", e.what());
    return 2;
  }
  return 0;
}
