#include "comm/host/node_group.h"

#include <pthread.h>

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "core/check.h"
#include "core/error.h"
#include "core/log.h"
#include "core/wire.h"

namespace switchyard {
namespace {

using namespace std::chrono_literals;
using std::chrono::milliseconds;

constexpr std::string_view kMagic = "switchyard-node-1";  // includes the protocol version
constexpr uint64_t kMaxBytes = uint64_t{64} << 20;        // of a message
constexpr milliseconds kHelloTimeout = 2s;                // timeout for a NodeHello
constexpr milliseconds kSendTimeout = 1s;
// Added to the timeout of other nodes, so that node 0 times out first and names the missing nodes.
constexpr milliseconds kJoinSlack = 5s;

enum class News : uint8_t { kEnd, kLost, kCause };  // kCause: kLost with its root cause

bool SendText(TcpStream& stream, const std::string& text, const IoLimit& limit) {
  uint64_t size = text.size();
  iovec parts[] = {{&size, sizeof size}, {const_cast<char*>(text.data()), text.size()}};
  return stream.Send(parts, limit) == IoResult::kDone;
}

std::optional<std::string> ReceiveText(TcpStream& stream, const IoLimit& limit = {}) {
  uint64_t size = 0;
  if (stream.Receive(&size, sizeof size, limit) != IoResult::kDone) return std::nullopt;
  if (size > kMaxBytes) return std::nullopt;
  std::string text(size, '\0');
  if (stream.Receive(text.data(), size, limit) != IoResult::kDone) return std::nullopt;
  return text;
}

// The first message of a node.
struct NodeHello {
  int node = 0, nodes = 0;
  Statement statement;
  std::vector<std::string> listeners;

  std::string Encode() const {
    WireWriter writer;
    writer.Put(kMagic);
    writer.Put(node);
    writer.Put(nodes);
    writer.Put(EncodeStatement(statement));
    writer.Put(listeners.size());
    for (const std::string& address : listeners) writer.Put(address);
    return writer.Take();
  }

  static NodeHello Decode(std::string_view bytes) {
    WireReader reader(bytes);
    if (reader.GetString() != kMagic) throw Invalid("not a node of this version");
    NodeHello hello;
    hello.node = reader.Get<int>();
    hello.nodes = reader.Get<int>();
    hello.statement = DecodeStatement(reader.GetString());
    const auto count = reader.Get<size_t>();
    for (size_t i = 0; i < count; ++i) hello.listeners.push_back(reader.GetString());
    return hello;
  }
};

std::vector<TcpListener> BindForRanks(const std::string& host, int ranks) {
  std::vector<TcpListener> listeners;
  for (int i = 0; i < ranks; ++i) listeners.push_back(TcpListener::Bind({host, 0}));
  return listeners;
}

std::vector<std::string> AddressesOf(const std::vector<TcpListener>& listeners) {
  std::vector<std::string> addresses;
  for (const TcpListener& listener : listeners) addresses.push_back(listener.address().Text());
  return addresses;
}

double Seconds(milliseconds time) { return std::chrono::duration<double>(time).count(); }

std::string NodeName(int node, const std::string& host) {
  return fmt::format("node {} ({})", node, host);
}

bool AnyAddress(const std::string& host) { return host == "0.0.0.0" || host == "::"; }

}  // namespace

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
  const auto add = [&](const std::vector<std::string>& addresses) {
    for (const std::string& address : addresses) {
      world.listeners.push_back(HostPort::Parse("listener of a rank", address));
    }
  };
  add(AddressesOf(my.network_.listeners));
  for (const Member& member : my.members_) add(member.listeners);
  WireWriter writer;
  writer.Put(world.Encode());
  writer.Put(job);
  my.TellAll(EncodeJob(writer.Take()));
  return group;
}

bool NodeGroup::Gather(TcpListener& door, const Options& options) {
  const IoLimit limit = IoLimit::After(options.timeout, options.give_up);
  LOG_INFO("waiting for {} more nodes at {}", options.nodes - 1, options.address.Text());
  while (static_cast<int>(members_.size()) < options.nodes - 1) {
    auto stream = door.Accept(limit);
    if (stream) {
      Admit(std::move(*stream), options);
      continue;
    }
    if (options.give_up && options.give_up()) return false;
    throw Error(
        ErrorKind::kTimeout,
        fmt::format("node 0 waited {:g} s at {} for node {} of {}", Seconds(options.timeout),
                    options.address.Text(), Missing(options), options.nodes),
        "start switchyard serve there, with its --node-rank");
  }
  return true;
}

// Reads the introduction of a new connection; ignores connections that are not nodes.
void NodeGroup::Admit(TcpStream stream, const Options& options) {
  const auto text = ReceiveText(stream, IoLimit::After(kHelloTimeout, options.give_up));
  if (!text) return;
  NodeHello hello;
  try {
    hello = NodeHello::Decode(*text);
  } catch (const Error&) {
    return;
  }
  const std::string who = NodeName(hello.node, stream.PeerHost());
  Member member{.node = hello.node,
                .host = stream.PeerHost(),
                .listeners = std::move(hello.listeners),
                .stream = std::move(stream)};
  const bool is_there =
      std::ranges::any_of(members_, [&](const Member& other) { return other.node == hello.node; });
  members_.push_back(std::move(member));  // first, so that it receives the refusal
  if (hello.nodes != options.nodes) {
    throw Invalid("--nnodes is {} on node 0, but {} on {}: all nodes need the same", options.nodes,
                  hello.nodes, who);
  }
  if (hello.node < 1 || hello.node >= options.nodes) {
    throw Invalid("{}: want --node-rank 0 to {}", who, options.nodes - 1);
  }
  if (is_there) throw Invalid("{}: another node has joined with the same --node-rank", who);
  CheckSame(options.statement, hello.statement, who);
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
  auto stream =
      TcpStream::Connect(options.address, IoLimit::After(options.timeout, options.give_up));
  if (!stream) {
    if (stopped()) return nullptr;
    throw Error(ErrorKind::kTimeout,
                fmt::format("node {} waited {:g} s for node 0 at {}", options.node,
                            Seconds(options.timeout), options.address.Text()),
                "--dist-init-addr is the address of node 0, and has to be the same on all nodes");
  }
  std::unique_ptr<NodeGroup> group(new NodeGroup());
  group->host_ = stream->LocalHost();
  group->network_.node = options.node;
  group->network_.listeners = BindForRanks(group->host_, options.ranks_per_node);
  const NodeHello hello{options.node, options.nodes, options.statement,
                        AddressesOf(group->network_.listeners)};
  std::optional<std::string> answer;
  if (SendText(*stream, hello.Encode(), IoLimit::After(kHelloTimeout))) {
    answer = ReceiveText(*stream, IoLimit::After(options.timeout + kJoinSlack, options.give_up));
  }
  if (!answer) {
    if (stopped()) return nullptr;
    throw Error(ErrorKind::kPeer, fmt::format("node 0 at {} exited before all nodes had joined",
                                              options.address.Text()));
  }
  const std::string job = DecodeJob(*answer);
  WireReader reader(job);
  group->network_.world = TcpWorld::Decode(reader.GetString());
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
  const auto text = ReceiveText(member.stream);
  if (!text || text->empty()) {
    Report(Describe(member.node) + " is gone: its connection closed", true);
    return;
  }
  const auto news = static_cast<News>(text->front());
  if (news != News::kEnd) {
    Report(fmt::format("{}: {}", Describe(member.node), text->substr(1)), news == News::kCause);
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    if (std::exchange(ending_, true)) return;
  }
  if (events_.on_end) events_.on_end();
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
  for (Member& member : members_) SendText(member.stream, message, IoLimit::After(kSendTimeout));
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
