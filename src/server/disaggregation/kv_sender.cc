#include "server/disaggregation/kv_sender.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "core/error.h"
#include "core/log.h"

namespace switchyard {
namespace {

using namespace std::chrono_literals;

// Interval of the checks for deadlines and ended connections.
constexpr auto kSweepInterval = 200ms;
// Interval of the checks for new layers of a running pass, on GPUs, which cannot ring the bell.
constexpr auto kPace = 200us;
// The longest wait for the bell of ranks on CPUs.
constexpr auto kLongestWait = 20ms;
// Interval of the checks whether the server stops.
constexpr auto kAcceptInterval = 200ms;
constexpr size_t kMaxHello = size_t{1} << 20;

// Whether the pages of the positions [0, end) are the same.
bool SamePages(const KvPages& a, const KvPages& b, int64_t end, int64_t page_size) {
  const int64_t pages = (end + page_size - 1) / page_size;
  return pages <= std::ssize(a.pages) && pages <= std::ssize(b.pages) &&
         std::equal(a.pages.begin(), a.pages.begin() + pages, b.pages.begin());
}

}  // namespace

KvSender::KvSender(KvTransferOptions options, KvTransferTargets targets)
    : options_(std::move(options)),
      targets_(std::move(targets)),
      statement_(KvStatement(options_.job)),
      listener_(TcpListener::Bind(options_.bootstrap)),
      acceptor_([this] { Accept(); }),
      sweeper_([this] { Sweep(); }),
      pacer_([this] { Pace(); }) {}

KvSender::~KvSender() { Stop(); }

void KvSender::Stop() {
  std::vector<Peer> peers;
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
    changed_.notify_all();
  }
  if (acceptor_.joinable()) acceptor_.join();
  if (sweeper_.joinable()) sweeper_.join();
  if (pacer_.joinable()) pacer_.join();
  {
    const std::lock_guard lock(mutex_);
    peers.swap(peers_);
  }
  for (const Peer& peer : peers) peer->Stop();
}

void KvSender::Use(std::shared_ptr<SharedArena> arena) {
  const std::lock_guard lock(mutex_);
  caches_ = std::make_shared<MappedCaches>(std::move(arena), options_.job, options_.mover);
  caches_->ClearExports();
  ++arena_;
  without_map_.clear();
  if (options_.backend != "shm") return;
  for (const Peer& peer : peers_) peer->Post(ArenaMessage());
}

KvArena KvSender::ArenaMessage() const {
  return {.process = getpid(),
          .descriptor = caches_->arena->fd(),
          .job = EncodeRankSpec(options_.job.config, options_.job.plan),
          .arena = arena_};
}

void KvSender::Accept() {
  AuthenticatedListener listener(
      listener_,
      {.key = options_.key, .purpose = Purpose::kKv, .self = 0, .message_limit = kMaxHello});
  while (!stop_) {
    auto arrival =
        listener.Accept(IoLimit::After(kAcceptInterval, [this] { return stop_.load(); }));
    {
      const std::lock_guard lock(mutex_);
      refusals_ = Joined(listener.refusals(), "; ");
    }
    if (arrival) {
      try {
        Greet(*std::move(arrival));
      } catch (const std::exception& error) {
        LOG_WARNING("a decode worker is refused: {}", error.what());
      }
    }
  }
}

void KvSender::Greet(AuthenticatedListener::Arrival arrival) {
  const std::string name = fmt::format("the decode worker {}", arrival.host);
  const KvHello hello = DecodeHello(arrival.message);
  std::string refusal;
  try {
    CheckSame(statement_, DecodeStatement(hello.statement), "the prefill worker",
              "the decode worker");
    if (hello.backend != options_.backend)
      throw Invalid("--disaggregation-transfer-backend is {} on the prefill worker, but {} on {}",
                    options_.backend, hello.backend, name);
  } catch (const Error& error) {
    refusal = error.what();
  }
  const bool sent = SendMessage(arrival.stream, EncodeWelcome({.refusal = refusal}),
                                IoLimit::After(options_.timeout, [this] { return stop_.load(); }));
  if (!refusal.empty()) {
    LOG_WARNING("{} is refused: {}", name, refusal);
    const std::lock_guard lock(mutex_);
    last_refusal_ = refusal;
    return;
  }
  if (!sent) return;
  const auto peer =
      std::make_shared<KvConnection>(std::move(arrival.stream), name, options_.timeout);
  const std::weak_ptr<KvConnection> weak = peer;
  {
    const std::lock_guard lock(mutex_);
    if (options_.backend == "shm" && caches_) peer->Post(ArenaMessage());
    peers_.push_back(peer);
  }
  peer->Start({.on_message = [this, weak](const KvMessage& message,
                                          TcpStream&) { OnMessage(weak, message); },
               .on_end = [this, raw = peer.get()](const std::string& why) { OnEnd(why, raw); }});
  LOG_INFO("{} is connected", name);
}

void KvSender::Open(uint64_t id, const KvRoom& asked, int64_t prompt_tokens) {
  const std::lock_guard lock(mutex_);
  const auto room = rooms_.try_emplace(asked.key).first;
  Room& r = room->second;
  if (r.id || !r.first.empty()) return ReleaseSoon(id, asked.key.Text() + " is in use");
  if (!r.error.empty()) {
    ReleaseSoon(id, r.error);
    rooms_.erase(room);
    return;
  }
  r.id = id;
  r.prompt_tokens = prompt_tokens;
  r.deadline = Deadline();
  keys_.emplace(id, asked.key);
  WantSoon(r);
  CheckPrompts(room);
}

void KvSender::OnOutput(uint64_t id, int group, const RequestOutput& output) {
  const std::lock_guard lock(mutex_);
  const auto key = keys_.find(id);
  if (key == keys_.end()) {
    if (output.kv && !output.new_tokens.empty())
      ReleaseSoon(id, "the room of the request has ended");
    return;
  }
  const auto room = rooms_.find(key->second);
  Room& r = room->second;
  r.group = group;
  r.deadline = Deadline();
  if (output.kv) {
    const int64_t page_size = options_.job.config.page_size;
    const bool same_state = r.known.state < 0 || r.known.state == output.kv->state;
    if (output.kv->end < r.known.end || !same_state ||
        !SamePages(r.known, *output.kv, r.known.end, page_size)) {
      ++r.version;
      r.sent = 0;
      r.state_sent = false;
      r.part = {};
    }
    r.known = *output.kv;
    ++r.updates;
    // A pass that was aborted runs again under another number.
    if (r.part.end > r.known.computed && r.part.pass != r.known.pass) r.part = {};
  }
  const bool finished = output.finish != FinishReason::kNone;
  if (output.finish == FinishReason::kError || output.finish == FinishReason::kAbort) {
    Forget(room);
    return Fail(room, output.error.empty() ? "the request was aborted on the prefill worker"
                                           : output.error);
  }
  if (finished || !output.new_tokens.empty()) {
    StepOutputs step;
    step.outputs.push_back(output);
    step.outputs.back().kv.reset();
    r.first = EncodeMessage(step);
    r.ended = finished;
  }
  // The front drops messages about requests that it has not sent to the ranks yet.
  if (output.kv && !output.kv->pinned && !r.first.empty() && !r.ended) WantSoon(r);
  Advance(room);
  changed_.notify_all();  // Pace
}

void KvSender::Close(uint64_t id, const std::string& why) {
  const std::lock_guard lock(mutex_);
  const auto key = keys_.find(id);
  if (key == keys_.end()) return;
  const auto room = rooms_.find(key->second);
  Forget(room);
  if (!room->second.ended) Fail(room, why);  // else no pages are needed
}

void KvSender::Refuse(const KvRoom& asked, const std::string& why) {
  const std::lock_guard lock(mutex_);
  const auto room = rooms_.try_emplace(asked.key).first;
  if (!room->second.id) Fail(room, why);
}

void KvSender::SetPaused(bool paused) {
  const std::lock_guard lock(mutex_);
  time_.SetPaused(paused);
}

void KvSender::OnMessage(const std::weak_ptr<KvConnection>& from, const KvMessage& message) {
  const Peer peer = from.lock();
  if (!peer) return;
  const std::lock_guard lock(mutex_);
  if (const auto* want = std::get_if<KvWant>(&message)) {
    OnWant(peer, *want);
  } else if (const auto* taken = std::get_if<KvTaken>(&message)) {
    OnTaken(peer, *taken);
  } else if (const auto* unmapped = std::get_if<KvUnmapped>(&message)) {
    OnUnmapped(peer, *unmapped);
  } else if (const auto* failed = std::get_if<KvFailed>(&message)) {
    const auto room = rooms_.try_emplace(failed->key).first;
    if (room->second.peer && room->second.peer != peer) return;
    const bool known = room->second.id.has_value();
    room->second.peer.reset();  // it has ended the request itself
    Fail(room, failed->error);
    if (known) rooms_.erase(failed->key);
  } else {
    throw Invalid("{} has sent a message of a prefill worker", peer->peer());
  }
}

void KvSender::OnWant(const Peer& peer, const KvWant& want) {
  const auto room = rooms_.try_emplace(want.key).first;
  Room& r = room->second;
  if (r.peer) {
    peer->Post(KvFailed{want.key, want.key.Text() + " is in use by another decode worker"});
    return;
  }
  r.peer = peer;
  r.wanted_tokens = want.prompt_tokens;
  r.begin = want.begin;
  r.deadline = Deadline();
  if (!r.error.empty()) return Fail(room, r.error);
  if (!CheckPrompts(room)) return;
  WantSoon(r);
  Advance(room);
  changed_.notify_all();  // Pace
}

bool KvSender::CheckPrompts(Rooms::iterator room) {
  const Room& r = room->second;
  if (!r.id || !r.wanted_tokens || r.prompt_tokens == *r.wanted_tokens) return true;
  Fail(room, fmt::format("the prompt has {} tokens on the prefill worker and {} on the decode "
                         "worker",
                         r.prompt_tokens, *r.wanted_tokens));
  return false;
}

void KvSender::OnTaken(const Peer& peer, const KvTaken& taken) {
  const auto room = rooms_.find(taken.key);
  if (room == rooms_.end()) return;
  Room& r = room->second;
  if (r.peer != peer || !r.sending || taken.version != r.step_version) return;
  EndStep(r);
  r.deadline = Deadline();
  Advance(room);
  changed_.notify_all();  // Pace
}

void KvSender::OnUnmapped(const Peer& peer, const KvUnmapped& unmapped) {
  // Else the answer is about the memory of ranks that have ended.
  if (unmapped.arena == arena_ && without_map_.insert(peer.get()).second)
    LOG_WARNING("{} gets rows through this host's memory, which takes longer: {}", peer->peer(),
                unmapped.why);
  const auto room = rooms_.find(unmapped.key);
  if (room == rooms_.end()) return;
  Room& r = room->second;
  if (r.peer != peer || !r.sending || unmapped.version != r.step_version) return;
  r.sending = false;
  r.deadline = Deadline();
  Advance(room);
  changed_.notify_all();  // Pace
}

bool KvSender::Maps(const Peer& peer) const {
  return options_.backend == "shm" && !without_map_.contains(peer.get());
}

void KvSender::OnEnd(const std::string& why, const KvConnection* peer) {
  LOG_INFO("a decode worker is disconnected: {}", why);
  const std::lock_guard lock(mutex_);
  without_map_.erase(peer);
  for (auto next = rooms_.begin(); next != rooms_.end();) {
    const auto room = next++;
    if (room->second.peer.get() != peer) continue;
    room->second.peer.reset();
    Fail(room, why);
  }
}

void KvSender::Pace() {
  std::unique_lock lock(mutex_);
  const auto awaits = [this](const auto& entry) { return AwaitsLayers(entry.second); };
  while (!stop_) {
    changed_.wait(lock, [&] { return stop_ || std::ranges::any_of(rooms_, awaits); });
    const std::shared_ptr<MappedCaches> of_cpus = options_.mover ? nullptr : caches_;
    const uint32_t rings = of_cpus ? of_cpus->caches.bell().rings() : 0;
    for (auto next = rooms_.begin(); next != rooms_.end();) {
      const auto room = next++;
      if (AwaitsLayers(room->second)) Advance(room);
    }
    lock.unlock();
    if (of_cpus) {
      of_cpus->caches.bell().Wait(rings, kLongestWait);
    } else {
      std::this_thread::sleep_for(kPace);
    }
    lock.lock();
  }
}

void KvSender::Advance(Rooms::iterator room) {
  const auto& [key, r] = *room;
  if (!r.peer || r.sending) return;
  const std::optional<Rows> rows = r.ended || !caches_ ? std::nullopt : NextRows(r);
  if (rows) {
    room->second.sending = true;
    room->second.step = *rows;
    room->second.step_version = r.version;
    if (Maps(r.peer)) {
      r.peer->Post(KvPlace{.key = key,
                           .version = r.version,
                           .group = r.group,
                           .begin = rows->begin,
                           .end = rows->end,
                           .first_layer = rows->first_layer,
                           .end_layer = rows->end_layer,
                           .pages = r.known.pages,
                           .state = rows->state,
                           .arena = arena_});
    } else {
      r.peer->Post([this, key = key, weak = std::weak_ptr(r.peer)](TcpStream& stream) {
        if (const Peer peer = weak.lock()) SendStep(key, stream, peer);
      });
    }
    return;
  }
  // Until the ranks know that the rows are wanted, they may give the pages to another request, and
  // tell it later than they write to them.
  const bool valid = r.known.pinned || r.begin >= r.prompt_tokens;
  const bool complete =
      r.ended || (!r.first.empty() && valid && std::max(r.sent, r.begin) >= r.prompt_tokens &&
                  !LacksStates(r));
  if (!complete) return;
  r.peer->Post(KvDone{key, r.first});
  if (r.id && !r.ended) ReleaseSoon(*r.id, "");
  Forget(room);
  rooms_.erase(room);
}

void KvSender::Forget(Rooms::iterator room) {
  if (room->second.id) keys_.erase(*room->second.id);
  room->second.id.reset();
}

void KvSender::ReleaseSoon(uint64_t id, const std::string& error) {
  releases_.push_back({id, error});
  changed_.notify_all();
}

void KvSender::WantSoon(const Room& room) {
  if (!room.id || !room.peer) return;
  wanted_.push_back(*room.id);
  changed_.notify_all();
}

void KvSender::Fail(Rooms::iterator room, const std::string& error) {
  Room& r = room->second;
  if (r.id) ReleaseSoon(*r.id, error);
  Forget(room);
  if (r.peer) {
    r.peer->Post(KvFailed{room->first, error});
    rooms_.erase(room);
  } else {  // the other server may still request the room
    r = {.error = error, .deadline = Deadline()};
  }
}

std::string KvSender::WhyLate(const KvKey& key, const Room& room) const {
  const std::string time = fmt::format("{:g} s (--disaggregation-timeout)",
                                       std::chrono::duration<double>(options_.timeout).count());
  const std::string& refused = last_refusal_.empty() ? refusals_ : last_refusal_;
  if (!room.peer)
    return fmt::format("no decode worker has requested {} within {}{}{}", key.Text(), time,
                       refused.empty() ? "" : "; refused: ", refused);
  if (!room.id)
    return fmt::format("the prefill worker got no request for {} within {}", key.Text(), time);
  return fmt::format("the transfer of {} made no progress for {}", key.Text(), time);
}

void KvSender::AttachEarly(std::unique_lock<std::mutex>& lock) {
  const std::shared_ptr<MappedCaches> caches = caches_;
  if (options_.backend == "shm" || !caches || caches->attached() || !caches->exported()) return;
  lock.unlock();
  try {
    caches->Attach();
  } catch (const std::exception& error) {  // SendStep fails with the same error
    LOG_DEBUG("{}", error.what());
  }
  lock.lock();
}

void KvSender::Sweep() {
  std::unique_lock lock(mutex_);
  while (!stop_) {
    AttachEarly(lock);
    const bool woken = changed_.wait_for(
        lock, kSweepInterval, [this] { return stop_ || !releases_.empty() || !wanted_.empty(); });
    const auto now = time_.Now();
    for (auto next = rooms_.begin(); next != rooms_.end();) {
      const auto room = next++;
      const Room& r = room->second;
      // The front drops messages about requests that it has not sent to the ranks yet.
      if (!woken && r.id && r.peer && !r.known.pinned && !r.ended) wanted_.push_back(*r.id);
      // A prompt may wait in the queue, and be computed, for as long as other limits permit. It is
      // computed again if it has lost its pages.
      const bool computes = r.first.empty() || (r.peer && r.known.end < r.prompt_tokens);
      if (r.deadline > now || (r.id && computes && !r.sending)) continue;
      if (!room->second.error.empty()) {
        rooms_.erase(room);
        continue;
      }
      const std::string why = WhyLate(room->first, room->second);
      LOG_WARNING("{}", why);
      Fail(room, why);
    }
    const std::vector<Release> releases = std::exchange(releases_, {});
    const std::vector<uint64_t> wanted = std::exchange(wanted_, {});
    std::vector<Peer> ended;
    const auto dead = std::ranges::partition(peers_, [](const Peer& p) { return !p->ended(); });
    ended.assign(dead.begin(), dead.end());
    peers_.erase(dead.begin(), dead.end());
    lock.unlock();
    if (targets_.want)
      for (const uint64_t id : wanted) targets_.want(id);
    for (const Release& release : releases) targets_.release(release.id, release.error);
    for (const Peer& peer : ended) peer->Stop();
    lock.lock();
  }
}

}  // namespace switchyard
