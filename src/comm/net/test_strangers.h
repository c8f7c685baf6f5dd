// Connections that are not peers of this program, for tests.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "comm/net/handshake.h"
#include "comm/net/tcp.h"
#include "core/error.h"

namespace switchyard {

inline TcpStream ConnectAsStranger(const HostPort& peer) {
  auto stream = TcpStream::Connect(peer, IoLimit::After(std::chrono::milliseconds(60'000)));
  if (!stream) throw Error(ErrorKind::kTimeout, "nothing listens at " + peer.Text());
  return std::move(*stream);
}

inline void SendBytes(TcpStream& stream, std::string_view bytes) {
  iovec part{const_cast<char*>(bytes.data()), bytes.size()};
  ASSERT_EQ(stream.Send({&part, 1}), IoResult::kDone);
}

template <typename T>
void SendObject(TcpStream& stream, const T& object) {
  SendBytes(stream, {reinterpret_cast<const char*>(&object), sizeof object});
}

// Opens `silent` connections that send nothing, and one of each of these strangers: a port scanner
// that closes immediately, an HTTP client, a TLS client, random bytes, a node of the previous
// version, and a node that stops within the handshake. Returns the connections that stay open.
inline std::vector<TcpStream> OpenStrangers(const HostPort& peer, int silent = 12) {
  std::vector<TcpStream> open;
  for (int i = 0; i < silent; ++i) open.push_back(ConnectAsStranger(peer));
  ConnectAsStranger(peer);
  for (const std::string_view bytes :
       {std::string_view("GET / HTTP/1.1\r\nHost: x\r\n\r\n"),
        std::string_view("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 11),
        std::string_view("\x11\0\0\0\0\0\0\0switchyard-node-1", 25)}) {
    open.push_back(ConnectAsStranger(peer));
    SendBytes(open.back(), bytes);
  }
  handshake::Nonce nonce;
  FillRandom(nonce);
  open.push_back(ConnectAsStranger(peer));
  SendObject(open.back(), nonce);
  open.push_back(ConnectAsStranger(peer));
  SendObject(open.back(), handshake::kMagic);
  return open;
}

}  // namespace switchyard
