#include "server/http/worker_pool.h"

#include <sys/resource.h>
#include <unistd.h>

#include <exception>
#include <utility>

#include "core/log.h"

namespace switchyard::http {
namespace {

// Added to the nice value of the process, for the quick and the bulk lane. One step of nice changes
// the CPU share of two competing threads by about 10 %. Bulk work gets about 4 % of a core that it
// shares with a rank, and all idle time.
constexpr int kQuickNice = 2, kBulkNice = 14;

}  // namespace

WorkerPool::WorkerPool(const Options& options) : max_queued_(options.max_queued) {
  for (int i = 0; i < options.quick_threads; ++i)
    threads_.emplace_back([this] { Run(quick_, kQuickNice); });
  for (int i = 0; i < options.bulk_threads; ++i)
    threads_.emplace_back([this] { Run(bulk_, kBulkNice); });
}

bool WorkerPool::Post(Lane lane, std::function<void()> job, bool must) {
  Queue& queue = lane == Lane::kQuick ? quick_ : bulk_;
  {
    std::lock_guard lock(mutex_);
    if (stopped_ || (!must && queue.jobs.size() >= max_queued_)) return false;
    queue.jobs.push_back(std::move(job));
  }
  queue.news.notify_one();
  return true;
}

void WorkerPool::Stop() {
  std::deque<std::function<void()>> dropped;
  {
    std::lock_guard lock(mutex_);
    if (stopped_) return;
    stopped_ = true;
    for (Queue* queue : {&quick_, &bulk_}) {
      for (auto& job : queue->jobs) dropped.push_back(std::move(job));
      queue->jobs.clear();
      queue->news.notify_all();
    }
  }
  dropped.clear();  // the Responders in dropped jobs send error responses
  for (std::thread& thread : threads_) thread.join();
}

void WorkerPool::Run(Queue& queue, int nice) {
  // On Linux, the nice value is per thread.
  const int now = getpriority(PRIO_PROCESS, static_cast<id_t>(gettid()));
  setpriority(PRIO_PROCESS, static_cast<id_t>(gettid()), std::min(now + nice, 19));
  std::unique_lock lock(mutex_);
  while (true) {
    queue.news.wait(lock, [&] { return stopped_ || !queue.jobs.empty(); });
    if (stopped_) return;
    {
      const std::function<void()> job = std::move(queue.jobs.front());
      queue.jobs.pop_front();
      lock.unlock();
      try {
        job();
      } catch (const std::exception& e) {
        LOG_ERROR("http: a worker's job failed: {}", e.what());
      }
    }
    lock.lock();
  }
}

}  // namespace switchyard::http
