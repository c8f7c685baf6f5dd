// For tests of rank processes: the parent's side.
#pragma once

#include <dirent.h>
#include <gtest/gtest.h>
#include <sys/types.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <fstream>
#include <iterator>
#include <memory>
#include <mutex>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "comm/host/control_socket.h"
#include "comm/host/rank_processes.h"

namespace switchyard {

using std::chrono::milliseconds;

inline constexpr milliseconds kLong(60'000);
inline constexpr size_t kBytes = size_t{1} << 20;

inline std::string Contents(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

inline std::vector<pid_t> ChildrenOf(pid_t pid) {
  std::vector<pid_t> children;
  DIR* tasks = opendir(("/proc/" + std::to_string(pid) + "/task").c_str());
  if (tasks == nullptr) return children;
  while (const dirent* task = readdir(tasks)) {
    std::istringstream list(
        Contents("/proc/" + std::to_string(pid) + "/task/" + task->d_name + "/children"));
    children.insert(children.end(), std::istream_iterator<pid_t>(list), {});
  }
  closedir(tasks);
  return children;
}

// The process name that a rank takes in the test part "epochs".
inline std::string RankName(int rank) { return "rank " + std::to_string(rank); }

// The pid of the child process with the name RankName(rank).
inline pid_t PidOf(int rank) {
  for (const pid_t pid : ChildrenOf(getpid()))
    if (Contents("/proc/" + std::to_string(pid) + "/comm") == RankName(rank) + "\n") return pid;
  return -1;
}

// Ranks that all run one part of a test; records the reported exits.
class RankGroup {
 public:
  RankGroup(int world, std::string part, milliseconds join_timeout = kLong,
            std::optional<NodeNetwork> network = {}, milliseconds watchdog_timeout = {},
            milliseconds stall_timeout = {}, bool epochs = false, size_t kept_bytes = 0,
            milliseconds load_timeout = {}, int spares = 0, bool keeps_descriptors = false)
      : arena_(SharedArena::Create(world, kBytes, kept_bytes, /*messages=*/epochs)),
        endpoint_(ControlSocket::UniqueEndpoint()),
        ranks_(arena_,
               {.world = world,
                .spec = std::move(part),
                .control_endpoint = endpoint_,
                .network = std::move(network),
                .join_timeout = join_timeout,
                .watchdog_timeout = watchdog_timeout,
                .stall_timeout = stall_timeout,
                .load_timeout = load_timeout,
                .epochs = epochs,
                .keeps_descriptors = keeps_descriptors,
                .spares = spares},
               [this](const RankExit& exit) {
                 const std::lock_guard lock(mutex_);
                 exits_.push_back(exit);
                 changed_.notify_all();
               }) {}

  RankProcesses& ranks() { return ranks_; }
  const std::string& endpoint() const { return endpoint_; }
  const std::shared_ptr<SharedArena>& arena() const { return arena_; }

  bool HasExits(size_t count, milliseconds wait) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, wait, [&] { return exits_.size() >= count; });
  }
  // Waits until `count` exits have been reported, and returns the exits reported so far.
  std::vector<RankExit> Exits(size_t count) {
    EXPECT_TRUE(HasExits(count, kLong));
    const std::lock_guard lock(mutex_);
    return exits_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<RankExit> exits_;
  std::shared_ptr<SharedArena> arena_;
  std::string endpoint_;
  RankProcesses ranks_;
};

}  // namespace switchyard
