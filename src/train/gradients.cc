#include "train/gradients.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <utility>
#include <vector>

#include "core/check.h"
#include "core/range.h"

namespace switchyard::train {
namespace {

using Bucket = std::vector<Parameter<float>*>;

// Small tensors are bucketed into one message, to amortize the latency of a collective.
constexpr size_t kBucket = size_t{1} << 18;  // maximum floats of a bucket

// A message with the shards of a bucket: those of member 0, then those of member 1, and so on.
// `visit` gets each shard (parameter, member, range of elements) and its position in the message.
// Returns the number of floats of each member.
template <typename Visit>
std::vector<size_t> ForEachShard(const Bucket& bucket, int members, const Visit& visit) {
  std::vector<size_t> counts(static_cast<size_t>(members));
  size_t at = 0;
  for (int member = 0; member < members; ++member) {
    for (Parameter<float>* p : bucket) {
      const Range shard = p->shards.Of(member, p->trained_count());
      visit(*p, member, shard, at);
      at += static_cast<size_t>(shard.size());
      counts[static_cast<size_t>(member)] += static_cast<size_t>(shard.size());
    }
  }
  return counts;
}

size_t Floats(const Bucket& bucket) {
  size_t count = 0;
  for (const Parameter<float>* p : bucket) count += p->gradient.size();
  return count;
}

// Only this rank's shards are summed, if there are any: the other elements have no sums of the
// stage yet.
void AllReduce(const Bucket& bucket, std::vector<float>& joined, Collectives& all) {
  joined.clear();
  for (const Parameter<float>* p : bucket) {
    const Range shard = p->MyShard();
    joined.insert(joined.end(), p->gradient.begin() + shard.begin, p->gradient.begin() + shard.end);
  }
  all.AllReduceSum(joined.data(), joined.size());
  auto next = joined.begin();
  for (Parameter<float>* p : bucket) {
    const Range shard = p->MyShard();
    std::copy_n(next, shard.size(), p->gradient.begin() + shard.begin);
    next += shard.size();
  }
}

void ReduceScatter(const Bucket& bucket, std::vector<float>& joined, Collectives& all) {
  joined.resize(Floats(bucket));
  const std::vector<size_t> counts = ForEachShard(
      bucket, all.size(), [&](const Parameter<float>& p, int, const Range& shard, size_t at) {
        std::copy_n(p.gradient.begin() + shard.begin, shard.size(), joined.data() + at);
      });
  float* mine = joined.data();
  for (int member = 0; member < all.rank(); ++member) mine += counts[static_cast<size_t>(member)];
  all.ReduceScatterV(joined.data(), mine, counts);
  for (Parameter<float>* p : bucket) {
    const Range shard = p->MyShard();
    std::copy_n(mine, shard.size(), p->gradient.begin() + shard.begin);
    mine += shard.size();
  }
}

void AllGather(const Bucket& bucket, std::vector<float>& joined, Collectives& all) {
  joined.resize(Floats(bucket));
  const int self = all.rank();
  std::vector<size_t> counts =
      ForEachShard(bucket, all.size(),
                   [&](const Parameter<float>& p, int member, const Range& shard, size_t at) {
                     if (member == self)
                       std::copy_n(p.value.begin() + shard.begin, shard.size(), joined.data() + at);
                   });
  const float* mine = joined.data();
  for (int member = 0; member < self; ++member) mine += counts[static_cast<size_t>(member)];
  for (size_t& count : counts) count *= sizeof(float);
  all.AllGatherV(mine, joined.data(), counts);
  ForEachShard(bucket, all.size(),
               [&](Parameter<float>& p, int member, const Range& shard, size_t at) {
                 if (member != self)
                   std::copy_n(joined.data() + at, shard.size(), p.value.begin() + shard.begin);
               });
}

// Calls exchange(bucket, joined, group) for buckets of the parameters that `which` selects.
template <typename Which, typename Exchange>
void ForEachBucket(std::span<Parameter<float>* const> parameters, Collectives* group,
                   const Which& which, const Exchange& exchange) {
  if (group == nullptr || group->size() == 1) return;
  Bucket bucket;
  std::vector<float> joined;
  size_t held = 0;
  const auto end_bucket = [&] {
    if (!bucket.empty()) exchange(bucket, joined, *group);
    bucket.clear();
    held = 0;
  };
  for (Parameter<float>* p : parameters) {
    if (!which(*p)) continue;
    bucket.push_back(p);
    held += p->gradient.size();
    if (held >= kBucket) end_bucket();
  }
  end_bucket();
}

// The kinds of parameters, each with its group, in the order of the exchanges.
template <typename Visit>
void ForEachGroup(const GradientGroups& groups, const Visit& visit) {
  using P = Parameter<float>;
  visit(groups.stage, [](const P& p) { return !p.expert && !p.slice.partial(); });
  visit(groups.copies, [](const P& p) { return !p.expert && p.slice.partial(); });
  visit(groups.expert_copies, [](const P& p) { return p.expert; });
}

}  // namespace

void SumGradients(std::span<Parameter<float>* const> parameters, const GradientGroups& groups) {
  using P = Parameter<float>;
  ForEachGroup(groups, [&](Collectives* group, const auto& which) {
    ForEachBucket(
        parameters, group, [&](const P& p) { return which(p) && !p.shards.partial(); }, AllReduce);
    ForEachBucket(
        parameters, group, [&](const P& p) { return which(p) && p.shards.partial(); },
        ReduceScatter);
  });
  ForEachBucket(
      parameters, groups.embedding, [](const P& p) { return p.on_two_stages; }, AllReduce);
}

void SumGradients(std::span<Parameter<float>* const> parameters, Collectives& all,
                  Collectives* expert_copies) {
  SumGradients(parameters, {.stage = &all, .copies = &all, .expert_copies = expert_copies});
}

void ShardMoments(std::span<Parameter<float>* const> parameters, const GradientGroups& groups) {
  std::map<const Collectives*, int64_t> given;  // blocks of each group so far
  for (Parameter<float>* p : parameters) {
    const Collectives* group = groups.Of(*p);
    if (group == nullptr || group->size() == 1 || !p->trained()) continue;
    CHECK(!p->shards.partial());
    int64_t& blocks = given[group];
    // The two stages sum their shards of an embedding on two stages, which must be the same. They
    // are, because it is the first parameter of both.
    CHECK(!p->on_two_stages || blocks == 0);
    p->shards = {.members = group->size(),
                 .member = group->rank(),
                 .first = static_cast<int>(blocks % group->size())};
    blocks += Shards::Blocks(p->trained_count());
  }
}

void GatherShards(std::span<Parameter<float>* const> parameters, const GradientGroups& groups) {
  using P = Parameter<float>;
  ForEachGroup(groups, [&](Collectives* group, const auto& which) {
    ForEachBucket(
        parameters, group, [&](const P& p) { return which(p) && p.shards.partial(); }, AllGather);
  });
}

GradientSums::GradientSums(std::function<void(Parameters)> sum, std::shared_ptr<SharedArena> arena)
    : sum_(std::move(sum)), arena_(std::move(arena)), thread_([this] { Run(); }) {}

GradientSums::~GradientSums() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
    if (!waiting_.empty()) arena_->AbortHere("a rank ended before its gradients were summed");
  }
  changed_.notify_all();
  thread_.join();
}

void GradientSums::Start(Parameters parameters) {
  const std::lock_guard lock(mutex_);
  waiting_.push_back(parameters);
  changed_.notify_all();
}

void GradientSums::Await() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return waiting_.empty(); });
  if (error_ != nullptr) std::rethrow_exception(error_);
}

void GradientSums::Run() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return ends_ || !waiting_.empty(); });
    if (ends_) return;
    const Parameters next = waiting_.front();
    if (error_ == nullptr) {
      lock.unlock();
      std::exception_ptr error;
      try {
        sum_(next);
      } catch (...) {
        error = std::current_exception();
      }
      lock.lock();
      error_ = error;
    }
    waiting_.pop_front();
    changed_.notify_all();
  }
}

}  // namespace switchyard::train
