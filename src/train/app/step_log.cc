#include "train/app/step_log.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <system_error>
#include <utility>

#include "core/error.h"

namespace switchyard::train {
namespace {

namespace fs = std::filesystem;

// The lines whose step is at most `last`.
std::string LinesUpTo(const fs::path& path, int64_t last) {
  std::ifstream in(path);
  std::string kept;
  for (std::string line; last > 0 && std::getline(in, line);) {
    const auto json = nlohmann::json::parse(line, nullptr, false);
    if (json.is_object() && json.value("step", last + 1) <= last) kept += line + "\n";
  }
  return kept;
}

}  // namespace

nlohmann::ordered_json ToJson(const StepReport& report) {
  nlohmann::ordered_json json = {
      {"step", report.step},
      {"loss", report.losses.total()},
      {"main", report.losses.main},
      {"mtp", report.losses.mtp},
      {"balance", report.losses.balance},
      {"learning_rate", report.rate},
      {"gradient_norm", report.gradient_norm},
      {"tokens", report.tokens},
      {"seconds", report.seconds},
      {"tokens_per_second", static_cast<double>(report.tokens) / std::max(report.seconds, 1e-9)}};
  for (const auto& [name, value] : report.figures) json[name] = value;
  if (!report.skipped.empty()) json["skipped"] = report.skipped;
  return json;
}

StepLog::StepLog(const fs::path& path, int64_t last_step,
                 std::function<void(const std::string&)> warn)
    : path_(path), warn_(std::move(warn)) {
  std::error_code failed;
  if (fs::exists(path, failed)) {
    // Writes a temporary file first, so that a crash does not lose the kept lines.
    const fs::path part = path.string() + ".part";
    std::ofstream kept(part, std::ios::binary | std::ios::trunc);
    kept << LinesUpTo(path, last_step);
    kept.close();
    if (kept) fs::rename(part, path, failed);
    if (!kept || failed) {
      fs::remove(part, failed);
      Warn("cannot be truncated to the start of this run; some steps will appear twice");
    }
  }
  out_.open(path, std::ios::binary | std::ios::app);
  if (!out_) Warn("cannot be written; the run continues without it");
}

void StepLog::Warn(const std::string& what) {
  if (!warned_ && warn_) warn_(path_.string() + ": " + what);
  warned_ = true;
}

void StepLog::Write(const StepReport& report) {
  out_ << ToJson(report).dump() << '\n' << std::flush;
  if (out_) return;
  out_.clear();  // try again at the next line: disk space may be available
  Warn("cannot be written; steps are missing from it");
}

std::vector<nlohmann::json> ReadStepLog(const fs::path& path) {
  std::ifstream in(path);
  if (!in) throw NotFound("{}: cannot be read", path.string());
  std::vector<nlohmann::json> lines;
  int number = 0;
  int broken = 0;  // number of the first invalid line; 0: none
  for (std::string line; std::getline(in, line);) {
    ++number;
    if (broken > 0) break;
    nlohmann::json json = nlohmann::json::parse(line, nullptr, false);
    if (json.is_object() && json.contains("step") && json["step"].is_number()) {
      lines.push_back(std::move(json));
    } else {
      broken = number;
    }
  }
  if (broken > 0 && broken < number) {
    throw Invalid("{}:{}: not a line of a training log: want an object with a step", path.string(),
                  broken);
  }
  if (lines.empty()) throw Invalid("{}: no step found", path.string());
  return lines;
}

namespace {

constexpr std::chrono::milliseconds kInPlace{200}, kElsewhere{10'000};

}  // namespace

std::string TimeText(double seconds) {
  const auto whole = static_cast<int64_t>(std::llround(std::clamp(seconds, 0.0, 1e9)));
  if (whole < 60) return fmt::format("{} s", whole);
  if (whole < 3600) return fmt::format("{}:{:02} min", whole / 60, whole % 60);
  return fmt::format("{}:{:02} h", whole / 3600, whole / 60 % 60);
}

Progress::Progress(std::FILE* out, bool in_place) : out_(out), in_place_(in_place) {}

void Progress::Begin(int64_t steps, int64_t taken) {
  const std::lock_guard lock(mutex_);
  steps_ = steps;
  begun_at_ = taken;
  begin_ = next_ = Clock::now();
}

std::string Progress::Line() const {
  const double passed = std::chrono::duration<double>(Clock::now() - begin_).count();
  const auto done = static_cast<double>(last_.step - begun_at_);
  std::string text = fmt::format("step {}/{}  loss {:.4f}  {:.0f} tokens/s", last_.step, steps_,
                                 last_.losses.total(), rate_);
  if (const auto at = last_.figures.find("balancedness"); at != last_.figures.end()) {
    text += fmt::format("  balancedness {:.3f}", at->second);
  }
  const double left = passed / std::max(done, 1.0) * static_cast<double>(steps_ - last_.step);
  return text + (last_.step < steps_ ? fmt::format("  {} left", TimeText(left))
                                     : fmt::format("  in {}", TimeText(passed)));
}

void Progress::Show() {
  if (seconds_ > 0) rate_ = static_cast<double>(tokens_) / seconds_;
  tokens_ = 0;
  seconds_ = 0;
  fmt::print(out_, "{}{}{}", in_place_ ? "\r\x1b[K" : "", Line(), in_place_ ? "" : "\n");
  std::fflush(out_);
  line_open_ = in_place_;
  shown_ = true;
  next_ = Clock::now() + (in_place_ ? kInPlace : kElsewhere);
}

void Progress::Step(const StepReport& report) {
  if (out_ == nullptr) return;
  const std::lock_guard lock(mutex_);
  last_ = report;
  tokens_ += report.tokens;
  seconds_ += report.seconds;
  shown_ = false;
  if (report.step == begun_at_ + 1 || report.step == steps_ || Clock::now() >= next_) Show();
}

void Progress::Say(const std::string& text) {
  if (out_ == nullptr) return;
  const std::lock_guard lock(mutex_);
  fmt::print(out_, "{}{}\n", line_open_ ? "\n" : "", text);
  std::fflush(out_);
  line_open_ = false;
}

void Progress::Finish() {
  if (out_ == nullptr) return;
  const std::lock_guard lock(mutex_);
  if (!shown_) Show();
  if (line_open_) fmt::print(out_, "\n");
  std::fflush(out_);
  line_open_ = false;
}

}  // namespace switchyard::train
