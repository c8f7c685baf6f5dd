// Requests of API tests and their responses.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <sstream>
#include <string>
#include <vector>

#include "server/api/json_body.h"
#include "server/http/test_client.h"

namespace switchyard {

// Posts `body` to a server of this host and returns the body of the response. Expects `status`.
inline std::string PostJson(uint16_t port, const std::string& path, const Json& body, int status) {
  http::TestClient client(port);
  client.Post(path, body.dump());
  const auto response = client.Read();
  if (!response) return "no response";
  EXPECT_EQ(response->status, status) << response->body;
  return response->body;
}

// Gets `path` from a server of this host and returns the body of the response. Expects `status`.
inline std::string GetText(uint16_t port, const std::string& path, int status = 200) {
  http::TestClient client(port);
  client.Get(path);
  const auto response = client.Read();
  if (!response) return "no response";
  EXPECT_EQ(response->status, status) << response->body;
  return response->body;
}

// The data of all events of a stream, without [DONE].
inline std::vector<Json> EventsOf(const std::string& stream) {
  std::istringstream lines(stream);
  std::vector<Json> events;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("data: {")) events.push_back(Json::parse(line.substr(6)));
  }
  return events;
}

}  // namespace switchyard
