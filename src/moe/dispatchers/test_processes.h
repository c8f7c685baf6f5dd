// Rank processes for tests.
#pragma once

#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "comm/device/symmetric_memory.h"
#include "core/check.h"

namespace switchyard {

// Forks of the test's process, one per rank, which share an arena. The test must have no other
// threads when it starts them.
class TestProcesses {
 public:
  // The function that runs in each rank process. It returns bytes for the parent process.
  using Body = std::function<std::string(int rank, std::shared_ptr<SharedArena>)>;

  // Size limit in bytes of the body's result, or of "error: " and the text of its exception.
  static constexpr size_t kMaxBytes = size_t{1} << 20;

  TestProcesses(int world, size_t bytes_per_rank, const Body& body)
      : arena_(SharedArena::Create(world, bytes_per_rank)) {
    for (int rank = 0; rank < world; ++rank) {
      void* words = mmap(nullptr, sizeof(Words) + kMaxBytes, PROT_READ | PROT_WRITE,
                         MAP_SHARED | MAP_ANONYMOUS, -1, 0);
      CHECK(words != MAP_FAILED);
      words_.push_back(static_cast<Words*>(words));
    }
    const pid_t parent = getpid();
    for (int rank = 0; rank < world; ++rank) {
      const pid_t pid = fork();
      CHECK_GE(pid, 0);
      if (pid == 0) RunChild(rank, parent, body);
      pids_.push_back(pid);
    }
  }
  ~TestProcesses() {
    for (size_t rank = 0; rank < pids_.size(); ++rank) Kill(static_cast<int>(rank));
    for (Words* words : words_) munmap(words, sizeof(Words) + kMaxBytes);
  }

  // The rank's result; "killed" if it does not end within `limit`.
  std::string Wait(int rank, std::chrono::seconds limit = std::chrono::seconds(60)) {
    const auto end = std::chrono::steady_clock::now() + limit;
    while (pids_[rank] > 0 && waitpid(pids_[rank], nullptr, WNOHANG) == 0) {
      if (std::chrono::steady_clock::now() > end) {
        Kill(rank);
        return "killed";
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    pids_[rank] = -1;
    const Words& words = *words_[rank];
    return words.said ? std::string(words.bytes(), words.size) : "killed";
  }

 private:
  struct Words {
    bool said;
    size_t size;
    const char* bytes() const { return reinterpret_cast<const char*>(this + 1); }
    char* bytes() { return reinterpret_cast<char*>(this + 1); }
  };

  [[noreturn]] void RunChild(int rank, pid_t parent, const Body& body) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(1);
    std::string said;
    try {
      said = body(rank, arena_);
    } catch (const std::exception& error) {
      said = std::string("error: ") + error.what();
    }
    Words& words = *words_[rank];
    words.size = std::min(said.size(), kMaxBytes);
    std::memcpy(words.bytes(), said.data(), words.size);
    words.said = true;
    _exit(0);
  }

  void Kill(int rank) {
    if (pids_[rank] <= 0) return;
    kill(pids_[rank], SIGKILL);
    waitpid(pids_[rank], nullptr, 0);
    pids_[rank] = -1;
  }

  std::shared_ptr<SharedArena> arena_;
  std::vector<Words*> words_;  // by rank, shared memory
  std::vector<pid_t> pids_;    // by rank; −1 after the process was waited for
};

}  // namespace switchyard
