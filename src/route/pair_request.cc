#include <optional>
#include <string_view>
#include <utility>

#include "route/proxy.h"

namespace switchyard::route {
namespace {

using Json = nlohmann::ordered_json;

// Requests may have n samples, whose seeds follow the first one.
constexpr uint64_t kMaxSeed = uint64_t{1} << 31;

void AddSeed(const char* name, uint64_t seed, Json& object) {
  if (!object.contains(name) || object[name].is_null()) object[name] = seed % kMaxSeed;
}

// nullopt: a request with this path does not generate text.
std::optional<StreamFormat> FormatOf(std::string_view path) {
  if (path == "/generate") return StreamFormat::kTotals;
  if (path == "/v1/completions" || path == "/v1/chat/completions") return StreamFormat::kChunks;
  if (path == "/v1/responses" || path == "/v1/messages") return StreamFormat::kTyped;
  return std::nullopt;
}

void Rename(Json& name, int attempt) {
  if (name.is_string()) name = name.get<std::string>() + "~" + std::to_string(attempt);
  if (name.is_array())
    for (Json& one : name) Rename(one, attempt);
}

}  // namespace

std::optional<PairRequest> PairRequest::Of(const http::Request& request, uint64_t seed) {
  const std::optional<StreamFormat> format = FormatOf(request.path);
  if (request.method != "POST" || !format) return std::nullopt;
  PairRequest pair;
  pair.format_ = *format;
  pair.body_ = Json::parse(request.body, nullptr, /*allow_exceptions=*/false);
  if (!pair.body_.is_object()) return std::nullopt;
  if (*format != StreamFormat::kTotals) {
    AddSeed("seed", seed, pair.body_);
    return pair;
  }
  Json& sampling = pair.body_["sampling_params"];
  if (sampling.is_null()) sampling = Json::object();
  if (sampling.is_object()) AddSeed("sampling_seed", seed, sampling);
  if (sampling.is_array()) {
    uint64_t next = seed;
    for (Json& own : sampling)
      if (own.is_object()) AddSeed("sampling_seed", next++, own);
  }
  return pair;
}

PairRequest::Bodies PairRequest::For(const std::string& host, std::optional<int> port,
                                     uint64_t room, int attempt) const {
  Json body = body_;
  body["bootstrap_host"] = host;
  if (port) body["bootstrap_port"] = *port;
  body["bootstrap_room"] = room;
  for (const char* name : {"rid", "request_id"})
    if (attempt > 0 && body.contains(name)) Rename(body[name], attempt);
  const auto dump = [](const Json& json) {
    return json.dump(-1, ' ', false, Json::error_handler_t::replace);
  };
  Bodies bodies{.decode = dump(body)};
  // The prefill worker's response is discarded.
  body["stream"] = false;
  body.erase("stream_options");
  bodies.prefill = dump(body);
  return bodies;
}

}  // namespace switchyard::route
