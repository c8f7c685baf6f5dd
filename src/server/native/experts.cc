#include <algorithm>
#include <numeric>
#include <span>

#include "core/error.h"
#include "core/log.h"
#include "eplb/recorder_options.h"
#include "server/api/json_body.h"
#include "server/http/error_body.h"
#include "server/native/native.h"

namespace switchyard::native {
namespace {

using RequestPtr = std::shared_ptr<const http::Request>;

// Converts `values` to a JSON matrix [rows, columns].
Json Matrix(const std::vector<int64_t>& values, int64_t columns) {
  Json rows = Json::array();
  for (auto at = values.begin(); at != values.end(); at += columns)
    rows.push_back(std::vector<int64_t>(at, at + columns));
  return rows;
}

void RequireMode(const Service& service) {
  if (service.args.engine.recorder.mode.empty())
    throw Invalid(
        "expert recording is off: start the server with --expert-distribution-recorder-mode");
}

void HandleSwitch(Service& service, RecordAction action, const http::Responder& responder) {
  RequireReady(service);
  RequireMemory(service);
  RequireMode(service);
  service.front.RecordExperts(action, [action, responder](const RecordResult& result) {
    if (!result.dump.error.empty()) return responder.SendError(503, result.dump.error);
    const bool starts = action == RecordAction::kStart;
    if (!result.changed)
      LOG_WARNING("{}_expert_distribution_record: {}", starts ? "start" : "stop",
                  starts ? "already recording; dropped the earlier records" : "was not recording");
    responder.Send(200, "text/plain",
                   starts ? "Start recording expert distribution.\n"
                          : "Stop recording expert distribution.\n");
  });
}

void HandleDump(Service& service, const http::Responder& responder) {
  RequireReady(service);
  RequireMemory(service);
  RequireMode(service);
  const std::string& mode = service.args.engine.recorder.mode;
  service.front.RecordExperts(RecordAction::kDump, [mode, responder](const RecordResult& result) {
    const ExpertDump& dump = result.dump;
    if (!dump.error.empty()) {
      // The log shows the directory, the response does not.
      LOG_ERROR("dump_expert_distribution_record: {}", dump.error);
      return responder.SendError(500, dump.error);
    }
    responder.Send(200, http::kJson,
                   Dump({{"file", dump.file},
                         {"mode", mode},
                         {"shape", {dump.steps, dump.layers, dump.experts}},
                         {"logical_count", Matrix(dump.logical_count, dump.experts)}}));
  });
}

// Heat of each expert: its token count divided by the mean count of its layer.
std::vector<double> Heat(std::span<const int64_t> count) {
  const int64_t all = std::accumulate(count.begin(), count.end(), int64_t{0});
  std::vector<double> heat(count.size());
  if (all > 0)
    std::ranges::transform(count, heat.begin(), [&](int64_t n) {
      return static_cast<double>(n) * static_cast<double>(count.size()) / static_cast<double>(all);
    });
  return heat;
}

Json LoadJson(const ExpertLoad& load) {
  Json layers = Json::array();
  std::vector<int64_t> ranks(load.ranks);
  for (int64_t i = 0; i < load.layers; ++i) {
    const std::span rank_count = std::span(load.rank_count).subspan(i * load.ranks, load.ranks);
    const std::span logical = std::span(load.logical_count).subspan(i * load.experts, load.experts);
    for (int r = 0; r < load.ranks; ++r) ranks[r] += rank_count[r];
    layers.push_back({{"layer", i},
                      {"rank_count", std::vector<int64_t>(rank_count.begin(), rank_count.end())},
                      {"balancedness", BalancednessOf(rank_count, load.ranks)},
                      {"logical_count", std::vector<int64_t>(logical.begin(), logical.end())},
                      {"heat", Heat(logical)}});
  }
  const Balancedness& b = load.balancedness;
  Json stage_seconds = Json::array();
  for (size_t i = 0; i < load.stage_times.size(); i += 3)
    stage_seconds.push_back({{"dispatch", static_cast<double>(load.stage_times[i]) * 1e-9},
                             {"experts", static_cast<double>(load.stage_times[i + 1]) * 1e-9},
                             {"combine", static_cast<double>(load.stage_times[i + 2]) * 1e-9}});
  return {{"forward_passes", load.passes},
          {"recording", load.recording},
          {"rank_count", ranks},
          {"balancedness",
           {{"current_pass", b.current},
            {"last_10_average", b.last_10},
            {"last_100_average", b.last_100},
            {"last_1000_average", b.last_1000}}},
          {"stage_seconds", std::move(stage_seconds)},
          {"timed_passes", load.timed_passes},
          {"layers", std::move(layers)}};
}

void HandleDistribution(Service& service, const http::Responder& responder) {
  RequireReady(service);
  RequireMemory(service);
  if (!service.args.engine.recorder.any())
    throw Invalid(
        "expert load is not recorded: start the server with --enable-expert-distribution-metrics "
        "or "
        "--expert-distribution-recorder-mode");
  service.front.GetExpertLoad([responder](const ExpertLoadReport& report) {
    if (!report.error.empty()) return responder.SendError(503, report.error);
    responder.Send(200, http::kJson, Dump(LoadJson(report.load)));
  });
}

}  // namespace

void RegisterExperts(http::Server& server, Service& service) {
  using Handler = void (*)(Service&, const http::Responder&);
  const std::pair<const char*, Handler> actions[] = {
      {"/start_expert_distribution_record",
       [](Service& s, const http::Responder& out) { HandleSwitch(s, RecordAction::kStart, out); }},
      {"/stop_expert_distribution_record",
       [](Service& s, const http::Responder& out) { HandleSwitch(s, RecordAction::kStop, out); }},
      {"/dump_expert_distribution_record", HandleDump}};
  for (const auto& [path, handle] : actions)
    server.Route(
        "POST", path,
        [&service, handle = handle](const RequestPtr&, const http::Responder& out) {
          handle(service, out);
        },
        http::Access::kControl);
  server.Route("GET", "/expert_distribution",
               [&service](const RequestPtr&, const http::Responder& out) {
                 HandleDistribution(service, out);
               });
}

}  // namespace switchyard::native
