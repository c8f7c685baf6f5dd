#include "text/tokenizer/sentencepiece_model.h"

#include <bit>
#include <optional>

#include "core/error.h"
#include "text/tokenizer/unicode.h"
#include "text/tokenizer/vocabulary.h"

namespace switchyard {
namespace {

// The wire format of protobuf: a sequence of fields, each a key and a value.
class Message {
 public:
  struct Field {
    uint64_t number;
    uint64_t integer = 0;    // value of a varint, or the bits of a fixed32
    std::string_view bytes;  // contents of a length-delimited field
  };

  Message(std::string_view bytes, const std::string& file) : rest_(bytes), file_(file) {}

  // Reads the next field; nullopt at the end of the message.
  std::optional<Field> Next() {
    if (rest_.empty()) return std::nullopt;
    const uint64_t key = Varint();
    Field field{key >> 3};
    switch (key & 7) {
      case 0:
        field.integer = Varint();
        break;
      case 1:
        Take(8);
        break;
      case 2:
        field.bytes = Take(Varint());
        break;
      case 5: {
        const std::string_view bytes = Take(4);
        for (size_t i = 4; i-- > 0;)
          field.integer = field.integer << 8 | static_cast<uint8_t>(bytes[i]);
        break;
      }
      default:
        Fail();
    }
    return field;
  }

 private:
  [[noreturn]] void Fail() const { throw Invalid("{} is not a SentencePiece model", file_); }

  std::string_view Take(uint64_t size) {
    if (size > rest_.size()) Fail();
    const std::string_view taken = rest_.substr(0, size);
    rest_.remove_prefix(size);
    return taken;
  }

  uint64_t Varint() {
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const auto byte = static_cast<uint8_t>(Take(1)[0]);
      value |= static_cast<uint64_t>(byte & 0x7F) << shift;
      if (byte < 0x80) return value;
    }
    Fail();
  }

  std::string_view rest_;
  const std::string& file_;
};

SentencePieceModel::Piece ReadPiece(std::string_view bytes, const std::string& file) {
  SentencePieceModel::Piece piece;
  Message message(bytes, file);
  while (const auto field = message.Next()) {
    if (field->number == 1) piece.text = field->bytes;
    if (field->number == 2)
      piece.score = std::bit_cast<float>(static_cast<uint32_t>(field->integer));
    if (field->number == 3) {
      if (field->integer < 1 || field->integer > 6)
        throw Invalid("{}: a piece has the unknown type {}", file, field->integer);
      piece.type = static_cast<SentencePieceModel::PieceType>(field->integer);
    }
  }
  if (!IsValidUtf8(piece.text)) throw Invalid("{}: a piece is not valid UTF-8", file);
  return piece;
}

void ReadTrainerSpec(std::string_view bytes, const std::string& file, SentencePieceModel* model) {
  Message message(bytes, file);
  while (const auto field = message.Next()) {
    const auto id = static_cast<int32_t>(field->integer);
    switch (field->number) {
      case 3:
        if (field->integer != 1 && field->integer != 2)
          throw Invalid("{}: model type {} is not supported, want unigram or BPE", file, id);
        model->kind = static_cast<SentencePieceModel::Kind>(field->integer);
        break;
      case 24:
        if (field->integer != 0)
          throw Invalid("{}: treat_whitespace_as_suffix is not supported", file);
        break;
      case 35:
        model->byte_fallback = field->integer != 0;
        break;
      case 40:
        model->unk_id = id;
        break;
      case 41:
        model->bos_id = id;
        break;
      case 42:
        model->eos_id = id;
        break;
      case 45:
        model->unk_piece = field->bytes;
        break;
      case 46:
        model->bos_piece = field->bytes;
        break;
      case 47:
        model->eos_piece = field->bytes;
        break;
      default:
        break;
    }
  }
}

void ReadNormalizerSpec(std::string_view bytes, const std::string& file,
                        SentencePieceModel* model) {
  Message message(bytes, file);
  while (const auto field = message.Next()) {
    if (field->number == 2) model->precompiled_charsmap = field->bytes;
    if (field->number == 3) model->add_dummy_prefix = field->integer != 0;
    if (field->number == 4) model->remove_extra_whitespaces = field->integer != 0;
    if (field->number == 5) model->escape_whitespaces = field->integer != 0;
  }
}

}  // namespace

SentencePieceModel ReadSentencePiece(std::string_view bytes, const std::string& file) {
  SentencePieceModel model;
  Message message(bytes, file);
  while (const auto field = message.Next()) {
    if (field->number == 1) model.pieces.push_back(ReadPiece(field->bytes, file));
    if (field->number == 2) ReadTrainerSpec(field->bytes, file, &model);
    if (field->number == 3) ReadNormalizerSpec(field->bytes, file, &model);
  }
  if (model.pieces.empty() || model.pieces.size() > static_cast<size_t>(kMaxTokenId))
    throw Invalid("{} has {} pieces, want 1 to {}", file, model.pieces.size(), kMaxTokenId);
  return model;
}

}  // namespace switchyard
