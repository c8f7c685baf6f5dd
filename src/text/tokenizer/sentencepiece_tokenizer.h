// Converts a SentencePiece model to the form of tokenizer.json.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "text/tokenizer/sentencepiece_model.h"

namespace switchyard {

// Builds the same components as transformers 5 (SpmConverter.build_tokenizer_from_spm_proto), with
// the same ids for every text. `legacy` (of tokenizer_config.json): every piece of text between
// added tokens gets the prefix "▁", not only the first. Control, user-defined and unknown pieces
// become added tokens. Throws Error that names `file`.
nlohmann::json TokenizerOfSentencePiece(const SentencePieceModel& model, bool legacy,
                                        const std::string& file);

}  // namespace switchyard
