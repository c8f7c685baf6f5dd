#include "server/ranks/rank_host.h"

#include <pthread.h>

#include <iterator>
#include <utility>

#include "comm/host/control_socket.h"
#include "core/error.h"

namespace switchyard {

RankLoopIo LeaderIo(const std::string& endpoint) {
  const auto socket = std::make_shared<ControlSocket>(ControlSocket::Connect(endpoint));
  RankLoopIo io;
  // Returns all messages that have arrived, since the next call is one engine step later.
  io.receive = [socket](std::chrono::milliseconds timeout) {
    std::vector<ControlMessage> all;
    for (auto bytes = socket->Receive(timeout); bytes;
         bytes = socket->Receive(std::chrono::milliseconds(0))) {
      std::vector<ControlMessage> some = DecodeControl(*bytes);
      std::move(some.begin(), some.end(), std::back_inserter(all));
    }
    return all;
  };
  io.send = [socket](const EngineMessage& message) { socket->Send(EncodeMessage(message)); };
  return io;
}

ThreadHost::ThreadHost(RankJob job, int rank, std::shared_ptr<SharedArena> arena,
                       std::string endpoint, OnExit on_exit)
    : job_(std::move(job)),
      rank_(rank),
      endpoint_(std::move(endpoint)),
      on_exit_(std::move(on_exit)),
      arena_(arena),
      thread_([this, arena = std::move(arena)]() mutable { Run(std::move(arena)); }) {}

ThreadHost::~ThreadHost() {
  KillAll();
  thread_.join();
}

// An abort of the arena does not interrupt an idle leader, so its receive function checks killed_.
RankLoopIo ThreadHost::Io() const {
  if (endpoint_.empty()) return {};
  RankLoopIo io = LeaderIo(endpoint_);
  io.receive = [this, receive = std::move(io.receive)](std::chrono::milliseconds timeout) {
    if (killed_) throw Error(ErrorKind::kPeer, "the front has stopped this rank");
    return receive(timeout);
  };
  return io;
}

void ThreadHost::Run(std::shared_ptr<SharedArena> arena) {
  pthread_setname_np(pthread_self(), fmt::format("rank {}", rank_).c_str());
  std::string how = fmt::format("rank {} ended", rank_);
  bool clean = false;
  try {
    RunRankLoop(job_.config, job_.plan, rank_, arena, Io());
    clean = true;
  } catch (const std::exception& error) {
    how = fmt::format("rank {} failed: {}", rank_, error.what());
  }
  arena.reset();  // closes the connections to the other ranks
  bool is_news = false;
  {
    const std::lock_guard lock(mutex_);
    is_news = !killed_ && !(end_expected_ && clean);
  }
  if (is_news) on_exit_(how, /*cause=*/false);
  const std::lock_guard lock(mutex_);
  ended_ = true;
  changed_.notify_all();
}

void ThreadHost::ExpectEnd() {
  const std::lock_guard lock(mutex_);
  end_expected_ = true;
}

bool ThreadHost::WaitEnded(std::chrono::milliseconds timeout) {
  std::unique_lock lock(mutex_);
  end_expected_ = true;
  if (changed_.wait_for(lock, timeout, [this] { return ended_; })) return true;
  lock.unlock();
  KillAll();
  return false;
}

void ThreadHost::KillAll() {
  killed_ = true;
  if (const auto arena = arena_.lock()) arena->AbortHere("the front has stopped its rank");
}

}  // namespace switchyard
