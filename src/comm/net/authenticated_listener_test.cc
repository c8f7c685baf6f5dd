#include "comm/net/authenticated_listener.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <atomic>
#include <future>
#include <sstream>

#include "comm/net/handshake.h"
#include "comm/net/test_strangers.h"
#include "core/error.h"
#include "core/log.h"

namespace switchyard {
namespace {

using namespace handshake;
using std::chrono::milliseconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr milliseconds kLong(60'000);
constexpr Introduction kNode1{.purpose = Purpose::kNode, .from = 1, .to = 0};

ConnectionKey Key(std::string_view secret) { return ConnectionKey::Of(secret, "test"); }

std::future<OpenedConnection> Open(const HostPort& peer, const std::string& secret,
                                   Introduction introduction = kNode1) {
  return std::async(std::launch::async, [=] {
    return OpenAuthenticated(peer, Key(secret), introduction, IoLimit::After(kLong));
  });
}

// An acceptor that accepts in a thread of its own until it is destroyed.
class AcceptorTest : public ::testing::Test {
 protected:
  using Arrival = AuthenticatedListener::Arrival;

  void Start(AuthenticatedListener::Options options) {
    listener_.emplace(door_, std::move(options));
    thread_ = std::thread([this] {
      while (!stop_) {
        auto arrival = listener_->Accept(IoLimit::After(kLong, [this] { return stop_.load(); }));
        if (!arrival) continue;
        const std::lock_guard lock(mutex_);
        arrivals_.push_back(std::move(*arrival));
      }
    });
  }
  void Stop() {
    stop_ = true;
    if (thread_.joinable()) thread_.join();
  }
  void TearDown() override { Stop(); }
  std::vector<std::string> Refusals() {
    Stop();
    return listener_->refusals();
  }
  std::vector<int32_t> From() {
    Stop();
    std::vector<int32_t> from;
    for (const Arrival& arrival : arrivals_) from.push_back(arrival.from);
    return from;
  }
  HostPort address() const { return door_.address(); }

  TcpListener door_ = TcpListener::Bind({"127.0.0.1", 0});
  std::optional<AuthenticatedListener> listener_;
  std::atomic<bool> stop_{false};
  std::mutex mutex_;
  std::vector<Arrival> arrivals_;
  std::thread thread_;
};

TEST_F(AcceptorTest, PeersWithOneSecretConnect) {
  Start({.key = Key("one secret")});
  const OpenedConnection opened = Open(address(), "one secret").get();
  EXPECT_TRUE(opened.stream);
  EXPECT_THAT(From(), ElementsAre(1));
  EXPECT_THAT(Refusals(), IsEmpty());
}

TEST_F(AcceptorTest, PeersWithoutASecretConnect) {
  Start({.key = Key("")});
  EXPECT_TRUE(Open(address(), "").get().stream);
  EXPECT_THAT(From(), ElementsAre(1));
}

TEST_F(AcceptorTest, AnotherSecretIsRefusedOnBothSidesAndTheWaitContinues) {
  Start({.key = Key("one secret")});
  const OpenedConnection refused = Open(address(), "other secret").get();
  EXPECT_FALSE(refused.stream);
  EXPECT_EQ(refused.verdict, Verdict::kWrongSecret);
  EXPECT_TRUE(Open(address(), "one secret").get().stream);
  EXPECT_THAT(From(), ElementsAre(1));
  EXPECT_THAT(Refusals(), ElementsAre("node 1 (127.0.0.1) and node 0 have different secrets"));
}

TEST_F(AcceptorTest, ASecretOnOneSideOnlyIsRefused) {
  Start({.key = Key("one secret")});
  EXPECT_EQ(Open(address(), "").get().verdict, Verdict::kSecretWanted);
  EXPECT_THAT(From(), IsEmpty());
  EXPECT_THAT(Refusals(), ElementsAre("node 0 has a secret and node 1 (127.0.0.1) has none"));
}

TEST_F(AcceptorTest, ASecretThatTheAcceptorLacksIsRefused) {
  Start({.key = Key("")});
  EXPECT_EQ(Open(address(), "one secret").get().verdict, Verdict::kNoSecret);
  EXPECT_THAT(From(), IsEmpty());
  EXPECT_THAT(Refusals(), ElementsAre("node 1 (127.0.0.1) has a secret and node 0 has none"));
}

TEST_F(AcceptorTest, AnotherDestinationOrPurposeIsUnexpected) {
  Start({.key = Key("s"), .self = 3, .expects = [](int32_t from) { return from == 2; }});
  EXPECT_EQ(Open(address(), "s", {Purpose::kNode, 2, 4}).get().verdict, Verdict::kUnexpected);
  EXPECT_EQ(Open(address(), "s", {Purpose::kRank, 2, 3}).get().verdict, Verdict::kUnexpected);
  EXPECT_EQ(Open(address(), "s", {Purpose::kNode, 1, 3}).get().verdict, Verdict::kUnexpected);
  EXPECT_TRUE(Open(address(), "s", {Purpose::kNode, 2, 3}).get().stream);
  EXPECT_THAT(From(), ElementsAre(2));
}

TEST_F(AcceptorTest, StrangersDoNotEndOrDelayTheWait) {
  std::ostringstream log;
  {
    const LogCapture capture(log);
    Start({.key = Key("one secret")});
    const auto strangers = OpenStrangers(address());
    EXPECT_TRUE(Open(address(), "one secret").get().stream);
    EXPECT_THAT(From(), ElementsAre(1));
    EXPECT_THAT(Refusals(), IsEmpty());
  }
  // Several invalid connections of one host give only one log line.
  const std::string_view line = "127.0.0.1 sent something other than a handshake of this version";
  const size_t first = log.str().find(line);
  ASSERT_NE(first, std::string::npos) << log.str();
  EXPECT_EQ(log.str().find(line, first + 1), std::string::npos) << log.str();
}

TEST_F(AcceptorTest, MorePendingConnectionsThanAllowedDoNotBlockAPeer) {
  Start({.key = Key("one secret"), .max_pending = 8});
  const auto strangers = OpenStrangers(address(), 40);
  EXPECT_TRUE(Open(address(), "one secret").get().stream);
  EXPECT_THAT(From(), ElementsAre(1));
}

TcpStream ConnectFrom(const char* host, const HostPort& peer) {
  FileDescriptor fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  inet_pton(AF_INET, host, &address.sin_addr);
  EXPECT_EQ(bind(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  inet_pton(AF_INET, peer.host.c_str(), &address.sin_addr);
  address.sin_port = htons(static_cast<uint16_t>(peer.port));
  EXPECT_EQ(connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  return TcpStream(std::move(fd));
}

TEST_F(AcceptorTest, AHostWithManyConnectionsDoesNotDisplaceAnother) {
  TcpStream peer = ConnectFrom("127.0.0.2", address());  // the oldest connection
  std::vector<TcpStream> silent;
  for (int i = 0; i < 40; ++i) silent.push_back(ConnectAsStranger(address()));
  Start({.key = Key("one secret"), .max_pending = 8});
  // The listener closes a connection only when it takes another one while 8 are pending. So after
  // 33 closed connections, it has taken all 41 from the socket.
  for (int i = 0; i < 33; ++i) {
    char byte = 0;
    EXPECT_EQ(silent[i].Receive(&byte, 1), IoResult::kClosed);
  }
  const HandshakeResult result =
      OpenHandshake(peer, Key("one secret"), kNode1, IoLimit::After(kLong));
  EXPECT_EQ(result.io, IoResult::kDone);
  EXPECT_EQ(result.verdict, Verdict::kAccepted);
}

TEST_F(AcceptorTest, ASilentConnectionIsClosedAfterItsTimeout) {
  Start({.key = Key("one secret"), .timeout = milliseconds(20)});
  TcpStream silent = ConnectAsStranger(address());
  char byte = 0;
  EXPECT_EQ(silent.Receive(&byte, 1, IoLimit::After(kLong)), IoResult::kClosed);
}

TEST_F(AcceptorTest, AMessageArrivesInPieces) {
  Start({.key = Key("one secret"), .message_limit = 1 << 20});
  auto opened = Open(address(), "one secret").get();
  ASSERT_TRUE(opened.stream);
  std::string message(300'000, 'x');
  for (size_t i = 0; i < message.size(); ++i) message[i] = static_cast<char>(i * i % 251);
  const uint64_t size = message.size();
  SendObject(*opened.stream, size);
  SendBytes(*opened.stream, std::string_view(message).substr(0, 100'000));
  SendBytes(*opened.stream, std::string_view(message).substr(100'000));
  auto empty = Open(address(), "one secret", {Purpose::kNode, 2, 0}).get();
  ASSERT_TRUE(SendMessage(*empty.stream, "", IoLimit::After(kLong)));
  for (;;) {
    const std::lock_guard lock(mutex_);
    if (arrivals_.size() == 2) break;
  }
  std::ranges::sort(arrivals_, {}, &Arrival::from);
  EXPECT_EQ(arrivals_[0].message, message);
  EXPECT_EQ(arrivals_[1].message, "");
}

TEST_F(AcceptorTest, AMessageOverTheLimitClosesTheConnection) {
  Start({.key = Key("one secret"), .message_limit = 100});
  auto opened = Open(address(), "one secret").get();
  ASSERT_TRUE(opened.stream);
  SendObject(*opened.stream, uint64_t{101});
  char byte = 0;
  EXPECT_EQ(opened.stream->Receive(&byte, 1, IoLimit::After(kLong)), IoResult::kClosed);
}

// An opener that the test emulates message by message.
struct ByHand {
  explicit ByHand(const HostPort& peer) : stream(ConnectAsStranger(peer)) {}

  void Begin(const Opening& start) {
    opening = start;
    SendObject(stream, opening);
    ASSERT_EQ(stream.Receive(&challenge, sizeof challenge), IoResult::kDone);
  }
  Conclusion Prove(const Digest& sent) {
    proof = sent;
    SendObject(stream, proof);
    Conclusion conclusion;
    EXPECT_EQ(stream.Receive(&conclusion, sizeof conclusion), IoResult::kDone);
    return conclusion;
  }
  TcpStream stream;
  Opening opening;
  Challenge challenge;
  Digest proof{};
};

Opening SecretOpening() {
  Opening opening{.introduction = kNode1, .has_secret = 1};
  FillRandom(opening.nonce);
  return opening;
}

TEST_F(AcceptorTest, AReplayedHandshakeIsRefused) {
  Start({.key = Key("one secret")});
  ByHand recorded(address());
  recorded.Begin(SecretOpening());
  const Digest proof =
      Prove(Key("one secret"), Role::kOpener, recorded.opening, recorded.challenge);
  EXPECT_EQ(recorded.Prove(proof).verdict, Verdict::kAccepted);

  ByHand replayed(address());
  replayed.Begin(recorded.opening);
  EXPECT_NE(replayed.challenge.nonce, recorded.challenge.nonce);
  const Conclusion conclusion = replayed.Prove(recorded.proof);
  EXPECT_EQ(conclusion.verdict, Verdict::kWrongSecret);
  EXPECT_EQ(conclusion.proof, Digest{});  // reveals nothing about the key
  EXPECT_THAT(From(), ElementsAre(1));
}

TEST_F(AcceptorTest, AProofIsForOneIntroductionOnly) {
  Start({.key = Key("one secret")});
  ByHand connection(address());
  connection.Begin(SecretOpening());
  Opening other = connection.opening;
  other.introduction.from = 2;
  EXPECT_EQ(connection.Prove(Prove(Key("one secret"), Role::kOpener, other, connection.challenge))
                .verdict,
            Verdict::kWrongSecret);
}

TEST_F(AcceptorTest, AHandshakeMayArriveByteByByte) {
  Start({.key = Key("one secret")});
  ByHand slow(address());
  slow.opening = SecretOpening();
  for (const std::byte byte : std::as_bytes(std::span(&slow.opening, 1))) {
    SendObject(slow.stream, byte);
  }
  ASSERT_EQ(slow.stream.Receive(&slow.challenge, sizeof slow.challenge), IoResult::kDone);
  const Digest proof = Prove(Key("one secret"), Role::kOpener, slow.opening, slow.challenge);
  EXPECT_EQ(slow.Prove(proof).verdict, Verdict::kAccepted);
}

// ---- What an opener accepts ----

// Accepts one connection by hand, reads the opening and the proof, and sends its own answers.
std::future<void> PlayAcceptor(TcpListener& door, Challenge challenge, bool return_proof) {
  return std::async(std::launch::async, [&door, challenge, return_proof] {
    auto stream = door.Accept(IoLimit::After(kLong));
    Opening opening;
    Conclusion conclusion;
    ASSERT_EQ(stream->Receive(&opening, sizeof opening), IoResult::kDone);
    SendObject(*stream, challenge);
    ASSERT_EQ(stream->Receive(&conclusion.proof, sizeof(Digest)), IoResult::kDone);
    if (!return_proof) conclusion.proof = {};
    SendObject(*stream, conclusion);
    char byte = 0;
    EXPECT_EQ(stream->Receive(&byte, 1), IoResult::kClosed);
  });
}

class OpenerTest : public ::testing::Test {
 protected:
  TcpListener door_ = TcpListener::Bind({"127.0.0.1", 0});
};

TEST_F(OpenerTest, AnAcceptorWithoutAProofIsRefused) {
  auto acceptor = PlayAcceptor(door_, {.has_secret = 1}, false);
  EXPECT_EQ(Open(door_.address(), "one secret").get().verdict, Verdict::kWrongSecret);
  acceptor.get();
}

TEST_F(OpenerTest, ItsOwnProofSentBackIsRefused) {
  auto acceptor = PlayAcceptor(door_, {.has_secret = 1}, true);
  EXPECT_EQ(Open(door_.address(), "one secret").get().verdict, Verdict::kWrongSecret);
  acceptor.get();
}

TEST_F(OpenerTest, AnotherProgramIsNamedAsSuch) {
  auto opened = Open(door_.address(), "one secret");
  auto stream = door_.Accept(IoLimit::After(kLong));
  SendBytes(*stream, "HTTP/1.1 400 Bad Request\r\n\r\n");
  EXPECT_EQ(opened.get().verdict, Verdict::kForeign);
  EXPECT_THAT(DescribeVerdict(Verdict::kForeign, "node 1", "node 0"),
              HasSubstr("node 0 runs another program or version"));
}

TEST_F(OpenerTest, AClosedConnectionIsRetried) {
  auto opened = Open(door_.address(), "one secret");
  door_.Accept(IoLimit::After(kLong));  // accepts and closes the connection
  AuthenticatedListener listener(door_, {.key = Key("one secret")});
  EXPECT_TRUE(listener.Accept(IoLimit::After(kLong)));
  EXPECT_TRUE(opened.get().stream);
}

TEST_F(OpenerTest, SilenceIsATimeout) {
  const OpenedConnection opened =
      OpenAuthenticated(door_.address(), Key("s"), kNode1, IoLimit::After(milliseconds(50)));
  EXPECT_FALSE(opened.stream);
  EXPECT_TRUE(opened.connected);
  EXPECT_EQ(opened.verdict, Verdict::kAccepted);
}

}  // namespace
}  // namespace switchyard
