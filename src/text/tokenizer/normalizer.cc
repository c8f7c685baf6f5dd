#include "text/tokenizer/normalizer.h"

#include <optional>
#include <utility>
#include <vector>

#include "core/error.h"
#include "text/tokenizer/base64.h"
#include "text/tokenizer/text_pattern.h"
#include "text/tokenizer/unicode.h"

namespace switchyard {
namespace {

class NormalizerSequence final : public TextNormalizer {
 public:
  explicit NormalizerSequence(std::vector<std::unique_ptr<TextNormalizer>> steps)
      : steps_(std::move(steps)) {}

  MarkedText Apply(MarkedText text) const override {
    for (const auto& step : steps_) text = step->Apply(std::move(text));
    return text;
  }

 private:
  std::vector<std::unique_ptr<TextNormalizer>> steps_;
};

class UnicodeForm final : public TextNormalizer {
 public:
  explicit UnicodeForm(NormalizationForm form) : form_(form) {}
  MarkedText Apply(MarkedText text) const override { return ToNormalizationForm(text, form_); }

 private:
  NormalizationForm form_;
};

class Prepend final : public TextNormalizer {
 public:
  explicit Prepend(std::string prefix) : prefix_(std::move(prefix)) {}

  MarkedText Apply(MarkedText text) const override {
    if (text.text().empty()) return text;
    MarkedText out(text.marked());
    out.Append(prefix_, false);
    out.Append(text, {0, text.text().size()});
    return out;
  }

 private:
  std::string prefix_;
};

class ReplaceText final : public TextNormalizer {
 public:
  ReplaceText(TextPattern pattern, std::string content)
      : pattern_(std::move(pattern)), content_(std::move(content)) {}

  MarkedText Apply(MarkedText text) const override {
    if (text.text().empty()) return text;
    const std::vector<TextRange> matches = pattern_.FindAll(text.text());
    if (matches.empty()) return text;
    CheckRewrittenSize(text.text().size(), text.text().size() + matches.size() * content_.size());
    MarkedText out(text.marked());
    size_t done = 0;
    for (const TextRange& match : matches) {
      out.Append(text, {done, match.begin});
      out.Append(content_, text.Untrusted(match));
      done = match.end;
    }
    out.Append(text, {done, text.text().size()});
    return out;
  }

 private:
  TextPattern pattern_;
  std::string content_;
};

class StripSpaces final : public TextNormalizer {
 public:
  StripSpaces(bool left, bool right) : left_(left), right_(right) {}

  MarkedText Apply(MarkedText text) const override {
    const std::string& s = text.text();
    TextRange kept{0, s.size()};
    for (size_t next = 0;
         left_ && kept.begin < kept.end && IsWhitespace(NextCharacter(s, &next));) {
      kept.begin = next;
    }
    for (size_t last = s.size();
         right_ && kept.begin < kept.end && IsWhitespace(PreviousCharacter(s, &last));) {
      kept.end = last;
    }
    return kept.size() == s.size() ? text : text.Part(kept, text.marked());
  }

 private:
  bool left_;
  bool right_;
};

// Rewrites each character; `rewrite(character, &out)` appends its replacement.
template <typename Rewrite>
class CharacterWise final : public TextNormalizer {
 public:
  explicit CharacterWise(Rewrite rewrite) : rewrite_(std::move(rewrite)) {}

  MarkedText Apply(MarkedText text) const override {
    MarkedText out(text.marked());
    std::string rewritten;
    for (size_t i = 0; i < text.text().size();) {
      const size_t begin = i;
      rewritten.clear();
      rewrite_(NextCharacter(text.text(), &i), &rewritten);
      out.Append(rewritten, text.Untrusted({begin, i}));
    }
    return out;
  }

 private:
  Rewrite rewrite_;
};

void AppendUnlessAccent(char32_t character, std::string* out) {
  if (!IsNonspacingMark(character)) AppendUtf8(character, out);
}

std::optional<NormalizationForm> FormNamed(std::string_view type) {
  if (type == "NFC") return NormalizationForm::kNfc;
  if (type == "NFD") return NormalizationForm::kNfd;
  if (type == "NFKC") return NormalizationForm::kNfkc;
  if (type == "NFKD") return NormalizationForm::kNfkd;
  return std::nullopt;
}

}  // namespace

std::unique_ptr<TextNormalizer> MakeNormalizer(const JsonNode& node, int depth) {
  if (node.is_null()) return nullptr;
  if (depth > kMaxComponentDepth)
    throw Invalid("{}: components nest deeper than {}", node.where(), kMaxComponentDepth);
  const std::string type = node["type"].String();
  if (const auto form = FormNamed(type)) return std::make_unique<UnicodeForm>(*form);
  if (type == "Sequence") {
    std::vector<std::unique_ptr<TextNormalizer>> steps;
    for (const JsonNode& item : node["normalizers"].Components()) {
      steps.push_back(MakeNormalizer(item, depth + 1));
    }
    return std::make_unique<NormalizerSequence>(std::move(steps));
  }
  if (type == "Prepend") return std::make_unique<Prepend>(node["prepend"].String());
  if (type == "Replace") {
    return std::make_unique<ReplaceText>(ReadPattern(node["pattern"]), node["content"].String());
  }
  if (type == "Lowercase")
    return std::make_unique<CharacterWise<decltype(&AppendLowercase)>>(&AppendLowercase);
  if (type == "StripAccents") {
    return std::make_unique<CharacterWise<decltype(&AppendUnlessAccent)>>(&AppendUnlessAccent);
  }
  if (type == "Strip") {
    return std::make_unique<StripSpaces>(node["strip_left"].BoolOr(true),
                                         node["strip_right"].BoolOr(true));
  }
  if (type == "Precompiled") {
    const JsonNode map = node["precompiled_charsmap"];
    std::optional<std::string> bytes = BytesOfBase64(map.String());
    if (!bytes) throw Invalid("{} is not valid base64", map.where());
    return MakePrecompiledNormalizer(std::move(*bytes), map.where());
  }
  throw Invalid("{}: normalizer type '{}' is not supported", node.where(), type);
}

}  // namespace switchyard
