// GET /metrics: counters of the engine and, if enabled, of expert load and EPLB.
#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include "core/error.h"
#include "server/native/experts.h"

namespace switchyard::native {
namespace {

using Labels = prometheus::Labels;

// Values of one scrape, in a registry of its own.
class Page {
 public:
  void Gauge(const std::string& name, const std::string& help, const Labels& labels, double value) {
    prometheus::BuildGauge().Name(name).Help(help).Register(registry_).Add(labels).Set(value);
  }
  void Counter(const std::string& name, const std::string& help, const Labels& labels,
               double value) {
    prometheus::BuildCounter().Name(name).Help(help).Register(registry_).Add(labels).Increment(
        value);
  }
  std::string Text() const { return prometheus::TextSerializer().Serialize(registry_.Collect()); }

 private:
  // With Merge, registering a family again returns the existing one.
  prometheus::Registry registry_{prometheus::Registry::InsertBehavior::Merge};
};

void AddEngine(Page& page, const std::vector<EngineStats>& groups) {
  for (size_t g = 0; g < groups.size(); ++g) {
    const EngineStats& s = groups[g];
    const Labels group = {{"group", std::to_string(g)}};
    const auto pages = [&](const char* state, int64_t n) {
      page.Gauge("switchyard_kv_pages", "Pages of the KV cache by state",
                 {{"group", std::to_string(g)}, {"state", state}}, static_cast<double>(n));
    };
    page.Gauge("switchyard_running_requests", "Requests in the running set", group, s.running);
    page.Gauge("switchyard_waiting_requests", "Requests in the queue", group, s.waiting);
    pages("free", s.free_pages);
    pages("cached", s.cached_pages);
    pages("used", s.total_pages - s.free_pages - s.cached_pages);
    const auto count = [&](const char* name, const char* help, int64_t n) {
      page.Counter(name, help, group, static_cast<double>(n));
    };
    count("switchyard_steps_total", "Steps with a batch of this group", s.steps);
    count("switchyard_prefill_tokens_total", "Prompt tokens computed", s.prefill_tokens);
    count("switchyard_cached_prompt_tokens_total", "Prompt tokens found in the radix cache",
          s.cached_prompt_tokens);
    count("switchyard_decode_tokens_total", "Tokens generated", s.decode_tokens);
    count("switchyard_retractions_total", "Requests retracted to free KV pages", s.retractions);
  }
}

void AddExperts(Page& page, const ExpertLoad& load) {
  const Balancedness& b = load.balancedness;
  for (const auto& [passes, value] : {std::pair("1", b.current), std::pair("10", b.last_10),
                                      std::pair("100", b.last_100), std::pair("1000", b.last_1000)})
    page.Gauge("switchyard_eplb_balancedness",
               "Mean over layers of mean / max rank load, averaged over the last passes",
               {{"passes", passes}}, value);
  page.Counter("switchyard_eplb_forward_passes_total", "Forward passes with recorded expert load",
               {}, static_cast<double>(load.passes));
  std::vector<int64_t> ranks(load.ranks);
  for (size_t i = 0; i < load.rank_count.size(); ++i) ranks[i % load.ranks] += load.rank_count[i];
  for (size_t r = 0; r < ranks.size(); ++r)
    page.Counter("switchyard_eplb_gpu_physical_count_total",
                 "Token rows of experts on an EP rank, summed over layers",
                 {{"rank", std::to_string(r)}}, static_cast<double>(ranks[r]));
}

void AddEplb(Page& page, const EplbStatus& s) {
  for (int i = 0; i <= static_cast<int>(EplbState::kDone); ++i) {
    const auto state = static_cast<EplbState>(i);
    page.Gauge("switchyard_eplb_state", "1 for the current state of the rebalance",
               {{"state", Name(state)}}, state == s.state ? 1 : 0);
  }
  if (s.balancedness)  // absent until load has been recorded
    page.Gauge("switchyard_eplb_window_balancedness",
               "Mean over layers of mean / max rank load since the last migration", {},
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
  count("switchyard_eplb_experts_loaded_total", "Experts that rank 0 loaded from the checkpoint",
        s.experts_loaded);
  count("switchyard_eplb_experts_received_total", "Experts that rank 0 received from other ranks",
        s.experts_received);
  count("switchyard_eplb_failures_total", "Rebalances that failed", s.failures);
  count("switchyard_eplb_watchdog_resets_total", "Rebalances that the watchdog stopped",
        s.watchdog_resets);
}

// One scrape: gets the engine, expert and EPLB values one after the other, then sends the page.
class Scrape : public std::enable_shared_from_this<Scrape> {
 public:
  Scrape(Service& service, http::Responder responder)
      : service_(service), responder_(std::move(responder)) {}

  void Start() {
    service_.front.Stats([self = shared_from_this()](const std::vector<EngineStats>& groups) {
      AddEngine(self->page_, groups);
      self->Go([&] { self->RequestExperts(); });
    });
  }

 private:
  void RequestExperts() {
    if (!service_.args.engine.recorder.any()) return RequestEplb();
    service_.front.GetExpertLoad([self = shared_from_this()](const ExpertLoadReport& report) {
      if (report.error.empty()) AddExperts(self->page_, report.load);
      self->Go([&] { self->RequestEplb(); });
    });
  }
  void RequestEplb() {
    if (!service_.args.engine.eplb.enable) return Send();
    service_.front.GetEplb([self = shared_from_this()](const EplbReport& report) {
      if (report.refused.empty()) AddEplb(self->page_, report.status);
      self->Send();
    });
  }
  void Go(const std::function<void()>& next) {
    try {
      next();
    } catch (const Error& error) {  // the ranks were lost during the scrape
      responder_.SendError(error);
    }
  }
  void Send() { responder_.Send(200, "text/plain; version=0.0.4; charset=utf-8", page_.Text()); }

  Service& service_;
  http::Responder responder_;
  Page page_;
};

}  // namespace

void RegisterMetrics(http::Server& server, Service& service) {
  server.Route(
      "GET", "/metrics",
      [&service](const std::shared_ptr<const http::Request>&, const http::Responder& responder) {
        RequireReady(service);
        std::make_shared<Scrape>(service, responder)->Start();
      });
}

}  // namespace switchyard::native
