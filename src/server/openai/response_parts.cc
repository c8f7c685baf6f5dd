#include "server/openai/response_parts.h"

#include <algorithm>
#include <cmath>
#include <string_view>
#include <utility>

#include "server/front/token_text.h"
#include "text/jinja/utf8.h"
#include "text/tokenizer/detokenizer.h"
#include "text/tokenizer/unicode.h"

namespace switchyard::openai {
namespace {

using EventKind = OutputEvent::Kind;

Json CallOf(const OutputEvent& begin) {
  return {{"id", begin.call_id},
          {"type", "function"},
          {"function", {{"name", begin.text}, {"arguments", ""}}}};
}

void Append(Json& json, const std::string& text) { json.get_ref<std::string&>() += text; }

// A delta with one call, to which later arguments can be appended.
Json CallDelta(int32_t index, const Json& call) {
  Json entry = {{"index", index}};
  entry.update(call);
  return {{"tool_calls", Json::array({std::move(entry)})}};
}

}  // namespace

Json MessageOf(const OutputPlan& plan, const std::vector<OutputEvent>& events,
               const std::string& echo) {
  std::string content = echo, reasoning;
  Json calls = Json::array();
  for (const OutputEvent& event : events) {
    if (event.kind == EventKind::kReasoning) reasoning += event.text;
    if (event.kind == EventKind::kContent) content += event.text;
    if (event.kind == EventKind::kCallBegin) calls.push_back(CallOf(event));
    if (event.kind == EventKind::kArguments)
      Append(calls.back()["function"]["arguments"], event.text);
  }
  Json message = {{"role", "assistant"}, {"content", nullptr}};
  if (!content.empty() || calls.empty()) message["content"] = std::move(content);
  if (plan.separate_reasoning) {
    const Json shown = reasoning.empty() ? Json(nullptr) : Json(std::move(reasoning));
    message["reasoning_content"] = shown;
    message["reasoning"] = shown;
  }
  if (!calls.empty()) message["tool_calls"] = std::move(calls);
  return message;
}

std::vector<Json> DeltasOf(const std::vector<OutputEvent>& events) {
  std::vector<Json> deltas;
  int32_t open = -1;  // index of the call that the last delta belongs to; −1: none
  for (const OutputEvent& event : events) {
    switch (event.kind) {
      case EventKind::kReasoning:
        deltas.push_back({{"reasoning_content", event.text}, {"reasoning", event.text}});
        break;
      case EventKind::kContent:
        deltas.push_back({{"content", event.text}});
        break;
      case EventKind::kCallBegin:
        deltas.push_back(CallDelta(event.call, CallOf(event)));
        break;
      case EventKind::kArguments:
        if (open == event.call) {
          Append(deltas.back()["tool_calls"][0]["function"]["arguments"], event.text);
        } else {
          deltas.push_back(CallDelta(event.call, {{"function", {{"arguments", event.text}}}}));
        }
        break;
      case EventKind::kCallEnd:
        break;
    }
    const bool of_call = event.kind == EventKind::kCallBegin || event.kind == EventKind::kArguments;
    open = of_call ? event.call : -1;
  }
  return deltas;
}

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

namespace {

// Finds the start of each token in a text, in order.
class Alignment {
 public:
  explicit Alignment(std::string_view text) : text_(text) {}

  // Returns the token's offset in characters, and moves to its end.
  int64_t Next(std::string_view bytes) {
    if (!bytes.empty() && !Here(bytes)) {
      if (bytes[0] == ' ' && Here(bytes.substr(1))) {
        bytes.remove_prefix(1);  // SentencePiece adds a space before the first word
      } else {
        // If the last token was not found, because the normalizer changed its characters, this
        // token may begin further on. Search the next kFar bytes for it.
        constexpr size_t kFar = 64;
        const size_t at = lost_ ? text_.substr(at_, kFar).find(bytes) : std::string_view::npos;
        lost_ = at == std::string_view::npos;
        if (lost_) return Characters();
        Advance(at);
      }
    }
    lost_ = false;
    const int64_t begin = Characters();
    Advance(bytes.size());
    return begin;
  }

 private:
  bool Here(std::string_view bytes) const { return text_.substr(at_).starts_with(bytes); }

  static bool IsContinuation(char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; }

  // Number of characters before the one that contains byte at_.
  int64_t Characters() const {
    return at_ < text_.size() && IsContinuation(text_[at_]) ? starts_ - 1 : starts_;
  }

  void Advance(size_t bytes) {
    for (; bytes > 0; --bytes) starts_ += IsContinuation(text_[at_++]) ? 0 : 1;
  }

  std::string_view text_;
  size_t at_ = 0;       // position in bytes
  int64_t starts_ = 0;  // number of characters that begin before at_
  bool lost_ = false;   // the last token was not found
};

}  // namespace

PromptText PromptSentAsText(const Tokenizer& tokenizer, const std::vector<int32_t>& ids,
                            std::string text) {
  PromptText prompt{.text = std::move(text)};
  prompt.length = static_cast<int64_t>(jinja::CountCodePoints(prompt.text));
  Alignment alignment(prompt.text);
  for (const int32_t id : ids) prompt.offsets.push_back(alignment.Next(TokenBytes(tokenizer, id)));
  return prompt;
}

PromptText PromptSentAsIds(const Tokenizer& tokenizer, const std::vector<int32_t>& ids) {
  PromptText prompt;
  IncrementalDetokenizer detokenizer(tokenizer, /*skip_special_tokens=*/false);
  TokenOffsets offsets;
  for (const int32_t id : ids) {
    const std::string bytes = TokenBytes(tokenizer, id);
    prompt.offsets.push_back(offsets.Begin(bytes));
    const std::string text = detokenizer.Push({&id, 1});
    offsets.Push(bytes, text);
    prompt.text += text;
  }
  prompt.text += detokenizer.Finish();
  prompt.length = static_cast<int64_t>(jinja::CountCodePoints(prompt.text));
  return prompt;
}

}  // namespace switchyard::openai
