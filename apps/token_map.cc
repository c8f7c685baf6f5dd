// `switchyard token-map`: the most frequent tokens of text, for --speculative-token-map.
#include "engine/speculative/token_map.h"

#include <fmt/core.h>

#include <algorithm>
#include <filesystem>
#include <numeric>
#include <vector>

#include "apps/commands.h"
#include "core/error.h"
#include "core/format.h"
#include "model/config.h"
#include "train/data/encode.h"

namespace switchyard {
namespace {

// The tokens of the document that a model would generate; all tokens of a text.
std::vector<int32_t> GeneratedTokens(const train::DocumentEncoder& encoder,
                                     const train::Document& document) {
  if (!document.messages.is_null()) return encoder.AnswersOf(document);
  const train::EncodedDocument encoded = encoder.Encode(document);
  std::vector<int32_t> ids;
  for (size_t i = 0; i < encoded.ids.size(); ++i)
    if (encoded.learned[i] != 0) ids.push_back(encoded.ids[i]);
  return ids;
}

}  // namespace

int RunTokenMap(const TokenMapArgs& args) {
  const ModelConfig config = LoadModelConfig(args.model_path);
  const train::DocumentEncoder encoder(args.model_path,
                                       train::DocumentEncoder::ChatLoss::kAssistant,
                                       {.vocab_size = config.vocab_size});
  auto documents = train::ReadDocuments({args.inputs.begin(), args.inputs.end()});
  std::vector<int64_t> counts(static_cast<size_t>(config.vocab_size), 0);
  int64_t total = 0, skipped = 0;
  for (train::Document& document : documents) {
    document.experts.reset();  // not needed, and maybe those of another model
    const std::vector<int32_t> ids = GeneratedTokens(encoder, document);
    if (ids.empty() && !document.messages.is_null()) ++skipped;
    for (const int32_t id : ids) {
      if (id >= config.vocab_size)
        throw Invalid("{}: the tokenizer gives token {}, but the model in {} has {} tokens",
                      document.where, id, args.model_path.string(), config.vocab_size);
      ++counts[id];
      ++total;
    }
  }
  if (total == 0) throw Invalid("{}: has no tokens to count", Joined(args.inputs, ", "));
  std::vector<int32_t> tokens(counts.size());
  std::iota(tokens.begin(), tokens.end(), 0);
  // Almost every output ends with such a token, even if texts of the input do not.
  const auto ends = [&](int32_t id) { return std::ranges::count(config.eos_token_ids, id) > 0; };
  std::ranges::stable_sort(tokens, [&](int32_t a, int32_t b) {
    return ends(a) != ends(b) ? ends(a) : counts[a] > counts[b];
  });
  std::erase_if(tokens, [&](int32_t id) { return counts[id] == 0 && !ends(id); });
  tokens.resize(std::min(tokens.size(), static_cast<size_t>(args.size)));
  WriteTokenMap(args.output, tokens);
  int64_t covered = 0;
  for (const int32_t id : tokens) covered += counts[id];
  fmt::print("{}: {} of {} tokens, which are {:.2f} % of the {} tokens in {} documents\n",
             args.output.string(), tokens.size(), config.vocab_size,
             100.0 * static_cast<double>(covered) / static_cast<double>(total), total,
             std::ssize(documents) - skipped);
  if (skipped > 0) fmt::print("skipped {} chats without an answer\n", skipped);
  return 0;
}

}  // namespace switchyard
