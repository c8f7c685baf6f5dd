#include "server/disaggregation/kv_receiver.h"

#include <fcntl.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "comm/net/authenticated_listener.h"
#include "core/error.h"
#include "core/log.h"

namespace switchyard {
namespace {

using namespace std::chrono_literals;

constexpr auto kSweepInterval = 200ms;
// How long a prefill worker may take to accept a connection. The router sends the request to
// another one sooner than its own timeout ends.
constexpr std::chrono::milliseconds kConnectTime = 3s;
constexpr size_t kMaxWelcome = size_t{1} << 20;

RequestOutput ErrorOutput(const std::string& error) {
  RequestOutput output;
  output.finish = FinishReason::kError;
  output.error = error;
  output.error_kind = ErrorKind::kUnavailable;
  return output;
}

}  // namespace

KvReceiver::KvReceiver(KvTransferOptions options, KvTransferTargets targets)
    : options_(std::move(options)),
      targets_(std::move(targets)),
      statement_(KvStatement(options_.job)),
      sweeper_([this] { Sweep(); }) {}

KvReceiver::~KvReceiver() { Stop(); }

void KvReceiver::Stop() {
  std::vector<LinkPtr> links;
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
    changed_.notify_all();
  }
  if (sweeper_.joinable()) sweeper_.join();
  {
    const std::lock_guard lock(mutex_);
    for (auto& [address, link] : links_) links.push_back(link);
    links.insert(links.end(), ended_.begin(), ended_.end());
  }
  for (const LinkPtr& link : links) JoinThreads(*link);
}

void KvReceiver::JoinThreads(Link& link) {
  if (link.opener.joinable()) link.opener.join();
  if (link.connection) link.connection->Stop();
}

void KvReceiver::Use(std::shared_ptr<SharedArena> arena) {
  const std::lock_guard lock(mutex_);
  caches_ = std::make_shared<MappedCaches>(std::move(arena), options_.job, options_.mover);
  caches_->ClearExports();
}

void KvReceiver::Open(uint64_t id, const KvRoom& asked, int64_t prompt_tokens) {
  const std::lock_guard lock(mutex_);
  const auto [room, added] = rooms_.try_emplace(asked.key);
  if (!added) {
    outputs_.emplace_back(id, ErrorOutput(asked.key.Text() + " is in use"));
    changed_.notify_all();
    return;
  }
  room->second = {.id = id,
                  .prompt_tokens = prompt_tokens,
                  .link = LinkTo({asked.host, asked.port}),
                  .deadline = Deadline()};
  keys_.emplace(id, asked.key);
}

void KvReceiver::OnOutput(uint64_t id, int group, const RequestOutput& output) {
  if (!output.kv) return;
  const std::lock_guard lock(mutex_);
  const auto key = keys_.find(id);
  if (key == keys_.end()) return;
  Room& room = rooms_.at(key->second);
  room.group = group;
  room.pages = *output.kv;
  room.states.clear();
  room.deadline = Deadline();
  try {
    caches_->Attach();
    caches_->caches.ClearFaults(group, room.pages.pages, room.pages.begin, room.pages.end,
                                caches_->mover());
  } catch (const Error& error) {
    LOG_WARNING("{}", error.what());
    Send(*room.link, KvFailed{key->second, error.what()});
    return Fail(room, error.what());
  }
  Send(*room.link, KvWant{key->second, room.prompt_tokens, room.pages.begin});
}

void KvReceiver::Close(uint64_t id, const std::string& why) {
  const std::lock_guard lock(mutex_);
  const auto key = keys_.find(id);
  if (key == keys_.end()) return;
  const auto room = rooms_.find(key->second);
  if (!room->second.answered) Send(*room->second.link, KvFailed{key->second, why});
  rooms_.erase(room);
  keys_.erase(key);
}

void KvReceiver::Refuse(const KvRoom& asked, const std::string& why) {
  const std::lock_guard lock(mutex_);
  if (rooms_.contains(asked.key)) return;
  Send(*LinkTo({asked.host, asked.port}), KvFailed{asked.key, why});
}

void KvReceiver::SetPaused(bool paused) {
  const std::lock_guard lock(mutex_);
  time_.SetPaused(paused);
}

KvReceiver::LinkPtr KvReceiver::LinkTo(const HostPort& address) {
  LinkPtr& link = links_[{address.host, address.port}];
  if (link && link->failure.empty()) return link;
  if (link) ended_.push_back(link);
  link = std::make_shared<Link>();
  link->address = address;
  if (stop_) {
    link->failure = "this server stops";
    return link;
  }
  link->opener = std::thread([this, link] { OpenLink(link); });
  return link;
}

void KvReceiver::Send(Link& link, const KvMessage& message) {
  if (link.connection) {
    link.connection->Post(message);
  } else if (link.failure.empty()) {
    link.early.push_back(message);
  }
}

void KvReceiver::OpenLink(const LinkPtr& link) {
  std::unique_ptr<KvConnection> connection;
  std::string failure;
  try {
    failure = Connect(*link, &connection);
  } catch (const std::exception& error) {
    failure = error.what();
  }
  if (!failure.empty()) return EndLink(link, failure);
  LOG_INFO("connected to the prefill worker at {}", link->address.Text());
  KvConnection* const opened = connection.get();
  const std::weak_ptr<Link> weak = link;
  {
    const std::lock_guard lock(mutex_);
    link->connection = std::move(connection);
    for (const KvMessage& message : std::exchange(link->early, {})) opened->Post(message);
  }
  // The threads of the connection call these functions. The link outlives its connection.
  opened->Start({.on_message = [this, raw = link.get()](
                                   const KvMessage& message,
                                   TcpStream& stream) { OnMessage(*raw, message, stream); },
                 .on_end =
                     [this, weak](const std::string& why) {
                       if (const LinkPtr link = weak.lock()) EndLink(link, why);
                     }});
}

// Returns why there is no connection; empty: there is one.
std::string KvReceiver::Connect(Link& link, std::unique_ptr<KvConnection>* connection) {
  const std::string name = "the prefill worker at " + link.address.Text();
  const IoLimit limit =
      IoLimit::After(std::min(kConnectTime, options_.timeout / 2), [this] { return stop_.load(); });
  OpenedConnection opened = OpenAuthenticated(link.address, options_.key,
                                              {.purpose = Purpose::kKv, .from = 1, .to = 0}, limit);
  if (!opened.stream) {
    if (!opened.connected) return name + " does not accept connections";
    if (opened.verdict == Verdict::kAccepted) return name + " completes no handshake";
    return DescribeVerdict(opened.verdict, "the decode worker", name) + " (--dist-secret-file)";
  }
  if (!SendMessage(
          *opened.stream,
          EncodeHello({.backend = options_.backend, .statement = EncodeStatement(statement_)}),
          limit))
    return name + " has closed the connection";
  const auto answer = ReceiveMessage(*opened.stream, kMaxWelcome, limit);
  if (!answer) return name + " has closed the connection";
  if (const KvWelcome welcome = DecodeWelcome(*answer); !welcome.refusal.empty())
    return welcome.refusal;
  *connection = std::make_unique<KvConnection>(*std::move(opened.stream), name, options_.timeout);
  return {};
}

void KvReceiver::EndLink(const LinkPtr& link, const std::string& why) {
  if (!stop_) LOG_WARNING("{}", why);
  link->caches.reset();
  const std::lock_guard lock(mutex_);
  link->failure = why;
  link->early.clear();
  for (auto& [key, room] : rooms_)
    if (room.link == link) Fail(room, why);
}

void KvReceiver::OnMessage(Link& link, const KvMessage& message, TcpStream& stream) {
  if (const auto* head = std::get_if<KvRowsHead>(&message)) {
    OnRows(link, *head, stream);
  } else if (const auto* place = std::get_if<KvPlace>(&message)) {
    OnPlace(link, *place);
  } else if (const auto* state = std::get_if<KvStateHead>(&message)) {
    OnState(link, *state, stream);
  } else if (const auto* done = std::get_if<KvDone>(&message)) {
    OnDone(link, *done);
  } else if (const auto* failed = std::get_if<KvFailed>(&message)) {
    OnFailed(link, *failed);
  } else if (const auto* arena = std::get_if<KvArena>(&message)) {
    OnArena(link, *arena);
  } else {
    throw Invalid("{} has sent a message of a decode worker", link.connection->peer());
  }
}

bool KvReceiver::Write(const Link& link, const KvKey& key, const KvLayerRows& from, int64_t layer,
                       int64_t begin, int64_t end) {
  const std::lock_guard lock(mutex_);
  const auto found = rooms_.find(key);
  if (found == rooms_.end() || found->second.link.get() != &link || found->second.answered)
    return false;
  Room& room = found->second;
  if (!caches_->attached()) return false;  // the room has pages of ranks that have ended
  if (layer < 0 || layer >= caches_->caches.format().num_layers() || begin < room.pages.begin ||
      end > room.pages.end || begin > end)
    throw Invalid(
        "{} has sent rows {} to {} of layer {}, which are not among the rows that {} needs",
        link.connection->peer(), begin, end, layer, key.Text());
  CopyKvRows(caches_->caches.format().layers[layer], from,
             caches_->caches.Layer(room.group, layer, room.pages.pages), begin, end,
             caches_->mover());
  room.deadline = Deadline();
  return true;
}

bool KvReceiver::WriteState(const Link& link, const KvKey& key, std::span<const KvStateShard> from,
                            int64_t layer) {
  const std::lock_guard lock(mutex_);
  const auto found = rooms_.find(key);
  if (found == rooms_.end() || found->second.link.get() != &link || found->second.answered)
    return false;
  Room& room = found->second;
  if (!caches_->attached()) return false;  // the room has pages of ranks that have ended
  if (!HasState(layer))
    throw Invalid("{} has sent a recurrent state of layer {}, which has none",
                  link.connection->peer(), layer);
  if (room.pages.state < 0)
    throw Invalid("{} has sent a recurrent state, which {} does not need", link.connection->peer(),
                  key.Text());
  CopyKvState(caches_->caches.format().states, from,
              caches_->caches.State(room.group, layer, room.pages.state), caches_->mover());
  room.deadline = Deadline();
  room.states.insert(layer);
  return true;
}

bool KvReceiver::HasState(int64_t layer) const {
  const KvFormat& format = caches_->caches.format();
  return layer >= 0 && layer < format.num_layers() && format.layers[layer].StateBytes() > 0;
}

std::optional<int64_t> KvReceiver::MissingState(const Room& room) const {
  if (room.pages.state < 0 || room.pages.begin >= room.prompt_tokens) return std::nullopt;
  for (int64_t layer = 0; layer < caches_->caches.format().num_layers(); ++layer)
    if (HasState(layer) && !room.states.contains(layer)) return layer;
  return std::nullopt;
}

std::shared_ptr<std::byte> KvReceiver::ReceiveBytes(Link& link, const KvKey& key, int64_t size,
                                                    TcpStream& stream) {
  const auto receive = [&](std::span<std::byte> bytes) {
    if (stream.Receive(bytes.data(), bytes.size(), link.connection->limit()) != IoResult::kDone)
      throw Error(ErrorKind::kPeer, link.connection->peer() + " has closed the connection");
  };
  std::shared_ptr<std::byte> buffer;
  try {
    buffer = MemoryForRows(options_, size);
  } catch (const Error& error) {
    const std::lock_guard lock(mutex_);
    const auto room = rooms_.find(key);
    if (room != rooms_.end() && room->second.link.get() == &link && !room->second.answered) {
      LOG_WARNING("{}", error.what());
      Send(link, KvFailed{key, error.what()});
      Fail(room->second, error.what());
    }
  }
  if (buffer) {
    receive({buffer.get(), static_cast<size_t>(size)});
    return buffer;
  }
  std::array<std::byte, 16384> skipped;
  for (auto left = static_cast<size_t>(size); left > 0;) {
    const size_t next = std::min(left, skipped.size());
    receive(std::span(skipped).first(next));
    left -= next;
  }
  return nullptr;
}

void KvReceiver::OnState(Link& link, const KvStateHead& head, TcpStream& stream) {
  const KvFormat format = KvFormat::Of(options_.job.plan);
  if (head.layer < 0 || head.layer >= format.num_layers() ||
      format.layers[head.layer].StateBytes() == 0)
    throw Invalid("{} has sent a recurrent state of layer {}, which has none",
                  link.connection->peer(), head.layer);
  const int64_t size = format.layers[head.layer].StateBytes();
  const std::shared_ptr<std::byte> buffer = ReceiveBytes(link, head.key, size, stream);
  if (!buffer) return;
  const std::span bytes(buffer.get(), static_cast<size_t>(size));
  const KvStateShard whole = CanonicalState(format.states, bytes);
  WriteState(link, head.key, {&whole, 1}, head.layer);
}

void KvReceiver::OnRows(Link& link, const KvRowsHead& head, TcpStream& stream) {
  const KvFormat format = KvFormat::Of(options_.job.plan);
  const int64_t count = head.end - head.begin;
  if (head.layer < 0 || head.layer >= format.num_layers())
    throw Invalid("{} has sent rows of layer {}: want 0 to {}", link.connection->peer(), head.layer,
                  format.num_layers() - 1);
  if (head.begin < 0 || count <= 0 || count > PositionsPerPiece(format))
    throw Invalid("{} has sent rows {} to {}: want 1 to {} rows in a message, from row 0 on",
                  link.connection->peer(), head.begin, head.end, PositionsPerPiece(format));
  const KvLayerFormat& layer = format.layers[head.layer];
  const std::shared_ptr<std::byte> buffer =
      ReceiveBytes(link, head.key, layer.Bytes(count), stream);
  if (!buffer) return;
  const std::span bytes(buffer.get(), static_cast<size_t>(layer.Bytes(count)));
  Write(link, head.key, CanonicalRows(layer, head.begin, head.end, bytes).rows(), head.layer,
        head.begin, head.end);
}

void KvReceiver::OnPlace(Link& link, const KvPlace& place) {
  if (!link.caches) throw Invalid("{} has not sent its memory", link.connection->peer());
  if (place.arena != link.arena) return;  // of ranks that have ended
  const KvCaches& theirs = link.caches->caches;
  const KvFormat& format = theirs.format();
  if (place.group < 0 || place.group >= theirs.groups())
    throw Invalid("{} has no attention group {}", link.connection->peer(), place.group);
  if (place.first_layer < 0 || place.end_layer > format.num_layers())
    throw Invalid("{} has no layers {} to {}", link.connection->peer(), place.first_layer,
                  place.end_layer);
  if (!MapFor(link, place)) return;
  const int64_t piece = PositionsPerPiece(format);
  for (int64_t layer = place.first_layer; layer < place.end_layer; ++layer) {
    if (place.state >= 0 && format.layers[layer].StateBytes() > 0 &&
        !WriteState(link, place.key, theirs.State(place.group, layer, place.state), layer))
      return;
    if (format.layers[layer].Bytes(1) == 0) continue;
    const KvLayerRows rows = theirs.Layer(place.group, layer, place.pages);
    for (int64_t begin = place.begin; begin < place.end; begin += piece) {
      const int64_t end = std::min(begin + piece, place.end);
      if (!Write(link, place.key, rows, layer, begin, end)) return;
    }
  }
  const std::lock_guard lock(mutex_);
  Send(link, KvTaken{place.key, place.version});
}

bool KvReceiver::MapFor(Link& link, const KvPlace& place) {
  try {
    link.caches->Attach();
    return true;
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kResource) throw;
    LOG_WARNING("{} sends rows through this host's memory, which takes longer: {}",
                link.connection->peer(), error.what());
    const std::lock_guard lock(mutex_);
    Send(link, KvUnmapped{place.key, place.version, place.arena, error.what()});
    return false;
  }
}

void KvReceiver::OnDone(Link& link, const KvDone& done) {
  EngineMessage message = DecodeMessage(done.output);
  auto* step = std::get_if<StepOutputs>(&message);
  if (!step || step->outputs.size() != 1)
    throw Invalid("{} has sent an unknown output", link.connection->peer());
  const std::lock_guard lock(mutex_);
  const auto found = rooms_.find(done.key);
  if (found == rooms_.end() || found->second.link.get() != &link || found->second.answered) return;
  Room& room = found->second;
  const bool continues = step->outputs[0].finish == FinishReason::kNone;
  if (const auto layer = continues ? MissingState(room) : std::nullopt)
    return Fail(room, fmt::format("{} has sent no recurrent state of layer {} for {}",
                                  link.connection->peer(), *layer, done.key.Text()));
  room.answered = true;
  outputs_.emplace_back(room.id, std::move(step->outputs[0]));
  changed_.notify_all();
}

void KvReceiver::OnFailed(Link& link, const KvFailed& failed) {
  const std::lock_guard lock(mutex_);
  const auto found = rooms_.find(failed.key);
  if (found != rooms_.end() && found->second.link.get() == &link) Fail(found->second, failed.error);
}

void KvReceiver::OnArena(Link& link, const KvArena& arena) const {
  const std::string path = fmt::format("/proc/{}/fd/{}", arena.process, arena.descriptor);
  const int fd = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0)
    throw Error(ErrorKind::kPeer,
                fmt::format("cannot map the caches of {}: {}", link.connection->peer(),
                            std::strerror(errno)),
                "with --disaggregation-transfer-backend shm, both workers run on one host as one "
                "user; tcp has no such condition");
  const EngineConfig& here = options_.job.config;
  const RankJob job = DecodeRankSpec(arena.job, here.model_path, here.speculative.draft_model_path,
                                     /*token_map=*/"");
  std::shared_ptr<SharedArena> memory = SharedArena::FromFd(fd);
  CheckArena(*memory, job, statement_, link.connection->peer());
  link.caches = std::make_shared<MappedCaches>(std::move(memory), job, options_.mover);
  link.arena = arena.arena;
}

void KvReceiver::Fail(Room& room, const std::string& error) {
  if (std::exchange(room.answered, true)) return;
  outputs_.emplace_back(room.id, ErrorOutput(error));
  changed_.notify_all();
}

void KvReceiver::AttachEarly(std::unique_lock<std::mutex>& lock) {
  const std::shared_ptr<MappedCaches> caches = caches_;
  if (!caches || caches->attached() || !caches->exported()) return;
  lock.unlock();
  try {
    caches->Attach();
  } catch (const std::exception& error) {  // OnOutput fails with the same error
    LOG_DEBUG("{}", error.what());
  }
  lock.lock();
}

void KvReceiver::Sweep() {
  std::unique_lock lock(mutex_);
  while (!stop_) {
    AttachEarly(lock);
    changed_.wait_for(lock, kSweepInterval, [this] { return stop_ || !outputs_.empty(); });
    const auto now = time_.Now();
    const double seconds = std::chrono::duration<double>(options_.timeout).count();
    for (auto& [key, room] : rooms_) {
      if (room.answered || room.deadline > now) continue;
      const std::string why =
          room.pages.pages.empty()
              ? fmt::format(
                    "{} got no pages of the cache of the decode worker within {:g} s "
                    "(--disaggregation-timeout): the cache is full",
                    key.Text(), seconds)
              : fmt::format(
                    "the decode worker got no rows of {} from the prefill worker at {} "
                    "within {:g} s (--disaggregation-timeout)",
                    key.Text(), room.link->address.Text(), seconds);
      LOG_WARNING("{}", why);
      Send(*room.link, KvFailed{key, why});
      Fail(room, why);
    }
    auto outputs = std::exchange(outputs_, {});
    auto ended = std::exchange(ended_, {});
    lock.unlock();
    for (auto& [id, output] : outputs) targets_.start(id, std::move(output));
    for (const LinkPtr& link : ended) JoinThreads(*link);
    lock.lock();
  }
}

}  // namespace switchyard
