// Text of flags that describe unequal EP ranks.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "eplb/types.h"

namespace switchyard {

// "96,160": numbers of expert slots of the ranks; empty: none. Error kInvalid names `flag`.
std::vector<int32_t> ParseExpertSlots(std::string_view flag, const std::string& text);

// "1:40,20:900": for each rank the time of a row and, after the colon, of reading an expert's
// weights (RankCost); without a colon the latter is 0. After a second colon, the time of receiving
// an expert, such as 1:40:400,20:900:900. Empty: no costs. Error kInvalid names `flag`.
std::vector<RankCost> ParseRankCosts(std::string_view flag, const std::string& text);

}  // namespace switchyard
