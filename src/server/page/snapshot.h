// What the page shows of the server, as JSON.
#pragma once

#include <string>
#include <vector>

#include "engine/request.h"
#include "server/front/service.h"
#include "server/page/answer.h"

namespace switchyard::page {

// Makes snapshots of the service. One thread at a time.
class Snapshots {
 public:
  explicit Snapshots(Service& service) : service_(service) {}

  // One snapshot, described in docs/page.md. Waits up to two seconds for the ranks; parts without
  // an answer are null. The counts of experts are absent if they have not changed, unless `whole`.
  std::string Make(bool whole);

 private:
  Service& service_;
  Answer<std::vector<EngineStats>> stats_;
  Answer<ExpertLoadReport> load_;
  Answer<EplbReport> eplb_;
  int64_t last_passes_ = -1;  // of the last counts that were sent
};

}  // namespace switchyard::page
