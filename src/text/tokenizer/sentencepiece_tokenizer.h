// A model of SentencePiece as tokenizer.json has it.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "text/tokenizer/sentencepiece_model.h"

namespace switchyard {

// The parts that transformers 5 builds from such a file
// (SpmConverter.build_tokenizer_from_spm_proto), with the same ids for every text. `legacy` (of
// tokenizer_config.json): every piece of text between added tokens gets the prefix "▁", and not
// only the first. Control and user-defined pieces, and the unknown piece, are added tokens. Throws
// Error that names `file`.
nlohmann::json TokenizerOfSentencePiece(const SentencePieceModel& model, bool legacy,
                                        const std::string& file);

}  // namespace switchyard
