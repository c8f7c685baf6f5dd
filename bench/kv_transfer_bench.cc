// Rate of the transfer of KV caches between two servers of this host, against a memory copy.
//
//     build/release/bench/kv_transfer_bench [MODEL_DIRECTORY] [POSITIONS]
//
// Both sides run in this process, without ranks. A row is read from the pages of one rank and
// written to the pages of one rank; `2 ranks` has the heads on two. With shm each row is copied
// once. With tcp it is copied to a buffer, through two sockets, and to its page.
#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <string>
#include <vector>

#include "server/disaggregation/test_transfer.h"

namespace switchyard {
namespace {

using Clock = std::chrono::steady_clock;

double Seconds(Clock::time_point since) {
  return std::chrono::duration<double>(Clock::now() - since).count();
}

double Median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

// Bytes per second of memcpy between two buffers, each as large as the rows.
double CopyRate(size_t bytes) {
  std::vector<std::byte> from(bytes, std::byte{1}), to(bytes, std::byte{2});
  std::vector<double> times;
  for (int i = 0; i < 9; ++i) {
    const auto start = Clock::now();
    std::memcpy(to.data(), from.data(), bytes);
    times.push_back(Seconds(start));
  }
  return static_cast<double>(bytes) / Median(times);
}

void Run(const std::filesystem::path& model, int64_t positions, const char* backend, int ranks) {
  const SideOptions side{.model = model, .mesh = {ranks, 1}, .tokens = positions + 64};
  TransferRig rig({.prefill = side, .decode = side, .backend = backend});
  const auto from = rig.prefill.Pages(positions, 1), to = rig.decode.Pages(positions, 2);
  rig.prefill.FillAll(0, from, positions, 3);
  rig.decode.FillAll(0, to, positions, 4);  // touches the memory
  double bytes = 0;
  for (const KvLayerFormat& layer : rig.prefill.caches().format().layers)
    bytes += static_cast<double>(layer.Bytes(positions));
  std::vector<double> times;
  for (uint64_t round = 0; round < 9; ++round) {
    RequestOutput first, pages;
    first.new_tokens = {1};
    first.kv = KvPages{.end = positions, .pages = from, .computed = positions, .pinned = true};
    pages.kv = KvPages{.end = positions, .pages = to};
    rig.sender.Open(1, rig.Room(round), positions);
    rig.receiver.Open(2, rig.Room(round), positions);
    const auto start = Clock::now();
    rig.receiver.OnOutput(2, 0, pages);
    rig.sender.OnOutput(1, 0, first);
    const auto started = rig.started.Take(2);
    if (!started || !started->error.empty()) throw Resource("the transfer failed");
    if (round > 0) times.push_back(Seconds(start));  // the first one opens the connection
    rig.released.Take(1);
    rig.receiver.Close(2, "");
    rig.sender.Close(1, "");
  }
  const double rate = bytes / Median(times), copy = CopyRate(static_cast<size_t>(bytes));
  fmt::print(
      "{:4} {} rank{}  {:8.1f} MiB  {:8.2f} ms  {:6.2f} GB/s  memcpy {:6.2f} GB/s  {:5.1f} %\n",
      backend, ranks, ranks > 1 ? "s" : " ", bytes / (1 << 20), Median(times) * 1e3, rate / 1e9,
      copy / 1e9, 100 * rate / copy);
}

}  // namespace
}  // namespace switchyard

int main(int argc, char** argv) {
  const std::filesystem::path model = argc > 1 ? argv[1] : "models/yardling";
  const int64_t positions = argc > 2 ? std::stoll(argv[2]) : 8192;
  for (const char* backend : {"shm", "tcp"})
    for (const int ranks : {1, 2}) switchyard::Run(model, positions, backend, ranks);
}
