// Arrivals of a simulation.
#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <random>
#include <sstream>

#include "core/error.h"
#include "core/json.h"
#include "plan/simulate.h"

namespace switchyard::plan {
namespace {

constexpr int64_t kMaxTokens = int64_t{1} << 24;

std::vector<std::string> Cells(const std::string& line) {
  std::vector<std::string> cells;
  std::istringstream in(line);
  for (std::string cell; std::getline(in, cell, ',');) {
    while (!cell.empty() && (cell.back() == '\r' || cell.back() == ' ')) cell.pop_back();
    cells.push_back(cell);
  }
  return cells;
}

// Converts "2023-11-16 18:15:46.6805900", "2024-05-10 00:00:00.009930+00:00" (the zone is ignored:
// it is the same in all lines), or a number of seconds, to seconds.
bool Seconds(const std::string& text, double* to) {
  int year = 0, month = 0, day = 0, hour = 0, minute = 0;
  double second = 0;
  if (std::sscanf(text.c_str(), "%d-%d-%d%*[ T]%d:%d:%lf", &year, &month, &day, &hour, &minute,
                  &second) == 6) {
    const std::chrono::year_month_day date{std::chrono::year(year),
                                           std::chrono::month(static_cast<unsigned>(month)),
                                           std::chrono::day(static_cast<unsigned>(day))};
    // The types of the standard library keep the lowest bits only.
    const bool small =
        year >= 1 && year <= 9999 && month >= 1 && month <= 12 && day >= 1 && day <= 31;
    if (!small || !date.ok()) return false;
    const auto days = std::chrono::sys_days(date).time_since_epoch().count();
    *to = ((static_cast<double>(days) * 24 + hour) * 60 + minute) * 60 + second;
    return std::isfinite(*to);
  }
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *to);
  return error == std::errc() && end == text.data() + text.size() && std::isfinite(*to);
}

bool Count(const std::string& text, int64_t* to) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *to);
  return error == std::errc() && end == text.data() + text.size() && *to >= 1 && *to <= kMaxTokens;
}

bool ReadCsv(const std::string& line, Arrival* a) {
  const std::vector<std::string> cells = Cells(line);
  return cells.size() >= 3 && Seconds(cells[0], &a->seconds) && Count(cells[1], &a->input) &&
         Count(cells[2], &a->output);
}

bool ReadJson(const std::string& line, Arrival* a) {
  const auto object = nlohmann::json::parse(line, nullptr, false);
  if (!object.is_object()) return false;
  const auto number = [&](const char* key, double* to) {
    const auto found = object.find(key);
    if (found == object.end() || !found->is_number()) return false;
    *to = found->get<double>();
    return *to >= 0;
  };
  double ms = 0, input = 0, output = 0;
  if (!number("timestamp", &ms) || !number("input_length", &input) ||
      !number("output_length", &output))
    return false;
  if (input < 1 || output < 1 || input > kMaxTokens || output > kMaxTokens) return false;
  *a = {ms * 1e-3, static_cast<int64_t>(input), static_cast<int64_t>(output), {}};
  const auto blocks = object.find("hash_ids");
  if (blocks == object.end()) return true;
  if (!blocks->is_array()) return false;
  for (const auto& block : *blocks) {
    if (!block.is_number_unsigned() || block.get<uint64_t>() >> 32 != 0) return false;
    a->blocks.push_back(block.get<uint32_t>());
  }
  return true;
}

}  // namespace

std::vector<Arrival> PoissonArrivals(const Load& load, double rate, double seconds, uint64_t seed) {
  constexpr double kMostArrivals = 1e9;
  if (!(rate * seconds <= kMostArrivals))
    throw Invalid("--rate {} and --seconds {}: about {:.2g} requests; want at most {:.0e}", rate,
                  seconds, rate * seconds, kMostArrivals);
  std::vector<Arrival> arrivals;
  std::mt19937_64 random(seed);
  for (double at = 0;;) {
    // Computed here, because the distributions of the standard library differ between
    // implementations.
    const double uniform = (static_cast<double>(random() >> 11) + 0.5) / 9007199254740992.0;
    at -= std::log(uniform) / rate;
    if (at > seconds) return arrivals;
    arrivals.push_back({at, load.input, load.output, {}});
  }
}

std::vector<Arrival> ReadArrivals(const std::filesystem::path& file) {
  std::ifstream in(file);
  if (!in) throw NotFound("--trace {}: cannot be read", file.string());
  std::vector<Arrival> arrivals;
  int number = 0;
  for (std::string line; std::getline(in, line);) {
    ++number;
    if (line.empty()) continue;
    if (number == 1 && line.find("TIMESTAMP") != std::string::npos) {
      if (Cells(line) != std::vector<std::string>{"TIMESTAMP", "ContextTokens", "GeneratedTokens"})
        throw Invalid("--trace {}: want the columns TIMESTAMP,ContextTokens,GeneratedTokens",
                      file.string());
      continue;
    }
    Arrival a;
    if (!(line[0] == '{' ? ReadJson(line, &a) : ReadCsv(line, &a)))
      throw Invalid(
          "--trace {}, line {}: want JSON with timestamp, input_length and output_length of at "
          "least 1, and optionally hash_ids of 32 bits; or CSV with TIMESTAMP, ContextTokens and "
          "GeneratedTokens of at least 1",
          file.string(), number);
    arrivals.push_back(a);
  }
  if (arrivals.empty()) throw Invalid("--trace {}: has no requests", file.string());
  std::ranges::stable_sort(arrivals, {}, &Arrival::seconds);
  const double first = arrivals.front().seconds;
  for (Arrival& a : arrivals) a.seconds -= first;
  return arrivals;
}

}  // namespace switchyard::plan
