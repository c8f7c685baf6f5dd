// Unicode normalization forms (UAX 15) with utf8proc's tables of Unicode 15. Hugging Face's tables
// are older: characters added since then may differ.
#pragma once

#include "text/tokenizer/marked_text.h"

namespace switchyard {

enum class NormalizationForm { kNfc, kNfd, kNfkc, kNfkd };

// A composed character is untrusted if any of its parts was. Time O(n log n), for any number of
// combining marks.
MarkedText ToNormalizationForm(const MarkedText& text, NormalizationForm form);

}  // namespace switchyard
