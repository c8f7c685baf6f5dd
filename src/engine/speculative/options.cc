#include "engine/speculative/options.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <iterator>
#include <string_view>

#include "core/error.h"

namespace switchyard {
namespace {

constexpr int32_t kAutoDrafts = 4, kAutoNgramDrafts = 8;

struct NamedSource {
  std::string_view name;
  DraftSource source;
};
constexpr NamedSource kSources[] = {
    {"NGRAM", DraftSource::kNgram}, {"NEXTN", DraftSource::kMtp},
    {"MTP", DraftSource::kMtp},     {"STANDALONE", DraftSource::kStandalone},
    {"EAGLE", DraftSource::kEagle}, {"EAGLE3", DraftSource::kEagle3},
};

std::string Upper(std::string text) {
  std::ranges::transform(text, text.begin(), [](unsigned char c) { return std::toupper(c); });
  return text;
}

// The number of drafts of each step; 0: auto.
int32_t StepsOf(const std::string& text) {
  if (text == "auto") return 0;
  int32_t steps = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), steps);
  if (error != std::errc() || end != text.data() + text.size() || steps < 1 || steps > kMostDrafts)
    throw Invalid("--speculative-num-steps {}: want auto, or 1 to {}", text, kMostDrafts);
  return steps;
}

void RefuseWithoutAlgorithm(const SpeculativeOptions& o) {
  const SpeculativeOptions defaults;
  const auto refuse = [](const char* flag) {
    throw Invalid("{}: needs --speculative-algorithm", flag);
  };
  if (o.num_steps != defaults.num_steps) refuse("--speculative-num-steps");
  if (o.eagle_topk != defaults.eagle_topk) refuse("--speculative-eagle-topk");
  if (o.num_draft_tokens != 0) refuse("--speculative-num-draft-tokens");
  if (!o.draft_model_path.empty()) refuse("--speculative-draft-model-path");
  if (!o.draft_quantization.empty()) refuse("--speculative-draft-model-quantization");
  if (o.simulate_acceptance >= 0) refuse("--speculative-simulate-acceptance");
}

// `steps`: 0: auto.
DraftLimits TreeLimitsOf(const SpeculativeOptions& options, int32_t steps) {
  const int32_t width = options.eagle_topk, tokens = options.num_draft_tokens;
  if (steps == 0 || tokens == 0)
    throw Invalid(
        "--speculative-eagle-topk {}: trees need numbers for --speculative-num-steps (the depth) "
        "and --speculative-num-draft-tokens (the rows of a verification)",
        width);
  // Drafts of the first level, and the children of `width` drafts of each level.
  const int32_t all = std::min(kMostTreeDrafts, width + (steps - 1) * width * width);
  if (tokens < 2 || tokens > all + 1)
    throw Invalid(
        "--speculative-num-draft-tokens {}: with --speculative-eagle-topk {} and "
        "--speculative-num-steps {}, want 2 to {}",
        tokens, width, steps, all + 1);
  // A path of the best drafts is at most as long as their number.
  return {.most = tokens - 1, .width = width, .depth = std::min(steps, tokens - 1)};
}

}  // namespace

DraftSource SourceOf(const SpeculativeOptions& options) {
  if (options.algorithm.empty()) {
    RefuseWithoutAlgorithm(options);
    return DraftSource::kNone;
  }
  const std::string name = Upper(options.algorithm);
  const auto named = std::ranges::find(kSources, name, &NamedSource::name);
  if (named == std::end(kSources))
    throw Invalid("--speculative-algorithm {}: want NGRAM, NEXTN, MTP, STANDALONE, EAGLE or EAGLE3",
                  options.algorithm);
  if (options.eagle_topk < 1 || options.eagle_topk > kMostTreeWidth)
    throw Invalid("--speculative-eagle-topk {}: want 1 to {}", options.eagle_topk, kMostTreeWidth);
  if (options.eagle_topk > 1 && named->source == DraftSource::kNgram)
    throw Invalid(
        "--speculative-eagle-topk {}: drafts of --speculative-algorithm {} are chains; "
        "want 1",
        options.eagle_topk, options.algorithm);
  if (named->source == DraftSource::kNgram && !options.draft_quantization.empty())
    throw Invalid(
        "--speculative-draft-model-quantization {}: --speculative-algorithm {} has no draft model; "
        "leave the first flag out",
        options.draft_quantization, options.algorithm);
  const bool has_checkpoint = HasDraftCheckpoint(named->source);
  if (has_checkpoint && options.draft_model_path.empty())
    throw Invalid("--speculative-algorithm {}: needs --speculative-draft-model-path",
                  options.algorithm);
  if (!has_checkpoint && !options.draft_model_path.empty())
    throw Invalid(
        "--speculative-draft-model-path {}: --speculative-algorithm {} has no draft model; leave "
        "the first flag out",
        options.draft_model_path, options.algorithm);
  return named->source;
}

DraftLimits LimitsOf(const SpeculativeOptions& options) {
  const DraftSource source = SourceOf(options);
  if (source == DraftSource::kNone) return {};
  const int32_t steps = StepsOf(options.num_steps), tokens = options.num_draft_tokens;
  if (options.simulate_acceptance > 1)
    throw Invalid("--speculative-simulate-acceptance {}: want 0 to 1", options.simulate_acceptance);
  if (options.eagle_topk > 1) return TreeLimitsOf(options, steps);
  if (tokens == 0) {
    if (steps > 0) return {.most = steps};
    return {.most = source == DraftSource::kNgram ? kAutoNgramDrafts : kAutoDrafts, .adapts = true};
  }
  if (tokens < 2 || tokens > kMostDrafts + 1)
    throw Invalid("--speculative-num-draft-tokens {}: want 2 to {}", tokens, kMostDrafts + 1);
  if (steps > 0 && tokens != steps + 1)
    throw Invalid(
        "--speculative-num-draft-tokens {}: a chain of {} drafts has {} rows (the last token and "
        "the drafts); want {}, or leave one of the flags out",
        tokens, steps, steps + 1, steps + 1);
  return {.most = tokens - 1, .adapts = steps == 0 && source != DraftSource::kNgram};
}

}  // namespace switchyard
