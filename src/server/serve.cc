#include "server/serve.h"

#include <fmt/core.h>
#include <unistd.h>

#include <chrono>
#include <future>
#include <thread>

#include "core/error.h"
#include "core/log.h"
#include "engine/rank_engine.h"
#include "server/front/service.h"
#include "server/http/http_server.h"
#include "server/native/native.h"
#include "server/openai/openai.h"
#include "server/ranks/engine_ranks.h"
#include "server/ranks/follower.h"
#include "server/ranks/membership.h"
#include "server/ranks/served_weights.h"
#include "server/stop_signals.h"

namespace switchyard {
namespace {

using namespace std::chrono_literals;

// One line that is redrawn on a terminal, and a line each tenth elsewhere.
class ProgressLine {
 public:
  static constexpr uint64_t kWorthALine = uint64_t{256} << 20;  // bytes that take a noticeable time

  void Show(uint64_t done, uint64_t total) {
    const int percent = total ? static_cast<int>(100 * done / total) : 100;
    const bool terminal = isatty(STDERR_FILENO);
    if (!terminal && percent / 10 == shown_ / 10) return;
    if (total < kWorthALine) return;
    shown_ = percent;
    fmt::print(stderr, "{}loading weights {:3}% ({:.1f} of {:.1f} GiB of rank 0){}",
               terminal ? "\r" : "", percent, static_cast<double>(done) / (1 << 30),
               static_cast<double>(total) / (1 << 30), terminal && percent < 100 ? "" : "\n");
  }

 private:
  int shown_ = -1;
};

http::ServerOptions HttpOptions(const ServerArgs& args) {
  http::ServerOptions o;
  o.host = args.host;
  o.port = args.port;
  o.io_threads = 2;
  o.max_body_bytes = static_cast<size_t>(args.max_body_mb * (1 << 20));
  o.api_key = args.api_key;
  o.paths_without_key = {"/health", "/health_generate"};
  o.log_requests = args.log_requests;
  return o;
}

Front::Limits FrontLimits(const EngineConfig& config, const EnginePlan& plan) {
  return {.vocab_size = plan.model.vocab_size,
          .context_length = plan.context_length,
          .cache_tokens = plan.num_pages * config.page_size,
          .max_open = config.max_queued_requests
                          ? plan.max_running_requests * config.mesh.dp + config.max_queued_requests
                          : 0,
          .has_experts = plan.model.has_moe()};
}

// Error kPeer where the request fails or does not end within --dist-timeout; returns early when
// `cancelled` becomes true.
void WarmUp(Service& service, const std::atomic<bool>& cancelled) {
  GenerationSpec spec;
  spec.input_ids = {service.model.config.bos_token_id.value_or(0)};
  spec.sampling.max_new_tokens = 2;
  spec.sampling.temperature = 0;
  spec.sampling.ignore_eos = true;
  const auto ended = std::make_shared<std::promise<std::string>>();  // may outlast the wait
  service.front.Submit(std::move(spec),
                       [ended](const GenerationEvent& e) { ended->set_value(e.error); });
  std::future<std::string> error = ended->get_future();
  const auto deadline = std::chrono::steady_clock::now() +
                        std::chrono::duration<double>(service.args.engine.dist_timeout_seconds);
  while (error.wait_for(100ms) != std::future_status::ready) {
    if (cancelled) return;
    if (std::chrono::steady_clock::now() > deadline)
      throw Error(ErrorKind::kPeer,
                  fmt::format("the warm-up request did not end within {} seconds (--dist-timeout)",
                              service.args.engine.dist_timeout_seconds));
  }
  if (const std::string what = error.get(); !what.empty())
    throw Error(ErrorKind::kPeer, "the warm-up request failed: " + what);
}

void SayReady(const Service& service, int port) {
  const std::string host =
      service.args.host == "0.0.0.0" || service.args.host == "::" ? "127.0.0.1" : service.args.host;
  const std::string url = fmt::format(
      "http://{}:{}", host.find(':') == std::string::npos ? host : "[" + host + "]", port);
  const std::string key = service.args.api_key.empty() ? "" : " -H 'Authorization: Bearer KEY'";
  const std::string body =
      service.model.chat_template.Present()
          ? R"({"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 32})"
          : R"({"prompt": "Hello", "max_tokens": 32})";
  fmt::print(
      "Switchyard is ready at {}\n  curl {}/v1/{}{} -H 'Content-Type: application/json' -d '{}'\n",
      url, url, service.model.chat_template.Present() ? "chat/completions" : "completions", key,
      body);
  std::fflush(stdout);
}

// Requests end by themselves or by the deadline; a second signal shortens it.
void Drain(Service& service, const StopSignals& signals, const std::atomic<bool>& lost) {
  service.front.StartDraining();
  if (const size_t open = service.front.open())
    LOG_INFO("draining: {} requests are still running", open);
  const auto deadline = std::chrono::steady_clock::now() +
                        std::chrono::duration<double>(service.args.drain_timeout_seconds);
  while (service.front.open() > 0 && !lost && std::chrono::steady_clock::now() < deadline) {
    if (signals.Wait(50ms)) break;
  }
  if (service.front.open() > 0 && !lost) {
    LOG_WARNING("aborting {} requests", service.front.open());
    service.front.AbortAll();
    service.front.WaitUntilIdle(5s);
  }
}

}  // namespace

int RunServe(const ServerArgs& args) {
  const StopSignals signals;
  const Launch launch = PlanLaunch(args, FindLauncher());
  if (launch.node > 0) return RunFollower(args, launch, signals);
  const auto weights = CheckWeights(args, [&] { return signals.Wait(0ms) != 0; });
  if (!weights) return 0;
  const EnginePlan plan = MakePlan(args.engine, launch.ranks_of_host);
  if (plan.model.has_moe() && !plan.cuda)
    LOG_INFO("{}", DescribeExchangeMemory(plan.model, MakeModelOptions(args.engine, plan),
                                          args.engine.mesh));
  const ServedModel model = LoadServedModel(args, plan.model);

  // The front speaks to the ranks and they to it; the ranks come last, so that they are the first
  // to go.
  struct LateLink : RankLink {
    void Send(const std::vector<ControlMessage>& messages) override { ranks->Send(messages); }
    EngineRanks* ranks = nullptr;
  } link;
  Front front(
      link, *model.tokenizer, FrontLimits(args.engine, plan),
      DpController(args.engine.mesh.dp, ParseLoadBalanceMethod(args.engine.load_balance_method)));
  Service service{front, model, args, plan};
  http::Server server(HttpOptions(args));
  openai::Register(server, service);
  native::Register(server, service);
  server.Start();  // a port in use is said before anything is loaded

  std::optional<Membership> membership =
      Lead(launch, args.engine, plan, [&] { return signals.Wait(0ms) != 0; });
  if (!membership) {
    server.Stop();
    return 0;
  }

  std::atomic<bool> lost{false}, cancelled{false};
  std::string lost_reason;
  EngineRanks ranks(
      [&](const std::string& endpoint, RankHost::OnExit on_exit) {
        return StartRanks(launch, *membership, {args.engine, plan}, endpoint,
                          NamingChangedFiles(*weights, std::move(on_exit)));
      },
      std::move(membership->nodes),
      {.on_message = [&](const EngineMessage& m) { front.OnMessage(m); },
       .on_lost =
           [&](const std::string& why) {
             lost_reason = why;
             lost = true;  // first: a client that sees the loss may send the signal at once
             front.OnRanksLost(why);
           }});
  link.ranks = &ranks;
  std::thread interrupt([&] {
    while (!service.ready && !cancelled && !lost) {
      if (signals.Wait(100ms)) cancelled = true;
    }
  });
  std::exception_ptr failure;
  try {
    ProgressLine line;
    if (ranks.WaitReady([&](const LoadProgress& p) { line.Show(p.done, p.total); }, cancelled)) {
      if (!args.skip_server_warmup) WarmUp(service, cancelled);
      service.ready = !cancelled;
    }
  } catch (...) {
    failure = std::current_exception();
    cancelled = true;
  }
  interrupt.join();
  if (failure) {
    server.Stop();  // while what its handlers use still exists
    std::rethrow_exception(failure);
  }

  if (service.ready) {
    if (!cancelled) {  // else the signal came just after
      SayReady(service, server.port());
      while (!lost && !signals.Wait(200ms)) {
      }
    }
    Drain(service, signals, lost);
  }
  server.Stop();
  if (lost) {
    LOG_ERROR("{}", lost_reason);
    return 1;
  }
  if (service.ready && !ranks.Shutdown(10s))
    LOG_WARNING("some ranks did not leave by themselves and were killed");
  LOG_INFO("goodbye");
  return 0;
}

}  // namespace switchyard
