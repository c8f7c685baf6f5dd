#include "server/args/death_limit.h"

#include <charconv>

#include "core/error.h"

namespace switchyard {

DeathLimit DeathLimit::Parse(const std::string& text) {
  DeathLimit limit;
  double seconds = 0;
  const char* const end = text.data() + text.size();
  const auto count = std::from_chars(text.data(), end, limit.count);
  bool good = count.ec == std::errc() && limit.count >= 1 && count.ptr != end && *count.ptr == '/';
  if (good) {
    const auto window = std::from_chars(count.ptr + 1, end, seconds);
    good = window.ec == std::errc() && window.ptr == end && seconds > 0 && seconds <= 1e6;
  }
  if (!good)
    throw Invalid(
        "--max-rank-deaths {}: want COUNT/SECONDS, such as 10/60 (COUNT at least 1, SECONDS above "
        "0 and at most 1e6)",
        text);
  limit.window = std::chrono::duration<double>(seconds);
  return limit;
}

std::string DeathLimit::Text() const { return fmt::format("{}/{:g}", count, window.count()); }

std::string RecentDeaths::Reasons() const {
  std::string reasons;
  for (const auto& [time, why] : recent_) reasons += (reasons.empty() ? "" : "; ") + why;
  const auto span = recent_.back().first - recent_.front().first;
  const std::string where = span > limit_.window
                                ? std::string("in a row without an output")
                                : fmt::format("within {:g} s", limit_.window.count());
  return fmt::format("the ranks ended {} times {} (--max-rank-deaths {}): {}", recent_.size(),
                     where, limit_.Text(), reasons);
}

}  // namespace switchyard
