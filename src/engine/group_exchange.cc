#include "engine/group_exchange.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <string>
#include <utility>

#include "core/error.h"

namespace switchyard {
namespace {

// One rank's contribution.
struct Line {
  StepCounts counts;
  int64_t has_work = 0;
  int64_t answer_bytes = 0;
};

}  // namespace

void GroupExchange::Post(std::vector<EngineMessage> answers) {
  if (comm_.mesh.attn_tp_rank() != 0 || !comm_.mesh.first_stage()) return;
  if (!comm_.mesh.attends()) return;  // has no requests; the other ranks answer the same queries
  for (EngineMessage& answer : answers) {
    const auto* step = std::get_if<StepOutputs>(&answer);
    if (step && step->outputs.empty()) continue;
    if (comm_.mesh.rank() == 0 && (step || comm_.mesh.dp() == 1)) {
      io_.send(answer);
    } else {
      posted_.push_back(std::move(answer));
    }
  }
}

void GroupExchange::Run(const StepCounts& counts, bool has_work) {
  const Mesh& mesh = comm_.mesh;
  if (mesh.dp() == 1) {
    counts_ = {counts};
    any_work_ = has_work;
    return;
  }
  const bool sends = mesh.rank() != 0 && !posted_.empty();
  const std::string mine = sends ? EncodeMessages(std::exchange(posted_, {})) : std::string();
  const Line line{counts, has_work, static_cast<int64_t>(mine.size())};
  std::vector<Line> lines(mesh.tp());
  comm_.tp->AllGather(&line, lines.data(), sizeof line);

  counts_.clear();
  any_work_ = false;
  for (int rank = 0; rank < mesh.tp(); rank += mesh.attn_tp()) {
    counts_.push_back(lines[rank].counts);
    any_work_ |= lines[rank].has_work != 0;
  }
  std::vector<size_t> bytes(mesh.tp());
  for (int rank = 0; rank < mesh.tp(); ++rank) bytes[rank] = lines[rank].answer_bytes;
  std::string all(std::accumulate(bytes.begin(), bytes.end(), size_t{0}), '\0');
  if (!all.empty()) comm_.tp->AllGatherV(mine.data(), all.data(), bytes);
  if (mesh.rank() != 0) return;

  std::vector<EngineMessage> answers = std::exchange(posted_, {});
  size_t begin = 0;
  for (const size_t size : bytes) {
    if (size == 0) continue;
    for (EngineMessage& answer : DecodeMessages(std::string_view(all).substr(begin, size)))
      answers.push_back(std::move(answer));
    begin += size;
  }
  Send(std::move(answers));
}

// Merges the answers of all groups. This works because every group has answered the same queries
// before the same step.
void GroupExchange::Send(std::vector<EngineMessage> answers) const {
  std::map<uint64_t, FlushResult> flushes;
  std::map<uint64_t, StatsReport> reports;
  std::map<uint64_t, ControlsSet> controls;
  // The receiver of CacheChanged expects no more outputs, so those of all groups are sent before.
  std::stable_partition(answers.begin(), answers.end(), [](const EngineMessage& m) {
    return !std::holds_alternative<CacheChanged>(m);
  });
  for (EngineMessage& answer : answers) {
    if (const auto* flush = std::get_if<FlushResult>(&answer)) {
      FlushResult& all = flushes.try_emplace(flush->ticket, *flush).first->second;
      all.done &= flush->done;
    } else if (auto* report = std::get_if<StatsReport>(&answer)) {
      StatsReport& all = reports[report->ticket];
      all.ticket = report->ticket;
      all.groups.insert(all.groups.end(), report->groups.begin(), report->groups.end());
    } else if (const auto* set = std::get_if<ControlsSet>(&answer)) {
      ControlsSet& all = controls[set->ticket];
      all.ticket = set->ticket;
      all.requests += set->requests;
    } else {
      io_.send(answer);
    }
  }
  for (const auto& [ticket, set] : controls) io_.send(set);
  for (const auto& [ticket, flush] : flushes) io_.send(flush);
  for (const auto& [ticket, report] : reports) io_.send(report);
}

}  // namespace switchyard
