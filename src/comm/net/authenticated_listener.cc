#include "comm/net/authenticated_listener.h"

#include <poll.h>

#include <algorithm>
#include <map>
#include <set>
#include <span>
#include <utility>

#include "comm/net/handshake.h"
#include "core/log.h"

namespace switchyard {
namespace {

using namespace handshake;
using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr milliseconds kPollInterval(100);  // between two polls of the stop condition
constexpr size_t kMessagePiece = 64 << 10;  // bytes by which a message's buffer grows
constexpr size_t kMaxLogged = 32;           // log lines about refused connections
constexpr size_t kMaxRefusals = 8;

template <typename T>
std::span<std::byte> BytesOf(T& object) {
  return std::as_writable_bytes(std::span(&object, 1));
}

// Sends an object that fits into the empty send buffer of a new connection. Returns false if the
// connection is lost.
template <typename T>
bool SendAtOnce(TcpStream& stream, T& object) {
  iovec part{&object, sizeof object};
  return stream.Send({&part, 1}, IoLimit{.until = {}}) == IoResult::kDone;
}

}  // namespace

struct AuthenticatedListener::Impl {
  enum class Stage { kOpening, kProof, kSize, kMessage, kComplete };
  // A connection that has not completed the handshake.
  struct Pending {
    TcpStream stream;
    std::string host;
    steady_clock::time_point deadline;
    Stage stage = Stage::kOpening;
    size_t received = 0;  // bytes of this stage's object
    Opening opening;
    Challenge challenge;
    Digest proof{};
    uint64_t size = 0;
    std::string message;

    std::span<std::byte> Object();
    std::string Name() const;  // "node 1 (10.0.0.2)"
  };

  TcpListener& listener;
  const Options options;
  std::vector<Pending> pending;  // in the order of arrival
  bool exhausted = false;        // accept failed for lack of descriptors or memory
  std::set<std::string> logged;
  std::vector<std::string> refusals;

  void AcceptArrived();
  void MakeRoom();
  std::optional<Arrival> StepAll();
  bool Step(Pending& connection);
  bool Receive(Pending& connection);
  bool Advance(Pending& connection);
  bool OnOpening(Pending& connection);
  bool OnProof(Pending& connection);
  bool OnSize(Pending& connection);
  void CloseLate();
  void Wait(const IoLimit& limit) const;
  void Refuse(const Pending& connection, Verdict verdict);
  void LogOnce(LogLevel level, const std::string& line);
};

std::span<std::byte> AuthenticatedListener::Impl::Pending::Object() {
  switch (stage) {
    case Stage::kOpening:
      return BytesOf(opening);
    case Stage::kProof:
      return BytesOf(proof);
    case Stage::kSize:
      return BytesOf(size);
    case Stage::kMessage:
    case Stage::kComplete:
      break;
  }
  return std::as_writable_bytes(std::span(message));
}

std::string AuthenticatedListener::Impl::Pending::Name() const {
  const Introduction& introduction = opening.introduction;
  return fmt::format("{} ({})", introduction.NameOf(introduction.from), host);
}

void AuthenticatedListener::Impl::LogOnce(LogLevel level, const std::string& line) {
  if (logged.size() >= kMaxLogged || !logged.insert(line).second) return;
  Log(level, "{}", line);
  if (logged.size() == kMaxLogged) LOG_WARNING("further refused connections are not logged");
}

void AuthenticatedListener::Impl::Refuse(const Pending& connection, Verdict verdict) {
  const Introduction mine{.purpose = options.purpose};
  const std::string why = DescribeVerdict(verdict, connection.Name(), mine.NameOf(options.self));
  LogOnce(LogLevel::kWarning, fmt::format("refused a connection: {}", why));
  if (refusals.size() < kMaxRefusals && std::ranges::find(refusals, why) == refusals.end()) {
    refusals.push_back(why);
  }
}

// ---- New connections ----

void AuthenticatedListener::Impl::AcceptArrived() {
  for (size_t i = 0; i < options.max_pending; ++i) {
    auto stream = listener.AcceptArrived(&exhausted);
    if (!stream) return;
    MakeRoom();
    std::string host = stream->PeerHost();
    pending.push_back({.stream = std::move(*stream),
                       .host = std::move(host),
                       .deadline = steady_clock::now() + options.timeout});
  }
}

// Closes the oldest connection of the host with the most connections. So a host that opens many
// connections cannot displace those of other hosts.
void AuthenticatedListener::Impl::MakeRoom() {
  if (pending.size() < options.max_pending) return;
  std::map<std::string_view, size_t> counts;
  for (const Pending& connection : pending) ++counts[connection.host];
  const auto most = std::ranges::max_element(counts, {}, [](const auto& e) { return e.second; });
  const auto oldest = std::ranges::find_if(
      pending, [&](const Pending& connection) { return connection.host == most->first; });
  LogOnce(LogLevel::kWarning,
          fmt::format("{} has opened many connections without a handshake: closing the oldest",
                      oldest->host));
  pending.erase(oldest);
}

void AuthenticatedListener::Impl::CloseLate() {
  const auto now = steady_clock::now();
  std::erase_if(pending, [&](const Pending& connection) {
    if (now < connection.deadline) return false;
    LogOnce(LogLevel::kInfo, fmt::format("closed a connection of {} that did not complete the "
                                         "handshake within {:g} s",
                                         connection.host, options.timeout.count() / 1000.0));
    return true;
  });
}

// ---- Steps of the handshake ----

std::optional<AuthenticatedListener::Arrival> AuthenticatedListener::Impl::StepAll() {
  for (size_t i = 0; i < pending.size();) {
    Pending& connection = pending[i];
    const bool open = Step(connection);
    if (open && connection.stage != Stage::kComplete) {
      ++i;
      continue;
    }
    std::optional<Arrival> arrival;
    if (open) {
      arrival = {.from = connection.opening.introduction.from,
                 .host = std::move(connection.host),
                 .stream = std::move(connection.stream),
                 .message = std::move(connection.message)};
    }
    pending.erase(pending.begin() + static_cast<ptrdiff_t>(i));
    if (arrival) return arrival;
  }
  return std::nullopt;
}

// Continues the handshake with the bytes that have arrived. Returns false if the connection must be
// closed.
bool AuthenticatedListener::Impl::Step(Pending& connection) {
  while (connection.stage != Stage::kComplete) {
    if (!Receive(connection)) return false;
    if (connection.received < connection.Object().size()) return true;
    connection.received = 0;
    if (!Advance(connection)) return false;
  }
  return true;
}

bool AuthenticatedListener::Impl::Receive(Pending& connection) {
  std::span<std::byte> left = connection.Object().subspan(connection.received);
  const IoResult result = connection.stream.ReceiveArrived(left);
  connection.received = connection.Object().size() - left.size();
  if (connection.stage == Stage::kOpening) {
    const auto start = connection.Object().first(std::min(connection.received, sizeof(Magic)));
    if (!std::ranges::equal(start, std::as_bytes(std::span(kMagic)).first(start.size()))) {
      LogOnce(LogLevel::kWarning, fmt::format("refused a connection: {} sent something other than "
                                              "a handshake of this version",
                                              connection.host));
      return false;
    }
  }
  if (result != IoResult::kClosed) return true;
  LogOnce(LogLevel::kInfo,
          fmt::format("{} closed its connection before the handshake", connection.host));
  return false;
}

// Called when the object that the connection's stage expects is complete.
bool AuthenticatedListener::Impl::Advance(Pending& connection) {
  switch (connection.stage) {
    case Stage::kOpening:
      return OnOpening(connection);
    case Stage::kProof:
      return OnProof(connection);
    case Stage::kSize:
      return OnSize(connection);
    case Stage::kMessage: {
      const size_t size = connection.message.size();
      const bool complete = size == connection.size;
      if (complete) connection.stage = Stage::kComplete;
      connection.message.resize(std::min<size_t>(connection.size, size + kMessagePiece));
      connection.received = size;
      return true;
    }
    case Stage::kComplete:
      break;
  }
  return true;
}

bool AuthenticatedListener::Impl::OnOpening(Pending& connection) {
  const Opening& opening = connection.opening;
  Challenge& challenge = connection.challenge;
  challenge.has_secret = options.key.is_secret;
  FillRandom(challenge.nonce);
  if (opening.introduction.purpose != options.purpose || opening.introduction.to != options.self) {
    challenge.verdict = Verdict::kUnexpected;
  } else if (opening.has_secret != challenge.has_secret) {
    challenge.verdict = options.key.is_secret ? Verdict::kSecretWanted : Verdict::kNoSecret;
  }
  if (challenge.verdict != Verdict::kAccepted) Refuse(connection, challenge.verdict);
  connection.stage = Stage::kProof;
  return SendAtOnce(connection.stream, challenge) && challenge.verdict == Verdict::kAccepted;
}

bool AuthenticatedListener::Impl::OnProof(Pending& connection) {
  const Opening& opening = connection.opening;
  const Digest wanted = Prove(options.key, Role::kOpener, opening, connection.challenge);
  Conclusion conclusion;
  if (!SameDigest(connection.proof, wanted)) {
    conclusion.verdict = Verdict::kWrongSecret;
  } else if (options.expects && !options.expects(opening.introduction.from)) {
    conclusion.verdict = Verdict::kUnexpected;
  } else {
    conclusion.proof = Prove(options.key, Role::kAcceptor, opening, connection.challenge);
  }
  if (conclusion.verdict != Verdict::kAccepted) Refuse(connection, conclusion.verdict);
  connection.stage = options.message_limit > 0 ? Stage::kSize : Stage::kComplete;
  return SendAtOnce(connection.stream, conclusion) && conclusion.verdict == Verdict::kAccepted;
}

bool AuthenticatedListener::Impl::OnSize(Pending& connection) {
  connection.stage = Stage::kMessage;
  if (connection.size <= options.message_limit) return true;
  LogOnce(LogLevel::kWarning,
          fmt::format("{} sent a message of {} bytes; the limit is {}: its connection is closed",
                      connection.Name(), connection.size, options.message_limit));
  return false;
}

// ---- Waiting ----

void AuthenticatedListener::Impl::Wait(const IoLimit& limit) const {
  const auto now = steady_clock::now();
  auto until = std::min(limit.until, now + kPollInterval);
  std::vector<pollfd> items;
  // A listener that cannot accept stays readable, so polling it would return immediately.
  if (!exhausted) items.push_back({const_cast<TcpListener&>(listener).socket().get(), POLLIN, 0});
  for (const Pending& connection : pending) {
    items.push_back({connection.stream.fd(), POLLIN, 0});
    until = std::min(until, connection.deadline);
  }
  const auto left = std::chrono::ceil<milliseconds>(until - now);
  poll(items.data(), items.size(), std::max(0, static_cast<int>(left.count())));
}

AuthenticatedListener::AuthenticatedListener(TcpListener& listener, Options options)
    : impl_(new Impl{.listener = listener, .options = std::move(options)}) {}

AuthenticatedListener::~AuthenticatedListener() = default;

std::optional<AuthenticatedListener::Arrival> AuthenticatedListener::Accept(const IoLimit& limit) {
  for (;;) {
    impl_->AcceptArrived();
    if (auto arrival = impl_->StepAll()) return arrival;
    impl_->CloseLate();
    if (limit.stop && limit.stop()) return std::nullopt;
    if (steady_clock::now() >= limit.until) return std::nullopt;
    impl_->Wait(limit);
  }
}

const std::vector<std::string>& AuthenticatedListener::refusals() const { return impl_->refusals; }

bool SendMessage(TcpStream& stream, const std::string& message, const IoLimit& limit) {
  uint64_t size = message.size();
  iovec parts[] = {{&size, sizeof size}, {const_cast<char*>(message.data()), message.size()}};
  return stream.Send(parts, limit) == IoResult::kDone;
}

std::optional<std::string> ReceiveMessage(TcpStream& stream, size_t most, const IoLimit& limit) {
  uint64_t size = 0;
  if (stream.Receive(&size, sizeof size, limit) != IoResult::kDone) return std::nullopt;
  if (size > most) return std::nullopt;
  std::string message(size, '\0');
  if (stream.Receive(message.data(), size, limit) != IoResult::kDone) return std::nullopt;
  return message;
}

}  // namespace switchyard
