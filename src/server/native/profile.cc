#include <algorithm>
#include <filesystem>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/error.h"
#include "server/api/guarded.h"
#include "server/api/known_fields.h"
#include "server/http/error_body.h"
#include "server/native/native.h"

namespace switchyard::native {
namespace {

using RequestPtr = std::shared_ptr<const http::Request>;

constexpr int64_t kMaxSteps = 1'000'000'000;

void ReadActivities(const Fields& f, bool gpus, profile::Options* options) {
  options->host = true;
  options->device = gpus;
  if (!f.Has("activities")) return;
  options->host = options->device = false;
  for (const std::string& activity : f.Strings("activities")) {
    if (activity == "CPU") {
      options->host = true;
    } else if (activity == "GPU") {
      options->device = true;
    } else {
      throw InvalidField("activities", "activities has {}, want CPU, GPU or both", activity);
    }
  }
  if (!options->host && !options->device)
    throw InvalidField("activities", "activities is empty, want CPU, GPU or both");
  if (!options->host && !gpus)
    throw InvalidField("activities", "activities is GPU, but all ranks are on CPUs: want CPU");
  options->device &= gpus;  // on CPUs, "GPU" in addition to "CPU" has no effect
}

// Reads a field that becomes part of a file name.
std::string NamePart(const Fields& f, const char* field) {
  constexpr size_t kMaxLength = 100;
  std::string part = f.String(field, "");
  const bool plain = std::ranges::all_of(part, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           std::string_view("._+-").find(c) != std::string_view::npos;
  });
  if (!plain || part.size() > kMaxLength || part.starts_with('.'))
    throw InvalidField(field,
                       "{} is part of a file name: want at most {} letters, digits and . _ + -, "
                       "with no . at the start",
                       field, kMaxLength);
  return part;
}

void HandleStart(Service& service, const http::Request& request, const http::Responder& responder) {
  RequireReady(service);
  RequireMemory(service);
  const bool gpus = service.plan.cuda;
  const profile::Options options =
      ParseProfile(request.body.empty() ? Json::object() : ParseBody(request), gpus);
  service.front.StartProfile(options, [&service, options, responder](const ProfileReport& report) {
    if (service.front.ranks_lost()) return responder.SendError(503, report.result.error);
    if (report.outcome == ProfileOutcome::kConflict)
      return responder.SendError(409, report.result.error);
    if (report.outcome != ProfileOutcome::kDone)
      return responder.SendError(400, "output_dir: " + report.result.error, "", "output_dir");
    Json activities = Json::array();
    if (options.host) activities.push_back("CPU");
    if (options.device) activities.push_back("GPU");
    responder.Send(200, http::kJson,
                   Dump({{"message", "Start profiling."},
                         {"output_dir", options.dir},
                         {"profile_id", options.name},
                         {"activities", std::move(activities)}}));
  });
}

void HandleStop(Service& service, const http::Responder& responder) {
  RequireReady(service);
  RequireMemory(service);
  service.front.StopProfile([&service, responder](const ProfileReport& report) {
    const profile::Result& result = report.result;
    if (service.front.ranks_lost()) return responder.SendError(503, result.error);
    if (report.outcome == ProfileOutcome::kConflict) return responder.SendError(409, result.error);
    if (report.outcome != ProfileOutcome::kDone) return responder.SendError(500, result.error);
    responder.Send(200, http::kJson,
                   Dump({{"message", "Stop profiling."},
                         {"files", result.files},
                         {"events", result.events},
                         {"dropped_events", result.dropped}}));
  });
}

}  // namespace

profile::Options ParseProfile(const Json& body, bool gpus) {
  RefuseUnknownFields(body, RequestKind::kStartProfile);
  const Fields f(body);
  profile::Options options{.start_step = f.Int("start_step", 0, 0, kMaxSteps),
                           .num_steps = f.Int("num_steps", 0, 1, kMaxSteps),
                           .by_stage = f.Bool("profile_by_stage", false),
                           .record_shapes = f.Bool("record_shapes", false)};
  ReadActivities(f, gpus, &options);
  const std::string dir = f.String("output_dir", profile::DefaultDirectory());
  if (dir.empty()) throw InvalidField("output_dir", "output_dir is empty");
  options.dir = std::filesystem::absolute(dir).lexically_normal().string();
  const std::string prefix = NamePart(f, "profile_prefix"), id = NamePart(f, "profile_id");
  options.name = prefix.empty() || id.empty() ? prefix + id : prefix + "-" + id;
  if (options.name.empty()) options.name = profile::NameOfNow();
  return options;
}

void RegisterProfile(http::Server& server, Service& service) {
  server.Route("POST", "/start_profile",
               Guarded(service,
                       [&service](const RequestPtr& request, const http::Responder& out) {
                         HandleStart(service, *request, out);
                       }),
               http::Access::kControl);
  server.Route(
      "POST", "/stop_profile",
      Guarded(service, [&service](const RequestPtr&,
                                  const http::Responder& out) { HandleStop(service, out); }),
      http::Access::kControl);
}

}  // namespace switchyard::native
