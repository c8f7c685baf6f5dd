#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/format.h"
#include "server/api/guarded.h"
#include "server/api/known_fields.h"
#include "server/http/error_body.h"
#include "server/native/native.h"

namespace switchyard::native {
namespace {

using RequestPtr = std::shared_ptr<const http::Request>;

constexpr int64_t kMaxSize = 1'000'000;  // every valid size is far below this bound

std::optional<int> SizeOf(const Fields& f, const char* name) {
  if (!f.Has(name)) return std::nullopt;
  return static_cast<int>(f.Int(name, 1, 1, kMaxSize));
}

std::vector<int> RankList(const Fields& f, const char* name) {
  std::vector<int> ranks;
  const Json* list = f.Find(name);
  if (list == nullptr) return ranks;
  const auto is_rank = [](const Json& item) {
    return item.is_number_integer() && item >= 0 && item <= kMaxSize;
  };
  if (!list->is_array() || !std::ranges::all_of(*list, is_rank))
    throw InvalidField(name, "{} is not a list of ranks", name);
  for (const Json& item : *list) ranks.push_back(item.get<int>());
  return ranks;
}

ElasticRanks& RanksOf(const Service& service) {
  ElasticRanks* ranks = service.elastic;
  if (ranks == nullptr) throw Error(ErrorKind::kUnavailable, "this server cannot change its ranks");
  return *ranks;
}

std::string Describe(const ScaleResult& r) {
  if (!r.changed) return fmt::format("The ranks already have {}.", DescribeShape(r.after));
  if (r.before.tp == r.after.tp && r.before.ep == r.after.ep && r.before.dp == r.after.dp)
    return fmt::format("Restarted rank {}.", Joined(r.loaded, ", "));
  return fmt::format("Scaled from {} to {}. All ranks have loaded the new layout.",
                     DescribeShape(r.before), DescribeShape(r.after));
}

Json ResultJson(const ScaleResult& r, int64_t epoch) {
  return {{"message", Describe(r)},
          {"changed", r.changed},
          {"old_tp_size", r.before.tp},
          {"old_ep_size", r.before.ep},
          {"old_dp_size", r.before.dp},
          {"new_tp_size", r.after.tp},
          {"new_ep_size", r.after.ep},
          {"new_dp_size", r.after.dp},
          {"loaded_ranks", r.loaded},
          {"loaded_beside_the_old_ranks", r.beside},
          {"outputs_stay_equal", r.outputs_stay_equal},
          {"pause_seconds", r.pauses},
          {"seconds", r.seconds},
          {"epoch", epoch}};
}

void HandleScale(Service& service, const http::Request& request, const http::Responder& responder) {
  RequireServing(service);  // not RequireReady: a restart may be wanted because a rank hangs
  const ScaleRequest scale = ParseScale(ParseBody(request));
  const bool begun =
      RanksOf(service).Scale(scale, [&service, responder](const ScaleResult& result) {
        if (!result.error.empty())
          return responder.SendError(result.unavailable ? 503 : 500,
                                     RedactPaths(service, result.error));
        responder.Send(200, http::kJson, Dump(ResultJson(result, service.front.history().epoch)));
      });
  if (!begun) responder.SendError(409, "a change of the ranks is in progress");
}

void HandleState(const Service& service, const http::Responder& responder) {
  RequireServing(service);
  const ScaleState state = RanksOf(service).state();
  const bool pending = state.pending.tp != state.present.tp ||
                       state.pending.ep != state.present.ep || state.pending.dp != state.present.dp;
  responder.Send(
      200, http::kJson,
      Dump({{"is_scaling_elastic_ep", state.running},
            {"tp_size", state.present.tp},
            {"ep_size", state.present.ep},
            {"dp_size", state.present.dp},
            {"pending_ep_size", pending ? Json(state.pending.ep) : Json()},
            {"last_error",
             state.last_error.empty() ? Json() : Json(RedactPaths(service, state.last_error))}}));
}

}  // namespace

ScaleRequest ParseScale(const Json& body) {
  RefuseUnknownFields(body, RequestKind::kScaleElasticEp);
  const Fields f(body);
  ScaleRequest request{.tp = SizeOf(f, "new_tp_size"),
                       .ep = SizeOf(f, "new_ep_size"),
                       .dp = SizeOf(f, "new_dp_size"),
                       .leave = RankList(f, "leave"),
                       .come = static_cast<int>(f.Int("come", 0, 0, kMaxSize))};
  if (const auto vllm = SizeOf(f, "new_data_parallel_size")) {
    if (request.dp && *request.dp != *vllm)
      throw InvalidField("new_dp_size",
                         "new_dp_size is {} but new_data_parallel_size is {}: they are two names "
                         "of one parameter, send only one",
                         *request.dp, *vllm);
    request.dp = vllm;
  }
  // drain_timeout is checked, but has no effect, because open requests continue.
  f.Int("drain_timeout", 1, 1, kMaxSize);
  if (f.Has("load_beside")) request.beside = f.Bool("load_beside", false);
  const Json* restart = f.Find("restart");
  if (restart && restart->is_boolean()) {
    request.restart_all = restart->get<bool>();
  } else if (restart && restart->is_array()) {
    request.restart = RankList(f, "restart");
  } else if (restart) {  // a number may be meant as a rank index, so it is refused
    throw InvalidField("restart", "restart is {}, want true, false or a list of ranks",
                       restart->dump());
  }
  return request;
}

void RegisterElastic(http::Server& server, Service& service) {
  server.Route("POST", "/scale_elastic_ep",
               Guarded(service,
                       [&service](const RequestPtr& request, const http::Responder& out) {
                         HandleScale(service, *request, out);
                       }),
               http::Access::kControl);
  for (const char* method : {"GET", "POST"}) {
    server.Route(method, "/is_scaling_elastic_ep",
                 Guarded(service, [&service](const RequestPtr&, const http::Responder& out) {
                   HandleState(service, out);
                 }));
  }
}

}  // namespace switchyard::native
