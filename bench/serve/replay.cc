#include "bench/serve/replay.h"

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

#include "core/error.h"

namespace switchyard::bench {
namespace {

using nlohmann::json;

bool IsTrivial(const json& body, const char* key) {
  const auto n = body.find(key);
  return n == body.end() || n->is_null() || *n == 1;
}

// Whether the tokens of the response can be counted by AnswerStream.
bool IsSingle(const std::string& path, const json& body) {
  if (path == "/v1/chat/completions") return IsTrivial(body, "n");
  if (path == "/v1/completions") {
    const json prompt = body.value("prompt", json());
    const bool ids = prompt.is_array() && !prompt.empty() && prompt[0].is_number();
    return IsTrivial(body, "n") && (prompt.is_string() || ids);
  }
  if (path != "/generate") return false;
  const json text = body.value("text", json()), ids = body.value("input_ids", json());
  const json sampling = body.value("sampling_params", json::object());
  // A session of the recorded server does not exist on this one.
  if (body.contains("session_params") && !body["session_params"].is_null()) return false;
  return sampling.is_object() && IsTrivial(sampling, "n") &&
         (text.is_string() || (ids.is_array() && !ids.empty() && ids[0].is_number()));
}

std::string Streamed(const std::string& path, json body) {
  body["stream"] = true;
  for (const char* name : {"rid", "request_id"}) body.erase(name);
  if (path != "/generate") body["stream_options"] = {{"include_usage", true}};
  return body.dump(-1, ' ', false, json::error_handler_t::replace);
}

}  // namespace

Replay ReadReplay(const std::string& file) {
  std::ifstream in(file);
  if (!in) throw Invalid("--replay {}: cannot be read", file);
  Replay replay;
  std::string line;
  for (int number = 1; std::getline(in, line); ++number) {
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    const json record = json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!record.is_object() || !record.contains("path") || !record["path"].is_string() ||
        !record.contains("request") || !record.contains("time") || !record["time"].is_number())
      throw Invalid("{}:{}: want an object with \"time\", \"path\" and \"request\"", file, number);
    const std::string path = record["path"];
    const json& body = record["request"];
    if (!body.is_object() || !IsSingle(path, body)) {
      ++replay.skipped;
      continue;
    }
    replay.plan.push_back({.at = record["time"], .path = path, .body = Streamed(path, body)});
  }
  if (replay.plan.empty())
    throw Invalid("--replay {}: the file has no request that can be repeated", file);
  std::ranges::stable_sort(replay.plan, {}, &PlannedRequest::at);
  const double first = replay.plan.front().at;
  for (PlannedRequest& request : replay.plan) request.at -= first;
  return replay;
}

}  // namespace switchyard::bench
