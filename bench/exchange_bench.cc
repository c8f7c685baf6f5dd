// What the exchange between ranks of one host costs: flags, all-reduce, all-gather, with ranks as
// threads over one shared arena. One line per case: median time, bytes that a rank has to read and
// write per second, and that as a fraction of what memcpy reaches on as many threads in this run.
#include <fmt/format.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "comm/device/communicator.h"

namespace switchyard {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kWarmUps = 20;
constexpr int kSamples = 200;

double Microseconds(Clock::duration time) {
  return std::chrono::duration<double, std::micro>(time).count();
}

double Median(std::vector<double> values) {
  std::ranges::nth_element(values, values.begin() + values.size() / 2);
  return values[values.size() / 2];
}

// Median time of a call, `calls` of which make a sample; all ranks run it at once.
double MedianOf(int calls, const std::function<void()>& body) {
  for (int i = 0; i < kWarmUps; ++i) body();
  std::vector<double> samples;
  for (int i = 0; i < kSamples; ++i) {
    const auto start = Clock::now();
    for (int call = 0; call < calls; ++call) body();
    samples.push_back(Microseconds(Clock::now() - start) / calls);
  }
  return Median(samples);
}

// One core for each rank, as long as there are enough: the scheduler's moves are not measured.
void BindToCore(int rank) {
  cpu_set_t core;
  CPU_ZERO(&core);
  CPU_SET(static_cast<size_t>(rank % sysconf(_SC_NPROCESSORS_ONLN)), &core);
  sched_setaffinity(0, sizeof core, &core);
}

// One rank's part of all cases; rank 0 prints.
class Bench {
 public:
  Bench(const std::shared_ptr<SharedArena>& arena, int rank)
      : comm_(RankComm::Create(arena, {.tp = arena->world()}, rank)),
        flag_(comm_->memory->Allocate(64)) {}

  void Run() {
    BindToCore(comm_->tp->rank());
    HalfRoundTrip();
    Report("barrier", "", MedianOf(20, [&] { comm_->tp->Barrier("bench"); }), 0, 0);
    for (const size_t count : {2048u, 8192u, 16384u, 32768u, 65536u, 262'144u, 1'048'576u}) {
      AllReduce(count);
    }
    for (const size_t bytes : {4096u, 65'536u, 1'048'576u}) AllGather(bytes);
  }

 private:
  // 8 bytes and a flag, to and fro between ranks 0 and 1; the others are out of the way.
  void HalfRoundTrip() {
    const size_t data = comm_->memory->Allocate(64);
    SymmetricMemory& memory = *comm_->memory;
    const int rank = memory.rank();
    if (rank < 2) {
      uint32_t round = 0;
      uint64_t value = 0;
      const auto ping = [&] {
        std::memcpy(memory.At(1 - rank, data), &value, sizeof value);
        memory.Raise(1 - rank, flag_, round);
      };
      const double time = MedianOf(100, [&] {
        ++round;
        if (rank == 0) ping();
        memory.Wait(flag_, round, 1 - rank, "ping");
        std::memcpy(&value, memory.Local(data), sizeof value);
        if (rank == 1) ping();
      });
      Report("half_round_trip", "8 B", time / 2, 0, 0);
    }
    comm_->tp->Barrier("bench");
  }

  // A rank has to read its own numbers and those of all others, and to write the sum.
  void AllReduce(size_t count) {
    std::vector<float> data(count, 0.0f);
    const double time = MedianOf(1, [&] { comm_->tp->AllReduceSum(data.data(), count); });
    const size_t bytes = count * sizeof(float);
    Report("all_reduce", fmt::format("{} f32", count), time, 2 * bytes, CopyRate(bytes));
  }

  void AllGather(size_t bytes) {
    std::vector<char> in(bytes), out(bytes * static_cast<size_t>(comm_->tp->size()));
    const double time = MedianOf(1, [&] { comm_->tp->AllGather(in.data(), out.data(), bytes); });
    Report("all_gather", fmt::format("{} B", bytes), time, 2 * out.size(), CopyRate(out.size()));
  }

  // GB/s that a rank reads and writes in a copy of this size, while the others do the same.
  double CopyRate(size_t bytes) {
    std::vector<char> from(bytes, 1), to(bytes);
    comm_->tp->Barrier("bench");
    const double time = MedianOf(1, [&] {
      std::memcpy(to.data(), from.data(), bytes);
      asm volatile("" ::"r"(to.data()) : "memory");
    });
    comm_->tp->Barrier("bench");
    return 2e-3 * static_cast<double>(bytes) / time;
  }

  void Report(const std::string& name, const std::string& shape, double time, size_t bytes,
              double copy_rate) {
    if (comm_->tp->rank() != 0) return;
    std::string line =
        fmt::format("{:<16} ranks {} {:>12} {:>10.2f} us", name, comm_->tp->size(), shape, time);
    if (bytes > 0) {
      const double rate = 1e-3 * static_cast<double>(bytes) / time;
      line += fmt::format(" {:>7.2f} GB/s {:>4.0f} % of memcpy", rate, 100 * rate / copy_rate);
    }
    fmt::print("{}\n", line);
  }

  std::unique_ptr<RankComm> comm_;
  size_t flag_;
};

}  // namespace
}  // namespace switchyard

int main() {
  for (const int world : {2, 4}) {
    const size_t bytes = switchyard::RankComm::BytesPerRank({.tp = world}) + 4096;
    switchyard::RunRankThreads(
        world, bytes, [](int rank, const auto& arena) { switchyard::Bench(arena, rank).Run(); });
  }
}
