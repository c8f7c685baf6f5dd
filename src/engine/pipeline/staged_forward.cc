#include "engine/pipeline/staged_forward.h"

#include <numeric>
#include <string_view>

#include "engine/scheduler/batch.h"

namespace switchyard {

std::span<const float> StagedForward::Forward(const ForwardBatch& batch) {
  links_.rows().SetTag(Fingerprint(batch, page_size_));
  return model_.Forward(batch);
}

// Gathers the texts of all stages. For each sequence, the first stage with a fault counts.
std::vector<std::string> StagedForward::RouterFaults(const ForwardBatch& batch) {
  std::vector<std::string> faults = model_.RouterFaults(batch);
  faults.resize(batch.sequences.size());
  std::string mine;
  for (const std::string& fault : faults) mine += fault + '\n';
  Communicator& stages = *comm_.pp;
  const size_t size = mine.size();
  std::vector<size_t> sizes(stages.size());
  stages.AllGather(&size, sizes.data(), sizeof size);
  std::string all(std::accumulate(sizes.begin(), sizes.end(), size_t{0}), '\0');
  stages.AllGatherV(mine.data(), all.data(), sizes);
  std::string_view rest = all;
  for (int stage = 0; stage < stages.size(); ++stage) {
    for (std::string& fault : faults) {
      const size_t end = rest.find('\n');
      if (stage == 0) fault.clear();
      if (fault.empty()) fault = rest.substr(0, end);
      rest.remove_prefix(end + 1);
    }
  }
  return faults;
}

}  // namespace switchyard
