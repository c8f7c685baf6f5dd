#include "server/disaggregation/kv_connection.h"

#include <utility>

#include "comm/net/authenticated_listener.h"
#include "core/error.h"

namespace switchyard {
namespace {

// Longest message. The longest ones have a page number for each page of a prompt, or the
// log-probabilities of a prompt.
constexpr size_t kMaxMessage = size_t{1} << 28;

}  // namespace

KvConnection::KvConnection(TcpStream stream, std::string peer, std::chrono::milliseconds timeout)
    : stream_(std::move(stream)), peer_(std::move(peer)), timeout_(timeout) {}

KvConnection::~KvConnection() { Stop(); }

void KvConnection::Stop() {
  Close("this worker stops");
  if (reader_.joinable()) reader_.join();
  if (writer_.joinable()) writer_.join();
}

void KvConnection::Start(Events events) {
  events_ = std::move(events);
  reader_ = std::thread([this] { Read(); });
  writer_ = std::thread([this] { Write(); });
}

IoLimit KvConnection::limit() const { return IoLimit::After(timeout_); }

void KvConnection::Post(const KvMessage& message) {
  Post([this, bytes = EncodeKv(message)](TcpStream& stream) {
    if (!SendMessage(stream, bytes, limit()))
      throw Error(ErrorKind::kPeer, fmt::format("{} has closed the connection", peer_));
  });
}

void KvConnection::Post(Job job) {
  const std::lock_guard lock(mutex_);
  if (closed_) return;
  jobs_.push_back(std::move(job));
  changed_.notify_all();
}

void KvConnection::Close(const std::string& why) {
  {
    const std::lock_guard lock(mutex_);
    if (closed_) return;
    closed_ = true;
    why_ = why;
    changed_.notify_all();
  }
  stream_.Shutdown();
}

void KvConnection::Read() {
  try {
    for (;;) {
      const auto bytes = ReceiveMessage(stream_, kMaxMessage, {});
      if (!bytes) throw Error(ErrorKind::kPeer, fmt::format("{} has closed the connection", peer_));
      events_.on_message(DecodeKv(*bytes), stream_);
    }
  } catch (const std::exception& error) {
    Close(error.what());
  }
  ended_ = true;
  std::string why;
  {
    const std::lock_guard lock(mutex_);
    why = why_;
  }
  events_.on_end(why);
}

void KvConnection::Write() {
  for (;;) {
    Job job;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return closed_ || !jobs_.empty(); });
      if (closed_) return;
      job = std::move(jobs_.front());
      jobs_.pop_front();
    }
    try {
      job(stream_);
    } catch (const std::exception& error) {
      Close(error.what());
    }
  }
}

}  // namespace switchyard
