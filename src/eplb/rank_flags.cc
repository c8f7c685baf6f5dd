#include "eplb/rank_flags.h"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <system_error>

#include "core/error.h"

namespace switchyard {
namespace {

std::vector<std::string_view> Split(std::string_view text, char at) {
  std::vector<std::string_view> parts;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(at, begin), text.size());
    parts.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

template <typename T>
bool Read(std::string_view text, T* value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *value);
  return error == std::errc() && end == text.data() + text.size();
}

}  // namespace

std::vector<int32_t> ParseExpertSlots(std::string_view flag, const std::string& text) {
  std::vector<int32_t> slots;
  if (text.empty()) return slots;
  for (const std::string_view part : Split(text, ','))
    if (!Read(part, &slots.emplace_back()) || slots.back() < 1)
      throw Invalid("{} {}: want a number of at least 1 for each EP rank, such as 96,160", flag,
                    text);
  return slots;
}

std::vector<RankCost> ParseRankCosts(std::string_view flag, const std::string& text) {
  std::vector<RankCost> costs;
  if (text.empty()) return costs;
  for (const std::string_view part : Split(text, ',')) {
    const std::vector<std::string_view> numbers = Split(part, ':');
    RankCost& cost = costs.emplace_back();
    const bool read = numbers.size() <= 3 && Read(numbers.front(), &cost.row) &&
                      (numbers.size() < 2 || Read(numbers[1], &cost.expert)) &&
                      (numbers.size() < 3 || Read(numbers[2], &cost.move));
    const auto is_time = [](double value) { return value >= 0 && value < 1e12; };
    if (!read || !(cost.row > 0 && is_time(cost.row) && is_time(cost.expert) && is_time(cost.move)))
      throw Invalid(
          "{} {}: want for each EP rank ROW, ROW:READ or ROW:READ:RECEIVE, the times of a row, of "
          "reading an expert's weights and of receiving an expert, such as 1:40,20:900",
          flag, text);
  }
  return costs;
}

}  // namespace switchyard
