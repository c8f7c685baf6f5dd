#include "server/args/elastic_args.h"

#include <charconv>

#include "core/command_line.h"
#include "core/error.h"

namespace switchyard {

void AddElasticFlags(CommandLine& app, ServerArgs& a, const char* group) {
  app.Switch(
      "--enable-elastic-ep", a.enable_elastic_ep, group,
      "Restarts the ranks if one ends, and continues all open requests with equal outputs. "
      "The default if all ranks are processes of one host. With --nnodes, set it on all "
      "nodes. Refused under mpirun and srun, with GPUs of several nodes, and with --pp-size");
  app.Switch("--disable-elastic-ep", a.disable_elastic_ep, group, "Ends the server if a rank ends");
  app.Flag("--elastic-ep-backend", a.engine.elastic_ep_backend, group,
           "none | mooncake. mooncake: while a lost rank loads, the other ranks serve without it "
           "and load its experts that they lack. With every --moe-a2a-backend but none; needs "
           "--enable-dp-attention, equal --tp-size, --ep-size and --dp-size, and "
           "--moe-dense-tp-size 1. On CPUs");
  app.Flag(
      "--spare-ranks", a.engine.spare_ranks, group,
      "Number of further rank processes that have loaded what all ranks need, and take the "
      "place of a rank that ends. On GPUs, they have started CUDA on the GPUs of all ranks. New "
      "spares are started in the background. At most 16. On one host");
  app.Flag("--max-rank-deaths", a.max_rank_deaths, group,
           "COUNT/SECONDS: ends the server if ranks end more than COUNT times within SECONDS");
  app.Flag(
         "--rank-stall-timeout", a.rank_stall_seconds, group,
         "Seconds for which a rank process may be stopped (SIGSTOP), or may compute a step without "
         "progress, before it is killed and started again. The limit of a step is at least twice "
         "its expected time. 0: only --watchdog-timeout limits the time")
      .Range(0.0, 1e6);
}

DeathLimit DeathLimit::Parse(const std::string& text) {
  DeathLimit limit;
  double seconds = 0;
  const char* const end = text.data() + text.size();
  const auto count = std::from_chars(text.data(), end, limit.count);
  bool good = count.ec == std::errc() && limit.count >= 1 && count.ptr != end && *count.ptr == '/';
  if (good) {
    const auto window = std::from_chars(count.ptr + 1, end, seconds);
    good = window.ec == std::errc() && window.ptr == end && seconds > 0 && seconds <= 1e6;
  }
  if (!good)
    throw Invalid(
        "--max-rank-deaths {}: want COUNT/SECONDS, such as 10/60 (COUNT at least 1, SECONDS above "
        "0 and at most 1e6)",
        text);
  limit.window = std::chrono::duration<double>(seconds);
  return limit;
}

std::string DeathLimit::Text() const { return fmt::format("{}/{:g}", count, window.count()); }

std::string RecentDeaths::Reasons() const {
  std::string reasons;
  for (const auto& [time, why] : recent_) reasons += (reasons.empty() ? "" : "; ") + why;
  const auto span = recent_.back().first - recent_.front().first;
  const std::string where = span > limit_.window
                                ? std::string("in a row without an output")
                                : fmt::format("within {:g} s", limit_.window.count());
  return fmt::format("the ranks ended {} times {} (--max-rank-deaths {}): {}", recent_.size(),
                     where, limit_.Text(), reasons);
}

}  // namespace switchyard
