#include "comm/device/tcp/tcp_ranks.h"
#include "comm/net/handshake.h"
#include "core/error.h"
#include "core/wire.h"

namespace switchyard {
namespace {

constexpr size_t kTokenBytes = 32;

}  // namespace

std::string TcpWorld::Describe(int rank) const {
  return fmt::format("rank {} (node {}, {})", rank, NodeOf(rank), listeners[rank].host);
}

std::string TcpWorld::NewToken() {
  Digest token;
  static_assert(sizeof token == kTokenBytes);
  FillRandom(token);
  return {token.begin(), token.end()};
}

std::string TcpWorld::Encode() const {
  WireWriter writer;
  writer.Put(token);
  writer.Put(ranks_per_node);
  writer.Put(listeners.size());
  for (const HostPort& listener : listeners) writer.Put(listener.Text());
  return writer.Take();
}

TcpWorld TcpWorld::Decode(std::string_view bytes) {
  WireReader reader(bytes);
  TcpWorld world;
  world.token = reader.GetString();
  world.ranks_per_node = reader.Get<int>();
  const auto ranks = reader.Get<size_t>();
  for (size_t rank = 0; rank < ranks; ++rank) {
    world.listeners.push_back(HostPort::Parse("listener of a rank", reader.GetString()));
  }
  if (world.token.size() != kTokenBytes || world.ranks_per_node < 1) {
    throw Invalid("the list of ranks is malformed");
  }
  return world;
}

}  // namespace switchyard
