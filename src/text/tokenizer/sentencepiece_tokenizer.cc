#include "text/tokenizer/sentencepiece_tokenizer.h"

#include <algorithm>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/error.h"
#include "text/tokenizer/base64.h"
#include "text/tokenizer/merge_budget.h"

namespace switchyard {
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
