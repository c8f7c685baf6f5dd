#include "chat/http_client.h"

#include <boost/asio/buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <vector>

#include "core/error.h"

namespace switchyard::chat {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;

constexpr size_t kMaxBody = size_t{64} << 20;
constexpr size_t kPiece = 16 << 10;  // bytes of one read

}  // namespace

std::string HttpClient::Head(std::string_view method, std::string_view path) const {
  std::string head = fmt::format(
      "{} {}{} HTTP/1.1\r\nHost: {}\r\nUser-Agent: switchyard-chat\r\nConnection: close\r\n",
      method, url_.prefix, path, url_.Host());
  if (!key_.empty()) head += fmt::format("Authorization: Bearer {}\r\n", key_);
  return head;
}

HttpClient::Response HttpClient::Get(std::string_view path) {
  return Exchange(Head("GET", path) + "Accept: application/json\r\n\r\n", {});
}

HttpClient::Response HttpClient::Post(std::string_view path, std::string_view body,
                                      const std::function<void(std::string_view)>& part) {
  std::string request = Head("POST", path);
  request += fmt::format(
      "Accept: text/event-stream\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
      body.size());
  return Exchange(request.append(body), part);
}

HttpClient::Response HttpClient::Exchange(const std::string& request,
                                          const std::function<void(std::string_view)>& part) {
  Connection connection(url_, options_, signals_);
  connection.Write(request);
  const auto fail = [this](const std::string& why) {
    return Error(ErrorKind::kPeer, fmt::format("{}: {}", url_.Text(), why));
  };

  http::response_parser<http::string_body> parser;
  parser.eager(true);
  parser.body_limit(boost::none);  // checked below: a stream may be longer
  std::vector<char> received;      // bytes that the parser has not consumed
  Response response;
  boost::system::error_code error;
  const auto take_body = [&] {
    std::string& body = parser.get().body();
    if (body.empty()) return;
    if (part && response.status == 200)
      part(body);
    else
      response.body += body;
    body.clear();
    if (response.body.size() > kMaxBody) throw fail("the response is larger than 64 MiB");
  };
  while (!parser.is_done()) {
    const size_t before = received.size();
    received.resize(before + kPiece);
    const size_t count = connection.Read(received.data() + before, kPiece);
    received.resize(before + count);
    if (count == 0) {
      if (!parser.got_some()) throw fail("the server closed the connection without a response");
      parser.put_eof(error);
      if (error || !parser.is_done()) throw fail("the connection ended within the response");
    }
    while (!received.empty() && !parser.is_done()) {
      const size_t used = parser.put(asio::buffer(received.data(), received.size()), error);
      received.erase(received.begin(), received.begin() + static_cast<std::ptrdiff_t>(used));
      if (error == http::error::need_more) {
        error = {};
        break;
      }
      if (error) throw fail(fmt::format("the response is not HTTP ({})", error.message()));
      if (parser.is_header_done()) response.status = static_cast<int>(parser.get().result_int());
      take_body();
      if (used == 0) break;
    }
    if (parser.is_header_done()) response.status = static_cast<int>(parser.get().result_int());
    take_body();
  }
  return response;
}

}  // namespace switchyard::chat
