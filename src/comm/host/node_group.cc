#include "comm/host/node_group.h"

#include <poll.h>
#include <pthread.h>

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "comm/net/handshake.h"
#include "core/error.h"
#include "core/log.h"
#include "core/wire.h"

namespace switchyard {
namespace {

using namespace std::chrono_literals;
using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr size_t kMaxBytes = size_t{64} << 20;      // maximum of a message of node 0
constexpr size_t kMaxHelloBytes = size_t{1} << 20;  // maximum of a NodeHello
constexpr milliseconds kMemberInterval = 100ms;     // between two checks of joined nodes
constexpr milliseconds kSendTimeout = 1s;
// Added to the timeout of other nodes, so that node 0 times out first and names the missing nodes.
constexpr milliseconds kJoinSlack = 5s;
constexpr const char* kSecretHint = "--dist-secret-file needs the same secret on all nodes";

// kCause: `why` is the root cause. kRanks: a NodeRanksEnd.
enum class News : uint8_t { kEnd, kLost, kCause, kRanks };

// The first message of a node.
struct NodeHello {
  int nodes = 0;
  Statement statement;
  std::vector<HostPort> listeners;

  std::string Encode() const {
    WireWriter writer;
    writer.Put(nodes);
    writer.Put(EncodeStatement(statement));
    writer.Put(listeners.size());
    for (const HostPort& address : listeners) writer.Put(address.Text());
    return writer.Take();
  }

  static NodeHello Decode(std::string_view bytes) {
    WireReader reader(bytes);
    NodeHello hello;
    hello.nodes = reader.Get<int>();
    hello.statement = DecodeStatement(reader.GetString());
    const auto count = reader.Get<size_t>();
    for (size_t i = 0; i < count; ++i) {
      hello.listeners.push_back(HostPort::Parse("listener of a rank", reader.GetString()));
    }
    return hello;
  }
};

std::vector<TcpListener> BindForRanks(const std::string& host, int ranks) {
  std::vector<TcpListener> listeners;
  for (int i = 0; i < ranks; ++i) listeners.push_back(TcpListener::Bind({host, 0}));
  return listeners;
}

std::vector<HostPort> AddressesOf(const std::vector<TcpListener>& listeners) {
  std::vector<HostPort> addresses;
  for (const TcpListener& listener : listeners) addresses.push_back(listener.address());
  return addresses;
}

ConnectionKey NodeKey(const std::string& secret) {
  return ConnectionKey::Of(secret, "switchyard nodes");
}

// Replaces node 0's token with the key for connections between ranks. With a secret, the key is
// derived and never sent. Without one, the token itself is the key.
void DeriveRankKey(TcpWorld* world, const std::string& secret) {
  if (!secret.empty()) world->token = DeriveKey(secret, "switchyard ranks " + world->token);
}

double Seconds(milliseconds time) { return std::chrono::duration<double>(time).count(); }

std::string NodeName(int node, const std::string& host) {
  return fmt::format("node {} ({})", node, host);
}

// Of node 0's address.
AuthenticatedListener::Options ListenerOptions(const NodeGroup::Options& options) {
  return {.key = NodeKey(options.secret),
          .purpose = Purpose::kNode,
          .self = 0,
          .message_limit = kMaxHelloBytes};
}

bool AnyAddress(const std::string& host) { return host == "0.0.0.0" || host == "::"; }

}  // namespace

std::string NodeRanksEnd::Encode() const {
  WireWriter writer;
  writer.Put(exits.size());
  for (const Exit& exit : exits) {
    writer.Put(exit.rank);
    writer.Put(exit.code);
    writer.Put(exit.signal);
  }
  writer.Put(batch.has_value());
  if (batch) writer.Put(*batch);
  return writer.Take();
}

NodeRanksEnd NodeRanksEnd::Decode(std::string_view bytes) {
  WireReader reader(bytes);
  NodeRanksEnd end;
  const auto count = reader.Get<size_t>();
  for (size_t i = 0; i < count; ++i) {
    Exit exit;
    exit.rank = reader.Get<int>();
    exit.code = reader.Get<int>();
    exit.signal = reader.Get<int>();
    end.exits.push_back(exit);
  }
  if (reader.Get<bool>()) end.batch = reader.GetVector<uint64_t>();
  return end;
}

std::string NodeGroup::Describe(int node) const {
  for (const Member& member : members_) {
    if (member.node == node) return NodeName(node, member.host);
  }
  return NodeName(node, host_);
}

// ---- The rendezvous ----

std::unique_ptr<NodeGroup> NodeGroup::Lead(const Options& options, const std::string& job) {
  TcpListener door = TcpListener::Bind(options.address);
  std::unique_ptr<NodeGroup> group(new NodeGroup());
  NodeGroup& my = *group;
  my.job_ = job;
  my.host_ = door.address().host;
  if (AnyAddress(my.host_)) {
    throw Invalid("--dist-init-addr {}: want an address of node 0 that the other nodes can reach",
                  options.address.Text());
  }
  my.network_.listeners = BindForRanks(my.host_, options.ranks_per_node);
  try {
    if (!my.Gather(door, options)) return nullptr;
  } catch (const Error& error) {
    my.TellAll(EncodeRefusal(error.what()));
    throw;
  }
  std::ranges::sort(my.members_, {}, &Member::node);
  TcpWorld& world = my.network_.world;
  world = {.token = TcpWorld::NewToken(), .ranks_per_node = options.ranks_per_node};
  world.listeners = AddressesOf(my.network_.listeners);
  for (const Member& member : my.members_) {
    world.listeners.insert(world.listeners.end(), member.listeners.begin(), member.listeners.end());
  }
  WireWriter writer;
  writer.Put(world.Encode());
  writer.Put(job);
  my.TellAll(EncodeJob(writer.Take()));
  DeriveRankKey(&world, options.secret);
  return group;
}

bool NodeGroup::Gather(TcpListener& door, const Options& options) {
  AuthenticatedListener listener(door, ListenerOptions(options));
  const auto until = steady_clock::now() + options.timeout;
  LOG_INFO("waiting for {} more nodes at {}", options.nodes - 1, options.address.Text());
  while (static_cast<int>(members_.size()) < options.nodes - 1) {
    const auto slice = std::min(until, steady_clock::now() + kMemberInterval);
    auto arrival = listener.Accept({.until = slice, .stop = options.give_up});
    RemoveClosed();
    if (arrival) {
      const size_t before = members_.size();
      try {
        Admit(std::move(*arrival), options);
      } catch (const Error& error) {
        if (!options.restart || members_.size() == before) throw;
        LOG_WARNING("{}; the wait continues without this node", error.what());
        SendMessage(members_.back().stream, EncodeRefusal(error.what()),
                    IoLimit::After(kSendTimeout));
        members_.pop_back();
      }
      continue;
    }
    if (options.give_up && options.give_up()) return false;
    if (steady_clock::now() < until) continue;
    const auto& refusals = listener.refusals();
    throw Error(
        ErrorKind::kTimeout,
        fmt::format("node 0 waited {:g} s at {} for node {} of {}{}{}", Seconds(options.timeout),
                    options.address.Text(), Missing(options), options.nodes,
                    refusals.empty() ? "" : "; refused: ", Joined(refusals, "; ")),
        refusals.empty()
            ? "run the same command on each missing node, with the --node-rank of that node"
            : kSecretHint);
  }
  return true;
}

// A node sends nothing while it waits for the job. So received bytes or an end of stream mean that
// the node has left.
void NodeGroup::RemoveClosed() {
  std::erase_if(members_, [](const Member& member) {
    pollfd item{member.stream.fd(), POLLIN, 0};
    if (poll(&item, 1, 0) <= 0) return false;
    LOG_WARNING("{} has left before all nodes had joined", NodeName(member.node, member.host));
    return true;
  });
}

void NodeGroup::Admit(AuthenticatedListener::Arrival arrival, const Options& options) {
  const int node = arrival.from;
  const std::string who = NodeName(node, arrival.host);
  NodeHello hello;
  try {
    hello = NodeHello::Decode(arrival.message);
  } catch (const Error& error) {
    LOG_WARNING("{} is refused: it sent a malformed message: {}", who, error.what());
    return;
  }
  const bool is_there =
      std::ranges::any_of(members_, [&](const Member& other) { return other.node == node; });
  // The node is added before the checks, so that it receives the error if a check fails.
  members_.push_back({.node = node,
                      .host = std::move(arrival.host),
                      .listeners = std::move(hello.listeners),
                      .stream = std::move(arrival.stream)});
  if (hello.nodes != options.nodes) {
    throw Invalid("--nnodes is {} on node 0, but {} on {}: all nodes need the same value",
                  options.nodes, hello.nodes, who);
  }
  if (node < 1 || node >= options.nodes) {
    throw Invalid("{}: want --node-rank 0 to {}", who, options.nodes - 1);
  }
  if (is_there) throw Invalid("{}: another node has joined with the same --node-rank", who);
  CheckSame(options.statement, hello.statement, "node 0", who);
  if (static_cast<int>(members_.back().listeners.size()) != options.ranks_per_node) {
    throw Invalid("{} runs another build than node 0", who);
  }
  LOG_INFO("{} has joined", who);
}

std::string NodeGroup::Missing(const Options& options) const {
  std::set<int> missing;
  for (int node = 1; node < options.nodes; ++node) missing.insert(node);
  for (const Member& member : members_) missing.erase(member.node);
  return Joined(missing, ", ");
}

std::unique_ptr<NodeGroup> NodeGroup::Join(const Options& options) {
  LOG_INFO("node {} connects to node 0 at {}", options.node, options.address.Text());
  const auto stopped = [&] { return options.give_up && options.give_up(); };
  const milliseconds time =
      options.connect_timeout.count() > 0 ? options.connect_timeout : options.timeout;
  const IoLimit limit = IoLimit::After(time, options.give_up);
  OpenedConnection opened =
      OpenAuthenticated(options.address, NodeKey(options.secret),
                        {.purpose = Purpose::kNode, .from = options.node, .to = 0}, limit);
  auto& stream = opened.stream;
  if (!stream) {
    if (opened.verdict != Verdict::kAccepted) {
      const std::string node0 = fmt::format("node 0 at {}", options.address.Text());
      throw Error(ErrorKind::kInvalid,
                  DescribeVerdict(opened.verdict, fmt::format("node {}", options.node), node0),
                  opened.verdict == Verdict::kForeign ? "" : kSecretHint);
    }
    if (stopped()) return nullptr;
    throw Error(
        ErrorKind::kTimeout,
        fmt::format("node {} waited {:g} s for node 0 at {}{}", options.node, Seconds(time),
                    options.address.Text(),
                    opened.connected ? ", which accepts connections but does not answer" : ""),
        "--dist-init-addr is the address of node 0, and has to be the same on all nodes");
  }
  std::unique_ptr<NodeGroup> group(new NodeGroup());
  group->host_ = stream->LocalHost();
  group->network_.node = options.node;
  group->network_.listeners = BindForRanks(group->host_, options.ranks_per_node);
  const NodeHello hello{options.nodes, options.statement, AddressesOf(group->network_.listeners)};
  std::optional<std::string> answer;
  if (SendMessage(*stream, hello.Encode(), limit)) {
    answer = ReceiveMessage(*stream, kMaxBytes,
                            IoLimit::After(options.timeout + kJoinSlack, options.give_up));
  }
  if (!answer) {
    if (stopped()) return nullptr;
    throw Error(ErrorKind::kPeer, fmt::format("node 0 at {} exited before all nodes had joined",
                                              options.address.Text()));
  }
  const std::string job = DecodeJob(*answer);
  WireReader reader(job);
  group->network_.world = TcpWorld::Decode(reader.GetString());
  DeriveRankKey(&group->network_.world, options.secret);
  group->job_ = reader.GetString();
  group->members_.push_back({.node = 0, .host = stream->PeerHost(), .stream = std::move(*stream)});
  return group;
}

// ---- Watching ----

void NodeGroup::Watch(Events events) {
  events_ = std::move(events);
  for (Member& member : members_) {
    member.watcher = std::thread([this, &member] { Listen(member); });
  }
}

void NodeGroup::Listen(Member& member) {
  pthread_setname_np(pthread_self(), fmt::format("node {}", member.node).c_str());
  for (;;) {
    const auto text = ReceiveMessage(member.stream, kMaxBytes, {});
    if (!text || text->empty()) return OnClosed(member);
    const auto news = static_cast<News>(text->front());
    const std::string rest = text->substr(1);
    if (news == News::kEnd) break;
    if (news == News::kRanks) {
      if (!OnRanksEnd(member, rest)) return OnClosed(member);
    } else {
      Report(fmt::format("{}: {}", Describe(member.node), rest), news == News::kCause);
    }
  }
  {
    const std::lock_guard lock(mutex_);
    if (std::exchange(ending_, true)) return;
  }
  if (events_.on_end) events_.on_end();
}

// False if the bytes are malformed.
bool NodeGroup::OnRanksEnd(Member& member, std::string_view bytes) {
  try {
    NodeRanksEnd end = NodeRanksEnd::Decode(bytes);
    const std::lock_guard lock(mutex_);
    member.ranks_end = std::move(end);
  } catch (const Error& error) {
    LOG_WARNING("{} sent a malformed message: {}", Describe(member.node), error.what());
    return false;
  }
  told_.notify_all();
  return true;
}

void NodeGroup::OnClosed(Member& member) {
  bool expected = false;
  {
    const std::lock_guard lock(mutex_);
    member.closed = true;
    expected = member.ranks_end.has_value();  // its last message
  }
  told_.notify_all();
  if (!expected) Report(Describe(member.node) + " is gone: its connection closed", true);
}

void NodeGroup::Report(const std::string& why, bool cause) {
  {
    const std::lock_guard lock(mutex_);
    if (ending_ || std::exchange(reported_, true)) return;
  }
  if (events_.on_lost) events_.on_lost(why, cause);
}

void NodeGroup::TellAll(const std::string& message) {
  const std::lock_guard lock(mutex_);
  for (Member& member : members_) SendMessage(member.stream, message, IoLimit::After(kSendTimeout));
}

void NodeGroup::SendEnd() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  TellAll(std::string(1, static_cast<char>(News::kEnd)));
}

void NodeGroup::SendLost(const std::string& why, bool cause) {
  TellAll(static_cast<char>(cause ? News::kCause : News::kLost) + why);
}

void NodeGroup::SendRanksEnd(const NodeRanksEnd& end) {
  TellAll(static_cast<char>(News::kRanks) + end.Encode());
}

std::vector<std::optional<NodeRanksEnd>> NodeGroup::AwaitRanksEnds(milliseconds wait) {
  std::unique_lock lock(mutex_);
  told_.wait_for(lock, wait, [this] {
    return std::ranges::all_of(members_, [](const Member& m) { return m.ranks_end || m.closed; });
  });
  std::vector<std::optional<NodeRanksEnd>> ends;
  for (const Member& member : members_) ends.push_back(member.ranks_end);
  return ends;
}

void NodeGroup::Dismiss(const Options& options, const std::string& why, milliseconds wait) {
  TcpListener door = TcpListener::Bind(options.address);
  AuthenticatedListener listener(door, ListenerOptions(options));
  const auto until = steady_clock::now() + wait;
  std::set<int> told;
  while (static_cast<int>(told.size()) < options.nodes - 1) {
    auto arrival = listener.Accept({.until = until, .stop = options.give_up});
    if (!arrival) return;
    SendMessage(arrival->stream, EncodeEnd(why), IoLimit::After(kSendTimeout));
    told.insert(arrival->from);
  }
}

NodeGroup::~NodeGroup() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  for (Member& member : members_) {
    member.stream.Shutdown();
    if (member.watcher.joinable()) member.watcher.join();
  }
}

}  // namespace switchyard
