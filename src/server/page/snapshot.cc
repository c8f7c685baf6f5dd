#include "server/page/snapshot.h"

#include <chrono>

#include "server/api/json_body.h"
#include "server/front/server_state.h"
#include "server/metrics/request_metrics.h"
#include "server/native/native.h"

namespace switchyard::page {
namespace {

constexpr std::chrono::seconds kLimit{2};

Json ModelJson(const Service& service) {
  const ModelConfig& config = service.model.config;
  return {{"name", service.model.name},
          {"architecture", config.architecture},
          {"context_length", service.plan.context_length},
          {"generates", !config.pooling},
          {"classifies", config.pooling && config.pooling->classifies()},
          {"chats", service.model.chat_template.Present()},
          {"has_experts", service.plan.model.has_moe()},
          {"tool_calls", service.model.output_format.calls != nullptr},
          {"reasoning", service.model.output_format.reasoning != nullptr}};
}

Json LayoutJson(const LayoutSizes& sizes) {
  return {{"pp", sizes.mesh.pp},
          {"tp", sizes.mesh.tp},
          {"dp", sizes.mesh.attention_groups()},
          {"ep", sizes.mesh.ep},
          {"max_running_requests", sizes.max_running_requests}};
}

Json RanksJson(const RankHistory& history) {
  return {{"epoch", history.epoch},
          {"deaths", history.deaths},
          {"changes", history.changes},
          {"paused_for", history.paused_for}};
}

Json RequestsJson(const metrics::RequestMetrics& m) {
  Json ended = Json::object();
  for (int i = 0; i < metrics::kNumEnds; ++i) {
    const auto end = static_cast<metrics::End>(i);
    ended[metrics::Name(end)] = m.ended(end);
  }
  return {{"submitted", m.submitted()},
          {"ended", std::move(ended)},
          {"prompt_tokens", m.prompt_tokens()},
          {"cached_tokens", m.cached_tokens()},
          {"generation_tokens", m.generation_tokens()}};
}

// Counts since the start. The page computes percentiles of a window from two snapshots.
Json HistogramJson(const metrics::Histogram& histogram) {
  const metrics::HistogramCounts counts = histogram.Read();
  return {{"bounds", counts.bounds}, {"counts", counts.buckets}};
}

Json GroupsJson(const std::vector<EngineStats>& groups) {
  Json list = Json::array();
  for (const EngineStats& stats : groups) {
    list.push_back(GroupStatsJson(stats));
    list.back()["page_size"] = stats.page_size;
  }
  return list;
}

Json LoadJson(const ExpertLoad& load, bool with_counts) {
  const Balancedness& b = load.balancedness;
  Json json = {{"layers", load.layers},
               {"experts", load.experts},
               {"ranks", load.ranks},
               {"passes", load.passes},
               {"balancedness", {{"1", b.current}, {"10", b.last_10}, {"100", b.last_100}}}};
  if (with_counts) {
    json["rank_count"] = load.rank_count;        // [layers, ranks]
    json["logical_count"] = load.logical_count;  // [layers, experts]
    json["stage_times"] = load.stage_times;      // [TP ranks, 3] ns
    json["timed_passes"] = load.timed_passes;
  }
  return json;
}

}  // namespace

std::string Snapshots::Make(bool whole) {
  const auto end = std::chrono::steady_clock::now() + kLimit;
  const RankHistory history = service_.front.history();
  Front& front = service_.front;
  const bool counts_experts = service_.args.engine.recorder.any() && service_.plan.model.has_moe();
  Json json = {{"version", SWITCHYARD_VERSION},
               {"state", Name(StateOf(service_, history))},
               {"model", ModelJson(service_)},
               {"layout", LayoutJson(service_.sizes())},
               {"ranks", RanksJson(history)},
               {"requests", RequestsJson(front.request_metrics())},
               {"first_token", HistogramJson(front.request_metrics().first_token)},
               {"inter_token", HistogramJson(front.request_metrics().inter_token)},
               {"counts_experts", counts_experts},
               {"groups", nullptr},
               {"experts", nullptr},
               {"eplb", nullptr}};
  if (!service_.ready || front.ranks_lost()) return Dump(json);

  stats_.Ask([&](auto callback) { front.Stats(std::move(callback)); });
  if (counts_experts)
    load_.Ask([&](auto callback) { front.GetExpertLoad(std::move(callback), WhenHeld::kFail); });
  needs_placement_ |= whole;
  if (service_.args.engine.eplb.enable)
    eplb_.Ask([&](auto callback) {
      front.GetEplb(std::move(callback), WhenHeld::kFail, /*slots=*/needs_placement_);
    });
  if (const auto groups = stats_.Take(end)) json["groups"] = GroupsJson(*groups);
  if (const auto report = load_.Take(end); report && report->error.empty()) {
    json["experts"] = LoadJson(report->load, whole || report->load.passes != last_passes_);
    last_passes_ = report->load.passes;
  } else if (whole) {
    last_passes_ = -1;  // the new listener gets the counts with the next answer
  }
  if (const auto report = eplb_.Take(end); report && report->refused.empty()) {
    json["eplb"] = native::EplbStatusJson(report->status);
    if (!report->slots.empty()) {
      json["eplb"]["placement"] = native::PlacementJson(report->slots, service_);
      last_moved_ = report->status.layers_moved;
      needs_placement_ = false;
    } else {
      needs_placement_ |= last_moved_ != report->status.layers_moved;
    }
  }
  return Dump(json);
}

}  // namespace switchyard::page
