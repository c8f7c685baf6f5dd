#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/error.h"
#include "text/tokenizer/base64.h"
#include "text/tokenizer/bpe_model.h"
#include "text/tokenizer/pre_tokenizer.h"
#include "text/tokenizer/tokenizer_reader.h"
#include "text/tokenizer/vocabulary.h"

namespace switchyard {
namespace {

using Json = nlohmann::json;
using Ranks = std::unordered_map<std::string, int32_t>;

// Matches the same texts as the published pattern, whose class intersections ("letters and not
// Han") PCRE2 10.42 lacks.
constexpr const char* kKimiWords =
    R"([\p{Han}]+)"
    R"(|[^\r\n\p{L}\p{N}]?(?:(?!\p{Han})[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}])*)"
    R"((?:(?!\p{Han})[\p{Ll}\p{Lm}\p{Lo}\p{M}])+(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|[^\r\n\p{L}\p{N}]?(?:(?!\p{Han})[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}])+)"
    R"((?:(?!\p{Han})[\p{Ll}\p{Lm}\p{Lo}\p{M}])*(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kLlama3Words =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3})"
    R"(| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

// Maximum number of ids of special tokens, which follow the file's tokens. Kimi and Llama 3 have
// 256.
constexpr int32_t kMaxReserved = 1 << 16;

struct RankedToken {
  std::string bytes;
  int32_t rank;
};

std::optional<RankedToken> ReadLine(std::string_view line) {
  const size_t space = line.find(' ');
  if (space == std::string_view::npos) return std::nullopt;
  std::optional<std::string> bytes = BytesOfBase64(line.substr(0, space));
  const std::string_view digits = line.substr(space + 1);
  int32_t rank = -1;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), rank);
  const bool whole = error == std::errc() && end == digits.data() + digits.size();
  if (!bytes || bytes->empty() || !whole || rank < 0 || rank > kMaxTokenId) return std::nullopt;
  return RankedToken{std::move(*bytes), rank};
}

std::vector<RankedToken> ReadTokens(std::string_view text, const std::string& file) {
  std::vector<RankedToken> tokens;
  for (size_t at = 0, number = 1; at < text.size(); ++number) {
    const size_t end = std::min(text.find('\n', at), text.size());
    std::string_view line = text.substr(at, end - at);
    if (line.ends_with('\r')) line.remove_suffix(1);
    at = end + 1;
    if (line.empty()) continue;
    std::optional<RankedToken> token = ReadLine(line);
    if (!token) throw Invalid("{}, line {}: want a token in base64 and its rank", file, number);
    tokens.push_back(std::move(*token));
  }
  if (tokens.empty()) throw Invalid("{} holds no tokens", file);
  std::sort(tokens.begin(), tokens.end(),
            [](const RankedToken& a, const RankedToken& b) { return a.rank < b.rank; });
  return tokens;
}

std::string Spelled(std::string_view bytes) {
  std::string text;
  AppendByteLevel(bytes, &text);
  return text;
}

// All pairs of tokens whose concatenation is a token: tiktoken merges the pair with the lowest
// rank. `spelled`: the tokens by rank.
Json MergesOf(const std::vector<RankedToken>& tokens, const Ranks& ranks,
              const std::vector<std::string>& spelled, const std::string& file) {
  MergeBudget budget(file);
  Json::array_t merges;
  std::vector<std::pair<int32_t, int32_t>> splits;
  for (const auto& [bytes, rank] : tokens) {
    splits.clear();
    budget.AddToken(bytes.size());
    for (size_t at = 1; at < bytes.size(); ++at) {
      const auto left = ranks.find(bytes.substr(0, at));
      if (left == ranks.end()) continue;
      const auto right = ranks.find(bytes.substr(at));
      if (right != ranks.end()) splits.emplace_back(left->second, right->second);
    }
    std::sort(splits.begin(), splits.end());
    for (const auto& [left, right] : splits) {
      budget.AddMerge();
      merges.emplace_back(spelled[static_cast<size_t>(left)] + " " +
                          spelled[static_cast<size_t>(right)]);
    }
  }
  return merges;
}

// The texts of added_tokens_decoder by id. Skips malformed entries (tokenizer_config.json is
// checked elsewhere).
std::map<int32_t, std::string> DeclaredTokens(const Json& added_tokens_decoder) {
  std::map<int32_t, std::string> tokens;
  if (!added_tokens_decoder.is_object()) return tokens;
  for (const auto& [key, token] : added_tokens_decoder.items()) {
    int32_t id = -1;
    std::from_chars(key.data(), key.data() + key.size(), id);
    const Json* content =
        token.is_object() && token.contains("content") ? &token["content"] : &token;
    if (id >= 0 && id <= kMaxTokenId && content->is_string()) tokens[id] = *content;
  }
  return tokens;
}

Json SpecialTokens(int32_t first, const Json& added_tokens_decoder, const std::string& file) {
  Json list = Json::array();
  const std::map<int32_t, std::string> declared = DeclaredTokens(added_tokens_decoder);
  const int32_t end = declared.empty() ? first : declared.rbegin()->first + 1;
  if (end > first + kMaxReserved) {
    throw Invalid("{}: added_tokens_decoder has the id {}, but the file's ids end at {}", file,
                  end - 1, first - 1);
  }
  for (int32_t id = first; id < end; ++id) {
    const auto found = declared.find(id);
    list.push_back({{"id", id},
                    {"content", found == declared.end() ? fmt::format("<|reserved_token_{}|>", id)
                                                        : found->second},
                    {"normalized", false},
                    {"special", true}});
  }
  return list;
}

}  // namespace

bool LooksLikeTiktoken(std::string_view text) {
  return ReadLine(text.substr(0, text.find_first_of("\r\n"))).has_value();
}

Json TokenizerOfTiktoken(std::string_view text, TiktokenPattern pattern,
                         const Json& added_tokens_decoder, const std::string& file) {
  const std::vector<RankedToken> tokens = ReadTokens(text, file);
  Ranks ranks;
  Json vocab = Json::object();
  std::vector<std::string> spelled(static_cast<size_t>(tokens.back().rank) + 1);
  for (const auto& [bytes, rank] : tokens) {
    if (!ranks.emplace(bytes, rank).second) throw Invalid("{} has a token twice", file);
    spelled[static_cast<size_t>(rank)] = Spelled(bytes);
    vocab[spelled[static_cast<size_t>(rank)]] = rank;
  }
  const char* const words = pattern == TiktokenPattern::kKimi ? kKimiWords : kLlama3Words;
  return {{"added_tokens", SpecialTokens(tokens.back().rank + 1, added_tokens_decoder, file)},
          {"normalizer", nullptr},
          {"pre_tokenizer",
           {{"type", "Sequence"},
            {"pretokenizers",
             {{{"type", "Split"}, {"pattern", {{"Regex", words}}}, {"behavior", "Isolated"}},
              {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}}}}}},
          {"post_processor", nullptr},
          {"decoder", {{"type", "ByteLevel"}}},
          {"model",
           {{"type", "BPE"},
            {"ignore_merges", true},
            {"vocab", std::move(vocab)},
            {"merges", MergesOf(tokens, ranks, spelled, file)}}}};
}

}  // namespace switchyard
