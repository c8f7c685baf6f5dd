// Address of a server, as the user of `switchyard chat` writes it.
#pragma once

#include <string>
#include <string_view>

namespace switchyard::chat {

struct ServerUrl {
  bool tls = false;
  std::string host;         // without the brackets of IPv6
  int port = 80;            //
  std::string prefix;       // path before /v1, "" or "/api"
  std::string unix_socket;  // path; if set, host and port are not used

  std::string Host() const;  // value of the Host header
  std::string Text() const;  // for messages
};

// Parses http://HOST[:PORT][/PREFIX], https://..., HOST:PORT, or unix:PATH. The path may end with
// /v1, as base URLs of OpenAI's clients do. Throws Error kInvalid that quotes the text.
ServerUrl ParseServerUrl(std::string_view text);

}  // namespace switchyard::chat
