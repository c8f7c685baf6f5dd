// Ranks of an exchange in one process, driven by one thread, for tests. Each rank has its own GPU.
// If there are fewer GPUs than ranks, several ranks share a GPU and their kernels run concurrently.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "core/cuda/runtime.h"
#include "moe/cuda/dispatchers/test_exchange_expectations.h"
#include "moe/cuda/dispatchers/test_exchange_traffic.h"

namespace switchyard::cuda {

// Enables peer access from the current GPU to all others.
inline void EnablePeerAccess() {
  int own = 0;
  Check(cudaGetDevice(&own), "current GPU");
  for (int other = 0; other < DeviceCount(); ++other) {
    if (other != own && cudaDeviceEnablePeerAccess(other, 0) != cudaSuccess) cudaGetLastError();
  }
}

class TestExchangeRanks {
 public:
  static constexpr uint64_t kTimeoutNanoseconds = 20'000'000'000;  // ns
  static constexpr int kMaxBounds = 16;  // maximum number of bounds in BeginCombineInParts

  TestExchangeRanks(const ExchangeConfig& config, const ExpertMap& experts,
                    uint64_t nanoseconds = kTimeoutNanoseconds)
      : config_(config) {
    for (int r = 0; r < config.ranks; ++r) {
      auto& rank = ranks_.emplace_back(std::make_unique<Rank>(r % DeviceCount(), config));
      EnablePeerAccess();
      peers_.memory.at[r] = rank->memory.data();
    }
    for (int r = 0; r < config.ranks; ++r) {
      config_.rank = r;
      Use(r);
      peers_.limit = {ranks_[r]->report.as<WaitTimeoutReport>(), nanoseconds, r};
      ranks_[r]->exchange = std::make_unique<Exchange>(config_, experts, peers_);
    }
  }

  Exchange& exchange(int rank) { return *ranks_[rank]->exchange; }
  cudaStream_t stream(int rank) const { return ranks_[rank]->stream.get(); }
  const WaitTimeoutReport& report(int rank) const {
    return *ranks_[rank]->report.as<WaitTimeoutReport>();
  }
  void Use(int rank) const { UseDevice(ranks_[rank]->device); }

  void SetActive(const std::vector<bool>& active) {
    for (size_t r = 0; r < ranks_.size(); ++r) {
      Use(static_cast<int>(r));
      const std::vector<uint8_t> bytes(active.begin(), active.end());
      Copy(ranks_[r]->active, bytes);
      ranks_[r]->exchange->SetActive(ranks_[r]->active.as<uint8_t>());
    }
  }

  void Upload(int slot, const TestTraffic& traffic) {
    for (size_t r = 0; r < ranks_.size(); ++r) {
      Use(static_cast<int>(r));
      const TestTraffic::Rank& in = traffic.ranks[r];
      Buffers& to = ranks_[r]->slots[slot];
      if (traffic.spec.dtype == DType::kBF16) {
        std::vector<BF16> x;
        for (const float value : in.x) x.push_back(ToBF16(value));
        Copy(to.x, x);
      } else {
        Copy(to.x, in.x);
      }
      Copy(to.ids, in.ids);
      Copy(to.weights, in.weights);
      Copy(to.outputs, in.outputs);
      Copy(to.position, in.position);
      Check(cudaMemset(to.y.data(), 0xff, to.y.bytes()), "clearing");
    }
    Check(cudaDeviceSynchronize(), "upload");
  }

  // The following functions each enqueue one call of rank r.
  void BeginDispatch(int r, int slot, const TestTraffic& traffic) {
    Use(r);
    const Buffers& in = ranks_[r]->slots[slot];
    exchange(r).BeginDispatch(slot,
                              {.x = in.x.data(),
                               .dtype = traffic.spec.dtype,
                               .ids = in.ids.as<int32_t>(),
                               .weights = in.weights.as<float>(),
                               .tokens = traffic.ranks[r].tokens(config_.top_k)},
                              stream(r));
  }
  void EndDispatch(int r, int slot) {
    Use(r);
    ranks_[r]->slots[slot].dispatched = exchange(r).EndDispatch(slot, stream(r));
  }
  void BeginCombine(int r, int slot) {
    Use(r);
    const Buffers& in = ranks_[r]->slots[slot];
    exchange(r).BeginCombine(slot, in.outputs.data(), in.position.as<int32_t>(), stream(r));
  }
  // Copies the bounds that BeginCombineInParts reads on the device. Must not be captured.
  void SetBounds(int r, const std::vector<int32_t>& bounds) {
    Use(r);
    Copy(ranks_[r]->bounds, bounds);
  }
  // Sends the outputs in parts that are separated at these positions. Every second part reads its
  // bounds from device memory.
  void BeginCombineInParts(int r, int slot, const std::vector<int32_t>& bounds) {
    Use(r);
    const Buffers& in = ranks_[r]->slots[slot];
    const int32_t* on_device = ranks_[r]->bounds.as<int32_t>();
    for (size_t i = 0; i + 1 < bounds.size(); ++i) {
      OutputRange range = {.begin = bounds[i], .end = bounds[i + 1]};
      range.last = i + 2 == bounds.size();
      if (i % 2 == 1) {
        range = {.begin_on_device = on_device + i,
                 .end_on_device = on_device + i + 1,
                 .last = range.last};
      }
      exchange(r).BeginCombinePart(slot, in.outputs.data(), in.position.as<int32_t>(), range,
                                   stream(r));
    }
  }
  void EndCombine(int r, int slot) {
    Use(r);
    exchange(r).EndCombine(slot, ranks_[r]->slots[slot].y.as<float>(), stream(r));
  }

  // Runs a whole batch: makes each call on all active ranks before the next call.
  void Run(int slot, const TestTraffic& traffic) {
    const auto all = [&](const auto& call) {
      for (int r = 0; r < config_.ranks; ++r)
        if (traffic.Active(r)) call(r);
    };
    all([&](int r) { BeginDispatch(r, slot, traffic); });
    all([&](int r) { EndDispatch(r, slot); });
    all([&](int r) { BeginCombine(r, slot); });
    all([&](int r) { EndCombine(r, slot); });
  }

  void Synchronize() const {
    for (size_t r = 0; r < ranks_.size(); ++r) {
      Use(static_cast<int>(r));
      ranks_[r]->stream.Synchronize();
      EXPECT_EQ(report(static_cast<int>(r)).failed, 0u) << "rank " << r << " timed out";
    }
  }

  // Compares all results bit for bit. Call it after Synchronize.
  void CheckAll(int slot, const TestTraffic& traffic) const {
    for (int r = 0; r < config_.ranks; ++r) {
      if (!traffic.Active(r)) continue;
      SCOPED_TRACE("rank " + std::to_string(r) + " of " + std::to_string(config_.ranks));
      Use(r);
      ExpectDispatched(config_, r, ranks_[r]->slots[slot].dispatched, traffic);
      ExpectSums(r, Sums(r, slot, traffic), traffic);
    }
  }

  // A dispatched row, without padding.
  std::vector<std::byte> Row(int r, int slot, int64_t row) const {
    const DispatchedRows& got = ranks_[r]->slots[slot].dispatched;
    Use(r);
    return ReadGpu<std::byte>(got.rows + row * got.row_stride,
                              config_.dispatched.Bytes(config_.hidden));
  }

  std::vector<float> Sums(int r, int slot, const TestTraffic& traffic) const {
    return ReadGpu<float>(ranks_[r]->slots[slot].y.data(),
                          traffic.ranks[r].tokens(config_.top_k) * config_.hidden);
  }

 private:
  struct Buffers {
    DeviceMemory x, ids, weights, outputs, position, y;
    DispatchedRows dispatched;
  };
  struct Rank {
    Rank(int device_in, const ExchangeConfig& c)
        : device((UseDevice(device_in), device_in)),
          memory(Exchange::PeerBytes(c)),
          active(c.ranks),
          bounds(kMaxBounds * sizeof(int32_t)),
          report(sizeof(WaitTimeoutReport)),
          slots(c.in_flight) {
      *report.as<WaitTimeoutReport>() = {};
      const size_t tokens = c.max_tokens, rows = tokens * c.ranks, elements = tokens * c.hidden;
      for (Buffers& slot : slots) {
        slot.x = DeviceMemory(elements * 4);
        slot.ids = DeviceMemory(tokens * c.top_k * 4);
        slot.weights = DeviceMemory(tokens * c.top_k * 4);
        slot.outputs = DeviceMemory(rows * c.top_k * c.hidden * SizeOf(c.combined));
        slot.position = DeviceMemory(rows * c.top_k * 4);
        slot.y = DeviceMemory(elements * 4);
      }
    }

    int device;
    Stream stream;
    DeviceMemory memory, active, bounds;
    PinnedMemory report;
    std::unique_ptr<Exchange> exchange;
    std::vector<Buffers> slots;
  };

  template <typename T>
  static void Copy(const DeviceMemory& to, const std::vector<T>& from) {
    ASSERT_LE(from.size() * sizeof(T), to.bytes());
    CopyToDevice(to.data(), from.data(), from.size() * sizeof(T), "upload");
  }
  ExchangeConfig config_;
  ExchangePeers peers_;
  std::vector<std::unique_ptr<Rank>> ranks_;
};

}  // namespace switchyard::cuda
