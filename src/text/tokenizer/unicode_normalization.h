// Unicode normalization forms (UAX 15) by utf8proc's tables, of Unicode 15. Hugging Face's are
// older: characters that came to Unicode since then may differ.
#pragma once

#include "text/tokenizer/marked_text.h"

namespace switchyard {

enum class NormalizationForm { kNfc, kNfd, kNfkc, kNfkd };

// A composed character is untrusted when any of its parts was. Time O(n log n), whatever the marks
// are stacked.
MarkedText ToNormalizationForm(const MarkedText& text, NormalizationForm form);

}  // namespace switchyard
