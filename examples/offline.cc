// Uses the engine as a library: loads a checkpoint on two ranks and generates text for some
// prompts.
//
//   build/release/examples/offline MODEL_DIR "The router scores every expert" …
#include <cstdio>
#include <string>

#include "core/error.h"
#include "engine/engine.h"
#include "text/tokenizer/tokenizer.h"

int main(int argc, char** argv) {
  using namespace switchyard;
  if (argc < 3) {
    std::fprintf(stderr, "usage: %s MODEL_DIR PROMPT…\n", argv[0]);
    return 2;
  }
  try {
    EngineConfig config;
    config.model_path = argv[1];
    config.mesh = {.tp = 2, .ep = 2};   // two ranks, each with half of the experts
    config.moe.a2a_backend = "deepep";  // all-to-all exchange of token rows
    config.max_total_tokens = 4096;

    const auto tokenizer = Tokenizer::FromFile(config.model_path / "tokenizer.json");
    Engine engine(config, [](uint64_t done, uint64_t total) {
      std::fprintf(stderr, "\rloaded %3.0f%%", total ? 100.0 * done / total : 100.0);
    });
    std::fprintf(stderr, "\n");

    for (int i = 2; i < argc; ++i) {
      EngineRequest request;
      request.input_ids = tokenizer->Encode(argv[i], true);
      request.sampling.temperature = 0;
      request.sampling.max_new_tokens = 32;
      const RequestOutput output = engine.Generate(request);
      std::printf("%s%s\n", argv[i], tokenizer->Decode(output.new_tokens, true).c_str());
    }
  } catch (const Error& e) {
    std::fprintf(stderr, "offline: %s\n", e.what());
    return 2;
  }
  return 0;
}
