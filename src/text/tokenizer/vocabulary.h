// Tokens and their ids.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace switchyard {

// Larger ids mean a broken file: the largest vocabularies have a few hundred thousand tokens.
inline constexpr int32_t kMaxTokenId = (1 << 22) - 1;

// A one-to-one map. Add is not thread-safe; lookups are const.
class Vocabulary {
 public:
  // Returns false, and adds nothing, if the token or the id is taken already. 0 <= id <=
  // kMaxTokenId.
  bool Add(std::string_view token, int32_t id);

  std::optional<int32_t> Find(std::string_view token) const;
  // Null for an id without a token. The string has a stable address for the vocabulary's lifetime.
  const std::string* Text(int32_t id) const;
  // The largest id plus 1.
  int size() const { return static_cast<int>(text_of_id_.size()); }

 private:
  struct Hash {
    using is_transparent = void;
    size_t operator()(std::string_view token) const { return std::hash<std::string_view>()(token); }
  };

  std::unordered_map<std::string, int32_t, Hash, std::equal_to<>> id_of_text_;
  std::vector<const std::string*> text_of_id_;  // keys of id_of_text_
};

}  // namespace switchyard
