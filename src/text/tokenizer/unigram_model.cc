#include "text/tokenizer/unigram_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "core/error.h"
#include "text/tokenizer/unicode.h"

namespace switchyard {
namespace {

constexpr double kUnknownPenalty = 10;  // subtracted from the lowest score, as in SentencePiece
constexpr size_t kNowhere = std::string_view::npos;

}  // namespace

UnigramModel::UnigramModel(const JsonNode& node) {
  const JsonNode vocab = node["vocab"];
  vocab.CheckArray();
  const nlohmann::json& list = vocab.raw();
  if (list.size() > static_cast<size_t>(kMaxTokenId))
    throw Invalid("{} has {} entries, want at most {}", vocab.where(), list.size(), kMaxTokenId);
  double least = 0;
  for (size_t i = 0; i < list.size(); ++i) {
    const nlohmann::json& entry = list[i];
    if (!entry.is_array() || entry.size() != 2 || !entry[0].is_string() || !entry[1].is_number())
      throw Invalid("{}[{}]: want [token, score]", vocab.where(), i);
    const auto& token = entry[0].get_ref<const std::string&>();
    const auto id = static_cast<int32_t>(i);
    if (!vocabulary_.Add(token, id))
      throw Invalid("{}[{}]: '{}' occurs twice", vocab.where(), i, token);
    scores_.push_back(entry[1].get<double>());
    tokens_.Add(token, id, vocab.where());
    least = i == 0 ? scores_[0] : std::min(least, scores_.back());
  }
  unknown_score_ = least - kUnknownPenalty;
  byte_fallback_ = node["byte_fallback"].BoolOr(false);
  for (size_t byte = 0; byte < id_of_byte_.size(); ++byte)
    id_of_byte_[byte] = vocabulary_.Find(fmt::format("<0x{:02X}>", byte)).value_or(-1);
  const JsonNode unknown = node["unk_id"];
  if (!unknown.is_null())
    unknown_id_ = static_cast<int32_t>(unknown.Integer(0, static_cast<int64_t>(list.size()) - 1));
}

void UnigramModel::FindBestPath(std::string_view word, Scratch* scratch) const {
  auto& places = scratch->places_;
  places.assign(word.size() + 1, {0, kNowhere, -1});
  const auto reach = [&](size_t start, size_t end, double score, int32_t id) {
    Scratch::Place& place = places[end];
    const double total = places[start].score + score;
    if (place.start == kNowhere || total > place.score) place = {total, start, id};
  };
  for (size_t begin = 0; begin < word.size();) {
    size_t next = begin;
    NextCharacter(word, &next);
    bool known = false;
    size_t unused = 0;
    tokens_.LongestAt(
        word, begin,
        [&](int32_t id, size_t end) {
          reach(begin, end, scores_[static_cast<size_t>(id)], id);
          known |= end == next;
          return true;
        },
        &unused);
    if (!known) reach(begin, next, unknown_score_, -1);
    begin = next;
  }
}

void UnigramModel::AppendUnknown(std::string_view run, std::vector<int32_t>* ids) const {
  const auto id = [this](char byte) { return id_of_byte_[static_cast<uint8_t>(byte)]; };
  const bool bytes = byte_fallback_ &&
                     std::none_of(run.begin(), run.end(), [&](char byte) { return id(byte) < 0; });
  if (bytes) {
    for (const char byte : run) ids->push_back(id(byte));
  } else if (unknown_id_ >= 0) {
    ids->push_back(unknown_id_);
  }
}

void UnigramModel::Encode(std::string_view word, Scratch* scratch,
                          std::vector<int32_t>* ids) const {
  if (word.empty()) return;
  FindBestPath(word, scratch);
  auto& path = scratch->path_;  // from the last token to the first; `score` is unused
  path.clear();
  for (size_t end = word.size(); end > 0; end = scratch->places_[end].start)
    path.push_back(scratch->places_[end]);
  for (size_t i = path.size(); i-- > 0;) {
    if (path[i].id >= 0 && path[i].id != unknown_id_) {
      ids->push_back(path[i].id);
      continue;
    }
    const size_t begin = path[i].start;
    while (i > 0 && (path[i - 1].id < 0 || path[i - 1].id == unknown_id_)) --i;
    AppendUnknown(word.substr(begin, (i == 0 ? word.size() : path[i - 1].start) - begin), ids);
  }
}

}  // namespace switchyard
