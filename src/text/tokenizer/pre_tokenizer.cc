#include "text/tokenizer/pre_tokenizer.h"

#include <array>
#include <cstdint>
#include <functional>
#include <string_view>
#include <utility>

#include "core/error.h"
#include "text/tokenizer/normalizer.h"
#include "text/tokenizer/text_pattern.h"
#include "text/tokenizer/unicode.h"

namespace switchyard {
namespace {

constexpr char32_t kAlphabetEnd = 0x144;  // the last character in use is U+0143

constexpr bool IsOwnCharacter(int byte) {
  return ('!' <= byte && byte <= '~') || (0xA1 <= byte && byte <= 0xAC) ||
         (0xAE <= byte && byte <= 0xFF);
}

struct Alphabet {
  std::array<char16_t, 256> character{};
  std::array<int16_t, kAlphabetEnd> byte{};  // -1: not in the alphabet
};

constexpr Alphabet MakeAlphabet() {
  Alphabet alphabet;
  for (auto& byte : alphabet.byte) byte = -1;
  char16_t next = 0x100;
  for (int b = 0; b < 256; ++b) {
    const char16_t c = IsOwnCharacter(b) ? static_cast<char16_t>(b) : next++;
    alphabet.character[static_cast<size_t>(b)] = c;
    alphabet.byte[c] = static_cast<int16_t>(b);
  }
  return alphabet;
}

constexpr Alphabet kAlphabet = MakeAlphabet();

}  // namespace

void AppendByteLevel(std::string_view bytes, std::string* out) {
  for (const char byte : bytes) {
    const char16_t c = kAlphabet.character[static_cast<uint8_t>(byte)];
    if (c < 0x80) {
      out->push_back(static_cast<char>(c));
    } else {
      out->push_back(static_cast<char>(0xC0 | c >> 6));
      out->push_back(static_cast<char>(0x80 | (c & 0x3F)));
    }
  }
}

std::string BytesOfByteLevel(std::string_view token) {
  std::string bytes;
  for (size_t i = 0; i < token.size();) {
    const char32_t c = NextCharacter(token, &i);
    if (c >= kAlphabetEnd || kAlphabet.byte[c] < 0) return std::string(token);
    bytes.push_back(static_cast<char>(kAlphabet.byte[c]));
  }
  return bytes;
}

namespace {

Metaspace::Prepend ReadPrepend(const JsonNode& node) {
  const std::string name = node.is_null() ? "always" : node.String();
  if (name == "always") return Metaspace::Prepend::kAlways;
  if (name == "first") return Metaspace::Prepend::kFirst;
  if (name == "never") return Metaspace::Prepend::kNever;
  throw Invalid("{} is '{}', want always, first or never", node.where(), name);
}

}  // namespace

Metaspace ReadMetaspace(const JsonNode& node) {
  Metaspace out;
  AppendUtf8(node["replacement"].Character(), &out.replacement);
  out.prepend = ReadPrepend(node["prepend_scheme"]);
  out.split = node["split"].BoolOr(true);
  const JsonNode legacy =
      node["add_prefix_space"];  // older files: true for always, false for never
  if (!legacy.BoolOr(true) && out.prepend != Metaspace::Prepend::kNever) {
    if (!node["prepend_scheme"].is_null())
      throw Invalid("{} contradicts prepend_scheme", legacy.where());
    out.prepend = Metaspace::Prepend::kNever;
  }
  return out;
}

namespace {

// GPT-2's split pattern, which ByteLevel includes.
constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

std::string_view TextOf(const Words& words, const TextRange& piece) {
  return std::string_view(words.text).substr(piece.begin, piece.size());
}

// Splits each piece: `spans_of(text)` gives its SplitSpans.
template <typename SpansOf>
void CutPieces(Words* words, SplitBehavior behavior, const SpansOf& spans_of) {
  std::vector<TextRange> pieces;
  for (const TextRange& piece : words->pieces) {
    AppendPieces(spans_of(TextOf(*words, piece)), behavior, piece.begin, &pieces);
  }
  words->pieces = std::move(pieces);
}

// Rewrites each piece: `rewrite(text, starts_input, &out)` appends its replacement.
template <typename Rewrite>
void RewritePieces(Words* words, const Rewrite& rewrite) {
  Words out{{}, {}, words->starts_input && !words->pieces.empty() && words->pieces[0].begin == 0};
  out.text.reserve(words->text.size() + words->text.size() / 4);
  for (const TextRange& piece : words->pieces) {
    const size_t begin = out.text.size();
    rewrite(TextOf(*words, piece), words->starts_input && piece.begin == 0, &out.text);
    if (out.text.size() > begin) out.pieces.push_back({begin, out.text.size()});
  }
  CheckRewrittenSize(words->text.size(), out.text.size());
  *words = std::move(out);
}

class PreTokenizerSequence final : public PreTokenizer {
 public:
  explicit PreTokenizerSequence(std::vector<std::unique_ptr<PreTokenizer>> steps)
      : steps_(std::move(steps)) {}

  void Apply(Words* words) const override {
    for (const auto& step : steps_) step->Apply(words);
  }

 private:
  std::vector<std::unique_ptr<PreTokenizer>> steps_;
};

class SplitAtPattern final : public PreTokenizer {
 public:
  SplitAtPattern(TextPattern pattern, SplitBehavior behavior, bool invert)
      : pattern_(std::move(pattern)), behavior_(behavior), invert_(invert) {}

  void Apply(Words* words) const override {
    CutPieces(words, behavior_, [this](std::string_view text) {
      return CoverWithSpans(pattern_.FindAll(text), text.size(), invert_);
    });
  }

 private:
  TextPattern pattern_;
  SplitBehavior behavior_;
  bool invert_;
};

class SplitAtCharacters final : public PreTokenizer {
 public:
  SplitAtCharacters(std::function<bool(char32_t)> is_delimiter, SplitBehavior behavior)
      : is_delimiter_(std::move(is_delimiter)), behavior_(behavior) {}

  void Apply(Words* words) const override {
    CutPieces(words, behavior_,
              [this](std::string_view text) { return SpanPerCharacter(text, is_delimiter_); });
  }

 private:
  std::function<bool(char32_t)> is_delimiter_;
  SplitBehavior behavior_;
};

// "Whitespace": runs of word characters and runs of other characters; drops spaces.
class SplitIntoWords final : public PreTokenizer {
 public:
  void Apply(Words* words) const override {
    CutPieces(words, SplitBehavior::kRemoved, [](std::string_view text) {
      std::vector<SplitSpan> spans;
      bool previous_word = false;
      for (size_t i = 0; i < text.size();) {
        const size_t begin = i;
        const char32_t c = NextCharacter(text, &i);
        const bool space = IsWhitespace(c);
        const bool word = IsWordCharacter(c);
        if (!spans.empty() && spans.back().delimiter == space && previous_word == word) {
          spans.back().range.end = i;
        } else {
          spans.push_back({{begin, i}, space});
        }
        previous_word = word;
      }
      return spans;
    });
  }
};

class ByteLevel final : public PreTokenizer {
 public:
  ByteLevel(bool add_prefix_space, std::unique_ptr<PreTokenizer> split)
      : add_prefix_space_(add_prefix_space), split_(std::move(split)) {}

  void Apply(Words* words) const override {
    if (add_prefix_space_) {
      RewritePieces(words, [](std::string_view text, bool, std::string* out) {
        if (!text.starts_with(' ')) out->push_back(' ');
        out->append(text);
      });
    }
    if (split_ != nullptr) split_->Apply(words);
    RewritePieces(
        words, [](std::string_view text, bool, std::string* out) { AppendByteLevel(text, out); });
  }

 private:
  bool add_prefix_space_;
  std::unique_ptr<PreTokenizer> split_;  // null: another component splits
};

class MetaspacePreTokenizer final : public PreTokenizer {
 public:
  explicit MetaspacePreTokenizer(Metaspace options)
      : options_(std::move(options)),
        pattern_(TextPattern::Literal(options_.replacement, "Metaspace")) {}

  void Apply(Words* words) const override {
    RewritePieces(words, [this](std::string_view text, bool starts_input, std::string* out) {
      const bool needs_prefix = options_.prepend == Metaspace::Prepend::kAlways ||
                                (options_.prepend == Metaspace::Prepend::kFirst && starts_input);
      if (needs_prefix && !text.starts_with(' ') && !text.starts_with(options_.replacement)) {
        out->append(options_.replacement);
      }
      for (const char byte : text) {
        if (byte == ' ') {
          out->append(options_.replacement);
        } else {
          out->push_back(byte);
        }
      }
    });
    if (!options_.split) return;
    CutPieces(words, SplitBehavior::kMergedWithNext, [this](std::string_view text) {
      return CoverWithSpans(pattern_.FindAll(text), text.size(), false);
    });
  }

 private:
  Metaspace options_;
  TextPattern pattern_;
};

std::unique_ptr<PreTokenizer> MakeByteLevel(const JsonNode& node) {
  std::unique_ptr<PreTokenizer> split;
  if (node["use_regex"].BoolOr(true)) {
    split = std::make_unique<SplitAtPattern>(TextPattern::Regex(kGpt2Pattern, node.where()),
                                             SplitBehavior::kIsolated, false);
  }
  return std::make_unique<ByteLevel>(node["add_prefix_space"].Bool(), std::move(split));
}

std::unique_ptr<PreTokenizer> MakeSequence(const JsonNode& node, int depth) {
  std::vector<std::unique_ptr<PreTokenizer>> steps;
  for (const JsonNode& item : node["pretokenizers"].Components()) {
    steps.push_back(MakePreTokenizer(item, depth + 1));
  }
  return std::make_unique<PreTokenizerSequence>(std::move(steps));
}

}  // namespace

std::unique_ptr<PreTokenizer> MakePreTokenizer(const JsonNode& node, int depth) {
  if (node.is_null()) return nullptr;
  if (depth > kMaxComponentDepth)
    throw Invalid("{}: components nest deeper than {}", node.where(), kMaxComponentDepth);
  const std::string type = node["type"].String();
  const JsonNode behavior = node["behavior"];
  if (type == "Sequence") return MakeSequence(node, depth);
  if (type == "ByteLevel") return MakeByteLevel(node);
  if (type == "Metaspace") return std::make_unique<MetaspacePreTokenizer>(ReadMetaspace(node));
  if (type == "Whitespace") return std::make_unique<SplitIntoWords>();
  if (type == "Split") {
    return std::make_unique<SplitAtPattern>(
        ReadPattern(node["pattern"]), ReadSplitBehavior(behavior), node["invert"].BoolOr(false));
  }
  if (type == "Digits") {
    const bool individual = node["individual_digits"].BoolOr(false);
    return std::make_unique<SplitAtCharacters>(
        &IsNumeric, individual ? SplitBehavior::kIsolated : SplitBehavior::kContiguous);
  }
  if (type == "Punctuation") {
    return std::make_unique<SplitAtCharacters>(&IsPunctuation, behavior.is_null()
                                                                   ? SplitBehavior::kIsolated
                                                                   : ReadSplitBehavior(behavior));
  }
  if (type == "WhitespaceSplit")
    return std::make_unique<SplitAtCharacters>(&IsWhitespace, SplitBehavior::kRemoved);
  if (type == "CharDelimiterSplit") {
    const char32_t delimiter = node["delimiter"].Character();
    return std::make_unique<SplitAtCharacters>([delimiter](char32_t c) { return c == delimiter; },
                                               SplitBehavior::kRemoved);
  }
  throw Invalid("{}: pre_tokenizer type '{}' is not supported", node.where(), type);
}

}  // namespace switchyard
