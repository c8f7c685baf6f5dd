#include "server/serve.h"

#include <fmt/core.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/log.h"
#include "core/log_queue.h"
#include "engine/checks/checks.h"
#include "engine/cpu_experts.h"
#include "engine/machine.h"
#include "engine/rank_engine.h"
#include "server/disaggregation/disaggregation.h"
#include "server/front/served_model.h"
#include "server/front/service.h"
#include "server/http/http_server.h"
#include "server/http_setup.h"
#include "server/openapi/openapi.h"
#include "server/page/page.h"
#include "server/ranks/engine_ranks.h"
#include "server/ranks/membership.h"
#include "server/ranks/rank_changes.h"
#include "server/ranks/served_layout.h"
#include "server/ranks/supervisor.h"
#include "server/record/recorder.h"
#include "server/service_manager.h"
#include "server/trace/tracer.h"

namespace switchyard {
namespace {

using namespace std::chrono_literals;

// The default of --max-queued-requests, for each request that may run.
constexpr int64_t kQueuedPerRunning = 16;

// Load progress: one redrawn line on a terminal, otherwise one line per 10 %.
class ProgressLine {
 public:
  // Smaller weights get no progress line.
  static constexpr uint64_t kWorthALine = uint64_t{256} << 20;

  // Small weights may be loaded before the first report of progress.
  explicit ProgressLine(ServiceManager& manager) : manager_(manager) {
    manager_.Status("loading weights: 0 %");
  }

  void Show(uint64_t done, uint64_t total) {
    const int percent = total ? static_cast<int>(100 * done / total) : 100;
    manager_.Status(fmt::format("loading weights: {} %", percent));
    const bool terminal = isatty(STDERR_FILENO);
    if (!terminal && percent / 10 == shown_ / 10) return;
    if (total < kWorthALine) return;
    shown_ = percent;
    fmt::print(stderr, "{}loading weights {:3}% ({:.1f} of {:.1f} GiB of rank 0){}",
               terminal ? "\r" : "", percent, static_cast<double>(done) / (1 << 30),
               static_cast<double>(total) / (1 << 30), terminal && percent < 100 ? "" : "\n");
  }

 private:
  ServiceManager& manager_;
  int shown_ = -1;
};

// Runs one short request. Throws kPeer if it fails or does not end within --dist-timeout. Returns
// early if `cancelled` becomes true.
void WarmUp(Service& service, const std::atomic<bool>& cancelled) {
  GenerationSpec spec;
  spec.input_ids = {service.model.config.bos_token_id.value_or(0)};
  spec.pooled = service.model.config.pooling.has_value();
  spec.sampling.max_new_tokens = spec.pooled ? 0 : 2;
  spec.sampling.temperature = 0;
  spec.sampling.ignore_eos = true;
  spec.measured = false;
  const auto ended = std::make_shared<std::promise<std::string>>();  // may outlive this function
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

void LogOutputFormat(const OutputFormat& format) {
  if (format.calls == nullptr && format.reasoning == nullptr) return;
  LOG_INFO("parser of tool calls: {}; parser of reasoning: {}",
           format.calls ? format.calls->name : "none",
           format.reasoning ? format.reasoning->name : "none");
}

// Prints the address with an example of a request. Returns the address.
std::string PrintReady(const Service& service, int port) {
  const std::string host =
      service.args.host == "0.0.0.0" || service.args.host == "::" ? "127.0.0.1" : service.args.host;
  const HttpArgs& http = service.args.http;
  const std::string url = ServerUrl(http, host, port);
  const std::string key =
      ReadApiKeys(service.args.http).empty() ? "" : " -H 'Authorization: Bearer KEY'";
  const auto& pooling = service.model.config.pooling;
  const char* const path = pooling                                 ? "embeddings"
                           : service.model.chat_template.Present() ? "chat/completions"
                                                                   : "completions";
  const char* const body =
      pooling ? R"({"input": "Hello"})"
      : service.model.chat_template.Present()
          ? R"({"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 32})"
          : R"({"prompt": "Hello", "max_tokens": 32})";
  fmt::print(
      "Switchyard is ready at {}\n  curl {}{}/v1/{}{} -H 'Content-Type: application/json' -d "
      "'{}'\n",
      http.uds.empty() ? url : http.uds,
      http.uds.empty() ? "" : fmt::format("--unix-socket {} ", http.uds), url,
      pooling && pooling->classifies() ? "classify" : path, key, body);
  std::fflush(stdout);
  return http.uds.empty() ? url : http.uds;
}

// Requests statistics, which the front keeps for requests that arrive during a restart. If the
// ranks are lost, the caller learns it otherwise.
void KeepStatistics(Front& front) {
  try {
    front.Stats([](const std::vector<EngineStats>&) {});
  } catch (const Error&) {
  }
}

// Returns the exit code that a shell reports for a process ended by the signal.
int ReportInterrupted(int signal) {
  LOG_WARNING("the start was interrupted by signal {} before the server was ready", signal);
  return 128 + signal;
}

// Periodic work of the main thread, which it does several times a second while it waits for
// signals.
class Upkeep {
 public:
  Upkeep(Service& service, http::Server& server, ServiceManager& manager)
      : service_(service), server_(server), manager_(manager) {}

  void Run() {
    manager_.Alive();
    service_.front.AbortOverdue();
    const RankHistory history = service_.front.history();
    if (std::exchange(deaths_, history.deaths) != history.deaths)
      service_.recorder->WriteCrash("ranks have ended");
    const double held = history.held_for;
    if (held < 1) next_comment_ = 1;
    if (held < next_comment_) return;
    server_.CommentStreams("waiting");  // keeps proxies and clients from closing idle streams
    next_comment_ = held + 1;
  }

 private:
  Service& service_;
  http::Server& server_;
  ServiceManager& manager_;
  int64_t deaths_ = 0;
  double next_comment_ = 1;  // next comment, in seconds since the start of the pause
};

// Waits until all requests have ended. Aborts the remaining ones at the deadline or on a second
// signal. A change of the ranks in progress ends first, because Server::Stop waits for the response
// to the request that began the change.
void Drain(Service& service, Supervisor& ranks, Upkeep& upkeep, const StopSignals& signals,
           const std::atomic<bool>& lost) {
  service.front.StartDraining();
  ranks.CancelChange();
  if (const size_t open = service.front.open())
    LOG_INFO("draining: {} requests are still running", open);
  const RankWeights* weights = service.weights;
  const auto deadline = std::chrono::steady_clock::now() +
                        std::chrono::duration<double>(service.args.drain_timeout_seconds);
  while (service.front.open() > 0 && !lost && std::chrono::steady_clock::now() < deadline) {
    if (service.front.controls().paused) break;  // paused requests do not end
    // Without memory no request runs. A release that has begun may end during this loop.
    if (weights != nullptr && weights->weights_state().released.any()) break;
    if (signals.Wait(50ms)) break;
    upkeep.Run();
  }
  if (service.front.open() > 0 && !lost) {
    LOG_WARNING("aborting {} requests", service.front.open());
    service.front.AbortAll();
    service.front.WaitUntilIdle(5s);
  }
}

// Whether the ranks are restarted after one of them has ended. Logs why they are not, unless a flag
// says so.
bool RestartsRanks(const ServerArgs& args, const Launch& launch) {
  if (args.disable_elastic_ep) return false;
  const auto ends = [](const std::string& why) {
    LOG_INFO("the end of a rank ends the server: {}", why);
    return false;
  };
  if (const int stages = args.engine.mesh.pp; stages > 1)
    return ends(fmt::format("it has several pipeline stages (--pp-size {})", stages));
  if (launch.launched) return ends("a launcher started it");
  if (!launch.alone() && !launch.rejoins)
    return ends("with several nodes, only --enable-elastic-ep restarts ranks");
  return true;
}

// Returns the reason why POST /scale_elastic_ep is refused; "" if it is supported.
std::string WhyScalingIsRefused(const Launch& launch, bool restarts, int stages,
                                const Disaggregation& transfers) {
  if (std::string why = transfers.WhyScalingIsRefused(); !why.empty()) return why;
  if (launch.launched) return "ranks that a launcher (such as mpirun) started cannot be changed";
  if (!launch.alone()) return "with several nodes, the ranks cannot be changed";
  if (stages > 1) return "with several pipeline stages (--pp-size), the ranks cannot be changed";
  if (!restarts) return "without elastic ranks (--disable-elastic-ep), the ranks cannot be changed";
  return {};
}

// `args`, or with experts on CPUs beside the GPU (--cpu-experts). `lines`: says what was chosen.
ServerArgs WithCpuExperts(ServerArgs args, std::vector<std::string>* lines) {
  const bool alone = args.nnodes == 1 && !FindLauncher();
  if (args.cpu_experts == "off" || !alone) return args;
  CpuExpertsChoice choice = ChooseCpuExpertsHere(args.engine);
  args.engine = std::move(choice.config);
  *lines = std::move(choice.lines);
  return args;
}

}  // namespace

int RunServe(const ServerArgs& given) {
  if (given.print_schedule) {
    CheckFlags(given.engine);
    fmt::print("{}", ServeScheduleText(given.engine));
    return 0;
  }
  std::vector<std::string> chosen;
  const ServerArgs args = WithCpuExperts(given, &chosen);
  if (args.dry_run) {
    fmt::print("{}", ServeLayoutText(args, PlanLaunch(args, FindLauncher())));
    for (const std::string& line : chosen) fmt::print("chosen   {}\n", line);
    return 0;
  }
  const StopSignals signals;
  ServiceManager manager;
  ExitWhenOutOfMemory();
  QueueLog();
  struct Flush {
    ~Flush() { FlushLog(1s); }
  } const flush;
  for (const std::string& line : chosen) LOG_WARNING("{}", line);
  const Launch launch = PlanLaunch(args, FindLauncher());
  const bool restarts = RestartsRanks(args, launch);
  if (launch.node > 0) return RunFollower(args, launch, signals, manager);
  if (!launch.launched) ReturnFreedMemory();  // not if this process also runs a rank
  std::atomic<int> interrupted{0};            // signal that interrupted the startup
  const FindSignal find_signal = [&] {
    if (const int signal = signals.Wait(0ms)) interrupted = signal;
    return interrupted.load();
  };
  const auto weights = CheckWeights(args, find_signal);
  if (!weights) return ReportInterrupted(interrupted);
  const EnginePlan plan = MakePlanHere(args.engine, launch.ranks_of_host, launch.shares_memory());
  CheckRejoins(launch, plan);
  if (plan.model.has_moe() && !plan.cuda)
    LOG_INFO("{}", DescribeExchangeMemory(plan.model, MakeModelOptions(args.engine, plan),
                                          args.engine.mesh));
  const ServedModel model = LoadServedModel(args, plan.model);
  LogOutputFormat(model.output_format);

  // The front and the ranks refer to each other. The ranks are constructed after the front, so that
  // they are destroyed first. So the front gets this link, whose target is set later.
  struct LateLink : RankLink {
    void Send(const std::vector<ControlMessage>& messages) override { ranks->Send(messages); }
    Supervisor* ranks = nullptr;
  } link;
  Front front(link, *model.tokenizer, FrontLimits(args, plan, kQueuedPerRunning),
              MakeDpController(args.engine));
  front.SetWeightVersion(args.weight_version);
  Disaggregation transfers(args, plan, launch, front);
  const std::unique_ptr<Grammars> grammars = MakeGrammars(args, model);
  Service service{front, model, args, plan, grammars.get()};
  service.request_log->enabled = args.observe.log_requests;
  service.tracer = trace::MakeTracer(args);
  http::ServerOptions http_options = SetUpHttp(args);
  http_options.request_log = service.request_log;
  service.recorder =
      std::make_shared<Recorder>(Recorder::Options{.dump_folder = args.observe.dump_requests_folder,
                                                   .crash_folder = args.observe.crash_dump_folder,
                                                   .log_level = args.observe.log_requests_level,
                                                   .tracer = service.tracer},
                                 service.request_log);
  http_options.observer = service.recorder;
  http::Server server(std::move(http_options));
  RegisterEndpoints(server, service);
  openapi::Register(server, service);
  const std::shared_ptr<page::Feed> feed =
      args.http.disable_page ? nullptr : page::Register(server, service);
  const auto stop_serving = [&] {
    if (feed) feed->Stop();  // first: the server's stop waits for the ends of its streams
    server.Stop();
  };
  server.Start();  // before loading, so that a port in use is reported immediately

  std::optional<Membership> membership = Lead(launch, args.engine, plan, find_signal);
  if (!membership || !ConnectLaunchedRank(launch, *membership, {args.engine, plan}, find_signal)) {
    stop_serving();
    return ReportInterrupted(interrupted);
  }

  std::atomic<bool> lost{false}, cancelled{false};
  std::string lost_reason;
  const ServedRanks served{.launch = launch,
                           .restart = RestartOptions::Of(args, restarts),
                           .cancelled = cancelled,
                           .on_arena = [&transfers](const std::shared_ptr<SharedArena>& arena) {
                             transfers.Use(arena);
                           }};
  // Declared before the supervisor, so that it is destroyed later: the supervisor's thread reports
  // the end of a change to it.
  RankChanges changes(
      {.refusal = WhyScalingIsRefused(launch, restarts, args.engine.mesh.pp, transfers),
       .config = args.engine,
       .plan = plan,
       .machine = ThisMachine(args.engine, launch.ranks_of_host),
       .weights = *weights},
      served, front);
  // When the ranks are lost, the crash file is written first: it must list the requests as open,
  // and OnRanksLost ends them.
  Supervisor ranks({.restarts = restarts,
                    .deaths = DeathLimit::Parse(args.max_rank_deaths),
                    .ranks_free_cache = plan.cuda},
                   front,
                   std::make_shared<ServedLayout>(served, RankJob{args.engine, plan}, *weights,
                                                  *std::move(membership),
                                                  /*checks=*/false),
                   [&](const std::string& why) {
                     service.recorder->WriteCrash(why);
                     lost_reason = why;
                     lost = true;  // first: a client may send a signal as soon as its request fails
                     front.OnRanksLost(why);
                   });
  struct StopTransfers {  // they send messages to the ranks
    Disaggregation& transfers;
    ~StopTransfers() { transfers.Stop(); }
  } const stop_transfers{transfers};
  changes.Control(&ranks);
  service.elastic = &changes;
  service.weights = &changes;
  link.ranks = &ranks;
  const double silence_limit = std::min(20.0, args.engine.watchdog_timeout_seconds / 2);
  service.find_silent_rank = [&ranks, silence_limit] {
    return ranks.Silent(std::chrono::duration<double>(silence_limit));
  };
  std::thread interrupt([&] {
    while (!service.ready && !cancelled && !lost) {
      if (const int signal = signals.Wait(100ms)) {
        interrupted = signal;
        cancelled = true;
      }
    }
  });
  std::exception_ptr failure;
  try {
    ProgressLine line(manager);
    if (ranks.WaitReady([&](const LoadProgress& p) { line.Show(p.done, p.total); }, cancelled)) {
      if (!args.skip_server_warmup) WarmUp(service, cancelled);
      if (!cancelled) ranks.Watch();
      KeepStatistics(front);
      service.ready = !cancelled;
    }
  } catch (...) {
    failure = std::current_exception();
    cancelled = true;
  }
  interrupt.join();
  if (failure) {
    stop_serving();  // before the destruction of objects used by handlers
    std::rethrow_exception(failure);
  }

  if (service.ready) {
    Upkeep upkeep(service, server, manager);
    if (!interrupted) {  // a signal may arrive just after `ready` is set
      const std::string address = PrintReady(service, server.port());
      manager.Ready(fmt::format("serves {} at {}", model.name, address));
      while (!lost && !signals.Wait(200ms)) upkeep.Run();
    }
    manager.Stopping();
    Drain(service, ranks, upkeep, signals, lost);
  }
  stop_serving();
  if (lost) {
    if (launch.rejoins) DismissNodes(launch, args.engine, lost_reason);
    LOG_ERROR("{}", lost_reason);
    return 1;
  }
  if (service.ready && !ranks.Shutdown(10s))
    LOG_WARNING("some ranks did not exit in time and were killed");
  if (service.ready && launch.rejoins && !ranks.has_ranks())  // the shutdown came during a restart
    DismissNodes(launch, args.engine, kShuttingDown);
  if (interrupted) return ReportInterrupted(interrupted);
  LOG_INFO("the server has shut down");
  return 0;
}

}  // namespace switchyard
