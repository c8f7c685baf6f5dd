#include "server/api/data_parallel_rank.h"

#include "server/api/request_error.h"

namespace switchyard {

std::optional<int32_t> ParseDataParallelRank(const Fields& f) {
  std::optional<int32_t> rank;
  for (const char* key : {"routed_dp_rank", "data_parallel_rank"}) {
    if (!f.Has(key)) continue;
    const int32_t value = f.Int32(key, 0);
    if (rank && *rank != value)
      throw InvalidField("routed_dp_rank",
                         "routed_dp_rank is {} but data_parallel_rank is {}: they are two names of "
                         "one parameter, send only one",
                         *rank, value);
    rank = value;
  }
  return rank;
}

}  // namespace switchyard
