// The normalizer of type Precompiled: SentencePiece's table of character sequences and what they
// become ("precompiled_charsmap").
#pragma once

#include <memory>
#include <string>

#include "text/tokenizer/normalizer.h"

namespace switchyard {

// `charsmap`: a little-endian length, a Darts-clone double array of that many bytes, and the texts
// that its values point at, each ended by NUL. Texts are rewritten as the library tokenizers does
// (its spm_precompiled), where grapheme clusters are looked up first. Throws Error that names
// `where` for a malformed table.
std::unique_ptr<TextNormalizer> MakePrecompiledNormalizer(std::string charsmap,
                                                          const std::string& where);

}  // namespace switchyard
