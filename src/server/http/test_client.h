// HTTP client for tests. Sends exactly the given bytes.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace switchyard::http {

struct TestResponse {
  int status = 0;
  std::vector<std::pair<std::string, std::string>> headers;
  std::string body;      // without chunk framing
  bool complete = true;  // false: the connection ended within the body

  std::string Header(std::string_view name) const {
    for (const auto& [key, value] : headers) {
      if (key.size() == name.size() && strncasecmp(key.data(), name.data(), name.size()) == 0) {
        return value;
      }
    }
    return {};
  }
};

// Blocking, not thread-safe. Every wait ends after at most a minute, as if the server had closed.
class TestClient {
 public:
  // `receive_buffer`: size of the kernel's receive buffer in bytes; 0: default.
  explicit TestClient(int port, int receive_buffer = 0, bool ipv6 = false) {
    fd_ = socket(ipv6 ? AF_INET6 : AF_INET, SOCK_STREAM, 0);
    if (receive_buffer > 0) {
      setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &receive_buffer, sizeof receive_buffer);
    }
    const timeval limit{.tv_sec = 60, .tv_usec = 0};
    setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    setsockopt(fd_, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
    sockaddr_in v4{};
    v4.sin_family = AF_INET;
    v4.sin_port = htons(port);
    v4.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    sockaddr_in6 v6{};
    v6.sin6_family = AF_INET6;
    v6.sin6_port = htons(port);
    v6.sin6_addr = in6addr_loopback;
    connected_ = ipv6 ? connect(fd_, reinterpret_cast<sockaddr*>(&v6), sizeof v6) == 0
                      : connect(fd_, reinterpret_cast<sockaddr*>(&v4), sizeof v4) == 0;
  }
  ~TestClient() { Close(); }
  TestClient(const TestClient&) = delete;
  TestClient& operator=(const TestClient&) = delete;

  bool connected() const { return connected_; }

  // False once the server has closed the connection.
  bool Send(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t sent = send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent <= 0) return false;
      bytes.remove_prefix(sent);
    }
    return true;
  }

  void SendByteByByte(std::string_view bytes) {
    const int on = 1;
    setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    for (size_t i = 0; i < bytes.size() && Send(bytes.substr(i, 1)); ++i) {
    }
  }

  // Closes the sending side only.
  void EndSending() { shutdown(fd_, SHUT_WR); }

  void Get(std::string_view path, std::string_view headers = "") {
    Send("GET " + std::string(path) + " HTTP/1.1\r\nHost: test\r\n" + std::string(headers) +
         "\r\n");
  }

  void Post(std::string_view path, std::string_view body, std::string_view headers = "") {
    Send("POST " + std::string(path) + " HTTP/1.1\r\nHost: test\r\nContent-Length: " +
         std::to_string(body.size()) + "\r\n" + std::string(headers) + "\r\n" + std::string(body));
  }

  // Returns no value if the connection ends before the end of the head. `head`: the response is to
  // a HEAD request and has no body.
  std::optional<TestResponse> Read(bool head = false) {
    TestResponse response;
    const auto status_line = ReadLine();
    if (!status_line || !status_line->starts_with("HTTP/1.1 ")) return std::nullopt;
    response.status = std::atoi(status_line->c_str() + 9);
    while (true) {
      const auto line = ReadLine();
      if (!line) return std::nullopt;
      if (line->empty()) break;
      const size_t colon = line->find(": ");
      if (colon == std::string::npos) return std::nullopt;
      response.headers.emplace_back(line->substr(0, colon), line->substr(colon + 2));
    }
    if (head || response.status < 200 || response.status == 204) return response;
    if (response.Header("Transfer-Encoding") == "chunked") {
      while (const auto chunk = ReadChunk()) {
        if (chunk->empty()) return response;
        response.body += *chunk;
      }
      response.complete = false;
    } else if (const std::string length = response.Header("Content-Length"); !length.empty()) {
      response.complete = ReadExactly(std::stoul(length), &response.body);
    } else {
      response.body = ReadToEnd();
    }
    return response;
  }

  // Reads one chunk of a chunked body. Empty for the last chunk; no value if the connection ended.
  std::optional<std::string> ReadChunk() {
    const auto size = ReadLine();
    if (!size) return std::nullopt;
    std::string chunk;
    if (!ReadExactly(std::stoul(*size, nullptr, 16) + 2, &chunk)) return std::nullopt;
    chunk.pop_back();  // removes the line end after the chunk
    chunk.pop_back();
    return chunk;
  }

  // Returns no value at the end of the connection.
  std::optional<std::string> ReadLine() {
    size_t end;
    while ((end = buffer_.find("\r\n")) == std::string::npos) {
      if (!Receive()) return std::nullopt;
    }
    std::string line = buffer_.substr(0, end);
    buffer_.erase(0, end + 2);
    return line;
  }

  std::string ReadToEnd() {
    while (Receive()) {
    }
    return std::exchange(buffer_, {});
  }

  void Close() {
    if (fd_ >= 0) close(std::exchange(fd_, -1));
  }

  // Closes with RST instead of FIN.
  void Reset() {
    const linger at_once{.l_onoff = 1, .l_linger = 0};
    setsockopt(fd_, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
    Close();
  }

 private:
  bool Receive() {
    char bytes[16 << 10];
    const ssize_t count = recv(fd_, bytes, sizeof bytes, 0);
    if (count > 0) buffer_.append(bytes, count);
    return count > 0;
  }

  bool ReadExactly(size_t count, std::string* out) {
    while (buffer_.size() < count && Receive()) {
    }
    *out = buffer_.substr(0, count);
    buffer_.erase(0, count);
    return out->size() == count;
  }

  int fd_ = -1;
  bool connected_ = false;
  std::string buffer_;  // received, not yet read
};

}  // namespace switchyard::http
