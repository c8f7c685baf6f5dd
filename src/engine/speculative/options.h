// The flags of speculative decoding.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

namespace switchyard {

// Names follow SGLang's flags.
struct SpeculativeOptions {
  std::string algorithm;           // --speculative-algorithm; empty: no speculation
  std::string num_steps = "auto";  // --speculative-num-steps: auto, or drafts of each step
  int32_t eagle_topk = 1;          // --speculative-eagle-topk: 1: chains, more: trees
  // --speculative-num-draft-tokens: rows of a verification, the number of drafts + 1; 0: from
  // num_steps, for chains only
  int32_t num_draft_tokens = 0;
  // --speculative-draft-model-path, for STANDALONE, EAGLE and EAGLE3
  std::string draft_model_path;
  // --speculative-draft-model-quantization: a method of --quantization, or unquant. Empty:
  // w8a8_int8 for an MTP layer with plain weights on CPUs; otherwise the draft model keeps the
  // format of its checkpoint or of the target.
  std::string draft_quantization;
  // --speculative-token-map: file of the tokens that the draft model's head computes
  // (ReadTokenMap); empty: all tokens
  std::string token_map;
  double simulate_acceptance = -1;  // --speculative-simulate-acceptance; negative: none
};

// The source of drafts.
enum class DraftSource : uint8_t {
  kNone,
  kNgram,       // NGRAM: the request's own text
  kMtp,         // NEXTN, MTP: the checkpoint's multi-token prediction layer
  kStandalone,  // STANDALONE: a small model with the same vocabulary
  kEagle,       // EAGLE: a head that reads the target's last hidden rows
  kEagle3,      // EAGLE3: a head that reads rows of inner layers
};

struct DraftLimits {
  int32_t most = 0;     // drafts of a sequence in a step; 0: no speculation
  bool adapts = false;  // the number follows the measured acceptance and cost (DraftPace)
  // Trees: the number of children of each expanded draft, and the maximum number of drafts on a
  // path. Width 1: chains of `most` drafts.
  int32_t width = 1, depth = 0;

  bool trees() const { return width > 1; }
  // Maximum rows of a sequence in a verification, or in a pass of the draft model for later drafts.
  int32_t rows() const { return std::max(1 + most, width); }
  // Cache slots after the last token that a tree needs in either model; 0: chains.
  int32_t slots() const { return trees() ? std::max(most, width * (depth - 1)) : 0; }
};

constexpr int32_t kMostDrafts = 16;  // of a chain, or of a path of a tree
constexpr int32_t kMostTreeDrafts = 63, kMostTreeWidth = 16;

// Maximum number of drafts that the grammar of a request forces in a step (GrammarDrafter). Most
// forced texts have fewer tokens; longer ones take several steps.
constexpr int32_t kMostForcedDrafts = 8;

// Error kInvalid names an algorithm that is unknown. CheckFlags (engine/checks) refuses flags that
// contradict each other.
DraftSource SourceOf(const SpeculativeOptions& options);
// The name of the source in flags, the same for synonyms; empty: kNone.
std::string NameOf(DraftSource source);
// Whether the drafts come from a checkpoint separate from the target's.
constexpr bool HasDraftCheckpoint(DraftSource source) {
  return source == DraftSource::kStandalone || source == DraftSource::kEagle ||
         source == DraftSource::kEagle3;
}
// Whether a model proposes the drafts: one of a separate checkpoint, or an MTP layer.
constexpr bool HasDraftModel(DraftSource source) {
  return HasDraftCheckpoint(source) || source == DraftSource::kMtp;
}
// Error kInvalid names a flag whose value is out of range. With several pipeline stages, the number
// of drafts does not adapt: the time between two steps is not that of a pass, so DraftPace cannot
// measure it.
//
// `prefill`: for a prefill worker, which verifies nothing. Its draft model, if there is one, only
// computes keys and values of prompts.
DraftLimits LimitsOf(const SpeculativeOptions& options, int stages = 1, bool prefill = false);
// The given flags that a prefill worker does not use, because it verifies no drafts. They are no
// errors: as with SGLang, both workers of a pair are often started with the same flags.
std::vector<std::string> FlagsOfDecodeOnly(const SpeculativeOptions& options);

}  // namespace switchyard
