// Stop string matching in streamed text.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace switchyard {

// Returns text up to the first stop string. Holds back a suffix that may be the start of a stop
// string. One instance per request; not thread-safe.
class StopStrings {
 public:
  // `keep_match`: the returned text includes the stop string with its hidden parts (SGLang's
  // no_stop_trim).
  StopStrings(std::vector<std::string> stops, bool keep_match)
      : stops_(std::move(stops)), keep_match_(keep_match) {}

  bool empty() const { return stops_.empty(); }

  struct Piece {
    std::string_view text;
    bool may_stop = true;  // false: a stop string that ends in this piece does not match
    bool hidden = false;   // true for special tokens: the text is matched, but not returned
  };
  // Returns the text that is safe to show. Returns nothing once matched() is set.
  std::string Push(const Piece& piece);
  std::string Push(std::string_view text) { return Push(Piece{.text = text}); }
  // Returns the held-back text at the end of the generation.
  std::string Finish();

  const std::optional<std::string>& matched() const { return matched_; }

 private:
  size_t HoldBack() const;  // length of the longest suffix of held_ that starts a stop string
  bool FindMatch(size_t* begin, const std::string** found) const;
  // Removes the first bytes of held_; returns those that are not hidden.
  std::string Release(size_t bytes);

  std::vector<std::string> stops_;
  bool keep_match_;
  std::string held_;
  std::vector<bool> hidden_;  // for each byte of held_: whether it is hidden
  size_t unchecked_ = 0;      // number of leading bytes of held_ in which no match may end
  std::optional<std::string> matched_;
};

}  // namespace switchyard
