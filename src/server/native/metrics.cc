// GET /metrics: the server's state, counters of requests, responses and the engine; if enabled,
// also counters of expert load and EPLB.
#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "core/error.h"
#include "server/front/server_state.h"
#include "server/metrics/names.h"
#include "server/metrics/page.h"
#include "server/native/native.h"
#include "server/trace/tracer.h"

namespace switchyard::native {
namespace {

using metrics::Page;

void AddSpares(Page& page, const SpareRanks& spares) {
  for (const auto& [state, count] :
       {std::pair("ready", spares.ready), std::pair("loading", spares.loading)})
    page.Gauge("switchyard_spare_ranks", "Spare processes of ranks (--spare-ranks)",
               {{"state", state}}, count);
  page.Counter("switchyard_spare_ranks_used_total", "Ranks whose place a spare process has taken",
               {}, static_cast<double>(spares.used));
  page.Counter("switchyard_spare_rank_failures_total",
               "Spare processes that ended before they were used", {},
               static_cast<double>(spares.failed));
}

// What the server is and does. Available at any time.
void AddServer(Page& page, const Service& service, const RankHistory& history) {
  page.Gauge("switchyard_info", "1; version and model of the server",
             {{"version", SWITCHYARD_VERSION}, {"model_name", service.model.name}}, 1);
  const ServerState present = StateOf(service, history);
  for (const ServerState state : kServerStates)
    page.Gauge("switchyard_state", "1 for the present state of the server",
               {{"state", Name(state)}}, state == present ? 1 : 0);
  const LayoutSizes sizes = service.sizes();
  page.Gauge("switchyard_ranks", "Ranks of the present layout", {}, sizes.mesh.world());
  page.Gauge("switchyard_serving_ranks",
             "Ranks that serve now: 0 in a pause, fewer than switchyard_ranks while some load", {},
             ServingRanks(service, history));
  for (int rank = 0; rank < sizes.mesh.world(); ++rank) {
    const auto absent = history.absent_for.find(rank);
    page.Gauge("switchyard_rank_absent_seconds",
               "Seconds since the others serve without the rank; 0: it serves",
               {{"rank", std::to_string(rank)}},
               absent != history.absent_for.end() ? absent->second : 0);
  }
  const ElasticRanks* ranks = service.elastic;
  AddSpares(page, ranks != nullptr ? ranks->spares() : SpareRanks());
  const RankWeights* owner = service.weights;
  const WeightsState weights = owner != nullptr ? owner->weights_state() : WeightsState();
  page.Gauge("switchyard_rank_change_running",
             "1 during a planned change of the ranks or of their weights", {},
             (ranks != nullptr && ranks->state().running) || weights.changing ? 1 : 0);
  page.Gauge("switchyard_memory_released", "1 while memory of the ranks is released", {},
             weights.released.any() ? 1 : 0);
  for (int g = 0; g < sizes.mesh.attention_groups(); ++g)
    page.Gauge("switchyard_max_running_requests", "Limit of the running set",
               {{"group", std::to_string(g)}}, static_cast<double>(service.running_limit()));
  page.Gauge("switchyard_generation_paused", "1 between /pause_generation and its end", {},
             service.front.controls().paused ? 1 : 0);
  // The limit of open requests stays when a change of the layout changes the running sets.
  if (const int32_t open = service.front.max_open())
    page.Gauge("switchyard_max_waiting_requests",
               "Requests that may wait while all running sets are full", {},
               static_cast<double>(std::max<int64_t>(
                   0, open - service.running_limit() * sizes.mesh.attention_groups())));
}

void AddExperts(Page& page, const ExpertLoad& load) {
  const Balancedness& b = load.balancedness;
  for (const auto& [passes, value] : {std::pair("1", b.current), std::pair("10", b.last_10),
                                      std::pair("100", b.last_100), std::pair("1000", b.last_1000)})
    page.Gauge("switchyard_eplb_balancedness",
               "Mean / maximum rank load, averaged over layers and over the last passes",
               {{"passes", passes}}, value);
  page.Counter("switchyard_eplb_forward_passes_total", "Forward passes with recorded expert load",
               {}, static_cast<double>(load.passes));
  std::vector<int64_t> ranks(load.ranks);
  for (size_t i = 0; i < load.rank_count.size(); ++i) ranks[i % load.ranks] += load.rank_count[i];
  for (size_t r = 0; r < ranks.size(); ++r)
    page.Counter("switchyard_eplb_gpu_physical_count_total",
                 "Token rows of experts on an EP rank, summed over layers",
                 {{"rank", std::to_string(r)}}, static_cast<double>(ranks[r]));
  static constexpr std::array kStages = {"dispatch", "experts", "combine"};
  for (size_t i = 0; i < load.stage_times.size(); ++i)
    page.Counter(
        "switchyard_moe_seconds_total",
        "Time of a rank in a stage of MoE layers, with waits for other ranks",
        {{"rank", std::to_string(i / kStages.size())}, {"stage", kStages[i % kStages.size()]}},
        static_cast<double>(load.stage_times[i]) * 1e-9);
  if (!load.stage_times.empty())
    page.Counter("switchyard_moe_timed_passes_total",
                 "Passes in switchyard_moe_seconds_total: all on CPUs, a sample on GPUs", {},
                 static_cast<double>(load.timed_passes));
}

void AddEplb(Page& page, const EplbStatus& s) {
  for (int i = 0; i <= static_cast<int>(EplbState::kDone); ++i) {
    const auto state = static_cast<EplbState>(i);
    page.Gauge("switchyard_eplb_state", "1 for the current state of the rebalance",
               {{"state", Name(state)}}, state == s.state ? 1 : 0);
  }
  if (s.balancedness)  // absent until load has been recorded
    page.Gauge("switchyard_eplb_window_balancedness",
               "Mean / maximum rank load since the last migration, averaged over layers", {},
               *s.balancedness);
  page.Gauge("switchyard_eplb_rebalance_layers", "Layers of the last rebalance",
             {{"layers", "to_move"}}, s.layers_to_move);
  page.Gauge("switchyard_eplb_rebalance_layers", "Layers of the last rebalance",
             {{"layers", "done"}}, s.layers_done);
  const auto count = [&](const char* name, const char* help, int64_t n) {
    page.Counter(name, help, {}, static_cast<double>(n));
  };
  count("switchyard_eplb_plans_total", "Placements planned", s.plans);
  count("switchyard_eplb_rebalances_total", "Rebalances that completed", s.rebalances);
  count("switchyard_eplb_layers_moved_total", "Layers that changed their placement",
        s.layers_moved);
  count("switchyard_eplb_experts_loaded_total",
        "Experts that rank 0, or the first rank of each stage, loaded", s.experts_loaded);
  count("switchyard_eplb_experts_received_total",
        "Experts that rank 0, or the first rank of each stage, received", s.experts_received);
  count("switchyard_eplb_failures_total", "Rebalances that failed", s.failures);
  count("switchyard_eplb_watchdog_resets_total", "Rebalances that the watchdog stopped",
        s.watchdog_resets);
}

// One scrape. Queries the values of the engine, the experts and EPLB one after the other, then
// sends the page. If the ranks do not respond, their values are missing.
class Scrape : public std::enable_shared_from_this<Scrape> {
 public:
  Scrape(Service& service, http::Responder responder)
      : service_(service), responder_(std::move(responder)) {}

  void Start(const http::Server& server) {
    const RankHistory history = service_.front.history();
    AddServer(page_, service_, history);
    metrics::AddRequests(service_.front.request_metrics(), service_.model.name,
                         metrics::Clock::now(), &page_);
    metrics::AddRanks(history, &page_);
    const trace::Tracer* const tracer = service_.tracer.get();
    page_.Counter("switchyard_trace_spans_exported_total", "Spans that the collector has accepted",
                  {}, tracer ? static_cast<double>(tracer->exported()) : 0);
    page_.Counter("switchyard_trace_spans_dropped_total",
                  "Spans that were dropped, because the collector is slow or refused them", {},
                  tracer ? static_cast<double>(tracer->dropped()) : 0);
    metrics::AddResponses(server.responses(), server.open_requests(), &page_);
    if (!RanksRespond(service_, StateOf(service_, history))) return Send();
    Go([&] {
      service_.front.Stats([self = shared_from_this()](const std::vector<EngineStats>& groups) {
        metrics::AddGroups(groups, self->service_.model.name, &self->page_);
        self->Go([&] { self->RequestExperts(); });
      });
    });
  }

 private:
  void RequestExperts() {
    if (!service_.args.engine.recorder.any()) return RequestEplb();
    service_.front.GetExpertLoad(
        [self = shared_from_this()](const ExpertLoadReport& report) {
          if (report.error.empty()) AddExperts(self->page_, report.load);
          self->Go([&] { self->RequestEplb(); });
        },
        WhenHeld::kFail);
  }
  void RequestEplb() {
    if (!service_.args.engine.eplb.enable) return Send();
    service_.front.GetEplb(
        [self = shared_from_this()](const EplbReport& report) {
          if (report.refused.empty()) AddEplb(self->page_, report.status);
          self->Send();
        },
        WhenHeld::kFail);
  }
  void Go(const std::function<void()>& next) {
    try {
      next();
    } catch (const Error&) {  // the ranks were lost during the scrape
      Send();
    }
  }
  void Send() { responder_.Send(200, "text/plain; version=0.0.4; charset=utf-8", page_.Text()); }

  Service& service_;
  http::Responder responder_;
  Page page_;
};

}  // namespace

void RegisterMetrics(http::Server& server, Service& service) {
  server.Route("GET", "/metrics",
               [&service, &server](const std::shared_ptr<const http::Request>&,
                                   const http::Responder& responder) {
                 std::make_shared<Scrape>(service, responder)->Start(server);
               });
}

}  // namespace switchyard::native
