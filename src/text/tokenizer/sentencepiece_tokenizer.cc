#include "text/tokenizer/sentencepiece_tokenizer.h"

#include <algorithm>
#include <bit>
#include <optional>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/error.h"
#include "text/tokenizer/base64.h"
#include "text/tokenizer/bpe_model.h"
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

namespace {

using Json = nlohmann::json;
using PieceType = SentencePieceModel::PieceType;

std::vector<std::string> UserDefined(const SentencePieceModel& model) {
  std::vector<std::string> pieces;
  for (const auto& piece : model.pieces) {
    if (piece.type == PieceType::kUserDefined) pieces.push_back(piece.text);
  }
  return pieces;
}

// The pairs of normal pieces whose concatenation is also a piece, by descending score.
Json MergesOf(const SentencePieceModel& model, const std::string& file) {
  MergeBudget budget(file);
  std::unordered_map<std::string_view, size_t> normal;
  for (size_t id = 0; id < model.pieces.size(); ++id) {
    if (model.pieces[id].type == PieceType::kNormal) normal.emplace(model.pieces[id].text, id);
  }
  std::vector<std::tuple<float, size_t, std::string_view, std::string_view>> ranked;
  for (const auto& [text, id] : normal) {
    budget.AddToken(text.size());
    for (size_t split = 1; split < text.size(); ++split) {
      const std::string_view left = text.substr(0, split);
      const std::string_view right = text.substr(split);
      if (!normal.contains(left) || !normal.contains(right)) continue;
      budget.AddMerge();
      ranked.emplace_back(-model.pieces[id].score, id, left, right);
    }
  }
  std::sort(ranked.begin(), ranked.end());
  Json merges = Json::array();
  for (const auto& [score, id, left, right] : ranked)
    merges.push_back(Json::array({std::string(left), std::string(right)}));
  return merges;
}

Json ModelOf(const SentencePieceModel& model, const std::string& file) {
  if (model.kind == SentencePieceModel::Kind::kUnigram) {
    Json vocab = Json::array();
    for (const auto& piece : model.pieces) vocab.push_back(Json::array({piece.text, piece.score}));
    return {{"type", "Unigram"},
            {"unk_id", model.unk_id},
            {"byte_fallback", model.byte_fallback},
            {"vocab", std::move(vocab)}};
  }
  Json vocab = Json::object();
  for (size_t id = 0; id < model.pieces.size(); ++id) {
    if (!vocab.emplace(model.pieces[id].text, id).second)
      throw Invalid("{}: the piece '{}' occurs twice", file, model.pieces[id].text);
  }
  const Json unknown = vocab.contains(model.unk_piece) ? Json(model.unk_piece) : Json();
  return {{"type", "BPE"},
          {"unk_token", unknown},
          {"fuse_unk", true},
          {"byte_fallback", model.byte_fallback},
          {"ignore_merges", !UserDefined(model).empty()},
          {"vocab", std::move(vocab)},
          {"merges", MergesOf(model, file)}};
}

Json Replacing(const char* kind, const char* pattern, const char* content) {
  return {{"type", "Replace"}, {"pattern", {{kind, pattern}}}, {"content", content}};
}

Json NormalizerOf(const SentencePieceModel& model, bool legacy) {
  Json steps = Json::array();
  if (!model.precompiled_charsmap.empty()) {
    steps.push_back(
        {{"type", "Precompiled"}, {"precompiled_charsmap", Base64Of(model.precompiled_charsmap)}});
  }
  if (model.remove_extra_whitespaces) {
    steps.push_back(Replacing("Regex", R"(\A +| +\z)", ""));
    steps.push_back(Replacing("Regex", " {2,}", " "));
  }
  if (model.escape_whitespaces) steps.push_back(Replacing("String", " ", "▁"));
  // SentencePiece also adds the prefix to a text that begins with "▁", while Metaspace does not. So
  // this step adds a second "▁".
  if (model.add_dummy_prefix && legacy) steps.push_back(Replacing("Regex", R"(\A▁)", "▁▁"));
  return {{"type", "Sequence"}, {"normalizers", std::move(steps)}};
}

std::string Escaped(std::string_view text) {
  static constexpr std::string_view kSpecial = R"(\^$.|?*+()[]{}-#&~/ )";
  std::string out;
  for (const char c : text) {
    if (kSpecial.find(c) != std::string_view::npos) out += '\\';
    out += c;
  }
  return out;
}

size_t Characters(const std::string& text) {
  return static_cast<size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}

// User-defined pieces are separate words, which are never merged with others.
Json PreTokenizerOf(const SentencePieceModel& model, bool legacy) {
  Json steps = Json::array();
  if (model.add_dummy_prefix) {
    steps.push_back({{"type", "Metaspace"},
                     {"replacement", "▁"},
                     {"prepend_scheme", legacy ? "always" : "first"},
                     {"split", false}});
  }
  std::vector<std::string> pieces = UserDefined(model);
  std::stable_sort(pieces.begin(), pieces.end(), [](const std::string& a, const std::string& b) {
    return Characters(a) > Characters(b);
  });
  std::string pattern;
  for (const std::string& piece : pieces) pattern += (pattern.empty() ? "" : "|") + Escaped(piece);
  if (!pattern.empty()) {
    steps.push_back(
        {{"type", "Split"}, {"pattern", {{"Regex", pattern}}}, {"behavior", "Isolated"}});
  }
  if (steps.empty()) return nullptr;
  return {{"type", "Sequence"}, {"pretokenizers", std::move(steps)}};
}

Json DecoderOf(const SentencePieceModel& model) {
  Json steps = Json::array({Replacing("String", "▁", " ")});
  if (model.byte_fallback) steps.push_back({{"type", "ByteFallback"}});
  if (model.add_dummy_prefix || model.byte_fallback) steps.push_back({{"type", "Fuse"}});
  if (model.add_dummy_prefix)
    steps.push_back({{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
  return {{"type", "Sequence"}, {"decoders", std::move(steps)}};
}

Json AddedTokensOf(const SentencePieceModel& model) {
  Json list = Json::array();
  for (size_t id = 0; id < model.pieces.size(); ++id) {
    const auto& piece = model.pieces[id];
    if (piece.type != PieceType::kControl && piece.type != PieceType::kUnknown) continue;
    list.push_back({{"id", id}, {"content", piece.text}, {"normalized", false}, {"special", true}});
  }
  return list;
}

}  // namespace

Json TokenizerOfSentencePiece(const SentencePieceModel& model, bool legacy,
                              const std::string& file) {
  return {{"added_tokens", AddedTokensOf(model)},
          {"normalizer", NormalizerOf(model, legacy)},
          {"pre_tokenizer", PreTokenizerOf(model, legacy)},
          {"post_processor", nullptr},
          {"decoder", DecoderOf(model)},
          {"model", ModelOf(model, file)}};
}

}  // namespace switchyard
