#include "text/tokenizer/bpe_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <string>
#include <utility>

#include "core/check.h"
#include "core/error.h"
#include "text/tokenizer/unicode.h"

namespace switchyard {
namespace {

constexpr uint64_t kFree = ~uint64_t{0};  // never a valid pair, since ids are not negative

uint64_t PairOf(int32_t left, int32_t right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}

}  // namespace

MergeTable::MergeTable(size_t merges)
    : slots_(std::bit_ceil(2 * merges + 2), Slot{kFree, {}}),
      shift_(64 - std::countr_zero(slots_.size())) {}

void MergeTable::Set(int32_t left, int32_t right, PairMerge merge) {
  CHECK(left >= 0 && right >= 0);
  const uint64_t pair = PairOf(left, right);
  slots_[SlotOf(pair)] = {pair, merge};
}

const PairMerge* MergeTable::Find(int32_t left, int32_t right) const {
  const Slot& slot = slots_[SlotOf(PairOf(left, right))];
  return slot.pair == kFree ? nullptr : &slot.merge;
}

// The slot of the pair, or the free slot in which to insert it.
size_t MergeTable::SlotOf(uint64_t pair) const {
  size_t i = (pair * 0x9E3779B97F4A7C15u) >> shift_;  // Fibonacci hashing (Knuth, TAOCP 6.4)
  while (slots_[i].pair != pair && slots_[i].pair != kFree) i = (i + 1) & (slots_.size() - 1);
  return i;
}

namespace {

// The table of merges takes 32 to 64 bytes per merge, including free slots.
constexpr size_t kMaxMerges = size_t{1} << 22;

void RefuseIfSet(const JsonNode& node) {
  if (node.is_null() ||
      (node.raw().is_string() && node.raw().get_ref<const std::string&>().empty()))
    return;
  throw Invalid("{} is set, which is not supported", node.where());
}

// Accepts "a b" or ["a", "b"].
std::pair<std::string, std::string> ReadMerge(const nlohmann::json& merge, size_t index,
                                              const std::string& where) {
  if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
    return {merge[0].get<std::string>(), merge[1].get<std::string>()};
  }
  if (merge.is_string()) {
    const auto& text = merge.get_ref<const std::string&>();
    const size_t space = text.find(' ');
    if (space != std::string::npos && text.find(' ', space + 1) == std::string::npos) {
      return {text.substr(0, space), text.substr(space + 1)};
    }
  }
  throw Invalid("{}[{}]: want a merge \"a b\" or [\"a\", \"b\"]", where, index);
}

// The id of a token. Formats the location only in case of an error, because a vocabulary may have
// millions of tokens.
int64_t ReadId(const nlohmann::json& value, const JsonNode& vocab, const std::string& token) {
  if (value.is_number_integer()) {
    const auto id = value.get<int64_t>();  // negative for larger unsigned values
    if (id >= 0 && id <= kMaxTokenId) return id;
  }
  return JsonNode(value, fmt::format("{}['{}']", vocab.where(), token)).Integer(0, kMaxTokenId);
}

}  // namespace

BpeModel::BpeModel(const JsonNode& node) {
  const JsonNode type = node["type"];
  if (!type.is_null() && type.String() != "BPE") {
    throw Invalid("{} '{}' is not supported, want BPE", type.where(), type.String());
  }
  RefuseIfSet(node["continuing_subword_prefix"]);
  RefuseIfSet(node["end_of_word_suffix"]);
  const JsonNode dropout = node["dropout"];
  if (!dropout.is_null() && dropout.raw() != 0.0) {
    throw Invalid("{} is set: it makes encoding random, which is not supported", dropout.where());
  }
  fuse_unknown_ = node["fuse_unk"].BoolOr(false);
  byte_fallback_ = node["byte_fallback"].BoolOr(false);
  ignore_merges_ = node["ignore_merges"].BoolOr(false);
  ReadVocabulary(node["vocab"]);
  ReadMerges(node["merges"]);
  FillLookups();

  const JsonNode unknown = node["unk_token"];
  if (unknown.is_null()) return;
  const std::optional<int32_t> id = vocabulary_.Find(unknown.String());
  if (!id) throw Invalid("{} '{}' is not in model.vocab", unknown.where(), unknown.String());
  unknown_id_ = *id;
}

void BpeModel::ReadVocabulary(const JsonNode& vocab) {
  vocab.CheckObject();
  for (const auto& [token, value] : vocab.raw().items()) {
    const auto id = static_cast<int32_t>(ReadId(value, vocab, token));
    if (!vocabulary_.Add(token, id)) {
      throw Invalid("{}: '{}' and '{}' both have the id {}", vocab.where(), *vocabulary_.Text(id),
                    token, id);
    }
  }
}

void BpeModel::ReadMerges(const JsonNode& merges) {
  merges.CheckArray();
  const nlohmann::json& list = merges.raw();
  if (list.size() > kMaxMerges)
    throw Invalid("{} has {} entries, want at most {}", merges.where(), list.size(), kMaxMerges);
  merges_ = MergeTable(list.size());
  int32_t rank = 0;
  for (size_t i = 0; i < list.size(); ++i) {
    if (list[i].is_string() && list[i].get_ref<const std::string&>().starts_with("#version"))
      continue;
    const auto [left, right] = ReadMerge(list[i], i, merges.where());
    const auto left_id = vocabulary_.Find(left);
    const auto right_id = vocabulary_.Find(right);
    const auto id = vocabulary_.Find(left + right);
    if (!left_id || !right_id || !id) {
      throw Invalid("{}[{}]: '{}' is not in model.vocab", merges.where(), i,
                    !left_id    ? left
                    : !right_id ? right
                                : left + right);
    }
    merges_.Set(*left_id, *right_id, {rank++, *id});
  }
}

void BpeModel::FillLookups() {
  for (char32_t c = 0; c < kDirectCharacters; ++c) {
    std::string character;
    AppendUtf8(c, &character);
    id_of_character_[c] = vocabulary_.Find(character).value_or(-1);
  }
  for (size_t byte = 0; byte < id_of_byte_.size(); ++byte) {
    id_of_byte_[byte] = vocabulary_.Find(fmt::format("<0x{:02X}>", byte)).value_or(-1);
  }
}

int32_t BpeModel::IdOfCharacter(std::string_view character, char32_t codepoint) const {
  if (codepoint < kDirectCharacters) return id_of_character_[codepoint];
  return vocabulary_.Find(character).value_or(-1);
}

// Succeeds only if every byte of the character has a token.
bool BpeModel::AppendBytes(std::string_view character, Scratch* scratch) const {
  const auto id = [this](char byte) { return id_of_byte_[static_cast<uint8_t>(byte)]; };
  if (std::any_of(character.begin(), character.end(), [&](char byte) { return id(byte) < 0; }))
    return false;
  for (const char byte : character) scratch->symbols_.push_back({id(byte), -1, -1});
  return true;
}

void BpeModel::SplitCharacters(std::string_view word, Scratch* scratch) const {
  auto& symbols = scratch->symbols_;
  symbols.clear();
  // An unknown token is emitted only before the next known character. Byte tokens of the characters
  // in between are emitted first. This unexpected order is that of Hugging Face's merge_word.
  bool unknown_waits = false;
  for (size_t i = 0; i < word.size();) {
    const size_t begin = i;
    const char32_t codepoint = NextCharacter(word, &i);
    const std::string_view character = word.substr(begin, i - begin);
    const int32_t id = IdOfCharacter(character, codepoint);
    if (id >= 0) {
      if (std::exchange(unknown_waits, false)) symbols.push_back({unknown_id_, -1, -1});
      symbols.push_back({id, -1, -1});
    } else if (byte_fallback_ && AppendBytes(character, scratch)) {
      continue;
    } else if (unknown_id_ >= 0) {
      if (unknown_waits && !fuse_unknown_) symbols.push_back({unknown_id_, -1, -1});
      unknown_waits = true;
    }
  }
  if (unknown_waits) symbols.push_back({unknown_id_, -1, -1});
  for (size_t i = 0; i < symbols.size(); ++i) {
    symbols[i].previous = static_cast<int32_t>(i) - 1;
    symbols[i].next = i + 1 < symbols.size() ? static_cast<int32_t>(i) + 1 : -1;
  }
}

// Queues the merge of the symbol at `left` with its successor, if the pair has one.
void BpeModel::PushMerge(int32_t left, Scratch* scratch) const {
  const auto& symbols = scratch->symbols_;
  const auto& symbol = symbols[static_cast<size_t>(left)];
  if (symbol.next < 0) return;
  const PairMerge* merge = merges_.Find(symbol.id, symbols[static_cast<size_t>(symbol.next)].id);
  if (merge == nullptr) return;
  scratch->heap_.push_back({merge->rank, left, merge->id});
}

void BpeModel::Merge(Scratch* scratch) const {
  auto& symbols = scratch->symbols_;
  auto& heap = scratch->heap_;
  const auto at = [&symbols](int32_t index) -> Scratch::Symbol& {
    return symbols[static_cast<size_t>(index)];
  };
  const auto later = [](const Scratch::Candidate& a, const Scratch::Candidate& b) {
    return std::pair(a.rank, a.left) > std::pair(b.rank, b.left);
  };
  const auto push = [&](int32_t left) {
    const size_t before = heap.size();
    PushMerge(left, scratch);
    if (heap.size() > before) std::push_heap(heap.begin(), heap.end(), later);
  };

  heap.clear();
  for (size_t i = 0; i < symbols.size(); ++i) PushMerge(static_cast<int32_t>(i), scratch);
  std::make_heap(heap.begin(), heap.end(), later);
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), later);
    const Scratch::Candidate best = heap.back();
    heap.pop_back();

    Scratch::Symbol& left = at(best.left);
    if (left.id < 0 || left.next < 0) continue;
    Scratch::Symbol& right = at(left.next);
    const PairMerge* merge = merges_.Find(left.id, right.id);
    // Another merge may have changed the pair since it was queued.
    if (merge == nullptr || merge->id != best.id) continue;

    left.id = best.id;
    left.next = right.next;
    right.id = -1;
    if (left.next >= 0) at(left.next).previous = best.left;
    if (left.previous >= 0) push(left.previous);
    push(best.left);
  }
}

void BpeModel::Encode(std::string_view word, Scratch* scratch, std::vector<int32_t>* ids) const {
  if (word.empty()) return;
  if (ignore_merges_) {
    if (const auto id = vocabulary_.Find(word)) {
      ids->push_back(*id);
      return;
    }
  }
  SplitCharacters(word, scratch);
  Merge(scratch);
  for (const auto& symbol : scratch->symbols_) {
    if (symbol.id >= 0) ids->push_back(symbol.id);
  }
}

}  // namespace switchyard
