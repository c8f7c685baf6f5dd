#include "text/tokenizer/tokenizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/bounded_json.h"
#include "core/error.h"
#include "core/regular_file.h"
#include "text/tokenizer/tokenizer_parts.h"
#include "text/tokenizer/tokenizer_reader.h"
#include "text/tokenizer/unicode.h"

namespace switchyard {
namespace {

// Several times the size of the largest published file: 33 MB and, with Gemma's 514,906 merges as
// pairs, 2.1 million values. A document takes about 60 bytes of memory for each value.
constexpr uint64_t kMaxFileBytes = 128 << 20;
constexpr size_t kMaxValues = 5'000'000;
constexpr int kMaxDepth = 64;  // components nest up to kMaxComponentDepth, two levels each
// Far beyond any context length, and within the 32-bit indices of the model's symbols.
constexpr size_t kMaxTextBytes = size_t{256} << 20;

void CheckVersion(const JsonNode& version) {
  if (!version.is_null() && version.String() != "1.0") {
    throw Invalid("{} is '{}', want 1.0", version.where(), version.String());
  }
}

// The concatenation as valid UTF-8, with marks if needed. A UTF-8 sequence that crosses pieces is
// one character. It is untrusted if any part of it is untrusted.
MarkedText Join(std::span<const Tokenizer::Piece> pieces) {
  const bool marked =
      std::any_of(pieces.begin(), pieces.end(), [](const auto& piece) { return !piece.trusted; });
  std::string bytes;
  std::string untrusted;
  for (const Tokenizer::Piece& piece : pieces) {
    bytes.append(piece.text);
    if (marked) untrusted.append(piece.text.size(), piece.trusted ? 0 : 1);
  }
  if (bytes.size() > kMaxTextBytes) {
    throw Error(ErrorKind::kTooLarge,
                fmt::format("the text to encode has {} bytes, want at most {}", bytes.size(),
                            kMaxTextBytes));
  }
  if (!marked && IsValidUtf8(bytes)) return MarkedText(std::move(bytes));

  MarkedText out(marked);
  for (size_t i = 0; i < bytes.size();) {
    const Utf8Sequence sequence = ScanUtf8(bytes, i);
    const auto span_of = [&](const std::string& of) {
      return std::string_view(of).substr(i, sequence.length);
    };
    out.Append(sequence.kind == Utf8Sequence::kValid ? span_of(bytes) : kReplacementCharacter,
               marked && span_of(untrusted).find('\1') != std::string_view::npos);
    i += sequence.length;
  }
  return out;
}

// State of one Encode call.
class Encoder {
 public:
  Encoder(const TokenizerParts& parts, size_t limit) : parts_(parts), limit_(limit) {}

  std::vector<int32_t> Run(const MarkedText& text) {
    for (const TextPart& part : parts_.added.CutRaw(text)) {
      if (Full()) break;
      if (part.id >= 0) {
        ids_.push_back(part.id);
      } else {
        EncodeRaw(text.Part(part.range, parts_.added.has_normalized_special()),
                  part.range.begin == 0);
      }
    }
    return std::move(ids_);
  }

 private:
  bool Full() const { return ids_.size() > limit_; }

  void EncodeRaw(MarkedText text, bool starts_input) {
    if (parts_.normalizer != nullptr) text = parts_.normalizer->Apply(std::move(text));
    for (const TextPart& part : parts_.added.CutNormalized(text)) {
      if (part.id >= 0) {
        ids_.push_back(part.id);
      } else {
        const TextRange range = part.range;
        EncodeWords({text.text().substr(range.begin, range.size()),
                     {{0, range.size()}},
                     starts_input && range.begin == 0});
      }
    }
  }

  void EncodeWords(Words words) {
    if (parts_.pre_tokenizer != nullptr) parts_.pre_tokenizer->Apply(&words);
    for (const TextRange& word : words.pieces) {
      if (Full()) return;
      parts_.model.Encode(std::string_view(words.text).substr(word.begin, word.size()), &scratch_,
                          &ids_);
    }
  }

  const TokenizerParts& parts_;
  const size_t limit_;
  TokenModel::Scratch scratch_;
  std::vector<int32_t> ids_;
};

}  // namespace

std::string ReadTokenizerFile(const std::filesystem::path& path) {
  return ReadRegularFile(path, kMaxFileBytes);
}

nlohmann::json ParseTokenizerJson(std::string_view json, std::string_view name_for_errors) {
  return ParseBoundedJson(json, name_for_errors, {.depth = kMaxDepth, .values = kMaxValues});
}

Tokenizer::Tokenizer(std::unique_ptr<const TokenizerParts> parts) : parts_(std::move(parts)) {}
Tokenizer::~Tokenizer() = default;

std::unique_ptr<Tokenizer> Tokenizer::FromFile(const std::filesystem::path& tokenizer_json) {
  return FromJson(ReadTokenizerFile(tokenizer_json), tokenizer_json.string());
}

std::unique_ptr<Tokenizer> Tokenizer::FromJson(std::string_view json,
                                               std::string_view name_for_errors) {
  return FromDocument(ParseTokenizerJson(json, name_for_errors), std::string(name_for_errors));
}

std::unique_ptr<Tokenizer> Tokenizer::FromDocument(const nlohmann::json& document,
                                                   const std::string& name_for_errors) {
  const JsonNode root(document, name_for_errors);
  CheckVersion(root["version"]);
  return std::unique_ptr<Tokenizer>(new Tokenizer(std::make_unique<const TokenizerParts>(root)));
}

std::vector<int32_t> Tokenizer::Encode(std::string_view text, bool add_special_tokens,
                                       size_t limit) const {
  const Piece whole{text, true};
  return EncodePieces({&whole, 1}, add_special_tokens, limit);
}

std::vector<int32_t> Tokenizer::EncodePieces(std::span<const Piece> pieces, bool add_special_tokens,
                                             size_t limit) const {
  std::vector<int32_t> ids = Encoder(*parts_, limit).Run(Join(pieces));
  return add_special_tokens ? parts_->post_processor.AddSpecialTokens(std::move(ids)) : ids;
}

std::string Tokenizer::Decode(std::span<const int32_t> ids, bool skip_special_tokens) const {
  DecodeStream stream(parts_->decoder, DecodeScope::kWholeText);
  parts_->Push(ids, skip_special_tokens, &stream);
  stream.Finish();
  return stream.Take();
}

std::string_view Tokenizer::IdToToken(int32_t id) const {
  if (const AddedToken* token = parts_->added.Find(id)) return token->content;
  const std::string* text = parts_->model.vocabulary().Text(id);
  return text == nullptr ? std::string_view() : *text;
}

std::string Tokenizer::TokenText(int32_t id) const {
  DecodeStream stream(parts_->decoder, DecodeScope::kMiddleOfText);
  parts_->Push({&id, 1}, false, &stream);
  stream.Finish();
  return stream.Take();
}

std::optional<int32_t> Tokenizer::TokenToId(std::string_view token) const {
  const auto added = parts_->added.vocabulary().Find(token);
  return added ? added : parts_->model.vocabulary().Find(token);
}

std::optional<int32_t> Tokenizer::NamedToken(std::string_view name) const {
  const auto found = named_.find(name);
  return found == named_.end() ? std::nullopt : std::optional(found->second);
}

int Tokenizer::VocabSize() const { return parts_->vocab_size; }

bool Tokenizer::IsSpecial(int32_t id) const {
  const AddedToken* token = parts_->added.Find(id);
  return token != nullptr && token->special;
}

}  // namespace switchyard
