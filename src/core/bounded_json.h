// Parses untrusted JSON files with limits on depth and number of values.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "core/json.h"

namespace switchyard {

// Limits of a document. A value takes 16 to 100 bytes of memory in addition to its text, so the
// memory of a small file can be large.
struct JsonBounds {
  int depth = 64;             // maximum nesting of objects and arrays
  size_t values = 1'000'000;  // maximum number of values of all kinds, keys included
};

// Like nlohmann::json::parse: if a key occurs twice, the last value is used. Time and memory are
// linear. Throws Error kInvalid if the text is not JSON or exceeds `bounds`; the message begins
// with `name`.
nlohmann::json ParseBoundedJson(std::string_view text, std::string_view name,
                                JsonBounds bounds = {});

// Calls `sax` for each event of the text. The parser is compiled once, for all handlers. Exceptions
// of a handler propagate to the caller.
void ParseJsonEvents(std::string_view text, nlohmann::json_sax<nlohmann::json>* sax);

// Base class for handlers that keep only a small part of a large text. Ignores all events. Throws
// Error kInvalid if the text is not JSON or is nested deeper than `max_depth`.
class JsonEvents : public nlohmann::json_sax<nlohmann::json> {
 public:
  using Json = nlohmann::json;

  // `name` is the prefix of error messages and must outlive the handler.
  JsonEvents(std::string_view name, int max_depth) : name_(name), max_depth_(max_depth) {}

  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(int64_t) override { return true; }
  bool number_unsigned(uint64_t) override { return true; }
  bool number_float(double, const std::string&) override { return true; }
  bool string(std::string&) override { return true; }
  bool binary(Json::binary_t&) override { return false; }
  bool key(std::string&) override { return true; }
  bool start_object(size_t) override { return Enter(); }
  bool end_object() override { return Leave(); }
  bool start_array(size_t) override { return Enter(); }
  bool end_array() override { return Leave(); }
  bool parse_error(size_t byte, const std::string& token, const Json::exception& error) override;

 protected:
  // Number of open objects and arrays.
  int depth() const { return depth_; }
  std::string_view name() const { return name_; }
  bool Enter();
  bool Leave() {
    --depth_;
    return true;
  }

 private:
  const std::string_view name_;
  const int max_depth_;
  int depth_ = 0;
};

}  // namespace switchyard
