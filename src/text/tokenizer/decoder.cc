#include "text/tokenizer/decoder.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <optional>
#include <utility>

#include "core/error.h"
#include "text/tokenizer/normalizer.h"
#include "text/tokenizer/pre_tokenizer.h"
#include "text/tokenizer/text_pattern.h"
#include "text/tokenizer/unicode.h"

namespace switchyard {
namespace {

class Filter : public TokenSink {
 public:
  explicit Filter(TokenSink* next) : next_(next) {}
  void EndToken() override { next_->EndToken(); }
  void EndText() override { next_->EndText(); }

 protected:
  TokenSink* const next_;
};

class JoinBySpaces final : public Filter {
 public:
  using Filter::Filter;

  void Text(std::string_view fragment) override {
    if (std::exchange(between_, false)) next_->Text(" ");
    next_->Text(fragment);
  }
  void EndToken() override {
    Text("");
    between_ = true;
    next_->EndToken();
  }

 private:
  bool between_ = false;
};

class FuseTokens final : public Filter {
 public:
  using Filter::Filter;
  void Text(std::string_view fragment) override { next_->Text(fragment); }
  void EndToken() override {}
  void EndText() override {
    next_->EndToken();
    next_->EndText();
  }
};

class ByteLevelFilter final : public Filter {
 public:
  using Filter::Filter;
  void Text(std::string_view fragment) override { token_.append(fragment); }
  void EndToken() override {
    next_->Text(repair_.Push(BytesOfByteLevel(token_)));
    token_.clear();
  }
  void EndText() override {
    next_->Text(repair_.Finish());
    next_->EndToken();
    next_->EndText();
  }

 private:
  std::string token_;
  Utf8Repair repair_;
};

constexpr size_t kByteTokenSize = 6;

std::optional<char> ByteOf(std::string_view token) {
  if (token.size() != kByteTokenSize || !token.starts_with("<0x") || !token.ends_with('>'))
    return std::nullopt;
  std::string_view digits = token.substr(3, 2);
  if (digits[0] == '+') digits.remove_prefix(1);  // Rust's from_str_radix accepts a sign
  uint8_t byte = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), byte, 16);
  if (error != std::errc() || end != digits.data() + digits.size()) return std::nullopt;
  return static_cast<char>(byte);
}

// A run of byte tokens becomes text if it is valid UTF-8 as a whole, otherwise one U+FFFD per byte.
class ByteFallback final : public Filter {
 public:
  using Filter::Filter;

  void Text(std::string_view fragment) override {
    if (passing_) return next_->Text(fragment);
    token_.append(fragment);
    if (token_.size() <= kByteTokenSize) return;
    FlushRun();
    next_->Text(token_);
    passing_ = true;
  }

  void EndToken() override {
    if (passing_) {
      next_->EndToken();
    } else if (const std::optional<char> byte = ByteOf(token_)) {
      run_.push_back(*byte);
    } else {
      FlushRun();
      next_->Text(token_);
      next_->EndToken();
    }
    token_.clear();
    passing_ = false;
  }

  void EndText() override {
    FlushRun();
    next_->EndText();
  }

 private:
  void FlushRun() {
    if (run_.empty()) return;
    if (IsValidUtf8(run_)) {
      next_->Text(run_);
      next_->EndToken();
    } else {
      for (size_t i = 0; i < run_.size(); ++i) {
        next_->Text(kReplacementCharacter);
        next_->EndToken();
      }
    }
    run_.clear();
  }

  std::string token_;     // text so far, while it can still become a byte token
  bool passing_ = false;  // the token is too long for a byte token: its text is forwarded
  std::string run_;       // bytes
};

// Replaces a literal pattern. Holds back only text that may be the beginning of the pattern.
class ReplaceLiteral final : public Filter {
 public:
  ReplaceLiteral(TokenSink* next, const TextPattern* pattern, const std::string* content)
      : Filter(next), pattern_(pattern->literal()), content_(*content) {}

  void Text(std::string_view fragment) override {
    held_.append(fragment);
    std::string out;
    size_t done = 0;
    for (size_t at = held_.find(pattern_); at != std::string::npos;
         at = held_.find(pattern_, done)) {
      out.append(held_, done, at - done).append(content_);
      CheckRewrittenSize(held_.size(), out.size());
      done = at + pattern_.size();
    }
    const size_t keep = PartialMatch(std::string_view(held_).substr(done));
    out.append(held_, done, held_.size() - keep - done);
    held_.erase(0, held_.size() - keep);
    if (!out.empty()) next_->Text(out);
  }

  void EndToken() override {
    next_->Text(held_);
    held_.clear();
    next_->EndToken();
  }

 private:
  // Length of the longest suffix of `text` that is a prefix of the pattern.
  size_t PartialMatch(std::string_view text) const {
    size_t length = std::min(text.size(), pattern_.size() - 1);
    while (length > 0 && !text.ends_with(std::string_view(pattern_).substr(0, length))) --length;
    return length;
  }

  const std::string& pattern_;
  const std::string& content_;
  std::string held_;
};

class ReplaceRegex final : public Filter {
 public:
  ReplaceRegex(TokenSink* next, const TextPattern* pattern, const std::string* content)
      : Filter(next), pattern_(*pattern), content_(*content) {}

  void Text(std::string_view fragment) override { token_.append(fragment); }

  void EndToken() override {
    std::string out;
    size_t done = 0;
    if (!token_.empty()) {
      for (const TextRange& match : pattern_.FindAll(token_)) {
        out.append(token_, done, match.begin - done).append(content_);
        CheckRewrittenSize(token_.size(), out.size());
        done = match.end;
      }
    }
    out.append(token_, done);
    token_.clear();
    next_->Text(out);
    next_->EndToken();
  }

 private:
  const TextPattern& pattern_;
  const std::string& content_;
  std::string token_;
};

// Strips up to `start` leading and `stop` trailing copies of a character from each token.
class StripCharacter final : public Filter {
 public:
  StripCharacter(TokenSink* next, char32_t character, int64_t start, int64_t stop)
      : Filter(next), character_(character), start_(start), stop_(stop), to_strip_(start) {}

  void Text(std::string_view fragment) override {
    std::string out;
    for (size_t i = 0; i < fragment.size();) {
      const size_t begin = i;
      const bool strippable = NextCharacter(fragment, &i) == character_;
      const std::string_view character = fragment.substr(begin, i - begin);
      if (!strippable) {
        to_strip_ = 0;
        for (; held_ > 0; --held_) AppendUtf8(character_, &out);
        out.append(character);
      } else if (to_strip_ > 0) {
        --to_strip_;
      } else if (held_ < stop_) {
        ++held_;
      } else {
        out.append(character);
      }
    }
    if (!out.empty()) next_->Text(out);
  }

  void EndToken() override {
    held_ = 0;
    to_strip_ = start_;
    next_->EndToken();
  }

 private:
  const char32_t character_;
  const int64_t start_;
  const int64_t stop_;
  int64_t to_strip_;  // number of leading copies that may still be stripped
  int64_t held_ = 0;  // number of held copies, which are stripped if the token ends here
};

// Converts the replacement character to spaces. In the first token, drops it instead (unless
// `prepend` is kNever), because the pre-tokenizer has added it before the text.
class MetaspaceFilter final : public Filter {
 public:
  MetaspaceFilter(TokenSink* next, const Metaspace* options, bool first)
      : Filter(next), options_(*options), first_(first) {}

  void Text(std::string_view fragment) override {
    const bool drop = first_ && options_.prepend != Metaspace::Prepend::kNever;
    std::string out;
    size_t done = 0;
    for (size_t at = fragment.find(options_.replacement); at != std::string_view::npos;
         at = fragment.find(options_.replacement, done)) {
      out.append(fragment.substr(done, at - done)).append(drop ? "" : " ");
      done = at + options_.replacement.size();
    }
    out.append(fragment.substr(done));
    next_->Text(out);
  }

  void EndToken() override {
    first_ = false;
    next_->EndToken();
  }

 private:
  const Metaspace& options_;
  bool first_;
};

}  // namespace

bool IsByteToken(std::string_view token) { return ByteOf(token).has_value(); }

TokenDecoder::TokenDecoder(const JsonNode& node) {
  if (node.is_null()) {
    filters_.push_back(
        [](TokenSink* next, DecodeScope) { return std::make_unique<JoinBySpaces>(next); });
  } else {
    Read(node, 0);
  }
}

void TokenDecoder::Read(const JsonNode& node, int depth) {
  if (depth > kMaxComponentDepth)
    throw Invalid("{}: components nest deeper than {}", node.where(), kMaxComponentDepth);
  const std::string type = node["type"].String();
  if (type == "Sequence") {
    for (const JsonNode& item : node["decoders"].Components()) Read(item, depth + 1);
  } else if (type == "ByteLevel") {
    filters_.push_back(
        [](TokenSink* next, DecodeScope) { return std::make_unique<ByteLevelFilter>(next); });
    fused_ = true;
  } else if (type == "Fuse") {
    filters_.push_back(
        [](TokenSink* next, DecodeScope) { return std::make_unique<FuseTokens>(next); });
    fused_ = true;
  } else if (type == "ByteFallback") {
    filters_.push_back(
        [](TokenSink* next, DecodeScope) { return std::make_unique<ByteFallback>(next); });
  } else if (type == "Metaspace") {
    filters_.push_back([options = ReadMetaspace(node)](TokenSink* next, DecodeScope scope) {
      return std::make_unique<MetaspaceFilter>(next, &options, scope == DecodeScope::kWholeText);
    });
  } else if (type == "Replace") {
    ReadReplace(node);
  } else if (type == "Strip") {
    ReadStrip(node);
  } else {
    throw Invalid("{}: decoder type '{}' is not supported", node.where(), type);
  }
}

void TokenDecoder::ReadReplace(const JsonNode& node) {
  filters_.push_back([pattern = ReadPattern(node["pattern"]), content = node["content"].String()](
                         TokenSink* next, DecodeScope) -> std::unique_ptr<TokenSink> {
    if (pattern.literal().empty()) return std::make_unique<ReplaceRegex>(next, &pattern, &content);
    return std::make_unique<ReplaceLiteral>(next, &pattern, &content);
  });
}

void TokenDecoder::ReadStrip(const JsonNode& node) {
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  const char32_t character = node["content"].Character();
  const int64_t start = node["start"].Integer(0, kMost);
  const int64_t stop = node["stop"].Integer(0, kMost);
  filters_.push_back([=, of_text = fused_](TokenSink* next, DecodeScope scope) {
    const bool keep = of_text && scope == DecodeScope::kMiddleOfText;
    return std::make_unique<StripCharacter>(next, character, keep ? 0 : start, keep ? 0 : stop);
  });
}

DecodeStream::DecodeStream(const TokenDecoder& decoder, DecodeScope scope) : start_(&end_) {
  for (size_t i = decoder.filters_.size(); i-- > 0;) {
    filters_.push_back(decoder.filters_[i](start_, scope));
    start_ = filters_.back().get();
  }
}

void DecodeStream::Push(std::string_view token) {
  start_->Text(token);
  start_->EndToken();
}

void DecodeStream::Finish() { start_->EndText(); }

}  // namespace switchyard
