#include "server/front/token_offsets.h"

#include "text/jinja/utf8.h"
#include "text/tokenizer/unicode.h"

namespace switchyard {

int64_t TokenOffsets::Begin(std::string_view bytes) const {
  const int64_t before = certain_ + ahead_;
  if (cut_.empty() || bytes.empty()) return before;
  // If the first byte does not continue the incomplete character, the incomplete character becomes
  // one U+FFFD.
  const bool continues = ScanUtf8(cut_ + bytes[0], 0).length > cut_.size();
  return continues ? before : before + 1;
}

void TokenOffsets::Push(std::string_view bytes, std::string_view text) {
  const std::string all = std::exchange(cut_, {}) + std::string(bytes);
  for (size_t at = 0; at < all.size();) {
    const Utf8Sequence sequence = ScanUtf8(all, at);
    if (sequence.kind == Utf8Sequence::kCut) {
      cut_ = all.substr(at);
      break;
    }
    ++ahead_;
    at += sequence.length;
  }
  if (text.empty()) return;
  certain_ += static_cast<int64_t>(jinja::CountCodePoints(text));
  ahead_ = 0;
}

}  // namespace switchyard
