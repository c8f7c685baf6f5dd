// Durations of the phases of a start.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "core/duration.h"
#include "core/format.h"

namespace switchyard {

// Used by one thread.
class PhaseTimes {
 public:
  // Ends a phase, which began when the last one ended, or when the object was made. `name`: a
  // string constant.
  void End(const char* name) {
    const int64_t now = SteadyNanoseconds();
    phases_.emplace_back(name, now - std::exchange(last_, now));
  }
  // "512 ms: context 310, exchange 20, weights 182"
  std::string Describe() const {
    constexpr double kMillisecond = 1e6;
    std::string phases;
    for (const auto& [name, time] : phases_)
      phases += fmt::format("{} {} {:.0f}", phases.empty() ? ":" : ",", name,
                            static_cast<double>(time) / kMillisecond);
    return fmt::format("{:.0f} ms{}", static_cast<double>(last_ - start_) / kMillisecond, phases);
  }

 private:
  const int64_t start_ = SteadyNanoseconds();
  int64_t last_ = start_;
  std::vector<std::pair<const char*, int64_t>> phases_;
};

}  // namespace switchyard
