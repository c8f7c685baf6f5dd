// The normalizer of type Precompiled: SentencePiece's table of character sequences and their
// replacements ("precompiled_charsmap").
#pragma once

#include <memory>
#include <string>

#include "text/tokenizer/normalizer.h"

namespace switchyard {

// `charsmap`: a little-endian length, a Darts-clone double array of that many bytes, and the
// NUL-terminated replacement texts, to which the values of the array point. Texts are rewritten as
// in the library tokenizers (spm_precompiled), which looks up grapheme clusters first. Throws Error
// that names `where` for a malformed table.
std::unique_ptr<TextNormalizer> MakePrecompiledNormalizer(std::string charsmap,
                                                          const std::string& where);

}  // namespace switchyard
