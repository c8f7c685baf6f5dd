#include "text/tokenizer/added_tokens.h"

#include <algorithm>

#include "core/error.h"
#include "text/tokenizer/unicode.h"

namespace switchyard {
namespace {

bool IsSingleWord(const std::string& text, TextRange match) {
  size_t before = match.begin;
  if (before > 0 && IsWordCharacter(PreviousCharacter(text, &before))) return false;
  size_t after = match.end;
  return after == text.size() || !IsWordCharacter(NextCharacter(text, &after));
}

// Start of the run of spaces that ends at `end`; not before `limit`.
size_t SpacesBefore(const std::string& text, size_t end, size_t limit) {
  size_t begin = end;
  for (size_t i = end; begin > limit && IsWhitespace(PreviousCharacter(text, &i));) begin = i;
  return begin;
}

size_t SpacesAfter(const std::string& text, size_t begin) {
  size_t end = begin;
  for (size_t i = begin; end < text.size() && IsWhitespace(NextCharacter(text, &i));) end = i;
  return end;
}

AddedToken ReadToken(const JsonNode& node, const TextNormalizer* normalizer) {
  AddedToken token;
  token.id = static_cast<int32_t>(node["id"].Integer(0, kMaxTokenId));
  token.content = node["content"].String();
  token.single_word = node["single_word"].BoolOr(false);
  token.lstrip = node["lstrip"].BoolOr(false);
  token.rstrip = node["rstrip"].BoolOr(false);
  token.special = node["special"].BoolOr(false);
  token.normalized = node["normalized"].BoolOr(!token.special);
  token.normalized_content = token.normalized && normalizer != nullptr
                                 ? normalizer->Apply(MarkedText(token.content)).text()
                                 : token.content;
  return token;
}

}  // namespace

void StringMatcher::Add(std::string_view text, int32_t value, const std::string& where) {
  if (text.empty()) return;
  if (text.size() > kMaxBytes) {
    throw Invalid("{}: a token of {} bytes, at most {} are allowed", where, text.size(), kMaxBytes);
  }
  if (values_.size() > kMaxNodes) {
    throw Invalid("{}: the tokens have more than {} bytes in total", where, kMaxNodes);
  }
  const auto new_node = [this] {
    values_.push_back(-1);
    return static_cast<int32_t>(values_.size() - 1);
  };
  int32_t& first = root_[static_cast<uint8_t>(text[0])];
  if (first < 0) first = new_node();
  int32_t node = first;
  for (const char byte : text.substr(1)) {
    int32_t child = Child(node, byte);
    if (child < 0) {
      child = new_node();
      children_[static_cast<uint64_t>(node) << 8 | static_cast<uint8_t>(byte)] = child;
    }
    node = child;
  }
  int32_t& end = values_[static_cast<size_t>(node)];
  if (end < 0) end = value;
}

int32_t StringMatcher::Child(int32_t node, char byte) const {
  const auto found = children_.find(static_cast<uint64_t>(node) << 8 | static_cast<uint8_t>(byte));
  return found == children_.end() ? -1 : found->second;
}

AddedTokens::AddedTokens(const JsonNode& list, const Vocabulary& model,
                         const TextNormalizer* normalizer) {
  for (const JsonNode& node : list.Items()) {
    AddedToken token = ReadToken(node, normalizer);
    if (token.content.empty()) continue;
    const auto in_model = model.Find(token.content);
    if (in_model && *in_model != token.id) {
      throw Invalid("{}: '{}' has the id {} here and {} in model.vocab", node.where(),
                    token.content, token.id, *in_model);
    }
    const std::string* other = model.Text(token.id);
    if (!in_model && other != nullptr) {
      throw Invalid("{}: the id {} of '{}' belongs to '{}' in model.vocab", node.where(), token.id,
                    token.content, *other);
    }
    if (!vocabulary_.Add(token.content, token.id)) {
      throw Invalid("{}: '{}' or its id {} occurs twice in added_tokens", node.where(),
                    token.content, token.id);
    }
    const auto index = static_cast<int32_t>(tokens_.size());
    index_of_id_.emplace(token.id, tokens_.size());
    (token.normalized ? normalized_ : raw_)
        .Add(token.normalized ? token.normalized_content : token.content, index, node.where());
    has_normalized_special_ |= token.normalized && token.special;
    tokens_.push_back(std::move(token));
  }
}

const AddedToken* AddedTokens::Find(int32_t id) const {
  const auto found = index_of_id_.find(id);
  return found == index_of_id_.end() ? nullptr : &tokens_[found->second];
}

std::vector<TextPart> AddedTokens::Cut(const MarkedText& marked,
                                       const StringMatcher& matcher) const {
  const std::string& text = marked.text();
  std::vector<TextPart> parts;
  size_t done = 0;
  for (size_t i = 0; i < text.size() && !matcher.empty();) {
    const auto accept = [&](int32_t index, size_t match_end) {
      return !tokens_[static_cast<size_t>(index)].special || !marked.Untrusted({i, match_end});
    };
    TextRange match{i, i};
    const int32_t index = matcher.LongestAt(text, i, accept, &match.end);
    if (index < 0) {
      ++i;
      continue;
    }
    i = match.end;
    const AddedToken& token = tokens_[static_cast<size_t>(index)];
    if (token.single_word && !IsSingleWord(text, match)) continue;
    // The match must not include spaces that the previous token has consumed. A token whose own
    // text begins within those spaces is still matched.
    if (token.lstrip)
      match.begin = std::max(done, SpacesBefore(text, match.begin, std::min(done, match.begin)));
    if (token.rstrip) match.end = SpacesAfter(text, match.end);
    if (done < match.begin) parts.push_back({{done, match.begin}, -1});
    parts.push_back({match, token.id});
    done = match.end;
  }
  if (done < text.size()) parts.push_back({{done, text.size()}, -1});
  return parts;
}

}  // namespace switchyard
