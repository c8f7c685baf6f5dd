// Tokenizers of SentencePiece's tokenizer.model.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace switchyard {

// tokenizer.model: the trained model of SentencePiece, a protobuf message
// (sentencepiece_model.proto).

struct SentencePieceModel {
  enum class Kind { kUnigram = 1, kBpe = 2 };
  enum class PieceType {
    kNormal = 1,
    kUnknown = 2,
    kControl = 3,
    kUserDefined = 4,
    kUnused = 5,
    kByte = 6
  };

  struct Piece {
    std::string text;
    float score = 0;
    PieceType type = PieceType::kNormal;
  };

  std::vector<Piece> pieces;  // [id]
  Kind kind = Kind::kUnigram;
  bool byte_fallback = false;
  int32_t unk_id = 0, bos_id = 1, eos_id = 2;  // negative: no such piece
  std::string unk_piece = "<unk>", bos_piece = "<s>", eos_piece = "</s>";
  // Normalization table of texts (normalizer.h).
  std::string precompiled_charsmap;  // may be empty
  bool add_dummy_prefix = true;
  bool remove_extra_whitespaces = true;
  bool escape_whitespaces = true;
};

// Throws Error that names `file` for bytes that are not such a protobuf message, for model types
// other than Unigram and BPE, and for pieces that are not UTF-8.
SentencePieceModel ReadSentencePiece(std::string_view bytes, const std::string& file);

// Converts a SentencePiece model to the form of tokenizer.json.

// Builds the same components as transformers 5 (SpmConverter.build_tokenizer_from_spm_proto), with
// the same ids for every text. `legacy` (of tokenizer_config.json): every piece of text between
// added tokens gets the prefix "▁", not only the first. Control, user-defined and unknown pieces
// become added tokens. Throws Error that names `file`.
nlohmann::json TokenizerOfSentencePiece(const SentencePieceModel& model, bool legacy,
                                        const std::string& file);

}  // namespace switchyard
