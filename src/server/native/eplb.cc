#include <optional>
#include <span>
#include <vector>

#include "core/error.h"
#include "eplb/transfers.h"
#include "moe/placement/placement.h"
#include "server/api/json_body.h"
#include "server/http/error_body.h"
#include "server/native/native.h"

namespace switchyard::native {
namespace {

using RequestPtr = std::shared_ptr<const http::Request>;

void RequireEplb(const Service& service) {
  RequireReady(service);
  RequireMemory(service);
  if (!service.args.engine.eplb.enable)
    throw Invalid("expert load balancing is off: start the server with --enable-eplb");
}

Json OrNull(std::optional<double> value) { return value ? Json(*value) : Json(); }

// Converts the number of expert slots by source of their weights to JSON. `fills` is empty before
// the first plan.
Json FillsJson(const std::vector<int64_t>& fills) {
  Json json = Json::object();
  for (size_t i = 0; i < fills.size() && i < kNumFillFrom; ++i)
    json[Name(static_cast<FillFrom>(i))] = fills[i];
  return json;
}

}  // namespace

Json EplbStatusJson(const EplbStatus& s) {
  return {{"state", Name(s.state)},
          {"forward_passes", s.passes},
          {"balancedness", OrNull(s.balancedness)},
          {"rebalance",
           {{"trigger", s.trigger},
            {"planned_at_balancedness", OrNull(s.planned_at)},
            {"moving_layer", s.layer < 0 ? Json() : Json(s.layer)},
            {"layers_done", s.layers_done},
            {"layers_to_move", s.layers_to_move},
            {"places", FillsJson(s.fills)},
            {"transfer_batches", s.transfer_batches},
            {"plan_seconds", s.plan_seconds},
            {"move_seconds", s.move_seconds},
            {"longest_switch_seconds", s.longest_switch_seconds},
            {"move_passes", s.move_passes}}},
          {"plans", s.plans},
          {"rebalances", s.rebalances},
          {"layers_moved", s.layers_moved},
          {"experts_loaded", s.experts_loaded},
          {"experts_received", s.experts_received},
          {"failures", s.failures},
          {"watchdog_resets", s.watchdog_resets},
          {"last_result", s.last_result},
          {"last_failure", http::HidePaths(s.last_failure)}};
}

Json PlacementJson(const std::vector<int32_t>& slots, const Service& service) {
  const int64_t layers = service.plan.model.num_layers();
  if (slots.empty()) return nullptr;
  const int64_t width = std::ssize(slots) / layers;
  const MeshShape mesh = service.sizes().mesh;
  const int ranks = mesh.ep - service.front.history().absent;
  Json of_ranks = Json::array(), of_layers = Json::array();
  for (int rank = 0; rank < ranks; ++rank)
    of_ranks.push_back(
        ExpertsOfRank(static_cast<int>(width), ranks, rank, mesh.expert_slots).size());
  for (int64_t layer = 0; layer < layers; ++layer) {
    const std::span row = std::span(slots).subspan(layer * width, width);
    of_layers.push_back(row[0] < 0 ? Json() : Json(std::vector<int32_t>(row.begin(), row.end())));
  }
  return {{"slots_of_ranks", std::move(of_ranks)}, {"layers", std::move(of_layers)}};
}

namespace {

Json OptionsJson(const EplbOptions& o) {
  return {{"algorithm", o.algorithm},
          {"dispatch_algorithm", o.dispatch},
          {"rebalance_num_iterations", o.num_iterations},
          {"rebalance_layers_per_chunk", o.layers_per_chunk},
          {"min_rebalancing_utilization_threshold", o.min_utilization},
          {"watchdog_timeout", o.watchdog_seconds}};
}

void HandleStatus(Service& service, const http::Responder& responder) {
  RequireEplb(service);
  service.front.GetEplb(
      [&service, responder](const EplbReport& report) {
        if (!report.refused.empty()) return responder.SendError(503, report.refused);
        Json json = EplbStatusJson(report.status);
        json["placement"] = PlacementJson(report.slots, service);
        json["options"] = OptionsJson(service.args.engine.eplb);
        responder.Send(200, http::kJson, Dump(json));
      },
      WhenHeld::kWait, /*slots=*/true);
}

void HandleRebalance(Service& service, const http::Responder& responder) {
  RequireEplb(service);
  service.front.RebalanceExperts([&service, responder](const EplbReport& report) {
    if (service.front.ranks_lost()) return responder.SendError(503, report.refused);
    if (!report.refused.empty()) return responder.SendError(409, report.refused);
    responder.Send(200, http::kJson, Dump({{"accepted", true}, {"plans", report.status.plans}}));
  });
}

}  // namespace

void RegisterEplb(http::Server& server, Service& service) {
  server.Route("GET", "/eplb", [&service](const RequestPtr&, const http::Responder& out) {
    HandleStatus(service, out);
  });
  server.Route(
      "POST", "/eplb/rebalance",
      [&service](const RequestPtr&, const http::Responder& out) { HandleRebalance(service, out); },
      http::Access::kControl);
}

}  // namespace switchyard::native
