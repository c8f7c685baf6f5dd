// Stop strings in text that comes piece by piece.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace switchyard {

// Lets text through up to the first stop string, and holds back what may yet become one. Belongs to
// one request and one thread.
class StopStrings {
 public:
  // `keep_match`: the stop string itself is let through too (SGLang's no_stop_trim), with its
  // hidden parts.
  StopStrings(std::vector<std::string> stops, bool keep_match)
      : stops_(std::move(stops)), keep_match_(keep_match) {}

  bool empty() const { return stops_.empty(); }

  struct Piece {
    std::string_view text;
    bool may_stop = true;  // false: a stop string that ends in this piece is text like any other
    bool hidden = false;   // special tokens: they may be a stop string, but are not shown
  };
  // The text that may be shown now. Once matched() is set, everything further is swallowed.
  std::string Push(const Piece& piece);
  std::string Push(std::string_view text) { return Push(Piece{.text = text}); }
  // What was held back, at the end of the generation.
  std::string Finish();

  const std::optional<std::string>& matched() const { return matched_; }

 private:
  size_t HoldBack() const;  // bytes at the end of held_ that begin some stop string
  bool FindMatch(size_t* begin, const std::string** found) const;
  std::string Release(size_t bytes);  // the first ones of held_, without hidden ones

  std::vector<std::string> stops_;
  bool keep_match_;
  std::string held_;
  std::vector<bool> hidden_;  // of the bytes of held_
  size_t unchecked_ = 0;      // the first bytes of held_, in which no stop string may end
  std::optional<std::string> matched_;
};

}  // namespace switchyard
