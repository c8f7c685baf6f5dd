#include "text/jinja/exact_json.h"

#include <utility>
#include <vector>

#include "core/error.h"

namespace switchyard::jinja {
namespace {

using Json = nlohmann::ordered_json;

enum Subtype : uint64_t { kTrustedString = 0x5459'0001, kBigInteger = 0x5459'0002 };

Json Tagged(std::string_view text, Subtype subtype) {
  return Json::binary(Json::binary_t::container_type(text.begin(), text.end()), subtype);
}

std::optional<std::string> TextOf(const Json& json, Subtype subtype) {
  if (!json.is_binary()) return std::nullopt;
  const Json::binary_t& binary = json.get_binary();
  if (!binary.has_subtype() || binary.subtype() != subtype) return std::nullopt;
  return std::string(binary.begin(), binary.end());
}

// Builds the document from the parser's events.
class Builder final : public nlohmann::json_sax<Json> {
 public:
  Builder(std::string_view what, JsonLimits limits,
          const std::function<bool(std::string_view)>& keeps)
      : what_(what), limits_(limits), keeps_(keeps), keeping_(!keeps) {}

  Json Take() && { return std::move(root_); }

  bool null() override { return Add(nullptr); }
  bool boolean(bool value) override { return Add(value); }
  bool number_integer(int64_t value) override { return Add(value); }
  bool number_unsigned(uint64_t value) override { return Add(value); }
  bool number_float(double value, const std::string& text) override {
    const bool integer = text.find_first_not_of("-0123456789") == std::string::npos;
    return integer && keeping_ ? Add(BigIntegerTag(text)) : Add(value);
  }
  bool string(std::string& value) override { return Add(std::move(value)); }
  bool binary(Json::binary_t&) override { return false; }

  bool start_object(size_t) override { return Open(Json::object()); }
  bool start_array(size_t) override { return Open(Json::array()); }
  bool end_object() override { return Close(); }
  bool end_array() override { return Close(); }

  bool key(std::string& name) override {
    Level& level = open_.back();
    if (++level.keys > limits_.keys)
      throw Invalid("the {} has an object with more than {} keys", what_, limits_.keys);
    if (open_.size() == 1 && keeps_) keeping_ = keeps_(name);
    level.slot = &(*level.container)[name];  // duplicate key: the last value counts
    return true;
  }

  bool parse_error(size_t, const std::string&, const Json::exception& error) override {
    if (const auto* syntax = dynamic_cast<const Json::parse_error*>(&error)) throw *syntax;
    if (const auto* range = dynamic_cast<const Json::out_of_range*>(&error)) throw *range;
    throw Invalid("the {} is not JSON: {}", what_, error.what());
  }

 private:
  struct Level {
    Json* container;
    Json* slot = nullptr;  // where the next value of an object is stored
    int keys = 0;
  };

  Json* Place(Json value) {
    if (open_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    Level& level = open_.back();
    if (level.container->is_object()) {
      *level.slot = std::move(value);
      return level.slot;
    }
    level.container->push_back(std::move(value));
    return &level.container->back();
  }

  bool Add(Json value) {
    Place(std::move(value));
    return true;
  }

  bool Open(Json container) {
    if (static_cast<int>(open_.size()) > limits_.depth)
      throw Invalid("the {} nests deeper than {} levels", what_, limits_.depth);
    Json* placed = Place(std::move(container));
    open_.push_back({placed});
    return true;
  }

  bool Close() {
    open_.pop_back();
    return true;
  }

  const std::string_view what_;
  const JsonLimits limits_;
  const std::function<bool(std::string_view)>& keeps_;
  bool keeping_;
  Json root_;
  std::vector<Level> open_;
};

}  // namespace

Json TrustedString(std::string_view text) { return Tagged(text, kTrustedString); }
Json BigIntegerTag(std::string_view digits) { return Tagged(digits, kBigInteger); }

std::optional<std::string> TrustedStringOf(const Json& json) {
  return TextOf(json, kTrustedString);
}
std::optional<std::string> BigIntegerOf(const Json& json) { return TextOf(json, kBigInteger); }

Json ParseExactJson(std::string_view text, std::string_view what, JsonLimits limits,
                    const std::function<bool(std::string_view)>& keeps) {
  Builder builder(what, limits, keeps);
  Json::sax_parse(text, &builder);
  return std::move(builder).Take();
}

}  // namespace switchyard::jinja
