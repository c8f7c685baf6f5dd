#include "train/exchange/row_exchange.h"

#include <algorithm>

#include "core/check.h"
#include "core/error.h"

namespace switchyard::train {
namespace {

constexpr size_t kLine = 64;
size_t RoundUp(size_t n) { return (n + kLine - 1) / kLine * kLine; }

class LocalExchange : public RowExchange {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  void Open(std::span<const size_t> bytes, ExchangeHandle* h) override {
    h->own.resize(bytes[0]);
    h->to.assign(1, h->own.data());
  }
  void Post(ExchangeHandle* /*handle*/) override {}
  bool Arrived(ExchangeHandle* /*handle*/) override { return true; }
  void Wait(ExchangeHandle* h) override { h->from.assign(1, h->own); }
  void Release(ExchangeHandle* h) override { h->from.clear(); }
};

// Each slot has a message buffer (length, then bytes) and two flags in each rank's arena for each
// member s. Member s raises the first flag when its message has arrived, and the second when it has
// read the message of this rank. Exchange n uses slot n % places; flags hold n / places + 1.
class SharedExchange : public RowExchange {
 public:
  SharedExchange(SymmetricMemory& memory, std::vector<int> group, const RowExchangeOptions& options)
      : memory_(memory),
        group_(std::move(group)),
        options_(options),
        stride_(kLine + RoundUp(options.message_bytes)) {
    const auto self = std::find(group_.begin(), group_.end(), memory.rank());
    CHECK(self != group_.end());
    CHECK_GE(options.places, 1);
    rank_ = static_cast<int>(self - group_.begin());
    messages_ = memory.Allocate(stride_ * Cells());
    arrived_ = memory.Allocate(kLine * Cells());
    read_ = memory.Allocate(kLine * Cells());
    released_.assign(options.places, true);
  }

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(group_.size()); }

  void Open(std::span<const size_t> bytes, ExchangeHandle* h) override {
    CHECK_EQ(static_cast<int>(bytes.size()), size());
    const size_t longest = *std::max_element(bytes.begin(), bytes.end());
    if (longest > options_.message_bytes) {
      throw Resource("rank {}: message of {} bytes exceeds the exchange's limit of {} bytes",
                     memory_.rank(), longest, options_.message_bytes);
    }
    if (!released_[next_ % options_.places]) {
      throw Resource("rank {}: more than {} exchanges are in flight", memory_.rank(),
                     options_.places);
    }
    h->number = next_++;
    released_[Place(*h)] = false;
    h->bytes.assign(bytes.begin(), bytes.end());
    h->own.resize(bytes[rank_]);
    h->to.resize(size());
    for (int r = 0; r < size(); ++r) {
      if (r == rank_) {
        h->to[r] = h->own.data();
        continue;
      }
      // Wait until the previous message in this slot has been read.
      if (Round(*h) > 1) {
        memory_.Wait(read_ + Cell(*h, r) * kLine, Round(*h) - 1, group_[r],
                     "exchange: receive buffer");
      }
      h->to[r] = memory_.At(group_[r], MessageAt(*h, rank_)) + kLine;
    }
  }

  void Post(ExchangeHandle* h) override {
    for (int step = 1; step < size(); ++step) {
      Send(h, (rank_ + step) % size());
      if (options_.synchronous) Await(*h, (rank_ - step + size()) % size());
    }
  }

  bool Arrived(ExchangeHandle* h) override {
    for (int r = 0; r < size(); ++r)
      if (r != rank_ && !memory_.Reached(arrived_ + Cell(*h, r) * kLine, Round(*h))) return false;
    return true;
  }

  void Wait(ExchangeHandle* h) override {
    h->from.resize(size());
    h->from[rank_] = h->own;
    for (int step = 1; step < size(); ++step) {
      const int r = (rank_ - step + size()) % size();
      Await(*h, r);
      const std::byte* message = memory_.Local(MessageAt(*h, r));
      size_t bytes = 0;
      std::copy_n(message, sizeof bytes, reinterpret_cast<std::byte*>(&bytes));
      CHECK_LE(bytes, options_.message_bytes);
      h->from[r] = {message + kLine, bytes};
    }
  }

  void Release(ExchangeHandle* h) override {
    h->from.clear();
    released_[Place(*h)] = true;
    for (int r = 0; r < size(); ++r)
      if (r != rank_) memory_.Raise(group_[r], read_ + Cell(*h, rank_) * kLine, Round(*h));
  }

 private:
  size_t Cells() const { return group_.size() * static_cast<size_t>(options_.places); }
  int Place(const ExchangeHandle& h) const {
    return static_cast<int>(h.number % static_cast<uint64_t>(options_.places));
  }
  uint32_t Round(const ExchangeHandle& h) const {
    return static_cast<uint32_t>(h.number / static_cast<uint64_t>(options_.places)) + 1;
  }
  size_t Cell(const ExchangeHandle& h, int member) const {
    return static_cast<size_t>(Place(h)) * group_.size() + static_cast<size_t>(member);
  }
  size_t MessageAt(const ExchangeHandle& h, int source) const {
    return messages_ + Cell(h, source) * stride_;
  }

  void Send(ExchangeHandle* h, int r) {
    const size_t at = MessageAt(*h, rank_);
    std::byte* message = memory_.At(group_[r], at);
    std::copy_n(reinterpret_cast<const std::byte*>(&h->bytes[r]), sizeof(size_t), message);
    memory_.Wrote(group_[r], at, kLine + h->bytes[r]);
    memory_.Raise(group_[r], arrived_ + Cell(*h, rank_) * kLine, Round(*h));
  }
  void Await(const ExchangeHandle& h, int r) {
    memory_.Wait(arrived_ + Cell(h, r) * kLine, Round(h), group_[r], "exchange: rows");
  }

  SymmetricMemory& memory_;
  const std::vector<int> group_;
  const RowExchangeOptions options_;
  const size_t stride_;
  int rank_ = 0;
  size_t messages_ = 0, arrived_ = 0, read_ = 0;
  uint64_t next_ = 0;
  std::vector<bool> released_;  // [places]
};

}  // namespace

std::unique_ptr<RowExchange> MakeLocalExchange() { return std::make_unique<LocalExchange>(); }

std::unique_ptr<RowExchange> MakeRowExchange(SymmetricMemory& memory, std::vector<int> group,
                                             const RowExchangeOptions& options) {
  if (group.size() == 1) return MakeLocalExchange();
  return std::make_unique<SharedExchange>(memory, std::move(group), options);
}

size_t RowExchangeBytes(int group_size, const RowExchangeOptions& options) {
  if (group_size == 1) return 0;
  const size_t cells = static_cast<size_t>(group_size) * static_cast<size_t>(options.places);
  return cells * (kLine + RoundUp(options.message_bytes) + 2 * kLine) + 3 * kLine;
}

}  // namespace switchyard::train
