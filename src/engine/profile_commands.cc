#include "engine/profile_commands.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "core/error.h"
#include "core/format.h"

namespace switchyard {
namespace {

// The reports of all ranks, by rank. Collective.
std::vector<ProfileReport> GatherReports(const ProfileReport& mine, Communicator& group) {
  const std::string bytes = EncodeMessage(mine);
  const size_t size = bytes.size();
  std::vector<size_t> sizes(group.size());
  group.AllGather(&size, sizes.data(), sizeof size);
  std::string all(std::accumulate(sizes.begin(), sizes.end(), size_t{0}), '\0');
  group.AllGatherV(bytes.data(), all.data(), sizes);
  std::vector<ProfileReport> reports;
  size_t begin = 0;
  for (const size_t part : sizes) {
    const EngineMessage message = DecodeMessage(std::string_view(all).substr(begin, part));
    reports.push_back(std::get<ProfileReport>(message));
    begin += part;
  }
  return reports;
}

// Merges the reports of all ranks. The error is that of the first rank with an error.
ProfileReport Merge(const std::vector<ProfileReport>& reports) {
  ProfileReport all{.ticket = reports.front().ticket};
  for (size_t rank = 0; rank < reports.size(); ++rank) {
    const profile::Result& part = reports[rank].result;
    all.outcome = std::max(all.outcome, reports[rank].outcome);
    all.result.files.insert(all.result.files.end(), part.files.begin(), part.files.end());
    all.result.events += part.events;
    all.result.dropped += part.dropped;
    if (all.result.error.empty() && !part.error.empty())
      all.result.error = fmt::format("rank {}: {}", rank, part.error);
  }
  return all;
}

ProfileReport Refusal(uint64_t ticket, std::string why) {
  return {
      .ticket = ticket, .outcome = ProfileOutcome::kConflict, .result = {.error = std::move(why)}};
}

ProfileReport Start(const StartProfile& start, profile::Profiler& profiler, RankComm& comm) {
  if (profiler.active())
    return Refusal(start.ticket, "a profile is active already: end it with /stop_profile");
  ProfileReport mine{.ticket = start.ticket};
  try {
    profiler.Start(start.options);
  } catch (const std::exception& error) {
    mine.outcome = ProfileOutcome::kBadDirectory;
    mine.result.error = error.what();
  }
  ProfileReport all = Merge(GatherReports(mine, comm.all()));
  if (all.outcome != ProfileOutcome::kDone) profiler.Cancel();
  return all;
}

ProfileReport Stop(uint64_t ticket, profile::Profiler& profiler, RankComm& comm) {
  // Profiles start and end on all ranks together, so either all ranks have a result or none has.
  std::optional<profile::Result> result = profiler.Stop();
  if (!result) return Refusal(ticket, "no profile is active: start one with /start_profile");
  ProfileReport mine{.ticket = ticket, .result = *std::move(result)};
  if (!mine.result.error.empty()) mine.outcome = ProfileOutcome::kNotWritten;
  return Merge(GatherReports(mine, comm.all()));
}

}  // namespace

std::vector<EngineMessage> ApplyToProfiler(const std::vector<ControlMessage>& messages,
                                           profile::Profiler* profiler, RankComm& comm) {
  std::vector<EngineMessage> answers;
  const auto answer = [&](ProfileReport report) {
    if (comm.mesh.rank() == 0) answers.emplace_back(std::move(report));
  };
  for (const ControlMessage& message : messages) {
    const auto* start = std::get_if<StartProfile>(&message);
    const auto* stop = std::get_if<StopProfile>(&message);
    if (!start && !stop) continue;
    const uint64_t ticket = start ? start->ticket : stop->ticket;
    if (!profiler) {
      answer(Refusal(ticket, "these ranks have no profiler"));
    } else {
      answer(start ? Start(*start, *profiler, comm) : Stop(ticket, *profiler, comm));
    }
  }
  return answers;
}

}  // namespace switchyard
