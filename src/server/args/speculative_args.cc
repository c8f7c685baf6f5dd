#include "server/args/speculative_args.h"

#include <utility>

#include "core/error.h"
#include "engine/speculative/options.h"

namespace switchyard {
namespace {

constexpr const char* kSpeculation = "Speculative decoding";

}  // namespace

void AddSpeculativeFlags(CommandLine& app, EngineConfig& e) {
  SpeculativeOptions& s = e.speculative;
  app.Flag("--speculative-algorithm,--speculative-algo", s.algorithm, kSpeculation,
           "Source of drafts, which are verified so that outputs stay equal: NGRAM (the request's "
           "own text), NEXTN or MTP (the checkpoint's MTP layer), EAGLE or EAGLE3 (a head), "
           "STANDALONE (a small model); empty: no drafts");
  app.Flag("--speculative-num-steps", s.num_steps, kSpeculation,
           "Maximum drafts of a request in a step, 1 to 16. auto: chosen from the measured "
           "acceptance rate and cost; 0 drafts if they do not increase the speed");
  app.Flag("--speculative-eagle-topk", s.eagle_topk, kSpeculation,
           "Number of drafts that follow each draft. Only 1 (chains) is supported, no trees");
  app.Flag("--speculative-num-draft-tokens", s.num_draft_tokens, kSpeculation,
           "Rows of a verification, which is the number of drafts + 1; 0: --speculative-num-steps "
           "+ 1")
      .NonNegative();
  app.Flag("--speculative-draft-model-path,--speculative-draft", s.draft_model_path, kSpeculation,
           "Directory of the draft model: the head for EAGLE or EAGLE3, the small model for "
           "STANDALONE. It must have the target's vocabulary");
  app.Flag(
      "--speculative-draft-model-quantization", s.draft_quantization, kSpeculation,
      "Value of --quantization for the draft model, including its head, or unquant. Default: "
      "w8a8_int8 for an unquantized MTP layer on CPUs, else the stored format. Affects speed only");
  app.Flag("--speculative-simulate-acceptance", s.simulate_acceptance, kSpeculation,
           "For benchmarks only: accepts each draft with this probability (0 to 1), whatever the "
           "model samples. Outputs are then wrong. -1: off");
  app.Switch("--disable-jump-forward", e.disable_jump_forward, kSpeculation,
             "Disables jump-forward decoding. By default, CPU ranks draft the text that a grammar "
             "forces, so a step gives several tokens. Outputs are the same with and without it");
  app.Flag("--speculative-moe-a2a-backend", e.moe.speculative_a2a_backend, kSpeculation,
           "--moe-a2a-backend of the draft model; default: the target's");
  app.Flag("--speculative-moe-runner-backend", e.moe.speculative_runner_backend, kSpeculation,
           "--moe-runner-backend of the draft model; default: the target's");
}

void CheckSpeculation(const EngineConfig& engine) {
  LimitsOf(engine.speculative);
  const DraftSource source = SourceOf(engine.speculative);
  if (source == DraftSource::kMtp || source == DraftSource::kStandalone) return;
  for (const auto& [flag, value] :
       {std::pair{"--speculative-moe-a2a-backend", engine.moe.speculative_a2a_backend},
        std::pair{"--speculative-moe-runner-backend", engine.moe.speculative_runner_backend}}) {
    if (!value.empty())
      throw Invalid("{} {}: needs a draft model (--speculative-algorithm NEXTN or STANDALONE)",
                    flag, value);
  }
}

}  // namespace switchyard
