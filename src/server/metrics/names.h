// Metrics of requests under the names of this server, of SGLang and of vLLM. docs/metrics.md lists
// them.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "engine/request.h"
#include "server/http/responses.h"
#include "server/metrics/page.h"
#include "server/metrics/request_metrics.h"

namespace switchyard::metrics {

// `model`: the label model_name of SGLang's and vLLM's names.
void AddRequests(const RequestMetrics& requests, const std::string& model, Clock::time_point now,
                 Page* page);

// Counters of the engine, one entry per attention group.
void AddGroups(const std::vector<EngineStats>& groups, const std::string& model, Page* page);

// Restarts of the ranks.
void AddRanks(const RankHistory& ranks, Page* page);

void AddResponses(const http::ResponseCounts& responses, size_t open_requests, Page* page);

}  // namespace switchyard::metrics
