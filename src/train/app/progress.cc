#include "train/app/progress.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace switchyard::train {
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
  const std::lock_guard lock(mutex_);
  last_ = report;
  tokens_ += report.tokens;
  seconds_ += report.seconds;
  shown_ = false;
  if (report.step == begun_at_ + 1 || report.step == steps_ || Clock::now() >= next_) Show();
}

void Progress::Say(const std::string& text) {
  const std::lock_guard lock(mutex_);
  fmt::print(out_, "{}{}\n", line_open_ ? "\n" : "", text);
  std::fflush(out_);
  line_open_ = false;
}

void Progress::Finish() {
  const std::lock_guard lock(mutex_);
  if (!shown_) Show();
  if (line_open_) fmt::print(out_, "\n");
  std::fflush(out_);
  line_open_ = false;
}

}  // namespace switchyard::train
