// Figures of speculative decoding during a load.
#pragma once

#include <cstdint>
#include <string_view>

namespace switchyard::bench {

// Counts of a server, summed over its attention groups.
struct DraftFigures {
  int64_t steps = 0;                  // decode steps of requests with drafts
  int64_t drafted = 0, accepted = 0;  // drafts in these steps

  // Tokens of a request in a step with drafts.
  double accept_length() const { return 1 + Ratio(accepted, steps); }
  double accept_rate() const { return Ratio(accepted, drafted); }
  DraftFigures operator-(const DraftFigures& before) const {
    return {steps - before.steps, drafted - before.drafted, accepted - before.accepted};
  }

 private:
  static double Ratio(int64_t count, int64_t of) {
    return of == 0 ? 0 : static_cast<double>(count) / static_cast<double>(of);
  }
};

// Reads the counts from the body of /get_server_info. Zeros if it has none.
DraftFigures DraftsOf(std::string_view server_info);

}  // namespace switchyard::bench
