#include "engine/speculative/options.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <iterator>
#include <string_view>

#include "core/error.h"
#include "core/format.h"

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

DraftLimits LimitsOfEngine(const SpeculativeOptions& options, int stages);

}  // namespace

DraftSource SourceOf(const SpeculativeOptions& options) {
  if (options.algorithm.empty()) return DraftSource::kNone;
  const std::string name = Upper(options.algorithm);
  const auto named = std::ranges::find(kSources, name, &NamedSource::name);
  if (named == std::end(kSources))
    throw Invalid("--speculative-algorithm {}: want NGRAM, NEXTN, MTP, STANDALONE, EAGLE or EAGLE3",
                  options.algorithm);
  return named->source;
}

std::string NameOf(DraftSource source) {
  const auto named = std::ranges::find(kSources, source, &NamedSource::source);
  return named == std::end(kSources) ? std::string() : std::string(named->name);
}

DraftLimits LimitsOf(const SpeculativeOptions& options, int stages, bool prefill) {
  const DraftLimits limits = LimitsOfEngine(options, stages);
  if (!prefill) return limits;
  return {.most = HasDraftModel(SourceOf(options)) ? 1 : 0};
}

std::vector<std::string> FlagsOfDecodeOnly(const SpeculativeOptions& options) {
  const SpeculativeOptions defaults;
  std::vector<std::string> flags;
  if (options.num_steps != defaults.num_steps)
    flags.push_back("--speculative-num-steps " + options.num_steps);
  if (options.eagle_topk != defaults.eagle_topk)
    flags.push_back(fmt::format("--speculative-eagle-topk {}", options.eagle_topk));
  if (options.num_draft_tokens != defaults.num_draft_tokens)
    flags.push_back(fmt::format("--speculative-num-draft-tokens {}", options.num_draft_tokens));
  if (options.simulate_acceptance >= 0)
    flags.push_back(
        fmt::format("--speculative-simulate-acceptance {}", options.simulate_acceptance));
  return flags;
}

namespace {

DraftLimits LimitsOfEngine(const SpeculativeOptions& options, int stages) {
  const DraftSource source = SourceOf(options);
  const int32_t steps = StepsOf(options.num_steps), tokens = options.num_draft_tokens;
  if (options.eagle_topk < 1 || options.eagle_topk > kMostTreeWidth)
    throw Invalid("--speculative-eagle-topk {}: want 1 to {}", options.eagle_topk, kMostTreeWidth);
  if (options.simulate_acceptance > 1)
    throw Invalid("--speculative-simulate-acceptance {}: want 0 to 1", options.simulate_acceptance);
  if (options.eagle_topk > 1 && source != DraftSource::kNone && source != DraftSource::kNgram)
    return TreeLimitsOf(options, steps);
  if (tokens != 0 && (tokens < 2 || tokens > kMostDrafts + 1))
    throw Invalid("--speculative-num-draft-tokens {}: want 2 to {}", tokens, kMostDrafts + 1);
  if (source == DraftSource::kNone) return {};
  if (tokens > 0)
    return {.most = tokens - 1,
            .adapts = steps == 0 && source != DraftSource::kNgram && stages == 1};
  if (steps > 0) return {.most = steps};
  return {.most = source == DraftSource::kNgram ? kAutoNgramDrafts : kAutoDrafts,
          .adapts = stages == 1};
}

}  // namespace
}  // namespace switchyard
