#include "server/openai/logprobs.h"

#include <algorithm>
#include <cmath>

#include "server/front/token_text.h"
#include "text/tokenizer/unicode.h"

namespace switchyard::openai {
namespace {

std::string IdLabel(int32_t id) { return fmt::format("token_id:{}", id); }

// Returns the first `top` alternatives of a position, and the chosen token if it is not one of
// them.
std::vector<TokenLogprob> Shown(const PositionLogprobs& p, int32_t top) {
  const auto count = std::min<size_t>(std::max(top, 0), p.top.size());
  std::vector<TokenLogprob> shown(p.top.begin(), p.top.begin() + static_cast<ptrdiff_t>(count));
  const bool there = std::any_of(shown.begin(), shown.end(),
                                 [&](const TokenLogprob& t) { return t.token == p.token; });
  if (!there) shown.push_back({p.token, p.logprob});
  return shown;
}

// Partial characters become U+FFFD, as in SGLang and vLLM.
std::string TextOf(const TokenStyle& style, int32_t token) {
  return style.as_ids ? IdLabel(token) : style.tokenizer.TokenText(token);
}

Json ChatToken(const TokenStyle& style, int32_t token, float logprob) {
  Json bytes = Json::array();
  for (const unsigned char c : TokenBytes(style.tokenizer, token)) bytes.push_back(c);
  return {{"token", TextOf(style, token)}, {"logprob", logprob}, {"bytes", std::move(bytes)}};
}

// Key for a token whose text is already the key of another token. A partial character gives
// "bytes:…", as in OpenAI's API; other tokens give the id.
std::string DisambiguatedKey(const TokenStyle& style, int32_t token, const Json& taken) {
  const std::string bytes = TokenBytes(style.tokenizer, token);
  std::string key = "bytes:" + TokenLabel(style.tokenizer, token);
  return IsValidUtf8(bytes) || taken.contains(key) ? IdLabel(token) : key;
}

}  // namespace

Json ChatLogprobs(const TokenStyle& style, const std::vector<PositionLogprobs>& positions,
                  int32_t top) {
  Json content = Json::array();
  for (const PositionLogprobs& p : positions) {
    Json entry = ChatToken(style, p.token, p.logprob);
    Json alternatives = Json::array();
    if (top >= 0) {
      for (const TokenLogprob& t : Shown(p, top))
        alternatives.push_back(ChatToken(style, t.token, t.logprob));
    }
    entry["top_logprobs"] = std::move(alternatives);
    content.push_back(std::move(entry));
  }
  return {{"content", std::move(content)}};
}

void CompletionLogprobs::Add(const std::vector<PositionLogprobs>& positions,
                             std::span<const int64_t> offsets, int64_t shift) {
  for (size_t i = 0; i < positions.size(); ++i) {
    const PositionLogprobs& p = positions[i];
    const bool known = !std::isnan(p.logprob);
    tokens_.push_back(TextOf(style_, p.token));
    logprobs_.push_back(known ? Json(p.logprob) : Json(nullptr));
    offsets_.push_back(shift + offsets[i]);
    tops_.push_back(known ? Alternatives(p) : Json(nullptr));
  }
}

// The keys are token texts. If several alternatives have the same text, only one has the text as
// its key: the chosen token, or the first alternative if the chosen token has another text. The
// others get a DisambiguatedKey.
Json CompletionLogprobs::Alternatives(const PositionLogprobs& p) const {
  const std::string own = TextOf(style_, p.token);
  Json alternatives = Json::object();
  for (const TokenLogprob& t : Shown(p, top_)) {
    std::string key = TextOf(style_, t.token);
    if (t.token != p.token && (key == own || alternatives.contains(key)))
      key = DisambiguatedKey(style_, t.token, alternatives);
    alternatives[key] = t.logprob;
  }
  return alternatives;
}

Json CompletionLogprobs::Take() {
  return {{"text_offset", std::move(offsets_)},
          {"token_logprobs", std::move(logprobs_)},
          {"tokens", std::move(tokens_)},
          {"top_logprobs", std::move(tops_)}};
}

Json PromptLogprobs(const Tokenizer& tokenizer, const std::vector<PositionLogprobs>& positions,
                    int32_t top) {
  Json list = Json::array();
  for (const PositionLogprobs& p : positions) {
    if (std::isnan(p.logprob)) {
      list.push_back(nullptr);
      continue;
    }
    Json entry = Json::object();
    const auto add = [&](const TokenLogprob& t, int32_t rank) {
      entry[fmt::to_string(t.token)] = {
          {"logprob", t.logprob}, {"rank", rank}, {"decoded_token", tokenizer.TokenText(t.token)}};
    };
    add({p.token, p.logprob}, p.rank);
    for (size_t i = 0; i < p.top.size() && static_cast<int32_t>(i) < top; ++i)
      if (p.top[i].token != p.token) add(p.top[i], static_cast<int32_t>(i) + 1);
    list.push_back(std::move(entry));
  }
  return list;
}

}  // namespace switchyard::openai
