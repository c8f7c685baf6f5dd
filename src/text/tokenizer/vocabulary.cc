#include "text/tokenizer/vocabulary.h"

#include "core/check.h"

namespace switchyard {

bool Vocabulary::Add(std::string_view token, int32_t id) {
  CHECK(0 <= id && id <= kMaxTokenId);
  if (Text(id) != nullptr) return false;
  const auto [entry, added] = id_of_text_.emplace(token, id);
  if (!added) return false;
  const auto index = static_cast<size_t>(id);
  if (index >= text_of_id_.size()) text_of_id_.resize(index + 1);
  text_of_id_[index] = &entry->first;
  return true;
}

std::optional<int32_t> Vocabulary::Find(std::string_view token) const {
  const auto found = id_of_text_.find(token);
  if (found == id_of_text_.end()) return std::nullopt;
  return found->second;
}

const std::string* Vocabulary::Text(int32_t id) const {
  if (id < 0 || id >= size()) return nullptr;
  return text_of_id_[static_cast<size_t>(id)];
}

}  // namespace switchyard
