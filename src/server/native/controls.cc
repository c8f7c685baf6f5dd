#include <algorithm>
#include <array>
#include <chrono>
#include <functional>
#include <optional>
#include <string_view>
#include <utility>

#include "core/error.h"
#include "core/log_queue.h"
#include "server/api/guarded.h"
#include "server/api/known_fields.h"
#include "server/http/error_body.h"
#include "server/native/native.h"
#include "server/record/recorder.h"

namespace switchyard::native {
namespace {

using RequestPtr = std::shared_ptr<const http::Request>;

constexpr double kMaxDelaySeconds = 60;
constexpr int64_t kMaxLogLevel = 3;
constexpr size_t kMaxSessionId = 128;
constexpr char kLost[] = "the ranks were lost before they applied the change";

Json BodyOf(const http::Request& request) {
  return request.body.empty() ? Json::object() : ParseBody(request);
}

// Changes the controls, and calls `respond` when they apply. While memory is released there are no
// ranks, so the change applies at once.
void Change(Service& service, const std::function<void(EngineControls*)>& change,
            PauseAction action, std::function<void(bool, const ControlsSet&)> respond) {
  if (MemoryReleased(service)) {
    if (const auto aborted = service.front.ChangeHeldControls(change, action))
      return respond(true, {.requests = *aborted});
  }
  service.front.ChangeControls(change, action, std::move(respond));
}

void HandlePause(Service& service, const http::Request& request, const http::Responder& responder) {
  RequireServing(service);  // not RequireReady: clients may pause while a rank hangs
  const PauseAction action = ParsePause(BodyOf(request));
  Change(
      service, [](EngineControls* controls) { controls->paused = true; }, action,
      [responder, action](bool done, const ControlsSet& set) {
        if (!done) return responder.SendError(503, kLost);
        Json answer = {{"message", "Generation paused successfully."}, {"status", "ok"}};
        if (action == PauseAction::kRetract) answer["retracted_requests"] = set.requests;
        if (action == PauseAction::kAbort) answer["aborted_requests"] = set.requests;
        responder.Send(200, http::kJson, Dump(answer));
      });
}

void HandleContinue(Service& service, const http::Request& request,
                    const http::Responder& responder) {
  RequireServing(service);
  RefuseUnknownFields(BodyOf(request), RequestKind::kContinueGeneration);
  Change(
      service, [](EngineControls* controls) { controls->paused = false; }, PauseAction::kNone,
      [responder](bool done, const ControlsSet&) {
        if (!done) return responder.SendError(503, kLost);
        responder.Send(200, http::kJson,
                       Dump({{"message", "Generation continued successfully."}, {"status", "ok"}}));
      });
}

void HandleSlowDown(Service& service, const http::Request& request,
                    const http::Responder& responder) {
  RequireServing(service);
  const double seconds = ParseSlowDown(BodyOf(request));
  Change(
      service, [seconds](EngineControls* controls) { controls->step_delay_seconds = seconds; },
      PauseAction::kNone,
      [responder](bool done, const ControlsSet&) {
        if (!done) return responder.SendError(503, kLost);
        responder.Send(200, http::kJson, "null");  // SGLang's response
      });
}

void HandleSetInternalState(Service& service, const http::Request& request,
                            const http::Responder& responder) {
  RequireServing(service);
  const Json body = ParseBody(request);
  const LayoutSizes sizes = service.sizes();
  EngineControls checked;
  ApplyServerArgs(body, sizes, &checked);  // throws before anything changes
  Change(
      service, [&](EngineControls* controls) { ApplyServerArgs(body, sizes, controls); },
      PauseAction::kNone,
      [responder, groups = sizes.mesh.attention_groups()](bool done, const ControlsSet&) {
        if (!done) return responder.SendError(503, kLost);
        Json updated = Json::array();  // one for each attention group
        for (int group = 0; group < groups; ++group) updated.push_back(true);
        responder.Send(200, http::kJson, Dump(updated));
      });
}

void HandleGetLoad(Service& service, const http::Responder& responder) {
  RequireReady(service);
  service.front.Stats([responder](const std::vector<EngineStats>& groups) {
    if (groups.empty()) return responder.SendError(503, kRanksLost);
    const double now =
        std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
    Json load = Json::array();
    for (size_t g = 0; g < groups.size(); ++g) {
      const EngineStats& s = groups[g];
      const int64_t used = (s.total_pages - s.free_pages - s.cached_pages) * s.page_size;
      load.push_back({{"dp_rank", g},
                      {"num_reqs", s.running + s.waiting},
                      {"num_waiting_reqs", s.waiting},
                      {"num_tokens", used + s.waiting_tokens},
                      {"num_pending_tokens", s.waiting_tokens},
                      {"ts_tic", now}});
    }
    responder.Send(200, http::kJson, Dump(load));
  });
}

// An empty name ends the dump. Relative names would depend on the server's directory.
std::optional<std::string> Folder(const Fields& f, const char* field) {
  if (!f.Has(field)) return std::nullopt;
  std::string folder = f.String(field, "");
  if (!folder.empty() && !folder.starts_with('/'))
    throw InvalidField(field, "{} is not an absolute path", field);
  try {
    CheckRecordFolder(folder, field);
  } catch (const Error& error) {
    throw InvalidField(field, "{}", error.what());
  }
  return folder;
}

void HandleConfigureLogging(const Service& service, const http::Request& request,
                            const http::Responder& responder) {
  const Json body = BodyOf(request);
  RefuseUnknownFields(body, RequestKind::kConfigureLogging);
  const Fields f(body);
  const std::string level = f.String("log_level", "");
  constexpr std::array<std::string_view, 4> kLevels = {"debug", "info", "warning", "error"};
  if (!level.empty() && std::ranges::find(kLevels, level) == kLevels.end())
    throw InvalidField("log_level", "log_level is {}, want debug, info, warning or error", level);
  std::optional<int> text;
  if (f.Has("log_requests_level"))
    text = static_cast<int>(f.Int("log_requests_level", 0, 0, kMaxLogLevel));
  const bool folders = f.Has("dump_requests_folder") || f.Has("crash_dump_folder");
  if (service.recorder) {
    service.recorder->Configure(text, Folder(f, "dump_requests_folder"),
                                Folder(f, "crash_dump_folder"));
  } else if (text || folders) {
    throw Error(ErrorKind::kUnavailable, "this server does not record requests");
  }
  if (f.Has("log_requests")) service.request_log->enabled = f.Bool("log_requests", false);
  if (!level.empty()) SetLogLevel(level);
  responder.Send(200, "text/plain", "");
}

std::string SessionId(const Fields& f) {
  std::string id = f.String("session_id", "");
  const bool plain = std::ranges::all_of(id, [](char c) { return c > ' ' && c < 0x7f; });
  if (id.size() > kMaxSessionId || !plain)
    throw InvalidField("session_id",
                       "session_id is invalid: want at most {} printable ASCII characters without "
                       "spaces",
                       kMaxSessionId);
  return id;
}

void HandleOpenSession(Service& service, const http::Request& request,
                       const http::Responder& responder) {
  const Json body = ParseBody(request);
  RefuseUnknownFields(body, RequestKind::kOpenSession);
  const Fields f(body);
  if (!f.Has("capacity_of_str_len"))
    throw InvalidField("capacity_of_str_len", "capacity_of_str_len is missing");
  f.Int("capacity_of_str_len", 0, 0, INT64_MAX);
  std::optional<std::chrono::duration<double>> timeout;
  if (f.Has("timeout")) {
    timeout.emplace(f.Number("timeout", 0));
    if (!(timeout->count() > 0))
      throw InvalidField("timeout", "timeout is {}, want more than 0 seconds", timeout->count());
  }
  responder.Send(200, http::kJson, Dump(service.sessions.Open(SessionId(f), timeout)));
}

void HandleCloseSession(Service& service, const http::Request& request,
                        const http::Responder& responder) {
  const Json body = ParseBody(request);
  RefuseUnknownFields(body, RequestKind::kCloseSession);
  const Fields f(body);
  const std::string id = SessionId(f);
  if (id.empty()) throw InvalidField("session_id", "session_id is missing");
  if (!service.sessions.Close(id))
    throw InvalidField("session_id", "there is no open session with session_id {}", id);
  responder.Send(200, "text/plain", "");
}

}  // namespace

PauseAction ParsePause(const Json& body) {
  RefuseUnknownFields(body, RequestKind::kPauseGeneration);
  const std::string mode = Fields(body).String("mode", "abort");
  if (mode == "abort") return PauseAction::kAbort;
  if (mode == "retract") return PauseAction::kRetract;
  if (mode == "in_place") return PauseAction::kNone;
  throw InvalidField("mode", "mode is {}, want abort, retract or in_place", mode);
}

double ParseSlowDown(const Json& body) {
  RefuseUnknownFields(body, RequestKind::kSlowDown);
  const double seconds = Fields(body).Number("forward_sleep_time", 0);
  if (!(seconds <= kMaxDelaySeconds))
    throw InvalidField("forward_sleep_time", "forward_sleep_time is {}, want at most {} seconds",
                       seconds, kMaxDelaySeconds);
  return std::max(0.0, seconds);
}

void ApplyServerArgs(const Json& body, const LayoutSizes& sizes, EngineControls* controls) {
  RefuseUnknownFields(body, RequestKind::kSetInternalState);
  const Fields f(body);
  const Json* const args = f.Find("server_args");
  if (!args || !args->is_object())
    throw InvalidField("server_args", "server_args is {}, want an object",
                       args ? "no object" : "missing");
  const Fields values(*args, "server_args.");
  const int64_t groups = sizes.mesh.attention_groups(), most = sizes.max_running_requests * groups;
  for (const auto& [name, value] : args->items()) {
    const std::string field = "server_args." + name;
    if (value.is_null()) continue;
    if (name == "max_running_requests") {
      controls->max_running_requests = values.Int(name.c_str(), most, groups, most) / groups;
    } else if (name == "pp_max_micro_batch_size") {
      if (sizes.mesh.pp == 1)
        throw InvalidField(field, "{} has no effect without --pp-size", field);
      controls->max_micro_batch = values.Int(name.c_str(), most, groups, most) / groups;
    } else if (name.starts_with("speculative_accept_threshold_")) {
      throw InvalidField(field,
                         "{} is not supported: drafts are accepted only if they equal the sampled "
                         "token",
                         field);
    } else {
      throw InvalidField(field,
                         "{} cannot be changed while the server runs, want max_running_requests or "
                         "pp_max_micro_batch_size",
                         field);
    }
  }
}

void RegisterControls(http::Server& server, Service& service) {
  const auto control = [&](const char* method, const char* path, auto handler) {
    server.Route(
        method, path,
        Guarded(service,
                [&service, handler](const RequestPtr& request, const http::Responder& responder) {
                  handler(service, *request, responder);
                }),
        http::Access::kControl);
  };
  control("POST", "/pause_generation", HandlePause);
  control("POST", "/continue_generation", HandleContinue);
  control("POST", "/slow_down", HandleSlowDown);
  for (const char* method : {"POST", "PUT"})
    control(method, "/set_internal_state", HandleSetInternalState);
  control("POST", "/configure_logging", HandleConfigureLogging);
  control("POST", "/open_session", HandleOpenSession);
  control("POST", "/close_session", HandleCloseSession);
  control("POST", "/freeze_gc", [](Service&, const http::Request&, const http::Responder& out) {
    out.Send(200, "text/plain", "Nothing to freeze: this server has no garbage collector.\n");
  });
  server.Route("GET", "/get_load",
               Guarded(service, [&service](const RequestPtr&, const http::Responder& responder) {
                 HandleGetLoad(service, responder);
               }));
}

}  // namespace switchyard::native
