// Flags of elastic ranks, and the limit of their restarts (--max-rank-deaths).
#pragma once

#include <chrono>
#include <cstddef>
#include <deque>
#include <string>
#include <string_view>
#include <utility>

#include "server/args/args.h"

namespace switchyard {

// Flags of elastic ranks: restarts of ranks that end.

class CommandLine;

// `group`: the heading in the help.
void AddElasticFlags(CommandLine& app, ServerArgs& args, const char* group);

// Limits how often ranks that end are restarted (--max-rank-deaths).

// The limit: at most `count` ends of ranks within `window`. Plain value.
struct DeathLimit {
  int count = 10;
  std::chrono::duration<double> window{60};

  // Parses COUNT/SECONDS; "10/60" means 10 ends within 60 seconds. Throws Error kInvalid that names
  // the flag.
  static DeathLimit Parse(const std::string& text);
  std::string Text() const;
};

// Counts the ends of ranks. Single-threaded.
class RecentDeaths {
 public:
  using Clock = std::chrono::steady_clock;

  explicit RecentDeaths(DeathLimit limit) : limit_(limit) {}

  // Adds the end of a rank. Returns false if there are now more ends within the window than the
  // limit. `no_output`: no output since the last end. Consecutive ends without output count
  // regardless of the window, because loading may take so long that the window never contains more
  // ends than the limit.
  bool Add(std::string why, Clock::time_point now, bool no_output = false) {
    while (!no_output && !recent_.empty() && now - recent_.front().first > limit_.window)
      recent_.pop_front();
    recent_.emplace_back(now, std::move(why));
    return recent_.size() <= static_cast<size_t>(limit_.count);
  }
  // The reasons of all ends within the window, for the error that ends the server.
  std::string Reasons() const;

 private:
  const DeathLimit limit_;
  std::deque<std::pair<Clock::time_point, std::string>> recent_;
};

}  // namespace switchyard
