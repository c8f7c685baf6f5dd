#include "bench/serve/load.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>

#include "core/error.h"

namespace switchyard::bench {
namespace {

int DrawLength(int length, double ratio, std::mt19937_64& random) {
  const int least = std::max(1, static_cast<int>(length * ratio));
  return std::uniform_int_distribution<int>(std::min(least, length), length)(random);
}

std::vector<PlannedRequest> DrawRandom(const ServeOptions& o, int64_t vocab,
                                       std::mt19937_64& random) {
  std::vector<PlannedRequest> plan(o.num_prompts);
  std::uniform_int_distribution<int32_t> id(0, static_cast<int32_t>(vocab - 1));
  for (PlannedRequest& request : plan) {
    request.input_ids.resize(DrawLength(o.input_len, o.range_ratio, random));
    for (int32_t& token : request.input_ids) token = id(random);
    request.output_tokens = DrawLength(o.output_len, o.range_ratio, random);
  }
  return plan;
}

// Takes lines in order, and restarts from the first line if there are too few lines.
std::vector<PlannedRequest> ReadLines(const ServeOptions& o) {
  std::ifstream file(o.dataset_path);
  if (!file) throw Invalid("--dataset-path {}: cannot be read", o.dataset_path);
  std::vector<PlannedRequest> lines;
  std::string line;
  for (int number = 1; std::getline(file, line) && std::ssize(lines) < o.num_prompts; ++number) {
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    const auto json = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    const char* key = json.contains("prompt") ? "prompt" : "text";
    if (!json.is_object() || !json.contains(key) || !json[key].is_string())
      throw Invalid("{}:{}: want an object with a string \"prompt\" or \"text\"", o.dataset_path,
                    number);
    const auto tokens = json.find("output_len");
    if (tokens != json.end() && (!tokens->is_number_integer() || *tokens < 1))
      throw Invalid("{}:{}: want \"output_len\" to be a positive integer", o.dataset_path, number);
    lines.push_back({.text = json[key].get<std::string>(),
                     .output_tokens = tokens == json.end() ? o.output_len : tokens->get<int>()});
  }
  if (lines.empty()) throw Invalid("--dataset-path {}: the file has no request", o.dataset_path);
  const size_t read = lines.size();
  for (size_t i = read; i < static_cast<size_t>(o.num_prompts); ++i)
    lines.push_back(lines[i % read]);
  return lines;
}

}  // namespace

std::vector<PlannedRequest> PlanLoad(const ServeOptions& options, int64_t vocab) {
  std::mt19937_64 random(options.seed);
  std::vector<PlannedRequest> plan =
      options.dataset == "random" ? DrawRandom(options, vocab, random) : ReadLines(options);
  if (std::isinf(options.request_rate)) return plan;
  std::exponential_distribution<double> pause(options.request_rate);
  double at = 0.0;
  for (PlannedRequest& request : plan) {
    request.at = at;
    at += pause(random);
  }
  return plan;
}

}  // namespace switchyard::bench
