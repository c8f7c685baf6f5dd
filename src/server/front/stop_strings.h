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
  // `keep_match`: the stop string itself is let through too (SGLang's no_stop_trim).
  StopStrings(std::vector<std::string> stops, bool keep_match)
      : stops_(std::move(stops)), keep_match_(keep_match) {}

  // The text that may be shown now. Once matched() is set, everything further is swallowed.
  std::string Push(std::string_view text);
  // What was held back, at the end of the generation.
  std::string Finish();

  const std::optional<std::string>& matched() const { return matched_; }

 private:
  size_t HoldBack() const;  // bytes at the end of held_ that begin some stop string

  std::vector<std::string> stops_;
  bool keep_match_;
  std::string held_;
  std::optional<std::string> matched_;
};

}  // namespace switchyard
