#include "train/data/encode.h"

#include <algorithm>
#include <utility>

#include "core/error.h"
#include "text/chat/chat_template.h"

namespace switchyard::train {
namespace {

using Json = nlohmann::ordered_json;

// The ids of bytes [begin, end) of a rendered chat. Special tokens in user content stay text.
std::vector<int32_t> EncodeRange(const Tokenizer& tokenizer, const jinja::Rendered& rendered,
                                 size_t begin, size_t end) {
  std::vector<Tokenizer::Piece> pieces;
  for (const jinja::Run& run : rendered.runs) {
    const size_t from = std::max(run.begin, begin), to = std::min(run.end, end);
    if (from >= to) continue;
    pieces.push_back({std::string_view(rendered.text).substr(from, to - from), run.trusted});
  }
  return tokenizer.EncodePieces(pieces, /*add_special_tokens=*/false);
}

void Append(const std::vector<int32_t>& ids, bool learned, EncodedDocument* out) {
  out->ids.insert(out->ids.end(), ids.begin(), ids.end());
  out->learned.resize(out->ids.size(), learned ? 1 : 0);
}

}  // namespace

DocumentEncoder::DocumentEncoder(const std::filesystem::path& dir, ChatLoss chat_loss)
    : tokenizer_(Tokenizer::FromDirectory(dir)),
      chat_template_(ChatTemplate::FromDirectory(dir)),
      chat_loss_(chat_loss),
      eos_(tokenizer_->NamedToken("eos_token")) {}

EncodedDocument DocumentEncoder::Encode(const Document& document) const {
  if (document.messages.is_null()) return EncodeText(document.text);
  try {
    return EncodeChat(document);
  } catch (const Error& error) {
    const std::string what = error.what();
    if (what.starts_with(document.where)) throw;
    throw Invalid("{}: {}", document.where, what);
  }
}

EncodedDocument DocumentEncoder::EncodeText(const std::string& text) const {
  EncodedDocument out;
  const Tokenizer::Piece piece{text, false};
  Append(tokenizer_->EncodePieces({&piece, 1}, /*add_special_tokens=*/true), true, &out);
  if (eos_ && (out.ids.empty() || out.ids.back() != *eos_)) Append({*eos_}, true, &out);
  return out;
}

EncodedDocument DocumentEncoder::EncodeChat(const Document& document) const {
  const auto render = [&](size_t messages, bool open) {
    ChatInput input;
    input.messages = Json(document.messages.begin(),
                          document.messages.begin() + static_cast<ptrdiff_t>(messages));
    input.add_generation_prompt = open;
    input.tools = document.tools;
    input.kwargs = document.template_kwargs;
    return chat_template_.Apply(input);
  };
  const size_t count = document.messages.size();
  const jinja::Rendered whole = render(count, false);
  EncodedDocument out;
  if (chat_loss_ == ChatLoss::kAll) {
    Append(EncodeRendered(*tokenizer_, whole), true, &out);
    return out;
  }
  size_t done = 0;  // bytes of `whole` that are encoded
  bool answered = false;
  for (size_t i = 0; i < count; ++i) {
    if (document.messages[i].at("role") != "assistant") continue;
    // If the chat starts with the assistant, the text before the first turn is empty. It is not
    // rendered, because a template may reject an empty list of messages.
    const std::string opening = i == 0 ? std::string() : render(i, true).text;
    const std::string turn = i + 1 == count ? whole.text : render(i + 1, false).text;
    if (opening.size() < done || turn.size() < opening.size() || !turn.starts_with(opening) ||
        !whole.text.starts_with(turn)) {
      throw Invalid(
          "{}: message {}: the chat template changes earlier text as the chat continues, so the "
          "assistant's turns cannot be separated; use all tokens as targets",
          document.where, i);
    }
    Append(EncodeRange(*tokenizer_, whole, done, opening.size()), false, &out);
    Append(EncodeRange(*tokenizer_, whole, opening.size(), turn.size()), true, &out);
    done = turn.size();
    answered = true;
  }
  if (!answered) {
    throw Invalid("{}: no message with role assistant, so there is no target", document.where);
  }
  // Text after the last answer is never a target, so it is omitted.
  return out;
}

}  // namespace switchyard::train
