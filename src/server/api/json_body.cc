#include "server/api/json_body.h"

#include <array>
#include <charconv>
#include <limits>
#include <utility>

namespace switchyard {
namespace {

// Deeper than any message or tool schema, shallow enough for the recursive code that walks it
// later.
constexpr int kDeepest = 128;
// Objects keep the order of their keys, and look each up from the front: the cost grows with the
// square.
constexpr int kMostKeys = 4096;

[[noreturn]] void Wrong(const std::string& name, const char* want, const Json& got) {
  std::string shown = got.dump(-1, ' ', false, Json::error_handler_t::replace);
  if (shown.size() > 80) shown = shown.substr(0, 77) + "...";
  throw Invalid("{} is {}, want {}", name, shown, want);
}

// What a parsed value takes at most. Lists double when they grow, and the old one is freed only
// then; the smallest block of the heap is 32 bytes.
constexpr size_t kValueBytes = 3 * sizeof(Json), kContainerBytes = 64, kKeyBytes = 3 * 32;
// Of each byte of text: the copy that becomes a prompt, its normalised form, its words, its ids.
constexpr size_t kTextFactor = 12;

// Counts while a body is parsed, in pieces that cost little.
class ParsedSize {
 public:
  explicit ParsedSize(http::MemoryCharge* memory) : memory_(memory) {}

  void Count(Json::parse_event_t event, const Json& value) {
    if (!memory_) return;
    if (event == Json::parse_event_t::key) {
      bytes_ += kKeyBytes + value.get_ref<const std::string&>().size();
    } else if (event == Json::parse_event_t::value) {
      bytes_ += kValueBytes;
      if (value.is_string())
        bytes_ += kContainerBytes + kTextFactor * value.get_ref<const std::string&>().size();
    } else if (event == Json::parse_event_t::object_start ||
               event == Json::parse_event_t::array_start) {
      bytes_ += kValueBytes + kContainerBytes;
    }
    if (bytes_ >= kStep) memory_->Require(std::exchange(bytes_, 0));
  }

 private:
  static constexpr size_t kStep = 64 << 10;
  http::MemoryCharge* memory_;
  size_t bytes_ = 0;
};

}  // namespace

Json ParseBody(const http::Request& request) {
  return ParseBody(request.body, request.memory.get());
}

Json ParseBody(std::string_view body, http::MemoryCharge* memory) {
  try {
    ParsedSize size(memory);
    std::array<int, kDeepest + 2> keys{};  // of the object that is open at each depth
    Json json = Json::parse(body, [&](int depth, Json::parse_event_t event, Json& value) {
      size.Count(event, value);
      if (depth > kDeepest) throw Invalid("the body nests deeper than {} levels", kDeepest);
      if (event == Json::parse_event_t::object_start) keys[depth + 1] = 0;
      if (event == Json::parse_event_t::key && ++keys[depth] > kMostKeys) {
        throw Invalid("the body has an object of more than {} keys", kMostKeys);
      }
      return true;
    });
    if (!json.is_object()) throw Invalid("the body is not a JSON object");
    return json;
  } catch (const Json::parse_error& e) {
    throw Invalid("the body is not JSON: error at byte {}", e.byte);
  } catch (const Json::exception& e) {
    throw Invalid("the body is not JSON: {}", e.what());
  }
}

std::string Dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

const Json* Fields::Find(const char* key) const {
  const auto it = object_.find(key);
  return it == object_.end() || it->is_null() ? nullptr : &*it;
}

bool Fields::Bool(const char* key, bool otherwise) const {
  const Json* v = Find(key);
  if (!v) return otherwise;
  if (!v->is_boolean()) Wrong(Name(key), "true or false", *v);
  return v->get<bool>();
}

int64_t Fields::Int(const char* key, int64_t otherwise, int64_t least, int64_t most) const {
  const Json* v = Find(key);
  if (!v) return otherwise;
  const bool fits =
      v->is_number_integer() &&
      !(v->is_number_unsigned() && v->get<uint64_t>() > static_cast<uint64_t>(INT64_MAX)) &&
      v->get<int64_t>() >= least && v->get<int64_t>() <= most;
  if (!fits) Wrong(Name(key), fmt::format("an integer from {} to {}", least, most).c_str(), *v);
  return v->get<int64_t>();
}

int32_t Fields::Int32(const char* key, int32_t otherwise) const {
  using Limits = std::numeric_limits<int32_t>;
  return static_cast<int32_t>(Int(key, otherwise, Limits::min(), Limits::max()));
}

double Fields::Number(const char* key, double otherwise) const {
  const Json* v = Find(key);
  if (!v) return otherwise;
  if (!v->is_number()) Wrong(Name(key), "a number", *v);
  return v->get<double>();
}

std::optional<uint64_t> Fields::Seed(const char* key) const {
  const Json* v = Find(key);
  if (!v) return std::nullopt;
  if (!v->is_number_integer()) Wrong(Name(key), "an integer", *v);
  return v->is_number_unsigned() ? v->get<uint64_t>() : static_cast<uint64_t>(v->get<int64_t>());
}

std::string Fields::String(const char* key, std::string otherwise) const {
  const Json* v = Find(key);
  if (!v) return otherwise;
  if (!v->is_string()) Wrong(Name(key), "a string", *v);
  return v->get<std::string>();
}

std::vector<std::string> Fields::Strings(const char* key) const {
  const Json* v = Find(key);
  if (!v) return {};
  if (v->is_string()) return {v->get<std::string>()};
  if (!v->is_array()) Wrong(Name(key), "a string or a list of strings", *v);
  std::vector<std::string> strings;
  for (const Json& item : *v) {
    if (!item.is_string()) Wrong(Name(key), "a string or a list of strings", *v);
    strings.push_back(item.get<std::string>());
  }
  return strings;
}

std::vector<int32_t> Fields::Ids(const char* key) const {
  const Json* v = Find(key);
  return v ? ToIds(*v, Name(key)) : std::vector<int32_t>();
}

std::vector<std::pair<int32_t, float>> Fields::LogitBias(const char* key) const {
  std::vector<std::pair<int32_t, float>> biases;
  const Json* v = Find(key);
  if (!v) return biases;
  if (!v->is_object()) Wrong(Name(key), "an object of token ids and numbers", *v);
  for (const auto& [name, bias] : v->items()) {
    int32_t id = 0;
    const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), id);
    if (error != std::errc() || end != name.data() + name.size()) {
      throw Invalid("{}: {} is not a token id", Name(key), name);
    }
    if (!bias.is_number()) Wrong(Name(key) + "." + name, "a number", bias);
    biases.emplace_back(id, bias.get<float>());
  }
  return biases;
}

void Fields::Refuse(const char* key, const char* why) const {
  if (Has(key)) throw Invalid("{} {}", Name(key), why);
}

std::vector<int32_t> ToIds(const Json& list, const std::string& name) {
  if (!list.is_array()) Wrong(name, "a list of token ids", list);
  std::vector<int32_t> ids;
  ids.reserve(list.size());
  for (const Json& item : list) {
    // Ids beyond int32 are no ids of any vocabulary; the range itself is checked where the
    // vocabulary is known.
    if (!item.is_number_integer() || item.get<int64_t>() < 0 || item.get<int64_t>() > INT32_MAX) {
      Wrong(name, "a list of token ids", item);
    }
    ids.push_back(item.get<int32_t>());
  }
  return ids;
}

}  // namespace switchyard
