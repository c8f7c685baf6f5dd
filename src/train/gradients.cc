#include "train/gradients.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace switchyard::train {
namespace {

// Small tensors are bucketed into one message, to amortize the latency of a collective.
constexpr size_t kBucket = size_t{1} << 18;  // maximum floats of a bucket

void SumOne(std::vector<Parameter<float>*>& bucket, std::vector<float>& joined, Collectives& all) {
  joined.clear();
  for (const Parameter<float>* p : bucket)
    joined.insert(joined.end(), p->gradient.begin(), p->gradient.end());
  all.AllReduceSum(joined.data(), joined.size());
  auto next = joined.begin();
  for (Parameter<float>* p : bucket) {
    std::copy_n(next, p->gradient.size(), p->gradient.begin());
    next += static_cast<std::ptrdiff_t>(p->gradient.size());
  }
  bucket.clear();
}

template <typename Which>
void Sum(std::span<Parameter<float>* const> parameters, Collectives* group, Which which) {
  if (group == nullptr || group->size() == 1) return;
  std::vector<Parameter<float>*> bucket;
  std::vector<float> joined;
  size_t held = 0;
  for (Parameter<float>* p : parameters) {
    if (!which(*p)) continue;
    bucket.push_back(p);
    held += p->gradient.size();
    if (held < kBucket) continue;
    SumOne(bucket, joined, *group);
    held = 0;
  }
  if (!bucket.empty()) SumOne(bucket, joined, *group);
}

}  // namespace

void SumGradients(std::span<Parameter<float>* const> parameters, const GradientGroups& groups) {
  using P = Parameter<float>;
  Sum(parameters, groups.stage, [](const P& p) { return !p.expert && !p.slice.partial(); });
  Sum(parameters, groups.copies, [](const P& p) { return !p.expert && p.slice.partial(); });
  Sum(parameters, groups.expert_copies, [](const P& p) { return p.expert; });
  Sum(parameters, groups.embedding, [](const P& p) { return p.on_two_stages; });
}

void SumGradients(std::span<Parameter<float>* const> parameters, Collectives& all,
                  Collectives* expert_copies) {
  SumGradients(parameters, {.stage = &all, .copies = &all, .expert_copies = expert_copies});
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
